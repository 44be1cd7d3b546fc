"""SFT rows with inline results: what was injected weighs nothing, and the ids are those of a rollout of the same turn."""

import numpy as np
import pytest
from helpers import tiny_folder
from inline_helpers import play

from protocol import encode_text, flat_tokens, load_chat, rl_datum, sft_datum
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
