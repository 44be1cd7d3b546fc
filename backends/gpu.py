"""What training on a GPU adds: compiled or recomputed layers, and how much memory it takes.

    wrap_layers(model, compile=True, recompute=False)      # only where gradients are wanted; the sampler's forward stays as it is
    fixed, each = training_bytes(model, trained, compile=True, recompute=False)      # bytes at all times, and for each position at once

compile: torch.compile, layer by layer: the layers share one compilation, so it costs seconds and not a minute. recompute: only the input of a
layer is kept, the rest is made again in the backward pass (gradient checkpointing): a third more arithmetic for a tenth of the memory.
"""

from __future__ import annotations

import os

import torch
from torch.utils.checkpoint import checkpoint

from backends.model import Model

HEAD_BYTES = 2**30  # logits alive at once in the head of a training step (see Model.score)


def wrap_layers(model: Model, compile: bool, recompute: bool):
    layers = getattr(model.inner, "language_model", model.inner).layers
    for layer in layers:
        layer.forward = wrapped(layer.forward, compile, recompute)


def wrapped(eager, compile, recompute):
    train = torch.compile(eager) if compile else eager

    def forward(*args, **kwargs):
        if not torch.is_grad_enabled():
            return eager(*args, **kwargs)
        return checkpoint(train, *args, use_reentrant=False, **kwargs) if recompute else train(*args, **kwargs)

    return forward


def training_bytes(model: Model, trained: list, compile: bool, recompute: bool, ranks: int = 1) -> tuple[int, int]:
    """(bytes at all times, bytes for each position of a micro-batch), an estimate from the shapes, meant for the Llama / Qwen shape.

    Trained weights in bfloat16 have a float32 copy, a gradient in each of the two dtypes, and two moments; float32 ones need no copies.
    ranks: that the weights are split over (sharded.py). What is no layer is whole during a step, with its gradient in bfloat16 and float32.
    """
    weights = sum(p.numel() * p.element_size() for p in model.net.parameters()) // ranks
    extra = sum(p.numel() * (4 + 4 + 8 + 2 if p.dtype != torch.float32 else 4 + 8) for p in trained) // ranks
    if ranks > 1:
        layered = sum(p.numel() for p in getattr(model.inner, "language_model", model.inner).layers.parameters())
        extra += 8 * (sum(p.numel() for p in model.net.parameters()) - layered + 3 * layered // model.text.num_hidden_layers)  # three layers, to prefetch
    head = HEAD_BYTES + (4 * model.head.weight.numel() if model.head.weight.requires_grad else 0)
    text, size = model.text, model.dtype.itemsize
    dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    attention = (text.num_attention_heads + 2 * (getattr(text, "num_key_value_heads", None) or text.num_attention_heads)) * dim
    # Values kept for the backward pass: inputs and outputs of norms, projections, rotation and activation
    layer = size * (10 * text.hidden_size + 3 * attention + 4 * getattr(text, "intermediate_size", 4 * text.hidden_size))
    if compile:
        layer = layer * 2 // 3  # fused ones aren't kept
    layers = text.num_hidden_layers * size * text.hidden_size + layer if recompute else text.num_hidden_layers * layer
    return weights + extra + head, layers + 8 * size * text.hidden_size


def fitting_positions(fixed: int, each: int, free: int, most: int = 16384) -> int:
    """Positions to train at once, so that all stays within 80 % of the free memory. SystemExit if not even 512 fit."""
    positions = int(0.8 * free - fixed) // each
    if positions < 512:
        need, have = (fixed + 512 * each) / 2**30, 0.8 * free / 2**30
        raise SystemExit(
            f"training needs about {need:.1f} GiB for 512 positions and {have:.1f} GiB may be used: try a LoRA (--rank), recompute, or a smaller model"
        )
    return min(most, positions)


def usable(free: int, total: int) -> int:
    """Of `free` bytes those that this process may plan with: at most the share TOOLGRAD_GPU_SHARE of all, for several processes on one GPU.
    Each of them sees the memory that the others haven't taken yet."""
    text = os.environ.get("TOOLGRAD_GPU_SHARE") or "1"
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise SystemExit(f"TOOLGRAD_GPU_SHARE={text}: a share above 0, up to 1, as in 0.2")
    return min(free, int(share * total))


def planned(model: Model, compile, recompute, reserved: int = 0, ranks: int = 1) -> int:
    """How many positions are trained at once on a GPU, of which `reserved` bytes are for something else. Says what that will take.
    ranks: that the weights are split over."""
    fixed, each = training_bytes(model, [p for p in model.net.parameters() if p.requires_grad], compile, recompute, ranks)
    here = sum(p.numel() * p.element_size() for p in model.net.parameters()) // ranks
    free, total = torch.cuda.mem_get_info(model.device)
    free = usable(free + here, total) - reserved
    positions = fitting_positions(fixed, each, free)
    print(f"GPU memory, estimated: {fixed / 2**30:.1f} GiB for weights, gradients, optimizer and head, "
          f"{positions * each / 2**30:.1f} GiB for {positions} positions at once, of {free / 2**30:.1f} GiB", flush=True)  # fmt: skip
    return positions
