"""Several processes that train one model, started by torchrun: each has all weights and its own part of a batch; gradients are summed.

    torchrun --nproc-per-node 2 train_sft.py ...     # sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
    rank, size = join(args)                          # a script's first step: (0, 1) without torchrun
    mine = batch[rank::size]
    tokens = sum(await gather(tokens))               # one value a rank, in their order; without torchrun [value]

A rank passes only its own rows to `forward_backward`, with weights divided by the count of ALL rows or tokens, so that the sum over ranks is
the gradient of one process. `optim_step` sums (`sum_gradients`); then every rank takes the same step, and the weights stay equal without
being sent. Every rank makes the same calls of `gather` and `optim_step` in the same order, also one that has no rows: whatever decides about
such a call (a stop that was asked for, nothing to train) is gathered before.

There are two groups. Gradients have their own (NCCL on GPUs), whose calls all come from the engine's thread and last TOOLGRAD_TIMEOUT seconds
at most (600). `gather` goes through the CPU (gloo), may be waited for as long as the slowest rank samples (TOOLGRAD_PATIENCE seconds, 7200), and comes
before and after each update: so nobody waits for a rollout inside a sum of gradients.

A rank that dies closes its connections: the others' next `gather` or sum fails, with one line, and torchrun ends whoever hangs in NCCL
(see `runs.catch_interrupts`). One that hangs ends the others after the limits above.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import contextmanager
from datetime import timedelta

TIMEOUT = timedelta(seconds=float(os.environ.get("TOOLGRAD_TIMEOUT", 600)))  # an update
PATIENCE = timedelta(seconds=float(os.environ.get("TOOLGRAD_PATIENCE", 7200)))  # from the first rank that has its rollouts to the last
BUCKET = 2**25  # numbers summed at once
_groups = {}


def world() -> tuple[int, int]:
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def local_device() -> str:
    """The GPU of this rank."""
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}"


def join(args) -> tuple[int, int]:
    """(rank, size) for a script, before it loads a model. Ranks other than 0 print nothing from here on, but errors (stderr).

    SystemExit with one line for backends that are no place for several processes.
    """
    rank, size = world()
    if size > 1:
        if getattr(args, "backend", "local") != "local" or getattr(args, "base_url", None):
            raise SystemExit(f"--backend {args.backend} under torchrun: only local trains with several processes; start it with python")
        if getattr(args, "price", None) and not args.yes:
            raise SystemExit("--price under torchrun: nobody can be asked there; add --yes")
        sys.stdout = sys.stdout if rank == 0 else open(os.devnull, "w")
        start(args.device)
    return rank, size


def start(device=None) -> tuple[int, int]:
    """(rank, size), once the others are there. device: as for a trainer; None: a GPU if there is one."""
    rank, size = world()
    if size > 1 and not _groups:
        import torch
        import torch.distributed as dist

        if torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type == "cuda":
            if int(os.environ.get("LOCAL_RANK", 0)) >= torch.cuda.device_count():
                raise SystemExit(f"rank {rank}: there are {torch.cuda.device_count()} GPUs here; give torchrun --nproc-per-node {torch.cuda.device_count()} at most")
            torch.cuda.set_device(local_device())
            dist.init_process_group("nccl", timeout=TIMEOUT)
        else:
            dist.init_process_group("gloo", timeout=TIMEOUT)
        _groups["cpu"] = dist.new_group(backend="gloo", timeout=PATIENCE)
    return rank, size


@contextmanager
def one_line():
    """What a lost rank looks like to the others."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise SystemExit(f"rank {world()[0]}: another rank has ended, or did not answer in time; its own lines say why ({reason})") from None


async def gather(value) -> list:
    """The values of all ranks, [value] without torchrun. A wait, in which Ctrl-C is still heard."""
    if world()[1] == 1:
        return [value]
    return await asyncio.to_thread(_gather, value)


def _gather(value):
    import torch.distributed as dist

    values = [None] * world()[1]
    with one_line():
        dist.all_gather_object(values, value, group=_groups["cpu"])
    return values


def total(value: float, device="cpu") -> float:
    """The sum over ranks, in the engine's thread."""
    if world()[1] == 1:
        return value
    import torch
    import torch.distributed as dist

    whole = torch.tensor([value], dtype=torch.float64, device=device)
    with one_line():
        dist.all_reduce(whole)
        return whole.item()


def most(value: int, device="cpu") -> int:
    """The largest over ranks, in the engine's thread."""
    import torch
    import torch.distributed as dist

    whole = torch.tensor([value], device=device)
    with one_line():
        dist.all_reduce(whole, dist.ReduceOp.MAX)
        return int(whole.item())


def sum_gradients(parameters: list):
    """In place, in the engine's thread; a parameter without gradient counts as zero. In buckets, since each call costs a round trip."""
    import torch
    import torch.distributed as dist

    bucket, filled = [], 0
    with torch.no_grad():
        for i, parameter in enumerate(parameters):  # in the same order on all ranks
            bucket.append(parameter)
            filled += parameter.numel()
            if filled >= BUCKET or i + 1 == len(parameters):
                flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
                with one_line():
                    dist.all_reduce(flat)
                for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
                    p.grad = piece.view_as(p)
                bucket, filled = [], 0


def leave():
    """A script's last step: nobody ends while another is still writing, since torchrun takes the others along when one ends with an error."""
    if _groups:
        import torch.distributed as dist

        _gather(None)
        _groups.clear()
        dist.destroy_process_group()
