"""Stage 0: models that see. `tiny-vlm` makes the one of two million parameters that the CPU run starts from, from nothing; `graft-vlm` gives
eyes to a language model that has none.

    python pretrain.py tiny-vlm --objects 300 --held-out 100 --manuals 200 --steps 20 --out models/tiny-smoke      # two minutes on two cores
    python pretrain.py graft-vlm --language Qwen/Qwen2.5-Coder-0.5B-Instruct --device cuda --workers 16 --out models/graft-vlm      # minutes on one GPU
The shipped models/tiny-vlm: three stages on one H200, 16 cores (7, 4, 3.5 minutes; pretraining.json), the first before --text-weight was there:
    gpu="--device cuda --workers 16 --batch-size 512 --held-out 2000"
    python pretrain.py tiny-vlm $gpu --objects 100000 --steps 2800 --text-weight 0 --out models/tiny-1
    python pretrain.py tiny-vlm $gpu --init models/tiny-1 --seed 1 --objects 25000 --manuals 20000 --steps 1000 --learning-rate 1e-3 --text-weight 0.3 --out models/tiny-2
    python pretrain.py tiny-vlm $gpu --init models/tiny-2 --seed 2 --objects 12000 --manuals 15000 --steps 1000 --learning-rate 1.5e-3 --out models/tiny-vlm
Several GPUs: torchrun --nproc-per-node 2 pretrain.py tiny-vlm ..., the same update; each rank draws all pictures itself, with its own --workers.
Side by side from the start (one command, --steps 2800) it writes better and sees worse: a window that decides is read right in 80 % instead of 91 %.

The result is an ordinary Hugging Face folder (tiny: Qwen3-VL architecture with its own small tokenizer; graft: Qwen2-VL with the language
model's tokenizer; both with chat template and image processor): from SFT on nothing about it is special, and a folder of real weights takes its
place by --base-model.

What it learns, side by side (lessons.py):
- Pictures: a conversation shows the full spectrum and up to two windows, with the chatter of some other agent in between, and asks one
  YES/NO question; only the answer is trained, in plain words or in brackets as the question asks. The objects come from a range that no
  later stage draws from. Trained on whole trajectories alone, a model this small stays at chance on noisy spectra, because one answer
  token in a hundred carries all there is to learn about seeing.
- Manuals: real models have read the web before they meet a tool; this one reads manuals of tools that don't exist (random names,
  parameters and values) followed by calls of them.
It never sees the agent's own tool, nor a thought, so the format of the agent is news to it: its format rate there is about zero.

In `graft-vlm` the language model is frozen: only the tower, its merger and the rows of the two tags of a call are trained. Trained together, the
language model fits the text at once and a random tower gets no gradient worth having. Even so a tower from nothing stayed at chance on these noisy
spectra for 800 steps of 32 conversations (one H200, seed 0), so it first learns to see by itself (--look-steps).
"""

import argparse
import functools
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import lessons
import runs
from backends import parallel
from checkpoints import check_model_name
from lessons import INK, MERGE

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")  # one token each, but ordinary text
PATCH, GRAFT_PATCH = 16, 14  # pixels
VISION_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
TAGS = ("<tool_call>", "</tool_call>")


# ---------------------------------------------------------------- tiny-vlm: tokenizer and model


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


# ---------------------------------------------------------------- graft-vlm: a language model gets eyes


def graft(language, depth, width):
    """Tokenizer and model (float32): Qwen2-VL with the weights of a Qwen2 language model (hub id or folder) and a vision tower from nothing."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2VLConfig, Qwen2VLForConditionalGeneration

    check_model_name(language)
    try:
        config, tokenizer = AutoConfig.from_pretrained(language), AutoTokenizer.from_pretrained(language)
        donor = AutoModelForCausalLM.from_pretrained(language, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--language {language}: can't be loaded ({str(error).splitlines()[0]})") from error
    token, known = tokenizer.convert_tokens_to_ids, tokenizer.get_vocab()
    if config.model_type != "qwen2" or not config.tie_word_embeddings:
        raise SystemExit(f"--language {language}: only models of the Qwen2 kind with a tied head fit (Qwen2, Qwen2.5, Qwen2.5-Coder up to 3B)")
    if missing := [name for name in (*VISION_TOKENS, *TAGS) if name not in known]:
        raise SystemExit(f"--language {language}: its tokenizer lacks {', '.join(missing)}")
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
            "max_position_embeddings", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")  # fmt: skip
    dim = config.hidden_size // config.num_attention_heads  # of a head: an eighth turns with time, the rest with row and column
    rope = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"], "mrope_section": [dim // 8, 3 * dim // 16, 3 * dim // 16]}
    vision = {"depth": depth, "embed_dim": width, "num_heads": width // 64, "mlp_ratio": 4, "patch_size": GRAFT_PATCH, "spatial_merge_size": MERGE,
              "temporal_patch_size": 2, "in_channels": 3, "hidden_size": config.hidden_size}  # fmt: skip
    ids = dict(zip(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"), map(token, VISION_TOKENS)))
    text = {name: getattr(config, name) for name in kept} | {"rope_parameters": rope}
    model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids))
    model.model.language_model.load_state_dict(donor.model.state_dict(), strict=True)
    model.tie_weights()
    with torch.no_grad():
        for name, weight in model.model.visual.named_parameters():
            if weight.ndim == 1:
                weight.fill_(float(name.endswith("weight")))  # norms; biases are 0
            else:
                scale = 0.3 if "patch_embed" in name else 0.5 if name.endswith(("proj.weight", "fc2.weight", "mlp.2.weight")) else 1.0
                weight.normal_(0, scale / math.sqrt(weight[0].numel()))
        # Small Qwen2.5 checkpoints never met the tags of a call: their rows equal those of thousands of unused tokens, from which a tied head
        # can't tell them, so they can't be sampled. The mean of a tag's parts, and noise, is a row of its own.
        table = model.get_input_embeddings().weight
        for tag in TAGS:
            parts = [part for piece in (tag[: tag.index("t")], "tool", "_call", ">") for part in tokenizer.encode(piece, add_special_tokens=False)]
            table[token(tag)] = table[parts].mean(0) + torch.randn(table.shape[1]) * 0.4 / math.sqrt(table.shape[1])
    return tokenizer, model


def graft_groups(model, tokenizer, args):
    """What is trained, for the optimizer: the tower in float32, and two rows of the embedding. All else is frozen, on a GPU in bfloat16."""
    import torch

    model.requires_grad_(False).to(args.device, torch.bfloat16 if args.device.startswith("cuda") else torch.float32)
    model.tie_weights()
    tower, table = model.model.visual.float().requires_grad_(True), model.get_input_embeddings().weight.requires_grad_(True)
    rows = torch.zeros(len(table), 1, dtype=table.dtype, device=table.device)
    rows[[tokenizer.convert_tokens_to_ids(tag) for tag in TAGS]] = 1
    table.register_hook(lambda gradient: gradient * rows)
    return [{"params": list(tower.parameters()), "weight_decay": args.weight_decay}, {"params": [table], "weight_decay": 0.0}]


# ---------------------------------------------------------------- training


@functools.lru_cache(1)
def read_tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def encoded(number, seed, size, grid, tokenizer):
    """Object `number` for graft-vlm: (pictures, tokens, positions, trained, what it shows). Only YES or NO is trained: a frozen language model has
    nothing to learn about the words around it. tokenizer: its folder, since each worker reads its own."""
    tokenizer = read_tokenizer(tokenizer)
    pictures, parts, shown = lessons.conversation(number, seed, size, lessons.FORMS[:-1], json_calls=True)  # "answer=YES" would be another token
    tokens, positions, trained = lessons.layout(parts, tokenizer, grid)
    answers = [tokenizer.encode(word, add_special_tokens=False)[0] for word in ("YES", "NO")]
    return lessons.squeeze((pictures, tokens, positions, trained & np.isin(tokens, answers), shown))


def drawn(number, seed, size):
    """Object `number` for tiny-vlm, whose tokenizer isn't there yet."""
    return lessons.squeeze(lessons.conversation(number, seed, size))


def tiny_vlm(args, workers):
    import torch
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    size = tuple(args.picture_size)
    grid = size[1] // (PATCH * MERGE), size[0] // (PATCH * MERGE)
    made = map(lessons.unsqueeze, workers.imap(functools.partial(drawn, seed=args.seed, size=size), range(args.objects + args.held_out), chunksize=16))
    held_out = [next(made) for _ in range(args.held_out)]
    texts = [lessons.manual(number, args.seed) for number in range(args.manuals * bool(args.text_weight))]
    if args.init:
        tokenizer, model = AutoTokenizer.from_pretrained(args.init), AutoModelForImageTextToText.from_pretrained(args.init, dtype=torch.float32)
    else:
        tokenizer = build_tokenizer(lessons.corpus([parts for _, parts, _ in held_out] + texts[:500]), args.vocab_size)
        model = build_model(tokenizer, args.width, args.layers)
    model = model.to(args.device)
    encode = lambda example: (example[0], *lessons.layout(example[1], tokenizer, grid), example[2])
    groups = [{"params": list(model.parameters()), "weight_decay": args.weight_decay}]
    train(args, tokenizer, model, groups, [encode(example) for example in held_out], map(encode, made), texts, "tiny_vlm")


def graft_vlm(args, workers):
    tokenizer, model = graft(args.language, args.layers, args.width)
    tokenizer.save_pretrained(args.out)  # the workers read it there; every rank writes the same
    size = tuple(args.picture_size)
    grid = size[1] // (GRAFT_PATCH * MERGE), size[0] // (GRAFT_PATCH * MERGE)
    job = functools.partial(encoded, seed=args.seed, size=size, grid=grid, tokenizer=args.out)
    made = map(lessons.unsqueeze, workers.imap(job, range(args.objects + args.held_out), chunksize=16))
    held_out = [next(made) for _ in range(args.held_out)]
    texts = [lessons.manual(number, args.seed, json_calls=True) for number in range(args.manuals * bool(args.text_weight))]
    if args.tower:
        lessons.load_tower(model, args.tower)
    train(args, tokenizer, model, graft_groups(model, tokenizer, args), held_out, made, texts, "qwen_json")


def share(pool, chosen):
    """What part of the chosen conversations' trained tokens this rank has: means of parts, weighed by it, add up to the mean of the whole."""
    rank, ranks = parallel.world()
    counts = pool["trained"][chosen.to(pool["trained"].device)][:, 1:].sum(1)
    return (counts[rank::ranks].sum() / counts.sum()).item() if ranks > 1 else 1.0


def fill(pool, facts, made, wanted):
    """Draws on until `wanted` objects are in the pool; facts: what each shows."""
    while len(facts) < wanted:
        *example, shown = next(made)
        lessons.put(pool, len(facts), *example)
        facts.append(shown)


def step_on(args, optimizer, loss, step, steps):
    """One update: linear warm-up, then cosine. Returns whether the gradients were finite; if not, nothing changes."""
    import torch

    trained = [p for group in optimizer.param_groups for p in group["params"]]
    warm = min(200, max(1, steps // 10))
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * min(1, (step + 1) / warm) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
    loss.backward()
    if parallel.world()[1] > 1:
        parallel.sum_gradients(trained)
    finite = bool(torch.nn.utils.clip_grad_norm_(trained, 1.0).isfinite())
    if finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return finite


def jitter(args):
    """(rows, columns) by which a batch's pictures are moved: a picture seen often is not to be known by heart."""
    import torch

    return tuple(torch.randint(-args.jitter, args.jitter + 1, (2,)).tolist())


def look(args, model, parameters, pool, facts, made, test_pool, test_facts):
    """--look-steps: the tower alone, on pictures that decide (lessons.Glance). Returns the log."""
    import torch

    (rank, ranks), started, log = parallel.world(), time.time(), []
    side = MERGE * model.config.vision_config.patch_size
    head = lessons.Glance(model.config.get_text_config().hidden_size, args.picture_size[0] * args.picture_size[1] // side**2, args.device)
    optimizer = torch.optim.AdamW([*parameters, *head.parameters], lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=args.weight_decay, fused=True)

    def answers(pool, facts, chosen, shift=(0, 0)):
        rows, slots, kinds, labels = lessons.pictures_that_decide(facts, pool, chosen)
        with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=args.device != "cpu"):
            features = lessons.see(model, pool["pictures"][rows, slots].roll(shift, (1, 2)), args.device).pooler_output
        return head(features), kinds, labels, slots

    for step in range(args.look_steps):
        fill(pool, facts, made, min(args.objects, max(2 * args.batch_size, math.ceil(args.objects * (step + 1) / args.look_steps))))
        logits, kinds, labels, _ = answers(pool, facts, torch.randint(len(facts), (2 * args.batch_size,))[rank::ranks], jitter(args))
        loss = torch.nn.functional.cross_entropy(logits, 2 * kinds + labels) / ranks
        step_on(args, optimizer, loss, step, args.look_steps)
        if (step + 1) % max(1, args.look_steps // 10) == 0:
            with torch.no_grad():
                parts = [answers(test_pool, test_facts, chosen) for chosen in torch.arange(len(test_facts)).split(256)]
            pairs = [logits.view(-1, len(lessons.KINDS), 2)[range(len(kinds)), kinds] for logits, kinds, _, _ in parts]  # NO and YES of its own task
            right = torch.cat([pair.argmax(-1) == labels for pair, (_, _, labels, _) in zip(pairs, parts)])
            slots = torch.cat([slots for *_, slots in parts])
            found = {name: round(right[mask].float().mean().item(), 3) for name, mask in (("full", slots == 0), ("window", slots > 0))}
            log.append({"look": step + 1, "loss": round(loss.item() * ranks, 4), "objects": len(facts), "seconds": round(time.time() - started, 1)} | found)
            print(json.dumps(log[-1]), flush=True)
    return log


def train(args, tokenizer, model, groups, held_out, made, texts, template):
    """held_out: a list, made: an iterator of (pictures, tokens, positions, trained, what it shows); texts: manuals."""
    import torch

    from backends.gpu import wrap_layers

    (rank, ranks), started, size = parallel.world(), time.time(), tuple(args.picture_size)
    lessons.batch_attention(model)
    if args.compile:
        wrap_layers(SimpleNamespace(inner=model.model), compile=True, recompute=False)
    longest = max(len(tokens) for _, tokens, *_ in held_out) * 5 // 4 + 64  # room for those still to be drawn
    (test_pool, test_facts), (pool, facts) = ((lessons.make_pool(count, size, args.device, longest), []) for count in (len(held_out), args.objects))
    fill(test_pool, test_facts, iter(held_out), len(held_out))
    texts = lessons.text_pool([lessons.layout(parts, tokenizer, (1, 1)) for parts in texts], args.device) if texts else None
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(tokenizer)} tokens", flush=True)
    log = look(args, model, groups[0]["params"], pool, facts, made, test_pool, test_facts) if args.look_steps else []
    if args.look_steps and rank == 0:
        lessons.save_tower(model, Path(args.out) / "tower.safetensors")
    if args.look_steps or args.tower:
        lessons.make_as_loud_as_words(model, test_pool["pictures"][:16, 0], args.device)
    optimizer, skipped = torch.optim.AdamW(groups, lr=args.learning_rate, betas=(0.9, 0.98), fused=True), 0
    for step in range(args.steps):
        # Objects are drawn while the model trains: early steps see the few that are ready, more than once.
        fill(pool, facts, made, min(args.objects, max(args.batch_size, math.ceil(args.objects * (step + 1) / (args.draw_until * args.steps)))))
        shift = jitter(args)
        with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=args.device != "cpu"):
            manuals = torch.randint(args.manuals, (max(1, args.batch_size // 8),)) if texts else None  # the same on every rank
            chosen = torch.randint(len(facts), (args.batch_size,))
            written = lessons.text_loss(model, texts, manuals[rank::ranks], args.device) * share(texts, manuals) if texts else torch.zeros(())
            logits, targets = lessons.forward_answers(model, lessons.take(pool, chosen[rank::ranks], shift), args.device)
        loss = torch.nn.functional.cross_entropy(logits.float(), targets) * share(pool, chosen)
        skipped += not step_on(args, optimizer, loss + args.text_weight * written.to(loss.device), step, args.steps)
        if (step + 1) % max(1, args.steps // 20) == 0:
            loss, written = (parallel.total(value.item(), args.device) for value in (loss, written))
            if rank:  # only the first looks at the model, and writes
                continue
            report = {"step": step + 1, "loss": round(loss, 4), "text": round(written, 4), "objects": len(facts), "skipped": skipped, "seconds": round(time.time() - started, 1)}
            log.append(report | lessons.evaluate(model, test_pool, test_facts, tokenizer, args.device))
            print(json.dumps(log[-1]), flush=True)
    if rank == 0:
        save(model, tokenizer, args, log, template)
    print(f"saved {args.out} after {time.time() - started:.0f} s")


def save(model, tokenizer, args, log, template):
    """An ordinary Hugging Face folder, in bfloat16 (half the bytes; whoever loads it chooses the precision again)."""
    import torch
    from transformers import Qwen2VLImageProcessor

    out, patch = Path(args.out), model.config.vision_config.patch_size
    tokenizer.chat_template = (Path(__file__).parent / "templates" / f"{template}.jinja").read_text()
    model.model.__dict__.pop("get_image_features", None)  # holds a graph, which can't be copied
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    pixels = {"shortest_edge": (patch * MERGE) ** 2, "longest_edge": 4 * args.picture_size[0] * args.picture_size[1]}
    Qwen2VLImageProcessor(patch_size=patch, merge_size=MERGE, temporal_patch_size=2, image_mean=[lessons.white(model)] * 3, image_std=[INK] * 3, size=pixels).save_pretrained(out)
    earlier = json.loads((Path(args.init) / "pretraining.json").read_text())["stages"] if args.init else []
    names = {name: Path(value).name for name, value in vars(args).items() if name in ("out", "init", "language", "tower")}
    (out / "pretraining.json").write_text(json.dumps({"stages": [*earlier, {"command": vars(args) | names, "log": log}]}, indent=1) + "\n")


DEFAULTS = {  # what a flag is when it isn't given, by command
    "tiny-vlm": {"out": "models/tiny-vlm", "objects": 20000, "manuals": 5000, "steps": 1500, "batch_size": 64, "learning_rate": 2e-3, "weight_decay": 0.05,
                 "picture_size": [224, 96], "width": 128, "layers": 4, "text_weight": 1.0, "look_steps": 0},
    "graft-vlm": {"out": "models/graft-vlm", "objects": 60000, "manuals": 5000, "steps": 1000, "batch_size": 64, "learning_rate": 1e-3, "weight_decay": 0.01,
                  "picture_size": [336, 168], "width": 384, "layers": 6, "text_weight": 0.3, "look_steps": 3000},
}  # fmt: skip


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    of = lambda name: " / ".join(str(values[name]) for values in DEFAULTS.values())
    parser.add_argument("what", choices=[*DEFAULTS])
    parser.add_argument("--language", help="graft-vlm: hub id or folder of the Qwen2 kind, with a tied head and Qwen2.5's tokenizer (default: Qwen/Qwen2.5-Coder-0.5B-Instruct)")
    parser.add_argument("--out", help=f"Hugging Face folder to write (default: {of('out')})")
    parser.add_argument("--device", default="cpu", help="(default: %(default)s)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the layers of the language model (meant for a GPU; not timed)")
    parser.add_argument("--seed", type=runs.number(int, 0), default=0, help="(default: %(default)s)")
    parser.add_argument("--objects", type=runs.number(int, 1), help=f"distinct spectra to draw (default: {of('objects')})")
    parser.add_argument("--held-out", type=runs.number(int, 1), default=1000, help="spectra for the accuracies that are printed; they also fit the tokenizer (default: %(default)s)")
    parser.add_argument("--manuals", type=runs.number(int, 0), help=f"distinct tool manuals (default: {of('manuals')})")
    parser.add_argument("--draw-until", type=runs.number(float, 0), default=0.7, help="share of the steps after which every object has been drawn (default: %(default)s)")
    parser.add_argument("--workers", type=runs.number(int, 1), default=2, help="processes that draw pictures (default: %(default)s)")
    parser.add_argument("--picture-size", type=lambda text: [int(side) for side in text.split("x")], help="pixels, multiples of 32 / 28 (default: 224x96 / 336x168)")
    parser.add_argument("--jitter", type=runs.number(int, 0), default=2, help="pixels by which a batch's pictures are moved at random (default: %(default)s)")
    parser.add_argument("--width", type=runs.number(int, 1), help=f"of the tiny model / of the tower (default: {of('width')})")
    parser.add_argument("--layers", type=runs.number(int, 1), help=f"of the tiny language model and its tower / of the tower (default: {of('layers')})")
    parser.add_argument("--vocab-size", type=runs.number(int, 1), default=1024, help="tiny-vlm (default: %(default)s)")
    parser.add_argument("--init", default="", help="tiny-vlm: folder of an earlier run to go on from, with a new optimizer (default: from nothing)")
    parser.add_argument("--steps", type=runs.number(int, 0), help=f"of conversations (default: {of('steps')})")
    parser.add_argument("--look-steps", type=runs.number(int, 0), help=f"first, on pictures of twice the batch size, without the language model (default: {of('look_steps')})")
    parser.add_argument("--tower", default="", help="graft-vlm: OUT/tower.safetensors of an earlier run, which its --look-steps wrote; goes on from there, with no --look-steps unless given")
    parser.add_argument("--batch-size", type=runs.number(int, 1), help="picture conversations; an eighth as many manuals (default: 64)")
    parser.add_argument("--learning-rate", type=runs.number(float, 0), help=f"(default: {of('learning_rate')})")
    parser.add_argument("--text-weight", type=runs.number(float, 0), help=f"of the manuals' loss beside the pictures' (default: {of('text_weight')})")
    parser.add_argument("--weight-decay", type=runs.number(float, 0), help=f"(default: {of('weight_decay')})")
    args = parser.parse_args(argv)
    if args.language and args.what != "graft-vlm":
        parser.error("--language belongs to graft-vlm")
    args.language = args.language or "Qwen/Qwen2.5-Coder-0.5B-Instruct"
    if args.tower and args.what != "graft-vlm":
        parser.error("--tower belongs to graft-vlm")
    if args.tower and args.look_steps is None:
        args.look_steps = 0
    for name, value in DEFAULTS[args.what].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    side = MERGE * (PATCH if args.what == "tiny-vlm" else GRAFT_PATCH)
    if len(args.picture_size) != 2 or any(pixels < side or pixels % side for pixels in args.picture_size):
        parser.error(f"--picture-size {'x'.join(map(str, args.picture_size))}: WIDTHxHEIGHT, multiples of {side} pixels for {args.what}")
    if args.width % 64:  # attention heads of 32 in pairs, or of 64
        parser.error(f"--width {args.width}: a multiple of 64")
    if args.init and args.what != "tiny-vlm":
        parser.error("--init belongs to tiny-vlm")
    if args.look_steps and args.what != "graft-vlm":
        parser.error("--look-steps belongs to graft-vlm: the tower of tiny-vlm learns to see in conversations")
    return args


def main(argv=None):
    import multiprocessing

    args = parse_args(argv)
    runs.make_folder(args.out, "--out")
    _, ranks = parallel.join(args)
    args.device = parallel.local_device() if args.device == "cuda" and ranks > 1 else args.device
    if args.batch_size // 8 < ranks > 1:
        raise SystemExit(f"--batch-size {args.batch_size}: {ranks} ranks need {8 * ranks} at least, so that each has a manual")
    import torch

    from backends.model import check_device

    check_device(args.device)
    torch.manual_seed(args.seed)
    with multiprocessing.get_context("spawn").Pool(args.workers) as workers:
        {"tiny-vlm": tiny_vlm, "graft-vlm": graft_vlm}[args.what](args, workers)
    parallel.leave()


if __name__ == "__main__":
    main()
