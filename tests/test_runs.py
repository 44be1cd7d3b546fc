"""runs.py: run folders, resume, checkpoints that survive a full disk, trackers that may fail."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

import runs

ROOT = Path(__file__).parents[1]


def parser_for_tests():
    parser = argparse.ArgumentParser()
    runs.add_run_flags(parser, "demo")
    parser.add_argument("--learning-rate", type=runs.number(float, 0), default=1e-3)
    parser.add_argument("--state-path", required=True)
    return parser


def arguments(tmp_path, *extra):
    return runs.parse_args(parser_for_tests(), ["--runs-dir", str(tmp_path), "--state-path", "x", *extra])


def start(tmp_path, *extra):
    args = arguments(tmp_path, *extra)
    return runs.open_run(args.run_name, args, args.resume)


def resume(run, *extra):
    runs.close_run(run)
    args = runs.parse_args(parser_for_tests(), ["--resume", str(run.folder), *extra])
    return runs.open_run(args.run_name, args, args.resume)


def lines(run, name="metrics.jsonl"):
    return [json.loads(line) for line in (run.folder / name).read_text(encoding="utf-8").split("\n") if line]


def save(run, step, text="weights", **extra):
    with runs.saving(run, step) as folder:
        (folder / "state").mkdir()
        (folder / "state" / "model.safetensors").write_text(text)
        return runs.save_checkpoint(run, step, {"epoch": 0, "position": step, "state_path": folder / "state", **extra})


def test_config_says_how_to_repeat_the_run(tmp_path):
    run = start(tmp_path, "--seed", "7")
    config = json.loads((run.folder / "config.json").read_text())
    assert config["seed"] == 7 and config["flags"]["learning_rate"] == 1e-3 and config["argv"]
    assert {"git", "versions", "python", "started"} <= set(config) and config["versions"]["numpy"] == np.__version__


def test_existing_run_is_never_overwritten_by_accident(tmp_path):
    run = start(tmp_path)
    runs.log_metrics(run, 1, {"loss": 1.0})
    runs.close_run(run)
    with pytest.raises(SystemExit, match="--resume"):
        start(tmp_path)
    assert lines(run)[0]["loss"] == 1
    again = start(tmp_path, "--overwrite")
    assert not (again.folder / "metrics.jsonl").exists()


@pytest.mark.parametrize("name", ["thesis.tex", "images"])
def test_overwrite_never_deletes_a_folder_that_is_not_a_run(tmp_path, name):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / name).write_text("years of work")
    with pytest.raises(SystemExit, match="not of a run"):
        start(tmp_path, "--overwrite")
    assert (tmp_path / "demo" / name).exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", "a b"])
def test_run_names_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(SystemExit, match="--run-name"):
        start(tmp_path, "--run-name", name)


def test_resume_of_nothing_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="no run there"):
        runs.parse_args(parser_for_tests(), ["--resume", str(tmp_path / "nowhere")])


def test_two_processes_cannot_share_a_run(tmp_path):
    run = start(tmp_path)
    with pytest.raises(SystemExit, match="in use"):
        start(tmp_path, "--overwrite")
    runs.close_run(run)
    start(tmp_path, "--overwrite")


def test_P22_resume_alone_restores_every_flag_and_a_flag_given_again_wins(tmp_path):
    run = start(tmp_path, "--learning-rate", "0.5", "--seed", "9")
    args = runs.parse_args(parser_for_tests(), ["--resume", str(run.folder)])
    assert args.learning_rate == 0.5 and args.seed == 9 and args.state_path == "x"
    again = resume(run, "--learning-rate", "0.1")
    assert again.config["flags"]["learning_rate"] == 0.1
    assert again.config["resumed"][0]["changed"]["learning_rate"] == [0.5, 0.1]


def test_P21_resumed_run_has_no_step_twice(tmp_path):
    run = start(tmp_path)
    for step in (1, 2, 3, 4, 5):
        runs.log_metrics(run, step, {"loss": step})
        if step == 3:
            save(run, step)
    (run.folder / "trajectories.jsonl").write_text('{"step": 3}\n{"step": 4}\n{"step": 5, "te')  # killed while writing
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    again = resume(run)
    assert again.restored["step"] == 3
    for step in (4, 5, 6):
        runs.log_metrics(again, step, {"loss": 10 * step})
    assert [line["step"] for line in lines(again)] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in lines(again)] == [1, 2, 3, 40, 50, 60]
    assert [line["step"] for line in lines(again, "trajectories.jsonl")] == [3]


def test_P21_without_a_checkpoint_a_resumed_run_begins_again(tmp_path):
    run = start(tmp_path)
    runs.log_metrics(run, 1, {"loss": 1.0})
    again = resume(run)
    assert again.restored is None and lines(again) == []


def test_metrics_of_one_step_join_one_line_also_after_resume(tmp_path):
    run = start(tmp_path)
    runs.log_metrics(run, 1, {"train/loss": 0.5})
    runs.log_metrics(run, 2, {"train/loss": 0.4})
    runs.log_metrics(run, 2, {"val/loss": 0.6})
    save(run, 2)
    again = resume(run)
    runs.log_metrics(again, 2, {"val/accuracy": 0.7})
    assert [(line["step"], line["train/loss"]) for line in lines(again)] == [(1, 0.5), (2, 0.4)]
    assert lines(again)[1]["val/loss"] == 0.6 and lines(again)[1]["val/accuracy"] == 0.7
    with pytest.raises(ValueError, match="in order"):
        runs.log_metrics(again, 1, {})


def test_metrics_are_json_whatever_the_numbers(tmp_path, capsys):
    run = start(tmp_path)
    runs.log_metrics(
        run, 1, {"a": np.float32(0.5), "b": float("nan"), "c": float("inf"), "d": np.int64(3), "e": True, "f": "text", "g": None}
    )
    text = (run.folder / "metrics.jsonl").read_text()
    record = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert record["a"] == 0.5 and record["b"] is None and record["c"] is None and record["d"] == 3 and record["f"] == "text"
    assert "b nan" in capsys.readouterr().out  # null in the file, but the person sees it


def test_stdout_has_one_line_a_step(tmp_path, capsys):
    run = start(tmp_path)
    run.total = 10
    runs.log_metrics(run, 3, {"loss": 0.123456, "hidden": 1}, show=("loss", "absent"))
    runs.log_metrics(run, 4, {"loss": 1}, show=())
    assert capsys.readouterr().out == "step 3/10  loss 0.1235\n"


def test_P45_checkpoint_that_is_missing_or_cut_short_is_passed_over(tmp_path, capsys):
    run = start(tmp_path)
    for step in (1, 2, 3):
        save(run, step)
    (run.folder / "checkpoints" / "step-000003" / "state" / "model.safetensors").write_text("wei")  # a full disk
    (run.folder / "checkpoints" / "step-000002" / "state" / "model.safetensors").unlink()
    found = runs.latest_checkpoint(run)
    assert found["step"] == 1 and Path(found["state_path"], "model.safetensors").read_text() == "weights"
    assert "passed over" in capsys.readouterr().out


def test_P45_failure_while_saving_keeps_the_one_before_and_says_so(tmp_path):
    run = start(tmp_path)
    save(run, 1)
    with pytest.raises(SystemExit, match="step 2.*No space left.*step 1 is whole"), runs.saving(run, 2) as folder:
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")
    assert not (run.folder / "checkpoints" / "step-000002").exists() and runs.latest_checkpoint(run)["step"] == 1


def test_P45_full_disk_for_real(tmp_path):
    """A file system of 64 kB; needs the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    try:
        run = start(disk)
        runs.log_metrics(run, 1, {"loss": 1.0})
        save(run, 1, "w" * 8000)
        with pytest.raises(SystemExit, match="No space left.*step 1 is whole"):
            save(run, 2, "w" * 80000)
        runs.log_metrics(run, 2, {"loss": 1.0})
        again = resume(run)
        assert again.restored["step"] == 1 and [line["step"] for line in lines(again)] == [1]
        runs.close_run(again)
    finally:
        subprocess.run(["umount", str(disk)])


def test_P45_kill_between_weights_and_their_line(tmp_path):
    run = start(tmp_path)
    save(run, 1)
    orphan = run.folder / "checkpoints" / "step-000002" / "state"
    orphan.mkdir(parents=True)
    (run.folder / "checkpoints.jsonl").write_text((run.folder / "checkpoints.jsonl").read_text() + '{"step": 2, "sta')
    assert runs.latest_checkpoint(run)["step"] == 1
    save(run, 3)
    assert not orphan.exists() and runs.latest_checkpoint(run)["step"] == 3


def test_P45_saving_the_step_again_keeps_the_first_until_the_second_is_whole(tmp_path):
    """A run that is stopped right where it was resumed saves the same step twice."""
    run = start(tmp_path)
    save(run, 4, "first")
    run = resume(run)
    with pytest.raises(SystemExit, match="step 4 is whole"), runs.saving(run, 4):
        raise OSError(28, "No space left on device")
    assert Path(runs.latest_checkpoint(run)["state_path"], "model.safetensors").read_text() == "first"
    save(run, 4, "second")
    assert Path(runs.latest_checkpoint(run)["state_path"], "model.safetensors").read_text() == "second"
    assert len(lines(run, "checkpoints.jsonl")) == 1 == len(list((run.folder / "checkpoints").iterdir()))


def test_resume_by_another_script_is_refused(tmp_path, monkeypatch):
    run = start(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_other.py"])
    with pytest.raises(SystemExit, match="made by .*, this is train_other.py"):
        resume(run)


def test_keep_last_deletes_the_old_ones_but_not_the_marked_ones(tmp_path):
    run = start(tmp_path, "--keep-last", "2")
    for step in range(1, 6):
        save(run, step, **({"keep": True} if step == 2 else {}))
    assert [entry["step"] for entry in lines(run, "checkpoints.jsonl")] == [2, 4, 5]
    assert sorted(path.name for path in (run.folder / "checkpoints").iterdir()) == ["step-000002", "step-000004", "step-000005"]


def test_keep_last_zero_keeps_all(tmp_path):
    run = start(tmp_path, "--keep-last", "0")
    for step in range(1, 6):
        save(run, step)
    assert len(lines(run, "checkpoints.jsonl")) == 5


def test_checkpoints_move_with_the_run_and_addresses_are_left_alone(tmp_path):
    run = start(tmp_path)
    save(run, 1, sampler_path="tinker://job/weights/1")
    runs.close_run(run)
    moved = tmp_path / "moved"
    run.folder.rename(moved)
    found = runs.latest_checkpoint(moved)
    assert Path(found["state_path"]).is_dir() and found["sampler_path"] == "tinker://job/weights/1"


def test_checkpoint_without_weights_is_refused(tmp_path):
    run = start(tmp_path)
    with pytest.raises(ValueError, match="nothing was written"):
        runs.save_checkpoint(run, 1, {"state_path": tmp_path / "nowhere"})
    assert not (run.folder / "checkpoints.jsonl").exists()


def test_P21_random_states_survive_json(tmp_path):
    import torch

    order, generator = random.Random(3), np.random.default_rng(3)
    draw = lambda: (random.random(), float(np.random.rand()), float(torch.rand(1)), order.random(), float(generator.random()))
    draw()
    run = start(tmp_path)
    save(run, 1, rng=runs.rng_state(order=order, generator=generator))
    expected = draw()
    draw()
    runs.restore_rng(runs.latest_checkpoint(run)["rng"], order=order, generator=generator)
    assert draw() == expected


@pytest.mark.parametrize(
    "text,ok", [("0", False), ("1", True), ("-1", False), ("3.5", False), ("nan", False), ("1e400", False), ("9", False)]
)
def test_P50_numbers_within_bounds_or_a_clear_error(text, ok):
    read = runs.number(int, 1, 8)
    if ok:
        assert read(text) == int(text)
    else:
        with pytest.raises(argparse.ArgumentTypeError, match="whole number at least 1 and at most 8"):
            read(text)


@pytest.mark.parametrize(
    "flags", [["--keep-last", "-1"], ["--seed", "-1"], ["--tracker", "paper"], ["--learning-rate", "inf"], ["--resum", "x"]]
)
def test_P50_bad_flags_stop_at_argument_parsing(tmp_path, flags):
    with pytest.raises(SystemExit) as error:
        arguments(tmp_path, *flags)
    assert error.value.code == 2


def test_tracker_that_is_missing_or_fails_costs_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # import fails
    run = start(tmp_path, "--tracker", "wandb")
    assert run.tracker is None and capsys.readouterr().out.count("--tracker wandb is off") == 1

    def broken(values, step):
        raise ConnectionError("service is away")

    run.tracker = ("mirror", broken, lambda: None)
    runs.log_metrics(run, 1, {"loss": 1.0})
    runs.log_metrics(run, 2, {"loss": 1.0})
    assert capsys.readouterr().out.count("service is away") == 1 and len(lines(run)) == 2


def test_swanlab_disabled_is_no_tracker(tmp_path):
    assert start(tmp_path, "--swanlab-mode", "disabled").tracker is None


INTERRUPTED = """
import sys, time, runs
runs.catch_interrupts()
print("ready", flush=True)
while not (runs.stop_requested() and sys.argv[1] == "once"):
    time.sleep(0.01)
print("clean stop", flush=True)
"""


@pytest.mark.parametrize("times", ["once", "twice"])
def test_P36_first_interrupt_asks_the_second_ends(times):
    """One that follows within a second is not the second."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, times], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        assert "once more" in process.stderr.readline() + process.stderr.readline()
        if times != "once":
            os.kill(process.pid, signal.SIGINT)  # as `timeout` does it: to the process, then to its group
            time.sleep(1.2)
            assert process.poll() is None
            os.kill(process.pid, signal.SIGINT)
        started = time.time()
        out, _ = process.communicate(timeout=10)
        assert time.time() - started < 5
        assert (process.returncode, out) == ((0, "clean stop\n") if times == "once" else (130, ""))
    finally:
        process.kill()


def test_arguments_of_test_sh_go_to_pytest_and_to_nothing_else(tmp_path):
    root = Path(runs.__file__).parent
    for name in ("setup.sh", "test.sh"):
        (tmp_path / name).write_text((root / name).read_text())
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for path, word in (("bin/uv", "uv"), (".venv/bin/python", "python")):
        (tmp_path / path).write_text(f'#!/bin/sh\necho {word} "$@"\n')
        (tmp_path / path).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "test.sh", "-k", "P21"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["uv sync --quiet", "python -m ruff check .", "python -m pytest -k P21"]


@pytest.mark.parametrize("config", [{"model_type": "qwen3"}, {"settings": {}, "flags": {}}])
def test_P45_a_model_or_an_evaluation_is_never_made_a_run(tmp_path, config):
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "trajectories.jsonl").write_text("{}\n")
    for overwrite in (False, True):
        args = argparse.Namespace(runs_dir=str(tmp_path), overwrite=overwrite, seed=1)
        with pytest.raises(SystemExit, match="holds files that are not of a run"):
            runs.open_run("kept", args)
    assert json.loads((folder / "config.json").read_text()) == config and (folder / "trajectories.jsonl").exists()


def test_a_task_that_lacks_something_is_one_line(monkeypatch, tmp_path):
    """Its functions may begin on the first line of the file."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "half.py").write_text("def start(row, folder):\n    return None\n")
    monkeypatch.setattr(runs, "__file__", str(tmp_path / "runs.py"))
    monkeypatch.setitem(sys.modules, "tasks", types.ModuleType("tasks"))
    sys.modules["tasks"].__path__ = [str(tmp_path / "tasks")]
    with pytest.raises(SystemExit, match="--task half: tasks/half.py has no TOOLS and no reward; tasks/spec_o3.py says what a task brings"):
        runs.load_module("tasks", "half")
    with pytest.raises(SystemExit, match="--task other: tasks/ has half"):
        runs.load_module("tasks", "other")
    sys.modules.pop("tasks.half")
