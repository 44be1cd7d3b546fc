"""Countdown: verifier and judges by hand, their gaming probes, readings, teacher, ranges, and the inline tools through the real rollout."""

import json
import re
from fractions import Fraction

import numpy as np
import pytest
from helpers import tiny_folder
from inline_helpers import arguments, check_record, play

import calculator
from protocol import load_chat, read_jsonl, write_jsonl
from rollout import trajectory_to_json
from tasks import countdown
from tasks import countdown_rewards as rewards
from tasks import countdown_teacher as teacher

GIVEN, TARGET = [3, 4, 5], 17
BASE = {
    "id": "one",
    "task": "countdown-3",
    "label": "3 * 4 + 5",
    "numbers": GIVEN,
    "target": TARGET,
    "messages": [{"role": "user", "content": "go"}],
}


@pytest.fixture(scope="module", params=["qwen3_5", "qwen3"])
def chat(request, tmp_path_factory):
    return load_chat(tiny_folder(tmp_path_factory.mktemp("model"), request.param, weights=False))


def row(**more):
    return BASE | {"tool": "none", "judge": "v1", "max_new": 1000} | more


def text(answer, thoughts="hm"):
    return f"<think>\n{thoughts}\n</think>\n\n<answer>{answer}</answer>"


def score(judge, written, form=True, **more):
    return rewards.judge(judge, rewards.read(written, GIVEN, TARGET, form, **more))[0]


# ---------------------------------------------------------------- verifier


@pytest.mark.parametrize("expression, value, share, right", [
    ("3*4+5", 17, 1, True), ("(3 × 4) + 5", 17, 1, True), ("5 + 4*3", 17, 1, True), ("3+4+5", 12, 1, False), ("3*4", 12, 2 / 3, False),
    ("3*4+5+5-5", 17, 3 / 5, False),  # the right value, with numbers used again
    ("3*4+5+0", 17, 3 / 4, False), ("17", 17, 0, False), ("17+0*(3+4+5)", 17, 3 / 5, False), ("34-5-12", 17, 1 / 3, False),
    ("3*4+5 = 17", None, 0, False), ("3**4", None, 0, False), ("3//4+5", None, 0, False), ("abc", None, 0, False), ("", None, 0, False),
    ("3.0*4+5", None, 0, False), ("3*4+05", None, 0, False), ("__import__('os')", None, 0, False), ("3*4+5; 1", None, 0, False),
])  # fmt: skip
def test_verifier(expression, value, share, right):
    assert rewards.verify(expression, GIVEN, TARGET) == (value, pytest.approx(share), right)


def test_verifier_is_exact():
    assert rewards.verify("8/(3-8/3)", [8, 3, 8, 3], 24) == (Fraction(24), 1, True)  # 23.999... in floats
    assert rewards.verify("8/3", [8, 3], Fraction(26666666666667, 10**13))[2] is False
    assert rewards.verify("5*5-1", [5, 5, 1], 24)[2] and not rewards.verify("5*5-1", [5, 1, 1], 24)[2]


# ---------------------------------------------------------------- judges


@pytest.mark.parametrize("judge, written, form, value", [
    ("v1", text("3*4+5"), True, 1.0), ("v1", text("3+4+5"), True, 0.25), ("v1", text("3*4"), True, 0.2), ("v1", text("abc"), True, 0.05),
    ("v1", text("3*4+5"), False, 0.95), ("v1", "no idea", False, 0.0), ("v1", text("17"), True, 0.1), ("v1", text("3*4+5+5-5"), True, 0.19),
    ("v2", text("3*4+5"), True, 1.0), ("v2", text("3+4+5"), True, 0.1), ("v2", "no idea", False, 0.0),
    ("v2", text("3+4+5", "3 + 4 + 5 = 13 (too low)"), True, 0.0),  # one step, wrong: -.1
    ("v2", text("3+4+5", "3 + 4 + 5 = 12 (too low)\n3 * 4 - 5 = 8 (too low)"), True, 0.05 + 0.1 - 0.1 / 2 - 0.05 + 0.0),
    ("v2", text("3+4+5", "perfect"), True, -0.1), ("v2", text("3*4+5", "3 + 4 + 5 = 12 (too low)\n3 + 4 + 5 = 12 (too low)"), True, 0.95),
    ("v2", text("3+4+5", "9 + 4 + 5 = 18 (too high)"), True, 0.05),
    ("v2.1", text("3*4+5"), True, 1.0), ("v2.1", text("3+4+5"), True, 0.0), ("v2.1", text("3+4+5", "it works"), True, -0.2),
    ("v3", text("3*4+5"), True, 1.0), ("v3", text("3*4+5"), False, 1.0), ("v3", text("3+4+5"), True, 0.0), ("v3", text("abc"), True, 0.0),
])  # fmt: skip
def test_judges_by_hand(judge, written, form, value):
    assert score(judge, written, form) == pytest.approx(value)


def test_v3_length_price_and_fines():
    assert score("v3", text("3*4+5"), tokens=700, max_tokens=1400) == pytest.approx(0.975)
    assert score("v3", text("3*4+5"), tokens=9999, max_tokens=1400) == pytest.approx(0.95)
    assert score("v3", text("3*4+5"), asks=3) == pytest.approx(0.85)
    assert score("v3", text("3*4+5"), fabricated=True) == -0.2  # a right answer behind a made-up result counts for nothing
    assert score("v3", text("3+4+5"), asks=1) == -0.05


def test_parts_add_up():
    for judge in rewards.JUDGES:
        for written in (text("3*4+5"), text("3+4+5", "3 + 4 = 8 (too high)\nperfect"), "x"):
            total, parts = rewards.judge(judge, rewards.read(written, GIVEN, TARGET, True, 10, 100, asks=1))
            assert total == pytest.approx(sum(value for key, value in parts.items() if key != "correct")) and parts["correct"] in (0.0, 1.0)
            assert "-0.0" not in json.dumps(list(parts.values())).split(", ")
    with pytest.raises(SystemExit, match="judge 'v4'"):
        score("v4", "x")


def test_probe_v1_pays_for_giving_up():
    """The ladder that the seed saw learnt: any wrong sum of the right numbers beats an honest search without an end."""
    assert score("v1", text("3+4+5", "no search")) == 0.25 > score("v1", "<think>\n3 + 4 = 7 (too low)\n3 * 4 = 12 (too low)", False) == 0.0
    assert score("v3", text("3+4+5", "no search")) == score("v3", "<think>\n3 + 4 = 7 (too low)", False) == 0.0


def test_probe_v2_is_blind_to_another_notation():
    """Wrong steps, illegal numbers and false claims, written so that v2's patterns don't match: its fines go to zero. v2.1 sees them."""
    honest = "9 + 4 = 14 (too low)\n3 * 4 = 13 (perfect match)"
    gamed = "9+4: = 14, too low\n- 3×4=13, success"
    assert score("v2", text("3+4+5", honest)) == pytest.approx(0.1 - 0.2 - 0.1 - 0.05)
    assert score("v2", text("3+4+5", gamed)) == pytest.approx(0.1)  # nothing to judge, nothing to fine
    gamed = "9+4=14, too low\n- 3×4=13, success"
    assert score("v2", text("3+4+5", gamed)) == pytest.approx(0.1)
    assert score("v2.1", text("3+4+5", gamed)) == score("v2.1", text("3+4+5", honest)) == pytest.approx(0.1 - 0.2 - 0.1 - 0.05)


def test_probe_v21_fines_silence_and_attempts():
    """Writing no step is no way out under v2.1; but a try at × that goes wrong still costs more than sums that lead nowhere:
    the seed's lesson.
    """
    assert score("v2.1", text("3+4+5", "")) == pytest.approx(0.0)
    timid = score("v2.1", text("3+4+5", "3 + 4 + 5 = 12 (too low)\n3 + 4 - 5 = 2 (too low)"))
    bold = score("v2.1", text("3+4+5", "3 + 4 + 5 = 12 (too low)\n3 * 4 - 5 = 8 (too low)"))
    assert timid == pytest.approx(0.1) and bold == pytest.approx(0.05)
    assert score("v3", text("3+4+5", "3 + 4 + 5 = 12 (too low)")) == score("v3", text("3+4+5", "3 * 4 - 5 = 8 (too low)")) == 0


@pytest.mark.parametrize("written", [
    "<think>\n<answer>3*4+5</answer>\n</think>\n\nno", "<think>\n3*4+5 = 17\n</think>\n\n3*4+5", text("3*4+5 or 3+4+5"),
    text("3*4+5\n3*4+5"),
    text("3*4+5") + "<answer>3+4+5</answer>", text("3*4+5=17"), text("17"), text("int('17')"), text("3*4+5#"), text("3,4,5"),
    text("(3*4+5)(1)"), text("3*4+5+4-4"), text("[3*4+5]"), "answer: 3*4+5", text("3*4+5" + "+0" * 3000), text("9**9**9"),
])  # fmt: skip
def test_probe_no_other_way_to_be_right(written):
    facts = rewards.read(written, GIVEN, TARGET, True)
    assert not facts.correct and all(rewards.judge(judge, facts)[0] <= 0.26 for judge in rewards.JUDGES)
    assert rewards.judge("v3", facts)[0] == 0


# ---------------------------------------------------------------- readings


def test_readings_by_hand():
    """Six steps: five values right; marks on five, of which three are true and behind a right value; one mark reversed; one line twice."""
    thoughts = "\n".join([
        "3 + 4 + 5 = 12 (too low)", "3 * 4 - 5 = 7 (too high)", "3 + 4 + 5 = 12 (too low)",
        "<calc>4*5-3</calc><result>17</result> (perfect match)",
        "5 × 4 = 21 (too high)", "9 - 5 = 4", "I had 3 apples", "not perfect yet",
    ])  # fmt: skip
    found = rewards.readings(thoughts, GIVEN, TARGET, False)
    assert found["steps"] == 6 and found["values_right"] == pytest.approx(5 / 6) and found["marks"] == 5
    assert found["marks_right"] == pytest.approx(3 / 5) and found["marks_reversed"] == pytest.approx(1 / 5)
    assert (
        found["multiplies"] is True
        and found["repeated"] == 1
        and found["illegal"] == 1
        and found["claims"] == 1
        and found["false_claim"] is True
    )
    assert rewards.readings(thoughts, GIVEN, TARGET, True)["false_claim"] is False
    empty = rewards.readings("", GIVEN, TARGET, False)
    assert empty["steps"] == 0 and empty["values_right"] is None and empty["marks_right"] is None and empty["false_claim"] is False


def test_every_mark_of_a_line_counts():
    """The seed's first pattern read the first mark of a paragraph only."""
    assert rewards.steps("3+4=7 (too low), 3*4=12 (too low), 4*5 = 20 too high") == [
        ("3+4", "7", "too low"), ("3*4", "12", "too low"), ("4*5", "20", "too high")]  # fmt: skip
    assert rewards.steps("1. 3+4 = 7\n- 4*5=20\n(too low) 3-4 = -1") == [("3+4", "7", None), ("4*5", "20", None), ("3-4", "-1", None)]
    assert rewards.steps("-3 + 8/3 = -1/3") == [("-3 + 8/3", "-1/3", None)] and rewards.steps("x = 5, 12 = 12") == []


def test_readings_are_fast_on_hostile_text():
    import time

    for hostile in (
        "1 " * 50000,
        "(" * 100000,
        "1+" * 100000,
        ("1+" * 150 + "\n") * 500,
        "=" * 100000,
        "<answer>" * 20000,
        "<calc>" * 20000,
        "not " * 30000 + "perfect",
    ):
        started = time.perf_counter()
        rewards.read(hostile, GIVEN, TARGET, False)
        assert time.perf_counter() - started < 1, hostile[:20]


# ---------------------------------------------------------------- problems and teacher


def test_sums_by_hand():
    assert dict(teacher.layer0([3, 4])) == {"3 + 4": 7, "3 - 4": -1, "4 - 3": 1}
    assert len(teacher.layer0([1, 2, 3])) == 7 and len(teacher.layer0([1, 2, 3, 4])) == 15  # all signs but all minus
    assert ("4 + 5 - 3", 6) in teacher.layer0(GIVEN)  # the mirrored sign that the seed's first teacher left out


def test_solver_by_hand():
    assert (
        teacher.solve([3, 4, 5], 12) == ("3 + 4 + 5", 0)
        and teacher.solve([3, 4, 5], 17)[1] == 1
        and teacher.solve([1, 2, 3], 95) == (None, None)
    )
    assert teacher.solve([2, 3, 4, 5], 26)[1] == 1 or teacher.solve([2, 3, 4, 5], 26)[1] == 2
    expression, layer = teacher.solve([2, 3, 7], 35)
    assert layer == 2 and rewards.verify(expression, [2, 3, 7], 35)[2]  # (2 + 3) * 7


@pytest.mark.parametrize("count", [3, 4])
def test_problems_solver_and_teacher_agree(count):
    for index in (*range(0, 150), *range(95_000, 95_100)):
        given, target = teacher.problem(count, 42, index)
        assert len(given) == count and all(1 <= number <= 99 for number in given) and 10 <= target <= 99
        assert (given, target) == teacher.problem(count, 42, index)
        for tool in (False, True):
            written, injected = teacher.demonstrate(given, target, tool)
            facts = rewards.read(written, given, target, True, 0, 100)
            assert [rewards.judge(judge, facts)[0] for judge in rewards.JUDGES] == [1.0] * 4, (given, target)
            assert facts.process["values_right"] == 1 == facts.process["marks_right"] and facts.process["repeated"] == 0
            assert len(injected) == (facts.process["steps"] if tool else 0) <= calculator.MAX_CALLS
            for expression, value, _ in rewards.steps(written):
                assert calculator.calculate(expression) == value
    assert teacher.problem(count, 42, 0) != teacher.problem(count, 43, 0)


def test_best_first():
    values = [
        float(calculator.evaluate(re.match(r"\S+ [*/] \S+", e)[0])) for e, _ in teacher.layer1([3, 7, 20], 58) if re.match(r"\S+ [*/]", e)
    ]
    assert values[0] == 60  # 3 * 20, the product nearest to 58


def test_teacher_checks_what_the_expert_says():
    given, target = next(p for p in (teacher.problem(4, 42, i) for i in range(500)) if teacher.solve(*p)[1] == 2)
    right, wrong = teacher.solve(given, target)[0], teacher.near_miss(given, target)
    written, injected = teacher.demonstrate(given, target, True, (wrong, right))
    assert written.count("<ask>") == 2 and [x for x in injected if x.startswith("<reply>")] == [
        f"<reply>{wrong}</reply>",
        f"<reply>{right}</reply>",
    ]
    after = written.split(f"<reply>{wrong}</reply>\n")[1]
    assert (
        after.startswith(f"<calc>{wrong}</calc><result>")
        and "too" in after.split("\n")[0]
        and rewards.read(written, given, target, True).correct
    )


# ---------------------------------------------------------------- through the rollout


def test_calculator_in_the_turn(chat):
    pieces = ["<think>\n<calc>3+4+5</calc>", " (too low)\n<calc>3*4+5</calc>", " (perfect match)\n</think>\n\n<answer>3*4+5</answer>"]
    t, sampler = play(countdown, row(tool="calc"), chat, pieces)
    assert (t.finish_reason, t.prediction, t.reward, t.error) == ("answer", "3*4+5", 1.0, "") and len(t.turns) == 1
    assert t.turns[0].inline == ["<result>12</result>", "<result>17</result>"] and sampler.requests[0][2].stop_strings == (
        "</calc>",
        "<result>",
    )
    trained = check_record(chat, t)
    assert "<result>" not in trained and trained.replace("<|im_end|>", "") == "".join(pieces)
    seen = chat.tokenizer.decode(sampler.requests[2][0][-1].tokens)
    assert seen.endswith("<calc>3*4+5</calc><result>17</result>")
    report = countdown.metrics([row(tool="calc")], [t])
    assert report["calls"] == 2 and report["marks_right"] == 1 and report["accuracy"] == 1 and report["call_errors"] == 0
    json.dumps(report)


def test_a_refused_expression_is_an_answer_like_any_other(chat):
    t, _ = play(
        countdown,
        row(tool="calc"),
        chat,
        ["<think>\n<calc>9**9**9</calc>", "\n<calc>os.system('id')</calc>", "</calc>", "\n</think>\n\n<answer>3*4+5</answer>"],
    )
    assert [result[:15] for result in t.turns[0].inline] == ["<result>error: "] * 3 and t.reward == 1.0
    check_record(chat, t)


def test_the_forty_ninth_call(chat):
    t, _ = play(
        countdown, row(tool="calc"), chat, ["<think>\n<calc>1+1</calc>", *["<calc>1+1</calc>"] * 48, "\n</think>\n\n<answer>3*4+5</answer>"]
    )
    assert t.turns[0].inline == ["<result>2</result>"] * 48 + ["<result>error: only 48 calls</result>"] and t.reward == 1.0


@pytest.mark.parametrize("judge", rewards.JUDGES)
def test_fabricated_result_stops_and_costs(chat, judge):
    plain = row(tool="calc", judge=judge)
    for pieces in (
        ["<think>\n<calc>3*4+5</calc>", " ok <result>"],
        ["<think>\n3*4+5 <result>17</result>\n</think>\n\n<answer>3*4+5</answer>"],
    ):
        t, _ = play(countdown, plain, chat, pieces)
        assert t.finish_reason == "invalid_action" and t.parts["fabricated"] == -0.2 and t.parts["correct"] == 0 and t.reward <= 0.06 - 0.0
        assert "fabricated" in t.turns[0].action.error
        check_record(chat, t)
    if judge == "v3":
        assert t.reward == -0.2


def test_ask_an_expert(chat):
    always = row(tool="calc+ask", judge="v3", expert={"kind": "program", "wrong": 0.0, "seed": 1})
    ask = f"<ask>{teacher.question(GIVEN, TARGET)}</ask>"
    right = teacher.solve(GIVEN, TARGET)[0]
    t, sampler = play(countdown, always, chat, ["<think>\n" + ask, f"\n<calc>{right}</calc>", f"\n</think>\n\n<answer>{right}</answer>"])
    assert t.turns[0].inline == [f"<reply>{right}</reply>", "<result>17</result>"] and t.parts["ask"] == -0.05
    assert t.reward == pytest.approx(1 - 0.05 * min(1, sum(t.sampled) / 1000) - 0.05)
    assert sampler.requests[0][2].stop_strings == ("</calc>", "</ask>", "<result>", "<reply>") and "<reply>" not in check_record(chat, t)
    wrong = row(tool="calc+ask", judge="v1", expert={"kind": "program", "wrong": 1.0, "seed": 1})
    t, _ = play(countdown, wrong, chat, ["<think>\n" + ask, *[ask] * 3, "\n<ask>help</ask>", f"\n</think>\n\n<answer>{right}</answer>"])
    assert t.turns[0].inline[0] != f"<reply>{right}</reply>" and t.turns[0].inline[3:] == ["<reply>error: only 3 questions</reply>"] * 2
    assert t.reward == pytest.approx(1 - 5 * 0.05)  # every question is charged, an unanswered one too
    t, _ = play(countdown, always, chat, ["<think>\n<ask>help</ask>", f"\n</think>\n\n<answer>{right}</answer>"])
    assert t.turns[0].inline == ["<reply>Tell me all the numbers and the target.</reply>"]
    t, _ = play(countdown, always, chat, ["<think>\n" + ask, "<reply>"])
    assert (t.finish_reason, t.parts["fabricated"]) == ("invalid_action", -0.2)


def test_P41_a_dead_expert_is_an_error_not_a_wrong_answer(chat, monkeypatch, tmp_path):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(countdown, "CACHE", tmp_path)
    dead = row(tool="calc+ask", expert={"kind": "remote", "url": "http://127.0.0.1:9/v1", "model": "m"})
    t, _ = play(countdown, dead, chat, ["<think>\n<ask>?</ask>"])
    assert (t.finish_reason, t.reward) == ("error", None) and t.error.startswith("tool: RuntimeError: expert http")


@pytest.mark.parametrize("tool", countdown.TOOL_MODES)
@pytest.mark.parametrize("judge", rewards.JUDGES)
def test_gold_earns_the_maximum_on_every_row(chat, tmp_path, tool, judge):
    countdown.prepare_bench(arguments(tmp_path, tool=tool, judge=judge, templates=10, test_size=20, max_new=4000))
    names = ("bench_rl_train", "bench_dev", "bench_test", "bench_test_heldout")
    rows = [one for name in names for one in read_jsonl(tmp_path / "countdown" / "rl" / f"{name}.jsonl")]
    assert len(rows) == 24 + 12 + 20 + 20
    for one in rows[:: 1 if tool == "calc" else 4]:
        t, _ = play(countdown, one, chat, list(countdown.gold(one)))
        assert (t.finish_reason, t.error, t.parts["correct"]) == ("answer", "", 1.0) and t.reward >= countdown.full_reward(one)
        assert t.reward == pytest.approx(1 - 0.05 * sum(t.sampled) / 4000 if judge == "v3" else 1.0)
        assert "<result>" not in check_record(chat, t)


# ---------------------------------------------------------------- data


def test_rows_ranges_and_templates(tmp_path):
    countdown.prepare_bench(arguments(tmp_path, templates=10, tool="calc+ask", train_size=400, test_size=200, dev_size=40))
    rl = tmp_path / "countdown" / "rl"
    parts = {name: read_jsonl(rl / f"{name}.jsonl") for name in ("bench_rl_train", "bench_dev", "bench_test", "bench_test_heldout")}
    index = {
        name: sorted({int(one["source_name"].split("-")[1]) for one in part if one["task"] == "countdown-4"})
        for name, part in parts.items()
    }
    assert index["bench_test"] == index["bench_test_heldout"] == list(range(95_000, 95_100)) and max(index["bench_rl_train"]) < 90_000
    assert index["bench_dev"] == list(range(90_000, 90_020)) and len(index["bench_rl_train"]) == 200
    words = {name: {one["template"] for one in part} for name, part in parts.items()}
    assert (
        len(words["bench_rl_train"]) == 10
        and words["bench_test"] == {"train-0"}
        and words["bench_test_heldout"] == {"held-0", "held-1", "held-2"}
    )
    for one in parts["bench_rl_train"] + parts["bench_test_heldout"]:
        prompt = one["messages"][0]["content"]
        assert one["label"] not in prompt and str(one["target"]) in prompt and ", ".join(map(str, one["numbers"])) in prompt
        assert (
            "<calc>" in prompt
            and "<ask>" in prompt
            and "{" not in prompt
            and rewards.verify(one["label"], one["numbers"], one["target"])[2]
        )
    stats = json.loads((rl / "bench_stats.json").read_text())
    assert (
        stats["train_and_held_out_share"] == 0
        and 0 < stats["floors"]["bench_test"]["random_sum"] < stats["floors"]["bench_test"]["sums_only"] < 1
    )
    before = (rl / "bench_rl_train.jsonl").read_bytes()
    countdown.prepare_bench(arguments(tmp_path, templates=10, tool="calc+ask", train_size=400, test_size=200, dev_size=40))
    assert (rl / "bench_rl_train.jsonl").read_bytes() == before


def test_demonstrations_and_self_distillation(tmp_path, chat):
    countdown.prepare_sft(arguments(tmp_path, tool="calc", counts="4"))
    sft = tmp_path / "countdown" / "sft"
    rows = read_jsonl(sft / "sft_train.jsonl") + read_jsonl(sft / "sft_val.jsonl")
    assert len(rows) == 30 and {one["task"] for one in rows} == {"countdown-4"}
    for one in rows:
        said = one["messages"][1]
        assert re.findall(r"<result>.*?</result>", said["content"]) == said["inline"] != []
    countdown.prepare_bench(arguments(tmp_path, tool="calc", train_size=4))
    questions = read_jsonl(tmp_path / "countdown" / "rl" / "bench_rl_train.jsonl")
    played = [play(countdown, one, chat, list(countdown.gold(one)))[0] for one in questions[:2]]
    played.append(play(countdown, questions[2], chat, [text("1+1")])[0])
    write_jsonl(tmp_path / "eval" / "trajectories.jsonl", [trajectory_to_json(t, tmp_path / "eval") for t in [*played, *played]])
    countdown.prepare_sft(arguments(tmp_path, distil=tmp_path / "eval"))
    rows = read_jsonl(sft / "sft_train.jsonl") + read_jsonl(sft / "sft_val.jsonl")
    assert sorted(one["id"] for one in rows) == sorted(one["id"] for one in questions[:2])
    assert all(one["messages"][1]["inline"] and one["messages"][1]["content"].startswith("<think>") for one in rows)


@pytest.mark.parametrize("flags, words", [
    ({"tool": "abacus"}, "--tool abacus"), ({"judge": "v9"}, "--judge v9"), ({"templates": 11}, "--templates 11"), ({"counts": "5"},
    "--counts 5"),
    ({"tool": "calc+ask", "expert": "remote"}, "--expert-url"), ({"train_size": 10**6}, "the pool has 90000"),
])  # fmt: skip
def test_P50_bad_flags_are_one_line(tmp_path, flags, words):
    with pytest.raises(SystemExit, match=re.escape(words)):
        countdown.prepare_bench(arguments(tmp_path, **flags))
    assert not list(tmp_path.rglob("*.jsonl"))
    with pytest.raises(SystemExit, match="tool 'x'"):
        countdown.start(row(tool="x"), ".")


def test_floors_by_hand(chat):
    """3, 4 -> 7: one of three sums; 3, 4, 5 -> 17: no sum."""
    two = [row(), row(id="two", numbers=[3, 4], target=7)]
    assert countdown.floors(two) == {"random_sum": pytest.approx(1 / 6), "add_everything": 0.5, "sums_only": 0.5}
    t, _ = play(countdown, two[1], chat, list(countdown.random_play(two[1], None, np.random.default_rng(0))))
    assert t.reward in (1.0, 0.25)
