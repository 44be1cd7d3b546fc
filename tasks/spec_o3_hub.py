"""The public data of Spec-o3: demonstrations (942 trajectories) and questions (10,118 spectra), at pinned revisions.

    python prepare_data.py sft   --source hub [--sft-source DIR]      # datasets/spec_o3/sft/
    python prepare_data.py bench --source hub [--bench-source DIR]    # datasets/spec_o3/rl/

What is done to them (seed 001, sections 3 and 8.2):
- ShareGPT turns become OpenAI messages: <think> -> reasoning_content, <tool_call> JSON -> tool_calls, <tool_response> -> role `tool`.
- The public text has damaged symbols. Those with one possible meaning are mended, the others become a visible [U+XXXX]; sft_cleaning.jsonl
  holds every changed turn before and after. Text without control characters is never touched.
- Splits are by source object. Development objects come from the public training part and are new to the cold start; RL may repeat
  cold-start objects; the public test part is the test. All overlaps are counted in the stats.
- `redshift: null` becomes 0.0 (no correction) and is counted.
Left out on purpose: the tool list inside the public system text (the chat template writes the live one) and pictures that no turn shows.

Anything that does not fit stops the stage with one line that names file and row, before anything is replaced.
"""

import contextlib
import functools
import json
import re
from pathlib import Path

from datafiles import check_unique, fresh_folder, need, split_sources, spread, stop, write_json
from tasks.spec_o3_data import TASKS, as_label, count_tasks, safe, sft_sources, write_picture

SFT_REPO, SFT_REVISION = "Maxwell-Jia/Spec-o3-ColdStartSFT", "7ea73e408ffe6a0b25e5f738e517a71217eb7fbc"
BENCH_REPO, BENCH_REVISION = "Maxwell-Jia/SpecVI-Bench", "0e003e00ac128c665acd702af3dc0992c4161637"
TASK_WORDS = {"cataclysmic": "cv", "carbon star": "cc", "s-type star": "ss", "m-type giant": "gm", "white dwarf": "wd"}
COLUMNS = ["prompt", "images", "reward_model", "extra_info"]
LONG = 16384  # positions: the context limit of the published runs

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # tab, LF and CR are text; a lone surrogate is not
THINK = re.compile(r"<think>(.*?)</think>", re.S)
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.S)

# Mending. Somewhere an escape such as \u03b1 lost its form: its first byte became a control character and the rest stayed as hex digits,
# all of them, some, or none. Order matters: whole codes first, then cut ones, and those only where the context leaves one reading.
GREEK = {"94": "Δ", "b1": "α", "b2": "β", "b3": "γ", "b4": "δ", "b5": "ε", "bb": "λ", "bc": "μ",
         "c0": "π", "c3": "σ", "c7": "χ", "c9": "ω"}  # fmt: skip
SIGNS = {"013": "–", "014": "—", "018": "‘", "019": "’", "01c": "“", "01d": "”", "026": "…", "082": "₂", "083": "₃",
         "192": "→", "212": "−", "248": "≈", "264": "≤", "265": "≥", "272": "≲", "273": "≳"}  # fmt: skip
LATIN = {"c5": "Å", "b0": "°", "b7": "·", "d7": "×", "f6": "ö"}
PUNCTUATION = {"\x11": "-", "\x13": "–", "\x14": "—", "\x18": "‘", "\x19": "’", "\x1c": "“", "\x1d": "”"}  # the low byte of U+20XX alone
BALMER = {"1": "α", "2": "β", "3": "γ", "\x01": "α", "\x02": "β", "\x03": "γ"}
LONE_H = "(?<=H)(?<![A-Za-z]H)"  # hydrogen, not the H of CaH
RULES = [  # (name, pattern, replacement), applied from top to bottom
    ("terminal colour", re.compile("\x1b\\[[0-9;]*m"), ""),
    ("quoted word", re.compile("\x0c([A-Za-z][A-Za-z -]*)\x0c"), "“\\1”"),
    ("quoted saw-tooth", re.compile("\x05saw\x0btooth\r"), "“saw-tooth”"),
    ("molecule C2", re.compile("\\bC(?:\x00(?:02|82|b2)|\x02082|\x02\x082|\x08[2\x02]|\x02(?![0-9a-f])|\x178|\x192)"), "C₂"),
    ("balmer, latin code", re.compile(f"{LONE_H}\x00b([123])"), lambda m: BALMER[m[1]]),
    ("greek", re.compile(f"\x03({'|'.join(GREEK)})"), lambda m: GREEK[m[1]]),
    ("angstrom name", re.compile("(?<=ngstr)(?:\x00(?:f6?)?|[\x0f\x1f]6?)(?=m)"), "ö"),
    ("plus or minus", re.compile(r"(?<=[\d ])" + "\x00b1" + r"(?=[\d ])"), "±"),
    ("latin", re.compile(f"\x00({'|'.join(LATIN)})"), lambda m: LATIN[m[1]]),
    ("sign", re.compile(f"\x02({'|'.join(SIGNS)})"), lambda m: SIGNS[m[1]]),
    (
        "balmer, cut code",
        re.compile(LONE_H + "(?:\x03b?([123])|([\x01\x02])b?(?![0-9])|(\x03)(?![b0-9]))"),
        lambda m: BALMER[m[m.lastindex]],
    ),
    ("balmer, next in a list", re.compile("(?<=H[αβγδ][/,])( ?)([\x01\x02\x03])(?![b0-9])"), lambda m: m[1] + BALMER[m[2]]),
    ("range of numbers", re.compile(r"(?<=\d)" + "(?:\x05\x17|\x0213|[\x01\x13\x14\x15])" + r"(?=\d)"), "–"),
    ("angstrom, cut code", re.compile(r"(?<=[\d$])( ?)" + "(?:[\x00\x0c\x1c]5|\x178|\x192|[\x05\x15\x16\x1e])" + r"(?![\w])"), "\\1Å"),
    ("punctuation", re.compile(f"[{''.join(PUNCTUATION)}](?!5)"), lambda m: PUNCTUATION[m[0]]),
]


# ---------------------------------------------------------------- text


def repair_text(text):
    """Mend damaged symbols by RULES; control characters and lone surrogates that are left become [U+XXXX]. Clean text comes back as is."""
    if not CONTROL.search(text):
        return text
    for _, pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return CONTROL.sub(lambda m: f"[U+{ord(m[0]):04X}]", text)


def parts_of(text, images, where):
    """Text with <image> marks -> a list of content parts; takes pictures from the iterator `images`."""
    parts = []
    for index, piece in enumerate(text.split("<image>")):
        if index:
            image = next(images, None)
            if image is None:
                stop(where, "more <image> marks than pictures")
            parts.append({"type": "image", "image": image})
        if piece:
            parts.append({"type": "text", "text": piece})
    return parts


def download(repo, revision, patterns, args):
    """The local folder of a data set at a pinned revision; what is in the Hugging Face cache is not fetched again, nor needs a connection."""
    from huggingface_hub import snapshot_download

    wanted = {"repo_type": "dataset", "revision": revision, "allow_patterns": patterns}
    try:
        return Path(snapshot_download(repo, **wanted, max_workers=args.download_workers))
    except Exception as error:  # the hub client, its HTTP library and the disk each have their own; the advice is the same
        with contextlib.suppress(Exception):  # caches of older clients hold no list of files, so the client wants a connection for it
            return Path(snapshot_download(repo, **wanted, local_files_only=True))
        reason = " ".join(str(error).split())[:200]
        advice = "set HF_ENDPOINT for a mirror, or give --sft-source / --bench-source"
        stop(repo, f"cannot be downloaded ({type(error).__name__}: {reason}); {advice}")


# ---------------------------------------------------------------- cold start


def convert_call(text, where, changes):
    """One <tool_call> body -> an OpenAI tool call. Arguments may be an object or JSON text. Damage that was hidden behind JSON escapes is
    mended here and added to `changes` as (before, after)."""
    try:
        call = json.loads(text, strict=False)
        arguments = need(call, "arguments", where)
        while isinstance(arguments, str):  # once or twice encoded
            arguments = json.loads(arguments, strict=False)
    except ValueError as error:
        stop(where, f"the tool call is not JSON ({error}): {text.strip()[:120]!r}")
    if not isinstance(arguments, dict):
        stop(where, f"the arguments of the tool call are {type(arguments).__name__}, not an object")
    for key, before in arguments.items():
        if isinstance(before, str) and (after := repair_text(before)) != before:
            changes.append((before, after))
            arguments[key] = after
    return {"type": "function", "function": {"name": need(call, "name", where), "arguments": arguments}}


def convert_turn(role, text, images, where, changes):
    """One ShareGPT turn (repaired text) -> one message."""
    if role == "system":
        return {"role": "system", "content": text.split("\n# Tools", 1)[0].strip()}
    if role == "human":
        body = text.strip()
        if not body.startswith("<tool_response>"):
            return {"role": "user", "content": parts_of(text, images, where)}
        return {
            "role": "tool",
            "content": parts_of(body.removeprefix("<tool_response>").removesuffix("</tool_response>").strip(), images, where),
        }
    if role == "gpt":
        message = {"role": "assistant", "reasoning_content": "".join(THINK.findall(text)).strip()}
        rest = THINK.sub("", text)
        message["content"] = CALL.sub("", rest).strip()
        calls = [convert_call(body, where, changes) for body in CALL.findall(rest)]
        return message | ({"tool_calls": calls} if calls else {})
    stop(where, f"a turn is from {role!r}; expected system, human or gpt")


def find_task(turns, where):
    """The question, by the second line of the first user turn."""
    first = next((turn for turn in turns if turn.get("from") == "human"), {})
    lines = str(first.get("value", "")).split("\n")
    line = lines[1] if len(lines) > 1 else ""
    found = [task for words, task in TASK_WORDS.items() if words in line.casefold()]
    if len(found) != 1:
        stop(where, f"unknown task: the second line of the question is {line[:120]!r}; expected one of {', '.join(TASK_WORDS)}")
    return found[0]


def convert_sft(numbered, raw, fresh):
    """(number, public sample) -> {"row", "cleaning", "unused"}; its pictures are copied to fresh/images."""
    number, sample = numbered
    where = f"{raw / 'train_sharegpt.json'} row {number}"
    turns = need(sample, "conversations", where)
    if not turns or not isinstance(turns, list):
        stop(where, "no turns in 'conversations'")
    label = as_label(need(sample, "ground_truth", where), where)
    task, source = find_task(turns, where), str(need(sample, "source_name", where))
    paths = []
    for name in need(sample, "images", where):
        if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
            stop(where, f"the picture {name!r} is not a path below {raw}")
        if not (raw / name).is_file():
            stop(where, f"the picture {name} is missing; if the download was cut short, run again with a connection")
        target = fresh / "images" / f"{number:05d}-{len(paths)}"
        paths.append(f"images/{write_picture((raw / name).read_bytes(), target, f'{where}, {name}').name}")
    messages, cleaning, images = [], [], iter(paths)
    for turn, value in enumerate(turns):
        place = f"{where}, turn {turn}"
        before = need(value, "value", place)
        after = repair_text(before)
        changes = [(before, after)] if after != before else []
        messages.append(convert_turn(need(value, "from", place), after, images, place, changes))
        cleaning += [{"row": number, "turn": turn, "before": old, "after": new} for old, new in changes]
    unused = len(list(images))
    for left in paths[len(paths) - unused :]:
        (fresh / left).unlink()
    row = {
        "id": f"{task}-{source}-{need(sample, 'sample_index', where)}",
        "task": task,
        "source_name": source,
        "label": label,
        "messages": messages,
    }
    return {
        "row": row | {"images": paths[: len(paths) - unused], "spectrum": None, "picture": None},
        "cleaning": cleaning,
        "unused": unused,
    }


def measure(rows, folder, args):
    """Add length, image_tokens and supervised_tokens to each row; returns their totals (needs the model's tokenizer)."""
    import numpy as np

    from protocol import ImageChunk, load_chat, sft_datum
    from tasks.spec_o3 import TOOLS

    chat = load_chat(args.base_model, args.model_revision)
    for row in rows:
        datum = sft_datum(chat, row["messages"], TOOLS, folder)
        row["length"] = len(datum.targets) + 1
        row["image_tokens"] = [len(chunk) for chunk in datum.chunks if isinstance(chunk, ImageChunk)]
        row["supervised_tokens"] = int((datum.weights > 0).sum())
    lengths, visual = np.array([row["length"] for row in rows]), sum(sum(row["image_tokens"]) for row in rows)
    return {
        "base_model": args.base_model, "model_revision": args.model_revision,
        "text_tokens": int(lengths.sum()) - visual, "visual_tokens": visual,
        "supervised_tokens": sum(row["supervised_tokens"] for row in rows),
        "length_p50_p90_p99_max": np.percentile(lengths, [50, 90, 99, 100]).tolist(), f"over_{LONG}": int((lengths > LONG).sum()),
    }  # fmt: skip


def load_sharegpt(args):
    """(raw folder, list of samples); with --smoke the first 24, and only their pictures are downloaded."""
    raw = args.sft_source or download(SFT_REPO, SFT_REVISION, "train_sharegpt.json", args)
    file = raw / "train_sharegpt.json"
    if not file.is_file():
        stop(file, "not found")
    try:
        samples = json.loads(file.read_text(encoding="utf-8"), strict=False)
    except ValueError as error:
        stop(file, f"not JSON: {error}")
    if not isinstance(samples, list) or not samples:
        stop(file, "expected a list of samples")
    if args.smoke:
        samples = samples[:24]
    if not args.sft_source:
        pictures = [name for sample in samples for name in sample.get("images", [])]
        raw = download(SFT_REPO, SFT_REVISION, pictures if args.smoke else None, args)
    return raw, samples


def prepare_sft(args):
    """sft_train.jsonl, sft_val.jsonl, sft_cleaning.jsonl, sft_stats.json and images/ in <output>/<task>/sft."""
    from protocol import write_jsonl

    raw, samples = load_sharegpt(args)
    with fresh_folder(args.output / args.task / "sft", "sft_stats.json") as fresh:
        (fresh / "images").mkdir()
        convert = functools.partial(convert_sft, raw=raw, fresh=fresh)
        results = list(spread(convert, list(enumerate(samples)), args.workers, "trajectories"))
        rows, cleaning = [result["row"] for result in results], [entry for result in results for entry in result["cleaning"]]
        check_unique((f"{raw / 'train_sharegpt.json'} row {number}", row) for number, row in enumerate(rows))
        tokens = measure(rows, fresh, args) if args.base_model else {}
        held_out = split_sources((row["source_name"] for row in rows), args.val_fraction, args.seed)
        val, train = ([row for row in rows if (row["source_name"] in held_out) == held] for held in (True, False))
        if not train:
            stop(f"--val-fraction {args.val_fraction:g}", f"holds out all {len(held_out)} objects, which leaves nothing to train on")
        unresolved = [row["id"] for row in rows if "[U+" in json.dumps(row["messages"])]
        stats = {
            "source": "hub", "dataset": SFT_REPO, "dataset_revision": None if args.sft_source else SFT_REVISION, "seed": args.seed,
            "val_fraction": args.val_fraction, "train": len(train), "val": len(val),
            "train_objects": len({row["source_name"] for row in train}),
            "val_objects": len(held_out), "train_val_source_overlap": len({row["source_name"] for row in train} & held_out),
            "tasks_train": count_tasks(train), "tasks_val": count_tasks(val),
            "assistant_turns": sum(message["role"] == "assistant" for row in rows for message in row["messages"]),
            "images": sum(len(row["images"]) for row in rows), "images_not_shown": sum(result["unused"] for result in results),
            "changed_messages": len(cleaning), "unresolved_rows": len(unresolved), "unresolved_symbol_rows": unresolved,
        } | tokens  # fmt: skip
        write_jsonl(fresh / "sft_train.jsonl", train)
        write_jsonl(fresh / "sft_val.jsonl", val)
        write_jsonl(fresh / "sft_cleaning.jsonl", cleaning)
        write_json(fresh / "sft_stats.json", stats)
    print(f"sft: {len(train)} train, {len(val)} val, {len(cleaning)} turns mended, {len(unresolved)} trajectories keep [U+XXXX] marks")


# ---------------------------------------------------------------- questions


def parquet_rows(path):
    """Yield the rows of a Parquet file as dicts, a few at a time.

    A whole row group of list<struct<bytes>> beyond 2 GB cannot become one Arrow array ("Nested data conversions not implemented for chunked
    array outputs"), so rows are read in small batches, and one by one where even that is too much.
    """
    from pyarrow import ArrowInvalid, ArrowNotImplementedError, parquet

    try:
        file = parquet.ParquetFile(path)
    except (ArrowInvalid, OSError) as error:
        stop(path, f"not a readable Parquet file: {error}")
    absent = [name for name in COLUMNS if name not in file.schema_arrow.names]
    if absent:
        stop(path, f"no column {', '.join(absent)}; it has {', '.join(file.schema_arrow.names)}")
    for group in range(file.num_row_groups):
        done = 0  # rows of this group that were handed out
        for size in (16, 1):
            try:
                for index, batch in enumerate(file.iter_batches(size, row_groups=[group], columns=COLUMNS)):
                    if index * size >= done:
                        yield from batch.to_pylist()
                        done += batch.num_rows
                break
            except ArrowNotImplementedError as error:
                if size == 1:
                    stop(path, f"row {done} of row group {group} is too large to read ({error}); rewrite the file with smaller row groups")
            except (ArrowInvalid, OSError) as error:
                stop(path, f"row group {group} is damaged: {error}")


def convert_bench(path, fresh, picture, limit):
    """All rows of one public file -> (place, row) pairs, the number of null redshifts and of mended texts; files go below `fresh`."""
    import numpy as np

    part, task = path.stem.split("_", 1)
    rows, no_redshift, mended = [], 0, 0
    for number, sample in enumerate(parquet_rows(path)):
        if number == limit:
            break
        where = f"{path} row {number}"
        name = f"{part}-{task}-{need(sample, 'extra_info.index', where)}"
        label = as_label(need(sample, "reward_model.ground_truth", where), where)
        images = []
        for index, image in enumerate(need(sample, "images", where)):
            target = fresh / "images" / f"{safe(name)}-{index}"
            images.append(f"images/{write_picture(need(image, 'bytes', where), target, where).name}")
        messages, left = [], iter(images)
        for message in need(sample, "prompt", where):
            text = need(message, "content", where)
            mended += repair_text(text) != text
            messages.append({"role": need(message, "role", where), "content": parts_of(repair_text(text), left, where)})
        data = need(sample, "extra_info.tools_kwargs.spectral_visualization_tool.create_kwargs", where)
        wavelength, flux = (np.array(need(data, key, where), float) for key in ("wavelength", "flux"))
        if wavelength.shape != flux.shape or wavelength.size < 2:
            stop(where, f"{wavelength.size} wavelengths and {flux.size} fluxes")
        no_redshift += data.get("redshift") is None
        spectrum = f"spectra/{safe(name)}.npz"
        if (fresh / spectrum).exists():
            stop(where, f"the id {name} was already used in this file")
        np.savez_compressed(fresh / spectrum, wavelength=wavelength, flux=flux, redshift=float(data.get("redshift") or 0.0))
        row = {"id": name, "task": task, "source_name": str(need(sample, "extra_info.name", where)), "label": label, "messages": messages}
        rows.append((where, row | {"images": images, "spectrum": spectrum, "picture": picture}))
    return rows, no_redshift, mended


def find_parquet(args):
    """The public files, [train_cc.parquet ...]; stops at an unknown name and, for a download, at a missing one."""
    raw = args.bench_source or download(BENCH_REPO, BENCH_REVISION, "data/*.parquet", args)
    paths = sorted((raw / "data" if (raw / "data").is_dir() else raw).glob("*.parquet"))
    wanted = {f"{part}_{task}" for part in ("train", "test") for task in TASKS}
    for path in paths:
        if path.stem not in wanted:
            stop(path, f"unknown task: expected train_T.parquet or test_T.parquet with T one of {', '.join(TASKS)}")
    absent = sorted(wanted - {path.stem for path in paths})
    if not paths or absent and not args.bench_source:  # an offline cache may hold part of a download
        stop(raw, f"no {', '.join(name + '.parquet' for name in absent)}; run again with a connection to complete the download")
    if absent:
        print(f"note: {raw} has no {', '.join(absent)}: those questions are left out")
    return paths


def prepare_bench(args):
    """bench_rl_train.jsonl, bench_dev.jsonl, bench_test.jsonl, bench_stats.json, images/ and spectra/ in <output>/<task>/rl."""
    from protocol import write_jsonl

    seen = sft_sources(args.output / args.task, required=True)
    paths = find_parquet(args)
    with fresh_folder(args.output / args.task / "rl", "bench_stats.json") as fresh:
        (fresh / "images").mkdir()
        (fresh / "spectra").mkdir()
        convert = functools.partial(convert_bench, fresh=fresh, picture=args.picture_size, limit=4 if args.smoke else None)
        results = dict(zip(paths, spread(convert, paths, args.workers, "files"), strict=True))
        check_unique(pair for rows, _, _ in results.values() for pair in rows)
        public = {
            part: [row for path, (rows, _, _) in results.items() if path.stem.startswith(part) for _, row in rows]
            for part in ("train", "test")
        }
        new = [row["source_name"] for row in public["train"] if row["source_name"] not in seen]
        held_out = split_sources(new, args.val_fraction, args.seed)
        files = {
            "bench_rl_train": [row for row in public["train"] if row["source_name"] not in held_out],
            "bench_dev": [row for row in public["train"] if row["source_name"] in held_out],
            "bench_test": public["test"],
        }
        if public["train"] and not files["bench_rl_train"]:
            stop(f"--val-fraction {args.val_fraction:g}", f"holds out all {len(held_out)} objects, which leaves nothing to train on")
        objects = {name: {row["source_name"] for row in rows} for name, rows in files.items()}
        stats = {
            "source": "hub", "dataset": BENCH_REPO, "dataset_revision": None if args.bench_source else BENCH_REVISION, "seed": args.seed,
            "val_fraction": args.val_fraction,
            "rl_train": len(files["bench_rl_train"]), "dev": len(files["bench_dev"]), "test": len(files["bench_test"]),
            "objects": {name: len(names) for name, names in objects.items()},
            "sft_dev_source_overlap": len(seen & objects["bench_dev"]), "sft_test_source_overlap": len(seen & objects["bench_test"]),
            "rl_train_dev_source_overlap": len(objects["bench_rl_train"] & objects["bench_dev"]),
            "dev_test_source_overlap": len(objects["bench_dev"] & objects["bench_test"]),
            "rl_train_test_source_overlap": len(objects["bench_rl_train"] & objects["bench_test"]),
            "sft_rl_train_source_overlap": len(seen & objects["bench_rl_train"]),
            "redshift_null": {path.stem: count for path, (_, count, _) in results.items() if count},
            "changed_messages": sum(mended for _, _, mended in results.values()),
        } | {f"tasks_{name.removeprefix('bench_')}": count_tasks(rows) for name, rows in files.items()}  # fmt: skip
        if stats["sft_dev_source_overlap"] or stats["rl_train_dev_source_overlap"]:
            raise AssertionError(f"development objects are not new: {stats}")
        for name, rows in files.items():
            write_jsonl(fresh / f"{name}.jsonl", rows)
        write_json(fresh / "bench_stats.json", stats)
    told = ", ".join(f"{stats[name]} {name}" for name in ("rl_train", "dev", "test"))
    print(f"bench: {told}; redshift null -> 0 in {sum(stats['redshift_null'].values())} rows; dev and cold start share no object")
