"""The Tinker backend: LoRA training and sampling on Tinker, or on any server that speaks its API (SkyRL), through the tinker SDK.

    export TINKER_API_KEY=tml-...                       # another server: TINKER_BASE_URL or --base-url (a local one takes any key: tml-x)
    trainer = await create_trainer("Qwen/Qwen3-8B", rank=32, seed=0)
    path = await trainer.save_state("step-10")                                              # tinker://RUN/weights/step-10
    trainer = await load_trainer(path, with_optimizer=True)

The functions of backends/local.py; trainer and sampler are those of remote.py. Written against tinker 0.38 (`uv sync --extra remote`) and
0.25.0, the one that SkyRL 0.4.0's server needs, in an environment of its own: newer ones can't sample there. The methods called here end in
_async because both releases have them.

What differs from local: LoRA only; losses cross_entropy, importance_sampling, ppo, cispo; the trainer's temperature is 1; no
log-probabilities of prompts with pictures; no entropy; `version` counts from 0 again after loading. SkyRL's JAX engine drops pictures
without a word, so the first picture is checked: as many log-probabilities must come back as positions were sent. The SDK repeats failed
requests under their number. The key comes from the environment only, never from a flag. Its telemetry is off unless TOOLGRAD_TELEMETRY=1.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings

from backends import remote
from backends.remote import Sampler, Trainer
from records import ImageChunk

NAME = "Tinker"
SAMPLE: dict = {}
DROPS_PICTURES = True  # some servers do
HERE = sys.modules[__name__]  # what remote.py calls the adapter


# ---------------------------------------------------------------------------------------------------------------------
# our types to theirs


def to_input(chunks: list):
    import tinker

    def convert(chunk):
        if isinstance(chunk, ImageChunk):
            return tinker.types.ImageChunk(data=chunk.data, format=chunk.format.replace("jpg", "jpeg"), expected_tokens=chunk.positions)
        return tinker.EncodedTextChunk(tokens=list(chunk.tokens))

    return tinker.ModelInput(chunks=[convert(chunk) for chunk in chunks if len(chunk)])


def to_datum(model_input, arrays: dict):
    import tinker

    inputs = {name: tinker.TensorData.from_numpy(array) for name, array in arrays.items()}
    return tinker.Datum(model_input=model_input, loss_fn_inputs=inputs)


def to_params(max_tokens: int, stop, params):
    import tinker

    return tinker.SamplingParams(max_tokens=max_tokens, seed=params.seed, stop=stop, temperature=params.temperature,
                                 top_k=params.top_k or -1, top_p=params.top_p)  # fmt: skip


def to_adam(adam):
    import tinker

    return tinker.AdamParams(**vars(adam))


def errors() -> tuple:
    import httpx
    import tinker

    return tinker.TinkerError, httpx.HTTPError


def lost(error) -> bool:
    """Whether an answer broke off on the way."""
    import tinker

    return isinstance(error, tinker.APIConnectionError) or not isinstance(error, tinker.TinkerError)


def explain(error) -> str:
    """What to do."""
    import tinker

    message = str(error) or type(error).__name__
    if isinstance(error, tinker.AuthenticationError | tinker.PermissionDeniedError) or "API_KEY" in message or "api_key" in message:
        return f"not logged in ({message}): set TINKER_API_KEY (any tml-... for a server of your own)"
    if isinstance(error, tinker.APIConnectionError):
        return f"{message} Is the server up, and its address right (--base-url, or TINKER_BASE_URL)?"
    return message


# ---------------------------------------------------------------------------------------------------------------------
# making trainers and samplers


def connect(base_url=None):
    """The SDK's service client. SystemExit with one line if it isn't installed, or there is no key."""
    if not remote.telemetry_wanted():
        os.environ["TINKER_TELEMETRY"] = "0"
    try:
        import tinker
    except ImportError as error:
        advice = "uv sync --extra remote (for a SkyRL server: pip install tinker==0.25.0)"
        raise SystemExit(f"Tinker's SDK is not installed: {advice}") from error
    address = base_url or os.environ.get("TINKER_BASE_URL")
    if address:  # the SDK would try for minutes, without a word
        import httpx

        try:
            httpx.get(address, timeout=20)
        except httpx.TransportError as error:
            raise SystemExit(f"Tinker: nobody answers at {address} ({error}): start the server, or correct --base-url (TINKER_BASE_URL)") from error
    warnings.filterwarnings("ignore", message=".*deprecated.*", category=FutureWarning, module=r"backends\..*")
    with remote.one_line(HERE):
        return tinker.ServiceClient(base_url=base_url)


async def limits_of(service, model: str) -> dict:
    """{"training": n, "sampling": n}: most positions of a sequence, None if not said. SystemExit if the model isn't served.

    Some servers accept a name that they don't serve, and train their own model.
    """
    with remote.one_line(HERE):
        models = (await service.get_server_capabilities_async()).supported_models
    found = next((one for one in models if one.model_name == model), None)
    if not found:
        served = ", ".join(str(one.model_name) for one in models) or "none"
        raise SystemExit(f"Tinker: --base-model {model} is not served; there are: {served}")
    limit = getattr(found, "max_context_length", None)
    return {"training": limit, "sampling": limit}


async def create_trainer(base_model, rank: int = 32, seed: int = 0, *, revision=None, base_url=None, **options) -> Trainer:
    """A fresh LoRA of `rank` (the server says which it takes) on a model that the service has."""
    if rank < 1:
        raise SystemExit(f"--rank {rank}: Tinker trains LoRAs; for all weights use --backend local")
    remote.refuse_options(NAME, options, revision)
    service = await asyncio.to_thread(connect, base_url)
    limits = await limits_of(service, str(base_model))
    with remote.one_line(HERE):
        client = await service.create_lora_training_client_async(str(base_model), rank=rank, seed=seed)
    return Trainer(HERE, service, client, str(base_model), limits)


async def load_trainer(state_path, with_optimizer: bool = True, *, base_url=None, **options) -> Trainer:
    """The trainer that `save_state` saved, model and rank included; without optimizer: its weights."""
    if not str(state_path).startswith("tinker://"):
        raise SystemExit(f"--state-path {state_path}: Tinker loads what it saved (tinker://RUN/weights/NAME), not files of this machine")
    remote.refuse_options(NAME, options)
    service = await asyncio.to_thread(connect, base_url)
    make = service.create_training_client_from_state_async
    if with_optimizer:
        make = service.create_training_client_from_state_with_optimizer_async
    with remote.one_line(HERE):
        client = await make(str(state_path))
        base_model = (await client.get_info_async()).model_data.model_name  # `client.model_id` is the run's id here
    return Trainer(HERE, service, client, base_model, await limits_of(service, base_model))


async def create_sampler(base_model, sampler_path=None, *, base_url=None) -> Sampler:
    """A sampler on a model that the service has; `sampler_path`: what save_weights_for_sampler (or save_state) returned."""
    if sampler_path and not str(sampler_path).startswith("tinker://"):
        raise SystemExit(f"--model-path {sampler_path}: Tinker samples from what it saved (tinker://RUN/sampler_weights/NAME)")
    service = await asyncio.to_thread(connect, base_url)
    limits = await limits_of(service, str(base_model))
    chosen = {"model_path": str(sampler_path)} if sampler_path else {"base_model": str(base_model)}
    with remote.one_line(HERE):
        client = await service.create_sampling_client_async(**chosen)
    return Sampler(HERE, limits["sampling"], client, service=service)
