"""The PyTRIO backend: LoRA training and sampling on the PyTRIO service, through its own SDK (`uv sync --extra remote`).

    trio login                                          # once; or PYTRIO_API_KEY=...; another server: PYTRIO_BASE_URL or base_url
    trainer = await create_trainer("Qwen/Qwen3.5-4B", rank=32, seed=0)
    output = await trainer.forward_backward(data, "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
    metrics = await trainer.optim_step(AdamParams(learning_rate=1e-5))
    samples = await trainer.sampler().sample(chunks, 8, SamplingParams(max_tokens=64))      # the weights as they are now
    path = await trainer.save_state("spec-o3-step-10")                                      # trio://RUN/weights/spec-o3-step-10
    trainer = await load_trainer(path, with_optimizer=True)

The same functions as backends/local.py. Requests are sent in the order of the calls, each before the one before it has been answered, so a script
that starts forward_backward and optim_step together never makes the service wait. Written against pytrio 0.2.9.

What differs from local: rank 4 to 64, no full training; losses cross_entropy, importance_sampling, ppo, cispo; the trainer's temperature is 1;
no log-probabilities of prompts with pictures; no entropy; `version` counts from 0 again after loading. Where stop tokens and stop strings are
both given, the service is told the tokens, and the answer is cut at the strings here. Failures (time-outs, 5xx, dropped connections) are
repeated by the SDK for RETRY_SECONDS under the event's own id, so no step is taken twice; a sampling answer lost on the way is asked for again.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import numpy as np

from backends import AdamParams, Output, remote
from records import ImageChunk, SamplingParams

RANKS = range(4, 65)
NOT_LOGGED_IN = ("unauthorized", "forbidden", "api_key_expired", "api_key_revoked", "api_key_disabled")


# ---------------------------------------------------------------------------------------------------------------------
# our types to theirs


def to_input(chunks: list):
    from pytrio import ImageChunk as Picture
    from pytrio import ModelInput
    from pytrio.types import EncodedTextChunk

    def convert(chunk):
        if isinstance(chunk, ImageChunk):
            return Picture(data=chunk.data, format="jpeg" if chunk.format in ("jpg", "jpeg") else chunk.format, expected_tokens=chunk.positions)
        return EncodedTextChunk(tokens=list(chunk.tokens))

    return ModelInput(chunks=[convert(chunk) for chunk in chunks if len(chunk)])


def to_data(data: list, loss: str) -> list:
    from pytrio import Datum

    return [Datum(model_input=to_input(datum.chunks), loss_fn_inputs=remote.arrays_to_send(datum, loss)) for datum in data]


def explain(error) -> str:
    """One line that says what to do."""
    code, message = getattr(error, "code", ""), getattr(error, "message", "") or str(error) or type(error).__name__
    message = " ".join(message.split())
    if code.startswith("auth.") or code in NOT_LOGGED_IN or getattr(error, "status_code", 0) == 401:
        return f"PyTRIO: not logged in ({message}): run `trio login`, or set PYTRIO_API_KEY"
    if code == "training.run_broken":
        return f"PyTRIO: {message}; go on from the last checkpoint with --resume"
    hint = " ".join(getattr(error, "hint", "").split())
    return f"PyTRIO: {message.rstrip('.')}" + (f" [{code}]" if code else "") + (f". {hint}" if hint else "")


@contextmanager
def one_line(kind=SystemExit):
    """The SDK's errors as `kind` with one line: SystemExit ends a script with it, RuntimeError is recorded by a rollout."""
    import httpx
    from pytrio import PyTrioError

    try:
        yield
    except (PyTrioError, httpx.HTTPError, ValueError) as error:
        raise kind(explain(error)) from error


# ---------------------------------------------------------------------------------------------------------------------
# sampler and trainer


class Sampler:
    """Samples from `client`, or from a trainer's weights: they are exported once a version, when the first sample is asked for."""

    def __init__(self, base_model: str, limit: int | None, client=None, trainer=None):
        self.base_model, self.limit, self.client, self.trainer = base_model, limit, client, trainer
        self.exported, self.lock, self.tokenizer = None, asyncio.Lock(), None

    @property
    def version(self) -> int:
        return self.trainer.version if self.trainer else 0

    async def _current(self):
        """The SDK's sampling client for the weights as they are now."""
        if self.trainer is None:
            return self.client
        async with self.lock:  # all who come for a new version wait for one export
            if self.exported != self.trainer.version:
                async with self.trainer.turn:
                    version = self.trainer.version
                    with one_line(RuntimeError):
                        self.client = await self.trainer.client.save_weights_and_get_sampling_client_async()
                    self.exported = version
            return self.client

    async def sample(self, chunks: list, n: int, params: SamplingParams) -> list:
        """n samples of a prompt, in one request. ValueError if it is unusable, RuntimeError with one line if the service fails."""
        room = remote.answer_length(chunks, n, params, self.limit)
        client = await self._current()
        from pytrio import SamplingParams as Asked

        asked = Asked(max_tokens=room, seed=params.seed, stop=remote.stop_to_send(params), temperature=params.temperature,
                      top_k=params.top_k or -1, top_p=params.top_p)  # fmt: skip
        prompt = await asyncio.to_thread(to_input, chunks)
        decode = await self._decoder(client) if params.stop_strings else None
        response = await self._patiently(lambda: client.sample_async(prompt, n, asked, return_text=False))
        if len(response.sequences) != n:
            raise RuntimeError(f"PyTRIO: {n} samples were asked for, {len(response.sequences)} came")
        return [remote.ended(one.tokens, one.logprobs, params, one.stop_reason, decode) for one in response.sequences]

    async def logprobs(self, chunks: list) -> np.ndarray:
        """float32 [T]: log p(token t | all before it), 0 at t = 0. Not with pictures."""
        if any(isinstance(chunk, ImageChunk) for chunk in chunks):
            raise ValueError("PyTRIO gives no log-probabilities of prompts with pictures: use --backend local, or another policy")
        client, prompt = await self._current(), await asyncio.to_thread(to_input, chunks)
        values = await self._patiently(lambda: client.compute_logprobs_async(prompt))
        return remote.prompt_logprobs(values, sum(map(len, chunks)))

    async def _patiently(self, request):
        """The SDK repeats what fails before an answer begins; here, what breaks off in the middle of one."""
        import httpx

        for attempt in range(1, remote.TRIES + 1):
            with one_line(RuntimeError):
                try:
                    return await request()
                except httpx.TransportError:
                    if attempt == remote.TRIES:
                        raise
            await asyncio.sleep(attempt)

    async def _decoder(self, client):
        if self.tokenizer is None:
            with one_line(RuntimeError):
                self.tokenizer = await asyncio.to_thread(client.get_tokenizer)
        return lambda tokens: self.tokenizer.decode(tokens, skip_special_tokens=False)

    def close(self):
        self.client = None


class Trainer:
    """See the top of this file. `base_model`: what the service calls the model; `version`: optimizer steps sent by this object."""

    def __init__(self, service, client, limits: dict):
        self.service, self.client, self.base_model = service, client, client.model_id
        self.limit = limits["training"]
        self.version, self.pending, self.names = 0, False, set()
        self.turn = asyncio.Lock()  # fair: whoever called first sends first
        self.on_policy = Sampler(self.base_model, limits["sampling"], trainer=self)

    def sampler(self) -> Sampler:
        """An on-policy sampler; steps that were sent before a sample is asked for are in its weights."""
        return self.on_policy

    async def forward(self, data: list, loss="cross_entropy", config: dict | None = None) -> Output:
        """Log-probabilities and metrics, no gradients."""
        return await self._pass(data, loss, config, False)

    async def forward_backward(self, data: list, loss="cross_entropy", config: dict | None = None) -> Output:
        """Adds the gradient of the summed loss to what earlier calls left."""
        return await self._pass(data, loss, config, True)

    async def _pass(self, data, loss, config, grad) -> Output:
        config = remote.check("PyTRIO", data, loss, config, self.limit)
        async with self.turn:
            sent = await asyncio.to_thread(to_data, data, loss)
            with one_line():
                submit = self.client.forward_backward_async if grad else self.client.forward_async
                future = await submit(sent, loss, config)
            self.pending |= grad
        try:
            with one_line():
                result = await future
        except BaseException:
            self.pending = False
            raise
        return remote.measured(data, loss, config, [out["logprobs"].to_numpy() for out in result.loss_fn_outputs])

    async def optim_step(self, adam: AdamParams) -> dict:
        """One AdamW step on the gradients gathered. Metrics: the service's, and grad_norm (NaN if it sends none), skipped, version."""
        from pytrio import AdamParams as Asked

        async with self.turn:
            if not self.pending:
                raise ValueError("optim_step without gradients: call forward_backward before")
            with one_line():
                future = await self.client.optim_step_async(Asked(**vars(adam)))
            self.pending = False
            self.version += 1
            version = self.version
        with one_line():
            found = dict((await future).metrics)
        return {"skipped": 0, **found, "grad_norm": remote.grad_norm(found), "version": version}

    async def save_state(self, name) -> str:
        """Weights and optimizer, for `load_trainer`. Returns trio://... `name`: a name, or the path that a script would save to."""
        async with self.turn:
            with one_line():
                future = await self.client.save_state_async(remote.checkpoint_name(name, self.names))
        with one_line():
            return (await future).path

    async def save_weights_for_sampler(self, name) -> str:
        """Weights only, for `create_sampler`. Returns trio://..."""
        async with self.turn:
            with one_line():
                future = await self.client.save_weights_for_sampler_async(remote.checkpoint_name(name, self.names))
        with one_line():
            return (await future).path

    def close(self):
        """The SDK ends the session when nothing refers to it any more."""
        self.on_policy.close()
        self.client = self.service = None


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
                     control_retry_timeout_seconds=min(bound, 60))  # fmt: skip
    with one_line():
        return pytrio.ServiceClient()


async def limits_of(service, model: str, use: str) -> dict:
    """{"training": n, "sampling": n}: the most positions of a sequence, None if not said. SystemExit if the model isn't served for `use`."""
    with one_line():
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
        raise SystemExit(f"--rank {rank}: PyTRIO trains LoRA adapters of rank {RANKS[0]} to {RANKS[-1]}; for all weights use --backend local")
    remote.refuse_options("PyTRIO", options, revision)
    service = await asyncio.to_thread(connect, base_url)
    limits = await limits_of(service, str(base_model), "training")
    with one_line():
        client = await service.create_lora_training_client_async(str(base_model), rank=rank, seed=seed)
    return Trainer(service, client, limits)


async def load_trainer(state_path, with_optimizer: bool = True, *, base_url=None, **options) -> Trainer:
    """The trainer that `save_state` saved, model and rank included; without optimizer: its weights."""
    if not str(state_path).startswith("trio://"):
        raise SystemExit(f"--state-path {state_path}: PyTRIO loads what its trainer saved (trio://RUN/weights/NAME), not files of this machine")
    remote.refuse_options("PyTRIO", options)
    service = await asyncio.to_thread(connect, base_url)
    make = service.create_training_client_from_state_async
    if with_optimizer:
        make = service.create_training_client_from_state_with_optimizer_async
    with one_line():
        client = await make(str(state_path))
    return Trainer(service, client, await limits_of(service, client.model_id, "training"))


async def create_sampler(base_model, sampler_path=None, *, base_url=None) -> Sampler:
    """A sampler on a model that the service has; `sampler_path`: what save_weights_for_sampler (or save_state) returned."""
    if sampler_path and not str(sampler_path).startswith("trio://"):
        raise SystemExit(f"--model-path {sampler_path}: PyTRIO samples from what its trainer saved (trio://RUN/sampler_weights/NAME)")
    service = await asyncio.to_thread(connect, base_url)
    limits = await limits_of(service, str(base_model), "sampling")
    with one_line():
        client = await service.create_sampling_client_async(base_model=str(base_model), model_path=sampler_path and str(sampler_path))
    sampler = Sampler(str(base_model), limits["sampling"], client)
    sampler.service = service  # keeps the session
    return sampler
