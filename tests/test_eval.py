"""eval.py with the real rollout, chat template and task, and a scripted model."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import ScriptedSampler, png, tiny_folder

import eval as evaluation
import tables

ROOT = Path(__file__).parents[1]
ANSWER = "Looked.\n</think>\n\n<answer>\\boxed{{{}}} because</answer>"
CALL = (
    "Look.\n</think>\n\n<tool_call>\n<function=spectral_visualization_tool>\n<parameter=wavelength_range>\n[{}, {}]\n</parameter>\n"
    "</function>\n</tool_call>"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("model"), weights=False)


@pytest.fixture
def data(tmp_path):
    """20 rows, YES for even numbers, ids with characters that break careless readers (P39)."""
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "full.png").write_bytes(png(112, 56))
    wavelength = np.linspace(4000, 9000, 2000)
    np.savez(folder / "star.npz", wavelength=wavelength, flux=1 + 0.1 * np.sin(wavelength / 50), redshift=0.0)
    rows = [
        {
            "id": f"row-{i}\u2028",
            "task": ("wd", "cv")[i % 4 // 2],
            "source_name": f"star {i}",
            "label": "NO" if i % 2 else "YES",
            "spectrum": "star.npz",
            "picture": [112, 56],
            "images": ["images/full.png"],
            "messages": [
                {"role": "system", "content": "You vet stars."},
                {"role": "user", "content": [{"type": "image", "image": "images/full.png"}, {"type": "text", "text": f"Row {i}?"}]},
            ],
        }
        for i in range(20)
    ]
    write_rows(folder / "dev.jsonl", rows)
    return folder / "dev.jsonl"


def write_rows(path, rows):
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))


class Model:
    """A scripted model: `script(text of the prompt so far, seed)` -> what it writes next, or an exception to raise."""

    version = 3

    def __init__(self, chat, script, scores=None):
        self.chat, self.script, self.scores, self.active, self.most, self.calls = chat, script, scores, 0, 0, 0

    def read(self, chunks):
        return "".join(self.chat.tokenizer.decode(c.tokens) if hasattr(c, "tokens") else "<PICTURE>" for c in chunks)

    async def sample(self, chunks, n, params):
        import asyncio

        self.calls += 1
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(0)
        self.active -= 1
        return await ScriptedSampler(self.chat, lambda *_: self.script(self.read(chunks), params.seed)).sample(chunks, n, params)

    async def logprobs(self, chunks):
        text = self.read(chunks)
        length = sum(len(c) for c in chunks)
        return np.full(length, self.scores(text) / 100)


@pytest.fixture
def play(monkeypatch, model, data, tmp_path):
    """play(script, *flags) -> (exit code, metrics or None, model)."""
    real, models = evaluation.runs.load_module, []

    def run(script=None, *flags, scores=None, output="out"):
        async def create_sampler(base_model, sampler_path=None, **options):
            from protocol import load_chat

            models.append(Model(load_chat(model), script, scores))
            return models[-1]

        backend = SimpleNamespace(create_sampler=create_sampler)
        monkeypatch.setattr(evaluation.runs, "load_module", lambda folder, name: backend if folder == "backends" else real(folder, name))
        target = tmp_path / output
        code = evaluation.main(["--data", str(data), "--base-model", model, "--output", str(target), "--max-seq-len", "3000", *flags])
        return code, json.loads((target / "metrics.json").read_text()), models[-1] if models else None

    run.output = tmp_path / "out"
    return run


def trajectories(folder):
    return [json.loads(line) for line in (folder / "trajectories.jsonl").read_bytes().split(b"\n") if line]


def always(choice):
    return lambda text, seed: ANSWER.format(choice)


def test_gold_policy_earns_full_reward_through_the_real_loop(play):
    code, report, model = play(None, "--policy", "gold")
    assert code == 0 and model is None  # no model is loaded
    assert report["reward"] == report["reward_min"] == 1 and report["accuracy"] == report["macro_f1"] == report["format_rate"] == 1
    assert report["tool_calls"] == report["tool_successes"] == 40 and report["mean_turns"] == 3
    assert report["finish_reasons"] == {"answer": 20}


def test_gold_policy_that_misses_full_reward_is_an_error(play, monkeypatch, capsys):
    from tasks import spec_o3

    monkeypatch.setattr(spec_o3, "gold", lambda row, folder: iter([spec_o3.closing(row["task"], "YES")]))
    code, report, _ = play(None, "--policy", "gold")
    assert code == 1 and "did not earn full reward" in capsys.readouterr().out


def test_always_yes_earns_what_the_labels_say(play):
    code, report, _ = play(None, "--policy", "always-yes")
    assert code == 0 and report["accuracy"] == 0.5 == report["baselines"]["always_YES"]["accuracy"]
    assert report["macro_f1"] == pytest.approx(2 / 3) == report["baselines"]["always_YES"]["macro_f1"]
    assert report["accuracy_low"] < 0.5 < report["accuracy_high"] and report["mean_turns"] == 1


def test_model_policy_calls_tools_and_records_everything(play):
    def script(text, seed):
        return CALL.format(5000, 5400) if text.count("<PICTURE>") < 3 else ANSWER.format("YES")

    code, report, model = play(script, "--temperature", "0.7", "--top-p", "0.9", "--seed", "5", "--concurrency", "4")
    assert code == 0 and report["tool_calls"] == 40 and report["mean_turns"] == 3 and 1 < model.most <= 4
    settings = report["config"]["settings"]
    assert (settings["temperature"], settings["top_p"], settings["seed"], settings["max_tokens"]) == (0.7, 0.9, 5, 2048)
    record = trajectories(play.output)[0]
    assert record["sampler_version"] == 3 and len(record["turns"]) == 3 and record["eval"]["prompt"][1]["text"].startswith("<image>")
    shown = [part["image"] for part in record["sequence"] if "image" in part]
    assert len(shown) == 3 and all((play.output / name).exists() for name in shown)


def test_P43_samples_of_a_row_differ_and_runs_agree(play):
    seeds = {}

    def script(text, seed):
        seeds.setdefault(text, []).append(seed)
        return ANSWER.format("YES" if seed % 2 else "NO")

    _, first, _ = play(script, "--samples", "4", "--pass-at", "1,4", output="a")
    assert all(len(set(some)) == 4 for some in seeds.values()) and len(seeds) == 20
    _, again, _ = play(script, "--samples", "4", "--pass-at", "1,4", "--concurrency", "3", output="b")
    assert again["accuracy"] == first["accuracy"] and again["pass_at"] == first["pass_at"]
    assert first["pass_at"]["4"]["value"] > first["pass_at"]["1"]["value"] == pytest.approx(first["score"]["of_played"]["value"])
    assert (first["score"]["of_played"]["n"], first["score"]["of_played"]["samples"]) == (20, 80)


def test_P41_one_failure_neither_ends_nor_counts_and_is_run_again_alone(play, capsys):
    def script(text, seed):
        return RuntimeError("the service is away") if "Row 6?" in text else ANSWER.format("YES")

    code, report, _ = play(script)
    assert code == 0 and report["n_ok"] == 19 and report["n_error"] == 1 and report["finish_reasons"] == {"answer": 19, "error": 1}
    assert report["score"]["of_played"]["value"] == pytest.approx(9 / 19) and report["score"]["of_all"]["value"] == pytest.approx(9 / 20)
    assert "1 failed" in capsys.readouterr().out and "the service is away" in next(iter(report["errors"]))
    code, report, model = play(always("YES"))
    assert model.calls == 1 and report["n_ok"] == 20 and report["n_error"] == 0 and report["accuracy"] == 0.5
    assert sorted(record["id"] for record in trajectories(play.output)) == sorted(f"row-{i}\u2028" for i in range(20))


def test_P41_a_grader_that_breaks_is_no_wrong_answer(play, monkeypatch):
    from tasks import spec_o3

    real = spec_o3.reward
    monkeypatch.setattr(spec_o3, "reward", lambda row, t: 1 / 0 if row["id"].startswith("row-3") else real(row, t))
    code, report, _ = play(always("YES"))
    assert report["n_error"] == 1 and report["count"] == 19


def test_strict_turns_failures_into_an_exit_code(play):
    code, *_ = play(lambda text, seed: RuntimeError("away") if "Row 6?" in text else ANSWER.format("YES"), "--strict")
    assert code == 1


def test_backend_that_is_dead_from_the_start_stops_early(play):
    with pytest.raises(SystemExit, match="all failed.*no route"):
        play(lambda text, seed: ConnectionError("no route"), "--samples", "10", "--concurrency", "2")


def test_resume_after_a_kill_plays_only_what_is_missing(play):
    play(always("NO"))
    lines = (play.output / "trajectories.jsonl").read_bytes().split(b"\n")
    (play.output / "trajectories.jsonl").write_bytes(b"\n".join(lines[:12]) + b"\n" + lines[12][:100])  # killed in the middle of a line
    _, report, model = play(always("NO"))
    assert model.calls == 8 and report["n_ok"] == 20 and report["accuracy"] == 0.5
    assert len(trajectories(play.output)) == 20
    _, report, model = play(always("NO"), "--samples", "2", "--pass-at", "1,2")  # more samples of the same evaluation
    assert model.calls == 20 and report["n_ok"] == 40


def test_finished_evaluation_loads_nothing_and_says_the_same(play):
    _, before, first = play(always("NO"))
    _, after, again = play(always("NO"))
    assert again is first
    assert {key: after[key] for key in after if key not in ("seconds", "config")} == {
        key: before[key] for key in before if key not in ("seconds", "config")
    }


@pytest.mark.parametrize(
    "flags,name",
    [
        (["--temperature", "1"], "temperature"),
        (["--top-p", "0.9"], "top_p"),
        (["--inject", "Think."], "inject"),
        (["--policy", "no-tool"], "policy"),
    ],
)
def test_changed_setting_is_refused_and_overwrite_helps(play, flags, name):
    play(always("YES"))
    with pytest.raises(SystemExit, match=name):
        play(always("NO"), *flags, scores=lambda text: 0)
    assert len(trajectories(play.output)) == 20
    if name == "temperature":
        assert play(always("NO"), *flags, "--overwrite")[2].calls == 20


def test_changed_rows_are_refused(play, data):
    play(always("YES"))
    data.write_bytes(data.read_bytes().replace(b"Row 3?", b"Row three?"))
    with pytest.raises(SystemExit, match="data_sha256"):
        play(always("YES"))


def test_new_weights_in_the_old_place_are_noticed(play, tmp_path):
    weights = tmp_path / "sampler"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"a" * 200000)
    play(always("YES"), "--model-path", str(weights))
    (weights / "model.safetensors").write_bytes(b"a" * 199999 + b"b")
    with pytest.raises(SystemExit, match="weights_sha256"):
        play(always("YES"), "--model-path", str(weights))


def test_inject_reaches_the_model_and_is_recorded(play):
    seen = []
    _, report, _ = play(lambda text, seed: seen.append(text) or ANSWER.format("YES"), "--inject", "Follow the format.")
    assert all("Follow the format." in text for text in seen) and report["config"]["settings"]["inject"] == "Follow the format."


def test_bare_base_model_gets_the_reminder_of_its_task_unless_told_otherwise(play, monkeypatch, capsys):
    from tasks import spec_o3

    monkeypatch.setattr(spec_o3, "FORMAT_REMINDER", "Mind the format.", raising=False)
    seen = []
    script = lambda text, seed: seen.append(text) or ANSWER.format("YES")
    _, report, _ = play(script, output="bare")
    assert all("Mind the format." in text for text in seen) and report["config"]["settings"]["inject"] == "Mind the format."
    assert "format reminder is appended" in capsys.readouterr().out
    for flags in (["--inject", ""], ["--model-path", "remote://weights"]):
        seen.clear()
        _, report, _ = play(script, *flags, output=flags[0])
        assert not any("Mind the format." in text for text in seen) and report["config"]["settings"]["inject"] == ""


def test_no_tool_forces_the_answer_and_reports_its_probability(play):
    """The model is asked for the log-probabilities of both answers and never samples; whoever is likelier is taken."""
    asked = []

    def scores(text):
        asked.append(text)
        return -10.0 if text.endswith("\\boxed{YES") == ("Row 2?" in text) else -80.0

    code, report, model = play(None, "--policy", "no-tool", scores=scores)
    assert code == 0 and model.calls == 0 and report["tool_calls"] == 0 and report["mean_turns"] == 1 and report["format_rate"] == 1
    assert (
        report["predicted_positive"] == 1
        and len(asked) == 40
        and all("<answer>\\boxed{" in text and text.count("<PICTURE>") == 1 for text in asked)
    )
    table = list(csv.DictReader((play.output / "predictions.csv").open(newline="", encoding="utf-8")))
    yes = next(line for line in table if line["source_name"] == "star 2")
    letters = (3, 2)  # the scripted model scores each token alike, and the tokenizer of the tests takes a letter a token
    a, b = np.exp(-0.1 * letters[0]), np.exp(-0.8 * letters[1])
    assert yes["prediction"] == "YES" and float(yes["p_YES"]) == pytest.approx(a / (a + b), rel=1e-5)
    assert float(yes["p_YES"]) + float(yes["p_NO"]) == pytest.approx(1)


def test_random_windows_look_and_then_answer_by_force(play):
    code, report, model = play(None, "--policy", "random-windows", scores=lambda text: -1.0 if text.endswith("YES") else -90.0)
    assert report["tool_calls"] == report["tool_successes"] == 40 and report["mean_turns"] == 3 and model.calls == 0
    assert report["predicted_positive"] == 20 and report["format_rate"] == 1
    windows = {
        str(turn["action"]["call"]["arguments"])
        for record in trajectories(play.output)
        for turn in record["turns"]
        if turn["action"]["call"]
    }
    assert len(windows) == 40  # every row looks elsewhere


def test_human_policy_plays_at_the_terminal(play, monkeypatch, capsys):
    typed = iter(['call {"wavelength_range": [5000, 5200', 'call {"wavelength_range": [5000, 5200]}', "answer yes", "answer no", "mumble"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    _, report, _ = play(None, "--policy", "human", "--limit", "3")
    assert report["tool_calls"] == 1 and report["finish_reasons"] == {"answer": 2, "invalid_action": 1}
    assert "[picture: " in capsys.readouterr().out


def test_rows_without_labels_give_predictions_and_no_accuracy(play, data, capsys):
    write_rows(data, [json.loads(line) | {"label": None} for line in data.read_bytes().split(b"\n") if line])
    code, report, _ = play(always("YES"))
    assert code == 0 and "accuracy" not in report and report["score"]["of_played"]["value"] is None and report["unlabelled"] == 20
    table = list(csv.DictReader((play.output / "predictions.csv").open(newline="", encoding="utf-8")))
    assert len(table) == 20 and {line["prediction"] for line in table} == {"YES"} and {line["label"] for line in table} == {""}
    assert table[0]["id"].endswith("\u2028")  # P39


def test_truncated_generations_are_said_loudly(play, capsys):
    code, report, _ = play(lambda text, seed: "so " * 200, "--max-tokens", "50", "--strict")
    assert code == 1 and report["finish_reasons"] == {"length": 20} and "cut off by --max-tokens 50" in capsys.readouterr().out
    assert report["accuracy"] == 0 and report["format_rate"] == 0


def test_malformed_calls_are_counted_and_the_episode_goes_on(play):
    def script(text, seed):
        return ANSWER.format("YES") if "<tool_response>" in text else CALL.format('"a', "b")

    _, report, _ = play(script)
    assert report["parse_errors"] == 20 and report["tool_successes"] == 0 and report["finish_reasons"] == {"answer": 20}


def test_limit_draws_rows_from_the_whole_file_and_a_larger_one_adds_to_them(play):
    """Neither the first rows nor every tenth: both may be of one task only."""
    _, report, _ = play(always("YES"), "--limit", "6")
    few = {record["id"] for record in trajectories(play.output)}
    assert report["n_rows"] == 6 == len(few) and len(report["tasks"]) == 2 and few != {f"row-{i}\u2028" for i in range(6)}
    _, report, model = play(always("YES"), "--limit", "99")
    assert report["n_rows"] == 20 and model.calls == 14


@pytest.mark.parametrize(
    "content,match",
    [
        (b"", "no rows"),
        (b'{"id": "a"}\n', "no messages"),
        (b'{"id": "a", "messages": [{}]}\n' * 2, "ids must differ"),
        (b'{"id": "a", "messages": [1]}\n', "list of objects"),
        (b"{broken\n", "line 1"),
        (b"[]\n", "no id"),
    ],
)
def test_bad_data_is_one_line(play, data, content, match):
    data.write_bytes(content)
    with pytest.raises(SystemExit, match=match):
        play(always("YES"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--samples", "0"],
        ["--samples", "-1"],
        ["--pass-at", "0"],
        ["--pass-at", "2"],
        ["--pass-at", "x"],
        ["--pass-at", ""],
        ["--concurrency", "0"],
        ["--max-turns", "0"],
        ["--max-tokens", "0"],
        ["--max-seq-len", "-1"],
        ["--temperature", "-0.1"],
        ["--temperature", "nan"],
        ["--top-p", "0"],
        ["--top-p", "1.1"],
        ["--limit", "-1"],
        ["--seed", "-1"],
        ["--policy", "oracle"],
        ["--tool-timeout", "0"],
    ],
)
def test_P50_numeric_edges_stop_at_argument_parsing(tmp_path, flags, capsys):
    with pytest.raises(SystemExit) as error:
        evaluation.parse_args(["--output", str(tmp_path), *flags])
    assert error.value.code == 2 and flags[0] in capsys.readouterr().err


@pytest.mark.parametrize("flags,match", [(["--task", "nope"], "tasks/ has .*spec_o3"), (["--backend", "nope"], "backends/ has")])
def test_P49_unknown_task_or_backend_names_what_there_is(tmp_path, data, flags, match):
    with pytest.raises(SystemExit, match=match):
        evaluation.main(["--data", str(data), "--output", str(tmp_path / "o"), *flags])
    assert not (tmp_path / "o").exists()


def test_P50_tiny_budgets_do_not_crash(play):
    _, report, _ = play(always("YES"), "--max-seq-len", "10")
    assert report["finish_reasons"] == {"max_seq_len": 20} and report["accuracy"] == 0
    _, report, _ = play(lambda text, seed: CALL.format(5000, 5400), "--max-turns", "1", output="b")
    assert report["finish_reasons"] == {"max_turns": 20}


SLOW = """
import sys, time, asyncio
from types import SimpleNamespace
import eval as evaluation
from protocol import load_chat
sys.path.insert(0, 'tests')
from test_eval import ANSWER, Model

class Slow(Model):
    async def sample(self, chunks, n, params):
        await asyncio.to_thread(time.sleep, 0.3 if self.calls < 4 else 30)  # as a backend that is deep in a generation
        return await super().sample(chunks, n, params)

async def create_sampler(base_model, sampler_path=None):
    return Slow(load_chat(base_model), lambda text, seed: ANSWER.format("YES"))

real = evaluation.runs.load_module
evaluation.runs.load_module = lambda folder, name: SimpleNamespace(create_sampler=create_sampler) if folder == "backends" else real(folder, name)
sys.exit(evaluation.main(sys.argv[1:]))
"""


def test_P36_interrupt_ends_at_once_and_loses_nothing(play, data, model):
    flags = ["--data", str(data), "--base-model", model, "--output", str(play.output), "--max-seq-len", "3000", "--concurrency", "2"]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for _ in range(1200):
            if (play.output / "trajectories.jsonl").exists() and len(trajectories(play.output)) >= 4:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        started = time.time()
        out, _ = process.communicate(timeout=20)
        assert process.returncode == 130 and time.time() - started < 6, out
        assert "the same command goes on from here" in out
    finally:
        process.kill()
    done = len(trajectories(play.output))
    _, report, fast = play(always("YES"), "--concurrency", "2")
    assert done >= 4 and fast.calls == 20 - done and report["n_ok"] == 20


@pytest.mark.parametrize("script", ["eval.py", "analysis.py"])
def test_help_answers_at_once_and_without_heavy_imports(script):
    code = f"import sys, runpy; sys.argv = ['{script}', '--help']\ntry: runpy.run_path('{script}', run_name='__main__')\nexcept SystemExit: pass\n"
    code += "heavy = {'torch', 'transformers', 'matplotlib', 'datasets', 'pandas'} & set(sys.modules); assert not heavy, heavy"
    started = time.time()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert time.time() - started < 2.5 and "--" in done.stdout  # 0.3 s on an idle machine


def test_P45_a_training_run_is_never_written_over(play):
    play.output.mkdir()
    (play.output / "checkpoints.jsonl").write_text("")
    (play.output / "config.json").write_text("{}")
    for flags in ([], ["--overwrite"]):
        with pytest.raises(SystemExit, match="is a training run"):
            play(always("YES"), *flags)
    assert (play.output / "config.json").read_text() == "{}"


def test_rows_of_one_label_still_give_a_table(play, data, capsys):
    rows = [row for row in map(json.loads, data.read_bytes().split(b"\n")[:-1]) if row["label"] == "NO"]
    evaluation.write_jsonl(data, rows)
    code, report, _ = play(always("NO"))
    assert code == 0 and report["accuracy"] == 1.0 and report["macro_f1"] is None
    assert "baseline always_YES" in capsys.readouterr().out


def test_labels_are_read_before_anything_is_played(play, data):
    rows = list(map(json.loads, data.read_bytes().split(b"\n")[:-1]))
    rows[3]["label"] = "maybe"
    evaluation.write_jsonl(data, rows)
    with pytest.raises(SystemExit, match="row 4: label 'maybe'"):
        play(always("NO"))
    assert not (play.output / "trajectories.jsonl").exists()


def test_macro_f1_says_over_how_many_tasks_it_is(play, data, capsys):
    rows = list(map(json.loads, data.read_bytes().split(b"\n")[:-1]))
    kinds = sorted({row["task"] for row in rows})
    assert len(kinds) > 1 and all(any(row["task"] == kind and row["label"] == "YES" for row in rows) for kind in kinds)
    evaluation.write_jsonl(data, [row for row in rows if row["task"] != kinds[0] or row["label"] == "NO"])
    _, report, _ = play(always("YES"))
    assert report["macro_f1_groups"] == len(kinds) - 1
    assert f"over {len(kinds) - 1} of {len(kinds)} tasks" in capsys.readouterr().out


def test_an_output_that_cannot_be_made_is_one_line(play, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="--output .*inside: .*choose another place"):
        play(always("NO"), output="file/inside")


@pytest.mark.parametrize("name", ["config.json", "bench_dev.jsonl"])
def test_P45_an_evaluation_is_not_written_over_other_files(play, name):
    play.output.mkdir()
    (play.output / name).write_text('{"model_type": "qwen3"}')
    for flags in ((), ("--overwrite",)):
        with pytest.raises(SystemExit, match="holds files that are not of an evaluation"):
            play(always("NO"), *flags)
    assert (play.output / name).read_text() == '{"model_type": "qwen3"}' and not (play.output / "metrics.json").exists()


def test_damaged_leftovers_are_one_line_or_made_again(play):
    play(always("NO"))
    (play.output / "metrics.json").write_text('{"half')
    code, report, _ = play(always("NO"))
    assert report["n_ok"] == 20
    with open(play.output / "trajectories.jsonl", "a") as file:
        file.write("7\n")
    with pytest.raises(SystemExit, match="line 21: not a trajectory"):
        play(always("NO"))


def test_no_name_of_the_table_runs_into_its_value(capsys):
    """Names are 27 wide, or as wide as the longest: one of guess-number has 35 letters."""
    score = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    report = {"n_ok": 0, "n_error": 9, "n_rows": 9, "n_samples": 1, "score": {"of_played": score, "of_all": score}, "tool_calls": 0, "tool_successes": 0,
              "parse_errors": 0, "finish_reasons": {"error": 9}, "baselines": {"random possible, 1 to 1000": {"success": 0.338}}}  # fmt: skip
    tables.print_table(report)
    lines = capsys.readouterr().out.splitlines()
    assert "baseline random possible, 1 to 1000 success 33.8 %" in lines and lines[0].index("0 played") == 36
