"""Whole runs of the scripts through `--backend pytrio`: the real SDK against the loopback service of stub_pytrio.py, which really trains."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

pytest.importorskip("pytrio", reason="the extra `remote` is not installed")
import torch  # noqa: E402
import transformers  # noqa: E402
from helpers import tiny_folder  # noqa: E402
from stub_pytrio import serving  # noqa: E402
from test_train import LAUNCH, TOY, call, metrics_of  # noqa: E402

import prepare_data  # noqa: E402
import train_rl  # noqa: E402
import train_sft  # noqa: E402
from protocol import write_jsonl  # noqa: E402

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[1]
# float32; the service cuts a batch into events, so sums round otherwise. RL samples the same tokens from weights that agree this far.
TOLERANCE = 2e-4


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a tiny text model, questions and demonstrations, and the toy task in sys.modules."""
    module = types.ModuleType("tasks.toy")
    exec(TOY, module.__dict__)
    monkeypatch.setitem(sys.modules, "tasks.toy", module)
    monkeypatch.chdir(tmp_path)
    tiny_folder("model", "qwen3")
    model, tokenizer = (kind.from_pretrained("model") for kind in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer))
    model.resize_token_embeddings(len(tokenizer))  # what isn't in the vocabulary may not be trained, says the SDK; so it must not be sampled
    model.save_pretrained("model")
    ask = lambda i: [{"role": "user", "content": f"question {i}"}]
    write_jsonl("rl.jsonl", [{"id": f"q{i}", "task": "toy", "messages": ask(i)} for i in range(12)])
    demo = lambda i: {"id": f"s{i}", "messages": [*ask(i), {"role": "assistant", "content": f"<answer>\\boxed{{{'YES' if i % 2 else 'NO'}}} it is {i}</answer>"}]}
    write_jsonl("sft/sft_train.jsonl", [demo(i) for i in range(10)])
    write_jsonl("sft/sft_val.jsonl", [demo(i) for i in range(10, 14)])
    return tmp_path


@pytest.fixture
def stub(place, monkeypatch):
    with serving(place, "model", monkeypatch) as service:
        yield service


def sft_flags(stub, name, *more):
    return ["--backend", "pytrio", "--base-url", stub.url, "--base-model", "model", "--rank", 4, "--task", "toy", "--data-dir", "sft", "--batch-size", 4,
            "--learning-rate", 1e-2, "--epochs", 2, "--save-every", 1, "--keep-last", 0, "--run-name", name, *more]  # fmt: skip


def rl_flags(stub, name, *more):
    return ["--backend", "pytrio", "--base-url", stub.url, "--task", "toy", "--data", "rl.jsonl", "--batch-size", 2, "--group-size", 4, "--max-tokens", 6,
            "--learning-rate", 1e-2, "--save-every", 1, "--keep-last", 0, "--run-name", name, *more]  # fmt: skip


def checkpoints(name):
    return [json.loads(line) for line in (Path("runs") / name / "checkpoints.jsonl").read_text().splitlines()]


def assert_same_run(one, two, tolerance=TOLERANCE):
    """Metrics of all steps agree; times apart, and what a service can't tell (entropy) or counts anew (its version)."""
    rows = [metrics_of(name) for name in (one, two)]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
    for left, right in zip(*rows):
        names = {name for name in left.keys() & right.keys() if not re.match("time|tok_per_sec|entropy|sampler_version", name)}
        assert {"train/loss", "val/loss", "loss"} & names
        for name in sorted(names):
            assert left[name] == pytest.approx(right[name], rel=tolerance, abs=tolerance), (left["step"], name)


def copy_until(source, name, step):
    """runs/name: what runs/source was after its checkpoint of `step`, as if it had been killed a little later."""
    folder = Path("runs") / name
    folder.mkdir()
    for file in ("config.json", "metrics.jsonl"):
        (folder / file).write_bytes((Path("runs") / source / file).read_bytes())
    lines = (Path("runs") / source / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    (folder / "checkpoints.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= step))
    return folder


# ---------------------------------------------------------------- resume from the remote state


def test_P21_sft_and_rl_resume_from_the_remote_state(stub, monkeypatch, capsys):
    call(train_sft, monkeypatch, *sft_flags(stub, "sft"))
    said = capsys.readouterr().out
    kept = checkpoints("sft")
    assert [entry["step"] for entry in kept] == [1, 2, 3, 4, 5, 6]
    last = kept[-1]
    assert last["state_path"] == "trio://run1/weights/sft-step-000006-state" and last["sampler_path"] == "trio://run1/sampler_weights/sft-step-000006-sampler"
    assert f"state_path {last['state_path']}" in said and f"sampler_path {last['sampler_path']}" in said
    assert (kept[3]["epoch"], kept[3]["position"]) == (1, 1) and kept[3]["rng"]["python"] and kept[3]["usage"]["training_train"] > 0
    assert not list(Path("runs/sft/checkpoints").iterdir()), "nothing of a remote checkpoint is here"

    copy_until("sft", "sft-again", 4)
    before = len(stub.events)
    call(train_sft, monkeypatch, "--resume", "runs/sft-again")
    assert_same_run("sft", "sft-again")
    sent = [kind for kind in stub.types()[before:]]
    assert sent[0] == "init_run" and stub.events[before][1]["checkpoint_uri"] == kept[3]["state_path"] and stub.events[before][1]["load_optimizer"]
    assert sent.count("optimize_step") == 2, "steps 5 and 6 only: what the checkpoint holds is not trained again"

    call(train_rl, monkeypatch, *rl_flags(stub, "rl", "--state-path", "runs/sft", "--max-steps", 3))
    copy_until("rl", "rl-again", 1)
    before = len(stub.events)
    call(train_rl, monkeypatch, "--resume", "runs/rl-again")
    assert_same_run("rl", "rl-again")
    assert stub.types()[before:].count("optimize_step") == 2
    usage = checkpoints("rl-again")[-1]["usage"]
    assert usage == checkpoints("rl")[-1]["usage"] == {name: sum(row[f"usage/{name}"] for row in metrics_of("rl")) for name in usage}
    assert usage["rollout_sample"] <= 3 * 8 * 6 and usage["training_train"] > 0


@pytest.mark.slow
def test_P22_P36_a_remote_run_that_is_stopped_goes_on(stub, monkeypatch, place):
    """Killed at any moment, or asked to stop: --resume ends with the numbers of the run that was left alone."""
    call(train_sft, monkeypatch, *sft_flags(stub, "alone"))
    answer = stub.submit
    for how in (signal.SIGKILL, signal.SIGINT):
        name = f"sft-{how.name}"
        command = [sys.executable, "-c", LAUNCH.format(root=str(ROOT), toy=TOY, script="train_sft"), *map(str, sft_flags(stub, name))]
        keys = {"PYTRIO_API_KEY": "any", "HOME": str(place), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        stub.submit = lambda event: time.sleep(0.1) or answer(event)  # slow enough to be stopped in the middle
        process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **keys})
        log, until = Path("runs") / name / "checkpoints.jsonl", time.time() + 120
        while (not log.exists() or len(log.read_text().splitlines()) < 2) and time.time() < until and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(how)
        output = process.communicate(timeout=60)[0].decode()
        assert process.returncode == (130 if how == signal.SIGINT else -9), output
        stub.submit = answer
        reached, before = checkpoints(name)[-1]["step"], len(stub.events)
        assert 2 <= reached < 6, output
        assert how == signal.SIGKILL or f"stopped after step {reached}; go on with: python train_sft.py --resume runs/{name}" in output
        call(train_sft, monkeypatch, "--resume", f"runs/{name}")
        assert_same_run("alone", name)
        assert stub.types()[before:].count("optimize_step") == 6 - reached


# ---------------------------------------------------------------- faults


def test_a_dead_branch_is_dropped_while_its_group_lives(stub, monkeypatch):
    """One branch's own request fails for good: that trajectory is counted as failed, and the step trains the others."""
    paused = TOY.replace("step=None", "step=None, stop_strings=(' ', 'e', 'i', 's'), inline=lambda text: '!' if len(text) < 20 else None")
    exec(paused, sys.modules["tasks.toy"].__dict__)  # a letter interrupts the turn; each branch then asks for itself
    call(train_sft, monkeypatch, *sft_flags(stub, "sft", "--save-every", 0))
    asked, answer = [], stub.sample

    async def failing(name, body):
        if body["num_samples"] == 1:
            asked.append(body)
            if len(asked) <= 1:
                return 400, {"error": {"code": "bad_request", "message": "injected: this branch dies"}}
        return await answer(name, body)

    stub.sample = failing
    call(train_rl, monkeypatch, *rl_flags(stub, "rl", "--state-path", "runs/sft", "--max-steps", 1, "--max-tokens", 30, "--log-groups", 2))
    row = metrics_of("rl")[0]
    assert len(asked) > 1 and row["failed"] == 1 and row["finish/error"] == 1 and row["groups_dropped"] == 0 and row["train/updates"] == 1
    dead = [t for t in map(json.loads, Path("runs/rl/trajectories.jsonl").read_text().splitlines()) if t["finish_reason"] == "error"]
    assert len(dead) == 1 and "injected: this branch dies" in dead[0]["error"]
    assert row["trained_trajectories"] <= 7


def test_a_sample_that_came_back_incomplete_costs_one_branch(stub, monkeypatch):
    """One of the four samples of a request lacks a log-probability: its group goes on with three (75 %)."""
    call(train_sft, monkeypatch, *sft_flags(stub, "sft", "--save-every", 0))
    answer = stub.sample

    async def torn(name, body):
        status, found = await answer(name, body)
        found["sequences"][1]["logprobs"].pop()
        return status, found

    stub.sample = torn
    call(train_rl, monkeypatch, *rl_flags(stub, "rl", "--state-path", "runs/sft", "--max-steps", 1))
    row = metrics_of("rl")[0]
    assert row["failed"] == 2 and row["groups_dropped"] == 0 and row["trained_trajectories"] == 6 and row["train/updates"] == 1


def test_refusals_come_before_anything_is_sent(stub, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    for i, (flags, said) in enumerate((
        (["--rank", 0], "--rank 0: PyTRIO trains LoRAs"),
        (["--device", "cpu"], "--device cpu: --backend pytrio is a service"),
        (["--backend", "local"], "--base-url .* --backend local runs here"),
        (["--price", "1,2,3"], "--price: this would cost 0.0.*no terminal"),
        (["--state-path", "model"], "not files of this machine"),
    )):  # fmt: skip
        with pytest.raises(SystemExit, match=said):
            name = f"bad{i}"
            call(train_rl if "--state-path" in flags else train_sft, monkeypatch, *(rl_flags if "--state-path" in flags else sft_flags)(stub, name, *flags))
    assert stub.events == []


def test_the_key_is_nowhere_in_the_run_folder(stub, monkeypatch):
    import pytrio

    pytrio.configure(api_key="secret-of-the-user")
    call(train_sft, monkeypatch, *sft_flags(stub, "sft", "--epochs", 1))
    assert not [file for file in Path("runs").rglob("*") if file.is_file() and b"secret-of-the-user" in file.read_bytes()]
    assert not any("telemetry" in path for _, path in stub.calls)


# ---------------------------------------------------------------- the speedrun


@pytest.mark.slow
def test_the_smoke_speedrun_gives_the_losses_of_the_local_backend(tmp_path, monkeypatch):
    """speedrun.sh with SMOKE=1: data, SFT and GRPO with pictures, a LoRA (services train nothing else) on models/tiny-vlm, same seed.

    --virtual-max: after two steps of SFT every group fails alike, and without it RL would have nothing to compare.
    """
    monkeypatch.chdir(ROOT)
    data, model = tmp_path / "data", "models/tiny-vlm"
    monkeypatch.setattr(sys, "argv", ["prepare_data.py", "all", "--task", "spec_o3", "--source", "synthetic", "--output", str(data),
                                      "--sft-size", "72", "--train-size", "16", "--dev-size", "20", "--test-size", "0"])  # fmt: skip
    prepare_data.main()
    folder = ["--runs-dir", tmp_path / "runs"]
    with serving(tmp_path, model, monkeypatch, {"max_seq_len": 1024}) as stub:
        for name, where in (("local", []), ("remote", ["--backend", "pytrio", "--base-url", stub.url])):
            call(train_sft, monkeypatch, "--run-name", f"{name}-sft", *folder, *where, "--base-model", model, "--rank", 8, "--data-dir", data / "spec_o3" / "sft",
                 "--epochs", 1, "--batch-size", 32, "--learning-rate", 1.5e-3, "--answer-weight", 40, "--schedule", "cosine", "--warmup", 0.05,
                 "--grad-clip", 1)  # fmt: skip
            call(train_rl, monkeypatch, "--run-name", f"{name}-rl", *folder, *where, "--state-path", tmp_path / "runs" / f"{name}-sft",
                 "--data", data / "spec_o3" / "rl" / "bench_rl_train.jsonl", "--max-turns", 4, "--max-tokens", 80, "--max-seq-len", 1024,
                 "--max-steps", 2, "--batch-size", 2, "--group-size", 4, "--learning-rate", 2e-4, "--warmup-steps", 10, "--grad-clip", 1,
                 "--virtual-max", "on")  # fmt: skip
        assert stub.types().count("optimize_step") >= 3
    monkeypatch.chdir(tmp_path)
    assert_same_run("local-sft", "remote-sft")
    assert_same_run("local-rl", "remote-rl")
    actions = lambda name: [[turn["text"] for turn in json.loads(line)["turns"]] for line in (Path("runs") / name / "trajectories.jsonl").read_text().splitlines()]
    assert actions("local-rl") == actions("remote-rl")
