"""How a token is drawn from logits: on any device, without looking at a value, so that it can stand in a CUDA graph.

A uniform number says where: the token at which the cumulative distribution passes it. So what else is in the batch doesn't matter, except in
the last bits, since floating-point sums depend on the shape of the batch: a number within about 1e-6 of a border can fall to either side, and
greedy choices can differ where two logits agree to the last bits. Of exactly equal logits the lowest id wins.

Log-probabilities are those of softmax(logits / temperature) BEFORE top_k and top_p; at temperature 0 (greedy), of softmax(logits).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def draw(logits, temperature, top_k, top_p, uniform, needs=None):
    """One token a row: (tokens int64 [B], log-probabilities float32 [B], NaN where the logits aren't finite).

    logits [B, V]; temperature float32, top_p, uniform float [B]; top_k int [B] (0 or -1: off). Temperature 0 is greedy.
    needs: (is there a row with top_k or top_p, with temperature 0, with one that is neither 0 nor 1), since each costs passes over the
    logits. None looks, for which a GPU has to be waited for.
    """
    greedy, cut = temperature == 0, (top_k > 0) | (top_p < 1)
    narrow, cold, scaled = needs or (bool(cut.any()), bool(greedy.any()), bool(((temperature != 0) & (temperature != 1)).any()))
    p = logits / torch.where(greedy, 1.0, temperature)[:, None] if scaled else logits
    p = p.softmax(-1, dtype=torch.float32)  # [B, V]
    kept = torch.where(cut[:, None], truncate(p, top_k, top_p), p) if narrow else p
    tokens = pick(kept, uniform)
    if cold:
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
    return tokens, p.gather(-1, tokens[:, None])[:, 0].log()


def pick(p, uniform):
    """int64 [B]: where the cumulative sum of p [B, V] passes uniform x its total. Blocks of 128 first, then within one: p is read once."""
    count, V = p.shape
    blocks = (F.pad(p, (0, -V % 128)) if V % 128 else p).view(count, -1, 128)
    # float64: over a vocabulary of 150,000 a float32 sum is off by more than rare tokens have
    reach = blocks.sum(-1).double().cumsum(-1)  # [B, V / 128]
    below = 1 - 1e-15  # the end of the range must not be passed by a rounding: what comes after it has no probability
    goal = (uniform.double() * reach[:, -1]).minimum(reach[:, -1] * below)[:, None]  # [B, 1]
    block = torch.searchsorted(reach, goal, right=True).clamp(max=reach.shape[1] - 1)
    before = torch.where(block > 0, reach.gather(1, (block - 1).clamp(min=0)), 0.0)
    reach = blocks.gather(1, block[:, :, None].expand(-1, -1, 128))[:, 0].double().cumsum(-1)  # [B, 128]
    place = torch.searchsorted(reach, (goal - before).clamp(min=0).minimum(reach[:, -1:] * below), right=True)
    return (128 * block + place)[:, 0].clamp(max=V - 1)


def truncate(p, top_k, top_p):
    """Probabilities [B, V] with all but the top_k set to 0, then all but the smallest set that holds top_p of what is left."""
    ordered, order = p.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(p.shape[1], device=p.device)
    ordered = ordered * ((rank < top_k[:, None]) | (top_k[:, None] <= 0))
    ordered = ordered / ordered.sum(-1, keepdim=True)
    ordered = ordered * ((ordered.cumsum(-1) - ordered < top_p[:, None]) | (rank == 0))  # what comes before a token decides about it
    return torch.zeros_like(p).scatter(-1, order, ordered)
