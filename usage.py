"""What a run uses, and what it costs: prefill, training and sampled tokens by phase, for every backend.

    usage.add_flags(parser)                                     # --price, --yes
    meter = usage.Meter(args.price, run.restored)
    usage.confirm(args, meter, expected, at_most, "go on with --resume runs/rl --yes")
    trainer = usage.Counted(trainer, meter)                     # counts every request, passes everything on
    runs.log_metrics(run, step, values | meter.step())          # usage/rollout_sample ..., and usage/cost with --price
    meter.report()                                              # the closing table; `meter.total` goes into the checkpoint

Phases: rollout (a request's prompt is its prefill, once for all its samples; what comes back is sampled), scoring (validation, anchors, forced
answers: prefill), training (every position of a sequence, context and pictures too; this is what services bill). Positions are counted as
they are sent: a cache that spares a service, or the local engine, some of the prefill is not seen here, nor is what a failed request cost.
Steps that a kill took away were paid for but are not in the run's table, which goes on from the checkpoint.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections import Counter

import numpy as np

from records import chunks_length

KINDS = ("prefill", "train", "sample")  # in the order of --price
PARTS = ("rollout_prefill", "rollout_sample", "scoring_prefill", "training_train")  # phase_kind
SHOWN = 32  # rows that an estimate is made from


def add_flags(parser):
    group = parser.add_argument_group("cost")
    group.add_argument("--price", type=prices, metavar="PREFILL,TRAIN,SAMPLE", help="of a million tokens each: what the run will cost is asked before it starts")
    group.add_argument("--yes", action="store_true", help="with --price: start without asking")


def prices(text):
    """An argparse type: three numbers, none of them negative."""
    try:
        found = tuple(float(part) for part in text.split(","))
        if len(found) == 3 and all(math.isfinite(price) and price >= 0 for price in found):
            return found
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: three numbers with commas, of a million prefill, training and sampled tokens, as in 0.8,4.5,4.5")


def cost(tokens: dict, price) -> float:
    """Money for {phase_kind: tokens}."""
    return sum(count * price[KINDS.index(name.rpartition("_")[2])] for name, count in tokens.items()) / 1e6


class Meter:
    """Counts {phase_kind: tokens}. price: a million (prefill, train, sample), or None. restored: the checkpoint that a run goes on from."""

    def __init__(self, price=None, restored: dict | None = None):
        self.price = tuple(price) if price else None
        self.total = Counter((restored or {}).get("usage") or {})
        self.told = Counter(self.total)

    def new(self) -> dict:
        """What was used since `step` was last called."""
        return {name: count - self.told[name] for name, count in self.total.items()}

    def share(self, parts: list):
        """Several processes (torchrun): `new` of each, in place of this one's own."""
        self.total = Counter(self.told)
        for part in parts:
            self.total.update(part)

    def step(self) -> dict:
        """Metrics: what was used since the last call."""
        new = {name: self.total[name] - self.told[name] for name in PARTS if self.total[name]}
        self.told = Counter(self.total)
        return {f"usage/{name}": count for name, count in new.items()} | ({"usage/cost": cost(new, self.price)} if self.price else {})

    def report(self):
        """Print the closing table."""
        if any(self.total.values()):
            print("\n".join(table(self.total, self.price)), flush=True)


class Counted:
    """A trainer or sampler whose requests are counted by `meter`; whatever else is asked of it is passed on."""

    def __init__(self, inner, meter: Meter):
        self.inner, self.meter = inner, meter

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def sampler(self):
        return Counted(self.inner.sampler(), self.meter)

    async def sample(self, chunks, n, params):
        samples = await self.inner.sample(chunks, n, params)
        self.meter.total["rollout_prefill"] += chunks_length(chunks)
        self.meter.total["rollout_sample"] += sum(len(sample.tokens) for sample in samples)
        return samples

    async def logprobs(self, chunks):
        found = await self.inner.logprobs(chunks)
        self.meter.total["scoring_prefill"] += chunks_length(chunks)
        return found

    async def forward(self, data, *args):
        output = await self.inner.forward(data, *args)
        self.meter.total["scoring_prefill"] += positions(data)
        return output

    async def forward_backward(self, data, *args):
        output = await self.inner.forward_backward(data, *args)
        self.meter.total["training_train"] += positions(data)
        return output


def positions(data) -> int:
    return sum(len(datum.weights) for datum in data)


def table(tokens: dict, price) -> list:
    """Lines: a row a phase, a column a kind, and money if there are prices."""
    lines = [f"{'tokens':<12}" + "".join(f"{kind:>14}" for kind in KINDS) + (f"{'cost':>12}" if price else "")]
    phases = list(dict.fromkeys(name.rpartition("_")[0] for name in PARTS))
    for phase in [*phases, "in all"]:
        mine = {name: count for name, count in tokens.items() if phase == "in all" or name.startswith(phase)}
        if any(mine.values()):
            columns = [sum(count for name, count in mine.items() if name.endswith(kind)) for kind in KINDS]
            cells = "".join(f"{count:>14,}" if count else f"{'-':>14}" for count in columns)
            lines.append(f"{phase:<12}{cells}" + (f"{cost(mine, price):>12,.2f}" if price else ""))
    return lines


# ---------------------------------------------------------------- before the start


def spread(rows: list) -> list:
    """Up to SHOWN of the rows, from all over the file."""
    return [rows[i * len(rows) // min(SHOWN, len(rows))] for i in range(min(SHOWN, len(rows)))]


def demonstrated(chat, task, path, max_seq_len: int) -> list:
    """[(prefill of later turns, prompt, sampled tokens, length)] of demonstrations: what trajectories will be like, if the model learns them."""
    from protocol import read_jsonl, sft_datum

    shapes = []
    for row in spread(read_jsonl(path)) if path.is_file() else ():
        datum = sft_datum(chat, row["messages"], task.TOOLS, path.parent, max_seq_len)
        if datum is not None:
            written = np.flatnonzero(datum.weights)  # [n], positions whose next token the assistant writes
            starts = written[np.flatnonzero(np.diff(written, prepend=-2) > 1)] + 1  # how much stands before each turn
            shapes.append((int(starts[1:].sum()), int(starts[0]), len(written), len(datum.weights)))
    return shapes


def episodes(args, task, chat, rows: list, count: int, group: int = 1) -> tuple:
    """({phase_kind: tokens} expected or None, at most) of `count` trajectories, `group` of each question.

    Expected: as the demonstrations beside the questions (../sft/sft_train.jsonl). At most: every turn is played and every limit reached.
    A train_rl.py run trains them, and scores them for --kl-coef and --importance-cap; --refill adds rounds at most.
    """
    from protocol import encode_prompt

    folder = args.data.parent
    prompts = [chunks_length(encode_prompt(chat, episode.messages, episode.tools, folder)) for episode in (task.start(row, folder) for row in spread(rows))]
    prompt, limit = float(np.mean(prompts)), args.max_seq_len
    trains = hasattr(args, "advantage")
    scored = bool(getattr(args, "kl_coef", 0)) + bool(getattr(args, "importance_cap", 0))

    def tokens(later, first, sampled, length):
        used = {"rollout_prefill": later + first / group, "rollout_sample": sampled}
        used |= {"training_train": length, "scoring_prefill": length * scored} if trains else {}
        return {name: round(value * count) for name, value in used.items()}

    shapes = demonstrated(chat, task, folder.parent / "sft" / "sft_train.jsonl", limit)
    most = tokens((args.max_turns - 1) * limit, prompt, max(0, min(args.max_turns * args.max_tokens, limit - prompt)), limit)
    rounds = 1 + getattr(args, "refill", 0)
    most |= {name: most[name] * rounds for name in ("rollout_prefill", "rollout_sample")}
    return (tokens(*np.mean(shapes, axis=0)) if shapes else None), most


def confirm(args, expected: dict | None, most: dict, again: str = "the same command with --yes starts without asking"):
    """With --price: say what the rest of the run will cost, and ask. SystemExit unless the answer is yes, or --yes was given.

    expected: {phase_kind: tokens}, None if nobody can know; most: the same, with every limit reached. again: how to start after a no.
    """
    if not args.price:
        return
    amount, basis = f"at most {cost(most, args.price):,.2f}", "if every limit is reached"
    if expected:
        exact = expected == most
        amount = f"{cost(expected, args.price):,.2f}" if exact else f"about {cost(expected, args.price):,.2f}, {amount}"
        basis = "counted from the rows" if exact else "if trajectories are like the demonstrations"
    if args.yes or sys.stdin.isatty():
        print("\n".join([f"what is to come, {basis}:", *table(expected or most, args.price), f"cost: {amount}"]), flush=True)
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise SystemExit(f"--price: this would cost {amount}, and there is no terminal to ask at: {again if '--yes' in again else 'add --yes'}")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # here, Ctrl-C means no
    try:
        answer = input("start? [y/N] ").strip().lower()
    except (EOFError, KeyboardInterrupt):
        answer = ""
    finally:
        signal.signal(signal.SIGINT, before)
    if answer not in ("y", "yes"):
        raise SystemExit(f"not started; {again}")
