"""usage.py: what is counted, what it costs, and what is asked before the start. Right values worked by hand."""

import argparse
import asyncio
import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import tiny_folder

import backends
import train_sft
import usage
from protocol import Datum, Sample, SamplingParams, TextChunk, load_chat, write_jsonl

ASK = SimpleNamespace(price=(2.0, 10.0, 30.0), yes=False)


def test_the_published_usage_of_the_seed_gives_its_published_cost():
    """SFT: 6.11 M trained tokens, 27.72. So a million costs 4.5368, and of the 671.96 of the RL epoch 79.13 x 4.5368 = 359.00 are training;
    312.96 are left for 239.39 M of prefill and 26.38 M sampled. If sampling costs what training does (119.68), a million of prefill is 0.8074."""
    train = 27.72 / 6.11
    assert usage.cost({"training_train": 6_110_000}, (0, train, 0)) == pytest.approx(27.72, abs=0.005)
    epoch = {"rollout_prefill": 239_390_000, "training_train": 79_130_000, "rollout_sample": 26_380_000}
    assert usage.cost({"training_train": epoch["training_train"]}, (1, train, 1)) == pytest.approx(359.00, abs=0.01)
    assert usage.cost(epoch, (0.8074, train, train)) == pytest.approx(671.96, abs=0.02)
    assert usage.table(epoch, (0.8074, train, train))[-1].split() == ["in", "all", "239,390,000", "79,130,000", "26,380,000", "671.96"]


class Fake:
    version = 3

    def sampler(self):
        return self

    async def sample(self, chunks, n, params):
        return [Sample([1, 2, 3], [0.0] * 3, "length")] * n

    async def logprobs(self, chunks):
        return np.zeros(5)

    async def forward(self, data, loss="cross_entropy", config=None):
        return "forward"

    async def forward_backward(self, data, loss="cross_entropy", config=None):
        return "both"


def datum(length):
    return Datum([TextChunk((1,) * length)], np.zeros(length, dtype=np.int64), np.ones(length, dtype=np.float32))


def test_requests_are_counted_by_phase_and_step():
    meter = usage.Meter((2.0, 10.0, 30.0), {"usage": {"training_train": 100}})
    trainer = usage.Counted(Fake(), meter)

    async def play():
        await trainer.sampler().sample([TextChunk((1,) * 7)], 4, SamplingParams(3))  # the prompt once, 4 x 3 sampled
        await trainer.logprobs([TextChunk((1,) * 5)])
        assert await trainer.forward([datum(6)], "cross_entropy") == "forward"
        assert await trainer.forward_backward([datum(8), datum(9)], "ppo", {}) == "both"

    asyncio.run(play())
    assert trainer.version == 3
    first = meter.step()
    assert {name: value for name, value in first.items() if name != "usage/cost"} == {
        "usage/rollout_prefill": 7, "usage/rollout_sample": 12, "usage/scoring_prefill": 11, "usage/training_train": 17}  # fmt: skip
    assert first["usage/cost"] == pytest.approx((18 * 2 + 17 * 10 + 12 * 30) / 1e6)
    assert set(meter.step().values()) == {0}
    assert meter.total["training_train"] == 117, "goes on from the checkpoint"


def test_a_request_that_failed_is_not_counted():
    class Failing(Fake):
        async def sample(self, chunks, n, params):
            raise RuntimeError("gone")

    meter = usage.Meter()
    with pytest.raises(RuntimeError):
        asyncio.run(usage.Counted(Failing(), meter).sample([TextChunk((1,))], 1, SamplingParams(1)))
    assert not meter.total


@pytest.mark.parametrize("text", ["1,2", "1,2,x", "1,2,-3", "1,2,nan", "1,2,inf", ""])
def test_bad_prices_are_named(text):
    with pytest.raises(argparse.ArgumentTypeError, match="three numbers"):
        usage.prices(text)
    assert usage.prices("0,4.5,30") == (0.0, 4.5, 30.0)


def terminal(monkeypatch, typed):
    stream = io.StringIO(typed)
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", stream)


def test_no_price_no_question():
    usage.confirm(SimpleNamespace(price=None, yes=False), None, {"training_train": 10**9})


@pytest.mark.parametrize("typed, starts", [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False), ("", False)])
def test_the_estimate_is_confirmed_at_a_terminal(monkeypatch, capsys, typed, starts):
    terminal(monkeypatch, typed)
    expected, most = {"training_train": 5_000_000}, {"training_train": 50_000_000}
    if starts:
        usage.confirm(ASK, expected, most)
    else:
        with pytest.raises(SystemExit, match="^not started; .*--yes"):
            usage.confirm(ASK, expected, most)
    assert "cost: about 50.00, at most 500.00" in capsys.readouterr().out


def test_without_a_terminal_it_is_yes_or_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(SystemExit, match=r"^--price: this would cost 50.00, and there is no terminal to ask at: [^\n]*--yes[^\n]*$"):
        usage.confirm(ASK, {"training_train": 5_000_000}, {"training_train": 5_000_000})
    assert not capsys.readouterr().out
    usage.confirm(SimpleNamespace(price=(2, 10, 30), yes=True), None, {"training_train": 5_000_000})
    assert "cost: at most 50.00" in capsys.readouterr().out


def test_sft_is_counted_exactly():
    """10 rows of 1..10 positions, batches of 4 (3 an epoch), 2 epochs, validation of 7 at the start and after each epoch."""
    args = SimpleNamespace(batch_size=4, epochs=2, seed=5)
    train, val = [datum(n) for n in range(1, 11)], [datum(7), None]
    assert train_sft.to_come(args, train, val, 0) == {"training_train": 110, "scoring_prefill": 21}
    gone = train_sft.order_of(args, 0, 10)[:4]  # after one step
    assert train_sft.to_come(args, train, val, 1) == {"training_train": 110 - sum(i + 1 for i in gone), "scoring_prefill": 14}
    assert train_sft.to_come(args, train, val, 3) == {"training_train": 55, "scoring_prefill": 7}
    assert train_sft.to_come(args, train, val, 6) == {"training_train": 0, "scoring_prefill": 0}


def test_episodes_are_estimated_from_demonstrations_and_bounded(tmp_path):
    chat = load_chat(tiny_folder(tmp_path / "model", "qwen3", weights=False))
    ask = [{"role": "user", "content": "how many?"}]
    task = SimpleNamespace(TOOLS=None, start=lambda row, folder: SimpleNamespace(messages=ask, tools=None))
    args = SimpleNamespace(data=tmp_path / "rl" / "q.jsonl", max_seq_len=400, max_turns=3, max_tokens=50, advantage="grpo", kl_coef=0.1, refill=1)
    args.data.parent.mkdir()
    rows = [{"id": str(i)} for i in range(5)]
    expected, most = usage.episodes(args, task, chat, rows, 8, 4)
    prompt = len(chat.tokenizer("<|im_start|>user\nhow many?<|im_end|>\n<|im_start|>assistant\n").input_ids)
    assert expected is None, "nothing to go by"
    # at most: 3 turns of 50 tokens in 400 positions; two later turns begin with up to 400; 4 trajectories share a prompt; 1 more round of questions
    assert most == {"rollout_prefill": 2 * round(8 * (2 * 400 + prompt / 4)), "rollout_sample": 2 * 8 * 150, "training_train": 8 * 400, "scoring_prefill": 8 * 400}
    more = [{"role": "assistant", "content": "ab"}, {"role": "user", "content": "and now?"}, {"role": "assistant", "content": "abcd"}]
    write_jsonl(tmp_path / "sft" / "sft_train.jsonl", [{"id": "s", "messages": ask + more}])
    expected, _ = usage.episodes(args, task, chat, rows, 8, 4)
    second = prompt + 3 + len(chat.tokenizer("\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n").input_ids)
    assert expected["rollout_sample"] == 8 * (3 + 5), "two and four letters, an end each"
    assert expected["rollout_prefill"] == round(8 * (second + prompt / 4))
    assert expected["training_train"] == expected["scoring_prefill"] == 8 * (second + 4)


# ---------------------------------------------------------------- --base-url


async def remote_function(base_model, *, base_url=None):
    pass


async def local_function(base_model, *, device=None, revision=None, **options):
    pass


def test_base_url_and_device_go_where_they_are_known():
    args = SimpleNamespace(backend="x", base_url="http://127.0.0.1:8000", device=None)
    assert backends.options(args, remote_function, "main") == {"base_url": "http://127.0.0.1:8000"}
    with pytest.raises(SystemExit, match="--base-url http://127.0.0.1:8000: --backend x runs here"):
        backends.options(args, local_function)
    args.base_url, args.device = None, "cpu"
    assert backends.options(args, local_function, "main") == {"device": "cpu", "revision": "main"}
    with pytest.raises(SystemExit, match="--device cpu: --backend x is a service"):
        backends.options(args, remote_function)


@pytest.mark.parametrize("text, said", [("http://me:secret@host", "keys"), ("http://host?key=1", "keys"), ("host:8000", "no address"), ("ftp://host", "no address")])
def test_addresses_without_keys(text, said):
    with pytest.raises(argparse.ArgumentTypeError, match=said) as refused:
        backends.service_url(text)
    assert "secret" not in str(refused.value)
    assert backends.service_url("http://127.0.0.1:8000/") == "http://127.0.0.1:8000"
