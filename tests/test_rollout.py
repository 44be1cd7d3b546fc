"""The tool loop with scripted samplers: what is recorded, what ends it, and that one dead branch stays alone."""

import asyncio
import json
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import ZOOM, ScriptedSampler, png, scripted_tokens, tiny_folder

from protocol import (
    ImageChunk,
    Observation,
    Sample,
    SamplingParams,
    TextChunk,
    chunks_length,
    encode_prompt,
    encode_turn,
    flat_tokens,
    load_chat,
    read_jsonl,
    rl_datum,
    write_jsonl,
)
from rollout import derive_seed, rollout, rollout_group, trajectory_from_json, trajectory_to_json

CALL = "look\n</think>\n\n<tool_call>\n<function=zoom>\n<parameter=range>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"
BAD_CALL = CALL.replace("[1, 2]", "[1, 2,]")
YES = "sure\n</think>\n\n<answer>\\boxed{YES} because</answer>"
NO = YES.replace("YES", "NO")
ROW = {"id": "row-1", "task": "demo", "label": "YES"}


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return load_chat(tiny_folder(tmp_path_factory.mktemp("model"), "qwen3_5", weights=False))


def make_task(step=None, reward=None, tools=(ZOOM,), messages=None, **members):
    """A task module: `step` defaults to a picture and a line; its episode gets `members` as well. `task.steps` counts the tool runs."""
    task = SimpleNamespace(steps=[])

    def run(action):
        task.steps.append((action, threading.current_thread() is threading.main_thread()))
        return step(action) if step else Observation("seen", [png(84, 56)])

    def start(row, folder):
        prompt = messages or [{"role": "user", "content": [{"type": "image", "image": png()}, {"type": "text", "text": "YES or NO?"}]}]
        return SimpleNamespace(messages=prompt, tools=list(tools), step=run, **members)

    task.start = start
    task.reward = reward or (lambda row, t: (float(t.prediction == row["label"]), {"correct": float(t.prediction == row["label"])}))
    return task


def go(task, chat, script, **options):
    sampler = script if hasattr(script, "sample") else ScriptedSampler(chat, script)
    params = options.pop("params", SamplingParams(max_tokens=400))
    return asyncio.run(rollout(task, ROW, chat, sampler, params, **options)), sampler


def check(trajectory):
    """Lengths agree, sampled positions are exactly the turns' tokens, pictures and context are never marked as sampled."""
    length = chunks_length(trajectory.chunks)
    assert len(trajectory.sampled) == len(trajectory.logprobs) == length
    flat = flat_tokens(trajectory.chunks, image=-1)
    assert [int(t) for t, s in zip(flat, trajectory.sampled) if s] == [t for turn in trajectory.turns for t in turn.tokens]
    assert [x for x, s in zip(trajectory.logprobs, trajectory.sampled) if s] == [x for turn in trajectory.turns for x in turn.logprobs]
    assert not any(x for x, s in zip(trajectory.logprobs, trajectory.sampled) if not s)
    assert not any(s for t, s in zip(flat, trajectory.sampled) if t == -1)
    return trajectory


# ---------------------------------------------------------------------------------------------------------------------
# the record


def test_call_picture_answer(chat):
    task = make_task()
    t, sampler = go(task, chat, [CALL, YES], seed=3)
    check(t)
    assert (t.finish_reason, t.prediction, t.format_ok, t.reward, t.parts, t.error) == ("answer", "YES", True, 1.0, {"correct": 1.0}, "")
    assert [turn.action.kind for turn in t.turns] == ["tool", "answer"] and t.turns[0].observation.text == "seen"
    assert (t.id, t.task, t.seed, t.sampler_version) == ("row-1", "demo", 3, 7)
    assert len(task.steps) == 1 and task.steps[0][1] is False  # the tool ran off the event loop
    assert [n for _, n, _ in sampler.requests] == [1, 1] and sampler.requests[0][2].stop_tokens == chat.stop_tokens
    assert t.seconds["total"] >= t.seconds["sample"] >= 0


def test_the_tool_picture_comes_before_its_text(chat):
    t, sampler = go(make_task(), chat, [CALL, YES])
    chunks = sampler.requests[1][0]
    second = [i for i, c in enumerate(chunks) if isinstance(c, ImageChunk)][1]
    after = chat.tokenizer.decode(chunks[second + 1].tokens)
    before = chat.tokenizer.decode(chunks[second - 1].tokens)
    assert after.startswith("<|vision_end|>seen\n</tool_response>") and before.endswith("<tool_response>\n<|vision_start|>")


def test_P01_sampled_ids_are_kept_and_only_the_suffix_is_added(chat):
    """The first turn writes "hello" as he + ll + o, which would be encoded as one id."""
    ids = chat.tokenizer.convert_tokens_to_ids
    tokens = [ids("he"), ids("ll"), ids("o"), *scripted_tokens(chat, CALL[4:]), chat.end_token]
    assert scripted_tokens(chat, "hello") == [ids("hello")] and chat.tokenizer.decode(tokens).startswith("hello\n")
    t, sampler = go(make_task(), chat, [tokens, YES])
    check(t)
    first, second = (flat_tokens(request[0], -1).tolist() for request in sampler.requests)
    assert t.turns[0].tokens == tokens and second[: len(first) + len(tokens)] == first + tokens
    datum = rl_datum(t, 1.0)
    assert datum.targets[datum.weights > 0].tolist() == t.turns[0].tokens + t.turns[1].tokens


def test_record_equals_the_rendered_conversation(chat):
    """P05: text that the template itself would write gives the ids that the template gives."""
    call = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "look",
        "tool_calls": [{"function": {"name": "zoom", "arguments": {"range": [1, 2]}}}],
    }
    task = make_task()
    t, _ = go(task, chat, [encode_turn(chat, call), YES])
    messages = task.start(ROW, ".").messages + [
        call,
        {"role": "tool", "content": [{"type": "image", "image": png(84, 56)}, {"type": "text", "text": "seen"}]},
    ]
    prompt = encode_prompt(chat, messages, [ZOOM])
    assert flat_tokens(t.chunks, -1).tolist() == flat_tokens(prompt, -1).tolist() + t.turns[1].tokens


def test_sum_of_mask_is_the_number_of_sampled_tokens(chat):
    t, _ = go(make_task(), chat, [CALL, BAD_CALL, CALL, NO])
    datum = rl_datum(check(t), -0.5)
    assert datum.weights.sum() == sum(len(turn.tokens) for turn in t.turns) and set(datum.advantages.tolist()) == {0.0, -0.5}


def test_open_end_gets_an_end_token_as_context(chat):
    """P16: a turn that stops at another stop token (base models) is parsed, and the end-of-turn token is added with weight 0."""
    eos = chat.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    t, sampler = go(make_task(), chat, [scripted_tokens(chat, CALL) + [eos], scripted_tokens(chat, YES) + [eos]])
    assert check(t).finish_reason == "answer" and t.turns[1].text == YES
    position = flat_tokens(t.chunks, -1).tolist().index(eos)
    assert flat_tokens(t.chunks)[position + 1] == chat.end_token and t.sampled[position] and not t.sampled[position + 1]


# ---------------------------------------------------------------------------------------------------------------------
# what ends a trajectory


@pytest.mark.parametrize(
    "script, options, reason, turns, steps",
    [
        ([YES], {}, "answer", 1, 0),
        (["nonsense\n</think>\n\nI think YES"], {}, "invalid_action", 1, 0),
        ([CALL, CALL, CALL], {"max_turns": 2}, "max_turns", 2, 1),
        ([CALL, BAD_CALL], {"max_turns": 2}, "max_turns", 2, 1),
        ([CALL], {"params": SamplingParams(max_tokens=10)}, "length", 1, 0),
        ([], {"max_seq_len": 10}, "max_seq_len", 0, 0),
        ([CALL], {"max_seq_len": 560}, "max_seq_len", 1, 0),
    ],
)
def test_finish_reasons(chat, script, options, reason, turns, steps):
    task = make_task()
    t, sampler = go(task, chat, script, **options)
    check(t)
    assert (t.finish_reason, len(t.turns), len(task.steps), t.error) == (reason, turns, steps, "")
    assert t.format_ok == (reason == "answer") and t.reward is not None
    if reason == "max_seq_len" and not turns:
        assert sampler.requests == []  # never asked for zero or fewer tokens


def test_length_and_invalid_are_told_apart(chat):
    cut, _ = go(make_task(), chat, [CALL], params=SamplingParams(max_tokens=20))
    assert cut.finish_reason == "length" and "token limit" in cut.turns[0].action.error and cut.turns[0].stop_reason == "length"
    short, sampler = go(make_task(), chat, [CALL], max_seq_len=(limit := 560))
    assert short.finish_reason == "max_seq_len" and chunks_length(short.chunks) == limit  # the room, not max_tokens, was used up
    assert sampler.requests[0][2].max_tokens == limit - chunks_length(sampler.requests[0][0]) < 400


def test_every_request_fits_into_the_budget(chat):
    prompt = chunks_length(encode_prompt(chat, make_task().start(ROW, ".").messages, [ZOOM]))
    for limit in range(prompt - 3, prompt + 400, 7):
        t, sampler = go(make_task(), chat, [CALL, YES], max_seq_len=limit)
        check(t)
        assert chunks_length(t.chunks) <= max(limit, prompt)
        for chunks, _, params in sampler.requests:
            assert 1 <= params.max_tokens <= min(400, limit - chunks_length(chunks))


def test_P30_observation_that_does_not_fit_is_not_in_the_record(chat):
    whole, _ = go(make_task(), chat, [CALL, YES])
    before = chunks_length(whole.chunks) - len(whole.turns[1].tokens)  # prompt, call, observation
    fits, sampler = go(make_task(), chat, [CALL, YES], max_seq_len=before + 1)
    assert len(fits.turns) == 2 and sampler.requests[1][2].max_tokens == 1
    t, sampler = go(make_task(), chat, [CALL, YES], max_seq_len=before)
    check(t)
    assert t.finish_reason == "max_seq_len" and len(sampler.requests) == 1 and t.turns[0].observation is None
    assert sum(isinstance(c, ImageChunk) for c in t.chunks) == 1  # the question's picture alone
    starts = flat_tokens(t.chunks, -1).tolist().count(chat.tokenizer.convert_tokens_to_ids("<|vision_start|>"))
    assert starts == 1 and rl_datum(t, 1.0).weights.sum() == len(t.turns[0].tokens)


def test_P11_malformed_call_is_reported_to_the_model_and_the_episode_goes_on(chat):
    task = make_task()
    t, sampler = go(task, chat, [BAD_CALL, CALL, YES])
    assert check(t).finish_reason == "answer" and len(task.steps) == 1
    assert t.turns[0].action.error.startswith("Malformed tool call") and t.turns[0].observation.ok is False
    assert t.turns[0].action.error in chat.tokenizer.decode(sampler.requests[1][0][-1].tokens)


@pytest.mark.parametrize("fault", [RuntimeError("disk on fire"), SystemExit("bad picture"), StopIteration(), TimeoutError("own")])
def test_tool_that_raises_is_an_error_never_a_wrong_answer(chat, fault):
    def step(action):
        raise fault

    t, _ = go(make_task(step), chat, [CALL, YES])
    assert check(t).finish_reason == "error" and t.reward is None and t.error.startswith(f"tool: {type(fault).__name__}")


def test_tool_with_a_damaged_picture_or_no_observation_is_an_error(chat):
    t, _ = go(make_task(lambda action: Observation("x", [b"damaged"])), chat, [CALL])
    assert check(t).finish_reason == "error" and "cannot be read" in t.error
    t, _ = go(make_task(lambda action: "text"), chat, [CALL])
    assert t.finish_reason == "error" and "not an Observation" in t.error


def test_slow_tool_ends_as_timeout_and_is_not_scored(chat):
    begun = time.monotonic()
    t, _ = go(make_task(lambda action: time.sleep(0.6) or Observation("late")), chat, [CALL], tool_timeout=0.05)
    assert check(t).finish_reason == "timeout" and t.reward is None and time.monotonic() - begun < 3


def test_broken_start_prompt_or_grader_are_errors(chat):
    def explode(*_):
        raise KeyError("spectrum")

    task = make_task()
    task.start = explode
    assert go(task, chat, [])[0].error.startswith("start: KeyError")
    t, _ = go(make_task(messages=[{"role": "user", "content": [{"type": "image", "image": "absent.png"}]}]), chat, [])
    assert t.finish_reason == "error" and t.error.startswith("prompt:") and "absent.png" in t.error and t.chunks == []
    t, _ = go(make_task(reward=explode), chat, [YES])
    assert t.finish_reason == "error" and t.reward is None and t.error.startswith("reward: KeyError") and t.prediction == "YES"


def test_episodes_are_started_once_a_branch_and_closed_whatever_happens(chat):
    started, closed = [], []
    task = make_task(lambda action: 1 / 0, close=lambda: closed.append(1))
    task.start = (lambda start: lambda row, folder: started.append(1) or start(row, folder))(task.start)
    trajectories = group(task, chat, ScriptedSampler(chat, lambda chunks, i, params: [CALL, YES, Sample([], [])][i]), 3)
    assert [t.finish_reason for t in trajectories] == ["error", "answer", "error"] and len(started) == len(closed) == 3


def test_turn_that_ends_with_its_very_last_token_is_complete(chat):
    tokens = scripted_tokens(chat, YES) + [chat.end_token]
    t, _ = go(make_task(), chat, [Sample(tokens, [-1.0] * len(tokens), "length")], params=SamplingParams(max_tokens=len(tokens)))
    assert t.finish_reason == "answer"


def test_numpy_rewards_become_plain_numbers(chat):
    t, _ = go(make_task(reward=lambda row, t: (np.float32(0.5), {"a": 1})), chat, [YES])
    assert type(t.reward) is float and t.reward == 0.5


def test_abstaining_grader_is_none(chat):
    t, _ = go(make_task(reward=lambda row, t: (None, {})), chat, [YES])
    assert t.finish_reason == "answer" and t.reward is None


BAD_SAMPLES = {
    "no logprobs": Sample([5, 6], None),
    "2 logprobs for 3": Sample([5, 6, 7], [-1.0, -1.0]),
    "logprob 1 is None": Sample([5, 6], [-1.0, None]),
    "logprob 0 is None or not finite": Sample([5], [math.nan]),
    "not finite": Sample([5, 6], [-1.0, -math.inf]),
    "no tokens": Sample([], []),
    "unknown stop reason": Sample([5], [-1.0], "tired"),
    "where": Sample([5] * 401, [-1.0] * 401),
}


@pytest.mark.parametrize("reason", BAD_SAMPLES)
def test_P26_sample_that_cannot_be_trained_on_is_dropped_with_its_reason(chat, reason):
    t, _ = go(make_task(), chat, [CALL, BAD_SAMPLES[reason]])
    check(t)
    assert t.finish_reason == "error" and t.reward is None and t.error.startswith("bad_sample: ") and reason in t.error
    assert len(t.turns) == 1 and rl_datum(t, 1.0).weights.sum() == len(t.turns[0].tokens)


def test_sampler_that_raises_or_returns_nothing(chat):
    t, _ = go(make_task(), chat, [ConnectionError("gone")])
    assert t.finish_reason == "error" and t.error == "sampler: ConnectionError: gone"
    silent = SimpleNamespace(sample=lambda chunks, n, params: asyncio.sleep(0, []))
    assert go(make_task(), chat, silent)[0].error.startswith("bad_sample")


# ---------------------------------------------------------------------------------------------------------------------
# other ways to act


def calculator(text):
    found = re.search(r"<calc>(\d+)\+(\d+)</calc>$", text)
    return f"<result>{int(found[1]) + int(found[2])}</result>" if found else None


def pause(chat, text):
    tokens = scripted_tokens(chat, text)
    return Sample(tokens, [-0.25] * len(tokens), "stop_string")


def test_inline_tool_continues_the_same_turn(chat):
    task = make_task(inline=calculator, stop_strings=("</calc>",), forbidden=("<result>",))
    t, sampler = go(
        task,
        chat,
        [pause(chat, "hm <calc>2+3</calc>"), pause(chat, " and <calc>5+5</calc>"), " so\n</think>\n\n<answer>\\boxed{YES}</answer>"],
    )
    check(t)
    assert t.finish_reason == "answer" and len(t.turns) == 1 and t.turns[0].inline == ["<result>5</result>", "<result>10</result>"]
    assert t.turns[0].text.startswith("hm <calc>2+3</calc><result>5</result> and <calc>5+5</calc><result>10</result> so\n")
    assert chat.tokenizer.decode(sampler.requests[1][0][-1].tokens).endswith("<think>\nhm <calc>2+3</calc><result>5</result>")
    assert sampler.requests[0][2].stop_strings == ("</calc>", "<result>")
    assert len({request[2].seed for request in sampler.requests}) == 3
    assert sampler.requests[2][2].max_tokens == 400 - sum(
        len(scripted_tokens(chat, x)) for x in ("hm <calc>2+3</calc>", " and <calc>5+5</calc>")
    )
    trained = chat.tokenizer.decode([x for x in rl_datum(t, 1.0).targets if x])
    assert "<result>" not in trained and "<calc>5+5</calc>" in trained


def test_inline_tool_without_a_result_ends_the_turn(chat):
    t, _ = go(make_task(inline=calculator, stop_strings=("</answer>",)), chat, [pause(chat, YES)])
    assert t.finish_reason == "answer" and t.turns[0].inline == []


def test_fabricated_observation_ends_the_episode(chat):
    task = make_task(inline=calculator, stop_strings=("</calc>",), forbidden=("<result>",))
    for sample in (pause(chat, "hm <calc>2+3</calc> is <result>"), "hm <result>6</result>\n</think>\n\n<answer>\\boxed{YES}</answer>"):
        t, _ = go(task, chat, [pause(chat, "1 <calc>1+1</calc>"), sample])
        check(t)
        assert t.finish_reason == "invalid_action" and t.turns[0].action.error.startswith("fabricated observation") and not t.format_ok
        assert t.prediction is None


def test_inline_result_that_does_not_fit(chat):
    task = make_task(inline=lambda text: "x" * 1000)
    t, sampler = go(task, chat, [pause(chat, "a")], max_seq_len=700)
    assert check(t).finish_reason == "max_seq_len" and len(sampler.requests) == 1 and t.turns[0].inline == []


def test_guessing_game_answers_go_through_step(chat):
    """The environment answers as the user until it is done."""

    def step(action):
        return Observation("too low", role="user") if action.answer == "NO" else Observation("right", done=True)

    t, sampler = go(make_task(step, step_answers=True), chat, [NO, NO, YES])
    assert check(t).finish_reason == "answer" and t.prediction == "YES" and len(t.turns) == 3 and t.turns[2].observation.text == "right"
    assert "<|im_start|>user\ntoo low<|im_end|>" in chat.tokenizer.decode(sampler.requests[1][0][-1].tokens)
    t, _ = go(make_task(step, step_answers=True), chat, [NO, NO], max_turns=2)
    assert t.finish_reason == "max_turns" and t.prediction is None


def test_tool_may_end_the_episode(chat):
    t, _ = go(make_task(lambda action: Observation("tests passed", done=True), prediction="fixed"), chat, [CALL])
    assert t.finish_reason == "answer" and t.prediction == "fixed" and t.turns[0].observation.text == "tests passed"


def test_task_brings_its_answer_form(chat):
    task = make_task()
    task.ANSWER = re.compile(r"(\d+)")
    t, _ = go(task, chat, ["sum\n</think>\n\n42"])
    assert (t.finish_reason, t.prediction) == ("answer", "42")


# ---------------------------------------------------------------------------------------------------------------------
# groups


def group(task, chat, sampler, size, **options):
    params = options.pop("params", SamplingParams(max_tokens=400))
    return asyncio.run(rollout_group(task, ROW, chat, sampler, params, group_size=size, **options))


def test_group_shares_its_first_request(chat):
    script = lambda chunks, i, params: CALL if sum(isinstance(c, ImageChunk) for c in chunks) == 1 and i % 2 else YES
    sampler = ScriptedSampler(chat, script)
    trajectories = [check(t) for t in group(make_task(), chat, sampler, 4, seed=1)]
    assert [n for _, n, _ in sampler.requests] == [4, 1, 1] and [t.sample_index for t in trajectories] == [0, 1, 2, 3]
    assert [len(t.turns) for t in trajectories] == [1, 2, 1, 2] and all(t.reward == 1.0 for t in trajectories)


class SeededSampler:
    """Tokens that depend on (seed, i) alone, as the interface asks."""

    version = 0

    def __init__(self, chat):
        self.chat, self.seeds = chat, []

    async def sample(self, chunks, n, params):
        self.seeds.append(params.seed)
        await asyncio.sleep(0.001 * (params.seed % 3))  # answers come back in any order
        out = []
        for i in range(n):
            thought = f"{params.seed}-{i} "
            tokens = scripted_tokens(self.chat, thought + (CALL if chunks_length(chunks) < 900 else YES)) + [self.chat.end_token]
            out.append(Sample(tokens, [-1.0] * len(tokens), "stop"))
        return out


def test_P43_group_members_differ_and_two_runs_agree(chat):
    runs = []
    for seed in (5, 5, 6):
        sampler = SeededSampler(chat)
        trajectories = group(make_task(), chat, sampler, 4, seed=seed)
        runs.append([[turn.tokens for turn in t.turns] for t in trajectories])
        assert len(set(sampler.seeds)) == len(sampler.seeds)  # no request repeats another's seed
        for turn in range(len(runs[-1][0])):
            assert len({tuple(tokens[turn]) for tokens in runs[-1]}) == 4
    assert len(runs[0][0]) > 2 and runs[0] == runs[1] != runs[2]
    assert derive_seed(1, "a", 0, 1) != derive_seed(1, "b", 0, 1) and 0 <= derive_seed(-5, "x") < 2**31


def test_dead_branches_do_not_kill_the_group(chat):
    def script(chunks, i, params):
        first = sum(isinstance(c, ImageChunk) for c in chunks) == 1
        if first:
            return [CALL, Sample([5], [math.nan]), CALL.replace("[1, 2]", "[7, 8]"), YES][i]
        return YES

    def step(action):
        if action.call.arguments["range"] == [7, 8]:
            raise RuntimeError("tool broke")
        return Observation("seen", [png()])

    trajectories = [check(t) for t in group(make_task(step), chat, ScriptedSampler(chat, script), 4)]
    assert [t.finish_reason for t in trajectories] == ["answer", "error", "error", "answer"]
    assert [t.reward for t in trajectories] == [1.0, None, None, 1.0]
    assert [t.error.partition(":")[0] for t in trajectories] == ["", "bad_sample", "tool", ""]


@pytest.mark.parametrize("script, reason", [([ConnectionError("gone")], "sampler"), (lambda chunks, i, params: [YES][i], "sampler")])
def test_group_whose_first_request_fails(chat, script, reason):
    trajectories = group(make_task(), chat, ScriptedSampler(chat, script), 3)
    assert len(trajectories) == 3 and all(
        t.finish_reason == "error" and t.error.startswith(reason) and t.reward is None for t in trajectories
    )


def test_group_with_missing_samples_or_no_room(chat):
    class Few(ScriptedSampler):
        async def sample(self, chunks, n, params):
            return (await super().sample(chunks, n, params))[:2]

    trajectories = group(make_task(), chat, Few(chat, [YES] * 3), 3)
    assert [t.finish_reason for t in trajectories] == ["answer", "answer", "error"] and "2 of 3" in trajectories[2].error
    sampler = ScriptedSampler(chat, [])
    assert [t.finish_reason for t in group(make_task(), chat, sampler, 2, max_seq_len=5)] == ["max_seq_len"] * 2 and sampler.requests == []


def test_tools_of_a_group_run_at_the_same_time(chat):
    together = threading.Barrier(4, timeout=5)

    def step(action):
        together.wait()  # would break if they ran one after the other
        return Observation("seen")

    script = lambda chunks, i, params: YES if "seen" in chat.tokenizer.decode(chunks[-1].tokens) else CALL
    trajectories = group(make_task(step), chat, ScriptedSampler(chat, script), 4)
    assert [t.finish_reason for t in trajectories] == ["answer"] * 4, [t.error for t in trajectories]


def test_branches_sample_again_while_others_wait_for_their_tool(chat):
    """One tool thread, four branches: the last one's tool waits until two others have sampled again, what they saw was encoded meanwhile."""
    begun, again, found = [], threading.Semaphore(0), []

    def step(action):
        begun.append(0)
        if len(begun) == 2:
            time.sleep(0.3)  # by then the tools of the last two stand in line
        if len(begun) == 4:
            found.extend(again.acquire(timeout=20) for _ in range(2))
        return Observation("seen")

    def script(chunks, i, params):
        if "seen" not in chat.tokenizer.decode(chunks[-1].tokens):
            return CALL
        again.release()
        return YES

    with ThreadPoolExecutor(1) as tools:
        group(make_task(step), chat, ScriptedSampler(chat, script), 4, executor=tools)
    assert found == [True, True]


# ---------------------------------------------------------------------------------------------------------------------
# trajectories.jsonl


def test_P05_trajectory_survives_save_and_load(chat, tmp_path):
    task = make_task(inline=calculator, stop_strings=("</calc>",))
    first, _ = go(task, chat, [pause(chat, "hm <calc>2+3</calc>"), CALL, BAD_CALL, YES])
    second, _ = go(make_task(), chat, [CALL, Sample([5], [math.nan])])
    write_jsonl(tmp_path / "trajectories.jsonl", [trajectory_to_json(t, tmp_path) for t in (first, second)])
    rows = read_jsonl(tmp_path / "trajectories.jsonl")
    for before, row in zip((first, second), rows):
        after = check(trajectory_from_json(row, tmp_path))
        for name in (
            "id",
            "finish_reason",
            "prediction",
            "format_ok",
            "reward",
            "parts",
            "error",
            "chunks",
            "sampled",
            "seed",
            "sampler_version",
        ):
            assert getattr(after, name) == getattr(before, name), name
        assert [turn.action for turn in after.turns] == [turn.action for turn in before.turns]
        assert [turn.observation for turn in after.turns] == [turn.observation for turn in before.turns]
        one, two = rl_datum(before, 1.0), rl_datum(after, 1.0)
        assert one.logprobs.tolist() == two.logprobs.tolist() and one.targets.tolist() == two.targets.tolist() and one.chunks == two.chunks
    blind = trajectory_from_json(rows[0], tmp_path, pictures=False)
    assert chunks_length(blind.chunks) == chunks_length(first.chunks) and blind.turns[0].image_files


def test_tokens_and_pictures_are_written_once_with_relative_paths(chat, tmp_path):
    trajectories = [go(make_task(), chat, [CALL, CALL, YES], images_dir=tmp_path / "images")[0] for _ in range(3)]
    assert trajectories[0].turns[0].image_files[0].startswith("images/")
    assert len(list((tmp_path / "images").iterdir())) == 1  # the same tool picture nine times over
    rows = [trajectory_to_json(t, tmp_path) for t in trajectories]
    assert len(list((tmp_path / "images").iterdir())) == 2  # and the question's
    text = json.dumps(rows[0])
    assert str(tmp_path) not in text and rows[0]["turns"][0]["observation"]["images"] == trajectories[0].turns[0].image_files
    assert text.count(json.dumps(trajectories[0].turns[2].tokens)) == 1 and text.count('"logprobs"') == 3
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert trajectory_from_json(rows[0], moved).chunks == trajectories[0].chunks
    with pytest.raises(SystemExit, match="without images/"):
        trajectory_from_json(rows[0], tmp_path)


def test_record_is_made_of_plain_chunks(chat):
    t, _ = go(make_task(), chat, [CALL, YES])
    kinds = [type(c) for c in t.chunks]
    assert kinds == [TextChunk, ImageChunk, TextChunk, ImageChunk, TextChunk]  # neighbours are merged
