"""Backends: who holds the weights. Each has `create_trainer`, `load_trainer`, `create_sampler`; this file has the records they share.

    import importlib
    backend = importlib.import_module(f"backends.{args.backend}")     # local | vllm | pytrio | tinker
    trainer = await backend.create_trainer("models/tiny-vlm", rank=0, seed=0)
    output = await trainer.forward_backward(data, "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
    metrics = await trainer.optim_step(AdamParams(learning_rate=1e-4))
"""

from __future__ import annotations

from dataclasses import dataclass


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
