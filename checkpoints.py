"""Where a run can go on from: checkpoints that are whole or not there, and random states that survive JSON.

A checkpoint exists from the moment its line is in checkpoints.jsonl (replaced in one go), and as long as its files have the sizes that the
line says: a full disk or a kill in the middle of saving leaves the one before it in place. Scripts use these functions through `runs`.
"""

import base64
import random
import shutil
import sys
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np

import trackers
from records import read_jsonl, write_jsonl

PATHS = ("state_path", "sampler_path")  # the members of a checkpoint that name weights


@contextmanager
def saving(run, step):
    """A fresh folder for the weights of `step`. If anything fails inside, the half-written folder goes and the run ends with one line.

    The folder is never one that a checkpoint already uses: a run that stops right where it was resumed saves the same step again, and
    until that is whole the first one must stay. Ranks other than 0 get a name that nothing is written to.
    """
    if not run.writes:
        yield run.folder
        return
    names = (f"step-{step:06d}" + (f"-{i}" if i > 1 else "") for i in count(1))
    used = _folders(read_checkpoints(run.folder))
    folder = run.folder / "checkpoints" / next(name for name in names if name not in used)
    shutil.rmtree(folder, ignore_errors=True)  # what a process that was killed left there
    try:
        folder.mkdir(parents=True)
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, Exception):
            raise
        kept = latest_checkpoint(run)
        advice = f"that of step {kept['step']} is whole; mend it and --resume {run.folder}" if kept else "there is none before it"
        raise SystemExit(f"the checkpoint of step {step} could not be saved ({trackers.brief(error)}); {advice}") from error


def save_checkpoint(run, step, state):
    """Record a checkpoint whose weights are written. state: {epoch, position, state_path, sampler_path, rng, ...}, all JSON-able.

    state_path and sampler_path are local folders or files (kept relative to the run, so that it can be moved) or addresses with `://`.
    "keep": True exempts it from --keep-last. Without "rng" the global random states are taken. ValueError if a path isn't there.
    """
    if not run.writes:
        return None
    entry = {"step": step, "time": round(time.time(), 3), **state, "rng": state.get("rng") or rng_state(), "files": {}}
    for key in PATHS:
        if state.get(key) and "://" not in str(state[key]):
            path, root = Path(state[key]).resolve(), run.folder.resolve()
            entry[key] = str(path.relative_to(root) if path.is_relative_to(root) else path)
            entry["files"][key] = _sizes(path)
            if not entry["files"][key]:
                raise ValueError(f"{key} {state[key]}: nothing was written there")
    before = [old for old in read_checkpoints(run.folder) if old["step"] < step]
    removable = [old for old in before if not old.get("keep")]
    gone = removable[: max(0, len(removable) + 1 - run.keep_last)] if run.keep_last else []
    entries = [old for old in before if old not in gone] + [entry]
    write_jsonl(run.folder / "checkpoints.jsonl", entries)
    # Only now, with the new line in place: whatever no line names may go, including folders that a killed process left.
    used = _folders(entries)
    for folder in (run.folder / "checkpoints").glob("step-*"):
        if folder.name not in used:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"checkpoint of step {step}: " + "  ".join(f"{key} {state[key]}" for key in PATHS if state.get(key)), flush=True)
    return entry


def latest_checkpoint(run):
    """The last whole checkpoint of a Run or run folder, its paths usable from here, or None. Broken ones are passed over with a line."""
    folder = Path(getattr(run, "folder", run))
    for entry in reversed(read_checkpoints(folder)):
        missing = [key for key, files in entry.get("files", {}).items() if _sizes(folder / entry[key]) != files]
        if not missing:
            return entry | {key: str(folder / entry[key]) for key in entry.get("files", {})}
        print(f"{folder}: checkpoint of step {entry['step']} is not whole ({', '.join(missing)}), passed over", flush=True)
    return None


def resolve(path, key):
    """A run folder stands for its last whole checkpoint's `key` (state_path or sampler_path); anything else stands for itself."""
    if path and (Path(path) / "checkpoints.jsonl").is_file():
        entry = latest_checkpoint(path)
        if not entry or not entry.get(key):
            raise SystemExit(f"{path}: this run has no whole checkpoint yet; let it reach one (Ctrl-C saves), or --resume it")
        return entry[key]
    return path


def check_model_name(name):
    """SystemExit with one line for what can be neither a folder that is here nor a hub id: asking the hub for it would take minutes."""
    if Path(name).is_dir():
        if (Path(name) / "checkpoints.jsonl").exists() and not (Path(name) / "config.json").exists():
            raise SystemExit(f"model {name!r} is a run: give it as --model-path or --state-path")
        return
    if name.startswith((".", "/", "~")) or name.count("/") != 1 or Path(name.split("/")[0]).is_dir():
        raise SystemExit(f"model {name!r}: there is no such folder (and a hub id has the form owner/name)")


def read_checkpoints(folder):
    """The lines of checkpoints.jsonl by step, whole or not."""
    path = Path(folder) / "checkpoints.jsonl"
    return sorted(read_jsonl(path, partial=True), key=lambda entry: entry["step"]) if path.exists() else []


def _folders(entries):
    """Names of the folders in checkpoints/ that the entries use."""
    parts = [Path(entry[key]).parts for entry in entries for key in entry["files"]]
    return {part[1] for part in parts if part[0] == "checkpoints" and len(part) > 1}


def _sizes(path):
    """{relative name: bytes} of a folder's files, or of one file."""
    path = Path(path)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)) if file != path else ".": file.stat().st_size for file in files}


# ---------------------------------------------------------------- random states


def rng_state(**generators):
    """The random states of python, numpy and torch (if loaded) and of the named generators, JSON-able."""
    torch = sys.modules.get("torch")
    kind, keys, *rest = np.random.get_state()
    state = {"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest]}
    if torch:
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        state["torch"] = [base64.b64encode(bytes(part.tolist())).decode() for part in (torch.get_rng_state(), *devices)]
    named = {name: item.getstate() if isinstance(item, random.Random) else item.bit_generator.state for name, item in generators.items()}
    return state | {"named": named}


def restore_rng(state, **generators):
    """Put back what rng_state returned, also after a way through JSON."""
    deep = lambda value: tuple(map(deep, value)) if isinstance(value, list | tuple) else value
    random.setstate(deep(state["python"]))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    if state.get("torch"):
        import torch

        parts = [torch.tensor(list(base64.b64decode(part)), dtype=torch.uint8) for part in state["torch"]]
        torch.set_rng_state(parts[0])
        if len(parts) - 1 == torch.cuda.device_count():  # another number of devices: their states can't be matched
            torch.cuda.set_rng_state_all(parts[1:])
    for name, item in generators.items():
        saved = state["named"][name]
        if isinstance(item, random.Random):
            item.setstate(deep(saved))
        else:
            item.bit_generator.state = saved
