"""Triton kernels of the local backend on a GPU: four for decoding (decode.py), two for the head in training (model.py).

    add_norm(x, delta, weight, eps)            x += delta in place; returns the RMS norm of it
    rotate_store(qkv, ...)                     rotary embedding (after the norms of Qwen3); keys and values go into the memory
    attend(q, keys, values, slot, place)       attention of single tokens over what their own slot holds
    gated(both)                                silu(first half) * second half
    head_forward, head_backward                log-probability, log of the sum and entropy of rows of logits; their gradient in place

A decoding step of a small model is a few hundred tiny kernels, and each costs some 3 microseconds whatever it does: what counts is how many
there are. Each of these stands for five to fifteen of plain PyTorch. Roundings are those of transformers' own modules (the sum of the
residual stream, the norm before its weight, the gate before the product are rounded to the model's dtype), so that sampler and trainer agree.
`python -m pytest tests/test_kernels.py` runs all of them on a CPU, in Triton's interpreter.
"""

import torch
import triton
import triton.language as tl

next_power = triton.next_power_of_2


@triton.jit
def _add_norm(x, delta, weight, out, eps, D, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here = i < D
    value = tl.load(x + row * D + i, mask=here, other=0.0)
    if ADD:
        value = (value.to(tl.float32) + tl.load(delta + row * D + i, mask=here, other=0.0).to(tl.float32)).to(value.dtype)
        tl.store(x + row * D + i, value, mask=here)
    wide = value.to(tl.float32)
    normed = (wide / tl.sqrt(tl.sum(wide * wide, 0) / D + eps)).to(value.dtype)
    scaled = normed.to(tl.float32) * tl.load(weight + i, mask=here, other=0.0).to(tl.float32)
    tl.store(out + row * D + i, scaled.to(value.dtype), mask=here)


def add_norm(x, delta, weight, eps):
    """RMS norm of x [N, D] (+ delta, which is added to x in place)."""
    out = torch.empty_like(x)
    block = next_power(x.shape[1])
    _add_norm[(len(x),)](x, x if delta is None else delta, weight, out, eps, x.shape[1], delta is not None, block, num_warps=min(8, max(1, block // 256)))
    return out


@triton.jit
def _rotate_store(qkv, cos, sin, q_norm, k_norm, keys, values, slot, place, position, eps, stride_slot, stride_head,
                  HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr):  # fmt: skip
    n, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, HALF)
    start = qkv + n * (HEADS + 2 * KV) * 2 * HALF + head * 2 * HALF
    left, right = tl.load(start + i), tl.load(start + HALF + i)
    kind = left.dtype
    target = tl.load(slot + n) * stride_slot + (head - HEADS) % KV * stride_head + tl.load(place + n) * 2 * HALF
    if head >= HEADS + KV:
        tl.store(values + target + i, left)
        tl.store(values + target + HALF + i, right)
    else:
        a, b = left.to(tl.float32), right.to(tl.float32)
        if NORM:
            scale = 1 / tl.sqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / (2 * HALF) + eps)
            weight = q_norm
            if head >= HEADS:
                weight = k_norm
            a = ((a * scale).to(kind).to(tl.float32) * tl.load(weight + i).to(tl.float32)).to(kind).to(tl.float32)
            b = ((b * scale).to(kind).to(tl.float32) * tl.load(weight + HALF + i).to(tl.float32)).to(kind).to(tl.float32)
        angle = tl.load(position + n) * HALF + i
        c, s = tl.load(cos + angle).to(tl.float32), tl.load(sin + angle).to(tl.float32)
        first, second = (a * c - b * s).to(kind), (b * c + a * s).to(kind)
        if head >= HEADS:
            tl.store(keys + target + i, first)
            tl.store(keys + target + HALF + i, second)
        else:
            tl.store(start + i, first)
            tl.store(start + HALF + i, second)


def rotate_store(qkv, cos, sin, q_norm, k_norm, eps, keys, values, slot, place, position, heads):
    """Turns the queries of qkv [N, (H + 2 KV) d] in place; keys and values [slots, KV, capacity, d] take theirs at (slot, place), int64 [N].

    cos, sin [positions, d / 2]; q_norm, k_norm [d] or None.
    """
    kv, dim = keys.shape[1], keys.shape[3]
    norm = q_norm is not None
    weights = (q_norm, k_norm) if norm else (qkv, qkv)
    _rotate_store[(len(qkv), heads + 2 * kv)](
        qkv, cos, sin, *weights, keys, values, slot, place, position, eps, keys.stride(0), keys.stride(1), heads, kv, dim // 2, norm, num_warps=1
    )


@triton.jit
def _attend(q, keys, values, slot, place, out, scale, stride_q, stride_slot, stride_head, KV: tl.constexpr, GROUP: tl.constexpr,
            ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    n, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    g, d, j = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, BLOCK)
    at = (head * GROUP + g[:, None]) * DIM + d[None, :]
    query = tl.load(q + n * stride_q + at, mask=g[:, None] < GROUP, other=0.0)  # [ROWS, DIM]: the queries that share a key
    start = tl.load(slot + n) * stride_slot + head * stride_head
    length = tl.load(place + n) + 1
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM], tl.float32)
    for begin in range(0, length, BLOCK):
        seen = begin + j < length
        where = start + (begin + j)[:, None] * DIM + d[None, :]
        key = tl.load(keys + where, mask=seen[:, None], other=0.0)  # [BLOCK, DIM]
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, -1e30)
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(top - higher)
        value = tl.load(values + where, mask=seen[:, None], other=0.0)
        total = total * shrink + tl.sum(weight, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = higher
    mixed = mixed / total[:, None]
    tl.store(out + n * KV * GROUP * DIM + at, mixed.to(query.dtype), mask=g[:, None] < GROUP)


def attend(q, keys, values, slot, place, heads):
    """[N, H d]: token n sees the positions 0..place[n] of its slot. q [N, >= H d], the queries first."""
    kv, dim = keys.shape[1], keys.shape[3]
    group = heads // kv
    out = torch.empty(len(q), heads * dim, dtype=q.dtype, device=q.device)
    block = 64 if dim <= 128 else 32
    _attend[(len(q), kv)](
        q, keys, values, slot, place, out, dim**-0.5, q.stride(0), keys.stride(0), keys.stride(1), kv, group, max(16, next_power(group)), dim, block, num_warps=4
    )
    return out


@triton.jit
def _gated(both, out, WIDTH, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = i < WIDTH
    gate = tl.load(both + row * 2 * WIDTH + i, mask=here, other=0.0)
    wide = gate.to(tl.float32)
    gate = (wide / (1 + tl.exp(-wide))).to(gate.dtype)
    up = tl.load(both + row * 2 * WIDTH + WIDTH + i, mask=here, other=0.0)
    tl.store(out + row * WIDTH + i, (gate.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=here)


def gated(both):
    """silu of the first half of [N, 2 width] times the second half."""
    width = both.shape[1] // 2
    out = torch.empty(len(both), width, dtype=both.dtype, device=both.device)
    _gated[(len(both), triton.cdiv(width, 1024))](both, out, width, 1024)
    return out


# ---------------------------------------------------------------------------------------------------------------------
# the head in training


@triton.jit
def _head_forward(logits, targets, logp, lse, entropy, inverse, V, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -1e30, tl.float32)  # a running maximum and sums a lane, joined at the end
    total = tl.zeros([BLOCK], tl.float32)
    mean = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        x = tl.load(logits + row * V + start + i, mask=start + i < V, other=-1e30).to(tl.float32) * inverse
        higher = tl.maximum(top, x)
        shrink, weight = tl.exp(top - higher), tl.exp(x - higher)
        total = total * shrink + weight
        mean = mean * shrink + weight * x
        top = higher
    highest = tl.max(top, 0)
    shrink = tl.exp(top - highest)
    whole = tl.sum(total * shrink, 0)
    log = highest + tl.log(whole)
    target = tl.load(logits + row * V + tl.load(targets + row)).to(tl.float32) * inverse
    tl.store(lse + row, log)
    tl.store(logp + row, target - log)
    tl.store(entropy + row, log - tl.sum(mean * shrink, 0) / whole)


@triton.jit
def _head_backward(logits, targets, lse, grad, inverse, V, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + row * V + i
    x = tl.load(at, mask=i < V, other=0.0)
    p = tl.exp(x.to(tl.float32) * inverse - tl.load(lse + row))
    chosen = (i == tl.load(targets + row)).to(tl.float32)
    tl.store(at, ((chosen - p) * tl.load(grad + row) * inverse).to(x.dtype), mask=i < V)


class ChosenLogprobs(torch.autograd.Function):
    """(log-probabilities, entropies) float32 [N] of targets [N] given hidden states [N, D] and the head [V, D]: `size` rows of logits are
    alive at a time, in the model's dtype, and the backward pass makes them again. The entropy has no gradient."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, blocked, temperature, size):
        N = len(hidden)
        logp, lse, entropy = (torch.empty(N, dtype=torch.float32, device=hidden.device) for _ in range(3))
        for i in range(0, N, size):
            part = slice(i, i + size)
            logits = _logits(hidden[part], weight, blocked)
            _head_forward[(len(logits),)](logits, targets[part], logp[part], lse[part], entropy[part], 1 / temperature, logits.shape[1], 4096, num_warps=8)
        ctx.save_for_backward(hidden, weight, targets, blocked, lse)
        ctx.temperature, ctx.size = temperature, size
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx, grad, _):
        hidden, weight, targets, blocked, lse = ctx.saved_tensors
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if ctx.needs_input_grad[1] else None
        grad = grad.contiguous()
        for i in range(0, len(hidden), ctx.size):
            part = slice(i, i + ctx.size)
            logits = _logits(hidden[part], weight, blocked)
            V = logits.shape[1]
            _head_backward[(len(logits), triton.cdiv(V, 4096))](logits, targets[part], lse[part], grad[part], 1 / ctx.temperature, V, 4096, num_warps=8)
            to_hidden[part] = logits @ weight
            if to_weight is not None:
                to_weight += logits.t() @ hidden[part]
        return to_hidden, None if to_weight is None else to_weight.to(weight.dtype), None, None, None, None


def _logits(hidden, weight, blocked):
    logits = hidden @ weight.t()
    return logits.index_fill_(1, blocked, -1e9) if len(blocked) else logits
