"""Trainer and sampler on a remote service. What differs between the services is in their adapters, pytrio.py and tinker.py.

An adapter module (`sdk` below) has NAME, LOGIN, to_input(chunks), to_datum(input, arrays), to_params(max_tokens, stop, params),
to_adam(adam), errors(), explain(error), lost(error), SAMPLE (more arguments of sample_async) and DROPS_PICTURES (some servers do).

Requests are sent in the order of the calls, each before the one before it has been answered: a script that starts forward_backward and
optim_step together never makes the service wait. The on-policy sampler exports the weights once a version, when a sample is asked for.

Two things of ours the services don't know: `Datum.weights` in a policy loss (multiplied into the advantages, the same thing for weights
>= 0) and a trainer's temperature other than 1 (refused). Metrics are computed here from the log-probabilities that come back, by the
definitions of backends/local.py: services name theirs differently, and some send none. Entropy can't be had from them.
Where stop tokens and stop strings are both given, the service is told the tokens, and the answer is cut at the strings here.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from backends import AdamParams, Output
from records import Datum, ImageChunk, Sample, SamplingParams, chunks_length

LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo")
CLIP = (0.8, 1.2)  # bounds of the ratio unless config says otherwise
# What a request may wait for a service that times out, drops connections or answers 5xx, in seconds, before the run ends with a line
RETRY_SECONDS = float(os.environ.get("TOOLGRAD_RETRY_SECONDS", 300))
# Seconds that one answer may take, waiting in the service's queue included
REQUEST_SECONDS = float(os.environ.get("TOOLGRAD_REQUEST_SECONDS", 1800))
# of a sampling request whose answer was lost on the way (asking again trains nothing twice), and seconds to wait after the first
TRIES, PAUSE = 3, 1.0
CONCURRENCY = int(os.environ.get("TOOLGRAD_CONCURRENCY", 64))  # sampling requests under way at once


def telemetry_wanted() -> bool:
    """The services' SDKs report usage to their makers by default; here only if the user says TOOLGRAD_TELEMETRY=1."""
    return os.environ.get("TOOLGRAD_TELEMETRY") == "1"


def refuse_options(service: str, options: dict, revision=None):
    """SystemExit for options of the local backend that a service can't honour."""
    given = {"model-revision": None if revision == "main" else revision, **options, "train_vision": None}  # (that one comes with rank 0)
    options = {name: value for name, value in given.items() if value is not None}
    if options:
        names = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
        raise SystemExit(f"{service} has no {names}: leave it out, or use --backend local")


def check(service: str, data: list, loss, config: dict | None, limit: int | None) -> dict:
    """The config to send. SystemExit for what the user can mend, ValueError for data that don't fit together; nothing was sent then."""
    config = dict(config or {})
    if loss not in LOSSES:
        raise SystemExit(f"--loss {loss}: {service} has {', '.join(LOSSES)}; for others use --backend local")
    temperature = config.pop("temperature", 1.0)
    if temperature != 1:
        raise SystemExit(f"--temperature {temperature:g}: the trainer of {service} computes at temperature 1 only, so sample at 1")
    if unknown := sorted(set(config) - {"clip_low_threshold", "clip_high_threshold"}):
        raise ValueError(f"unknown loss config {', '.join(unknown)}: there are temperature, clip_low_threshold, clip_high_threshold")
    if not data:
        raise ValueError("an empty batch: nothing to train on")
    for i, datum in enumerate(data):
        length = chunks_length(datum.chunks)
        if limit and length > limit:
            raise SystemExit(f"datum {i} has {length} positions, {service} takes {limit} of this model: lower --max-seq-len to {limit}")
        if loss != "cross_entropy" and (datum.logprobs is None or datum.advantages is None):
            raise ValueError(f"datum {i}: loss {loss!r} needs logprobs and advantages")
        if loss != "cross_entropy" and (datum.weights < 0).any():
            raise ValueError(f"datum {i}: a negative weight can't be multiplied into the advantages of {loss!r}")
        for name in ("targets", "weights", "logprobs", "advantages"):
            array = getattr(datum, name)
            if array is not None and len(array) != length:
                raise ValueError(f"datum {i}: {len(array)} {name} for {length} positions")
            if array is not None and not np.isfinite(array).all():
                raise ValueError(f"datum {i}: its {name} are not all finite")
    return config


def arrays_to_send(datum, loss) -> dict:
    """Loss inputs [T] by the services' names; what a loss doesn't read is not sent."""
    targets = {"target_tokens": datum.targets.astype(np.int64)}
    if loss == "cross_entropy":
        return targets | {"weights": datum.weights.astype(np.float32)}
    advantages = (datum.weights * datum.advantages).astype(np.float32)
    return targets | {"logprobs": datum.logprobs.astype(np.float32), "advantages": advantages}


def measured(data: list, loss, config: dict, logprobs: list) -> Output:
    """The Output of a pass from its log-probabilities [T] a datum. They are set to 0 where weight and advantage are, as locally."""
    rows, sums = [], {"loss_sum": 0.0, "token_count": 0}
    for i, (datum, values) in enumerate(zip(data, logprobs, strict=True)):
        values = np.asarray(values, dtype=np.float32).reshape(-1)
        if len(values) != len(datum.targets):
            raise ValueError(
                f"datum {i}: {len(values)} log-probabilities came back for {len(datum.targets)} positions; does this service drop pictures?"
            )
        counted = datum.weights != 0
        used = counted if datum.advantages is None else counted | (datum.advantages != 0)
        rows.append(np.where(used, values, np.float32(0)))
        sums["token_count"] += int(counted.sum())
        logp, weights = values[counted].astype(np.float64), datum.weights[counted]  # [N]
        if datum.logprobs is not None:
            difference = logp - datum.logprobs[counted]
            ratio = np.exp(difference)
            found = {"ratio_mean": ratio, "kl": ratio - 1 - difference, "logp_gap": abs(difference)}
            if loss != "cross_entropy":
                found["clip_fraction"] = clipped(loss, ratio, datum.advantages[counted], config)
            sums |= {name: sums.get(name, 0.0) + float(value.sum()) for name, value in found.items()}
        losses = -logp if loss == "cross_entropy" else policy_losses(loss, logp, ratio, datum.advantages[counted], config)
        sums["loss_sum"] += float((losses * weights).sum())
    count = max(1, sums["token_count"])
    return Output(rows, {name: value if name in ("loss_sum", "token_count") else value / count for name, value in sums.items()})


def policy_losses(loss, logp, ratio, advantages, config):
    """[N], as in backends/local.py."""
    low, high = config.get("clip_low_threshold", CLIP[0]), config.get("clip_high_threshold", CLIP[1])
    if loss == "importance_sampling":
        return -ratio * advantages
    if loss == "cispo":
        return -ratio.clip(low, high) * advantages * logp
    return -np.minimum(ratio * advantages, ratio.clip(low, high) * advantages)


def clipped(loss, ratio, advantages, config):
    """bool [N]: where clipping stopped or capped a token."""
    low, high = config.get("clip_low_threshold", CLIP[0]), config.get("clip_high_threshold", CLIP[1])
    if loss == "importance_sampling":
        return np.zeros(len(ratio), dtype=bool)
    if loss == "cispo":
        return (ratio < low) | (ratio > high)
    return np.where(advantages > 0, ratio > high, ratio < low) & (advantages != 0)


def grad_norm(metrics: dict) -> float:
    """Services name it differently, or leave it out."""
    return next((float(value) for name, value in metrics.items() if "grad_norm" in name and "clip" not in name), float("nan"))


def answer_length(chunks: list, n: int, params: SamplingParams, limit: int | None) -> int:
    """How many tokens may be asked for. ValueError where none, or where the request is unusable."""
    if n < 1 or params.max_tokens < 1:
        raise ValueError(f"n and max_tokens must be at least 1, not {n} and {params.max_tokens}")
    length = chunks_length(chunks)
    if limit and length >= limit:
        raise ValueError(f"a prompt of {length} positions leaves no room for an answer: the service takes {limit}; lower --max-seq-len")
    return min(params.max_tokens, limit - length) if limit else params.max_tokens


def ended(tokens: list, logprobs, params: SamplingParams, reported: str, decode) -> Sample:
    """The sample up to the first stop token or stop string (included), with our stop reason. `decode`: tokens -> text.

    What came back incomplete stays so: the rollout drops that branch, and the others of its request live.
    """
    tokens, logprobs = [int(token) for token in tokens], [float("nan" if value is None else value) for value in logprobs or ()]
    if len(tokens) != len(logprobs):
        return Sample(tokens, logprobs, "stop")
    reason = "length" if reported in ("length", "max_tokens") else "stop"
    stop = next((i for i, token in enumerate(tokens) if token in params.stop_tokens), None)
    if stop is not None:
        tokens, reason = tokens[: stop + 1], "stop"
    if params.stop_strings:
        holds = lambda count: any(text in decode(tokens[:count]) for text in params.stop_strings)
        if holds(len(tokens)):
            low, high = 1, len(tokens)  # the shortest prefix that holds one, by halving
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if holds(middle) else (middle + 1, high)
            tokens, reason = tokens[:low], "stop_string"
    return Sample(tokens, logprobs[: len(tokens)], reason)


def prompt_logprobs(values, length: int) -> np.ndarray:
    """float32 [T], 0 at t = 0. Some services leave out the first position, others send None for it."""
    values = [0.0 if value is None else value for value in values or ()]
    values = [0.0] * (len(values) == length - 1) + values
    if len(values) != length:
        raise ValueError(f"{len(values)} log-probabilities came back for a prompt of {length} positions")
    return np.array([0.0, *values[1:]], dtype=np.float32)


def checkpoint_name(path, used: set) -> str:
    """runs/sft/checkpoints/step-000010/state -> sft-step-000010-state; a name that was used gets a number (services refuse, or hang)."""
    parts = [part for part in Path(path).parts[-4:] if part not in ("checkpoints", "runs", "/", ".", "..")]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).strip("-._")[-150:].lstrip("-._") or "checkpoint"
    if name in used:
        name = next(f"{name}-{i}" for i in range(2, 10**6) if f"{name}-{i}" not in used)
    used.add(name)
    return name


# ---------------------------------------------------------------------------------------------------------------------
# sampler and trainer


@contextmanager
def one_line(sdk, kind=SystemExit):
    """The SDK's errors as `kind` with one line: SystemExit ends a script with it, RuntimeError is recorded by a rollout."""
    try:
        yield
    except (*sdk.errors(), ValueError) as error:
        raise kind(" ".join(f"{sdk.NAME}: {sdk.explain(error)}".split())) from error


def has_pictures(chunks) -> bool:
    return any(isinstance(chunk, ImageChunk) for chunk in chunks)


class Sampler:
    """Samples from `client` (an SDK's sampling client), or from a trainer's weights as they are now."""

    def __init__(self, sdk, limit: int | None, client=None, trainer=None, service=None):
        self.sdk, self.limit, self.client, self.trainer, self.service = sdk, limit, client, trainer, service
        self.exported, self.lock, self.tokenizer, self.sees = None, asyncio.Lock(), None, not sdk.DROPS_PICTURES
        self.slots = asyncio.Semaphore(CONCURRENCY)

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
                    with one_line(self.sdk, RuntimeError):
                        self.client = await self.trainer.client.save_weights_and_get_sampling_client_async()
                    self.exported = version
            return self.client

    async def sample(self, chunks: list, n: int, params: SamplingParams) -> list:
        """n samples of a prompt, in one request. ValueError if it is unusable, RuntimeError with one line if the service fails."""
        room = answer_length(chunks, n, params, self.limit)
        client, prompt = await self._current(), await asyncio.to_thread(self.sdk.to_input, chunks)
        await self._probe(client, chunks, prompt)
        asked = self.sdk.to_params(room, list(params.stop_tokens) or list(params.stop_strings) or None, params)
        decode = await self._decoder(client) if params.stop_strings else None
        response = await self._patiently(lambda: client.sample_async(prompt, n, asked, **self.sdk.SAMPLE))
        if len(response.sequences) != n:
            raise RuntimeError(f"{self.sdk.NAME}: {n} samples were asked for, {len(response.sequences)} came")
        return [ended(one.tokens, one.logprobs, params, str(one.stop_reason), decode) for one in response.sequences]

    async def logprobs(self, chunks: list) -> np.ndarray:
        """float32 [T]: log p(token t | all before it), 0 at t = 0. Not with pictures."""
        if has_pictures(chunks):
            raise ValueError(f"{self.sdk.NAME} gives no log-probabilities of prompts with pictures: use --backend local, or another policy")
        client, prompt = await self._current(), await asyncio.to_thread(self.sdk.to_input, chunks)
        return prompt_logprobs(await self._patiently(lambda: client.compute_logprobs_async(prompt)), chunks_length(chunks))

    async def _probe(self, client, chunks, prompt):
        """Once, at the first picture: a server that leaves pictures out without a word returns too few log-probabilities."""
        if self.sees or not has_pictures(chunks):
            return
        if self.trainer:
            await self.trainer.probe(chunks)
        else:
            values = await self._patiently(lambda: client.compute_logprobs_async(prompt))
            if len(values) < chunks_length(chunks) - 1:
                raise SystemExit(f"{self.sdk.NAME}: this server drops pictures without a word; use one that reads them, or a text task")
        self.sees = True

    async def _patiently(self, request):
        """SDKs repeat what fails before an answer begins; here, what breaks off in the middle of one, and what never comes."""
        async with self.slots:
            for attempt in range(1, TRIES + 1):
                with one_line(self.sdk, RuntimeError):
                    try:
                        return await asyncio.wait_for(request(), REQUEST_SECONDS)
                    except TimeoutError:
                        if attempt == TRIES:
                            raise ValueError(f"asked {TRIES} times, no answer within {REQUEST_SECONDS:g} s") from None
                    except self.sdk.errors() as error:
                        if attempt == TRIES or not self.sdk.lost(error):
                            raise
                await asyncio.sleep(PAUSE * attempt)

    async def _decoder(self, client):
        if self.tokenizer is None:
            with one_line(self.sdk, RuntimeError):
                self.tokenizer = await asyncio.to_thread(client.get_tokenizer)
        return lambda tokens: self.tokenizer.decode(tokens, skip_special_tokens=False)

    def close(self):
        """SDKs end a session when nothing refers to it any more."""
        self.client = self.service = None


class Trainer:
    """The interface of backends/local.py. `base_model`: the service's name of the model; `version`: optimizer steps sent by this object."""

    def __init__(self, sdk, service, client, base_model: str, limits: dict):
        self.sdk, self.service, self.client, self.base_model, self.limit = sdk, service, client, base_model, limits["training"]
        self.version, self.pending, self.names, self.sees = 0, False, set(), not sdk.DROPS_PICTURES
        self.turn = asyncio.Lock()  # fair: whoever called first sends first
        self.on_policy = Sampler(sdk, limits["sampling"], trainer=self)

    def sampler(self) -> Sampler:
        """An on-policy sampler; steps that were sent before a sample is asked for are in its weights."""
        return self.on_policy

    async def forward(self, data: list, loss="cross_entropy", config: dict | None = None) -> Output:
        """Log-probabilities and metrics, no gradients."""
        return await self._pass(data, loss, config, False)

    async def forward_backward(self, data: list, loss="cross_entropy", config: dict | None = None) -> Output:
        """Adds the gradient of the summed loss to what earlier calls left."""
        return await self._pass(data, loss, config, True)

    async def probe(self, chunks):
        """SystemExit if the server leaves pictures out (see `Sampler._probe`)."""
        if not self.sees:
            ones = np.ones(chunks_length(chunks), dtype=np.float32)
            data = self._data([Datum(chunks, ones.astype(np.int64), ones)], "cross_entropy")
            with one_line(self.sdk):
                future = await self.client.forward_async(data, "cross_entropy")
            values = (await self._answer(future)).loss_fn_outputs[0]["logprobs"].to_numpy()
            if len(values) != len(ones):
                raise SystemExit(f"{self.sdk.NAME}: this server drops pictures without a word; use one that reads them, or a text task")
            self.sees = True

    async def _answer(self, future):
        """What came of a request that was sent. After REQUEST_SECONDS SystemExit: it may have been done, so it is not sent again."""
        with one_line(self.sdk):
            try:
                return await asyncio.wait_for(future, REQUEST_SECONDS)
            except TimeoutError:
                raise ValueError(f"no answer within {REQUEST_SECONDS:g} s; go on from the last checkpoint with --resume") from None

    def _data(self, data, loss) -> list:
        return [self.sdk.to_datum(self.sdk.to_input(datum.chunks), arrays_to_send(datum, loss)) for datum in data]

    async def _pass(self, data, loss, config, grad) -> Output:
        config = check(self.sdk.NAME, data, loss, config, self.limit)
        async with self.turn:
            shown = next((datum.chunks for datum in data if has_pictures(datum.chunks)), None)
            if shown:
                await self.probe(shown)
            sent = await asyncio.to_thread(self._data, data, loss)
            with one_line(self.sdk):
                future = await (self.client.forward_backward_async if grad else self.client.forward_async)(sent, loss, config)
            self.pending |= grad
        try:
            result = await self._answer(future)
        except BaseException:
            self.pending &= not grad
            raise
        return measured(data, loss, config, [found["logprobs"].to_numpy() for found in result.loss_fn_outputs])

    async def optim_step(self, adam: AdamParams) -> dict:
        """One AdamW step on the gradients gathered. Metrics: the service's, and grad_norm (NaN if it sends none), skipped, version."""
        async with self.turn:
            if not self.pending:
                raise ValueError("optim_step without gradients: call forward_backward before")
            with one_line(self.sdk):
                future = await self.client.optim_step_async(self.sdk.to_adam(adam))
            self.pending, self.version = False, self.version + 1
            version = self.version
        found = dict((await self._answer(future)).metrics or {})
        return {"skipped": 0, **found, "grad_norm": grad_norm(found), "version": version}

    async def save_state(self, name) -> str:
        """Weights and optimizer, for `load_trainer`; returns the service's address. `name`: a name, or the path a script would save to."""
        return await self._save("save_state_async", name)

    async def save_weights_for_sampler(self, name) -> str:
        """Weights only, for `create_sampler`. Returns the service's address."""
        return await self._save("save_weights_for_sampler_async", name)

    async def _save(self, method, name) -> str:
        async with self.turn:
            with one_line(self.sdk):
                future = await getattr(self.client, method)(checkpoint_name(name, self.names))
        return (await self._answer(future)).path

    def close(self):
        """SDKs end a session when nothing refers to it any more."""
        self.on_policy.close()
        self.client = self.service = None
