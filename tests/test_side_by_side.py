"""Lists of commands run side by side, what is left of a finished run, and the archive that goes home."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the scripts alone."""
    (tmp_path / "experiments").mkdir()
    for name in ("side_by_side.sh", "stages.sh", "pack.py"):
        shutil.copy(ROOT / "experiments" / name, tmp_path / "experiments" / name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def run(project, text, **settings):
    (project / "try.list").write_text(text)
    environment = os.environ | {"PYTHON": sys.executable, "GRACE": "2"} | settings
    done = subprocess.run(["bash", "experiments/side_by_side.sh", "try.list"], cwd=project, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_order_failure_and_going_on(project):
    text = """# a list
export WORD=hello
a: echo $WORD >> a.txt
b after a: cat a.txt > b.txt
c: echo broken >&2; exit 3
d after c: touch d.txt
e after b d: touch e.txt
"""
    code, said = run(project, text, JOBS="2")
    assert code == 1 and (project / "b.txt").read_text() == "hello\n" and not (project / "d.txt").exists()
    assert "failed c after" in said and "exit 3: broken" in said and "left d" in said and "left e" in said and "done 2, failed 1, not begun 2" in said
    code, said = run(project, text.replace("; exit 3", ""), JOBS="2")  # only what isn't done
    assert code == 0 and "begin a" not in said and (project / "e.txt").exists() and (project / "a.txt").read_text() == "hello\n"
    with tarfile.open(project / "outputs" / "try.tar.gz") as archive:
        assert sorted(archive.getnames()) == [f"logs/try/{name}.log" for name in "abcde"]


def test_only_some_and_what_they_come_after(project):
    text = "".join(f"{name}: echo {name[0]} >> said.txt\n" for name in ("a", "b after a", "c", "d after b", "e after d"))
    code, said = run(project, text, JOBS="1", ONLY="d")
    assert code == 0 and (project / "said.txt").read_text().split() == ["a", "b", "d"] and "done 3, failed 0, not begun 0" in said
    assert run(project, text, ONLY="d f")[1].endswith("ONLY names f, which isn't there\n")


def test_no_more_at_once_than_asked_for_and_an_end_to_the_time(project):
    one = 'n=$(ls live 2>/dev/null | wc -l); mkdir -p live; touch live/$$; sleep 0.2; ls live | wc -l >> most.txt; rm live/$$'
    code, _ = run(project, "".join(f"j{i}: {one}\n" for i in range(4)), JOBS="2")
    assert code == 0 and max(map(int, (project / "most.txt").read_text().split())) <= 2
    code, said = run(project, "long: sleep 50; touch late.txt\nnext after long: touch late.txt\n", BUDGET="2")
    assert code == 1 and "the time is over: stopping 1" in said and not (project / "late.txt").exists()


@pytest.mark.parametrize("text, says", [("a echo\n", "not 'NAME: command': a echo"), ("a after b: echo\n", "a comes after b, which isn't above it")])
def test_P50_a_bad_list_is_one_line(project, text, says):
    code, said = run(project, text)
    assert code == 2 and says in said and len(said.strip().splitlines()) == 1


def test_the_archive_holds_what_is_counted_and_no_weights(project):
    output = project / "outputs" / "x"
    (output / "checkpoints").mkdir(parents=True)
    (output / "checkpoints" / "config.json").write_text("{}")
    (output / "model.safetensors").write_text("weights")
    turn = {"tokens": [1], "logprobs": [-1.0], "text": "hi"}
    record = {"id": "r", "reward": 1.0, "eval": {"correct": 1}, "turns": [turn], "sequence": {"tokens": [1]}}
    (output / "trajectories.jsonl").write_text("".join(json.dumps(record | {"sample_index": i}) + "\n" for i in range(3)))
    subprocess.run([sys.executable, "experiments/pack.py", "small.tar.gz", "outputs", "elsewhere"], cwd=project, check=True, capture_output=True)
    with tarfile.open(project / "small.tar.gz") as archive:
        assert archive.getnames() == ["outputs/x/trajectories.jsonl"]
        lines = [json.loads(line) for line in archive.extractfile("outputs/x/trajectories.jsonl")]
    assert [line["turns"] for line in lines] == [[{"text": "hi"}], [{"text": "hi"}], []]
    assert [line["eval"]["correct"] for line in lines] == [1, 1, 1] and not any("sequence" in line for line in lines)


TRAINER = """
import json, pathlib, signal, sys, time
run = pathlib.Path("runs") / sys.argv[sys.argv.index("--run-name") + 1]
state, sampler = run / "checkpoints/s/state", run / "checkpoints/s/sampler"
state.mkdir(parents=True)
sampler.mkdir()
signal.signal(signal.SIGINT, lambda *_: (run / "asked").open("a").write("x") and sys.exit(130))
(run / "config.json").write_text("{}")
(state / "optimizer.pt").write_text("x")
for place in (state, sampler):
    (place / "model.safetensors").write_text("y")
files = {"state_path": {"optimizer.pt": 1, "model.safetensors": 1}, "sampler_path": {"model.safetensors": 1}}
entry = {"step": 1, "state_path": "checkpoints/s/state", "sampler_path": "checkpoints/s/sampler", "files": files}
(run / "checkpoints.jsonl").write_text(json.dumps(entry) + chr(10))
time.sleep(float(sys.argv[-1]))
(run / "finished").touch()
"""


def test_parts_limits_and_slim_runs(project):
    """PART picks, LIMIT ends a training run without failing the script, SLIM drops the optimizer and the run still counts as whole."""
    (project / "train.py").write_text(TRAINER)
    shell = '. experiments/stages.sh; if part one; then train train.py quick 0; fi; if part two; then train train.py slow 30; fi; echo after'
    for part, name in (("one", "quick"), ("two", "slow")):
        environment = os.environ | {"PYTHON": sys.executable, "PART": part, "LIMIT": "5", "SLIM": "1"}
        done = subprocess.run(["bash", "-euc", shell], cwd=project, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout.strip() == "after", done.stderr
        assert (project / "runs" / name / "finished").exists() == (name == "quick")
    assert (project / "runs/slow/asked").read_text() == "x"  # once
    folder = project / "runs" / "quick"
    assert not (folder / "checkpoints/s/state/optimizer.pt").exists() and (project / "runs/slow/checkpoints/s/state/optimizer.pt").exists()
    assert (folder / "checkpoints/s/state/model.safetensors").samefile(folder / "checkpoints/s/sampler/model.safetensors")
    import checkpoints

    assert checkpoints.latest_checkpoint(folder)["step"] == 1


STAND_IN = """#!/usr/bin/env bash
echo "$@" >> said.txt
value() { local flag=$1; shift; while [ $# -gt 0 ]; do if [ "$1" = "$flag" ]; then echo "$2"; return; fi; shift; done; }
case $1 in
    prepare_data.py) place=$(value --output "$@")/$(value --task "$@"); mkdir -p "$place/sft" "$place/rl"; touch "$place"/sft/sft_{train,val}.jsonl ;;
    train_*) place=runs/$(value --run-name "$@"); mkdir -p "$place/checkpoints/s/sampler"; touch "$place/finished" "$place/checkpoints.jsonl" ;;
esac
"""


@pytest.mark.parametrize("script", sorted(path for folder in ("countdown", "gsm8k", "guess") for path in (ROOT / "experiments" / folder).glob("*.sh")), ids=lambda path: path.stem)
def test_no_evaluation_of_an_experiment_writes_over_another(project, script, monkeypatch):
    """A stand-in for python notes the commands. teachers.sh once sampled into the folder that its arm was to be evaluated in."""
    (project / "experiments" / script.parent.name).mkdir()
    shutil.copy(script, project / "experiments" / script.parent.name)
    (project / "python").write_text(STAND_IN)
    (project / "python").chmod(0o755)
    start = project / "runs" / "calculator-calc-sft"
    start.mkdir(parents=True)
    (start / "finished").touch()
    environment = os.environ | {"PYTHON": "./python", "MODEL": "some/model"} | {"CARELESS": "10", "FEW": "10"}
    done = subprocess.run(["bash", f"experiments/{script.parent.name}/{script.name}"], cwd=project, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in (project / "said.txt").read_text().splitlines()]
    outputs = [line[line.index("--output") + 1] for line in lines if line[0] == "eval.py"]
    assert len(outputs) > 1 and len(outputs) == len(set(outputs))
