"""The run folder: what was asked, what happened, and where to go on from.

    runs/NAME/config.json        argv, resolved flags, seed, git commit, versions
    runs/NAME/metrics.jsonl      one object a step, never two of a step
    runs/NAME/checkpoints.jsonl  one line a checkpoint that is whole; `checkpoints/step-000100/` holds the weights
    runs/NAME/trajectories.jsonl, images/   written by the scripts that sample

A script in outline (`--resume runs/NAME` alone restores every flag of the run; a flag given again overrides it):

    parser = argparse.ArgumentParser(); runs.add_run_flags(parser, "spec-o3-sft"); args = runs.parse_args(parser)
    run = runs.open_run(args.run_name, args, args.resume); runs.catch_interrupts()
    ... load from run.restored["state_path"], runs.restore_rng(run.restored["rng"], data=order) ...
    runs.log_metrics(run, step, {"train/loss": 0.5})
    with runs.saving(run, step) as folder:
        state = {"epoch": 1, "position": 40, "state_path": await trainer.save_state(folder / "state"), "rng": runs.rng_state(data=order)}
        runs.save_checkpoint(run, step, state)
    if runs.stop_requested(): ...

`step` counts the finished steps, so the checkpoint of step 100 goes on at 101. How checkpoints survive a full disk: checkpoints.py.
Metrics are ours to keep; a tracker (trackers.py) is a mirror, and one that fails costs a line of output.
"""

import argparse
import importlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import trackers
from backends import parallel
from checkpoints import latest_checkpoint, resolve, restore_rng, rng_state, save_checkpoint, saving  # noqa: F401 (passed on to the scripts)
from records import write_jsonl

VERSIONS = ("torch", "transformers", "peft", "accelerate", "tokenizers", "datasets", "numpy", "matplotlib", "vllm", "pytrio", "tinker")
OWNED = ("config.json", "metrics.jsonl", "checkpoints.jsonl", "trajectories.jsonl", "finished", "checkpoints", "images", "tensorboard",
         "swanlog", "wandb")  # what --overwrite may delete


@dataclass
class Run:
    folder: Path
    name: str
    config: dict
    keep_last: int = 3  # 0 keeps all
    restored: dict | None = None  # the checkpoint that this run goes on from
    total: int | None = None  # steps in all, for the printed line
    last: dict = field(default_factory=dict)  # the last line of metrics.jsonl
    start: int = 0  # bytes: where that line begins in the file, and
    end: int = 0  # where it ends
    tracker: tuple | None = None  # (name, log(metrics, step), finish())
    lock: object = None
    writes: bool = True  # not on ranks other than 0 (torchrun): they read the folder, and leave the writing to rank 0


# ---------------------------------------------------------------- flags


def number(kind=int, low=None, high=None):
    """An argparse type: a finite number of `kind` within [low, high], and an error that says so."""

    def read(text):
        try:
            value = kind(text)
            if math.isfinite(value) and (low is None or value >= low) and (high is None or value <= high):
                return value
        except (ValueError, OverflowError):
            pass
        span = " and ".join(([f"at least {low}"] if low is not None else []) + ([f"at most {high}"] if high is not None else []))
        raise argparse.ArgumentTypeError(f"{text!r} is not {'a whole number' if kind is int else 'a number'} {span}".rstrip())

    return read


def add_run_flags(parser, name, seed=42):
    """The flags that every training script shares. name: default of --run-name."""
    group = parser.add_argument_group("run")
    group.add_argument("--run-name", default=name, help="folder under --runs-dir (default: %(default)s)")
    group.add_argument("--runs-dir", default="runs", help="(default: %(default)s)")
    group.add_argument("--resume", metavar="RUN_DIR", help="go on from the last whole checkpoint of this run, with its flags")
    group.add_argument("--overwrite", action="store_true", help="delete what an earlier run of this name left")
    group.add_argument("--keep-last", type=number(int, 0), default=3, help="checkpoints kept, 0 = all (default: %(default)s)")
    group.add_argument("--seed", type=number(int, 0, 2**31 - 1), default=seed, help="(default: %(default)s)")
    group.add_argument("--tracker", choices=trackers.NAMES, help="mirror of metrics.jsonl (default: none)")
    group.add_argument("--swanlab-mode", choices=("online", "local", "disabled"), help="online and local imply --tracker swanlab")
    group.add_argument("--project-name", default="toolgrad", help="project in the tracker (default: %(default)s)")
    return group


def parse_args(parser, argv=None):
    """parser.parse_args, after --resume has turned the flags of that run into the defaults."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--resume")
    folder = early.parse_known_args(argv)[0].resume
    if folder:
        flags = read_config(folder)["flags"]
        kept = {action.dest for action in parser._actions} - {"resume", "overwrite", "help"}
        parser.set_defaults(**{name: value for name, value in flags.items() if name in kept})
        for action in parser._actions:
            action.required = action.required and flags.get(action.dest) is None
    args = parser.parse_args(argv)
    if args.resume != folder:
        parser.error("write --resume in full: its run's flags are read before all others")
    return args


def _is_run(folder):
    """Whether config.json is a training run's: models and evaluations have one, too."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return "flags" in config and "settings" not in config
    except (OSError, ValueError, TypeError):
        return False


def make_folder(path, flag):
    """The folder, with its parents; one line if it can't be made or written into."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "no permission to write there")
    except OSError as error:
        raise SystemExit(f"{flag} {path}: {error.strerror}; choose another place") from None


def load_module(folder, name):
    """tasks/<name>.py or backends/<name>.py; an unknown name stops with the names there are."""
    has = {"tasks": "start", "backends": "create_sampler"}[folder]  # other files there are helpers
    if hasattr(sys.modules.get(f"{folder}.{name}"), has):
        return sys.modules[f"{folder}.{name}"]
    files = (Path(__file__).parent / folder).glob("*.py")
    available = sorted(path.stem for path in files if re.search(rf"^(async )?def {has}\(", path.read_text(encoding="utf-8"), re.M))
    if name not in available:
        raise SystemExit(f"--{folder.removesuffix('s')} {name}: {folder}/ has {', '.join(available) or 'none'}")
    module = importlib.import_module(f"{folder}.{name}")
    if missing := [part for part in ("TOOLS", "reward") if folder == "tasks" and not hasattr(module, part)]:
        raise SystemExit(f"--task {name}: tasks/{name}.py has no {' and no '.join(missing)}; tasks/spec_o3.py says what a task brings")
    return module


# ---------------------------------------------------------------- folder


def write_json(path, value):
    """Write JSON in one go: temporary file, fsync, rename."""
    temporary = Path(path).with_name(Path(path).name + ".tmp")
    with open(temporary, "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=True, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def environment():
    """What a reader needs to repeat a run: {argv, git, versions, python, platform, started}."""
    git = lambda *words: subprocess.run(["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, timeout=20)
    try:
        commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain")
        state = {"commit": commit.stdout.strip(), "dirty": bool(status.stdout.strip())} if commit.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        state = None  # no git, or not a checkout
    versions = {found.name: found.version for package in VERSIONS for found in metadata.distributions(name=package)}
    return {"argv": list(sys.argv), "git": state, "versions": versions, "python": sys.version.split()[0], "platform": sys.platform,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z")}


def lock_folder(folder):
    """Hold the folder for this process; SystemExit if another one has it. Released when the returned file is closed or the process ends."""
    try:
        import fcntl
    except ImportError:  # Windows: no lock
        return None
    file = open(Path(folder) / ".lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SystemExit(f"{folder} is in use by another process: wait for it, or choose another name") from None
    except OSError:  # a file system without locks
        pass
    return file


def read_config(folder):
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        script, asks = Path(config["argv"][0]).name, Path(sys.argv[0]).name
        dict(config["flags"])
    except (OSError, LookupError, TypeError, ValueError):
        raise SystemExit(f"--resume {folder}: no run there (config.json is missing or unreadable)") from None
    if script != asks:
        raise SystemExit(f"--resume {folder}: that run was made by {script}, this is {asks}")
    return config


def open_run(name, args, resume=None):
    """Create `runs/name`, or reopen the folder `resume`. args: the parsed flags (a Namespace with those of add_run_flags).

    On resume `run.restored` is the last whole checkpoint (None if there is none: the run begins again), and lines of metrics.jsonl and
    trajectories.jsonl after its step are dropped, so that no step is there twice. SystemExit if the folder can't be used.
    Under torchrun rank 0 does this; the others get a Run that writes nothing.
    """
    flags = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    folder = Path(resume) if resume else Path(getattr(args, "runs_dir", "runs")) / name
    if parallel.world()[0]:
        return Run(folder, folder.name, {}, restored=latest_checkpoint(folder) if resume else None, writes=False)
    if not resume:
        if not re.fullmatch(r"[\w.@+=-]+", name) or set(name) == {"."}:
            raise SystemExit(f"--run-name {name!r}: letters, digits and . _ - + = @ only")
        begun = any((folder / name).exists() for name in ("metrics.jsonl", "checkpoints.jsonl"))  # if not, a start that failed: its name is free
        if begun and not getattr(args, "overwrite", False):
            raise SystemExit(f"{folder} exists: go on with --resume {folder}, begin again with --overwrite, or choose another --run-name")
        if folder.is_dir() and not _is_run(folder) and {entry.name for entry in folder.iterdir()} - {".lock"}:
            raise SystemExit(f"{folder} holds files that are not of a run: choose another --run-name")
        make_folder(folder, "--run-name")
    old = read_config(folder) if resume else None
    config = {"name": name, "flags": flags, "seed": flags.get("seed"), **environment()}
    run = Run(folder, folder.resolve().name, config, getattr(args, "keep_last", 3))
    run.lock = lock_folder(folder)
    if not resume:
        for entry in OWNED:
            path = folder / entry
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    else:
        run.restored = latest_checkpoint(folder)
        step = run.restored["step"] if run.restored else 0
        _drop_after(folder / "metrics.jsonl", step)
        _drop_after(folder / "trajectories.jsonl", step)
        before = old["flags"]
        names = [key for key in flags if before.get(key) != flags[key] and key not in ("resume", "overwrite")]
        changed = {key: [before.get(key), flags[key]] for key in names}
        again = {"step": step, "changed": changed, **{key: config[key] for key in ("argv", "git", "versions", "started")}}
        run.config = old | {"flags": flags, "resumed": [*old.get("resumed", []), again]}
        print(f"{folder}: " + (f"going on after step {step}" if run.restored else "no whole checkpoint, beginning again at step 0"))
        for key, (was, now) in changed.items():
            print(f"  --{key.replace('_', '-')} was {was}, is now {now}")
        _load_last(run)
    write_json(folder / "config.json", run.config)
    run.tracker = trackers.start(run, args)
    return run


def close_run(run, finished=False):
    """Finish the tracker and let the folder go. finished: every step was made; leaves a file of that name for scripts that ask."""
    if finished and run.writes:
        (run.folder / "finished").touch()
    trackers.send(run, trackers.FINISH)
    if run.lock:
        run.lock.close()


def stream_jsonl(path):
    """The records of a JSONL file one at a time: logs of long runs don't fit into memory. An unfinished last line is left out."""
    with open(path, "rb") as file:  # in binary, only "\n" ends a line
        for number, line in enumerate(file, 1):
            try:
                if line.strip():
                    yield json.loads(line.decode("utf-8"))
            except ValueError as error:
                if line.endswith(b"\n"):
                    raise SystemExit(f"{path}, line {number}: not valid JSON ({error})") from None


def stream_trajectories(path, has=("id", "finish_reason", "turns", "parts")):
    """The records of a trajectories.jsonl one at a time. SystemExit with file and line at one without what `has` names."""
    for number, record in enumerate(stream_jsonl(path), 1):
        missing = [name for name in has if not isinstance(record, dict) or name not in record]
        if missing:
            raise SystemExit(f"{path}, line {number}: no trajectory of eval.py or train_rl.py (no {', '.join(missing)})")
        turns = record.get("turns", [])
        if not isinstance(turns, list) or not all(isinstance(turn, dict) and isinstance(turn.get("text"), str) for turn in turns):
            raise SystemExit(f"{path}, line {number}: no trajectory of eval.py or train_rl.py (turns is not a list of objects with text)")
        yield record


def _drop_after(path, step):
    """Keep the lines of `path` up to `step`, and lines without a step; an unfinished last line goes too."""
    if path.exists():
        write_jsonl(path, (record for record in stream_jsonl(path) if record.get("step", step) <= step))


def _load_last(run):
    path = run.folder / "metrics.jsonl"
    data = path.read_bytes() if path.exists() else b""
    run.end = len(data)
    run.start = data.rstrip(b"\n").rfind(b"\n") + 1
    run.last = json.loads(data[run.start :]) if data else {}


# ---------------------------------------------------------------- metrics


def log_metrics(run, step, values, show=None):
    """Add a step's metrics to metrics.jsonl, the tracker and stdout. values: {name: number}; NaN and infinities are null in the file.

    show: names to print (default all, () none). A second call for the same step joins the first one's line; a step before the last one
    is an error of the script: ValueError.
    """
    if not run.writes:
        return
    if step < run.last.get("step", 0):
        raise ValueError(f"step {step} after step {run.last['step']}: metrics are written in order")
    values = {key: value.item() if hasattr(value, "item") else value for key, value in values.items()}
    finite = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()}
    merge = run.last.get("step") == step
    record = (run.last if merge else {}) | {"step": step, "time": round(time.time(), 3)} | finite
    position, path = run.start if merge else run.end, run.folder / "metrics.jsonl"
    line = json.dumps(record, default=str).encode() + b"\n"
    try:
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.seek(position)
            file.truncate()  # also removes what a write that failed half-way left
            file.write(line)
        run.start, run.end, run.last = position, position + len(line), record
    except OSError as error:  # a full disk must not end a training run here; saving the checkpoint will say it again, loudly
        print(f"metrics of step {step} not written: {error}", flush=True)
    trackers.send(run, trackers.LOG, {key: value for key, value in finite.items() if isinstance(value, (int, float))}, step)
    shown = [f"{key} {values[key]:.4g}" for key in (values if show is None else show) if isinstance(values.get(key), (int, float))]
    if shown:
        print(f"step {step}{f'/{run.total}' if run.total else ''}  " + "  ".join(shown), flush=True)


# ---------------------------------------------------------------- Ctrl-C


_signals = {"count": 0, "first": 0.0}  # first: when, in seconds of time.monotonic


def catch_interrupts():
    """From now on the first Ctrl-C (or SIGTERM) only asks for a stop after the step in progress; a second one ends the process at once.

    What comes within a second of the first is the same wish: `timeout` signals its child and then the whole group, a shell and torchrun likewise.
    torchrun passes a signal on to all ranks, kills them 30 s later, and sends SIGTERM when one of them has failed. Whoever then waits for
    the lost one inside a collective would never reach the end of the step: after SIGTERM a rank has 20 s.
    """

    def handle(number, frame):
        now = time.monotonic()
        if _signals["count"] and now - _signals["first"] >= 1:
            os._exit(128 + number)
        if number == signal.SIGTERM and parallel.world()[1] > 1:
            signal.alarm(20)  # nobody handles it, so the kernel ends the process, whatever it hangs in
        if not _signals["count"]:
            _signals["first"] = now
            os.write(2, b"\nstopping after this step; once more to stop at once\n")  # print isn't safe inside a signal handler
        _signals["count"] += 1

    _signals["count"] = 0
    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, handle)


def stop_requested():
    return _signals["count"] > 0
