"""Who plays when it isn't the model on its own: scripted policies, a forced answer, a person. Each is a sampler to `rollout`.

A task offers `gold(row, folder)` and `random_windows(row, folder, rng)` as generators of steps (thought, Action), `closing(task, choice)`
as the step that answers (task: the row's), `ANSWERS` (the choices) and `ANSWER_PREFIX` (what is written just before the choice).
"""

import asyncio
import hashlib
import os

import numpy as np

from protocol import Sample, TextChunk, decode, encode_text, encode_turn, merge_chunks
from rollout import derive_seed

POLICIES = ("model", "no-tool", "random-windows", "gold", "always-yes", "random", "human")
NEED_MODEL = POLICIES[:3]
NEEDS = {"gold": "gold", "random-windows": "random_windows", "no-tool": "closing", "always-yes": "closing", "random": "random_play", "human": "closing"}


def as_message(step):
    """The assistant message of a policy's step (thought, Action)."""
    thought, action = step
    message = {"role": "assistant", "reasoning_content": thought, "content": action.text}
    if action.call:
        message["tool_calls"] = [{"type": "function", "function": {"name": action.call.name, "arguments": action.call.arguments}}]
    return message


class ScriptedPolicy:
    """A sampler that plays `steps` and, when they run out, lets the model choose among the task's answers (its `sampler` scores them)."""

    version = 0

    def __init__(self, chat, steps, task, row, sampler=None):
        self.chat, self.steps, self.task, self.row, self.sampler, self.choices = chat, iter(steps), task, row, sampler, None
        self.version = getattr(sampler, "version", 0)

    async def sample(self, chunks, n, params):
        step = await asyncio.to_thread(next, self.steps, None)  # a step may read files, or wait for a person
        step = step or self.task.closing(self.row["task"], await self.choose(chunks))
        if isinstance(step, str):  # a piece of a turn: it pauses at a stop string, or ends the turn
            paused = step.endswith(tuple(params.stop_strings)) if params.stop_strings else False
            tokens = [*encode_text(self.chat, step).tokens, *([] if paused else [self.chat.end_token])]
            return [Sample(tokens, [0.0] * len(tokens), "stop_string" if paused else "stop")] * n
        tokens = encode_turn(self.chat, as_message(step))
        cut = len(tokens) > params.max_tokens
        return [Sample(tokens[: params.max_tokens], [0.0] * min(len(tokens), params.max_tokens), "length" if cut else "stop")] * n

    async def choose(self, chunks):
        """The likeliest answer: P(choice) from the log-probabilities of the tokens that tell the choices apart."""
        turns = []
        for choice in self.task.ANSWERS:
            thought, action = self.task.closing(self.row["task"], choice)
            action.text = self.task.ANSWER_PREFIX + choice
            turns.append(encode_turn(self.chat, as_message((thought, action)))[:-1])  # without the end of turn
        common = len(os.path.commonprefix(turns))
        asked = [self.sampler.logprobs(merge_chunks([*chunks, TextChunk(tuple(turn))])) for turn in turns]
        scores = [np.sum(logprobs[common - len(turn) :]) for logprobs, turn in zip(await asyncio.gather(*asked), turns)]
        shares = np.exp(np.array(scores, dtype=float) - max(scores))
        self.choices = {choice: float(share) for choice, share in zip(self.task.ANSWERS, shares / shares.sum())}
        return max(self.choices, key=self.choices.get)


class HumanPolicy:
    """A sampler that is a person at the terminal: `answer YES`, `call {"argument": value}`, or any other text, sent as it is."""

    version = 0

    def __init__(self, chat, task, row, folder):
        self.chat, self.task, self.row, self.folder, self.shown, self.choices = chat, task, row, folder, 0, None

    async def sample(self, chunks, n, params):
        pieces = []
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                pieces.append(decode(self.chat, list(chunk.tokens)))
            else:
                self.folder.mkdir(parents=True, exist_ok=True)
                path = self.folder / f"{hashlib.sha256(chunk.data).hexdigest()[:16]}.png"
                path.write_bytes(chunk.data)
                pieces.append(f"\n[picture: {path}]\n")
        text = "".join(pieces)
        print(text[self.shown :] + '\n(answer CHOICE | call {"argument": value} | anything else is sent as it is)', flush=True)
        self.shown = len(text)
        while True:
            try:
                tokens = encode_turn(self.chat, self.message(await asyncio.to_thread(input, "> ")))[: params.max_tokens]
                return [Sample(tokens, [0.0] * len(tokens), "stop")] * n
            except SystemExit as error:  # arguments that are no JSON
                print(error, flush=True)

    def message(self, line):
        word, _, rest = line.strip().partition(" ")
        if word == "answer" and rest.strip().upper() in self.task.ANSWERS:
            return as_message(self.task.closing(self.row["task"], rest.strip().upper()))
        if word == "call":
            function = {"name": self.task.TOOLS[0]["function"]["name"], "arguments": rest}
            return {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
        return {"role": "assistant", "content": line}


def policy_sampler(policy, task, row, folder, chat, sampler, seed, images_dir):
    """The sampler that plays one trajectory. folder: that of the rows; sampler: the model's, None for policies that do without."""
    if policy == "model":
        return sampler
    if policy == "human":
        return HumanPolicy(chat, task, row, images_dir)
    if policy == "gold":
        steps = task.gold(row, folder)
    elif policy == "always-yes":
        steps = [task.closing(row["task"], task.ANSWERS[0])]
    elif policy == "random":
        steps = task.random_play(row, folder, np.random.default_rng(derive_seed(seed, row["id"], "random")))
    elif policy == "random-windows":
        steps = task.random_windows(row, folder, np.random.default_rng(derive_seed(seed, row["id"], "windows")))
    else:
        steps = []
    return ScriptedPolicy(chat, steps, task, row, sampler)
