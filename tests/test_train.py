"""train_sft.py and train_rl.py as their users run them: whole runs of a tiny model on a toy task, resumed, killed, given nonsense."""

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
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import LAUNCH, TOY, tiny_folder

import health
import train_rl
import train_sft
from protocol import write_jsonl
from rollout import Trajectory
from tasks import spec_o3

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, questions and demonstrations."""
    import torch

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("train")
    tiny_folder(folder / "model", "qwen3")
    ask = lambda i: [{"role": "user", "content": f"question {i}"}]
    write_jsonl(folder / "rl.jsonl", [{"id": f"q{i}", "task": "toy", "messages": ask(i)} for i in range(12)])
    write_jsonl(folder / "solved.jsonl", [{"id": f"solved{i}", "task": "toy", "messages": ask(i)} for i in range(12)])
    demo = lambda i: {"id": f"s{i}", "messages": [*ask(i), {"role": "assistant", "content": f"<answer>\\boxed{{{'YES' if i % 2 else 'NO'}}} it is {i}</answer>"}]}
    write_jsonl(folder / "sft" / "sft_train.jsonl", [demo(i) for i in range(10)])
    write_jsonl(folder / "sft" / "sft_val.jsonl", [demo(i) for i in range(10, 14)])
    return folder


@pytest.fixture(autouse=True)
def toy(monkeypatch, place):
    module = types.ModuleType("tasks.toy")
    exec(TOY, module.__dict__)
    monkeypatch.setitem(sys.modules, "tasks.toy", module)
    monkeypatch.chdir(place)


def call(script, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, flags)])
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_DFL)
    return asyncio.run(script.main())


def sft_flags(name, *more):
    return ["--base-model", "model", "--rank", 0, "--task", "toy", "--data-dir", "sft", "--batch-size", 4, "--learning-rate", 1e-3, "--run-name", name, "--keep-last", 0, *more]


def rl_flags(name, *more):
    return ["--state-path", "model", "--task", "toy", "--data", "rl.jsonl", "--batch-size", 2, "--group-size", 4, "--max-tokens", 6, "--learning-rate", 1e-3,
            "--run-name", name, "--keep-last", 0, *more]  # fmt: skip


def metrics_of(name):
    return [json.loads(line) for line in (Path("runs") / name / "metrics.jsonl").read_text().splitlines()]


def weights(name, step):
    from safetensors.torch import load_file

    (file,) = (Path("runs") / name / "checkpoints").glob(f"step-{step:06d}*/sampler/model.safetensors")
    return load_file(file)


def same_weights(one, two, tolerance=0.0):
    return all((one[key] - two[key]).abs().max() <= tolerance for key in one)


def same_numbers(one, two, step, tolerance=0.0):
    """Metrics of a step are equal, times apart."""
    pick = lambda name: {k: v for k, v in next(row for row in metrics_of(name) if row["step"] == step).items() if not re.match("time|tok_per_sec", k)}
    return pick(one) == pytest.approx(pick(two), rel=tolerance, abs=tolerance)


# SFT is exact to the last bit. RL samples the same tokens, but which requests share a forward depends on when they arrive, and another
# batch rounds its float32 sums otherwise: log-probabilities agree to 1e-6, and so do the updates made from them.
ROUNDING = 2e-5


# ---------------------------------------------------------------- resume


def test_P21_sft_six_steps_are_three_and_three(monkeypatch):
    call(train_sft, monkeypatch, *sft_flags("sft-straight", "--epochs", 2, "--schedule", "cosine"))
    call(train_sft, monkeypatch, *sft_flags("sft-parts", "--epochs", 2, "--schedule", "cosine", "--save-every", 2))
    broken = Path("runs/sft-parts")
    lines = (broken / "checkpoints.jsonl").read_text().splitlines()  # as if the run had been killed after its checkpoint of step 2
    (broken / "checkpoints.jsonl").write_text(lines[0] + "\n")
    call(train_sft, monkeypatch, "--resume", broken)
    assert [row["step"] for row in metrics_of("sft-parts")] == [0, 1, 2, 3, 4, 5, 6]
    assert all(same_numbers("sft-straight", "sft-parts", step) for step in range(3, 7))
    assert same_weights(weights("sft-straight", 6), weights("sft-parts", 6))
    assert metrics_of("sft-parts")[-1]["val/loss"] < metrics_of("sft-parts")[0]["val/loss"]


def test_P21_rl_six_steps_are_three_and_three(monkeypatch):
    call(train_rl, monkeypatch, *rl_flags("rl-straight", "--max-steps", 6))
    call(train_rl, monkeypatch, *rl_flags("rl-parts", "--max-steps", 3))
    call(train_rl, monkeypatch, "--resume", "runs/rl-parts", "--max-steps", 6)
    assert [row["step"] for row in metrics_of("rl-parts")] == [1, 2, 3, 4, 5, 6]
    assert all(same_numbers("rl-straight", "rl-parts", step, ROUNDING) for step in range(1, 7))
    assert same_weights(weights("rl-straight", 6), weights("rl-parts", 6), ROUNDING)
    assert not same_weights(weights("rl-straight", 6), weights("rl-parts", 3))
    seeds = [json.loads(line)["seed"] for line in Path("runs/rl-parts/trajectories.jsonl").read_text().splitlines()]
    assert len(set(seeds)) == 6, "P43: no step samples with the seeds of another"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_P22_P36_a_run_that_is_stopped_goes_on_exactly(monkeypatch, how, place):
    """Killed at any moment, or asked to stop: --resume ends with the weights of the run that was left alone."""
    name = f"rl-{how.name}"
    command = [sys.executable, "-c", LAUNCH.format(root=str(ROOT), toy=TOY, script="train_rl")]
    flags = list(map(str, rl_flags(name, "--epochs", 3, "--max-steps", 12, "--save-every", 1)))
    process = subprocess.Popen([*command, *flags], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    log = Path("runs") / name / "checkpoints.jsonl"
    until = time.time() + 90
    while (not log.exists() or len(log.read_text().splitlines()) < 3) and time.time() < until and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(how)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == (130 if how == signal.SIGINT else -9), output
    assert len(metrics_of(name)) < 12, output
    call(train_rl, monkeypatch, "--resume", f"runs/{name}")
    if not Path("runs/rl-alone").exists():
        call(train_rl, monkeypatch, *rl_flags("rl-alone", "--epochs", 3, "--max-steps", 12, "--save-every", 1))
    assert [row["step"] for row in metrics_of(name)] == list(range(1, 13))
    assert same_weights(weights("rl-alone", 12), weights(name, 12), 10 * ROUNDING)


def test_P45_resuming_outlives_the_checkpoint_it_began_from(monkeypatch):
    """--keep-last removes the checkpoint that a resumed run was loaded from; saving must not need its files any more."""
    keep = ["--keep-last", 1, "--save-every", 1]
    call(train_sft, monkeypatch, *sft_flags("sft-keep", "--epochs", 1, *keep))
    call(train_sft, monkeypatch, "--resume", "runs/sft-keep", "--epochs", 2)
    assert [row["step"] for row in metrics_of("sft-keep")] == list(range(7)) and weights("sft-keep", 6)
    assert (next(Path("runs/sft-keep/checkpoints").glob("step-000006*")) / "state" / "tokenizer.json").exists()


def test_what_is_wrong_at_the_start_leaves_the_name_free(monkeypatch):
    with pytest.raises(SystemExit):
        call(train_sft, monkeypatch, *sft_flags("sft-again", "--base-model", "nowhere/at/all"))
    with pytest.raises(SystemExit, match="nothing would be trained"):
        call(train_sft, monkeypatch, *sft_flags("sft-again", "--max-seq-len", 3))
    call(train_sft, monkeypatch, *sft_flags("sft-again"))
    assert (Path("runs/sft-again/finished")).exists()


# ---------------------------------------------------------------- learning, and knowing when there is none


def test_rl_raises_the_reward(monkeypatch):
    call(train_rl, monkeypatch, *rl_flags("rl-learns", "--epochs", 4, "--max-steps", 20, "--learning-rate", 5e-3, "--batch-size", 4, "--group-size", 8, "--save-every", 0))
    rewards = [row["reward/mean"] for row in metrics_of("rl-learns")]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2, rewards


@pytest.mark.parametrize("extra", [[], ["--advantage", "mean"], ["--advantage", "rloo"], ["--virtual-max", "on"], ["--loss", "cispo"], ["--loss", "gspo"], ["--kl-coef", 0.1],
                                   ["--loss", "importance_sampling"], ["--importance-cap", 2], ["--refill", 1], ["--length-penalty", 0.5], ["--temperature", 0.6]])  # fmt: skip
def test_P23_P48_first_update_is_on_policy(monkeypatch, extra):
    """Ratio 1 and KL 0 on the first token of the first step, whatever the options, at temperature 0.6 too."""
    name = "rl-" + "".join(map(str, extra)).replace("-", "")
    call(train_rl, monkeypatch, *rl_flags(name, "--max-steps", 2, "--max-tokens", 4, *extra))
    first = metrics_of(name)[0]
    assert first["train/updates"] == 1 and first["train/assistant_tokens"] > 0
    assert abs(first["ratio_mean"] - 1) < 1e-3 and abs(first["kl"]) < 1e-5 and first["sampler_logp_diff"] < 1e-3 and first.get("clip_fraction", 0) < 0.2
    assert [row["sampler_version"] for row in metrics_of(name)] == [0, 1], "P27: the second step samples from the updated weights"


def test_P17_P19_all_equal_rewards_update_nothing_and_end(monkeypatch, capsys):
    call(train_rl, monkeypatch, *rl_flags("rl-flat", "--data", "solved.jsonl", "--max-steps", 2, "--refill", 2))
    rows = metrics_of("rl-flat")
    assert [row["frac_reward_zero_std"] for row in rows] == [row["frac_groups_silent"] for row in rows] == [1, 1] and rows[-1]["train/updates"] == 0 and rows[-1]["train/assistant_tokens"] == 0
    assert "WARNING: the rewards of every group are equal" in capsys.readouterr().out


def test_P17_virtual_max_learns_from_groups_that_failed_alike(monkeypatch):
    call(train_rl, monkeypatch, *rl_flags("rl-virtual", "--data", "solved.jsonl", "--max-steps", 1, "--virtual-max", "on", "--max-reward", 2.0))
    assert metrics_of("rl-virtual")[0]["train/updates"] == 1


def test_P13_truncation_is_said_at_step_one(monkeypatch, capsys):
    call(train_rl, monkeypatch, *rl_flags("rl-cut", "--max-tokens", 1, "--max-steps", 1))
    assert "WARNING: 100% of the generations were cut off" in capsys.readouterr().out and metrics_of("rl-cut")[0]["clipped_ratio"] == 1
    with pytest.raises(SystemExit, match="strict"):
        call(train_rl, monkeypatch, *rl_flags("rl-cut-strict", "--max-tokens", 1, "--max-steps", 1, "--strict"))


def test_P15_masked_truncated_trajectories_train_no_token(monkeypatch):
    call(train_rl, monkeypatch, *rl_flags("rl-mask", "--max-tokens", 3, "--max-steps", 1, "--truncated", "mask"))
    row = metrics_of("rl-mask")[0]
    assert row["clipped_ratio"] == 1 and row["trained_trajectories"] == 0 and row["train/updates"] == 0


def test_pool_keeps_questions_solved_sometimes(monkeypatch, capsys):
    record = lambda id, correct: {"id": id, "parts": {"correct": correct}}
    write_jsonl("pool/trajectories.jsonl", [record("q0", 1), record("q0", 0), record("q1", 1), record("q1", 1), record("q2", 0), record("q2", 0)])
    call(train_rl, monkeypatch, *rl_flags("rl-pool", "--pool", "pool", "--pool-range", "1,1", "--max-steps", 1))
    assert "1 of 12 questions were solved 1 to 1 times" in capsys.readouterr().out


# ---------------------------------------------------------------- the toolbox


def test_resume_needs_no_place_where_it_began_and_keeps_its_place_in_rows(monkeypatch, place):
    """Another batch size goes on behind the rows that were seen: 12 rows, two steps of 4, then steps of 2 for the last 4 of the epoch."""
    shutil.copytree(place / "model", place / "of/an/old/run")
    old = ["--state-path", "of/an/old/run", "--base-model", "model", "--log-groups", 9]
    call(train_rl, monkeypatch, *rl_flags("rl-place", "--max-steps", 2, "--batch-size", 4), *old)
    shutil.rmtree(place / "of")
    call(train_rl, monkeypatch, "--resume", "runs/rl-place", "--batch-size", 2, "--max-steps", 0)
    lines = [json.loads(line) for line in Path("runs/rl-place/trajectories.jsonl").read_text().splitlines()]
    seen = {step: {line["id"] for line in lines if line["step"] == step} for step in range(1, 5)}
    assert [len(ids) for ids in seen.values()] == [4, 4, 2, 2] and len(set.union(*seen.values())) == 12
    assert metrics_of("rl-place")[-1]["train/epoch"] == 1 and (Path("runs/rl-place") / "finished").exists()
    with pytest.raises(SystemExit, match="of/an/old/run"):  # the anchor of --kl-coef does need it
        call(train_rl, monkeypatch, "--resume", "runs/rl-place", "--kl-coef", 0.1, "--epochs", 2)


def test_phases_change_the_reward_that_is_trained(monkeypatch):
    """Odd token ids are wanted in the first half, nothing in the second: a part with weight 0 leaves every group flat."""
    call(train_rl, monkeypatch, *rl_flags("rl-prs", "--max-steps", 4, "--phase-weights", "0:odd=2;0.5:odd=0"))
    rows = metrics_of("rl-prs")
    assert [row["frac_reward_zero_std"] == 1 for row in rows] == [False, False, True, True] and rows[-1]["train/updates"] == 2
    assert rows[0]["reward/max"] > 1 or rows[1]["reward/max"] > 1
    with pytest.raises(SystemExit, match="--phase-weights: no part evn; the rewards of this task have even, odd"):
        call(train_rl, monkeypatch, *rl_flags("rl-prs-slip", "--max-steps", 1, "--phase-weights", "0:evn=1"))


def group_of(*rewards, task="toy", **parts):
    return [Trajectory("a", task, reward=reward, parts=dict(parts)) for reward in rewards]


def options(**changes):
    values = {"max_tokens": 10, "max_turns": 1, "length_penalty": 0.0, "phase_weights": None, "advantage": "grpo", "max_reward": 1.0, "lead": None, "virtual_max": "off"}
    return types.SimpleNamespace(**(values | changes))


def test_judge_by_hand():
    memory = {"flat_share": 0.0, "virtual": False, "errors": {"toy": 1.0}}
    groups = [group_of(0.8, 0.8, 0.8, 0.8), group_of(1, 0, 0, 1), group_of(None, None, 1, 0)]
    useful, counts = train_rl.judge(groups, options(), memory, 0.0)
    assert counts == {"flat": 1, "silent": 1, "dropped": 1} and [round(value, 3) for _, value in useful] == [0.866, -0.866, -0.866, 0.866]
    useful, _ = train_rl.judge(groups, options(lead="0.3,3"), memory, 0.0)  # always wrong so far: three times the advantage
    assert [round(value, 3) for _, value in useful] == [2.598, -2.598, -2.598, 2.598]
    useful, counts = train_rl.judge(groups, options(), memory | {"virtual": True}, 0.0)
    # flat counts equal rewards with and without the virtual sample; the pool 0.8 x 4, 1: mean 0.84, std sqrt(0.032/4) -> -0.04 / 0.0894427
    assert counts == {"flat": 1, "silent": 0, "dropped": 1} and [round(value, 4) for _, value in useful[:4]] == [-0.4472] * 4


def test_remember_switches_the_virtual_sample_and_counts_errors():
    memory, args = {"flat_share": 0.0, "virtual": False, "errors": {}}, options(virtual_max="auto")
    seen = []
    for _ in range(5):
        train_rl.remember(memory, [group_of(0.5, 0.5, correct=0.0)] * 2, {"flat": 2}, args)
        seen.append(memory["virtual"])
    assert seen == [False, False, False, True, True] and memory["errors"] == {"toy": pytest.approx(1.0)}
    train_rl.remember(memory, [group_of(1.0, 1.0, correct=1.0)], {"flat": 1}, args)
    assert memory["errors"] == {"toy": pytest.approx(0.9)}


def test_auto_is_kept_over_a_resume(monkeypatch):
    call(train_rl, monkeypatch, *rl_flags("rl-auto", "--data", "solved.jsonl", "--max-steps", 5, "--virtual-max", "auto", "--max-reward", 2.0))
    assert [row["virtual_max"] for row in metrics_of("rl-auto")] == [0, 0, 0, 0, 1] and metrics_of("rl-auto")[-1]["train/updates"] == 1
    call(train_rl, monkeypatch, "--resume", "runs/rl-auto", "--max-steps", 6)
    last = metrics_of("rl-auto")[-1]
    assert last["virtual_max"] == 1 and last["frac_reward_zero_std"] == 1 and last["frac_groups_silent"] == 0 and last["train/updates"] == 2


def test_dart_weights_follow_the_fields_of_the_text(place):
    from protocol import load_chat
    from rollout import Turn

    chat = load_chat("model")
    tokens = chat.tokenizer("hello转", add_special_tokens=False).input_ids  # "hello" is one token, 转 three bytes
    trajectory = Trajectory("a", "toy", turns=[Turn([*tokens, chat.end_token], [0.0] * (len(tokens) + 1))])
    values = train_rl.dart_weights(trajectory, {}, sys.modules["tasks.toy"], chat, (0.3, 0.7))
    assert len(tokens) == 4 and values == pytest.approx([(2 * 0.6 + 3 * 1.4) / 5, 1.4, 1.4, 1.4, 1.0])


def test_dart_and_lead_run(monkeypatch):
    call(train_rl, monkeypatch, *rl_flags("rl-dart", "--max-steps", 1, "--dart", "0.3,0.7", "--lead", "0.3,3"))
    call(train_rl, monkeypatch, *rl_flags("rl-half", "--max-steps", 1, "--dart", "0.5,0.5"))
    call(train_rl, monkeypatch, *rl_flags("rl-none", "--max-steps", 1))
    assert same_weights(weights("rl-half", 1), weights("rl-none", 1), ROUNDING) and not same_weights(weights("rl-dart", 1), weights("rl-none", 1), ROUNDING)


def test_health_is_said_during_and_after_the_run(monkeypatch, capsys):
    call(train_rl, monkeypatch, *rl_flags("rl-ill", "--data", "solved.jsonl", "--epochs", 2, "--max-steps", 12, "--max-reward", 2.0))
    said = capsys.readouterr().out
    assert said.count("WARNING: frac_reward_zero_std 100.0% over the last 10 steps") == 1 and "WARNING: grad_norm above 0 in 0 of 10 steps" in said
    table = said[said.index("health ") :]
    assert re.search(r"frac_reward_zero_std +100.0%  danger +100.0%  danger", table) and re.search(r"highest reward +1 of 2  danger", table)
    assert "distinct" in table and "healthy" in table


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "script, flags, said",
    [
        (train_rl, ["--state-path", "model", "--group-size", "1"], "--group-size"),
        (train_rl, ["--state-path", "model", "--batch-size", "0"], "--batch-size"),
        (train_rl, ["--state-path", "model", "--save-every", "-1"], "--save-every"),
        (train_rl, ["--state-path", "model", "--pool-range", "1,7"], "--pool-range needs --pool"),
        (train_rl, ["--state-path", "model", "--virtual-max", "on", "--advantage", "mean"], "--virtual-max on belongs to --advantage grpo"),
        (train_rl, ["--state-path", "model", "--dart", "0.3"], "--dart"),
        (train_rl, ["--state-path", "model", "--dart", "0,0"], "--dart"),
        (train_rl, ["--state-path", "model", "--lead", "-1,3"], "--lead"),
        (train_rl, ["--state-path", "model", "--lead", "3"], "--lead: '3' is not two numbers from 0 on, as in 0.3,3\n"),
        (train_rl, ["--state-path", "model", "--phase-weights", "0.5:a=1"], "--phase-weights"),
        (train_rl, ["--state-path", "model", "--temperature", "0"], "--temperature"),
        (train_rl, ["--state-path", "model", "--top-p", "nan"], "--top-p"),
        (train_rl, [], "--state-path"),
        (train_sft, ["--epochs", "0"], "--epochs"),
        (train_sft, ["--rank", "-1"], "--rank"),
        (train_sft, ["--learning-rate", "inf"], "--learning-rate"),
    ],
)
def test_P50_flags_out_of_range(monkeypatch, capsys, script, flags, said):
    with pytest.raises(SystemExit) as stop:
        call(script, monkeypatch, *flags)
    assert stop.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    "script, flags, said",
    [
        (train_rl, ["--state-path", "nowhere/at/all", "--task", "toy", "--data", "rl.jsonl", "--run-name", "bad1"], "nowhere/at/all"),
        (train_rl, ["--state-path", "model", "--task", "toy", "--data", "missing.jsonl", "--run-name", "bad2"], "missing.jsonl"),
        (train_rl, ["--state-path", "model", "--task", "toy", "--data", "sft/sft_train.jsonl", "--resume-optimizer", "--run-name", "bad3"], "optimizer"),
        (train_sft, ["--base-model", "model", "--task", "toy", "--data-dir", "nowhere", "--run-name", "bad4"], "nowhere"),
        (train_sft, ["--base-model", "model", "--task", "nope", "--data-dir", "sft", "--run-name", "bad6"], "--task nope"),
        (train_rl, ["--state-path", "model", "--task", "toy", "--data", "rl.jsonl", "--backend", "nope", "--run-name", "bad7"], "--backend nope"),
        (train_rl, ["--state-path", "model", "--task", "toy", "--data", "rl.jsonl", "--pool", "nowhere", "--run-name", "bad8"], "--pool nowhere"),
        (train_rl, ["--state-path", "model", "--task", "toy", "--data", "rl.jsonl", "--pool", "pool", "--pool-range", "7,1", "--run-name", "bad9"], "--pool-range"),
        (train_sft, ["--base-model", "model", "--task", "toy", "--data-dir", "sft", "--max-seq-len", "3", "--rank", "0", "--run-name", "bad5"], "--max-seq-len 3"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, script, flags, said):
    with pytest.raises(SystemExit, match=re.escape(said)):
        call(script, monkeypatch, *flags)


def test_a_run_in_which_no_prompt_fits_ends_at_step_1():
    full, values = Trajectory("a", "toy", reward=0.0, finish_reason="max_seq_len"), {"completions/mean_length": 0.0, "clipped_ratio": 1.0}
    with pytest.raises(SystemExit, match="--max-seq-len: no prompt of step 1 leaves room"):
        health.hopeless(values, [full] * 4, False, False)


def test_P26_failed_trajectories_do_not_take_the_step_along():
    alive, dead = Trajectory("a", "toy", reward=0.5), Trajectory("a", "toy", finish_reason="error", error="tool: x")
    assert train_rl.healthy([alive] * 6 + [dead] * 2) and not train_rl.healthy([alive] * 5 + [dead] * 3)
    args = types.SimpleNamespace(max_tokens=10, max_turns=2, length_penalty=0.0, phase_weights=None)
    assert train_rl.group_rewards([alive, dead], args) == [0.5, None]


@pytest.mark.parametrize("script", ["prepare_data", "pretrain", "train_sft", "train_rl", "eval", "analysis"])
def test_help_is_quick(script):
    """Nothing heavy is imported for --help: measured as modules, since a clock would depend on the machine."""
    code = f"import sys, runpy; sys.argv = ['{script}.py', '--help']\ntry: runpy.run_path('{script}.py', run_name='__main__')\nexcept SystemExit: pass\nprint('HEAVY', sorted({{'torch', 'transformers', 'datasets', 'matplotlib', 'swanlab', 'scipy', 'pyarrow', 'PIL'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "HEAVY []" in done.stdout and "usage:" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[3].update(id="s1"), "row 4: id 's1' is that of row 2 too; ids must differ"),
        (lambda rows: rows[3].update(id=["a"]), r"row 4: id \['a'\] must be a text"),
        (lambda rows: rows[3].update(messages=[5]), "row 4: messages must be a list of objects"),
        (lambda rows: rows[3]["messages"][0].update(role="judge"), "row 4: message 1 needs a role"),
        (lambda rows: rows[3]["messages"][0].update(content=7), "row 4: message 1: content 7 must be a text"),
        (lambda rows: rows[3]["messages"][0].update(content=[{"type": "image", "image": "gone.png"}]), "row 4: picture gone.png isn't there"),
    ],
)
def test_demonstrations_are_checked_before_anything_is_trained(tmp_path, change, said):
    rows = [{"id": f"s{i}", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]} for i in range(5)]
    change(rows)
    write_jsonl(tmp_path / "sft_train.jsonl", rows)
    with pytest.raises(SystemExit, match=said):
        train_sft.load_rows(tmp_path / "sft_train.jsonl", fault=lambda row: train_sft.fault(row, tmp_path))


def test_questions_are_checked_before_anything_is_sampled(tmp_path):
    """Rows without labels, ids that repeat, and a pool whose lines are no trajectories."""
    row = {"id": "a", "task": "wd", "label": "YES", "spectrum": "a.npz", "messages": [{"role": "user", "content": "q"}]}
    args = SimpleNamespace(data=tmp_path / "rl.jsonl", set=[], pool=None, pool_range=None)
    for rows, said in (
        ([row, row | {"id": "b", "label": None}], "rl.jsonl, row 2: no label, so no answer could be rewarded"),
        ([row, row], "row 2: id 'a' is that of row 1 too; ids must differ"),
        ([row, row | {"id": "b", "label": "MAYBE"}], "row 2: label 'MAYBE' must be YES, NO or null"),
        ([], "rl.jsonl: no rows"),
    ):
        write_jsonl(args.data, rows)
        with pytest.raises(SystemExit, match=said):
            train_rl.load_questions(args, spec_o3)
    write_jsonl(args.data, [row])
    assert [one["id"] for one in train_rl.load_questions(args, spec_o3)] == ["a"]
    write_jsonl(tmp_path / "pool" / "trajectories.jsonl", [{"id": "a", "parts": {"correct": 1.0}}, {"id": "a"}])
    args.pool = tmp_path / "pool"
    write_jsonl(tmp_path / "other" / "trajectories.jsonl", [{"id": "z", "parts": {"correct": 1.0}}])
    with pytest.raises(SystemExit, match=r"--pool .*other: no question of .*rl.jsonl is in it, by id; it must be an evaluation of the same rows"):
        train_rl.load_questions(SimpleNamespace(**vars(args) | {"pool": tmp_path / "other"}), spec_o3)
    with pytest.raises(SystemExit, match=r"trajectories.jsonl, line 2: no trajectory of eval.py or train_rl.py \(no parts\)"):
        train_rl.load_questions(args, spec_o3)


def test_batch_size_of_sft_cannot_change_on_resume(monkeypatch):
    call(train_sft, monkeypatch, *sft_flags("batches", "--epochs", 1))
    with pytest.raises(SystemExit, match="--batch-size 3: runs/batches counts its place in the data in batches of 4"):
        call(train_sft, monkeypatch, "--resume", "runs/batches", "--batch-size", 3)


# ---------------------------------------------------------------- another sampler


def test_rl_with_vllm_as_its_sampler(monkeypatch):
    """Through the script, on a stub of vLLM: sampler and trainer agree in every step, and only the policy starts a vLLM, not the anchor."""
    import stub_vllm

    from backends import vllm

    stub_vllm.install(monkeypatch)
    monkeypatch.setattr(vllm, "check_machine", lambda device="auto": None)
    call(train_rl, monkeypatch, *rl_flags("rl-vllm", "--backend", "vllm", "--device", "cpu", "--vllm-memory", 0.2, "--kl-coef", 0.1, "--max-steps", 2))
    call(train_rl, monkeypatch, "--resume", "runs/rl-vllm", "--max-steps", 3)
    rows = metrics_of("rl-vllm")
    assert [row["step"] for row in rows] == [1, 2, 3] and [row["sampler_version"] for row in rows] == [0, 1, 2]
    assert all(row["sampler_logp_diff"] < 1e-4 and row["failed"] == 0 for row in rows)
    assert [engine.args.gpu_memory_utilization for engine in stub_vllm.LLMEngine.made] == [0.2, 0.2]  # one a run
