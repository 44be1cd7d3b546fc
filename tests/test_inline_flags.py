"""The inline tasks through the command line: prepare_data.py's flags of each task, then eval.py's gold and random players on the rows."""

import json
import re
import sys

import pytest
from helpers import tiny_folder

import eval as evaluation
import prepare_data
import train_rl
from protocol import read_jsonl, write_jsonl
from tasks import countdown, guess


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("model"), "qwen3", weights=False)


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Run prepare_data.py with flags in a text; returns the task's folder."""

    def run(task, flags, stage="all"):
        monkeypatch.setattr(sys, "argv", ["prepare_data.py", stage, "--task", task, "--output", str(tmp_path), *flags.split()])
        prepare_data.main()
        return tmp_path / task

    return run


@pytest.fixture
def source(tmp_path):
    """A small copy of GSM8K's layout: 40 and 500 rows."""
    for name, size, base in (("train", 40, 1000), ("test", 500, 5000)):
        rows = [{"question": f"What is {base} plus {n}?", "answer": f"{base}+{n}\n#### {base + n}"} for n in range(size)]
        write_jsonl(tmp_path / "raw" / f"gsm8k_{name}.jsonl", rows)
    return tmp_path / "raw"


def evaluate(task, data, output, model, *flags):
    """(exit code, metrics.json) of eval.py."""
    code = evaluation.main(["--task", task, "--data", str(data), "--output", str(output), "--base-model", model, "--max-seq-len", "16000", *flags])
    return code, json.loads((output / "metrics.json").read_text())


# ---------------------------------------------------------------- prepare_data.py


def test_guess(prepare):
    folder = prepare("guess", "--high 50 --easy-high 8 --max-guesses 6 --templates 4 --sft-size 20 --train-size 30 --dev-size 9 --test-size 12")
    train, easy = (read_jsonl(folder / "rl" / f"bench_rl_train{ending}.jsonl") for ending in ("", "_easy"))
    assert len(train) == len(easy) == 30 and {row["high"] for row in train} == {50} and {row["high"] for row in easy} == {8}
    assert {row["max_guesses"] for row in train} == {6} and len(read_jsonl(folder / "rl" / "bench_test.jsonl")) == 12
    shown = read_jsonl(folder / "sft" / "sft_train.jsonl")
    assert len(shown) == 18 and all("The number is between 1 and 50." in row["messages"][1]["content"] for row in shown)
    folder = prepare("guess", "--player careless --sft-size 20 --max-guesses 4", stage="sft")
    for row in read_jsonl(folder / "sft" / "sft_train.jsonl"):
        said = row["messages"][1]
        game = guess.replay(row, said["content"])
        assert [f"<obs>{word}</obs>" for _, word in game[:-1]] == said["inline"] and (game[-1][1] == "correct" or len(game) == 4)
        assert "between" not in said["content"]


def test_countdown(prepare, tmp_path):
    flags = "--counts 4 --tool calc+ask --judge v1 --max-new 700 --templates 10 --expert remote --expert-url http://x/v1 --expert-model m "
    folder = prepare("countdown", flags + "--sft-size 10 --train-size 12 --dev-size 4 --test-size 5")
    rows = read_jsonl(folder / "rl" / "bench_rl_train.jsonl")
    assert len(rows) == 12 and {row["task"] for row in rows} == {"countdown-4"} and len({row["template"] for row in rows}) > 3
    assert {(row["tool"], row["judge"], row["max_new"], row["expert"]["url"]) for row in rows} == {("calc+ask", "v1", 700, "http://x/v1")}
    folder = prepare("countdown", "--tool calc+ask --expert-wrong 1 --train-size 4", stage="bench")
    assert read_jsonl(folder / "rl" / "bench_rl_train.jsonl")[0]["expert"]["wrong"] == 1


def test_distil_names_what_is_missing(prepare, tmp_path):
    with pytest.raises(SystemExit, match=r"^--distil .*nothing: no trajectories.jsonl there"):
        prepare("countdown", f"--distil {tmp_path / 'nothing'}", stage="sft")
    write_jsonl(tmp_path / "eval" / "trajectories.jsonl", [{"id": "a", "finish_reason": "answer", "turns": []}])
    with pytest.raises(SystemExit, match=r"^--distil .*eval: its questions are not in .*bench_rl_train.jsonl; write them before"):
        prepare("countdown", f"--distil {tmp_path / 'eval'}", stage="sft")
    prepare("countdown", "--train-size 4", stage="bench")
    with pytest.raises(SystemExit, match=r"eval/trajectories.jsonl, line 1: no trajectory of eval.py .*\(no parts\)"):
        prepare("countdown", f"--distil {tmp_path / 'eval'}", stage="sft")


@pytest.mark.parametrize("task, flags, says", [
    ("guess", "--test-size 301", "--test-size 301: 300 are all there is"), ("countdown", "--test-size 201", "--test-size 201: 200 are all there is"),
    ("countdown", "--counts 4 --dev-size 201", "--dev-size 201: 200 are all there is"),
    ("gsm8k", "--train-size 41 --bench-source SOURCE", "--train-size 41: 40 are all there is"),
])  # fmt: skip
def test_more_than_there_is_is_said(prepare, source, capsys, task, flags, says):
    prepare(task, "--train-size 5 " * (task != "gsm8k") + flags.replace("SOURCE", str(source)), stage="bench")
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--source files", "--source hub", "--spectra .", "--labels x.csv", "--target wd", "--skip-bad", "--picture-size 224x96", "--base-model x"])
def test_flags_of_the_spectra_are_refused_elsewhere(prepare, capsys, flag):
    shown = flag if flag.startswith("--source") else flag.split()[0]
    with pytest.raises(SystemExit, match=f"^{shown}: --task guess has no use for it"):
        prepare("guess", flag)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("file", ["", "gsm8k_train.jsonl", "gsm8k_test.jsonl"])
def test_gsm8k_from_a_folder_or_one_of_its_files_without_a_hub(prepare, source, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing the hub's client would fail
    folder = prepare("gsm8k", f"--bench-source {source / file} --prompt r1 --train-size 10 --sft-size 20 --dev-size 7")
    sizes = {path.stem: len(read_jsonl(path)) for path in folder.rglob("*.jsonl")}
    assert sizes == {"sft_train": 18, "sft_val": 2, "bench_rl_train": 10, "bench_dev": 7, "bench_test": 300, "bench_dev_neutral": 7,
                     "bench_test_neutral": 300}  # fmt: skip
    assert read_jsonl(folder / "rl" / "bench_test.jsonl")[0]["source_name"] == "test-200"
    assert len(read_jsonl(prepare("gsm8k", f"--bench-source {source}") / "rl" / "bench_rl_train.jsonl")) == 40  # all, unless told otherwise


@pytest.mark.parametrize("task, flags, says", [
    ("guess", "--high 1", "--high 1: a whole number from 2"), ("guess", "--easy-high 200", "--easy-high 200: a whole number from 2 to 100"),
    ("guess", "--max-guesses 0", "--max-guesses 0"), ("guess", "--templates 11", "--templates 11: a whole number from 1 to 10"),
    ("guess", "--sft-size 0", "--sft-size 0"), ("guess", "--player expert", "invalid choice: 'expert'"),
    ("guess", "--high ten", "invalid int value: 'ten'"), ("guess", "--judge v1", "unrecognized arguments: --judge"),
    ("countdown", "--judge v4", "--judge v4: there are v1, v2, v2.1, v3"), ("countdown", "--tool abacus", "--tool abacus: there are none, calc"),
    ("countdown", "--counts 5", "--counts 5: 3, 4 or 3,4"), ("countdown", "--max-new 0", "--max-new 0: a whole number from 1"),
    ("countdown", "--expert oracle", "--expert oracle: there are program, remote"),
    ("countdown", "--expert-wrong 2", "--expert-wrong 2.0: a share from 0 to 1"),
    ("countdown", "--tool calc+ask --expert remote", "--expert remote needs --expert-url and --expert-model"),
    ("countdown", "--train-size 900000", "the pool has 90000"), ("countdown", "--train-size -1", "--train-size -1"),
    ("gsm8k", "--prompt chat --bench-source SOURCE", "--prompt chat: there are r1, neutral"),
    ("gsm8k", "--dev-size 201 --bench-source SOURCE", "--dev-size 201: a whole number from 1 to 200"),
    ("gsm8k", "--bench-source /nowhere", "--bench-source /nowhere does not exist"),
    ("gsm8k", "--bench-source SOURCE/other.jsonl", "the name of a file must hold train or test"),
    ("gsm8k", "--bench-source SOURCE/..", "no gsm8k_train.jsonl and no train.jsonl there"),
])  # fmt: skip
def test_P50_a_wrong_flag_ends_in_one_line(prepare, source, tmp_path, capsys, task, flags, says):
    (source / "other.jsonl").write_text("")
    with pytest.raises(SystemExit) as stopped:
        prepare(task, flags.replace("SOURCE", str(source)))
    shown = capsys.readouterr()
    line = shown.err.strip().splitlines()[-1] if stopped.value.code == 2 else str(stopped.value)
    assert says in line and "\n" not in line
    assert task == "gsm8k" or not shown.out, "before the settings are printed (gsm8k reads its files after that)"
    assert not list((tmp_path / task).rglob("*.jsonl"))


# ---------------------------------------------------------------- eval.py, train_rl.py


def test_gold_and_random_print_their_columns_and_floors(prepare, model, tmp_path, capsys):
    test = prepare("guess", "--test-size 30", stage="bench") / "rl" / "bench_test.jsonl"
    code, report = evaluate("guess", test, tmp_path / "gold", model, "--policy", "gold")
    shown = capsys.readouterr().out
    assert code == 0 and report["accuracy"] == 1 and report["groups"]["guess-1000"]["bisecting_share"] == 1
    assert re.search(r"guess-heldout +100\.0 %", shown) and "log2 1000 = 9.97" in shown and "bisecting 100.0 %, possible 100.0 %" in shown
    assert "baseline random, 1 to 100" in shown and "success 9.6 %" in shown  # 1 - .99**10
    code, report = evaluate("guess", test, tmp_path / "random", model, "--policy", "random", "--samples", "8")
    assert code == 0 and report["accuracy"] < 0.3 and report["bisecting_share"] < 0.3


@pytest.mark.parametrize("judge, full", [("v1", 1.0), ("v3", 0.9978)])
def test_set_takes_another_judge_for_the_same_rows(prepare, model, tmp_path, capsys, judge, full):
    test = prepare("countdown", "--counts 3 --judge v2 --test-size 6", stage="bench") / "rl" / "bench_test.jsonl"
    code, report = evaluate("countdown", test, tmp_path / "gold", model, "--policy", "gold", "--limit", "1", "--set", f"judge={judge}", "--set",
                            "max_new=100000")  # fmt: skip
    assert code == 0 and report["accuracy"] == 1 and (report["reward"] == 1.0) == (judge == "v1") and report["reward"] >= 0.95
    shown = capsys.readouterr().out
    for words in ("countdown-3", "marks too high/low/perfect", "100.0 % true", "wrong claims of success", "baseline sums_only"):
        assert words in shown
    with pytest.raises(SystemExit, match="set was"):  # other settings are another evaluation
        evaluate("countdown", test, tmp_path / "gold", model, "--policy", "gold", "--limit", "1")


def test_P50_a_wrong_set_is_one_line_in_both_scripts(prepare, model, tmp_path, monkeypatch):
    test = prepare("countdown", "--counts 3 --test-size 6", stage="bench") / "rl" / "bench_test.jsonl"
    for pair, says in (("judge=v9", "row 1: judge 'v9': there are v1, v2, v2.1, v3"), ("max_new=many", "max_new 'many'"), ("label=1", "--set 'label=1'"),
                       ("judge", "KEY=VALUE"), ("nokey=1", "--set 'nokey=1': no row has the key nokey; there are .*judge, .*target")):  # fmt: skip
        with pytest.raises(SystemExit, match=says):
            evaluate("countdown", test, tmp_path / "out", model, "--policy", "gold", "--set", pair)
        monkeypatch.setattr(sys, "argv", ["train_rl.py", "--state-path", "x", "--task", "countdown", "--data", str(test), "--set", pair])
        with pytest.raises(SystemExit, match=says):
            train_rl.load_questions(train_rl.parse_args(), countdown)
    monkeypatch.setattr(sys, "argv", ["train_rl.py", "--state-path", "x", "--data", str(test), "--set", "judge=v1", "--set", "max_new=9"])
    assert {(row["judge"], row["max_new"]) for row in train_rl.load_questions(train_rl.parse_args(), countdown)} == {("v1", 9)}
    bare = [{key: value for key, value in row.items() if key not in ("judge", "max_new")} for row in read_jsonl(test)]
    write_jsonl(test, bare)  # rows that somebody wrote by hand: what the task reads with a default can still be set
    assert {(row["judge"], row["max_new"]) for row in train_rl.load_questions(train_rl.parse_args(), countdown)} == {("v1", 9)}


def test_a_row_that_cannot_be_played_is_named(prepare, model, tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"id": "a", "messages": [{"role": "user", "content": "x"}]}
    for task, more, says in (("guess", {"high": 10, "max_guesses": 3, "label": "11"}, "row 1: label '11'"), ("guess", {}, "row 1: high None"),
                             ("guess", {"high": 10**30, "max_guesses": 3, "label": "1"}, "high 1000000000000000000000000000000: a whole number from 1 to 1000000"),
                             ("countdown", {"numbers": 3}, "needs numbers"), ("gsm8k", {"prompt": "x"}, "row 1: prompt 'x'"),
                             ("gsm8k", {"prompt": "r1", "label": "many"}, "label 'many' is no number")):  # fmt: skip
        write_jsonl(path, [row | more])
        with pytest.raises(SystemExit, match=says):
            evaluate(task, path, tmp_path / "out", model, "--policy", "gold")


def test_gsm8k_prints_the_form_nobody_pays_for(prepare, source, model, tmp_path, capsys):
    dev = prepare("gsm8k", f"--bench-source {source} --dev-size 10", stage="bench") / "rl" / "bench_dev.jsonl"
    code, report = evaluate("gsm8k", dev, tmp_path / "gold", model, "--policy", "gold")
    shown = capsys.readouterr().out
    assert code == 0 and report["hash_mark"]["value"] == 1 and re.search(r"ends in #### number +100\.0 %", shown)
    assert "prompt neutral" in shown and "baseline majority" in shown and "baseline number_of_the_question" in shown
