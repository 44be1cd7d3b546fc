"""FSDP2: the trainer's weights, gradients and optimizer state split over the ranks, for a model that one GPU can't train.

    torchrun --nproc-per-node 2 train_sft.py --fsdp --rank 0 ...
    shard(model)                         # in place of moving it to the GPU; every rank has read the weights into its CPU memory, in bfloat16
    whole = gather(trainer)              # full tensors on rank 0's CPU: checkpoints are those of one process, and load anywhere
    scatter(trainer, state)              # the other way: an optimizer.pt, made by any number of ranks

A rank keeps 1/size of the float32 weights and of both moments. A layer is whole, in bfloat16, only while it computes; embedding, norm, head
and a frozen tower are whole during a step. Forward and backward then are calls that all ranks must make together: `Trainer._pass` gives a
rank with fewer rows empty micro-batches.

Sampling needs whole weights, token after token. A sampler therefore has a bfloat16 copy of its own on each GPU (`follow`), made anew after each
update: 2 bytes a parameter beside the 16 / size of training. train_sft.py has none.

Not here: LoRAs, a vision tower that is trained (a picture on one rank and none on another would give their gradients different sizes).
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from backends import parallel
from backends.model import Model, head_kernels


def shard(model: Model, device):
    """Splits a model on the CPU over the ranks' devices. Its arithmetic stays what it would be: bfloat16, or float32 as loaded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    device = torch.device(device)
    mesh = init_device_mesh(device.type, (parallel.world()[1],))
    policy = MixedPrecisionPolicy(param_dtype=model.dtype, reduce_dtype=torch.float32)
    model.net.forward = lambda work: work()  # FSDP looks after its modules around their forward: here it is all of `Model.score`
    for unit in (*getattr(model.inner, "language_model", model.inner).layers, model.net):
        for parameter in unit.parameters():
            if parameter.requires_grad and not isinstance(parameter, DTensor):
                parameter.data = parameter.data.float()
        fully_shard(unit, mesh=mesh, mp_policy=policy)
        unit.set_gradient_divide_factor(1.0)  # backends sum, and gloo
        unit.set_force_sum_reduction_for_comms(True)  # knows no other reduction
    model.device, model.blocked = device, model.blocked.to(device)
    model.kernels = head_kernels(model)
    if model.pictures:
        model.pictures.device = device


def full(tensor):
    """The whole tensor, on the CPU, on rank 0; None elsewhere. All ranks call it."""
    if isinstance(tensor, DTensor):
        tensor = tensor.detach().full_tensor()
    return None if parallel.world()[0] else tensor.cpu()


def gather(trainer) -> dict:
    """weights (by name, in the dtype of the arithmetic), masters and optimizer as one process would have them, on rank 0. All ranks call it."""
    rounds, found = trainer.model.dtype != torch.float32, {"weights": {}, "masters": []}
    for name, parameter in trainer.model.net.named_parameters():
        whole = full(parameter)
        if whole is not None:
            found["weights"][name] = whole.to(trainer.model.dtype)
        if parameter.requires_grad:
            found["masters"].append(whole if rounds else None)
    state = trainer.optimizer.state_dict()
    moments = {number: {name: full(value) for name, value in one.items()} for number, one in state["state"].items()}
    return found | {"optimizer": state | {"state": moments}}


def scatter(trainer, state: dict) -> dict:
    """`state` with each rank's part of its masters and moments. Every rank has read the whole file, so nothing is sent."""
    masters = trainer.masters
    part = lambda tensor, like: distribute_tensor(tensor.float().to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    order = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]  # the numbers in the state
    split = lambda value, like: part(value, like) if torch.is_tensor(value) and value.shape == like.shape else value
    moments = {number: {name: split(value, order[number]) for name, value in one.items()} for number, one in state["optimizer"]["state"].items()}
    return state | {
        "masters": [None if saved is None else part(saved, master) for saved, master in zip(state["masters"], masters, strict=True)],
        "optimizer": state["optimizer"] | {"state": moments},
    }


@torch.no_grad()
def follow(copy: Model, model: Model):
    """The sampler's copy takes the weights as they are now. All ranks call it, in the engine's thread."""
    for mine, theirs in zip(copy.net.parameters(), model.net.parameters(), strict=True):
        mine.copy_(theirs.full_tensor() if isinstance(theirs, DTensor) else theirs)
