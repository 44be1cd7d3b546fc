"""One multi-turn trajectory, and a group of them that share their first prompt.

    model samples a turn -> `parse_action` -> the task's tool runs -> its text and pictures are appended -> the model samples again

A turn ends with the end-of-turn token; its body is an answer, a tool call or invalid. Or generation pauses at a stop string inside a turn
(`</calc>`): the episode's `inline(text)` gives what is injected there, and the same turn goes on. In both cases the trajectory keeps every
position as the model saw it, with a flag that says whether the model sampled it; only such positions are ever trained.

What ends a trajectory, one meaning each:
    answer           a well-formed answer (or the environment said that it is done)
    invalid_action   neither an answer nor a call, or an observation that the model made up
    length           a turn used up `max_tokens`
    max_turns        the last turn allowed was a call; it is not run
    max_seq_len      no room left for another token, or for the observation, which is then neither shown nor kept
    error            tool, grader or sampler failed; never scored, `error` says "code: detail"
    timeout          a tool took longer than `tool_timeout`; never scored either

A task's episode has `messages`, `tools` (or None) and `step(action) -> Observation`. Optional: `inline(text) -> str | None`,
`stop_strings`, `forbidden` (strings that only the environment may write), `step_answers = True` (answers go through `step` too, as in a
guessing game, until an observation is `done`), `prediction` (read when an observation is `done`), `close()`. `start` gives the same prompt
each time that it is called on the same row.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from dataclasses import dataclass, replace

from protocol import ANSWER, Action, Chat, decode, encode_observation, encode_prompt, encode_text, parse_action
from records import (  # noqa: F401 (passed on)
    Observation,
    Sample,
    SamplingParams,
    TextChunk,
    Trajectory,
    Turn,
    chunks_length,
    merge_chunks,
    save_picture,
    trajectory_from_json,
    trajectory_to_json,
)


class Failed(Exception):
    """Ends a trajectory with "error" (or "timeout"); its text is "code: detail"."""


def derive_seed(seed: int, *where) -> int:
    """A 31-bit seed for one request: same arguments, same seed; any other row, branch or turn, another one."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, (seed, *where))).encode()).digest()[:4], "big") >> 1


# ---------------------------------------------------------------------------------------------------------------------
# one trajectory


@dataclass
class _Run:
    """What the steps of one trajectory share."""

    trajectory: Trajectory
    chat: Chat
    sampler: object
    params: SamplingParams
    max_seq_len: int
    images_dir: object = None
    executor: object = None
    tool_timeout: float = 60.0


async def rollout(
    task,
    row: dict,
    chat: Chat,
    sampler,
    params: SamplingParams,
    *,
    folder=".",
    max_turns=8,
    max_seq_len=16384,
    sample_index=0,
    seed=0,
    first=None,
    first_seconds=0.0,
    images_dir=None,
    executor=None,
    tool_timeout=60.0,
    shared: list | None = None,
    episode=None,
) -> Trajectory:
    """One trajectory on `row`. What a model, tool, grader or sampler does wrong is recorded in `finish_reason` and `error`, never raised.

    `params.max_tokens` is for one turn, `max_seq_len` for everything. `first`, `shared`, `episode`: what a group has made already.
    `images_dir`: the tool's pictures are written there at once. Tools run in threads (of `executor`); a thread can't be killed, so a tool
    that may hang must bound itself. After `tool_timeout` seconds the trajectory ends without it. `task.reward` is called at the end.
    """
    begun = time.monotonic()
    trajectory = Trajectory(str(row.get("id", "")), str(row.get("task", "")), sample_index, seed, getattr(sampler, "version", 0))
    run = _Run(trajectory, chat, sampler, params, max_seq_len, images_dir, executor, tool_timeout)
    try:
        episode = episode or await _thread(run, "start", task.start, row, folder)
        _append(run, shared or await _thread(run, "prompt", encode_prompt, chat, episode.messages, episode.tools, folder, ours=True))
        await _turns(run, episode, getattr(task, "ANSWER", ANSWER), max_turns, first, first_seconds)
        if hasattr(task, "reward"):  # a grader that breaks is an error, not a wrong answer
            total, parts = await _thread(run, "reward", task.reward, row, trajectory)
            trajectory.reward, trajectory.parts = None if total is None else float(total), dict(parts or {})
    except Failed as failure:
        trajectory.error = str(failure)
        trajectory.finish_reason = "timeout" if trajectory.error.startswith("timeout") else "error"
    except (Exception, SystemExit) as bug:  # one branch must not take its group with it
        trajectory.finish_reason, trajectory.error = "error", f"internal: {type(bug).__name__}: {bug}"
    finally:  # also when the run is interrupted
        if hasattr(episode, "close"):
            with contextlib.suppress(Exception):  # litter is no reason to lose a trajectory
                await asyncio.to_thread(episode.close)
    trajectory.chunks = merge_chunks(trajectory.chunks)
    trajectory.seconds = {key: sum(turn.seconds.get(key, 0.0) for turn in trajectory.turns) for key in ("sample", "tool")}
    trajectory.seconds["total"] = time.monotonic() - begun
    return trajectory


async def rollout_group(
    task,
    row: dict,
    chat: Chat,
    sampler,
    params: SamplingParams,
    *,
    group_size: int,
    folder=".",
    max_turns=8,
    max_seq_len=16384,
    seed=0,
    images_dir=None,
    executor=None,
    tool_timeout=60.0,
) -> list[Trajectory]:
    """`group_size` trajectories of one row. Their first turns are one request; then each goes its own way, all at once.

    A branch that dies has finish_reason "error" and reward None; the others go on. Takes the arguments of `rollout`.
    """
    run = _Run(Trajectory("", ""), chat, sampler, params, max_seq_len, None, executor, tool_timeout)
    begun, episode, shared, firsts = time.monotonic(), None, None, [None] * group_size
    try:
        episode = await _thread(run, "start", task.start, row, folder)
        shared = await _thread(run, "prompt", encode_prompt, chat, episode.messages, episode.tools, folder, ours=True)
        budget = min(params.max_tokens, max_seq_len - chunks_length(shared))
        if budget > 0:
            seed_of_group = derive_seed(seed, row.get("id"), "group")
            begun = time.monotonic()
            firsts = (await _request(run, shared, group_size, budget, seed_of_group, _stops(run, episode)))[:group_size]
            firsts += [Failed(f"bad_sample: the sampler gave {len(firsts)} of {group_size} samples")] * (group_size - len(firsts))
    except Failed as failure:
        firsts = [failure] * group_size
    common = {
        "folder": folder,
        "max_turns": max_turns,
        "max_seq_len": max_seq_len,
        "seed": seed,
        "first_seconds": time.monotonic() - begun,
        "images_dir": images_dir,
        "executor": executor,
        "tool_timeout": tool_timeout,
        "shared": shared,
    }
    episodes = [episode] + [None] * (group_size - 1)  # the first branch goes on with the episode that gave the prompt
    branches = [
        rollout(task, row, chat, sampler, params, sample_index=index, first=firsts[index], episode=episodes[index], **common)
        for index in range(group_size)
    ]
    return list(await asyncio.gather(*branches))


# ---------------------------------------------------------------------------------------------------------------------
# the loop


async def _turns(run: _Run, episode, answer, max_turns: int, first, first_seconds: float) -> None:
    trajectory = run.trajectory
    if isinstance(first, Failed):
        raise first
    trajectory.finish_reason = "max_turns"
    for number in range(max_turns):
        ended = await _generate(run, episode, number, first, first_seconds)
        first, first_seconds = None, 0.0
        if ended:
            trajectory.finish_reason = ended
            return
        turn, last = trajectory.turns[-1], number == max_turns - 1
        action = turn.action = parse_action(run.chat, turn.text, episode.tools, answer)
        if action.kind == "invalid":
            trajectory.finish_reason = "invalid_action"
            return
        asks = action.kind == "tool" or getattr(episode, "step_answers", False)
        if last and action.kind == "tool":  # nobody would see the result
            return
        observation = await _observe(run, episode, action, turn) if asks else Observation(done=True)
        if observation.done:
            turn.observation = observation if asks else None
            trajectory.finish_reason, trajectory.format_ok = "answer", True
            trajectory.prediction = action.answer if action.answer is not None else getattr(episode, "prediction", None)
            return
        if last:
            return
        if not await _deliver(run, turn, observation):
            trajectory.finish_reason = "max_seq_len"
            return


async def _generate(run: _Run, episode, number: int, sample: Sample | None, seconds: float) -> str:
    """Sample one turn, with inline tools, and append it. Returns a finish reason, or "" if the turn is complete."""
    turn = Turn([], [], seconds={"sample": seconds, "tool": 0.0})
    while True:
        room, left = run.max_seq_len - len(run.trajectory.sampled), run.params.max_tokens - len(turn.tokens)
        if min(room, left) <= 0:
            return "max_seq_len" if room <= 0 else "length"
        if sample is None:
            sample = await _next_sample(run, episode, number, turn, min(room, left))
        _check_sample(sample, min(room, left))
        written = _write(run, turn, sample)
        if invented := [text for text in getattr(episode, "forbidden", ()) if text in written]:
            turn.action = Action("invalid", text=turn.text, error=f"fabricated observation: the model wrote {invented[0]!r} itself")
            return "invalid_action"
        if sample.stop_reason == "length" and sample.tokens[-1] not in run.chat.stop_tokens:  # (it may have ended with its last token)
            turn.action = Action("invalid", text=turn.text, error="cut off by the token limit")
            return "length" if left <= room else "max_seq_len"
        result = await _inline(run, episode, turn) if sample.stop_reason == "stop_string" else None
        if result is None:
            return ""
        if not _inject(run, turn, result):
            return "max_seq_len"
        sample = None


async def _next_sample(run: _Run, episode, number: int, turn: Turn, budget: int) -> Sample:
    """The next piece of turn `number`, of at most `budget` tokens. The seed depends on where the piece begins, not on what was sampled before."""
    begun, trajectory = time.monotonic(), run.trajectory
    seed = derive_seed(trajectory.seed, trajectory.id, trajectory.sample_index, number, len(turn.tokens))
    samples = await _request(run, trajectory.chunks, 1, budget, seed, _stops(run, episode))
    turn.seconds["sample"] += time.monotonic() - begun
    return samples[0] if samples else Sample([], [], "stop")


def _write(run: _Run, turn: Turn, sample: Sample) -> str:
    """Append a sample to the record and to its turn, which enters the trajectory with its first piece. Returns the text of the sample."""
    if not turn.tokens:
        run.trajectory.turns.append(turn)
    _append(run, [TextChunk(tuple(sample.tokens))], sample.logprobs)
    turn.tokens, turn.logprobs = turn.tokens + list(sample.tokens), turn.logprobs + [float(x) for x in sample.logprobs]
    written = decode(run.chat, list(sample.tokens))
    turn.text, turn.stop_reason = turn.text + written, sample.stop_reason
    return written


async def _inline(run: _Run, episode, turn: Turn) -> str | None:
    """What the episode puts into the turn where generation paused; None: nothing, the turn ends here."""
    if not hasattr(episode, "inline"):
        return None
    begun = time.monotonic()
    result = await _thread(run, "tool", episode.inline, turn.text)
    turn.seconds["tool"] += time.monotonic() - begun
    return result


def _inject(run: _Run, turn: Turn, result: str) -> bool:
    """Append an inline result if it leaves room for one more token."""
    context = encode_text(run.chat, result)
    if len(run.trajectory.sampled) + len(context) + 1 > run.max_seq_len:
        turn.action = Action("inline", text=turn.text)
        return False
    _append(run, [context])
    turn.text, turn.inline = turn.text + result, turn.inline + [result]
    return True


async def _observe(run: _Run, episode, action: Action, turn: Turn) -> Observation:
    """What the environment answers. A malformed call is never run: the model reads what was wrong with it and may try again."""
    if action.error:
        return Observation(action.error, ok=False)
    begun = time.monotonic()
    observation = await _thread(run, "tool", episode.step, action)
    turn.seconds["tool"] += time.monotonic() - begun
    if not isinstance(observation, Observation):
        raise Failed(f"tool: step returned {type(observation).__name__}, not an Observation")
    return observation


async def _deliver(run: _Run, turn: Turn, observation: Observation) -> bool:
    """Append the observation if it leaves room for one more token. Whole or not at all: a picture never loses its positions."""
    chunks = await _thread(run, "tool", encode_observation, run.chat, observation, turn.tokens[-1], ours=True)
    if len(run.trajectory.sampled) + chunks_length(chunks) + 1 > run.max_seq_len:
        return False
    _append(run, chunks)
    turn.observation = observation
    if run.images_dir is not None:
        turn.image_files = [await _thread(run, "tool", save_picture, png, run.images_dir, ours=True) for png in observation.images]
    return True


def _append(run: _Run, chunks: list, logprobs=None) -> None:
    """Add to the record: sampled tokens with their log-probabilities, or context."""
    length, trajectory = chunks_length(chunks), run.trajectory
    trajectory.chunks += chunks
    trajectory.sampled += [logprobs is not None] * length
    trajectory.logprobs += [0.0] * length if logprobs is None else [float(x) for x in logprobs]


def _stops(run: _Run, episode) -> tuple[str, ...]:
    more = (*getattr(episode, "stop_strings", ()), *getattr(episode, "forbidden", ()))
    return tuple(dict.fromkeys((*run.params.stop_strings, *more)))


async def _request(run: _Run, chunks: list, n: int, budget: int, seed: int, stops: tuple) -> list:
    """One call of the sampler, never for fewer than one token."""
    params = replace(
        run.params, max_tokens=budget, seed=seed, stop_strings=stops, stop_tokens=run.params.stop_tokens or run.chat.stop_tokens
    )
    try:
        return list(await run.sampler.sample(merge_chunks(chunks), n, params))
    except (Exception, SystemExit) as error:
        raise Failed(f"sampler: {type(error).__name__}: {error}") from error


def _check_sample(sample: Sample, budget: int) -> None:
    """A sample that can't be trained on must not enter the record: ids and log-probabilities would be out of step from there on."""
    logprobs, tokens = sample.logprobs, sample.tokens
    bad = None if logprobs is None else next((i for i, x in enumerate(logprobs) if x is None or not math.isfinite(x)), None)
    faults = [
        (not tokens, "no tokens"),
        (logprobs is None, "no logprobs"),
        (logprobs is not None and len(logprobs) != len(tokens), f"{len(logprobs or [])} logprobs for {len(tokens)} tokens"),
        (bad is not None, f"logprob {bad} is None or not finite"),
        (len(tokens) > budget, f"{len(tokens)} tokens where {budget} were asked for"),
        (sample.stop_reason not in ("stop", "stop_string", "length"), f"unknown stop reason {sample.stop_reason!r}"),
    ]
    reasons = [reason for fault, reason in faults if fault]
    if reasons:
        raise Failed(f"bad_sample: {reasons[0]}")


async def _thread(run: _Run, code: str, function, *args, ours=False):
    """Run a function of the task off the event loop, for at most `tool_timeout` seconds. Whatever it raises becomes `Failed`.

    `ours`: not the task's. It doesn't stand in line behind the tools, or else no branch would sample again before the tools of all are done.
    """

    def guarded():  # a future can't carry every exception (StopIteration, SystemExit), a pair can
        try:
            return function(*args), None
        except BaseException as error:
            return None, error

    future = asyncio.get_running_loop().run_in_executor(None if ours else run.executor, guarded)
    done, _ = await asyncio.wait([future], timeout=run.tool_timeout)
    if not done:
        raise Failed(f"timeout: {code} took longer than {run.tool_timeout:g} s")
    result, error = future.result()
    if error is not None:
        raise Failed(f"{code}: {type(error).__name__}: {error}") from error
    return result
