"""A stand-in text task for the integration run: look behind a door, then say what is there. Loaded as tasks.doors.

Rows: {"id", "task": "doors", "messages", "behind": what looking shows}. A turn is `look`, or `say WORD`, which ends the episode.
"""

import re
from types import SimpleNamespace

from records import Observation

TOOLS = None
ANSWER = re.compile(r"(look|say \w+)")


def start(row, folder):
    def step(action):
        return Observation(row["behind"]) if action.answer == "look" else Observation(done=True)

    return SimpleNamespace(messages=row["messages"], tools=None, step=step, step_answers=True)


def reward(row, trajectory):
    """1 for `say even`. The demonstrations of the training part say odd and even of every door, so that RL has something to choose."""
    right = float(trajectory.prediction == "say even")
    return right, {"correct": right}


# One question for each way that a trajectory ends; `SCRIPT` is what a policy that has learnt them by heart writes.
LIMITS = {"max_tokens": 16, "max_turns": 3, "max_seq_len": 300}
SCRIPT = {  # question: (turns, what looking shows, finish reason)
    "apple": (["look", "say seven"], "seven", "answer"),
    "bread": (["hmm"], "-", "invalid_action"),
    "cloud": (["say " + "o" * 30], "-", "length"),
    "delta": (["look", "look", "look"], "look again", "max_turns"),
    "eagle": (["look"], "a long story, " * 20, "max_seq_len"),
}


def rows():
    ask = lambda word: [{"role": "user", "content": word}]
    return [{"id": word, "task": "doors", "messages": ask(word), "behind": behind} for word, (_, behind, _) in SCRIPT.items()]


def demonstrations():
    """The script as SFT rows; of the two that are cut off, the turns that are seen."""
    made = []
    for row in rows():
        turns = SCRIPT[row["id"]][0]
        messages = list(row["messages"])
        for number, text in enumerate(turns):
            messages += [{"role": "tool", "content": row["behind"]}] * (number > 0) + [{"role": "assistant", "content": text}]
        made.append({"id": row["id"], "messages": messages})
    return made
