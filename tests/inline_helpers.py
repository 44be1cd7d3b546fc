"""Shared by the tests of tasks with inline tools:
play a turn from its pieces through the real rollout, and look at what would be trained.
"""

import asyncio
from types import SimpleNamespace

from helpers import ScriptedSampler, scripted_tokens

from protocol import Sample, SamplingParams, chunks_length, flat_tokens, rl_datum
from rollout import rollout

ARGS = {"seed": 42, "val_fraction": 0.1, "sft_size": 30, "train_size": 24, "dev_size": 12, "test_size": 12}


def arguments(output, **more):
    """What prepare_data.py hands to a task."""
    return SimpleNamespace(output=output, **{**ARGS, **more})


def script(chat, pieces, stops):
    """Samples of a turn that comes in pieces: one that ends in a stop string pauses there, the others end the turn."""
    out = []
    for piece in pieces:
        tokens = scripted_tokens(chat, piece)
        out.append(Sample(tokens, [-0.25] * len(tokens), "stop_string") if piece.endswith(tuple(stops)) else piece)
    return out


def play(task, row, chat, pieces, stops=None, **options):
    """(trajectory, sampler). `stops`: by default those of the row's episode, and what it forbids."""
    episode = task.start(row, ".")
    stops = [*getattr(episode, "stop_strings", ()), *getattr(episode, "forbidden", ())] if stops is None else stops
    sampler = ScriptedSampler(chat, script(chat, pieces, stops))
    params = options.pop("params", SamplingParams(max_tokens=20000))
    return asyncio.run(rollout(task, row, chat, sampler, params, max_seq_len=40000, **options)), sampler


def check_record(chat, trajectory):
    """Injected and prompt positions weigh exactly zero, what was sampled weighs one. Returns the text that is trained."""
    flat = flat_tokens(trajectory.chunks, image=-1)
    assert len(trajectory.sampled) == chunks_length(trajectory.chunks) == len(trajectory.logprobs)
    assert [int(t) for t, s in zip(flat, trajectory.sampled) if s] == [t for turn in trajectory.turns for t in turn.tokens]
    datum = rl_datum(trajectory, 1.5)
    sampled = trajectory.sampled[1 : len(datum.weights) + 1]  # whether the position that is predicted was sampled
    assert datum.weights.tolist() == [float(flag) for flag in sampled]
    assert datum.advantages.tolist() == [1.5 * flag for flag in sampled]
    assert all(old == 0 for old, flag in zip(datum.logprobs, sampled) if not flag)
    assert all(old != 0 for old, flag in zip(datum.logprobs, sampled) if flag)
    inputs = [*flat_tokens(datum.chunks, -1).tolist(), int(datum.targets[-1])]
    assert inputs[1:-1] == flat[1 : len(inputs) - 1].tolist()
    return chat.tokenizer.decode([int(t) for t, w in zip(datum.targets, datum.weights) if w])
