"""GSM8K: the reading of an answer by hand, the two slices, both prompts, gold through the rollout. Some tests read ../shared/data."""

import json
from pathlib import Path

import pytest
from helpers import tiny_folder
from inline_helpers import arguments, check_record, play

from protocol import SamplingParams, load_chat, read_jsonl, write_jsonl
from tasks import gsm8k

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RECORD = {"question": "Tom has 3 bags of 4 apples. How many apples?", "answer": "He has 3*4=<<3*4=12>>12 apples.\n#### 12"}
needs_data = pytest.mark.skipif(not (DATA / "gsm8k_test.jsonl").exists(), reason="no ../shared/data")


@pytest.fixture(scope="module", params=["qwen3_5", "qwen3"])
def chat(request, tmp_path_factory):
    return load_chat(tiny_folder(tmp_path_factory.mktemp("model"), request.param, weights=False))


@pytest.fixture
def source(tmp_path):
    """A small copy of the published layout: 40 and 500 rows."""
    folder = tmp_path / "raw"
    for name, size, base in (("train", 40, 1000), ("test", 500, 5000)):
        write_jsonl(folder / f"gsm8k_{name}.jsonl", [
            {"question": f"What is {base} plus {n}?",
             "answer": f"{base}+{n}=<<{base}+{n}={base + n}>>{base + n}\n#### {base + n:,}"} for n in range(size)
        ])  # fmt: skip
    return folder


@pytest.mark.parametrize("text, number", [
    ("3*4 = 12\n#### 12", "12"), ("#### 1,234 apples", "1234"), ("#### $18.50", "18.50"), ("#### -3", "-3"), ("#### 7\n#### 8", "8"),
    ("#### 12 of the 40", "12"), ("The answer is 12.", "12"), ("12 of 40 are 30 %.", "30"), ("It costs $1,000,000.", "1000000"),
    ("none", None),
    ("#### none, but 5 before: 5", "5"), ("5 apples\n####", None), ("", None), ("a 7 <answer>8</answer> 9", "8"),
    ("<answer>x</answer> 9", None),
    ("<think>7</think> 8", "8"), ("<think>\n#### 7\n</think>\n\nfour", None), ("<answer>1</answer><answer>2 = 2</answer>", "2"),
    ("1" * 41, None), ("x = .5", ".5"), ("3/4", "4"), ("3-4 days", "4"), ("it is -4", "-4"), ("-$5", "-5"), ("3, 4.", "4"),
])  # fmt: skip
def test_the_number_that_counts(text, number):
    assert gsm8k.read_number(text) == number


@pytest.mark.parametrize("prediction, label, equal", [
    ("18", "18", True), ("18.00", "18", True), ("1234", "1,234", True), ("18.01", "18", False), (None, "18", False), ("-18", "18", False),
    ("0.1", ".10", True),
])  # fmt: skip
def test_numbers_are_compared_exactly(prediction, label, equal):
    assert gsm8k.same(prediction, label) is equal


def test_reward_is_the_number_and_nothing_else(chat):
    row = gsm8k.make_row(RECORD, "test", 0, "neutral", "file")
    think = "<think>\n3*4\n</think>\n\n"
    for text, reward in (
        (think + "#### 12", 1.0),
        (think + "12", 1.0),
        (think + "so 12.0 apples", 1.0),
        (think + "#### 13", 0.0),
        (think + "12 or 13", 0.0),
    ):
        t, _ = play(gsm8k, row, chat, [text])
        assert (t.finish_reason, t.reward, t.parts) == ("answer", reward, {"correct": reward})
        check_record(chat, t)
    t, _ = play(gsm8k, row, chat, [think + "#### 12" + " and more" * 50], params=SamplingParams(40))
    assert (t.finish_reason, t.reward) == ("length", 0.0)  # no answer is read from a text that was cut off
    t.finish_reason = "error"
    assert gsm8k.reward(row, t) == (None, {}) and gsm8k.predict(t) is None


@pytest.mark.parametrize("written", [
    "<think>\n#### 12\n</think>\n\nfour", "<think>\n12\n</think>\n\n" + " ".join(map(str, range(100))), "<think>\n</think>\n\n#### 11\n#### 13 12",
    "<think>\n</think>\n\n<answer>12</answer><answer>13</answer>", "<think>\n</think>\n\ntwelve", "<think>\n</think>\n\n#### " + "12" * 30,
])  # fmt: skip
def test_probe_only_the_last_number_pays(chat, written):
    """Numbers in the thoughts, many numbers, several marks, two answers: none pays unless what is read, and only that, is right."""
    t, _ = play(gsm8k, gsm8k.make_row(RECORD, "test", 0, "neutral", "file"), chat, [written])
    assert t.reward == 0.0


def test_rows(source, tmp_path):
    """Slices [0:200] and [200:500] of test, train drawn by seed, the label nowhere in a prompt, calculator marks gone."""
    gsm8k.prepare_bench(arguments(tmp_path, bench_source=source, train_size=24, dev_size=None, test_size=None))
    gsm8k.prepare_sft(arguments(tmp_path, bench_source=source, prompt="r1"))
    rl, sft = tmp_path / "gsm8k" / "rl", tmp_path / "gsm8k" / "sft"
    parts = {path.stem: read_jsonl(path) for path in rl.glob("*.jsonl")}
    assert {name: len(part) for name, part in parts.items()} == {
        "bench_rl_train": 24, "bench_dev": 200, "bench_test": 300, "bench_dev_r1": 200, "bench_test_r1": 300}  # fmt: skip
    assert [row["source_name"] for row in parts["bench_dev"]] == [f"test-{n}" for n in range(200)]
    assert [row["source_name"] for row in parts["bench_test_r1"]] == [f"test-{n}" for n in range(200, 500)]
    assert (
        all(row["label"] not in row["messages"][0]["content"] for row in parts["bench_test"][1:])
        and len(parts["bench_test"][0]["messages"]) == 1
    )
    assert "####" in parts["bench_dev"][0]["messages"][0]["content"] and "<answer>" in parts["bench_dev_r1"][0]["messages"][0]["content"]
    train, val = read_jsonl(sft / "sft_train.jsonl"), read_jsonl(sft / "sft_val.jsonl")
    assert (len(train), len(val)) == (27, 3) and not {row["source_name"] for row in train} & {row["source_name"] for row in val}
    assert "<<" not in train[0]["messages"][1]["content"] and train[0]["messages"][1]["content"].endswith(
        f"<answer>{train[0]['label']}</answer>"
    )
    assert json.loads((rl / "bench_stats.json").read_text())["questions_of_train_in_dev_or_test"] == []


def test_bad_input_is_one_line(source, tmp_path):
    with pytest.raises(SystemExit, match="no gsm8k_train.jsonl and no train.jsonl there"):
        gsm8k.prepare_bench(arguments(tmp_path, bench_source=tmp_path))
    with pytest.raises(SystemExit, match="--prompt chat: there are r1, neutral"):
        gsm8k.prepare_bench(arguments(tmp_path, bench_source=source, prompt="chat"))
    for record, words in (({"question": "x"}, "row 1: needs question and answer"),
                          ({"question": "x", "answer": "no mark 5"}, "must end in '#### number'"),
                          ({"question": "x", "answer": "#### many"}, "must end in"), ([], "needs question")):  # fmt: skip
        with pytest.raises(SystemExit, match=words):
            gsm8k.make_row(record, "train", 0, "r1", "file")
    write_jsonl(source / "gsm8k_test.jsonl", [RECORD] * 10)
    with pytest.raises(SystemExit, match="the test split has 10 rows"):
        gsm8k.prepare_bench(arguments(tmp_path, bench_source=source))
    assert not (tmp_path / "gsm8k").exists() or not any((tmp_path / "gsm8k").iterdir())


def test_gold_earns_full_reward(source, tmp_path, chat):
    gsm8k.prepare_bench(arguments(tmp_path, bench_source=source, train_size=10))
    rl = tmp_path / "gsm8k" / "rl"
    rows = [row for name in ("rl_train", "dev", "test", "dev_r1", "test_r1") for row in read_jsonl(rl / f"bench_{name}.jsonl")[:10]]
    played = [play(gsm8k, row, chat, list(gsm8k.gold(row)))[0] for row in rows]
    assert {t.reward for t in played} == {1.0 == gsm8k.full_reward(rows[0]) and 1.0}
    report = gsm8k.metrics(rows, played)
    assert report["accuracy"] == 1 and report["by_prompt"]["r1"]["n"] == 20 and report["hash_mark"]["value"] == pytest.approx(30 / 50)
    assert report["no_number"] == 0 and report["baselines"]["number_of_the_question"]["accuracy"] < 0.1
    json.dumps(report)


@needs_data
def test_the_published_files(tmp_path, chat):
    """All 7,473 and 1,319 rows have a readable label, and every published solution is right in both forms."""
    gsm8k.prepare_bench(arguments(tmp_path, bench_source=DATA, train_size=100000))
    rl = tmp_path / "gsm8k" / "rl"
    assert len(read_jsonl(rl / "bench_rl_train.jsonl")) == 7473
    for prompt in ("r1", "neutral"):
        rows = [gsm8k.make_row(record, "test", n, prompt, DATA) for n, record in enumerate(gsm8k.load_split(DATA, "test"))]
        assert len(rows) == 1319 and all(gsm8k.same(gsm8k.read_number(gsm8k.demonstration(row)), row["label"]) for row in rows)
    assert json.loads((rl / "bench_stats.json").read_text())["questions_of_train_in_dev_or_test"] == []
    for row in rows[:10]:
        assert play(gsm8k, row, chat, list(gsm8k.gold(row)))[0].reward == 1.0
