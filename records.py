"""The plain records that all parts pass around, and how they lie on disk (JSONL, with pictures as files beside it).

A prompt, and a whole training sequence, is a list of `TextChunk` (token ids) and `ImageChunk` (an encoded picture and the number of
positions that it takes in the model's sequence). Scripts import these names from
`protocol` and `rollout`, which pass them on.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from actions import Action, ToolCall


@dataclass(frozen=True)
class TextChunk:
    """Token ids; len(chunk) is the number of positions."""

    tokens: tuple[int, ...]

    def __len__(self):
        return len(self.tokens)


@dataclass(frozen=True)
class ImageChunk:
    """An encoded picture that takes `positions` positions; the vision start/end tokens around it are ordinary text."""

    data: bytes
    positions: int
    format: str = "png"

    def __len__(self):
        return self.positions


@dataclass
class Datum:
    """One training sequence of T+1 tokens: `chunks` are the first T positions, the arrays are already shifted by one."""

    chunks: list
    targets: np.ndarray  # int64 [T], the next token; 0 where the weight is 0
    weights: np.ndarray  # float32 [T], 0 on context
    logprobs: np.ndarray | None = None  # float32 [T], the sampler's (RL), 0 on context
    advantages: np.ndarray | None = None  # float32 [T] (RL), 0 on context


@dataclass
class SamplingParams:
    """What a sampler is asked for; sample i of a request must depend on `seed` and on i."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()


@dataclass
class Sample:
    """`stop_reason`: "stop" (a stop token, included), "stop_string" (included) or "length"."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: str = "stop"


@dataclass
class Observation:
    """What the environment gives back: pictures (PNG bytes) first, then text. `role` "user": it answers as the user, not as a tool."""

    text: str = ""
    images: list = field(default_factory=list)
    ok: bool = True
    done: bool = False
    role: str = "tool"


@dataclass
class Turn:
    tokens: list  # every id that the model sampled in this turn, never anything else
    logprobs: list  # one per id
    text: str = ""  # what a reader sees: sampled text with inline results, without the stop token
    stop_reason: str = ""
    action: Action | None = None
    observation: Observation | None = None  # None: nothing was delivered
    image_files: list = field(default_factory=list)  # of the observation's pictures, relative to the JSONL
    seconds: dict = field(default_factory=dict)  # {"sample": s, "tool": s}
    inline: list = field(default_factory=list)  # texts that were injected into this turn


@dataclass
class Trajectory:
    id: str
    task: str
    sample_index: int = 0
    seed: int = 0
    sampler_version: int = 0
    finish_reason: str = ""
    turns: list = field(default_factory=list)
    prediction: str | None = None
    format_ok: bool = False
    chunks: list = field(default_factory=list)  # every token and picture, as the model saw them
    sampled: list = field(default_factory=list)  # bool per position
    logprobs: list = field(default_factory=list)  # float per position, 0 on context
    reward: float | None = None
    parts: dict = field(default_factory=dict)
    seconds: dict = field(default_factory=dict)  # {"total": s, "sample": s, "tool": s}
    error: str = ""  # "code: detail"; codes: start, prompt, sampler, bad_sample, tool, reward


def outline(t: Trajectory) -> Trajectory:
    """What statistics need of a trajectory: without pictures, log-probabilities and what only training reads."""
    turns = [replace(turn, tokens=[], logprobs=[], observation=turn.observation and replace(turn.observation, images=[])) for turn in t.turns]
    return replace(t, turns=turns, chunks=[], logprobs=[])


def chunks_length(chunks: Iterable) -> int:
    """Number of positions."""
    return sum(len(chunk) for chunk in chunks)


def merge_chunks(chunks: Iterable) -> list:
    """The same sequence with neighbouring text chunks joined."""
    out: list = []
    for chunk in chunks:
        if isinstance(chunk, TextChunk) and out and isinstance(out[-1], TextChunk):
            out[-1] = TextChunk(out[-1].tokens + chunk.tokens)
        elif len(chunk):
            out.append(chunk)
    return out


def cut_chunks(chunks: Iterable, length: int) -> list:
    """The longest prefix of at most `length` positions that holds every picture whole."""
    out: list = []
    for chunk in chunks:
        if len(chunk) > length:
            return out + ([TextChunk(chunk.tokens[:length])] if isinstance(chunk, TextChunk) and length > 0 else [])
        out.append(chunk)
        length -= len(chunk)
    return out


def flat_tokens(chunks: Iterable, image: int = 0) -> np.ndarray:
    """int64 [positions]: token ids, `image` on pictures."""
    return np.array([t for c in chunks for t in (c.tokens if isinstance(c, TextChunk) else [image] * len(c))], dtype=np.int64)


def read_jsonl(path, partial: bool = False) -> list:
    """Rows of a JSONL file. Only "\\n" ends a record: U+2028, U+0085 and the like are text. `partial`: forgive an unfinished last line."""
    try:
        lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise SystemExit(f"{path}: cannot be read ({error.strerror})") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                rows.append(json.loads(line.decode("utf-8")))
        except ValueError as error:
            if partial and number == len(lines):
                break
            raise SystemExit(f"{path}, line {number}: not valid JSON ({error})") from error
    return rows


def json_line(row) -> bytes:
    """One record as a line: readable UTF-8, with escapes only for what other readers take for a line end and for lone surrogates."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    return re.sub("[\u0085\u2028\u2029\ud800-\udfff]", lambda c: f"\\u{ord(c[0]):04x}", text).encode("utf-8") + b"\n"


def set_values(rows: list, pairs, more=()) -> list:
    """The rows with values put into each: pairs are the KEY=VALUE of --set, a value is JSON or else text.

    A key that no row has is a slip of the pen, which would change nothing in silence; `more`: keys that rows may also lack.
    """
    chosen, fixed = {}, ("", "id", "messages", "label")
    known = ({key for row in rows for key in row} | set(more)) - set(fixed)
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or name in fixed:
            raise SystemExit(f"--set {pair!r}: KEY=VALUE with a key of the row other than id, messages and label")
        if name not in known:
            raise SystemExit(f"--set {pair!r}: no row has the key {name}; there are {', '.join(sorted(known))}")
        try:
            chosen[name] = json.loads(value)
        except ValueError:
            chosen[name] = value
    return [row | chosen for row in rows]


def load_rows(path, task=None, chosen=(), fault=None, graded=False) -> list:
    """Rows of a JSONL of questions or demonstrations, checked: each an object with messages and an id of its own.

    chosen: the KEY=VALUE of --set, of keys that rows have or that the task names as `SETTABLE`. Also asked of each row: the task's
    `check_row(row)` and `fault(row)`, which say what is wrong with it, or "". graded: every row will be rewarded, so where the task is `LABELLED` it needs a label. SystemExit with the file and the row.
    """
    rows, seen = read_jsonl(path), {}
    if not rows:
        raise SystemExit(f"{path}: no rows")
    for number, row in enumerate(rows, 1):
        if wrong := _shape_fault(row, seen):
            raise SystemExit(f"{path}, row {number}: {wrong}")
        seen[str(row["id"])] = number
    rows = set_values(rows, chosen, getattr(task, "SETTABLE", ()))
    for number, row in enumerate(rows, 1):
        wrong = getattr(task, "check_row", lambda row: "")(row) or (fault(row) if fault else "")
        if not wrong and graded and getattr(task, "LABELLED", False) and row.get("label") is None:
            wrong = "no label, so no answer could be rewarded; eval.py takes such rows, train_rl.py can't learn from them"
        if wrong:
            raise SystemExit(f"{path}, row {number}: {wrong}")
    return rows


def _shape_fault(row, seen: dict) -> str:
    """What is wrong with the form of a row, "" if nothing. seen: {id: row number} of the rows before it."""
    missing = [key for key in ("id", "messages") if not (isinstance(row, dict) and row.get(key) not in (None, "", []))]
    if missing:
        return f"no {' and no '.join(missing)}; write the file with prepare_data.py"
    if not isinstance(row["id"], (str, int)):
        return f"id {row['id']!r} must be a text"
    if not isinstance(row.get("task"), str | None):
        return f"task {row['task']!r} must be a text"
    if not isinstance(row["messages"], list) or not all(isinstance(message, dict) for message in row["messages"]):
        return "messages must be a list of objects with role and content"
    if str(row["id"]) in seen:
        return f"id {row['id']!r} is that of row {seen[str(row['id'])]} too; ids must differ"
    return ""


def write_jsonl(path, rows: Iterable) -> None:
    """Write rows, whole or not at all: into a temporary file beside `path`, then renamed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            for row in rows:
                file.write(json_line(row))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------------------------------
# trajectories.jsonl


def save_picture(png: bytes, images_dir) -> str:
    """Write a picture under the hash of its content, once, and return its path relative to the folder above."""
    target = Path(images_dir) / f"{hashlib.sha256(png).hexdigest()[:24]}.png"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
        temporary.write_bytes(png)
        os.replace(temporary, target)
    return f"{target.parent.name}/{target.name}"


def trajectory_to_json(trajectory: Trajectory, base) -> dict:
    """One line of trajectories.jsonl; pictures go to base/images. `base` is the folder of that file.

    Sampled ids and log-probabilities stand once, in the turns. `sequence` says how they lie between context and pictures:
    {"context": ids}, {"sampled": number of ids to take from the turns, in order}, {"image": file, "positions": n}.
    """
    images = Path(base) / "images"
    record = {f.name: getattr(trajectory, f.name) for f in fields(Trajectory) if f.name not in ("turns", "chunks", "sampled", "logprobs")}
    record["turns"] = []
    for turn in trajectory.turns:
        plain = {f.name: getattr(turn, f.name) for f in fields(Turn) if f.name not in ("action", "observation", "image_files")}
        plain["logprobs"] = [float(str(np.float32(x))) for x in turn.logprobs]  # shortest digits that give the same float32
        plain["action"] = asdict(turn.action) if turn.action else None
        seen = turn.observation
        plain["observation"] = seen and {**vars(seen), "images": [save_picture(png, images) for png in seen.images]}
        record["turns"].append(plain)
    record["sequence"], position = [], 0
    for chunk in trajectory.chunks:
        flags = trajectory.sampled[position : position + len(chunk)]
        position += len(chunk)
        if isinstance(chunk, ImageChunk):
            record["sequence"].append({"image": save_picture(chunk.data, images), "positions": chunk.positions, "format": chunk.format})
            continue
        for sampled, group in groupby(zip(flags, chunk.tokens), key=lambda pair: bool(pair[0])):
            ids = [token for _, token in group]
            record["sequence"].append({"sampled": len(ids)} if sampled else {"context": ids})
    return record


def trajectory_from_json(record: dict, base, pictures: bool = True) -> Trajectory:
    """The trajectory of a line of trajectories.jsonl. `pictures=False` leaves the files unread (their bytes are then empty)."""

    def read(name):
        try:
            return (Path(base) / name).read_bytes() if pictures else b""
        except OSError as error:
            raise SystemExit(
                f"picture {Path(base) / name}: cannot be read ({error.strerror}); was trajectories.jsonl moved without images/?"
            ) from error

    values = {key: value for key, value in record.items() if key not in ("turns", "sequence")}
    trajectory = Trajectory(**values)
    for plain in record["turns"]:
        turn = Turn(**{key: value for key, value in plain.items() if key not in ("action", "observation")})
        if plain["action"]:
            call = plain["action"]["call"]
            turn.action = Action(**{**plain["action"], "call": ToolCall(**call) if call else None})
        if plain["observation"]:
            turn.image_files = list(plain["observation"]["images"])
            turn.observation = Observation(**{**plain["observation"], "images": [read(name) for name in turn.image_files]})
        trajectory.turns.append(turn)
    sampled = iter([pair for turn in trajectory.turns for pair in zip(turn.tokens, turn.logprobs)])
    for part in record["sequence"]:
        if "image" in part:
            chunk, pairs = ImageChunk(read(part["image"]), part["positions"], part["format"]), None
        else:
            pairs = [next(sampled) for _ in range(part["sampled"])] if "sampled" in part else None
            chunk = TextChunk(tuple(token for token, _ in pairs) if pairs else tuple(part["context"]))
        trajectory.chunks.append(chunk)
        trajectory.sampled += [pairs is not None] * len(chunk)
        trajectory.logprobs += [logprob for _, logprob in pairs] if pairs else [0.0] * len(chunk)
    trajectory.chunks = merge_chunks(trajectory.chunks)
    return trajectory
