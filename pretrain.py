"""Stage 0: models from nothing. `tiny-vlm` makes the vision-language model of two million parameters that the CPU run starts from.

    python pretrain.py tiny-vlm --objects 300 --held-out 100 --manuals 200 --steps 20 --out models/tiny-smoke      # two minutes on two cores
The shipped models/tiny-vlm: three stages on one H200, 16 cores (7, 4, 3.5 minutes; pretraining.json), the first before --text-weight was there:
    gpu="--device cuda --workers 16 --batch-size 512 --held-out 2000"
    python pretrain.py tiny-vlm $gpu --objects 100000 --steps 2800 --text-weight 0 --out models/tiny-1
    python pretrain.py tiny-vlm $gpu --init models/tiny-1 --seed 1 --objects 25000 --manuals 20000 --steps 1000 --learning-rate 1e-3 --text-weight 0.3 --out models/tiny-2
    python pretrain.py tiny-vlm $gpu --init models/tiny-2 --seed 2 --objects 12000 --manuals 15000 --steps 1000 --learning-rate 1.5e-3 --out models/tiny-vlm
Several GPUs: torchrun --nproc-per-node 2 pretrain.py tiny-vlm ..., the same update; each rank draws all pictures itself, with its own --workers.
Side by side from the start (one command, --steps 2800) it writes better and sees worse: a window that decides is read right in 80 % instead of 91 %.

The result is an ordinary Hugging Face folder (Qwen3-VL architecture, its own small tokenizer, chat template, image processor):
from SFT on nothing about it is special, and a folder of real weights takes its place by --base-model.

What it learns: to see and to write, side by side.
- Pictures: a conversation shows the full spectrum and up to two windows, with the chatter of some other agent in between, and asks one
  YES/NO question; only the answer is trained, in plain words or in brackets as the question asks. The objects come from a range that no
  later stage draws from. Trained on whole trajectories alone, a model this small stays at chance on noisy spectra, because one answer
  token in a hundred carries all there is to learn about seeing.
- Manuals: real models have read the web before they meet a tool; this one reads manuals of tools that don't exist (random names,
  parameters and values) followed by calls of them.
It never sees the agent's own tool, nor a thought, so the format of the agent is news to it: its format rate there is about zero.
"""

import argparse
import functools
import json
import math
import time
from pathlib import Path

import numpy as np

from backends import parallel

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")  # one token each, but ordinary text
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
PATCH, MERGE = 16, 2
WHITE, INK = 1.0, 0.25  # image_mean and image_std: white paper becomes 0 and black ink -4, so blank patches are silent
FORMS = (("in one word", "{}."), ("in brackets", "{{{}}}"), ("in a box", "\\boxed{{{}}}"), ("in quotes", '"{}"'), ("with a label", "answer={}"))


# ---------------------------------------------------------------- conversations


def conversation(number, seed, size):
    """Object `number` of the pre-training range: its one to three pictures, grey [n, height, width] uint8, the text around them as
    (text, trained) pairs, and what it shows: (task, number of windows, number of windows that decide)."""
    import io

    from PIL import Image

    from tasks.spec_o3 import QUESTIONS, SYSTEM, first_picture
    from tasks.spec_o3_synthetic import KINDS, informative_window, make_spectrum, uninformative_window
    from tools import zoom_spectrum

    rng = np.random.default_rng([seed, *map(ord, "pretrain"), number])
    kind, positive = KINDS[number % len(KINDS)], bool(rng.integers(2))
    spectrum = make_spectrum(kind, positive, rng)
    data = spectrum["wavelength"], spectrum["flux"], spectrum["redshift"]
    name, guide, _ = QUESTIONS[kind]
    how, form = FORMS[rng.integers(len(FORMS))]
    question = f" Is this object {name}?" + (f" {guide}" if rng.random() < 0.5 else "") + f" Answer {how}."
    first, low, high = first_picture(*data, size)
    pictures, captions, deciding = [first], [f"Spectrum from {low:.0f} to {high:.0f} Å."], 0
    for _ in range(rng.integers(3)):
        useful = bool(rng.random() < 0.75)
        window, label = (informative_window if useful else uninformative_window)(kind, rng)
        seen = zoom_spectrum(*data, window, label, size)
        pictures, captions, deciding = pictures + seen.images, captions + [seen.text], deciding + useful
    captions[0 if rng.random() < 0.7 else -1] += question
    words, text = vocabulary(), f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" if rng.random() < 0.5 else ""
    for index, caption in enumerate(captions):
        if index:  # what stands between two pictures is somebody else's business, long or short
            said = ("\n", "Go on.", some_call(rng, words))[rng.choice(3, p=[0.25, 0.25, 0.5])]
            text += said if said == "\n" else f"<|im_end|>\n<|im_start|>assistant\n{said}<|im_end|>\n<|im_start|>user\n"
        text += ("" if index else "<|im_start|>user\n") + PICTURE + caption
    text += "<|im_end|>\n<|im_start|>assistant\n"
    answer = form.format("YES" if positive else "NO") + "<|im_end|>"
    gray = np.stack([np.asarray(Image.open(io.BytesIO(picture)).convert("L")) for picture in pictures])
    return gray, [(text, False), (answer, True)], (kind, len(pictures) - 1, deciding)


@functools.lru_cache(1)
def vocabulary():
    """The words of the corpus, for text that means nothing."""
    return sorted({word for text in corpus([]) for word in "".join(letter if letter.isalpha() else " " for letter in text).split()})


def some(rng, words, low, high):
    return [str(word) for word in rng.choice(words, rng.integers(low, high + 1))]


def some_call(rng, words, tool=None):
    """A call of `tool` (its JSON schema; None: one made up on the spot) with values that fit the types."""
    name = tool["name"] if tool else "_".join(some(rng, words, 2, 3))
    kinds = {key: value["type"] for key, value in tool["parameters"]["properties"].items()} if tool else {some(rng, words, 1, 1)[0]: "array"}
    call = f"<tool_call>\n<function={name}>\n"
    for key, kind in kinds.items():
        low = 10 * int(rng.integers(380, 880))
        name = some(rng, words, 1, 1)[0] + f" {low}" if rng.random() < 0.5 else " ".join(some(rng, words, 1, 2))
        value = f"[{low}, {low + 10 * int(rng.integers(8, 40))}]" if kind == "array" else name if kind == "string" else str(low)
        call += f"<parameter={key}>\n{value}\n</parameter>\n"
    return call + "</function>\n</tool_call>"


def manual(number, seed):
    """Text of a tool manual with calls of its tools, as (text, trained) pairs: copying names, nesting tags, writing numbers."""
    rng, words = np.random.default_rng([seed, *map(ord, "manual"), number]), vocabulary()
    tools = []
    for _ in range(rng.integers(1, 3)):
        kinds = {"_".join(some(rng, words, 1, 2)): str(rng.choice(["array", "string", "number"], p=[0.5, 0.35, 0.15])) for _ in range(rng.integers(1, 4))}
        properties = {key: {"type": kind, "description": " ".join(some(rng, words, 1, 4))} for key, kind in kinds.items()}
        parameters = {"type": "object", "properties": properties, "required": [key for key in kinds if rng.random() < 0.6]}
        tools.append({"name": "_".join(some(rng, words, 2, 3)), "description": " ".join(some(rng, words, 2, 6)) + ".", "parameters": parameters})
    tag, ends, word = some(rng, words, 1, 1)[0], some(rng, words, 2, 2), some(rng, words, 1, 1)[0]
    listed = "# Tools\n\n<tools>\n" + "\n".join(json.dumps({"type": "function", "function": tool}, ensure_ascii=False) for tool in tools) + "\n</tools>"
    if rng.random() < 0.5:
        listed = "Tools:" + "".join(f" {tool['name']}({', '.join(tool['parameters']['properties'])})" for tool in tools)
    text = f"<|im_start|>system\n{listed}\n\n{' '.join(some(rng, words, 3, 12))}.<|im_end|>\n<|im_start|>user\n{' '.join(some(rng, words, 3, 12))}? "
    text += f"Finish with <{tag}>\\boxed{{{ends[0]}}} {word}</{tag}> or <{tag}>\\boxed{{{ends[1]}}} {word}</{tag}>.<|im_end|>\n<|im_start|>assistant\n"
    parts = [(text, False)]
    for _ in range(rng.integers(1, 4)):
        parts.append((some_call(rng, words, tools[rng.integers(len(tools))]) + "<|im_end|>", True))
        parts.append((f"\n<|im_start|>user\n<tool_response>\n{' '.join(some(rng, words, 2, 8))}.\n</tool_response><|im_end|>\n<|im_start|>assistant\n", False))
    return [*parts, (f"<{tag}>\\boxed{{{ends[rng.integers(2)]}}} {' '.join(some(rng, words, 2, 5))}.</{tag}><|im_end|>", True)]


def layout(parts, tokenizer, grid):
    """Tokens, M-RoPE positions [3, T] and loss mask of a conversation whose pictures all take grid = (rows, columns) merged patches."""
    image_token, (rows, columns) = tokenizer.convert_tokens_to_ids("<|image_pad|>"), grid
    count = rows * columns
    tokens, trained = [], []
    for text, train in parts:
        for token in tokenizer.encode(text, add_special_tokens=False):
            repeat = count if token == image_token else 1
            tokens += [token] * repeat
            trained += [train] * repeat
    positions, here, index = np.zeros((3, len(tokens)), np.int64), 0, 0
    while index < len(tokens):
        if tokens[index] == image_token:  # one temporal position, then rows and columns; text goes on after the longer side
            cell = np.arange(count)
            positions[:, index : index + count] = here + np.stack([0 * cell, cell // columns, cell % columns])
            here, index = here + max(rows, columns), index + count
        else:
            positions[:, index] = here
            here, index = here + 1, index + 1
    return np.array(tokens), positions, np.array(trained)


# ---------------------------------------------------------------- tokenizer and model


def build_tokenizer(texts, vocab_size):
    """Byte-level BPE with Qwen's special tokens. Digits stand one by one, so that any window can be written, and words apart from
    punctuation, so that YES is the same token in every bracket."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    split = r"""\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size - len(MARKS), special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    bpe.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=list(SPECIAL), clean_up_tokenization_spaces=False
    )


def build_model(tokenizer, width, layers):
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": 64 * math.ceil(len(tokenizer) / 64), "hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers,
        "num_attention_heads": width // 32, "num_key_value_heads": width // 64, "head_dim": 32, "max_position_embeddings": 2048, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 4, 4], "mrope_interleaved": True},
        "bos_token_id": None, "eos_token_id": token("<|im_end|>"), "pad_token_id": token("<|endoftext|>"),
    }  # fmt: skip
    vision = {
        "depth": layers, "hidden_size": width, "intermediate_size": 3 * width, "num_heads": width // 32, "patch_size": PATCH, "spatial_merge_size": MERGE,
        "temporal_patch_size": 2, "out_hidden_size": width, "num_position_embeddings": 256, "deepstack_visual_indexes": [layers // 2], "in_channels": 3,
    }  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"), vision_end_token_id=token("<|vision_end|>"),
    )  # fmt: skip
    model = Qwen3VLForConditionalGeneration(config)
    # The library starts every weight at std 0.02, made for widths of thousands; at this width 1/sqrt(fan_in) keeps signals alive.
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2:
                fan_in = weight[0].numel()
                scale = 0.05 if "embed" in name and "patch" not in name else 0.3 / math.sqrt(fan_in) if "patch_embed" in name else 1 / math.sqrt(fan_in)
                weight.normal_(0, scale * (0.5 if name.endswith(("o_proj.weight", "down_proj.weight", "proj.weight", "linear_fc2.weight")) else 1))
    return model


def patches(gray, device):
    """What the image processor would make of grey pictures [n, H, W] uint8: rows of patches [n·H/P·W/P, 3·2·P·P], 2x2 neighbours together."""
    import torch

    n, height, width = gray.shape
    x = (gray.to(device).float() / 255 - WHITE) / INK
    x = x.view(n, height // (PATCH * MERGE), MERGE, PATCH, width // (PATCH * MERGE), MERGE, PATCH).permute(0, 1, 4, 2, 5, 3, 6)
    x = x.reshape(-1, 1, 1, PATCH, PATCH).expand(-1, 3, 2, -1, -1)  # three equal channels, two equal frames
    return x.reshape(x.shape[0], -1), torch.tensor([[1, height // PATCH, width // PATCH]] * n, device=device)


# ---------------------------------------------------------------- training


def batch_attention(model):
    """Pictures of one size attend as one batch. The library's own path splits them and loops, which is most of the time of a tiny tower."""
    import torch.nn.functional as F
    from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision

    def forward(self, hidden_states, cu_seqlens, position_embeddings=None, **_):
        n = cu_seqlens.numel() - 1
        q, k, v = self.qkv(hidden_states).reshape(hidden_states.shape[0], 3, self.num_heads, -1).permute(1, 0, 2, 3).unbind(0)  # each [n·p, heads, d]
        q, k = apply_rotary_pos_emb_vision(q, k, *position_embeddings)
        q, k, v = (x.to(v.dtype).view(n, -1, self.num_heads, x.shape[-1]).transpose(1, 2) for x in (q, k, v))  # [n, heads, p, d]
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scaling)
        return self.proj(mixed.transpose(1, 2).reshape(hidden_states.shape[0], -1))

    for block in model.model.visual.blocks:
        block.attn.forward = functools.partial(forward, block.attn)


def see(model, gray, device):
    """The tower's output for grey pictures [n, H, W] of one size. The library works out every picture's positions in a Python loop; here it
    does so for the first picture and the others share them."""
    import torch

    visual, caught = model.model.visual, {}
    pixels, grid = patches(gray, device)
    n, p = len(gray), len(pixels) // len(gray)
    hook = visual.blocks[0].register_forward_pre_hook(lambda _, args, kwargs: caught.update(kwargs, first=args[0]), with_kwargs=True)
    output = type(model.model).get_image_features(model.model, pixels[:p], grid[:1], return_dict=True)
    hook.remove()
    x = visual.patch_embed(pixels) + (caught["first"] - visual.patch_embed(pixels[:p])).repeat(n, 1)  # [n·p, width]
    rope = tuple(part.repeat(n, 1) for part in caught["position_embeddings"])
    bounds, deep = torch.arange(0, n * p + 1, p, device=device, dtype=torch.int32), []
    for index, block in enumerate(visual.blocks):
        x = block(x, cu_seqlens=bounds, position_embeddings=rope)
        if index in visual.deepstack_visual_indexes:
            deep.append(visual.deepstack_merger_list[len(deep)](x))
    if not torch.is_tensor(output.deepstack_features[0]):  # newer releases keep them cut by picture, like the main output
        deep = [layer.split(p // MERGE**2) for layer in deep]
    output.pooler_output, output.deepstack_features = visual.merger(x).split(p // MERGE**2), deep
    return output


def forward_answers(model, batch, device):
    """Logits [answers, vocab] at the positions that predict trained tokens, and those tokens [answers]."""
    features = see(model, batch["pictures"], device)
    model.model.get_image_features = lambda *_, **__: features
    hidden = model.model(input_ids=batch["tokens"], attention_mask=batch["mask"], position_ids=batch["positions"], pixel_values=batch["pictures"][:1].float())[0]
    trained = batch["trained"][:, 1:]
    return model.lm_head(hidden[:, :-1][trained]), batch["tokens"][:, 1:][trained]  # hidden: [B, T, width]


def make_pool(count, size, device, longest):
    """Room for `count` conversations on the device: 64 kB each, nearly all of it grey pictures."""
    import torch

    shapes = {"pictures": ((3, size[1], size[0]), torch.uint8), "tokens": ((longest,), torch.long), "trained": ((longest,), torch.bool), "positions": ((3, longest), torch.int16)}
    pool = {name: torch.zeros(count, *shape, dtype=kind, device=device) for name, (shape, kind) in shapes.items()}
    return pool | {name: torch.zeros(count, dtype=torch.long) for name in ("length", "shown")}


def put(pool, index, pictures, tokens, positions, trained):
    import torch

    pool["length"][index], pool["shown"][index] = len(tokens), len(pictures)
    pool["pictures"][index, : len(pictures)] = torch.from_numpy(pictures)
    for name, value in (("tokens", tokens), ("trained", trained), ("positions", positions)):
        pool[name][index, ..., : len(tokens)] = torch.from_numpy(value)


def take(pool, chosen, shift=(0, 0)):
    """A batch of the chosen conversations [B], cut to the longest of them. shift: (rows, columns) in pixels that all pictures are moved by."""
    import torch

    device, longest = pool["tokens"].device, int(pool["length"][chosen].max())
    batch = {name: pool[name][chosen.to(device)][..., :longest] for name in ("tokens", "trained", "positions")}
    batch["positions"] = batch["positions"].long().transpose(0, 1)  # [3, B, T]
    batch["mask"] = (torch.arange(longest)[None] < pool["length"][chosen][:, None]).long().to(device)  # [B, T]
    shown = torch.arange(3)[None] < pool["shown"][chosen][:, None]  # [B, 3]
    row, slot = shown.nonzero(as_tuple=True)
    batch["pictures"] = pool["pictures"][chosen[row].to(device), slot.to(device)].roll(shift, (1, 2))  # [n, H, W], in the order of their placeholders
    return batch


def evaluate(model, pool, facts, tokenizer, device):
    """Held-out accuracy of YES against NO, by what was shown: the full picture alone, wrong windows only, one or two windows that decide."""
    import torch

    yes, no = (tokenizer.encode(word, add_special_tokens=False)[0] for word in ("YES", "NO"))
    right = {}
    for chosen in torch.arange(len(facts)).split(256):
        with torch.no_grad():
            logits, targets = forward_answers(model, take(pool, chosen), device)
        asked = (targets == yes) | (targets == no)  # one a conversation, in order
        hits = ((logits[asked][:, yes] > logits[asked][:, no]) == (targets[asked] == yes)).tolist()
        for index, hit in zip(chosen.tolist(), hits, strict=True):
            kind, windows, deciding = facts[index]
            shown = "full" if not windows else ("wrong window", "1 window", "2 windows")[deciding]
            right.setdefault(shown, []).append(hit)
            if shown != "wrong window":
                right.setdefault(f"{kind} {'full' if not windows else 'windows'}", []).append(hit)
    return {name: round(float(np.mean(hits)), 3) for name, hits in sorted(right.items())}


def text_pool(encoded, device):
    """Manuals [N, T] on the device, as `text_loss` reads them."""
    import torch

    longest = max(len(tokens) for tokens, *_ in encoded)
    pool = {"tokens": torch.zeros(len(encoded), longest, dtype=torch.long), "trained": torch.zeros(len(encoded), longest, dtype=torch.bool)}
    for index, (tokens, _, trained) in enumerate(encoded):
        pool["tokens"][index, : len(tokens)], pool["trained"][index, : len(tokens)] = torch.from_numpy(tokens), torch.from_numpy(trained)
    return {name: value.to(device) for name, value in pool.items()} | {"length": torch.tensor([len(tokens) for tokens, *_ in encoded])}


def text_loss(model, pool, chosen, device):
    """Mean loss over the trained tokens of the chosen manuals [B]. Rows are padded on the right: attention is causal."""
    import torch

    longest = int(pool["length"][chosen].max())
    tokens, trained = (pool[name][chosen.to(device), :longest] for name in ("tokens", "trained"))
    model.model.__dict__.pop("get_image_features", None)
    hidden = model.model(input_ids=tokens, position_ids=torch.arange(longest, device=device).expand(3, len(chosen), -1))[0]  # [B, T, width]
    trained = trained[:, 1:]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][trained]).float(), tokens[:, 1:][trained])


def share(pool, chosen):
    """What part of the chosen conversations' trained tokens this rank has: means of parts, weighed by it, add up to the mean of the whole."""
    rank, ranks = parallel.world()
    counts = pool["trained"][chosen.to(pool["trained"].device)][:, 1:].sum(1)
    return (counts[rank::ranks].sum() / counts.sum()).item() if ranks > 1 else 1.0


def tiny_vlm(args):
    import multiprocessing

    import torch
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    rank, ranks = parallel.join(args)
    args.device = parallel.local_device() if args.device == "cuda" and ranks > 1 else args.device
    if args.batch_size // 8 < ranks > 1:
        raise SystemExit(f"--batch-size {args.batch_size}: {ranks} ranks need {8 * ranks} at least, so that each has a manual")
    size = tuple(args.picture_size)
    grid = size[1] // (PATCH * MERGE), size[0] // (PATCH * MERGE)
    torch.manual_seed(args.seed)
    started = time.time()
    with multiprocessing.get_context("spawn").Pool(args.workers) as workers:
        job = functools.partial(conversation, seed=args.seed, size=size)
        made = workers.imap(job, range(args.objects + args.held_out), chunksize=16)
        held_out = [next(made) for _ in range(args.held_out)]
        tokenizer = build_tokenizer(corpus([parts for _, parts, _ in held_out] + [manual(number, args.seed) for number in range(500 * bool(args.text_weight))]), args.vocab_size)
        model = build_model(tokenizer, args.width, args.layers)
        if args.init:
            tokenizer, model = AutoTokenizer.from_pretrained(args.init), AutoModelForImageTextToText.from_pretrained(args.init, dtype=torch.float32)
        model = model.to(args.device)
        batch_attention(model)
        encoded = [(pictures, *layout(parts, tokenizer, grid)) for pictures, parts, _ in held_out]
        longest = max(len(tokens) for _, tokens, *_ in encoded) + 32
        test_pool, pool, facts = make_pool(len(encoded), size, args.device, longest), make_pool(args.objects, size, args.device, longest), [fact for *_, fact in held_out]
        for index, example in enumerate(encoded):
            put(test_pool, index, *example)
        texts = text_pool([layout(manual(number, args.seed), tokenizer, grid) for number in range(args.manuals)], args.device) if args.text_weight else None
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(tokenizer)} tokens, pictures of {grid[0] * grid[1]} positions")
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=args.weight_decay, fused=True)
        ready, log = 0, []
        for step in range(args.steps):
            # Objects are drawn while the model trains: early steps see the few that are ready, more than once.
            wanted = min(args.objects, max(args.batch_size, math.ceil(args.objects * (step + 1) / (args.draw_until * args.steps))))
            while ready < wanted:
                pictures, parts, _ = next(made)
                put(pool, ready, pictures, *layout(parts, tokenizer, grid))
                ready += 1
            rate = args.learning_rate * min(1, (step + 1) / 200) * (0.5 + 0.5 * math.cos(math.pi * step / args.steps))
            for group in optimizer.param_groups:
                group["lr"] = rate
            shift = tuple(torch.randint(-args.jitter, args.jitter + 1, (2,)).tolist())  # a picture seen often is not to be known by heart
            with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=args.device != "cpu"):
                manuals = torch.randint(args.manuals, (max(1, args.batch_size // 8),)) if texts else None  # the same on every rank
                chosen = torch.randint(ready, (args.batch_size,))
                written = text_loss(model, texts, manuals[rank::ranks], args.device) * share(texts, manuals) if texts else torch.zeros(())
                logits, targets = forward_answers(model, take(pool, chosen[rank::ranks], shift), args.device)
            loss = torch.nn.functional.cross_entropy(logits.float(), targets) * share(pool, chosen)
            (loss + args.text_weight * written.to(loss.device)).backward()
            if ranks > 1:
                parallel.sum_gradients(list(model.parameters()))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if (step + 1) % max(1, args.steps // 20) == 0:
                loss, written = (parallel.total(value.item(), args.device) for value in (loss, written))
                if rank:  # only the first looks at the model, and writes
                    continue
                report = {"step": step + 1, "loss": round(loss, 4), "text": round(written, 4), "objects": ready, "seconds": round(time.time() - started, 1)}
                log.append(report | evaluate(model, test_pool, facts, tokenizer, args.device))
                print(json.dumps(log[-1]), flush=True)
                save(model, tokenizer, args, log)
    parallel.leave()
    print(f"saved {args.out} after {time.time() - started:.0f} s")


def save(model, tokenizer, args, log):
    """An ordinary Hugging Face folder, in bfloat16 (half the bytes; whoever loads it chooses the precision again)."""
    import copy

    import torch
    from transformers import Qwen2VLImageProcessor

    out, template = Path(args.out), Path(__file__).parent / "templates" / "tiny_vlm.jinja"
    tokenizer.chat_template = template.read_text()
    model.model.__dict__.pop("get_image_features", None)  # holds a graph, which can't be copied
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    pixels = {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 4 * args.picture_size[0] * args.picture_size[1]}
    Qwen2VLImageProcessor(patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2, image_mean=[WHITE] * 3, image_std=[INK] * 3, size=pixels).save_pretrained(out)
    earlier = json.loads((Path(args.init) / "pretraining.json").read_text())["stages"] if args.init else []
    stages = [*earlier, {"command": vars(args) | {"out": out.name, "init": Path(args.init).name}, "log": log}]
    (out / "pretraining.json").write_text(json.dumps({"stages": stages}, indent=1) + "\n")


def corpus(conversations):
    """Texts the tokenizer is fitted to: the conversations, and what an agent of this task reads and writes (the words only: nothing is trained on them)."""
    from tasks.spec_o3 import QUESTIONS, TOOLS, question_messages
    from tasks.spec_o3_synthetic import WINDOWS

    texts, pauses = ["".join(text for text, _ in parts) for parts in conversations], ("Next: {}.", "I look at {}.", "Let me check {}.")
    for kind, (_, _, reasons) in QUESTIONS.items():
        texts += [message["content"] if isinstance(message["content"], str) else message["content"][1]["text"] for message in question_messages(kind, None, 3800, 9000)] * 20
        texts += [f"<answer>\\boxed{{YES}} {reasons[0]}</answer> <answer>\\boxed{{NO}} {reasons[1]}</answer> Done."] * 40
        for name, low, width in WINDOWS[kind]:
            texts += [pause.format(name) + f"\n<function=spectral_visualization_tool>\n<parameter=wavelength_range>\n[{low}, {low + width}]\n</parameter>\n<parameter=label>\n{name}\n</parameter>\n</function>\n" for pause in pauses] * 20
    return texts + [json.dumps(TOOLS)] * 40


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tiny-vlm"])
    parser.add_argument("--out", default="models/tiny-vlm", help="Hugging Face folder to write (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--objects", type=int, default=20000, help="distinct spectra to draw (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=1000, help="spectra for the accuracies that are printed; they also fit the tokenizer (default: %(default)s)")
    parser.add_argument("--manuals", type=int, default=5000, help="distinct tool manuals (default: %(default)s)")
    parser.add_argument("--draw-until", type=float, default=0.7, help="share of the steps after which every object has been drawn (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes that draw pictures (default: %(default)s)")
    parser.add_argument("--picture-size", type=lambda text: [int(side) for side in text.split("x")], default=[224, 96], help="pixels, multiples of 32 (default: 224x96)")
    parser.add_argument("--jitter", type=int, default=2, help="pixels by which a batch's pictures are moved at random (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="of the language model and of the vision tower (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=1024, help="(default: %(default)s)")
    parser.add_argument("--init", default="", help="folder of an earlier run to go on from, with a new optimizer (default: from nothing)")
    parser.add_argument("--steps", type=int, default=1500, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="picture conversations; an eighth as many manuals (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="(default: %(default)s)")
    parser.add_argument("--text-weight", type=float, default=1.0, help="of the manuals' loss beside the pictures' (default: %(default)s)")
    parser.add_argument("--weight-decay", type=float, default=0.05, help="(default: %(default)s)")
    tiny_vlm(parser.parse_args())
