"""Several processes that train one model, started by torchrun: each has all weights and its own part of a batch; gradients are summed.

    torchrun --nproc-per-node 2 script.py        # sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
    rank, size = start(device)                   # (0, 1) without torchrun
    tokens = total(tokens, device)               # over all ranks
    sum_gradients(parameters)                    # in place; a parameter without gradient counts as zero

A rank passes only its own rows to `forward_backward`, with weights divided by the count of ALL rows or tokens (`total`), so that the sum over
ranks is the gradient of one process. `optim_step` sums; then every rank takes the same step, and the weights stay equal without being sent.
Every rank must make the same calls of `total` and `optim_step` in the same order, also one that has no rows.

A rank that dies closes its connections, and the others' next sum fails; one that hangs makes it fail after TIMEOUT.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=float(os.environ.get("TOOLGRAD_TIMEOUT", 600)))  # rollouts of one rank may take long
BUCKET = 2**25  # numbers summed at once


def world() -> tuple[int, int]:
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def local_device() -> str:
    """The GPU of this rank."""
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}"


def start(device) -> tuple[int, int]:
    """(rank, size), once the others are there."""
    rank, size = world()
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.device(device).type == "cuda" else "gloo", timeout=TIMEOUT)
    return rank, size


def total(value: float, device="cpu") -> float:
    if world()[1] == 1:
        return value
    whole = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(whole)
    return whole.item()


@torch.no_grad()
def sum_gradients(parameters: list):
    """In buckets, since each call costs a round trip; the order of the parameters is the same on all ranks."""
    bucket, filled = [], 0
    for i, parameter in enumerate(parameters):
        bucket.append(parameter)
        filled += parameter.numel()
        if filled >= BUCKET or i + 1 == len(parameters):
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
            dist.all_reduce(flat)
            for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = piece.view_as(p)
            bucket, filled = [], 0
