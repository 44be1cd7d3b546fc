"""prepare_data.py: its flags, and the folders that are complete or not there. No network."""

import os
import runpy
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from spectra_fixtures import hub_refused as refused
from spectra_fixtures import run_hub as run
from spectra_fixtures import sample, write_sft

import datafiles
import prepare_data
import runs
from protocol import read_jsonl
from tasks import spec_o3_hub

ROOT = Path(prepare_data.__file__).parent


# ---------------------------------------------------------------- command line


def test_help_is_fast_and_needs_no_task_module(tmp_path):
    command = [sys.executable, "-X", "importtime", str(ROOT / "prepare_data.py"), "--help"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert time.perf_counter() - start < 10  # 0.2 s when nothing else runs; the imports are what is guarded
    assert "--source files" in done.stdout
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert not imported & {"torch", "pyarrow", "PIL", "matplotlib", "huggingface_hub", "transformers"}


@pytest.mark.parametrize(
    "flags, says",
    [
        ("--val-fraction -0.1", "at least 0 and at most 1"),
        ("--val-fraction 1.5", "at least 0 and at most 1"),
        ("--val-fraction nan", "at least 0 and at most 1"),
        ("--workers 0", "at least 1"),
        ("--download-workers 0", "at least 1"),
        ("--download-workers -3", "at least 1"),
        ("--template-noise 0", "at least 0.001"),
        ("--template-noise inf", "at least 0.001"),
        ("--template-count 0", "at least 1"),
        ("--train-size 0", "at least 1"),
        ("--dev-size -1", "at least 0"),
        ("--sft-size 1.5", "whole number"),
        ("--picture-size 0x96", "WIDTHxHEIGHT"),
        ("--picture-size 224", "WIDTHxHEIGHT"),
        ("--picture-size -1x50", "WIDTHxHEIGHT"),
        ("--picture-size 99999x96", "WIDTHxHEIGHT"),
        ("--source files", "--spectra"),
        ("--spectra /", "belongs to --source files"),
        ("--source hub --sft-source /nonexistent/folder", "does not exist"),
        ("--train", "unrecognized"),
    ],
)
def test_P50_a_wrong_flag_is_refused_by_name(flags, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        prepare_data.parse_args(flags.replace("--picture-size -", "--picture-size=-").split())
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_P50_edges_that_are_allowed():
    args = prepare_data.parse_args("--dev-size 0 --test-size 0 --val-fraction 0 --picture-size 64X48".split())
    assert (args.dev_size, args.test_size, args.val_fraction, args.picture_size) == (0, 0, 0.0, [64, 48])
    assert prepare_data.parse_args([]).picture_size == prepare_data.SYNTHETIC_PICTURE
    assert prepare_data.parse_args(["--picture-size", "auto"]).picture_size is None
    assert prepare_data.parse_args(["--source", "hub"]).picture_size is None
    smoke = prepare_data.parse_args(["--smoke", "--dev-size", "7"])
    assert (smoke.dev_size, smoke.train_size) == (7, prepare_data.SMOKE_SIZES["train_size"])


def test_P49_an_unknown_task_names_the_known_ones():
    with pytest.raises(SystemExit, match="spec_o3"):
        runs.load_module("tasks", "spec_o4")
    with pytest.raises(SystemExit, match="tasks/ has countdown, "):
        runs.load_module("tasks", "spec_o3_data")  # a helper, not a task


# ---------------------------------------------------------------- folders


def test_a_foreign_folder_is_never_replaced(tmp_path):
    raw = write_sft(tmp_path / "raw", [sample(0)])
    mine = tmp_path / "out" / "spec_o3" / "sft"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("years of work")
    assert "holds no sft_stats.json" in refused(tmp_path, "sft", sft=raw)
    assert (mine / "thesis.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="a file is in the way"):
        run_args = prepare_data.parse_args(["sft", "--source", "hub", "--output", str(tmp_path / "file"), "--sft-source", str(raw)])
        spec_o3_hub.prepare_sft(run_args)


def test_P45_remains_of_killed_runs_are_cleared_and_a_cut_swap_is_undone(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    parent = tmp_path / "spec_o3"
    for name in (f".sft.part-{dead.pid}", f".sft.old-{dead.pid}", f".sft.part-{os.getppid()}", "sft-notes"):
        (parent / name).mkdir(parents=True)
        (parent / name / "sft_stats.json").write_text(name)
    with pytest.raises(KeyError), datafiles.fresh_folder(parent / "sft", "sft_stats.json") as fresh:
        (fresh / "half").write_text("written")
        raise KeyError("anything")
    assert (parent / "sft" / "sft_stats.json").read_text() == f".sft.old-{dead.pid}"  # the swap was cut between its two renames
    assert sorted(path.name for path in parent.iterdir()) == [f".sft.part-{os.getppid()}", "sft", "sft-notes"]  # a live run is left alone
    with datafiles.fresh_folder(parent / "sft", "sft_stats.json") as fresh:
        (fresh / "sft_stats.json").write_text("new")
    assert (parent / "sft" / "sft_stats.json").read_text() == "new"


def test_P45_full_disk_is_one_line_and_keeps_the_earlier_output(tmp_path, monkeypatch):
    raw = write_sft(tmp_path / "raw", [sample(n) for n in range(3)])
    out = run(tmp_path, "sft", sft=raw)

    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(spec_o3_hub, "write_json", full)
    flags = ["sft", "--source", "hub", "--output", str(tmp_path / "out"), "--workers", "1", "--sft-source", str(raw)]
    monkeypatch.setattr(sys, "argv", ["prepare_data.py", *flags])
    with pytest.raises(SystemExit, match="No space left on device; nothing was replaced"):
        prepare_data.main()
    assert [path.name for path in out.iterdir()] == ["sft"] and len(read_jsonl(out / "sft" / "sft_train.jsonl")) == 3


# ---------------------------------------------------------------- worker processes

WORKERS = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from datafiles import spread

def act(item):
    if item == "fail":
        raise SystemExit("row 7: no")
    if item == "die":
        os._exit(3)
    if item == "sleep":
        time.sleep(60)
    return item * 2

if __name__ == "__main__":
    print(*spread(act, sys.argv[1:], 2, "things"), flush=True)
"""


@pytest.mark.parametrize(
    "items, code, says, out",
    [
        ("a b c d e f g", 0, "", "aa bb cc dd ee ff gg\n"),
        ("fail sleep", 1, "row 7: no", ""),
        ("die sleep", 1, "things: a worker process died, perhaps for lack of memory; try fewer --workers", ""),
    ],
)
def test_P36_a_worker_that_fails_or_dies_ends_the_run_at_once(tmp_path, items, code, says, out):
    (tmp_path / "script.py").write_text(WORKERS)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py"), *items.split()], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr.strip(), done.stdout) == (code, says, out)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_P36_workers_do_not_outlive_the_run(tmp_path, how):
    (tmp_path / "script.py").write_text(WORKERS)
    run = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), *["sleep"] * 4], stderr=subprocess.DEVNULL)
    workers, deadline = [], time.monotonic() + 30
    while len(workers) < 3 and time.monotonic() < deadline:  # two workers and the tracker of multiprocessing
        time.sleep(0.1)
        workers = subprocess.run(["ps", "-o", "pid=", "--ppid", str(run.pid)], capture_output=True, text=True).stdout.split()
    time.sleep(1)
    run.send_signal(how)
    run.wait(timeout=20)
    deadline = time.monotonic() + 20
    while any(datafiles.is_alive(int(pid)) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(workers) == 3 and not any(datafiles.is_alive(int(pid)) for pid in workers)


def test_P50_holding_out_every_demonstration_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="--val-fraction 1 holds out all 2 demonstrations"):
        from tasks import spec_o3

        spec_o3.prepare_sft(prepare_data.parse_args(f"sft --sft-size 2 --val-fraction 1 --output {tmp_path}".split()))
    assert not any(tmp_path.iterdir())


def test_a_task_brings_its_own_flags(tmp_path, monkeypatch):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "toy.py").write_text("def start(row): ...\ndef flags(group): group.add_argument('--labels', choices=('right', 'wrong'), default='right')\n")
    monkeypatch.setattr(prepare_data, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "load_module", lambda folder, name: types.SimpleNamespace(**runpy.run_path(str(tmp_path / folder / f"{name}.py"))))
    assert prepare_data.parse_args("--task toy --labels wrong".split()).labels == "wrong"
    assert prepare_data.parse_args([]).labels is None
