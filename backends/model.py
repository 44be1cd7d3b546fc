"""One transformers model, as the trainer and the sampler of the local backend use it.

    model = load_model("models/tiny-vlm", device="cpu", dtype="float32")
    flat = model.flatten(chunks)                                    # ids, rotary positions and pictures of a list of chunks
    logp, entropy = model.score([flat], [targets], [wanted])        # float32 [N], [N]: teacher-forced, at the wanted positions

Works for what `AutoModelForImageTextToText` and `AutoModelForCausalLM` load, by transformers' own forward:
- Rotary positions come from the model's own `get_rope_index` (in the Qwen family a picture takes rows and columns), always over the whole
  sequence, so that a later turn gets the positions it would have had in one piece.
- Pictures go through the model's own image processor and vision tower. `Pictures` does each distinct picture once, for sampler and trainer,
  and hands the result to the forward in place of `get_image_features`. A tower that isn't trained keeps its results for ever.
- The head is applied apart from the body, only where a log-probability is wanted: [tokens, vocabulary] is by far the largest tensor.
- Placeholders of pictures and videos are never sampled and never trained: their logits count as minus infinity, everywhere. A sampled
  placeholder would be a picture without content, which no forward could read again.

The model is always in eval mode: dropout would make the trainer disagree with the sampler (log-probability gaps in the thousands).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from backends import packing, parallel
from backends.packing import packed, send
from checkpoints import check_model_name
from protocol import TextChunk

NEVER = -1e9  # a logit that makes a token impossible; finite, so that probability * logit is 0 and not NaN
TOWERS = ("visual", "vision_tower", "vision_model", "multi_modal_projector", "connector")  # modules that turn a picture into embeddings
PICTURES_AT_ONCE = 64  # through the tower


@dataclass
class Flat:
    """A list of chunks as arrays of T positions."""

    ids: np.ndarray  # int64 [T], the placeholder's id at pictures
    key: np.ndarray  # int64 [T], the same, but a number made of the picture's content there: equal keys, equal sequences
    positions: torch.Tensor  # int64 [axes, T], rotary positions
    pictures: list  # (start, ImageChunk) in order

    def __len__(self):
        return len(self.ids)


# ---------------------------------------------------------------------------------------------------------------------
# pictures


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


class Kept(OrderedDict):
    """A dict of tensors that forgets what was used least recently once it holds more than `limit` bytes."""

    def __init__(self, limit: int):
        super().__init__()
        self.limit, self.bytes = limit, 0

    def put(self, key, value: dict):
        self.bytes += _bytes(value)
        self[key] = value
        while self.bytes > self.limit and len(self) > 1:
            self.bytes -= _bytes(self.popitem(last=False)[1])

    def empty(self):
        self.clear()
        self.bytes = 0


def _bytes(value) -> int:
    if torch.is_tensor(value):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value.values() if isinstance(value, dict) else value))


class Pictures:
    """Encoded pictures -> pixels -> outputs of the vision tower, each distinct picture (by content) once.

    `frozen`: the tower isn't trained: its outputs stay right when the weights change, and no gradient goes there.
    """

    def __init__(self, tower, processor, device, frozen: bool, limit: int = 2**28):
        self.tower, self.processor, self.device, self.frozen = tower, processor, device, frozen
        self.pixels, self.outputs = Kept(limit), Kept(limit)
        self.by_picture = True  # whether this release of transformers cuts deepstack features by picture

    def prepared(self, chunk) -> dict:
        """The processor's tensors of one picture: `pixel_values`, in the Qwen family also `image_grid_thw` [1, 3]."""
        key = digest(chunk.data)
        if key not in self.pixels:
            from PIL import Image

            image = Image.open(io.BytesIO(chunk.data)).convert("RGB")
            self.pixels.put(key, dict(self.processor(images=[image], return_tensors="pt")))
        self.pixels.move_to_end(key)
        return self.pixels[key]

    def features(self, chunks: list, grad: bool) -> SimpleNamespace:
        """The tower's output for these pictures in order (repeats allowed), as the model's `get_image_features` would give it."""
        grad = grad and not self.frozen
        wanted = {digest(chunk.data): chunk for chunk in chunks}
        found = {} if grad else {key: self.outputs[key] for key in wanted if key in self.outputs}
        missing = [key for key in wanted if key not in found]
        for start in range(0, len(missing), PICTURES_AT_ONCE):
            keys = missing[start : start + PICTURES_AT_ONCE]
            with torch.set_grad_enabled(grad):
                made = dict(zip(keys, self._run([self.prepared(wanted[key]) for key in keys]), strict=True))
            found |= made
            for key, output in made.items() if not grad else ():
                self.outputs.put(key, output)
        for key in wanted.keys() & self.outputs.keys():
            self.outputs.move_to_end(key)
        return self._join([found[digest(chunk.data)] for chunk in chunks])

    def _run(self, prepared: list[dict]) -> list[dict]:
        """The tower's output cut by picture: {"pooled": [positions, width], "deep": [tower layer: [positions, width]]} for each."""
        batch = {name: torch.cat([one[name] for one in prepared]).to(self.device) for name in prepared[0]}
        output = self.tower(**batch, return_dict=True)
        pooled, deep = list(output.pooler_output), getattr(output, "deepstack_features", None) or []
        if len(pooled) != len(prepared):
            raise ValueError(f"the vision tower gave {len(pooled)} outputs for {len(prepared)} pictures; such towers aren't supported")
        if deep and torch.is_tensor(deep[0]):
            self.by_picture = False
            deep = [layer.split([len(piece) for piece in pooled]) for layer in deep]
        return [{"pooled": piece, "deep": [layer[i] for layer in deep]} for i, piece in enumerate(pooled)]

    def _join(self, outputs: list[dict]) -> SimpleNamespace:
        layers = [list(layer) for layer in zip(*(one["deep"] for one in outputs))]  # Qwen3-VL adds features of some tower layers, too
        deep = layers if self.by_picture else [torch.cat(layer) for layer in layers]
        return SimpleNamespace(pooler_output=[one["pooled"] for one in outputs], deepstack_features=deep)

    def weights_changed(self):
        if not self.frozen:
            self.outputs.empty()


def multiply_patches(module):
    """A patch embedding is a convolution whose kernel covers its whole input: one matrix product, at which convolution kernels are slow
    (a sixth of the time of a training step of a small model)."""
    if isinstance(module, torch.nn.Conv3d) and module.padding == (0, 0, 0) and module.groups == 1:
        convolve = module.forward

        @functools.wraps(convolve)
        def forward(x):  # [N, channels, *kernel] -> [N, out, 1, 1, 1]
            if x.shape[2:] != module.kernel_size:
                return convolve(x)
            return torch.nn.functional.linear(x.flatten(1), module.weight.flatten(1), module.bias)[..., None, None, None]

        module.forward = forward


# ---------------------------------------------------------------------------------------------------------------------
# the model


class Model:
    """See the top of this file. `net`: the transformers model; `version`: number of optimizer steps that its weights have seen."""

    def __init__(self, net, name: str, processor=None, device="cpu", train_vision=False):
        self.net, self.name, self.device, self.version = net.eval(), str(name), torch.device(device), 0
        self.inner, self.head = getattr(net, net.base_model_prefix), net.get_output_embeddings()
        self.config, self.text = net.config, net.config.get_text_config(decoder=True)
        self.dtype = next(net.parameters()).dtype
        self.vocab_size = self.head.weight.shape[0]
        self.image_token = getattr(self.config, "image_token_id", None)
        blocked = {self.image_token, getattr(self.config, "video_token_id", None)} - {None}
        self.blocked_ids = sorted(t for t in blocked if t < self.vocab_size)
        self.blocked = torch.tensor(self.blocked_ids, dtype=torch.long, device=self.device)
        self.pad = next(t for t in (self.text.pad_token_id, 0, 1, 2) if isinstance(t, int) and t not in blocked)
        self.axes = 3 if hasattr(self.inner, "get_rope_index") else 1
        self.max_positions = getattr(self.text, "max_position_embeddings", None) or 2**31
        # "past_key_values" became "cache" within the releases of transformers that this project accepts
        self.cache_name = "cache" if "cache" in inspect.signature(self.inner.forward).parameters else "past_key_values"
        self.pictures = None
        if processor is not None and hasattr(self.inner, "get_image_features"):
            self.pictures = Pictures(self.inner.get_image_features, processor, self.device, frozen=not train_vision)
            self.inner.get_image_features = lambda *_, **__: self._features
            for module in self.vision_modules():
                module.apply(multiply_patches)
        self._features = None
        self.kernels = head_kernels(self)
        self._check_head()
        self.packs = self.device.type == "cuda" and self.dtype in (torch.bfloat16, torch.float16) and packing.switch_on(self)

    def _check_head(self):
        """Some architectures do more than the head to their last hidden state. Better to refuse them than to train something else."""
        ids = torch.full((1, 2), self.pad, device=self.device)
        with torch.no_grad():
            whole = self.net(input_ids=ids, use_cache=False).logits.float()
            apart = self._head(self.hidden(ids, torch.arange(2, device=self.device).expand(self.axes, 1, 2)))
        if not torch.allclose(whole, apart, atol=1e-2, rtol=1e-2):
            kind = type(self.net).__name__
            raise SystemExit(f"model {self.name!r}: {kind} changes its logits after the head, which the local backend can't do")

    def vision_modules(self) -> list:
        return [getattr(self.inner, name) for name in TOWERS if hasattr(self.inner, name)]

    def weights_changed(self):
        self.version += 1
        if self.pictures:
            self.pictures.weights_changed()

    def flatten(self, chunks: list) -> Flat:
        """Arrays of a list of chunks. ValueError if it can't be read: empty, ids out of range, a picture that takes other positions."""
        ids, key, pictures, length = [], [], [], 0
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                ids.append(np.asarray(chunk.tokens, dtype=np.int64))
                key.append(ids[-1])
                if len(chunk.tokens) and not (0 <= ids[-1].min() and ids[-1].max() < self.vocab_size):
                    raise ValueError(f"token ids must be between 0 and {self.vocab_size - 1}; is this another model's tokenizer?")
                if self.image_token is not None and self.image_token in chunk.tokens:
                    raise ValueError(f"token {self.image_token} stands for a picture, but here it is ordinary text")
            else:
                self._check_picture(chunk)
                pictures.append((length, chunk))
                ids.append(np.full(len(chunk), self.image_token, dtype=np.int64))
                content = int.from_bytes(digest(chunk.data), "big") >> 1  # 63 bits
                key.append(np.full(len(chunk), -1 - content, dtype=np.int64))
            length += len(chunk)
        if not length:
            raise ValueError("an empty prompt: there is nothing to read")
        if length > self.max_positions:
            raise ValueError(f"{length} positions, but {self.name!r} reads {self.max_positions} at most (max_position_embeddings)")
        ids = np.concatenate(ids)
        return Flat(ids, np.concatenate(key), self.positions(ids, [chunk for _, chunk in pictures]), pictures)

    def _check_picture(self, chunk):
        if self.pictures is None:
            raise ValueError(f"model {self.name!r} reads text only, but the prompt holds a picture")
        grid = self.pictures.prepared(chunk).get("image_grid_thw")
        size = getattr(self.pictures.processor, "merge_size", 1) ** 2
        if grid is not None and (made := int(grid.prod()) // size) != len(chunk):
            raise ValueError(f"a picture was given {len(chunk)} positions, but the image processor of {self.name!r} makes {made}")

    def positions(self, ids: np.ndarray, pictures: list) -> torch.Tensor:
        """Rotary positions, int64 [axes, T]."""
        if self.axes == 1 or not pictures:
            return torch.arange(len(ids)).expand(self.axes, -1)
        ids = torch.from_numpy(ids)[None]
        grids = torch.cat([self.pictures.prepared(chunk)["image_grid_thw"] for chunk in pictures])
        return self.inner.get_rope_index(input_ids=ids, mm_token_type_ids=(ids == self.image_token).int(), image_grid_thw=grids)[0][:, 0]

    def hidden(self, ids, positions, pictures=(), mask=None, cache=None, grad=False, extra=()):
        """Last hidden states [B, T, width] of ids [B, T], positions [axes, B, T]; `pictures`: the ImageChunks in them, row by row.

        Without a mask rows may be padded on the right: attention is causal, so that no real position sees a pad.
        """
        extra = {"attention_mask": mask, self.cache_name: cache, "use_cache": cache is not None} | dict(extra)
        if pictures:
            self._features = self.pictures.features(pictures, grad)
            extra["pixel_values"] = torch.zeros(1, device=self.device)  # says that there are pictures; `_features` are what is used
        positions = positions if self.axes > 1 else positions[0]
        try:
            return self.inner(input_ids=ids, position_ids=positions, **extra).last_hidden_state
        finally:
            self._features = None  # it may hold a graph

    def _head(self, rows):
        logits = self.head(rows).float()
        cap = getattr(self.text, "final_logit_softcapping", None)
        return cap * torch.tanh(logits / cap) if cap else logits

    def logits(self, rows, temperature: float = 1.0):
        """float32 [N, vocabulary] of hidden states [N, width]; placeholders can't win."""
        logits = self._head(rows) / temperature
        return logits.index_fill(-1, self.blocked, NEVER) if len(self.blocked) else logits

    def _logprobs(self, rows, targets, temperature):
        logits = self.logits(rows, temperature)  # [N, V]
        total = logits.logsumexp(-1)  # [N]
        with torch.no_grad():
            entropy = total - ((logits - total[:, None]).exp() * logits).sum(-1)  # [N]
        return logits.gather(-1, targets[:, None])[:, 0] - total, entropy

    def _padded(self, flats, targets, wanted):
        """ids [B, T], padded on the right, positions [axes, B, T], targets [B, T] and where they are wanted [B, T], of sequences of any length."""
        longest = max(map(len, flats))
        ids = np.full((len(flats), longest), self.pad, dtype=np.int64)
        positions = torch.zeros(self.axes, len(flats), longest, dtype=torch.long)
        goal, mask = np.zeros_like(ids), np.zeros(ids.shape, dtype=bool)
        for i, flat in enumerate(flats):
            ids[i, : len(flat)], goal[i, : len(flat)], mask[i, : len(flat)] = flat.ids, targets[i], wanted[i]
            positions[:, i, : len(flat)] = flat.positions
            # The padding counts on: transformers takes positions that start anew for a second sequence, and then uses slow explicit masks
            positions[:, i, len(flat) :] = flat.positions.max() + 1 + torch.arange(longest - len(flat))
        return torch.from_numpy(ids), positions, torch.from_numpy(goal), torch.from_numpy(mask)

    def batches(self, lengths: list[int], budget: int) -> list[list[int]]:
        """Indices of sequences of these lengths in groups for `score`, of at most `budget` positions, padding included."""
        return micro_batches(lengths, budget, self.packs)

    def score(self, flats: list[Flat], targets: list, wanted: list, temperature: float = 1.0, grad: bool = False):
        """Log-probabilities of `targets` (int [T] each) where `wanted` (bool [T] each), and entropies there: float32 [N] both, by row."""
        whole = functools.partial(self._score, flats, targets, wanted, temperature, grad)
        return self.net(whole) if hasattr(self.net, "unshard") else whole()  # see sharded.py

    def _score(self, flats, targets, wanted, temperature, grad):
        pictures = [chunk for flat in flats for _, chunk in flat.pictures]
        with torch.set_grad_enabled(grad):
            if self.packs:
                ids, goal, mask = (torch.from_numpy(np.concatenate(arrays)) for arrays in ([flat.ids for flat in flats], targets, wanted))  # int64, int64, bool [N]
                positions = torch.cat([flat.positions for flat in flats], 1)[:, None]  # [axes, 1, N]
                extra = packed([len(flat) for flat in flats], self.device)
                hidden = self.hidden(send(ids[None], self.device), send(positions, self.device), pictures, grad=grad, extra=extra)[0]  # [N, width]
            else:
                ids, positions, goal, mask = self._padded(flats, targets, wanted)
                hidden = self.hidden(send(ids, self.device), send(positions, self.device), pictures, grad=grad)  # [B, T, width]
            places = send(mask.flatten().nonzero()[:, 0], self.device)  # by number: a GPU that is asked with a mask says how many, and is waited for
            rows, goal = hidden.flatten(0, -2).index_select(0, places), send(goal[mask], self.device)  # [n, width], [n]
            if self.kernels:
                size = max(1, 2**29 // self.vocab_size)  # 1 GiB of bfloat16
                return self.kernels.ChosenLogprobs.apply(rows, self.head.weight, goal, self.blocked, temperature, size)
            # The logits of a piece are dropped and made again in the backward pass, so that only one piece is alive at a time.
            size = max(1, (2**24 if self.device.type == "cpu" else 2**28) // self.vocab_size)
            if len(rows) <= size or not grad:
                parts = [self._logprobs(rows[i : i + size], goal[i : i + size], temperature) for i in range(0, max(1, len(rows)), size)]
            else:
                pieces = [(rows[i : i + size], goal[i : i + size]) for i in range(0, len(rows), size)]
                parts = [checkpoint(self._logprobs, *piece, temperature, use_reentrant=False) for piece in pieces]
        return torch.cat([logp for logp, _ in parts]), torch.cat([entropy for _, entropy in parts])


def head_kernels(model: Model):
    """kernels.py on a GPU, for a head that is one matrix and nothing else; None otherwise."""
    simple = type(model.head) is torch.nn.Linear and model.head.bias is None and not getattr(model.text, "final_logit_softcapping", None)
    if model.device.type != "cuda" or not simple:
        return None
    try:
        from backends import kernels
    except ImportError:  # no Triton for this platform
        return None
    return kernels


def micro_batches(lengths: list[int], budget: int, packed: bool = False) -> list[list[int]]:
    """Indices in groups of similar length, longest first, whose padded size (rows x longest; packed: the sum) stays within `budget` positions."""
    groups, longest, total = [], 0, 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        size = total + lengths[i] if packed else (len(groups[-1]) + 1) * longest if groups else 0
        if groups and size <= budget:
            groups[-1].append(i)
            total += lengths[i]
        else:
            groups.append([i])
            longest = total = lengths[i]
    return groups


# ---------------------------------------------------------------------------------------------------------------------
# loading


def check_device(device) -> torch.device:
    """"auto": a GPU if there is one; "cuda": the GPU of this rank. SystemExit with one line if torch can't compute there."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        return torch.zeros(1, device=parallel.local_device() if device == "cuda" else device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SystemExit(f"--device {device}: torch can't use it here ({str(error).splitlines()[0].rstrip('.')}); --device cpu always works") from None


def load_model(name: str, *, device="auto", dtype="auto", train_vision=False, revision=None) -> Model:
    """Model of a Hugging Face folder or hub id. device "auto": a GPU if there is one; dtype "auto": float32 on a CPU, bfloat16 on a GPU.

    SystemExit with one line if it isn't there, isn't whole, or is of a kind that can't be run.
    """
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    name = str(name)
    device = check_device(device)
    dtype = ("float32" if device.type == "cpu" else "bfloat16") if dtype == "auto" else dtype
    check_model_name(name)
    try:
        config = AutoConfig.from_pretrained(name, revision=revision)
        vision = type(config) in AutoModelForImageTextToText._model_mapping
        auto = AutoModelForImageTextToText if vision else AutoModelForCausalLM
        net, info = auto.from_pretrained(name, revision=revision, dtype=getattr(torch, dtype), output_loading_info=True)
        processor = AutoImageProcessor.from_pretrained(name, revision=revision) if vision else None
    except Exception as error:  # a dozen kinds: no such repository, no weights, cut-off file, unknown architecture ...
        raise SystemExit(f"model {name!r} can't be loaded: {str(error).strip().splitlines()[0]} (without a hub, name a local folder)") from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise SystemExit(f"model {name!r} lacks {len(missing)} tensors, such as {missing[0]}: is the folder whole, and its config its own?")
    return Model(net.to(device), name, processor, device, train_vision)
