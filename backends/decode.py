"""The fast path of the sampler, for decoders of the Llama / Qwen2 / Qwen2.5 / Qwen3 shape (and vision models with such a language model).

    slots = make_slots(model, max_rows=256)      # None: another architecture; the engine then uses transformers' own forward
    slots.room(700)                              # makes sure that a sequence of 700 positions fits
    hidden = slots.forward(ids, slot, place, position)      # [N, width]: any tokens of any slots, packed: a prefill, or one decoding step
    tokens, logprobs, count = slots.burst(live, 8, ...)     # 8 decoding steps without looking at the result in between

Memory: keys and values [2, layers, slots, heads, capacity, dim]. A token is (slot, place in it, rotary position) and sees the places before its
own, so a prefill and a decoding step are the same code, sequences join and leave without touching others, and nothing is padded.

A step draws tokens, notes log-probabilities and handles stop tokens on the device. On a GPU it is a CUDA graph, one for each size of batch, and
a burst of steps is one wait: what a sequence draws after its stop string is thrown away. Without a GPU the same code runs plainly.

Weights are the trainer's: query, key and value matrices (gate and up, too) become views of one joined tensor, so an update needs no copy. With
a LoRA the joined tensors are copies, W + BA, made anew after each update; in bfloat16 they are rounded at random, since a small change of
a rounded weight would otherwise vanish. A matrix doesn't notice: the errors of its thousands of weights average out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from backends.draw import draw
from backends.model import Model
from backends.rows import layer_kinds

STOPS = 8  # stop tokens that a slot can hold; the engine looks for more by itself
BURST = 8  # steps between two looks of the engine while others wait for a slot
LONG = 2 * BURST  # and while nobody waits
PACKED = 2048  # tokens of a prefill up to which it is a graph: more keep the GPU busy without
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512)  # batches that get a graph; then by 128


# ---------------------------------------------------------------------------------------------------------------------
# weights


@dataclass
class Layer:
    """Weights of one layer. `qkv` [(H + 2 KV) d, width] and `gate_up` [2 inner, width] are joined."""

    norm1: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: torch.Tensor
    norm2: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def language_model(model: Model):
    return getattr(model.inner, "language_model", model.inner)


def has_shape(model: Model) -> bool:
    """Whether the modules are those that `forward` below knows. What they compute is checked with numbers afterwards (`agrees`)."""
    body = language_model(model)
    if {name for name, _ in body.named_children()} != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        return False
    if any(kind != "full" for kind in layer_kinds(model)) or getattr(model.text, "hidden_act", "") != "silu":
        return False
    if getattr(body.rotary_emb, "rope_type", "") not in ("default", "linear", "llama3", "yarn"):  # others depend on the length
        return False
    if any(getattr(module, "lora_variant", None) for module in body.modules()):  # DoRA and the like
        return False
    for layer in body.layers:
        if {name for name, _ in layer.named_children()} != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
            return False
        attention = {name for name, _ in layer.self_attn.named_children()} - {"rotary_emb"}
        if not {"q_proj", "k_proj", "v_proj", "o_proj"} <= attention <= {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}:
            return False
        if {name for name, _ in layer.mlp.named_children()} != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
            return False
        if any(plain(module).bias is not None for module in (layer.self_attn.o_proj, *layer.mlp.children()) if hasattr(module, "weight")):
            return False
    return True


def plain(module):
    """The linear layer below a LoRA."""
    return getattr(module, "base_layer", module)


def join(modules, name="weight"):
    """One tensor of the weights of several linear layers, of which they become views: nothing is copied from now on."""
    tensors = [getattr(plain(module), name) for module in modules]
    if tensors[0] is None:
        return None
    whole = torch.cat([tensor.detach() for tensor in tensors])
    for tensor, piece in zip(tensors, whole.split([len(tensor) for tensor in tensors])):
        tensor.data = piece
    return whole


def merged(modules, dice):
    """W + BA of linear layers with LoRAs, joined, float32 inside and rounded at random to the dtype of W."""
    whole = []
    for module in modules:
        weight = plain(module).weight.detach()
        wide = weight.float()
        for name in module.active_adapters if hasattr(module, "lora_A") else ():
            wide = wide + module.scaling[name] * (module.lora_B[name].weight.float() @ module.lora_A[name].weight.float())
        if weight.dtype == torch.bfloat16:  # the upper half of a float32: add noise below it, then cut
            bits = wide.view(torch.int32) + torch.randint(0, 2**16, wide.shape, dtype=torch.int32, device=wide.device, generator=dice)
            wide = (bits & -(2**16)).view(torch.float32)
        whole.append(wide.to(weight.dtype))
    return torch.cat(whole)


def make_slots(model: Model, max_rows: int, share: float = 0.4):
    """Slots for this model, or None if it is of another shape."""
    if not has_shape(model):
        return None
    slots = Slots(model, max_rows, share)
    return slots if slots.agrees() else None


# ---------------------------------------------------------------------------------------------------------------------
# the memory and the steps


class Slots:
    """See the top of this file. max_rows: most slots; share: of the GPU's free memory that keys and values may take."""

    def __init__(self, model: Model, max_rows: int, share: float):
        body, text = language_model(model), model.text
        self.model, self.body, self.max_rows, self.share = model, body, max_rows, share
        self.heads, self.kv_heads, self.depth = text.num_attention_heads, text.num_key_value_heads, len(body.layers)
        self.dim, self.eps = getattr(text, "head_dim", None) or text.hidden_size // self.heads, text.rms_norm_eps
        self.rows, self.capacity, self.memory = 0, 0, None
        self.graphs, self.pool = {}, None
        self.lora = any(hasattr(module, "lora_A") for module in body.modules())
        self.dice = torch.Generator(model.device).manual_seed(0) if self.lora else None
        self.layers, self.stale = [self._layer(layer) for layer in body.layers], False
        self.kernels = model.kernels if self.dim & (self.dim - 1) == 0 else None

    def _layer(self, layer) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv, pair = (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)
        linear = lambda modules: merged(modules, self.dice) if self.lora else join(modules)
        bias = None if plain(qkv[0]).bias is None else join(qkv, "bias")  # a LoRA leaves biases alone
        norms = [getattr(attention, name).weight if hasattr(attention, name) else None for name in ("q_norm", "k_norm")]
        out, down = ((merged([m], self.dice) if self.lora else m.weight) for m in (attention.o_proj, mlp.down_proj))
        return Layer(layer.input_layernorm.weight, linear(qkv), bias, *norms, out, layer.post_attention_layernorm.weight, linear(pair), down)

    def weights_changed(self):
        self.stale = self.lora

    def refresh(self):
        """Merges the LoRA again if it has changed, into the same tensors: graphs know their addresses."""
        if self.stale:
            for mine, layer in zip(self.layers, self.body.layers):
                attention, mlp = layer.self_attn, layer.mlp
                mine.qkv.copy_(merged((attention.q_proj, attention.k_proj, attention.v_proj), self.dice))
                mine.gate_up.copy_(merged((mlp.gate_proj, mlp.up_proj), self.dice))
                mine.out.copy_(merged([attention.o_proj], self.dice))
                mine.down.copy_(merged([mlp.down_proj], self.dice))
            self.stale = False

    @torch.no_grad()
    def agrees(self) -> bool:
        """Whether `forward` gives what the model's own forward gives, on a few tokens: the names of modules don't say what they compute."""
        count, device = 12, self.model.device
        ids = (torch.arange(count, device=device) * 7919 + 11) % self.model.vocab_size
        ids = torch.where(torch.isin(ids, self.model.blocked), self.model.pad, ids)
        line = torch.arange(count, device=device)
        self._allocate(1, 64)
        found = self.forward(ids, torch.zeros_like(line), line, line).float()
        expected = self.model.hidden(ids[None], line.expand(self.model.axes, 1, -1))[0].float()
        self.drop()
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 0.1  # bfloat16 is off by 1 to 3 %
        return bool((found - expected).norm() < tolerance * expected.norm())

    # ------------------------------------------------------------------ memory

    def row_bytes(self, capacity: int) -> int:
        return capacity * (2 * self.depth * self.kv_heads * self.dim * torch.finfo(self.model.dtype).bits // 8 + 8)

    def free_bytes(self) -> int:
        """What keys and values may take now."""
        if self.model.device.type != "cuda":
            return 2**31
        free = torch.cuda.mem_get_info(self.model.device)[0]
        return int(self.share * (free + torch.cuda.memory_reserved(self.model.device) - torch.cuda.memory_allocated(self.model.device)))

    def room(self, positions: int, busy: int = 0) -> bool:
        """Makes sure that sequences of this many positions fit. False: only once the `busy` ones are done. ValueError: never."""
        if positions <= self.capacity:
            return True
        least = 256 * -(-positions // 256)
        larger = max(least, min(2 * self.capacity, self.model.max_positions))  # growing is rare this way
        if not busy:
            self.drop()
        fitting = lambda capacity: min(self.max_rows, self.free_bytes() // self.row_bytes(capacity))  # beside the old memory, if that is there
        capacity = larger if fitting(larger) == self.max_rows else least
        most = fitting(capacity)
        if busy and most < self.rows:
            return False
        if most < 1:
            need, have = self.row_bytes(capacity) / 2**30, self.free_bytes() / 2**30
            raise ValueError(
                f"a sequence of {positions} positions takes {need:.2f} GiB of keys and values, and {have:.2f} GiB are there for them: lower max_tokens"
            )
        self._allocate(most, capacity)
        return True

    def _allocate(self, rows: int, capacity: int):
        device, old = self.model.device, self.memory
        # One slot more, which takes the padding of a prefill
        self.memory = torch.zeros(2, self.depth, rows + 1, self.kv_heads, capacity, self.dim, dtype=self.model.dtype, device=device)
        full = lambda value, dtype, *shape: torch.full((rows, *shape), value, dtype=dtype, device=device)
        new = {name: full(0, torch.long) for name in ("last", "length", "position", "count", "limit", "top_k")}
        new |= {"temperature": full(1.0, torch.float32), "top_p": full(1.0, torch.float64), "live": full(False, torch.bool)}
        new |= {"stops": full(-1, torch.long, STOPS), "uniforms": full(0.0, torch.float64, capacity)}
        if old is not None:
            self.memory[:, :, : self.rows, :, : self.capacity] = old[:, :, : self.rows]
            for name, tensor in self.state.items():
                new[name][(slice(self.rows), *map(slice, tensor.shape[1:]))] = tensor
        self.state, self.rows, self.capacity = new, rows, capacity
        self.drawn = torch.zeros(LONG, rows, dtype=torch.long, device=device)
        self.drawn_logp = torch.zeros(LONG, rows, device=device)
        self.tick = torch.zeros(1, dtype=torch.long, device=device)
        self.all = torch.arange(rows, device=device)
        with torch.autocast(device.type, enabled=False):
            line = torch.arange(capacity + 1, device=device)  # rotary positions; never above the places, pictures take fewer
            cos, sin = self.body.rotary_emb(self.memory[:0, 0, 0, 0], line.expand(self.model.axes, 1, -1) if self.model.axes > 1 else line[None])
        flat = lambda table: (table[0] if table.ndim == 4 else table)[0, :, : self.dim // 2].contiguous()
        self.cos, self.sin = flat(cos), flat(sin)  # [positions, d / 2], rounded as the model's own forward rounds them
        self.graphs, self.pool = {}, None

    def drop(self):
        """Gives the memory back."""
        self.memory, self.state, self.graphs, self.pool, self.rows, self.capacity = None, {}, {}, None, 0, 0
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def read(self, slot: int, length: int) -> list:
        """What a slot holds, as views: [(keys, values)], each [layers, heads, length, dim]."""
        return [(self.memory[0, :, slot, :, :length], self.memory[1, :, slot, :, :length])]

    def write(self, slot: int, state: list, length: int):
        for part, tensor in zip(self.memory, state[0]):
            part[:, slot, :, :length] = tensor

    def take(self, rows, slot: torch.Tensor, width: int):
        """The keys and values that transformers' forward left in `Rows`, row i into slot[i]."""
        for i, layer in enumerate(rows.cache.layers):
            self.memory[0, i, slot, :, :width] = layer.keys[:, :, :width]
            self.memory[1, i, slot, :, :width] = layer.values[:, :, :width]

    def copy(self, sources: list, targets: list, width: int, state=False):
        """Slots into other slots, up to `width` positions; `state`: of sequences under way, with all that belongs to them."""
        size = max(1, 2**30 * self.capacity // (self.row_bytes(self.capacity) * max(1, width)))  # what is copied at once is there twice
        for i in range(0, len(sources), size):
            old, new = (torch.tensor(rows[i : i + size], device=self.model.device) for rows in (sources, targets))
            self.memory[:, :, new, :, :width] = self.memory[:, :, old, :, :width]
            for tensor in self.state.values() if state else ():
                tensor[new] = tensor[old]

    def clean(self, slot: int):
        """After a sequence that went wrong: no NaN may stay."""
        self.memory[:, :, slot] = 0

    def begin(self, slots: list, sequences: list):
        """Sets up sequences whose prompt is in their slot and whose first token is drawn."""
        device, params = self.model.device, [sequence.request.params for sequence in sequences]
        at = torch.tensor(slots, device=device)
        stops = [list(p.stop_tokens[:STOPS]) + [-1] * (STOPS - len(p.stop_tokens)) for p in params]
        whole = torch.tensor([[s.tokens[-1], s.length, s.position, len(s.tokens), s.limit, p.top_k, *stop] for s, p, stop in zip(sequences, params, stops)])
        names = ("last", "length", "position", "count", "limit", "top_k")
        for name, column in zip(names, whole.to(device).T):
            self.state[name][at] = column
        self.state["stops"][at] = whole[:, len(names) :].to(device)
        self.state["temperature"][at] = torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device)
        self.state["top_p"][at] = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
        width = max(s.limit for s in sequences)
        noise = torch.zeros(len(slots), width, dtype=torch.float64)
        for line, s in zip(noise.numpy(), sequences):  # the very numbers that one draw after another would take
            line[len(s.tokens) : s.limit] = s.random.random(s.limit - len(s.tokens))
        self.state["uniforms"][at, :width] = noise.to(device)

    # ------------------------------------------------------------------ the model

    def forward(self, ids, slot, place, position, width=None):
        """Last hidden states [N, width of the model] of tokens ids [N] at (slot, place), rotary position `position`, all int64 [N].

        slot None: token n is in slot n. width: no place is beyond it (None: the capacity); only the plain version wants to know.
        """
        kernels, heads = self.kernels or _Plain, self.heads
        x, delta = F.embedding(ids, self.body.embed_tokens.weight), None  # [N, D]
        slots = self.all[: len(ids)] if slot is None else slot
        for layer, keys, values in zip(self.layers, self.memory[0], self.memory[1]):
            qkv = F.linear(kernels.add_norm(x, delta, layer.norm1, self.eps), layer.qkv, layer.qkv_bias)  # [N, (H + 2 KV) d]
            kernels.rotate_store(qkv, self.cos, self.sin, layer.q_norm, layer.k_norm, self.eps, keys, values, slots, place, position, heads)
            if self.kernels:
                mixed = kernels.attend(qkv, keys, values, slots, place, heads)  # [N, H d]
            else:
                mixed = _Plain.attend(qkv, keys, values, slot, place, heads, width or self.capacity)
            both = F.linear(kernels.add_norm(x, F.linear(mixed, layer.out), layer.norm2, self.eps), layer.gate_up)  # [N, 2 inner]
            delta = F.linear(kernels.gated(both), layer.down)
        return kernels.add_norm(x, delta, self.body.norm.weight, self.eps)

    def _step(self, size: int, needs: tuple, width=None):
        """One token for each of the first `size` slots, live or not: a slot that isn't draws for nothing, at a place that nobody reads."""
        state = {name: tensor[:size] for name, tensor in self.state.items()}
        hidden = self.forward(state["last"], None, state["length"], state["position"], width)
        logits = self.model.head(hidden)  # [B, V]
        if len(self.model.blocked):
            logits = logits.index_fill(1, self.model.blocked, -1e9)
        uniform = state["uniforms"].gather(1, state["count"].clamp(max=self.capacity - 1)[:, None])[:, 0]
        tokens, logp = draw(logits, state["temperature"], state["top_k"], state["top_p"], uniform, needs)
        self.drawn[:, :size].index_copy_(0, self.tick, tokens[None])
        self.drawn_logp[:, :size].index_copy_(0, self.tick, logp[None])
        self.tick.add_(1)
        live = state["live"]
        state["last"].copy_(torch.where(live, tokens, state["last"]))
        for name in ("count", "length", "position"):
            state[name].add_(live)
        live.logical_and_((tokens[:, None] != state["stops"]).all(1)).logical_and_(state["count"] < state["limit"])

    def burst(self, live: list, steps: int, needs: tuple, width: int):
        """`steps` decoding steps of the slots that are `live`: tokens and log-probabilities, lists of `steps` a slot, and how many count.

        needs: see `draw`. width: more than any place will be.
        """
        size = next((s for s in SIZES if s >= len(live)), 128 * -(-len(live) // 128))
        size, count = min(size, self.rows), len(live)
        self.state["live"].copy_(torch.tensor(live + [False] * (self.rows - count)))
        self.tick.zero_()
        before = self.state["count"][:count].clone()
        if self.model.device.type == "cuda":
            key = (size, needs)
            if key not in self.graphs:
                saved = {name: self.state[name].clone() for name in ("last", "length", "position", "count", "live")}
                self.graphs[key] = self._capture(self._step, *key)
                for name, tensor in saved.items():  # the step that came before the capture never was
                    self.state[name].copy_(tensor)
                self.tick.zero_()
            for _ in range(steps):
                self.graphs[key][0].replay()
        else:
            for _ in range(steps):
                self._step(size, needs, min(self.capacity, 64 * -(-width // 64)))
        made = self.state["count"][:count] - before
        # One transfer for all three; float64 holds each exactly
        whole = torch.cat([self.drawn[:steps, :count].double(), self.drawn_logp[:steps, :count].double(), made[None].double()]).T.cpu()
        return whole[:, :steps].long().tolist(), whole[:, steps:-1].tolist(), whole[:, -1].long().tolist()

    def prefill(self, tokens: torch.Tensor, width: int):
        """`forward` of tokens int64 [4, N]: ids, slots, places, positions. What it returns on a GPU lasts until the next step or prefill."""
        count, device = tokens.shape[1], self.model.device
        if device.type != "cuda" or count > PACKED:
            return self.forward(*tokens.to(device), width=width)
        size = max(16, 1 << (count - 1).bit_length())
        if size not in self.graphs:
            static = torch.zeros(4, size, dtype=torch.long, device=device)
            static[1] = self.rows
            self.graphs[size] = (*self._capture(self.forward, *static), static)
        graph, hidden, static = self.graphs[size]
        padding = torch.tensor([0, self.rows, 0, 0])[:, None].expand(4, size - count)
        static.copy_(torch.cat([tokens, padding], 1))
        graph.replay()
        return hidden[:count]

    def _capture(self, function, *arguments):
        """A CUDA graph of function(*arguments) and its result. The function runs once before, so that its kernels are compiled."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(*arguments)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
            result = function(*arguments)
        self.pool = self.pool or graph.pool()
        return graph, result


class _Plain:
    """What kernels.py does, in plain PyTorch."""

    @staticmethod
    def add_norm(x, delta, weight, eps):
        if delta is not None:
            x.add_(delta)
        return F.rms_norm(x.float(), (x.shape[1],), eps=eps).to(x.dtype) * weight

    @staticmethod
    def rotate_store(qkv, cos, sin, q_norm, k_norm, eps, keys, values, slot, place, position, heads):
        kv, dim = keys.shape[1], keys.shape[3]
        q, k, v = qkv.view(len(qkv), -1, dim).split([heads, kv, kv], 1)  # [N, H, d], [N, KV, d] twice
        c, s = cos[position][:, None].float(), sin[position][:, None].float()  # [N, 1, d / 2]
        for part, weight, target in ((q, q_norm, q), (k, k_norm, None)):
            turned = part if weight is None else F.rms_norm(part.float(), (dim,), eps=eps).to(part.dtype) * weight
            a, b = turned.float().chunk(2, -1)
            turned = torch.cat([a * c - b * s, b * c + a * s], -1).to(part.dtype)
            if target is not None:
                target.copy_(turned)
            else:
                keys[slot, :, place] = turned
        values[slot, :, place] = v

    @staticmethod
    def attend(qkv, keys, values, slot, place, heads, width):
        kv, dim = keys.shape[1], keys.shape[3]
        q = qkv[:, : heads * dim].view(len(qkv), kv, heads // kv, dim)
        mask = (torch.arange(width, device=place.device) <= place[:, None])[:, None, None]  # [N, 1, 1, width]
        if slot is None:
            return F.scaled_dot_product_attention(q, keys[: len(q), :, :width], values[: len(q), :, :width], mask).reshape(len(q), -1)
        mixed, size = torch.empty_like(q), max(1, 2**22 // (width * kv * dim))  # a copy of the slot for each token: in pieces
        for i in range(0, len(q), size):
            part = slot[i : i + size]
            k, v = keys[part, :, :width], values[part, :, :width]
            mixed[i : i + size] = F.scaled_dot_product_attention(q[i : i + size], k, v, mask[i : i + size])
        return mixed.reshape(len(q), -1)

    @staticmethod
    def gated(both):
        gate, up = both.chunk(2, -1)
        return F.silu(gate) * up
