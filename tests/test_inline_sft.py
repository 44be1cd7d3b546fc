"""Injected results in training: they weigh nothing in SFT and RL, wherever a turn is cut, and what stands around them is scored exactly."""

import asyncio

import numpy as np
import pytest
from helpers import ScriptedSampler, tiny_folder
from inline_helpers import check_record, play

from protocol import Sample, SamplingParams, encode_text, flat_tokens, load_chat, rl_datum, sft_datum
from rollout import rollout
from tasks import countdown, guess

GAME = guess.make_row("train", 0, 37, 100, 10, guess.TEMPLATES[:1], __import__("random").Random(0))
SUM = countdown.make_row(4, 7, 42, {"templates": 1, "tool": "calc", "judge": "v3", "max_new": 1400, "expert": None})


@pytest.mark.parametrize("arch", ["qwen3_5", "qwen3"])
@pytest.mark.parametrize("task, row", [(guess, GAME), (countdown, SUM)])
def test_injected_results_are_not_trained(tmp_path, arch, task, row):
    chat = load_chat(tiny_folder(tmp_path, arch, weights=False))
    text, injected = guess.demonstration(37, 100) if task is guess else countdown.demonstration(row)
    datum = sft_datum(chat, [*row["messages"], {"role": "assistant", "content": text, "inline": injected}])
    trained = chat.tokenizer.decode([int(t) for t, w in zip(datum.targets, datum.weights) if w])
    assert "<obs>" not in trained and "<result>" not in trained and trained.endswith("<|im_end|>") and set(datum.weights.tolist()) == {0.0, 1.0}
    pieces = list(task.gold(row))
    if arch == "qwen3_5":
        pieces[0] = pieces[0].removeprefix("<think>\n")  # the prompt has opened it
    rolled = rl_datum(play(task, row, chat, pieces)[0], 1.0)
    a, b = flat_tokens(datum.chunks).tolist(), flat_tokens(rolled.chunks).tolist()
    assert a[: len(b)] == b  # a game ends at the last guess, where the demonstration has an end token too
    begin = len(a) - len(datum.weights) + int(np.flatnonzero(rolled.weights)[0])
    assert datum.weights[begin : len(b)].tolist() == rolled.weights[begin:].tolist()
    with pytest.raises(SystemExit, match="not in its message"):
        sft_datum(chat, [*row["messages"], {"role": "assistant", "content": text, "inline": ["<obs>elsewhere</obs>"]}])
    assert encode_text(chat, "x").tokens


def test_P03_a_game_cut_anywhere_keeps_its_arrays_in_step(tmp_path):
    """A limit may fall inside a guess, at an observation or behind it: what was injected is there whole or not at all, and weighs nothing."""
    chat = load_chat(tiny_folder(tmp_path, "qwen3", weights=False))
    pieces = list(guess.gold(GAME))
    whole, _ = play(guess, GAME, chat, pieces)
    ends = set()
    begin, end = whole.sampled.index(True) + 1, len(whole.sampled)
    for limit in [*range(begin, end, 3), end - 1, end, end + 1]:
        tokens = iter(chat.tokenizer(piece, add_special_tokens=False).input_ids for piece in pieces)

        def cut(chunks, i, params, tokens=tokens):
            ids = next(tokens)
            return Sample(ids[: params.max_tokens], [-0.25] * min(len(ids), params.max_tokens), "stop_string" if len(ids) <= params.max_tokens else "length")

        t = asyncio.run(rollout(guess, GAME, chat, ScriptedSampler(chat, cut), SamplingParams(10**4), max_seq_len=limit))
        assert len(t.sampled) <= limit and (t.error, t.reward) == ("", whole.reward if t.finish_reason == "answer" else 0.0)
        assert "".join(t.turns[0].inline) == "".join(whole.turns[0].inline[: len(t.turns[0].inline)])
        check_record(chat, t)
        ends.add(t.finish_reason)
    assert ends == {"max_seq_len", "answer"}


def test_log_probabilities_match_the_trainer_on_both_sides_of_each_injection(tmp_path):
    """A random model through the real engine, stopped at common letters: what it said is scored alike by the trainer (fp32, 1e-3), and
    injected tokens have neither weight nor advantage."""
    from types import SimpleNamespace

    import torch

    from backends.local import create_trainer
    from protocol import Observation

    torch.set_num_threads(1)
    folder = tiny_folder(tmp_path, "qwen3")
    chat = load_chat(folder)
    episode = SimpleNamespace(messages=GAME["messages"], tools=None, stop_strings=tuple("aeiouns"), inline=lambda text: f"<obs>{len(text)}</obs>",
                              step=lambda action: Observation(done=True))  # fmt: skip
    task = SimpleNamespace(start=lambda row, folder: episode, reward=lambda row, t: (1.0, {}), ANSWER=guess.ANSWER)

    async def go():
        trainer = await create_trainer(folder, rank=0, seed=0)
        try:
            play = [rollout(task, GAME, chat, trainer.sampler(), SamplingParams(200), max_turns=1, max_seq_len=600, sample_index=i) for i in range(4)]
            played = await asyncio.gather(*play)
            datums = [rl_datum(t, 1.0) for t in played]
            return played, datums, await trainer.forward(datums, "cross_entropy")
        finally:
            trainer.close()

    played, datums, output = asyncio.run(go())
    assert sum(len(t.turns[0].inline) for t in played) >= 4  # there are injections
    for t, datum, logprobs in zip(played, datums, output.logprobs):
        check_record(chat, t)
        said = datum.weights != 0
        assert np.abs(logprobs[said] - datum.logprobs[said]).max() < 1e-3
        first = t.sampled.index(True)
        assert (datum.weights[first - 1 :] == 0).sum() == len(t.sampled) - first - sum(t.sampled) and not datum.advantages[~said].any()


ASKING = countdown.make_row(4, 38, 42, {"templates": 1, "tool": "calc+ask", "judge": "v3", "max_new": 1400, "expert": {"kind": "program", "wrong": 0.2, "seed": 0}})


@pytest.mark.parametrize("task, row, asked", [(guess, GAME, "<obs>"), (countdown, SUM, "<result>"), (countdown, ASKING, "<reply>")])
def test_the_real_tools_leave_the_sampler_and_the_trainer_in_step(tmp_path, task, row, asked):
    """The program teacher's turn, cut at every call of calculator, expert and game, with the log-probabilities that the real engine gives to
    each piece behind all that was put in before: the trainer scores the whole turn and finds the same (fp32, 1e-3)."""
    import torch

    from backends.local import create_trainer
    from inline import pieces
    from protocol import TextChunk, merge_chunks

    torch.set_num_threads(1)
    folder = tiny_folder(tmp_path, "qwen3")
    chat = load_chat(folder)
    steps = iter(pieces(*countdown.demonstration(row)) if asked == "<reply>" else task.gold(row))  # gold doesn't ask

    async def go():
        trainer = await create_trainer(folder, rank=0, seed=0)
        engine = trainer.sampler()

        class Forced:
            version = 0

            async def sample(self, chunks, n, params):
                tokens = chat.tokenizer(piece := next(steps), add_special_tokens=False).input_ids
                paused = piece.endswith(tuple(params.stop_strings))
                tokens += [] if paused else [chat.end_token]
                logprobs = await engine.logprobs(merge_chunks([*chunks, TextChunk(tuple(tokens))]))
                return [Sample(tokens, [float(value) for value in logprobs[-len(tokens) :]], "stop_string" if paused else "stop")]

        try:
            played = await rollout(task, row, chat, Forced(), SamplingParams(4000), max_turns=1, max_seq_len=8000)
            return played, rl_datum(played, 1.0), (await trainer.forward([rl_datum(played, 1.0)], "cross_entropy")).logprobs[0]
        finally:
            trainer.close()

    played, datum, logprobs = asyncio.run(go())
    assert (played.error, played.parts["correct"]) == ("", 1.0) and sum(text.startswith(asked) for text in played.turns[0].inline) >= 1
    assert asked not in check_record(chat, played)
    said = datum.weights != 0
    edges = np.flatnonzero(said[1:] != said[:-1])  # the last token before each injection, the first behind it
    assert len(edges) >= 2 * len(played.turns[0].inline) and np.isfinite(datum.logprobs).all()
    assert np.abs(logprobs[said] - datum.logprobs[said]).max() < 1e-3 and datum.logprobs[said].max() < -1e-3
    assert not datum.weights[~said].any() and not datum.advantages[~said].any()
