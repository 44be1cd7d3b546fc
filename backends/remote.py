"""What the adapters of remote services (pytrio.py, tinker.py) share: checks before sending, arrays, metrics, where a sample ends, names.

Both services compute the same four losses as sums over tokens. Two things of ours they don't know: `Datum.weights` in a policy loss (they are
multiplied into the advantages, which is the same thing for weights >= 0) and a temperature other than 1 in the trainer (refused). Metrics are
computed here from the log-probabilities that come back, by the definitions of backends/local.py: services name theirs differently, and some
send none. Entropy can't be had from them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from backends import Output
from records import Sample, SamplingParams, chunks_length

LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo")
CLIP = (0.8, 1.2)  # bounds of the ratio unless config says otherwise
# What a request may wait for a service that times out, drops connections or answers 5xx, in seconds, before the run ends with a line
RETRY_SECONDS = float(os.environ.get("TOOLGRAD_RETRY_SECONDS", 300))
TRIES = 3  # of a sampling request whose answer was lost on the way: asking again trains nothing twice


def telemetry_wanted() -> bool:
    """The services' SDKs report usage to their makers by default; here only if the user says TOOLGRAD_TELEMETRY=1."""
    return os.environ.get("TOOLGRAD_TELEMETRY") == "1"


def refuse_options(service: str, options: dict, revision=None):
    """SystemExit for options of the local backend that a service can't honour."""
    options = {name: value for name, value in options.items() if value is not None} | ({} if revision in (None, "main") else {"revision": revision})
    options.pop("train_vision", None)  # (rank 0 asks for it, and is refused by its rank)
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


def stop_to_send(params: SamplingParams):
    """Services take token ids or strings, not both: ids if there are any, and `ended` cuts at the strings."""
    return list(params.stop_tokens) or list(params.stop_strings) or None


def ended(tokens: list, logprobs, params: SamplingParams, reported: str, decode) -> Sample:
    """The sample up to the first stop token or stop string (included), with our stop reason. `decode`: tokens -> text."""
    tokens, logprobs = [int(token) for token in tokens], [float(value) for value in logprobs or ()]
    if len(tokens) != len(logprobs):
        raise ValueError(f"the service returned {len(tokens)} tokens with {len(logprobs)} log-probabilities")
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
