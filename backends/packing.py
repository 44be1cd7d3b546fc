"""Sequences one behind the other, without padding, through transformers' own forward: attention that heeds where each of them begins.

    model.packs = switch_on(model)                               # once: from now on its decoder asks for `attention`, if that gives the same
    extra = packed(lengths, device)                              # arguments for a forward of ids [1, sum of lengths]

The kernel is torch's own FlashAttention for sequences of any lengths (torch.nn.attention.varlen, since torch 2.10), on GPUs and in half precision.
A forward without these arguments is what it was before: sdpa. Padded batches sorted by length waste little when lengths are alike; the
trajectories of an agent are not.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "packing"


def attention(module, query, key, value, attention_mask, scaling=None, cu_seq_lens_q=None, max_length_q=None, **other):
    """[B, heads, T, dim] each (keys and values: fewer heads) -> [B, T, heads, dim]. cu_seq_lens_q int32 [sequences + 1]: where each begins, and the end."""
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **other)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [T, heads, dim]
    if query.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        bounds = cu_seq_lens_q
        return varlen_attn(q, k, v, bounds, bounds, max_length_q, max_length_q, scale=scaling, window_size=(-1, 0))[None], None  # causal
    parts = zip(*(tensor.split(cu_seq_lens_q.diff().tolist()) for tensor in (q, k, v)))  # the same, slowly, for tests
    made = [sdpa_attention_forward(module, *(x.transpose(0, 1)[None] for x in part), None, scaling=scaling)[0] for part in parts]
    return torch.cat(made, 1), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def send(tensor, device):
    """A CPU tensor on the device, without waiting there: an ordinary copy waits for all that the GPU has been given before."""
    return tensor.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else tensor.to(device)


def packed(lengths: list[int], device) -> dict:
    """The arguments that say where sequences of these lengths begin."""
    bounds = send(torch.tensor([0, *lengths]).cumsum(0).to(torch.int32), device)
    # A mask of four axes is handed on as it is, and not looked at: otherwise one of [T, T] would be made
    return {"attention_mask": torch.ones(1, 1, 1, 1, device=device), "cu_seq_lens_q": bounds, "max_length_q": max(lengths)}


def choose(body, name):
    """The attention that a decoder asks for."""
    for module in body.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = name


@torch.no_grad()
def switch_on(model) -> bool:
    """Sets the model's decoder to `attention` if it gives the same packed as apart, on a few tokens: not with linear or sliding attention, nor
    one of its own. Whether it did."""
    kinds = getattr(model.text, "layer_types", None) or ["full_attention"]
    if set(kinds) != {"full_attention"} or getattr(model.text, "attn_logit_softcapping", None) or model.text._attn_implementation != "sdpa":
        return False
    lengths, device = (7, 5), model.device
    ids = (torch.arange(sum(lengths), device=device) * 7919 + 11) % model.vocab_size
    ids = torch.where(torch.isin(ids, model.blocked), model.pad, ids)
    lines = [torch.arange(length, device=device).expand(model.axes, 1, -1) for length in lengths]
    apart = torch.cat([model.hidden(part[None], line)[0] for part, line in zip(ids.split(lengths), lines)]).float()
    body = getattr(model.inner, "language_model", model.inner)
    choose(body, NAME)
    try:
        found = model.hidden(ids[None], torch.cat(lines, -1), extra=packed(lengths, device))[0].float()
    except Exception:  # an older GPU, a head size that the kernel doesn't have, a forward that hands nothing on
        found = torch.full_like(apart, float("nan"))
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.1
    if (found - apart).norm() < tolerance * apart.norm():
        return True
    choose(body, "sdpa")
    return False
