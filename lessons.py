"""What models are taught before they meet the agent's tool: conversations about pictures, and manuals of tools that don't exist.

    pictures, parts, shown = conversation(number=7, seed=0, size=(336, 168))      # an object of the pre-training range, by its number alone
    parts = manual(number=7, seed=0)                                             # [(text, trained)]
    tokens, positions, trained = layout(parts, tokenizer, grid=(6, 12))          # int [T], [3, T] (M-RoPE), bool [T]

Then the batches and forward passes that the two commands of pretrain.py share. All pictures of a run have one size, and lie on the device as grey
bytes: that makes the tower's work one batch, in place of the library's loop over pictures. For models of the Qwen2-VL and Qwen3-VL kind.
"""

import functools
import json
import os
import sys
import zlib

import numpy as np

from tasks.spec_o3_synthetic import KINDS

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
MERGE = 2  # patches a side that become one position
INK = 0.25  # image_std: black ink lies 4 below white paper
FORMS = (("in one word", "{}."), ("in brackets", "{{{}}}"), ("in a box", "\\boxed{{{}}}"), ("in quotes", '"{}"'), ("with a label", "answer={}"))


# ---------------------------------------------------------------- conversations


def conversation(number, seed, size, forms=FORMS, json_calls=False):
    """Object `number` of the pre-training range: its one to three pictures, grey [n, height, width] uint8, the text around them as
    (text, trained) pairs, and what it shows: (task, label, for each window whether it decides). The question comes once and only the answer is
    trained: asked after each picture, it would leak the answer."""
    import io

    from PIL import Image

    from tasks.spec_o3 import QUESTIONS, SYSTEM, first_picture
    from tasks.spec_o3_synthetic import informative_window, make_spectrum, uninformative_window
    from tools import zoom_spectrum

    rng = np.random.default_rng([seed, *map(ord, "pretrain"), number])
    kind, positive = KINDS[number % len(KINDS)], bool(rng.integers(2))
    spectrum = make_spectrum(kind, positive, rng)
    data = spectrum["wavelength"], spectrum["flux"], spectrum["redshift"]
    name, guide, _ = QUESTIONS[kind]
    how, form = forms[rng.integers(len(forms))]
    question = f" Is this object {name}?" + (f" {guide}" if rng.random() < 0.5 else "") + f" Answer {how}."
    first, low, high = first_picture(*data, size)
    pictures, captions, deciding = [first], [f"Spectrum from {low:.0f} to {high:.0f} Å."], []
    for _ in range(rng.integers(3)):
        useful = bool(rng.random() < 0.75)
        window, label = (informative_window if useful else uninformative_window)(kind, rng)
        seen = zoom_spectrum(*data, window, label, size)
        pictures, captions, deciding = pictures + seen.images, captions + [seen.text], [*deciding, useful]
    captions[0 if rng.random() < 0.7 else -1] += question
    words, text = vocabulary(), f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" if rng.random() < 0.5 else ""
    for index, caption in enumerate(captions):
        if index:  # what stands between two pictures is somebody else's business, long or short
            said = ("\n", "Go on.", some_call(rng, words, json_calls=json_calls))[rng.choice(3, p=[0.25, 0.25, 0.5])]
            text += said if said == "\n" else f"<|im_end|>\n<|im_start|>assistant\n{said}<|im_end|>\n<|im_start|>user\n"
        text += ("" if index else "<|im_start|>user\n") + PICTURE + caption
    text += "<|im_end|>\n<|im_start|>assistant\n"
    answer = form.format("YES" if positive else "NO") + "<|im_end|>"
    gray = np.stack([np.asarray(Image.open(io.BytesIO(picture)).convert("L")) for picture in pictures])
    return gray, [(text, False), (answer, True)], (kind, positive, deciding)


def squeeze(example):
    """For the way from a worker: an uncompressed picture takes dozens of reads of a pipe, and each may wait for Python's lock while the model trains."""
    return (example[0].shape, zlib.compress(example[0].tobytes(), 1)), *example[1:]


def unsqueeze(example):
    (shape, data), *rest = example
    return np.frombuffer(bytearray(zlib.decompress(data)), np.uint8).reshape(shape), *rest


@functools.lru_cache(1)
def vocabulary():
    """The words of the corpus, for text that means nothing."""
    return sorted({word for text in corpus([]) for word in "".join(letter if letter.isalpha() else " " for letter in text).split()})


def some(rng, words, low, high):
    return [str(word) for word in rng.choice(words, rng.integers(low, high + 1))]


def some_call(rng, words, tool=None, json_calls=False):
    """A call of `tool` (its JSON schema; None: one made up on the spot) with values that fit the types, as Qwen3.5 or as Qwen2.5 writes it."""
    name = tool["name"] if tool else "_".join(some(rng, words, 2, 3))
    kinds = {key: value["type"] for key, value in tool["parameters"]["properties"].items()} if tool else {some(rng, words, 1, 1)[0]: "array"}
    call, arguments = f"<tool_call>\n<function={name}>\n", {}
    for key, kind in kinds.items():
        low = 10 * int(rng.integers(380, 880))
        said = some(rng, words, 1, 1)[0] + f" {low}" if rng.random() < 0.5 else " ".join(some(rng, words, 1, 2))
        arguments[key] = [low, low + 10 * int(rng.integers(8, 40))] if kind == "array" else said if kind == "string" else low
        call += f"<parameter={key}>\n{arguments[key]}\n</parameter>\n"
    if json_calls:
        return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
    return call + "</function>\n</tool_call>"


def manual(number, seed, json_calls=False):
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
        parts.append((some_call(rng, words, tools[rng.integers(len(tools))], json_calls) + "<|im_end|>", True))
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


# ---------------------------------------------------------------- pictures on the device


def white(model):
    """image_mean. White paper becomes 0, so that blank patches are silent; but not quite where the tower's first layer has no bias: a blank patch would
    be all zeros there, which no LayerNorm can do anything with. (Glance on a tower of three layers, 128 wide, 48 pictures a step, on a CPU, one run each:
    its loss over ten classes was still 2.30, chance, after 120 steps; with 0.9 in place of 1 it was 2.03 after 40.)"""
    return 1.0 if model.model.visual.patch_embed.proj.bias is not None else 0.9


def patches(gray, device, patch, white):
    """What the image processor would make of grey pictures [n, H, W] uint8: rows of patches [n·H/P·W/P, 3·2·P·P], 2x2 neighbours together."""
    import torch

    n, height, width = gray.shape
    x = (gray.to(device).float() / 255 - white) / INK
    x = x.view(n, height // (patch * MERGE), MERGE, patch, width // (patch * MERGE), MERGE, patch).permute(0, 1, 4, 2, 5, 3, 6)
    x = x.reshape(-1, 1, 1, patch, patch).expand(-1, 3, 2, -1, -1)  # three equal channels, two equal frames
    return x.reshape(x.shape[0], -1), torch.tensor([[1, height // patch, width // patch]] * n, device=device)


def batch_attention(model):
    """Pictures of one size attend as one batch. The library's own path splits them and loops, which is most of the time of a tiny tower."""
    import torch.nn.functional as F

    def forward(self, hidden_states, cu_seqlens, position_embeddings=None, **_):
        n, rotate = cu_seqlens.numel() - 1, sys.modules[type(self).__module__].apply_rotary_pos_emb_vision
        q, k, v = self.qkv(hidden_states).reshape(hidden_states.shape[0], 3, self.num_heads, -1).permute(1, 0, 2, 3).unbind(0)  # each [n·p, heads, d]
        q, k = rotate(q, k, *position_embeddings)
        q, k, v = (x.to(v.dtype).view(n, -1, self.num_heads, x.shape[-1]).transpose(1, 2) for x in (q, k, v))  # [n, heads, p, d]
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scaling)
        return self.proj(mixed.transpose(1, 2).reshape(hidden_states.shape[0], -1))

    for block in model.model.visual.blocks:
        block.attn.forward = functools.partial(forward, block.attn)


def see(model, gray, device):
    """The tower's output for grey pictures [n, H, W] of one size. The library works out every picture's positions in a Python loop; here it
    does so for the first picture and the others share them."""
    import torch

    visual, caught, deep = model.model.visual, {}, []
    pixels, grid = patches(gray, device, model.config.vision_config.patch_size, white(model))
    n, p = len(gray), len(pixels) // len(gray)
    embed = lambda rows: torch.nn.functional.linear(rows, visual.patch_embed.proj.weight.flatten(1), visual.patch_embed.proj.bias)  # the convolution, as one product
    hook = visual.blocks[0].register_forward_pre_hook(lambda _, args, kwargs: caught.update(kwargs, first=args[0]), with_kwargs=True)
    output = type(model.model).get_image_features(model.model, pixels[:p], grid[:1], return_dict=True)
    hook.remove()
    x = embed(pixels) + (caught["first"] - embed(pixels[:p])).repeat(n, 1)  # [n·p, width]; what was added to the patches: learnt positions, if it has them
    rope = tuple(part.repeat(n, 1) for part in caught["position_embeddings"])
    bounds = torch.arange(0, n * p + 1, p, device=device, dtype=torch.int32)
    for index, block in enumerate(visual.blocks):
        x = block(x, cu_seqlens=bounds, position_embeddings=rope)
        if index in getattr(visual, "deepstack_visual_indexes", ()):
            deep.append(visual.deepstack_merger_list[len(deep)](x))
    if deep and not torch.is_tensor(output.deepstack_features[0]):  # newer releases keep them cut by picture, like the main output
        deep = [layer.split(p // MERGE**2) for layer in deep]
    output.pooler_output, output.deepstack_features = visual.merger(x).split(p // MERGE**2), deep
    return output


def forward_answers(model, batch, device):
    """Logits [answers, vocab] at the positions that predict trained tokens, and those tokens [answers]."""
    features = see(model, batch["pictures"], device)
    model.model.get_image_features = lambda *_, **__: features
    # Rows are padded on the right and attention is causal, so a mask says nothing new, and costs the fast kernels. Qwen3-VL, without one, takes
    # positions that stand still at a picture for the beginning of another sequence.
    mask = None if model.config.model_type == "qwen2_vl" else batch["mask"]
    hidden = model.model(input_ids=batch["tokens"], attention_mask=mask, position_ids=batch["positions"], pixel_values=batch["pictures"][:1].float())[0]
    trained = batch["trained"][:, 1:]
    return model.lm_head(hidden[:, :-1][trained]), batch["tokens"][:, 1:][trained]  # hidden: [B, T, width]


class Glance:
    """A small head that names task and label of one picture, without the language model. It teaches a tower from nothing to see, thousands of pictures
    a second: the one answer token of a conversation, through layers that have never met a picture, tells it next to nothing at first. Ten classes and
    not two, since telling a hot star from a cool one is learnt at once, and opens the way to the lines. Thrown away afterwards."""

    def __init__(self, width, positions, device):
        import torch

        normal = lambda *shape, scale: (torch.randn(*shape, device=device) * scale).requires_grad_(True)
        self.place, self.query = normal(positions, width, scale=0.02), normal(4, width, scale=0.1)
        self.hidden, self.out = normal(4 * width, 256, scale=(4 * width) ** -0.5), torch.zeros(256, 2 * len(KINDS), device=device, requires_grad=True)
        self.parameters = [self.place, self.query, self.hidden, self.out]

    def __call__(self, features):
        """Logits [n, 2 tasks] of n pictures' features, [positions, width] each; class 2 task + label."""
        import torch
        import torch.nn.functional as F

        x = torch.stack(list(features)).float()  # [n, positions, width]
        x = F.rms_norm(x, x.shape[-1:])
        weights = ((x + self.place) @ self.query.T * (4 * x.shape[-1] ** -0.5)).softmax(1)  # [n, positions, 4]: where each query looks
        seen = torch.einsum("npq,npw->nqw", weights, x).flatten(1)  # [n, 4 width]
        return F.gelu(seen @ self.hidden) @ self.out


def make_as_loud_as_words(model, pictures, device):
    """Scales the tower's last layer: the head of `look` took any loudness; a language model expects that of its own embeddings, or twice that."""
    import torch

    with torch.no_grad():
        features = torch.cat(list(see(model, pictures, device).pooler_output))
        for weight in model.model.visual.merger.mlp[-1].parameters():
            weight *= 2 * model.get_input_embeddings().weight.float().std() / features.float().std()


def save_tower(model, path):
    """What `look` made, apart from any language model of this width: --tower reads it."""
    from safetensors.torch import save_file

    save_file({name: value.detach().float().cpu().contiguous() for name, value in model.model.visual.state_dict().items()}, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def load_tower(model, path):
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        model.model.visual.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise SystemExit(f"--tower {path}: can't be read ({error})") from error
    except RuntimeError as error:
        raise SystemExit(f"--tower {path}: of another shape than --layers, --width and the language model ask for") from error


def pictures_that_decide(facts, pool, chosen):
    """Numbers of conversation and picture [n], and task and label of each [n]: the full pictures and the windows that decide, of those chosen."""
    import torch

    rows, slots, kinds, labels = [], [], [], []
    for index in chosen.tolist():
        kind, positive, windows = facts[index]
        for slot in [0, *(1 + place for place, useful in enumerate(windows) if useful)]:
            rows.append(index), slots.append(slot), kinds.append(KINDS.index(kind)), labels.append(int(positive))
    device = pool["pictures"].device
    return tuple(torch.tensor(values, device=device) for values in (rows, slots, kinds, labels))


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
            kind, _, windows = facts[index]
            shown = "full" if not windows else ("wrong window", "1 window", "2 windows")[sum(windows)]
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
