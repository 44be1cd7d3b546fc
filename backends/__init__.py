"""Backends: who holds the weights. Each has `create_trainer`, `load_trainer`, `create_sampler`; this file has the records they share.

    import importlib
    backend = importlib.import_module(f"backends.{args.backend}")     # local | vllm | pytrio | tinker
    trainer = await backend.create_trainer("models/tiny-vlm", rank=0, seed=0)
    output = await trainer.forward_backward(data, "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
    metrics = await trainer.optim_step(AdamParams(learning_rate=1e-4))
"""

from __future__ import annotations

import argparse
import inspect
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass
class AdamParams:
    """One AdamW step. `grad_clip_norm`: gradients are scaled down to this total norm; 0 leaves them as they are."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0  # of matrices only; norms and biases are left alone
    grad_clip_norm: float = 0.0


@dataclass
class Output:
    """What `forward` and `forward_backward` return: one float32 [T] a datum (0 where not computed), and sums or token averages by name."""

    logprobs: list
    metrics: dict


def add_flags(parser):
    """Of the scripts that train."""
    parser.add_argument("--backend", default="local", help="a module of backends/ (default: %(default)s)")
    parser.add_argument("--device", help="cpu, cuda ... (default: the backend's choice)")
    parser.add_argument("--base-url", type=service_url, help="address of a service, for --backend pytrio and tinker (default: theirs)")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False, help="torch.compile the layers: faster after the first steps, on a GPU")
    parser.add_argument("--recompute", action=argparse.BooleanOptionalAction, default=False, help="keep only the inputs of layers, make the rest again: slower, a tenth of the memory")
    parser.add_argument("--fsdp", action=argparse.BooleanOptionalAction, default=False, help="split weights and optimizer over the ranks of torchrun (all weights, --rank 0)")


def service_url(text):
    """An argparse type for --base-url. Names and keys in it would stand in config.json and in every `ps`: refused."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no address such as http://127.0.0.1:8000")
    if url.username or url.password or url.query:
        raise argparse.ArgumentTypeError("keys don't belong into an address: set PYTRIO_API_KEY or TINKER_API_KEY")
    return text.rstrip("/")


def options(args, function, revision=None) -> dict:
    """What --device, --base-url, --compile, --recompute, --fsdp and --vllm-memory give a backend's `function` (load_trainer, create_sampler ...).
    SystemExit if it can't have them.

    revision: of a hub id, passed if the function takes one (a service serves what it serves).
    """
    known = inspect.signature(function).parameters
    if args.base_url and "base_url" not in known:
        raise SystemExit(f"--base-url {args.base_url}: --backend {args.backend} runs here, without a service; leave it out, or use pytrio or tinker")
    if args.device and "base_url" in known:
        raise SystemExit(f"--device {args.device}: --backend {args.backend} is a service; leave it out, or use --backend local")
    ways = {name: True for name in ("compile", "recompute", "fsdp") if getattr(args, name, False)}  # of training; a script that only samples has none
    if ways and "base_url" in known:
        raise SystemExit(f"--{' --'.join(ways)}: --backend {args.backend} is a service, which trains in its own way; leave it out, or use --backend local")
    memory = getattr(args, "vllm_memory", None)  # of the scripts that sample
    if memory and "vllm_memory" not in known:
        raise SystemExit(f"--vllm-memory {memory}: --backend {args.backend} has no vLLM; leave it out, or use --backend vllm")
    given = {"device": args.device, "base_url": args.base_url, "vllm_memory": memory, "revision": revision if "revision" in known else None}
    return {name: value for name, value in given.items() if value} | ways
