"""The fund assistant from the command line: flags of prepare_data.py, what eval.py prints, the prompt of SFT and of RL, spans for --dart."""

import json
import re

import numpy as np
import pytest
from helpers import tiny_folder

import analysis
import eval as evaluation
import prepare_data
from protocol import encode_prompt, load_chat, read_jsonl, sft_datum, write_jsonl
from records import load_rows
from tasks import fund

SIZES = ["--sft-size", "20", "--dev-size", "24", "--test-size", "6", "--train-size", "30"]


def prepare(monkeypatch, folder, *flags):
    monkeypatch.setattr("sys.argv", ["prepare_data.py", "--task", "fund", "--output", str(folder), *map(str, flags)])
    prepare_data.main()
    return {path.stem: read_jsonl(path) for path in (folder / "fund").rglob("*.jsonl")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data and a model folder without weights."""
    folder, patch = tmp_path_factory.mktemp("flags"), pytest.MonkeyPatch()
    prepare(patch, folder, *SIZES)
    patch.undo()
    tiny_folder(folder / "model", "qwen3", weights=False)
    return folder


def rows_of(place, name="rl/bench_dev"):
    return read_jsonl(place / "fund" / f"{name}.jsonl")


# ---------------------------------------------------------------- prepare_data.py


def test_sizes(place):
    assert [len(rows_of(place, name)) for name in ("sft/sft_train", "sft/sft_val", "rl/bench_rl_train", "rl/bench_dev", "rl/bench_test")] == [18, 2, 30, 24, 6]
    kinds = [row["kind"] for row in rows_of(place, "rl/bench_rl_train")]
    assert kinds.count("single") == 11 and kinds.count("multi") == 19  # 454 : 823
    assert all(row["reward_mode"] == "ground-truth" and row["form"] == "react" for row in rows_of(place))


def test_every_switch_reaches_the_rows(monkeypatch, tmp_path):
    flags = ["--form", "tool-only", "--labels", "wrong", "--oversample", 2, "--reward-mode", "rules-tool", "--misuse-penalty", 0.3, "--single-size", 40,
             "--multi-size", 4, "--request-size", 3, "--domain-size", 5]  # fmt: skip
    made = prepare(monkeypatch, tmp_path, *SIZES, *flags)
    train = made["bench_rl_train"]
    assert {row["form"] for row in train} == {"tool-only"} and {row["reward_mode"] for row in train} == {"rules-tool"}
    assert {row["misuse_penalty"] for row in train} == {0.3}
    assert any(row.get("mislabelled") for row in train) and any(row["id"].endswith("-x2") for row in train)
    once = [row["kind"] for row in train if not row["id"].endswith("-x2")]
    assert [once.count(kind) for kind in ("single", "multi", "request")] == [45, 4, 3]
    stats = json.loads((tmp_path / "fund" / "rl" / "bench_stats.json").read_text())
    assert stats["settings"]["labels"] == "wrong" and stats["bench_dev"]["mislabelled"] == 0


def test_one_language_and_single_steps_alone(monkeypatch, tmp_path):
    made = prepare(monkeypatch, tmp_path, *SIZES[:6], "--languages", "zh", "--single-size", 9, "--multi-size", 0)
    assert all({row["lang"] for row in rows} == {"zh"} and {row["kind"] for row in rows} == {"single"} for rows in made.values())
    assert [len(made[name]) for name in ("sft_train", "bench_rl_train", "bench_dev")] == [18, 9, 24]


def test_smoke_is_small(monkeypatch, tmp_path):
    made = prepare(monkeypatch, tmp_path, "--smoke")
    assert {name: len(rows) for name, rows in made.items()} == {"sft_train": 36, "sft_val": 4, "bench_rl_train": 40, "bench_dev": 20, "bench_test": 20}


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--form", "xml"], "--form"),
        (["--labels", "labels.csv"], "--labels"),
        (["--oversample", "0"], "--oversample"),
        (["--oversample", "1.5"], "--oversample"),
        (["--reward-mode", "best"], "--reward-mode"),
        (["--misuse-penalty", "-1"], "--misuse-penalty"),
        (["--misuse-penalty", "nan"], "--misuse-penalty"),
        (["--single-size", "-1"], "--single-size"),
        (["--train-size", "0"], "--train-size"),
    ],
)
def test_P50_values_out_of_range_are_said_by_argparse(monkeypatch, tmp_path, capsys, flags, said):
    with pytest.raises(SystemExit) as stop:
        prepare(monkeypatch, tmp_path, *flags)
    assert stop.value.code == 2 and said in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--source", "hub"], "--source hub"),
        (["--tools", "t.json"], "--tools needs --requests"),
        (["--requests", "none.jsonl"], "--requests none.jsonl: no such file"),
        (["--requests", "own.jsonl", "--multi-size", "3"], "--multi-size is for generated"),
        (["--requests", "own.jsonl", "--labels", "wrong"], "--labels wrong is for generated"),
        (["--requests", "own.jsonl", "--tools", "broken.json"], "--tools broken.json: not a JSON list"),
        (["--requests", "own.jsonl", "--tools", "number.json"], r"--tools number.json: not a JSON list .*a name must be a text"),
        (["--requests", "own.jsonl", "--tools", "schema.json"], r"--tools schema.json: .*parameters must be an object"),
        (["--requests", "empty.jsonl"], "empty.jsonl: no line"),
        (["--requests", "own.jsonl"], "own.jsonl, line 1: needs request"),
        (["--train-size", "200000"], "--single-size and --multi-size: the wordings of train are used up after"),
        (["--languages", "en", "--multi-size", "0", "--single-size", "20", "--dev-size", "0", "--test-size", "512"], "--test-size: the wordings of test are used up after"),
    ],
)
def test_what_does_not_go_together_is_one_line(monkeypatch, tmp_path, flags, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.jsonl").write_text('{"request": 3}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "number.json").write_text('[{"name": 5}]')  # once a TypeError of the prompt's text
    (tmp_path / "schema.json").write_text('[{"name": "x", "parameters": {"properties": 5}}]')
    with pytest.raises(SystemExit, match=said) as stop:
        prepare(monkeypatch, tmp_path / "out", "bench", *flags)
    assert "\n" not in str(stop.value.code) and not (tmp_path / "out" / "fund" / "rl").exists()


def test_own_requests_from_the_command_line(monkeypatch, tmp_path):
    lines = [{"request": f"Pay {n} to Ann", "action": {"tool": "transfer_funds", "params": {"amount": n, "to": "Ann"}}} for n in range(1, 40)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = prepare(monkeypatch, tmp_path / "out", "bench", "--requests", tmp_path / "own.jsonl", "--form", "tool-only")
    assert sum(map(len, made.values())) == 39 and all(made.values()) and made["bench_dev"][0]["form"] == "tool-only"


# ---------------------------------------------------------------- rows


def test_rows_are_checked_before_anything_is_played(place):
    row = rows_of(place)[0]
    request = next(row for row in rows_of(place) if row["kind"] == "request")
    assert fund.check_row(row) == fund.check_row(request) == ""
    assert "no row of the fund assistant" in fund.check_row({"id": "a", "messages": [{"role": "user", "content": "x"}]})
    assert "reward_mode 'best'" in fund.check_row(row | {"reward_mode": "best"})
    for key, value in (("task", ["x"]), ("task", None), ("kind", 3), ("accepted", 5), ("accepted", [5]), ("lang", 5), ("several", "x"), ("ambiguous", "no")):
        assert fund.check_row(row | {key: value}).startswith(f"{key} {value!r}: "), key  # some were accepted, others a traceback
    assert "needs accepted" in fund.check_row(row | {"ambiguous": True, "accepted": []})
    with pytest.raises(SystemExit, match=r"row 1: task \['x'\] must be a text"):
        write_jsonl(place / "bad.jsonl", [row | {"task": ["x"]}])
        load_rows(place / "bad.jsonl", fund)
    assert "misuse_penalty" in fund.check_row(row | {"misuse_penalty": "much"})
    assert "needs path, state and end" in fund.check_row(request | {"state": None})


def test_the_prompt_of_sft_is_that_of_rl(place):
    """The tools are listed once, in the system message: were they handed to the template as well, SFT would train on another prompt."""
    chat, row = load_chat(str(place / "model")), rows_of(place, "sft/sft_train")[0]
    datum = sft_datum(chat, row["messages"], fund.TOOLS)
    prompt = [token for chunk in encode_prompt(chat, row["messages"][:-1], fund.start(row).tools) for token in chunk.tokens]
    assert [token for chunk in datum.chunks for token in chunk.tokens][: len(prompt)] == prompt and np.flatnonzero(datum.weights)[0] == len(prompt) - 1


# ---------------------------------------------------------------- eval.py


def play(place, monkeypatch, name, *flags):
    monkeypatch.chdir(place)
    flags = ["--task", "fund", "--base-model", "model", "--data", "fund/rl/bench_dev.jsonl", "--output", name, "--policy", name, *flags]
    return evaluation.main(flags), json.loads((place / name / "metrics.json").read_text())


def test_gold_is_full_and_the_report_is_printed(place, monkeypatch, capsys):
    code, report = play(place, monkeypatch, "gold")
    said = capsys.readouterr().out
    assert code == 0 and report["accuracy"] == 1 and report["below_full"] == 0 and report["baselines"]["gold"]["accuracy"] == 1
    for line in ("single-step tool", "step of several, tool", "whole requests carried out", "ambiguous rows, as labelled", "reasoning is a thought",
                 "baseline random_tool", "baseline always_check_balance", "  combination", "confusion", "faults of replies none"):  # fmt: skip
        assert line in re.sub(r"(?<=\S) +", " ", said), line  # columns are as wide as they must be
    n = report["categories"]["simple"]["n"]
    assert f"100.0 %  [{100 * n / (n + 1.96**2):.1f}, 100.0]  n={n}" in said  # Wilson, all right: n / (n + z^2)
    analysis.main(["show", "gold"])
    again = capsys.readouterr().out
    assert again.strip().partition("\n")[0] == "gold" and again.strip().partition("\n")[2] in said, "the folder tells it once more"


def test_random_is_near_its_floor(place, monkeypatch, capsys):
    code, report = play(place, monkeypatch, "random")
    assert code == 0 and report["accuracy"] < 0.6 and report["requests"]["whole"]["value"] == 0
    assert report["baselines"]["random_tool"]["accuracy"] == pytest.approx(1 / 6)
    assert sum(sum(row.values()) for row in report["confusion"].values()) == sum(share["n"] for share in report["kinds"].values())


# ---------------------------------------------------------------- spans


def test_spans_of_the_fields():
    text = '```json\n{"thought": "so, \\"then\\" pay", "action": {"tool": "x", "params": {"a": [1, "}"]}},\n "plan" : ["p", "q"]}\n```'
    spans = fund.token_spans({"form": "react"}, text)
    assert [text[a:b] for a, b in spans["reasoning"]] == ['"thought": "so, \\"then\\" pay"', '"plan" : ["p", "q"]']
    assert [text[a:b] for a, b in spans["tool"]] == ['"action": {"tool": "x", "params": {"a": [1, "}"]}}']
    plain = '{"tool": "check_balance", "params": {}}'
    assert [plain[a:b] for a, b in fund.token_spans({"form": "tool-only"}, plain)["tool"]] == ['"tool": "check_balance"', '"params": {}']
    assert fund.token_spans({}, text[:-9]) == {} == fund.token_spans({}, "nothing") == fund.token_spans({}, "[1]")
