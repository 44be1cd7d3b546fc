"""train_sft.py and train_rl.py with two ranks (gloo, CPU): the update of one process, rank 0 alone writes, all stop after the same step,
and a rank that is killed ends the job, which goes on with one process and with two."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import LAUNCH, TOY, tiny_folder
from test_parallel import free_port, spawn, wait

import runs
import train_rl
import train_sft
from protocol import write_jsonl

ROOT = Path(__file__).resolve().parents[1]
SFT = "--base-model model --rank 0 --task toy --data-dir sft --batch-size 3 --learning-rate 1e-3 --grad-clip 0.5 --keep-last 0".split()
RL = "--state-path model --task toy --data rl.jsonl --batch-size 3 --group-size 4 --max-tokens 6 --learning-rate 1e-3 --keep-last 0".split()
COUNTED = ("train/loss", "val/loss", "reward/mean", "reward/std", "loss", "grad_norm", "entropy", "train/assistant_tokens", "frac_reward_zero_std", "distinct",
           "reward_std", "virtual_max", "trained_trajectories", "usage/training_train", "usage/rollout_sample", "usage/rollout_prefill")  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, ten questions and ten demonstrations: with batches of three one step of an epoch has a single row."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ranks")
    tiny_folder(folder / "model", "qwen3")
    ask = lambda i: [{"role": "user", "content": f"question {i}"}]
    write_jsonl(folder / "rl.jsonl", [{"id": f"q{i}", "task": "toy", "messages": ask(i)} for i in range(10)])
    write_jsonl(folder / "solved.jsonl", [{"id": f"solved{i}", "task": "toy", "messages": ask(i)} for i in range(10)])
    demo = lambda i: {"id": f"s{i}", "messages": [*ask(i), {"role": "assistant", "content": f"it is {i} " * (i % 10 + 1)}]}
    write_jsonl(folder / "sft" / "sft_train.jsonl", [demo(i) for i in range(10)])
    write_jsonl(folder / "sft" / "sft_val.jsonl", [demo(i) for i in range(10, 13)])
    return folder


@pytest.fixture(autouse=True)
def at(monkeypatch, place):
    monkeypatch.chdir(place)


def main(rank, script, flags, before):
    """A rank: the script, as torchrun would start it. Adam's eps: else it makes whole steps of gradients that are nothing but rounding."""
    import backends

    toy = types.ModuleType("tasks.toy")
    exec(TOY, toy.__dict__)
    sys.modules["tasks.toy"] = toy
    sys.argv = [f"{script.__name__}.py", *map(str, flags)]
    sys.stdout, sys.stderr = (open(f"log.{os.getpid()}", "w") for _ in range(2))
    backends.AdamParams.__init__.__defaults__ = (0.9, 0.95, 1e-3, 0.0, 0.0)
    before(rank)
    raise SystemExit(asyncio.run(script.main()))


def go(script, size, *flags, before=lambda rank: None):
    """Exit statuses of the ranks."""
    return wait(spawn(main, size, script, flags, before), 120)


def lines(name):
    return {row["step"]: row for row in map(json.loads, (Path("runs") / name / "metrics.jsonl").read_text().splitlines())}


def weights(name, step):
    from safetensors.torch import load_file

    (file,) = (Path("runs") / name / "checkpoints").glob(f"step-{step:06d}*/sampler/model.safetensors")
    return load_file(file)


def same(one, two, step, tolerance=1e-5):
    left, right = weights(one, step), weights(two, step)
    assert left.keys() == right.keys() and max((left[name] - right[name]).abs().max().item() for name in left) < tolerance
    ours, theirs = lines(one), lines(two)
    assert ours.keys() == theirs.keys()
    for at in ours:
        assert ours[at].keys() == theirs[at].keys()
        picked = [{name: line[at][name] for name in COUNTED if name in line[at]} for line in (ours, theirs)]
        assert picked[0] == pytest.approx(picked[1], rel=1e-4, abs=1e-5), at


def test_sft_of_two_ranks_is_that_of_one():
    """Five steps of 3, 3, 3, 1 and 3 rows, validation, clipped gradients, a row that is too long."""
    for name, size in (("sft-one", 1), ("sft-two", 2)):
        assert go(train_sft, size, *SFT, "--run-name", name, "--epochs", 2, "--max-seq-len", 90) == [0] * size
    same("sft-one", "sft-two", 8)
    assert lines("sft-two")[8]["train/rows_left_out"] > 0 and (Path("runs/sft-two") / "finished").exists()
    before = torch.load(next(Path("runs/sft-one/checkpoints").glob("step-000008*")) / "state/optimizer.pt", weights_only=True)
    after = torch.load(next(Path("runs/sft-two/checkpoints").glob("step-000008*")) / "state/optimizer.pt", weights_only=True)
    assert before["optimizer"]["state"].keys() == after["optimizer"]["state"].keys()


@pytest.mark.parametrize("extra", [["--kl-coef", 0.1], ["--virtual-max", "auto", "--lead", "0.3,3", "--data", "solved.jsonl", "--max-reward", 2, "--log-groups", 9], ["--importance-cap", 2, "--dart", "0.3,0.7"]])
def test_rl_of_two_ranks_is_that_of_one(extra):
    """Six steps, the fourth with one question, so that the second rank has nothing; the virtual sample comes in when all ranks' groups were flat."""
    for name, size in (("one", 1), ("two", 2)):
        assert go(train_rl, size, *RL, "--run-name", f"rl{extra[0]}-{name}", "--epochs", 2, "--max-steps", 6, *extra) == [0] * size
    same(f"rl{extra[0]}-one", f"rl{extra[0]}-two", 6)
    read = lambda name: [json.loads(line) for line in (Path("runs") / f"rl{extra[0]}-{name}" / "trajectories.jsonl").read_text().splitlines()]
    tokens = lambda name: sorted((line["step"], line["id"], line["sample_index"], *line["turns"][0]["tokens"]) for line in read(name))
    assert tokens("one") == tokens("two"), "the same rows give the same trajectories, whoever samples them"
    if "--virtual-max" in extra:
        assert [lines("rl--virtual-max-two")[step]["virtual_max"] for step in range(1, 7)] == [0, 0, 0, 0, 1, 1]


def test_refill_fills_up_each_rank_for_itself():
    assert go(train_rl, 2, *RL, "--run-name", "refill", "--data", "solved.jsonl", "--max-steps", 2, "--refill", 2) == [0, 0]
    assert lines("refill")[2]["frac_groups_silent"] == 1


def ask_rank_one(rank):
    """After its second step rank 1 alone hears Ctrl-C."""
    if rank == 1:
        called = []
        asked = runs.stop_requested
        runs.stop_requested = lambda: called.append(1) or len(called) > 1 or asked()


@pytest.mark.parametrize("script, flags", [(train_sft, SFT), (train_rl, RL)])
def test_P36_all_stop_after_the_same_step(script, flags):
    name = f"stop-{script.__name__}"
    assert go(script, 2, *flags, "--run-name", name, "--epochs", 2, "--save-every", 0, before=ask_rank_one) == [130, 130]
    assert max(lines(name)) == 2 and weights(name, 2)
    assert not (Path("runs") / name / "finished").exists()


def break_rank_one(rank):
    if rank == 1:
        def broken(*_):
            raise SystemExit("rl.jsonl, row 7: no such thing")

        train_rl.judge = broken


def test_a_rank_that_fails_ends_the_other_with_one_line():
    begun = time.monotonic()
    assert go(train_rl, 2, *RL, "--run-name", "fails", before=break_rank_one) == [1, 1] and time.monotonic() - begun < 60


def hang_rank_one(rank):
    from datetime import timedelta

    from backends import parallel

    parallel.PATIENCE = timedelta(seconds=5)
    if rank == 1:
        train_rl.judge = lambda *_: time.sleep(1000)


def test_a_rank_that_hangs_ends_the_other_after_its_patience():
    living, hung = spawn(main, 2, train_rl, [*RL, "--run-name", "hangs"], hang_rank_one)
    try:
        assert wait([living]) == [1] and hung.is_alive()
    finally:
        hung.kill()


def test_services_take_one_process(monkeypatch):
    from backends import parallel

    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    args = types.SimpleNamespace(backend="pytrio", base_url=None, device=None)
    with pytest.raises(SystemExit, match="--backend pytrio under torchrun: only local trains with several"):
        parallel.join(args)


def test_ways_of_training_are_passed_on_and_refused_by_services():
    import backends

    args = types.SimpleNamespace(backend="local", device="cpu", base_url=None, compile=False, recompute=True, fsdp=False)
    assert backends.options(args, lambda path, **options: None) == {"device": "cpu", "recompute": True}
    args = types.SimpleNamespace(backend="tinker", device=None, base_url=None, compile=True, recompute=True, fsdp=False)
    with pytest.raises(SystemExit, match="--compile --recompute: --backend tinker is a service"):
        backends.options(args, lambda path, base_url=None: None)
    assert backends.options(types.SimpleNamespace(backend="local", device=None, base_url=None), lambda path: None) == {}, "a script that only samples"


def torchrun(script, *flags):
    """As users start it; a launcher file, because the toy task is no file of tasks/."""
    Path("launch.py").write_text(LAUNCH.format(root=str(ROOT), toy=TOY, script=script).replace("; ", "\n"))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), "launch.py", *map(str, flags)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True)


def children(pid):
    """Processes started by `pid`, {rank: its id}."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if int((place / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                rank = re.search(rb"(?:^|\0)RANK=(\d+)", (place / "environ").read_bytes())
                found |= {int(rank[1]): int(place.name)} if rank else {}
        except (OSError, IndexError):
            pass
    return found


def goes_on(name):
    """From what `name` left, with one process and with two: the same steps, and the same weights but for rounding."""
    assert max(lines(name)) < 12
    shutil.copytree(f"runs/{name}", f"runs/{name}-again")
    assert go(train_rl, 1, "--resume", f"runs/{name}") == [0]
    assert go(train_rl, 2, "--resume", f"runs/{name}-again") == [0, 0]
    assert list(lines(name)) == list(lines(f"{name}-again")) == list(range(1, 13))
    one, two = weights(name, 12), weights(f"{name}-again", 12)
    assert np.mean([(one[key] - two[key]).abs().mean().item() for key in one]) < 1e-4


def until_saved(name, alive, count=2):
    log, until = Path("runs") / name / "checkpoints.jsonl", time.time() + 400
    while (not log.exists() or len(log.read_text().splitlines()) < count) and time.time() < until and alive():
        time.sleep(0.02)


LONG = ["--epochs", 4, "--max-steps", 12, "--save-every", 1]


def test_P36_interrupted_ranks_go_on_with_one_process_and_with_two():
    ranks = spawn(main, 2, train_rl, [*RL, "--run-name", "interrupted", *LONG], lambda rank: None)
    until_saved("interrupted", ranks[0].is_alive)
    for process in ranks:  # as torchrun does it after Ctrl-C
        os.kill(process.pid, signal.SIGINT)
    assert wait(ranks) == [130, 130]
    goes_on("interrupted")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
def test_P22_a_killed_rank_ends_the_job_which_goes_on_with_one_process_and_with_two():
    """With torchrun itself."""
    process = torchrun("train_rl", *RL, "--run-name", "killed", *LONG)
    until_saved("killed", lambda: process.poll() is None)
    begun = time.monotonic()
    os.kill(children(process.pid)[1], signal.SIGKILL)
    said = process.communicate(timeout=90)[0]
    assert process.returncode and time.monotonic() - begun < 60 and "SIGKILL" in said, said
    goes_on("killed")


def pretrain_main(rank, out):
    import pretrain

    torch.set_num_threads(1)
    sys.stdout = open(f"log.{os.getpid()}", "w")
    sizes = "--objects 40 --held-out 40 --manuals 40 --workers 1 --picture-size 64x64 --width 64 --layers 1 --vocab-size 700 --steps 4 --batch-size 20"
    pretrain.main(["tiny-vlm", *sizes.split(), "--learning-rate", "2e-2", "--out", out])


@pytest.mark.slow
def test_pretraining_with_two_ranks_is_that_with_one():
    for name, size in (("pre-one", 1), ("pre-two", 2)):
        assert wait(spawn(pretrain_main, size, name), 500) == [0] * size
    one, two = ([(line["loss"], line["text"]) for line in json.loads((Path(name) / "pretraining.json").read_text())["stages"][0]["log"]] for name in ("pre-one", "pre-two"))
    assert len(one) == 4 and np.array(two) == pytest.approx(np.array(one), abs=2e-3) and one[0] != one[-1]
