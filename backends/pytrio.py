"""The PyTRIO backend: LoRA training and sampling on the PyTRIO service, through its own SDK (`uv sync --extra remote`).

    trio login                                          # once; or PYTRIO_API_KEY=...; another server: PYTRIO_BASE_URL or --base-url
    trainer = await create_trainer("Qwen/Qwen3.5-4B", rank=32, seed=0)
    output = await trainer.forward_backward(data, "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
    metrics = await trainer.optim_step(AdamParams(learning_rate=1e-5))
    samples = await trainer.sampler().sample(chunks, 8, SamplingParams(max_tokens=64))      # the weights as they are now
    path = await trainer.save_state("spec-o3-step-10")                                      # trio://RUN/weights/spec-o3-step-10
    trainer = await load_trainer(path, with_optimizer=True)

The functions of backends/local.py; trainer and sampler are those of remote.py. Written against pytrio 0.2.9.

What differs from local: rank 4 to 64, no full training; losses cross_entropy, importance_sampling, ppo, cispo; the trainer's temperature is
1; no log-probabilities of prompts with pictures; no entropy; `version` counts from 0 again after loading. Failures (time-outs, 5xx, dropped
connections) are repeated by the SDK for RETRY_SECONDS under the event's own id, so no step is taken twice; a sampling answer that was lost
on the way, or doesn't come within REQUEST_SECONDS, is asked for again, TRIES times in all. The SDK's telemetry is off unless
TOOLGRAD_TELEMETRY=1. The key comes from the environment or from `trio login` only, never from a flag.
"""

from __future__ import annotations

import asyncio
import sys

from backends import remote
from backends.remote import Sampler, Trainer
from records import ImageChunk

NAME = "PyTRIO"
RANKS = range(4, 65)
NOT_LOGGED_IN = ("unauthorized", "forbidden", "api_key_expired", "api_key_revoked", "api_key_disabled")
SAMPLE = {"return_text": False}  # text is decoded here, by the same tokenizer as everywhere
DROPS_PICTURES = False
HERE = sys.modules[__name__]  # what remote.py calls the adapter


# ---------------------------------------------------------------------------------------------------------------------
# our types to theirs


def to_input(chunks: list):
    from pytrio import ImageChunk as Picture
    from pytrio import ModelInput
    from pytrio.types import EncodedTextChunk

    def convert(chunk):
        if isinstance(chunk, ImageChunk):
            return Picture(data=chunk.data, format=chunk.format.replace("jpg", "jpeg"), expected_tokens=chunk.positions)
        return EncodedTextChunk(tokens=list(chunk.tokens))

    return ModelInput(chunks=[convert(chunk) for chunk in chunks if len(chunk)])


def to_datum(model_input, arrays: dict):
    from pytrio import Datum

    return Datum(model_input=model_input, loss_fn_inputs=arrays)


def to_params(max_tokens: int, stop, params):
    from pytrio import SamplingParams

    return SamplingParams(max_tokens=max_tokens, seed=params.seed, stop=stop, temperature=params.temperature, top_k=params.top_k or -1,
                          top_p=params.top_p)  # fmt: skip


def to_adam(adam):
    from pytrio import AdamParams

    return AdamParams(**vars(adam))


def errors() -> tuple:
    import httpx
    from pytrio import PyTrioError

    return PyTrioError, httpx.HTTPError


def lost(error) -> bool:
    """Whether an answer broke off on the way (what failed before it began was repeated by the SDK)."""
    return getattr(error, "code", "") == "actor.invalid_response"


def explain(error) -> str:
    """What to do."""
    code, message = getattr(error, "code", ""), getattr(error, "message", "") or str(error) or type(error).__name__
    if code.startswith("auth.") or code in NOT_LOGGED_IN or getattr(error, "status_code", 0) == 401:
        return f"not logged in ({message}): run `trio login`, or set PYTRIO_API_KEY"
    if code == "training.run_broken":
        return f"{message}; go on from the last checkpoint with --resume"
    return f"{message.rstrip('.')}" + (f" [{code}]" if code else "") + f". {getattr(error, 'hint', '')}"


# ---------------------------------------------------------------------------------------------------------------------
# making trainers and samplers


def connect(base_url=None):
    """The SDK's service client. SystemExit with one line if it isn't installed, or nobody is logged in."""
    try:
        import pytrio
    except ImportError as error:
        raise SystemExit("PyTRIO's SDK is not installed: uv sync --extra remote (or pip install pytrio==0.2.9)") from error
    pytrio.configure_observability(enabled=remote.telemetry_wanted())
    bound = remote.RETRY_SECONDS
    pytrio.configure(base_url=base_url, training_retry_timeout_seconds=bound, sampling_retry_timeout_seconds=bound,
                     control_retry_timeout_seconds=min(bound, 60), sampling_request_max_in_flight=remote.CONCURRENCY)  # fmt: skip
    with remote.one_line(HERE):
        return pytrio.ServiceClient()


async def limits_of(service, model: str, use: str) -> dict:
    """{"training": n, "sampling": n}: most positions of a sequence, None if not said. SystemExit if the model isn't served for `use`."""
    with remote.one_line(HERE):
        models = (await service.get_server_capabilities_async()).supported_models
    found = next((one for one in models if one.model_name == model), None)
    if not found or not getattr(found, use).available:
        served = ", ".join(one.model_name for one in models if getattr(one, use).available) or "none"
        raise SystemExit(f"PyTRIO: --base-model {model} is not served for {use}; there are: {served}")
    kinds = {name: getattr(found, name) for name in ("training", "sampling")}
    known = {name: (found.max_context_length, kind.max_seq_len, kind.max_tokens_per_request) for name, kind in kinds.items()}
    return {name: min((limit for limit in limits if limit), default=None) for name, limits in known.items()}


async def create_trainer(base_model, rank: int = 32, seed: int = 0, *, revision=None, base_url=None, **options) -> Trainer:
    """A fresh LoRA of `rank` on a model that the service has."""
    if rank not in RANKS:
        raise SystemExit(f"--rank {rank}: PyTRIO trains LoRAs of rank {RANKS[0]} to {RANKS[-1]}; for all weights use --backend local")
    remote.refuse_options(NAME, options, revision)
    service = await asyncio.to_thread(connect, base_url)
    limits = await limits_of(service, str(base_model), "training")
    with remote.one_line(HERE):
        client = await service.create_lora_training_client_async(str(base_model), rank=rank, seed=seed)
    return Trainer(HERE, service, client, client.model_id, limits)


async def load_trainer(state_path, with_optimizer: bool = True, *, base_url=None, **options) -> Trainer:
    """The trainer that `save_state` saved, model and rank included; without optimizer: its weights."""
    if not str(state_path).startswith("trio://"):
        raise SystemExit(f"--state-path {state_path}: PyTRIO loads what it saved (trio://RUN/weights/NAME), not files of this machine")
    remote.refuse_options(NAME, options)
    service = await asyncio.to_thread(connect, base_url)
    make = service.create_training_client_from_state_async
    if with_optimizer:
        make = service.create_training_client_from_state_with_optimizer_async
    with remote.one_line(HERE):
        client = await make(str(state_path))
    return Trainer(HERE, service, client, client.model_id, await limits_of(service, client.model_id, "training"))


async def create_sampler(base_model, sampler_path=None, *, base_url=None) -> Sampler:
    """A sampler on a model that the service has; `sampler_path`: what save_weights_for_sampler (or save_state) returned."""
    if sampler_path and not str(sampler_path).startswith("trio://"):
        raise SystemExit(f"--model-path {sampler_path}: PyTRIO samples from what its trainer saved (trio://RUN/sampler_weights/NAME)")
    service = await asyncio.to_thread(connect, base_url)
    limits = await limits_of(service, str(base_model), "sampling")
    with remote.one_line(HERE):
        client = await service.create_sampling_client_async(base_model=str(base_model), model_path=sampler_path and str(sampler_path))
    return Sampler(HERE, limits["sampling"], client, service=service)
