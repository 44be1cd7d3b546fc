"""Experiments beside one another: the commands that they share, the order, the time, what is kept."""

import importlib.util
import json
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "experiments" / "fund"
spec = importlib.util.spec_from_file_location("fund_side_by_side", FOLDER / "side_by_side.py")
side_by_side = importlib.util.module_from_spec(spec)
sys.modules["fund_side_by_side"] = side_by_side  # where a dataclass looks for its module
spec.loader.exec_module(side_by_side)
Job = side_by_side.Job

TRAIN = """import sys, time, pathlib
folder = pathlib.Path(sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else "runs/" + sys.argv[sys.argv.index("--run-name") + 1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.json").write_text("{}")
(folder / "metrics.jsonl").write_text('{"step": 1, "reward/correct": 0.5}')
with open("order", "a") as file:
    file.write(f"{' '.join(sys.argv[1:])}\\n")
if "--broken" in sys.argv:
    raise SystemExit("the data are gone")
try:
    time.sleep(60 if "--slow" in sys.argv and "--resume" not in sys.argv else 0.2)
except KeyboardInterrupt:
    raise SystemExit(130)
(folder / "finished").touch()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train_rl.py").write_text(TRAIN)
    monkeypatch.setattr(side_by_side, "load_libraries", lambda: None)
    monkeypatch.setattr(side_by_side, "try_gpu", lambda: None)
    return tmp_path


def job(name, *needs, more=()):
    return Job(["train_rl.py", "--run-name", name, *more], f"runs/{name}", list(needs))


def order(place):
    return [line.split()[1] for line in (place / "order").read_text().splitlines()]


def test_the_experiments_share_what_is_the_same(monkeypatch):
    """14 different trainings of two seeds; e.g. the ReAct arm of 04 is the lower reward of 05, and the plain run of 08 the ground truth of 11."""
    for name, value in {"MODEL": "some/Model", "SEEDS": "1 2", "ARMS": "plain on auto"}.items():
        monkeypatch.setenv(name, value)
    scripts = sorted(FOLDER.glob("[0-9]*.sh"))
    jobs = side_by_side.read_jobs(scripts)
    count = Counter(job.stage for job in jobs)
    assert count["train_rl.py"] == 28 and count["train_sft.py"] == 3 + 4 and count["eval.py"] == 28 + 2 * 2 + 4 and count["prepare_data.py"] == 7
    made = {job.makes for job in jobs}
    assert {"runs/fund-Model-react-rules-tool-1", "outputs/fund-Model-react-truth-2", "outputs/fund-Model-plain-raw"} <= made
    paths = [need for job in jobs for need in job.needs if need.startswith(("runs/", "datasets/"))]
    assert all(any(need == m or need.startswith(m + "/") for m in made) for need in paths), "everything that is read is made by one of them"


def test_what_finished_jobs_say(place):
    (place / "runs/a").mkdir(parents=True)
    (place / "runs/a/metrics.jsonl").write_text("".join(json.dumps({"step": i, "reward/correct": i / 20}) + "\n" for i in range(1, 21)))
    assert side_by_side.told(job("a")) == "right in its first ten steps 27.5 %, in its last ten 77.5 %"
    (place / "metrics.json").write_text(json.dumps({"accuracy": 0.5, "format_rate": 1.0}))
    assert side_by_side.told(Job(["eval.py"], ".", [])) == "tool 50.0 %, form 100.0 %"
    assert side_by_side.told(Job(["train_sft.py"], "runs/a", [])) == ""


def test_the_start_alone(place, monkeypatch):
    """Data, SFT and their evaluations: no RL, and nothing that needs it."""
    for name, value in {"MODEL": "some/Model", "SEEDS": "1"}.items():
        monkeypatch.setenv(name, value)
    seen = []
    monkeypatch.setattr(side_by_side, "run_all", lambda jobs, *_: seen.extend(jobs) or 0)
    side_by_side.main(["--start-only", "01", "07"])
    assert [job.makes.partition("-Model")[2] for job in seen if job.stage == "eval.py"] == ["-plain-raw", "-plain-sft", "-react-sft50-1", "-react-sft300-1"]
    assert not any(job.stage == "train_rl.py" for job in seen)


def test_what_is_needed_comes_first(place):
    jobs = [job("c", "runs/a/x", "runs/b"), job("b", "runs/a"), job("a")]
    assert side_by_side.run_all(jobs, 3, 0, time.monotonic()) == 0
    assert order(place) == ["a", "b", "c"]
    assert side_by_side.run_all(jobs, 3, 0, time.monotonic()) == 0
    assert order(place) == ["a", "b", "c"], "finished runs are kept"


def test_a_failure_stops_only_what_needs_it(place, capsys):
    jobs = [job("a", more=["--broken"]), job("b", "runs/a"), job("c")]
    assert side_by_side.run_all(jobs, 1, 0, time.monotonic()) == 1
    said = capsys.readouterr().out
    assert order(place) == ["a", "c"] and "FAILED (1)" in said and "left for the next call: runs/b" in said
    assert "the data are gone" in (place / "runs/side-by-side/runs-a.log").read_text()


def test_at_the_end_of_the_time_a_run_is_asked_to_save_and_goes_on_next_time(place, capsys):
    jobs = [job("a", more=["--slow"]), job("b", "runs/a"), job("c", more=["--slow"])]
    begun = time.monotonic()
    assert side_by_side.run_all(jobs, 2, 3, begun) == 0 and time.monotonic() - begun < 20
    said = capsys.readouterr().out
    assert all(f"cut off, the next call goes on: runs/{name}" in said for name in "ac"), "two that end together: each can be waited for once"
    assert side_by_side.run_all(jobs, 1, 0, time.monotonic()) == 0
    assert (place / "order").read_text().splitlines()[2:] == ["--resume runs/a", "--run-name b", "--resume runs/c"]


def test_ctrl_c_asks_each_run_to_save(place, monkeypatch, capsys):
    """Once: the second signal would end it at once."""
    real = side_by_side.wait

    def interrupted(pids, seconds):
        if (place / "order").exists() and not (place / "seen").exists():
            (place / "seen").touch()
            raise KeyboardInterrupt
        return real(pids, seconds)

    monkeypatch.setattr(side_by_side, "wait", interrupted)
    begun = time.monotonic()
    assert side_by_side.run_all([job("a", more=["--slow"]), job("b", "runs/a")], 2, 0, begun) == 0 and time.monotonic() - begun < 20
    assert "stopping\ncut off, the next call goes on: runs/a" in capsys.readouterr().out


def test_what_can_not_be_finished_is_not_begun(place):
    """Each takes 0.2 s at least, so 40 of them don't fit into 2 s, and none is cut off."""
    jobs = [job(f"r{i:02d}") for i in range(40)]
    side_by_side.run_all(jobs, 1, 2, time.monotonic())
    assert 1 <= len(order(place)) < 12 and all((place / "runs" / name / "finished").exists() for name in order(place))


def test_an_evaluation_of_older_weights_is_not_finished(place):
    asked = Job(["eval.py"], "outputs/a", ["datasets/d", "runs/a"])
    assert not side_by_side.is_done(asked)
    (place / "outputs/a").mkdir(parents=True)
    (place / "outputs/a/metrics.json").touch()
    assert not side_by_side.is_done(asked), "its weights are not there"
    (place / "runs/a").mkdir(parents=True)
    (place / "runs/a/finished").touch()
    (place / "outputs/a/metrics.json").touch()
    assert side_by_side.is_done(asked)


def test_results_are_packed_without_what_only_training_needs(place):
    line = lambda step: {"id": "r\u2028", "step": step, "sequence": [{"context": [1]}], "turns": [{"text": "x", "tokens": [7], "logprobs": [-0.5]}]}
    folder = place / "runs/a"
    folder.mkdir(parents=True)
    (folder / "trajectories.jsonl").write_text("".join(json.dumps(line(step), ensure_ascii=False) + "\n" for step in range(1, 13)), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/weights").write_text("large")
    side_by_side.pack([job("a")], place / "out")
    parts = sorted((place / "out").iterdir())
    assert [part.name for part in parts] == ["results.tar.gz.00"]
    with tarfile.open(parts[0]) as tar:
        names = tar.getnames()
        kept = [json.loads(text) for text in tar.extractfile("runs/a/trajectories.jsonl").read().decode().split("\n") if text]
    assert names == ["runs/a/metrics.jsonl", "runs/a/trajectories.jsonl"] and [record["step"] for record in kept] == [1, 10, 11]
    assert kept[0] == {"id": "r\u2028", "step": 1, "turns": [{"text": "x", "tokens": [7], "logprobs": []}]}


def test_a_wrong_number_is_named():
    done = subprocess.run([sys.executable, FOLDER / "side_by_side.py", "99"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "MODEL": "m"})
    assert done.returncode and "99: no experiment, or several" in done.stderr
