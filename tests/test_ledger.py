"""The ledger: scripts that say what they ask, results worked by hand, and the shipped experiments themselves."""

import importlib
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import analysis
import ledger
from protocol import write_jsonl

ROOT = Path(__file__).resolve().parents[1]
HEAD = """#!/usr/bin/env bash
# question: Does it help?
# varies: b against a.
# prediction: It does,
# prediction: a little.
# seed: +14 %
# expect: tool a b > 0.2
exit
"""


def script(folder, text=HEAD, name="01_try.sh"):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def output(folder, name, rights, task="simple"):
    """An evaluation: rights[i] is whether row i was right; row 90 is ambiguous, row 91 a request, row 92 failed."""
    rows = [{"id": f"r{i}", "task": task, "kind": "single"} for i in range(len(rights))]
    rows += [{"id": "r90", "task": task, "kind": "single", "ambiguous": True}, {"id": "r91", "task": "request", "kind": "request"}, {"id": "r92", "task": task}]
    write_jsonl(folder / "rows.jsonl", rows)
    line = lambda id, right, reason="answer": {"id": id, "finish_reason": reason, "reward": right / 2, "parts": {"correct": float(right), "thought": 0.1}}
    (folder / name).mkdir()
    lines = [line(f"r{i}", right) for i, right in enumerate(rights)] + [line("r90", 1), line("r91", 1), line("r92", 1, "error")]
    write_jsonl(folder / name / "trajectories.jsonl", lines)
    (folder / name / "config.json").write_text(json.dumps({"flags": {"data": str(folder / "rows.jsonl")}}))
    return folder / name


def training(folder, name, shares):
    (folder / name).mkdir()
    write_jsonl(folder / name / "metrics.jsonl", [{"step": i, "frac_reward_zero_std": share, **({"frac_groups_silent": share / 2} if name == "rb" else {})} for i, share in enumerate(shares, 1)])
    return folder / name


def test_a_script_is_read(tmp_path):
    entry = ledger.read_script(script(tmp_path))
    assert entry["question"] == "Does it help?" and entry["prediction"] == "It does, a little." and entry["results"] == []
    assert "| 01_try | - | tool: b - a > 0.2 | not run | - | - |" in ledger.show(tmp_path)


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("# question: Does it help?\n", "", "no line '# question"),
        ("> 0.2", "by 0.2", "MEASURE FIRST SECOND"),
        ("exit\n", "exit\n# RESULT {oops\n", "line 9: the result is no JSON"),
    ],
)
def test_a_script_that_says_too_little_is_named(tmp_path, old, new, said):
    with pytest.raises(SystemExit, match=said):
        ledger.read_script(script(tmp_path, HEAD.replace(old, new)))


def test_experiments_that_tell_their_findings_are_shown(tmp_path):
    head = "# question: Why?\n# varies: a\n# prediction: b\n# measured: {}\n# reconciled: {}\n"
    (tmp_path / "cards").mkdir()
    script(tmp_path / "cards", head.format("1 of 2 [0, 1], n=2", "✓ as predicted\n# reconciled: ✗ but slower"), "one.sh")
    script(tmp_path / "cards", head.format("not run: no GPU", "not run"), "two.sh")
    script(tmp_path / "cards", "echo shared\n", "common.sh")
    said = ledger.show(tmp_path)
    assert "| cards/one | - | told below | told below | - | ✓, ✗ |" in said and "| cards/two | - | told below | not run | - | - |" in said
    assert "  measured   1 of 2 [0, 1], n=2\n  reconciled ✓ as predicted ✗ but slower" in said and "common" not in said
    script(tmp_path / "cards", head.replace("# reconciled: {}", "").format("x"), "two.sh")
    with pytest.raises(SystemExit, match="two.sh: no line '# reconciled: ...'"):
        ledger.show(tmp_path)


def test_every_experiment_is_shown():
    """The shipped ones: nothing under experiments/ that is run by hand is left out."""
    said = ledger.show(ROOT / "experiments")
    for path in (ROOT / "experiments").glob("*/*.sh"):
        assert (f"\n| {path.parent.name}/{path.stem} |" in said) == (path.stem not in ("common", "all")), path


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(SystemExit, match="no experiments"):
        ledger.show(tmp_path)


def test_results_by_hand(tmp_path, capsys):
    """Arm a: rows right 0 0 0 1 and 0 0 0 0 with two seeds, 1 of 8; arm b: all right. Each row gains 1, the last one 1/2: 0.875 in the mean."""
    one = {"value": 1, "low": 1, "high": 1, "n": 1, "each": [1]}
    other = {"model": "other", "commit": "x", "seeds": 1, "arms": {"a": {"tool": one}, "b": {"tool": one}}, "verdict": "✗", "difference": one}
    path = script(tmp_path)
    path.write_text(f"{path.read_text()}# RESULT {json.dumps(other)}\n")
    arms = {"a": [output(tmp_path, "a1", [0, 0, 0, 1]), output(tmp_path, "a2", [0, 0, 0, 0])], "b": [output(tmp_path, "b1", [1, 1, 1, 1])]}
    logs = {"a": [training(tmp_path, "ra", [0.5, 0.25])], "b": [training(tmp_path, "rb", [0.0, 0.25])]}
    flags = [part for name, folders in arms.items() for part in ("--arm", name, *map(str, folders))]
    flags += [part for name, folders in logs.items() for part in ("--runs", name, *map(str, folders))]
    for _ in range(2):  # a second run takes the place of the first
        ledger.main(["record", str(path), "--model", "models/m", *flags, "--also", "reasoning", "--also", "reward", "--also", "tool:nothing"])
    assert "+0.875" in capsys.readouterr().out
    old, result = ledger.read_script(path)["results"]
    assert old["model"] == "other" and path.stat().st_mode & 0o111
    assert result["difference"]["value"] == 0.875 and result["difference"]["n"] == 4 and result["verdict"] == "✓" and result["seeds"] == 2
    a, b = result["arms"]["a"], result["arms"]["b"]
    assert (a["tool"]["value"], a["tool"]["n"], a["tool"]["each"]) == (0.125, 8, [0.25, 0.0]) and b["tool"]["value"] == 1.0
    assert (b["tool"]["low"], b["tool"]["high"]) == (pytest.approx(0.5101, abs=1e-4), 1.0), "four of four, by Wilson: 4 / (4 + 1.96**2)"
    assert a["reasoning"]["value"] == 1.0 and a["zero_std"]["value"] == 0.375 and b["zero_std"]["n"] == 2 and b["silent"]["each"] == [0.0625] and "silent" not in a and "tool:nothing" not in a
    assert b["reward"]["n"] == 5, "the request counts in the reward, the failed and the ambiguous row don't"
    analysis.main(["ledger", str(tmp_path)])
    said = capsys.readouterr().out
    assert "| 01_try | m | tool: b - a > 0.2 | +0.875 [" in said and "n=4 | +0.750, +1.000 | ✓ |" in said and "tool 0.125 [" in said and "(0.250, 0.000)" in said


def test_verdicts():
    change = lambda low, high: {"low": low, "high": high}
    cases = [(0.1, 0.3, ">", "✓"), (-0.1, 0.3, ">", "≈"), (-0.3, 0.0, ">", "✗"), (-0.3, -0.1, "<", "✓"), (-0.3, 0.1, "<", "≈"), (0.1, 0.2, "<", "✗")]
    assert [ledger.verdict(change(low, high), [low, high], sign, 0.05) for low, high, sign, _ in cases] == [wanted for *_, wanted in cases]


def test_seeds_that_disagree_decide_nothing():
    """+20 and -2 points: the rows are sure of +9, and another seed may say the contrary."""
    result = {"a": {"tool": {"each": [0.5, 0.6]}}, "b": {"tool": {"each": [0.7, 0.58]}}, "once": {"tool": {"each": [0.4]}}}
    each = ledger.seed_changes(result, "tool", "a", "b")
    assert each == pytest.approx([0.2, -0.02]) and ledger.seed_changes(result, "tool", "once", "b") == pytest.approx([0.3, 0.18])
    assert ledger.seed_changes(result, "tool", "b", "once") == pytest.approx([-0.3, -0.18])
    change = {"low": 0.06, "high": 0.12}
    assert ledger.verdict(change, each, ">", 0) == ledger.verdict(change, each, "<", 0) == "≈" and ledger.verdict(change, [0.1, 0.08], ">", 0) == "✓"


def test_the_commit_is_that_of_what_was_run(tmp_path):
    """Not that of the checkout that writes it down, which was named first."""
    arms = {"a": [output(tmp_path, "a1", [0])], "b": [output(tmp_path, "b1", [1])]}
    told = lambda folder, git: (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | {"git": git, "started": "2026-03-04T05:06:07+0000"}))
    assert ledger.record(script(tmp_path), "m", arms, {})["commit"] == "unknown"
    told(arms["a"][0], {"commit": "a" * 40, "dirty": False}), told(arms["b"][0], None)
    result = ledger.record(script(tmp_path), "m", arms, {}, commit="b" * 12)
    assert (result["commit"], result["when"]) == ("aaaaaaaaaa, bbbbbbbbbb", "2026-03-04")


def test_arms_that_are_missing_are_named(tmp_path):
    with pytest.raises(SystemExit, match="names the arm 'b'; there are a"):
        ledger.record(script(tmp_path), "m", {"a": [output(tmp_path, "a1", [1])]}, {})


SCRIPTS = ledger.find_scripts(ROOT / "experiments" / "fund")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("model", ["tiny", "some/Model-0.5B"])
def test_the_shipped_experiments_give_commands_that_the_scripts_take(path, model, monkeypatch):
    """DRY=1 prints the commands; each is read by the parser of the script that it calls, and the arms are those of the claim."""
    entry, environment = ledger.read_script(path), {**os.environ, "DRY": "1", "MODEL": model, "SEEDS": "1 2"}
    done = subprocess.run(["bash", str(path)], capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    seen = Counter()
    for line in done.stdout.splitlines():
        name, *flags = line.split()
        seen[name] += 1
        monkeypatch.setattr("sys.argv", [name, *flags])
        if name in ("prepare_data.py", "train_sft.py", "train_rl.py", "eval.py", "analysis.py", "ledger.py"):
            args = importlib.import_module(name.removesuffix(".py")).parse_args()
        if name == "ledger.py":
            _, first, second, *_ = ledger.EXPECT.fullmatch(entry["expect"]).groups()
            assert {first, second} <= {arm for arm, *_ in args.arm} and args.script.stem == path.stem
    assert seen["prepare_data.py"] and seen["train_sft.py"] and seen["eval.py"] >= 2 and seen["ledger.py"] == 1
    assert seen["train_rl.py"] >= 2 or "RL=1" in entry["varies"]
    assert bool(seen["experiments/fund/tiny_model.py"]) == (model == "tiny")
