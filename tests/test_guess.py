"""Guess the number: the environment's replies, the reward by hand, bisection through the real rollout, the floors, the record."""

import json
import random

import numpy as np
import pytest
from helpers import tiny_folder
from inline_helpers import arguments, check_record, play

from protocol import load_chat, read_jsonl
from rollout import Trajectory, Turn
from tasks import guess

ROW = guess.make_row("train", 0, 37, 100, 10, guess.TEMPLATES[:1], random.Random(0))


@pytest.fixture(scope="module", params=["qwen3_5", "qwen3"])
def chat(request, tmp_path_factory):
    return load_chat(tiny_folder(tmp_path_factory.mktemp("model"), request.param, weights=False))


def turn(*guesses):
    """Pieces of a turn that makes these guesses."""
    return [("<think>\nhm\n</think>\n\n" if not n else "\n") + f"<guess>{k}</guess>" for n, k in enumerate(guesses)]


@pytest.mark.parametrize("body, said", [
    ("36", "higher"), ("38", "lower"), ("37", "correct"), (" 37 ", "correct"), ("037", "correct"), ("0", "invalid"), ("101", "invalid"),
    ("", "invalid"), ("-5", "invalid"), ("37.0", "invalid"), ("forty", "invalid"), ("9" * 5000, "invalid"), ("٣٧", "invalid"), ("1e1",
    "invalid"),
])  # fmt: skip
def test_what_the_environment_says(body, said):
    assert guess.answer_guess(body, 37, 100) == said


def test_bisection_by_hand():
    """Depths of a balanced search tree: 1, 2·2, 4·3, 8·4, 16·5, 32·6 and the other 37 numbers at depth 7: 580 guesses for 100 secrets."""
    assert guess.bisection(37, 100) == [50, 25, 37] and guess.bisection(1, 1) == [1]
    needed = [len(guess.bisection(secret, 100)) for secret in range(1, 101)]
    assert sum(needed) == 580 and max(needed) == 7
    assert sum(len(guess.bisection(secret, 20)) for secret in range(1, 21)) == 74
    assert max(len(guess.bisection(secret, 1000)) for secret in range(1, 1001)) == 10


def test_a_game(chat):
    t, sampler = play(guess, ROW, chat, turn(50, "x", 25, 37))
    assert (t.finish_reason, t.prediction, t.format_ok, t.error) == ("answer", "37", True, "")
    assert (
        t.turns[0].inline == ["<obs>lower</obs>", "<obs>invalid</obs>", "<obs>higher</obs>"]
        and t.turns[0].observation.text == "<obs>correct</obs>"
    )
    assert t.reward == 0.85 and t.parts == {"hit": 1.0, "guesses": pytest.approx(-0.15), "fabricated": 0.0, "correct": 1.0}
    assert sampler.requests[0][2].stop_strings == ("</guess>", "<obs>")
    trained = check_record(chat, t)
    assert "<obs>" not in trained and trained.endswith("<guess>37</guess>") and "<guess>x</guess>" in trained
    assert guess.predict(t) == "37" and guess.replay(ROW, guess.whole_text(t))[-1] == ("37", "correct")


def test_the_first_guess_pays_all_and_the_last_allowed_ends_the_game(chat):
    assert play(guess, ROW, chat, turn(37))[0].reward == 1.0
    t, sampler = play(guess, ROW, chat, turn(*[99] * 12))
    assert (t.finish_reason, t.reward, len(sampler.requests)) == ("answer", 0.0, 10) and t.turns[0].observation.text == "<obs>lower</obs>"
    t, _ = play(guess, ROW, chat, turn(*[99] * 9, 37))
    assert t.reward == pytest.approx(0.55)


def test_fabricated_observation_ends_the_game_and_costs(chat):
    t, _ = play(guess, ROW, chat, [turn(50)[0], "<obs>", *turn(37)])
    assert (t.finish_reason, t.reward, t.parts["correct"]) == ("invalid_action", -0.2, 0.0) and "fabricated" in t.turns[0].action.error
    t, _ = play(guess, ROW, chat, ["<think>\nhm\n</think>\n\n<guess>50</guess><obs>correct</obs>"], stops=["</obs>"])
    assert (t.finish_reason, t.reward) == ("invalid_action", -0.2)
    assert "<obs>" in check_record(chat, t)  # its own writing is trained (downwards); only what was injected is not


@pytest.mark.parametrize("written, reward", [
    ("<guess>" + " ".join(map(str, range(1, 101))) + "</guess>", 0.0),  # all numbers in one guess
    ("".join(f"<guess>{k}</guess>" for k in range(1, 101)), 0.0),  # more guesses than there are, in one breath: the eleventh counts no more
    ("".join(f"<guess>{k}</guess>" for k in (1, 2, 37)), 0.9),  # guesses that nobody stopped at are counted and priced
    ("<guess>50</guess> higher <guess>37 or 36</guess>", 0.0), ("<guess>50<guess>37</guess></guess>", 1.0), ("it is 37", 0.0),
])  # fmt: skip
def test_probe_no_cheaper_way_to_hit(written, reward):
    """The reward plays the record again: what the text claims, or how it is packed, changes nothing."""
    t = Trajectory("a", "guess-train", turns=[Turn([], [], text=written)], finish_reason="answer")
    assert guess.reward(ROW, t)[0] == reward


def test_saying_correct_is_not_being_correct(chat):
    t, _ = play(guess, ROW, chat, [turn(50)[0], " correct! The number was 37."])
    assert (t.finish_reason, t.reward) == ("invalid_action", 0.0)
    assert (
        play(guess, ROW, chat, ["37"])[0].reward == 0.0
        and play(guess, ROW, chat, ["<think>\n</think>\n\n</guess>", *turn(37)])[0].reward == 0.95
    )


def test_a_turn_that_ends_after_a_guess_goes_on_as_a_conversation(chat):
    """A sampler without stop strings: the environment answers as the user."""
    t, sampler = play(guess, ROW, chat, [turn(50)[0], turn(37)[0]], stops=["nothing"])
    assert (t.finish_reason, t.reward, len(t.turns)) == ("answer", 0.95, 2) and t.turns[0].observation.role == "user"
    assert "<obs>lower</obs>" in chat.tokenizer.decode(sampler.requests[1][0][-1].tokens)


def test_gold_earns_the_maximum_on_every_row(chat, tmp_path):
    guess.prepare_bench(arguments(tmp_path, templates=4, test_size=60))
    rows = [row for name in ("rl_train", "rl_train_easy", "dev", "test") for row in read_jsonl(tmp_path / "guess" / "rl" / f"bench_{name}.jsonl")]
    assert len(rows) == 24 + 24 + 12 + 60 and {row["task"] for row in rows} == {"guess-train", "guess-heldout", "guess-1000"}
    for row in rows:
        t, _ = play(guess, row, chat, list(guess.gold(row)))
        assert (t.finish_reason, t.error) == ("answer", "") and t.reward == guess.full_reward(row), row["id"]
        assert t.reward == pytest.approx(1 - 0.05 * (len(guess.bisection(int(row["label"]), row["high"])) - 1))
        assert "<obs>" not in check_record(chat, t)


def test_rows_and_demonstrations(tmp_path):
    guess.prepare_sft(arguments(tmp_path))
    guess.prepare_bench(arguments(tmp_path, test_size=300))
    root = tmp_path / "guess"
    train, val = (read_jsonl(root / "sft" / f"sft_{part}.jsonl") for part in ("train", "val"))
    assert (len(train), len(val)) == (27, 3)
    text = guess.demonstration(37, 100)[0]
    assert text.startswith(
        "<think>\nThe number is between 1 and 100.\n</think>\n\n<guess>50</guess><obs>lower</obs>\n<think>\nThe number is between 1 and 49."
    )
    for row in train:
        said = row["messages"][1]
        assert [f"<obs>{word}</obs>" for _, word in guess.replay(row, said["content"])[:-1]] == said["inline"]
    test = read_jsonl(root / "rl" / "bench_test.jsonl")
    assert sorted(int(row["label"]) for row in test if row["task"] == "guess-train") == list(range(1, 101))  # each secret once
    assert {row["high"] for row in test if row["task"] == "guess-1000"} == {1000}
    opening = guess.HELD_TEMPLATES[0][:9], guess.HELD_TEMPLATES[1][:9]
    assert all(row["messages"][0]["content"].startswith(opening) == (row["task"] == "guess-heldout") for row in test)
    easy = read_jsonl(root / "rl" / "bench_rl_train_easy.jsonl")
    assert max(int(row["label"]) for row in easy) <= 20 and "20" in easy[0]["messages"][0]["content"]
    before = (root / "rl" / "bench_test.jsonl").read_bytes()
    guess.prepare_bench(arguments(tmp_path, test_size=300))
    assert (root / "rl" / "bench_test.jsonl").read_bytes() == before
    with pytest.raises(SystemExit, match="templates 11"):
        guess.prepare_bench(arguments(tmp_path, templates=11))


def test_floors_by_hand_and_by_simulation():
    """N = 2, one guess: 1/2 each; N = 3, two guesses, any possible number: 1/3 + (1/3 middle: 2/3 + ends:
    2 ways, left 1 of 2 ...) = 7/9.
    """
    assert guess.floors(2, 1) == {"random": 0.5, "random possible": 0.5, "bisection": 0.5}
    assert guess.floors(3, 2)["random possible"] == pytest.approx(7 / 9) and guess.floors(3, 2)["random"] == pytest.approx(5 / 9)
    rng, wins = np.random.default_rng(0), 0
    for _ in range(2000):
        row = ROW | {"label": str(int(rng.integers(1, 101)))}
        wins += guess.replay(row, "".join(guess.random_play(row, None, rng)))[-1][1] == "correct"
    assert abs(wins / 2000 - guess.floors(100, 10)["random"]) < 0.025


def test_metrics_by_hand(chat):
    rows = [ROW, ROW | {"id": "two", "task": "guess-1000"}]
    played = [play(guess, ROW, chat, turn(50, 25, 37))[0], play(guess, ROW, chat, turn(50, 60, "x"))[0]]
    report = guess.metrics(rows, played)
    assert (
        report["accuracy"] == 0.5 and report["guesses_when_right"] == 3 == report["bisection_on_the_same"] and report["guesses_mean"] == 3
    )
    assert report["invalid_share"] == pytest.approx(1 / 6) and report["consistent_share"] == pytest.approx(
        2 / 3
    )  # 60 after "lower than 50"
    assert report["groups"]["guess-train"]["accuracy"] == 1 and report["groups"]["guess-1000"]["accuracy"] == 0
    assert report["groups"]["guess-train"]["off_middle"] == pytest.approx((0.5 / 100 + 0 / 49 + 0.5 / 24) / 3)
    json.dumps(report)
    assert guess.reward(ROW, type(played[0])("a", "b", finish_reason="timeout")) == (None, {})
