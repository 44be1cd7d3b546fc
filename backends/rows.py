"""The memory of a batch of sequences under way: keys and values, or the state of linear attention, for transformers' own forward.

    rows = Rows(model, 64, 512)                                      # 64 rows of up to 512 positions; grows with `resize`
    rows.write(3, state, length)                                     # row 3 takes over what `read` gave for another batch
    mask = rows.begin(starts, 1, width)                              # every row r writes its next position starts[r]
    hidden = model.hidden(ids, positions, mask=mask, cache=rows.cache)

Row r keeps its sequence from position 0 on and writes at its own next position, so a sequence joins or leaves without moving the others,
and a step copies nothing but what is new. Linear-attention layers keep one state a row, so any mixture of the two kinds of layers works.
Masks are made here, since transformers' own assume that all rows of a batch write at the same position.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from backends.model import Model


@dataclass
class Step:
    """Where the tokens of one forward go: row r writes `count` positions from starts[r] on and may look at the first `width` positions."""

    starts: torch.Tensor  # int64 [B]
    count: int
    width: int
    fresh: bool  # all rows start at 0: nothing to look back to
    index: dict = field(default_factory=dict)  # (heads, capacity) -> flat indices, the same for all layers

    def places(self, heads, capacity):
        """int64 [B * heads * count]: where in a buffer [B, heads, capacity, dim], seen as [B * heads * capacity, dim]."""
        if (heads, capacity) not in self.index:
            device = self.starts.device
            lines = torch.arange(len(self.starts) * heads, device=device).view(-1, heads, 1) * capacity  # [B, heads, 1]
            self.index[heads, capacity] = (lines + (self.starts[:, None] + torch.arange(self.count, device=device))[:, None]).view(-1)
        return self.index[heads, capacity]


class AttentionRows(DynamicLayer):
    """Keys and values [rows, heads, capacity, dim] of one layer. transformers calls `update` in its forward."""

    def __init__(self):
        super().__init__()
        self.step = None

    def update(self, keys, values, *_, **__):
        if self.keys is None:  # a prefill without a past: what comes is all there is
            self.keys, self.values, self.is_initialized = keys, values, True
            return keys, values
        rows, heads, _, dim = keys.shape
        places = self.step.places(heads, self.keys.shape[2])
        self.keys.view(-1, dim).index_copy_(0, places, keys.reshape(-1, dim))
        self.values.view(-1, values.shape[-1]).index_copy_(0, places, values.reshape(-1, values.shape[-1]))
        return self.keys[:rows, :, : self.step.width], self.values[:rows, :, : self.step.width]

    def get_seq_length(self):
        return 0  # masks are made here (`Rows.masks`), not from this

    def get_mask_sizes(self, query_length):
        return query_length, 0


class Rows:
    """The memory of a batch of sequences, one a row. What a sequence has in it ("state") is a list of tensors a layer, see `read`."""

    def __init__(self, model: Model, rows: int, capacity: int):
        self.model, self.rows, self.capacity = model, rows, capacity
        self.cache = DynamicCache()
        self.cache.layers = [AttentionRows() if kind != "linear" else LinearAttentionLayer() for kind in layer_kinds(model)]
        self.linear = {}  # number of the layer -> buffers [rows, ...] of its states

    def read(self, row: int, length: int) -> list:
        """The state of a row that holds `length` positions, as views: keys and values, or convolution and recurrent state, a layer."""
        return [
            (layer.keys[row, :, :length], layer.values[row, :, :length])
            if isinstance(layer, AttentionRows)
            else (layer.conv_states[0][row], layer.recurrent_states[0][row])
            for layer in self.cache.layers
        ]

    def write(self, row: int, state: list, length: int):
        for i, (layer, pair) in enumerate(zip(self.cache.layers, state, strict=True)):
            if isinstance(layer, AttentionRows):
                if layer.keys is None:  # zeros, since a masked position still meets a weight of 0, and 0 * NaN is NaN
                    layer.keys, layer.values = (t.new_zeros(self.rows, t.shape[0], self.capacity, t.shape[2]) for t in pair)
                    layer.is_initialized = True
                layer.keys[row, :, :length], layer.values[row, :, :length] = pair
            else:
                if i not in self.linear:
                    self.linear[i] = [t.new_zeros(self.rows, *t.shape) for t in pair]
                    layer.device, layer.dtype = pair[0].device, pair[0].dtype
                    layer.conv_kernel_size[0] = pair[0].shape[-1]
                    for flags in (layer.is_conv_states_initialized, layer.is_recurrent_states_initialized, layer.has_previous_state):
                        flags[0] = True
                    layer.conv_states[0], layer.recurrent_states[0] = self.linear[i]
                for buffer, tensor in zip(self.linear[i], pair):
                    buffer[row] = tensor

    def clean(self, row: int):
        """After a sequence that went wrong: no NaN may stay where another sequence has its masked positions."""
        for layer in self.cache.layers:
            for buffer in (layer.keys, layer.values) if isinstance(layer, AttentionRows) else ():
                buffer[row] = 0

    def resize(self, rows: int, capacity: int):
        for layer in self.cache.layers:
            if isinstance(layer, AttentionRows) and layer.keys is not None:
                for name in ("keys", "values"):
                    old = getattr(layer, name)
                    new = old.new_zeros(rows, old.shape[1], capacity, old.shape[3])
                    new[: self.rows, :, : self.capacity] = old
                    setattr(layer, name, new)
        for i, buffers in self.linear.items():
            self.linear[i] = [torch.cat([b, b.new_zeros(rows - self.rows, *b.shape[1:])]) for b in buffers]
        self.rows, self.capacity = rows, capacity

    def begin(self, starts: torch.Tensor, count: int, width: int, fresh=False):
        """Before a forward over the first len(starts) rows. Returns the attention mask that it needs (see `Model.hidden`)."""
        step = Step(starts, count, width, fresh)
        for i, layer in enumerate(self.cache.layers):
            if isinstance(layer, AttentionRows):
                layer.step = step
            elif i in self.linear:
                layer.conv_states[0], layer.recurrent_states[0] = (buffer[: len(starts)] for buffer in self.linear[i])
        return self._masks(step)

    def _masks(self, step):
        """None, one additive mask [B, 1, count, width], or one by type of layer: a position sees itself and what its own row has before."""
        kinds = dict(zip(layer_names(self.model), layer_kinds(self.model)))  # name of a type of layer -> kind
        if step.fresh and not any(isinstance(kind, int) for kind in kinds.values()):
            return None  # plain causal attention, which has a faster kernel
        device, dtype = step.starts.device, self.model.dtype
        own = (step.starts[:, None] + torch.arange(step.count, device=device))[:, :, None]  # [B, count, 1]
        past = torch.arange(step.width, device=device)  # [width]
        masks = {}
        for name, kind in kinds.items():
            if kind == "linear":
                masks[name] = None
                continue
            seen = past <= own  # [B, count, width]
            if isinstance(kind, int):
                seen = seen & (past > own - kind)
            masks[name] = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))


def layer_names(model: Model) -> list:
    return list(getattr(model.text, "layer_types", None) or ["attention"] * len(layer_kinds(model)))


def layer_kinds(model: Model) -> list:
    """For each layer "full", "linear", or the width of its sliding window."""
    if not hasattr(model, "layer_kinds"):
        layers = DynamicCache(config=model.config).layers
        names = getattr(model.text, "layer_types", None) or [""] * len(layers)
        model.layer_kinds = []
        for name, layer in zip(names, layers):
            if type(layer) is DynamicLayer:
                model.layer_kinds.append("full")
            elif type(layer) is DynamicSlidingWindowLayer and name != "chunked_attention":
                model.layer_kinds.append(int(layer.sliding_window))
            elif name == "linear_attention":
                model.layer_kinds.append("linear")
            else:
                kind = name or type(layer).__name__
                raise SystemExit(f"model {model.name!r} has layers of type {kind}, which the local sampler can't run; try --backend vllm")
    return model.layer_kinds
