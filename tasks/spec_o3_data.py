"""What the sources of the spectra task share besides datafiles.py: labels, counts, the objects of the cold start, pictures."""

import io
import re
from collections import Counter
from pathlib import Path

from datafiles import stop

TASKS = ("cv", "cc", "ss", "gm", "wd")
SUFFIXES = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp"}


def sft_sources(folder, required):
    """folder: args.output / args.task. Objects that the cold start saw (train and val), as a set; None if there is no cold-start data and it is not required."""
    from protocol import read_jsonl

    files = [Path(folder) / "sft" / f"sft_{part}.jsonl" for part in ("train", "val")]
    missing = [file for file in files if not file.exists()]
    if missing and required:
        stop(
            missing[0],
            "not there: run `python prepare_data.py sft` first, so that development objects can be kept apart from the cold start",
        )
    return None if missing else {row["source_name"] for file in files for row in read_jsonl(file)}


def count_tasks(rows):
    """{task: {"YES": n, "NO": n, ...}}"""
    return {task: dict(Counter(str(row["label"]) for row in rows if row["task"] == task)) for task in sorted({row["task"] for row in rows})}


def as_label(value, where):
    label = str(value).strip().upper()
    if label not in ("YES", "NO"):
        stop(where, f"the label is {value!r}, neither YES nor NO")
    return label


def safe(name):
    """A name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", str(name))[:80]


def write_picture(data, target, where):
    """Check that `data` decodes and write it as `target` plus the suffix of its format; returns the path."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as picture:
            picture.load()  # a header may open although the pixels are cut short
            kind = picture.format
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error ... for damaged files
        stop(where, f"the picture is damaged: {error}")
    if kind not in SUFFIXES:
        stop(where, f"the picture is {kind}; expected {', '.join(SUFFIXES)}")
    path = target.with_name(f"{target.name}.{SUFFIXES[kind]}")
    path.write_bytes(data)
    return path
