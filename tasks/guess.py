"""Guess the number: the smallest environment that has a state (seed 004, section 3.11). The secret is in 1..N, there are T guesses.

    python prepare_data.py all --task guess
    python eval.py --task guess --policy gold --base-model MODEL --data datasets/guess/rl/bench_test.jsonl --output outputs/gold

`<guess>50</guess>` is answered by `<obs>higher</obs>` (the secret is higher), `lower` or `invalid`, in the same turn, and the model goes
on; the game ends with `correct` or with the last guess. A right guess pays 1 - .05 * (guesses - 1); never right pays 0; an <obs> that the
model writes itself ends the game and costs .2. Only what the environment says counts: reward plays the record again from the guesses and
the secret.

Three columns of evaluation: the training wording, a held-out wording, and N = 1000 (log2 is 9.97: ten guesses just do).

Rows: id, task ("guess-train", "guess-heldout", "guess-1000"), source_name, label (the secret as text), messages, high (N), max_guesses (T).
Secrets of training and test are the same numbers: there are only N. What is held out is the wording and the range.
The demonstrations are those of a player: `bisection`, the program teacher, or `careless`, who shows the form and little more. A tiny model
taught by the careless one stands where a pretrained model stands before any demonstration of the game: it can play, badly.
"""

import math
import random
import re
from dataclasses import dataclass
from pathlib import Path

from inline import FABRICATION, fabricated, last_call, pieces, whole_text
from protocol import Observation, write_jsonl

TOOLS = None
PRICE = 0.05  # of each guess after the first
HIGH, EASY_HIGH, FAR_HIGH, MAX_GUESSES = 100, 20, 1000, 10
MOST = {"high": 10**6, "max_guesses": 1000}  # the floors are worked out for every range up to `high`
PLAYERS = ("bisection", "careless")
ANSWER = re.compile(r".*<guess>\s*([^<>]*?)\s*</guess>\s*", re.DOTALL)  # the turn that ends the game ends with a guess
TEMPLATES = (
    "I think of a whole number from 1 to {high}. Find it in at most {guesses} guesses. Think in <think> </think>, then guess like this: "
    "<guess>7</guess>. I answer with <obs>higher</obs>, <obs>lower</obs> or <obs>correct</obs>.",
    "Guess my number. It lies between 1 and {high}, and you have {guesses} tries. Write thoughts in <think> </think> and each try as "
    "<guess>number</guess>; after it you read <obs>higher</obs> if mine is higher, <obs>lower</obs> if it is lower.",
    "A secret number between 1 and {high} was drawn. You may guess {guesses} times: <guess>number</guess>. The reply stands in <obs>: "
    "higher, lower "
    "or correct, said of the secret. Keep your thoughts in <think> </think>.",
    "Number game, range 1 to {high}, {guesses} guesses. A guess looks like <guess>12</guess>; <obs> then tells whether the secret is "
    "higher or lower. "
    "Use <think> </think> to think before each guess.",
    "Let us play. My number is a whole one between 1 and {high}; you get {guesses} guesses. Format: <guess>25</guess>. You will be told "
    "<obs>higher</obs>, <obs>lower</obs> or <obs>correct</obs>. Thoughts belong between <think> and </think>.",
    "Find the number that I wrote down, at least 1 and at most {high}. There are {guesses} attempts. Each looks like <guess>3</guess> and gets "
    "<obs>higher</obs> or <obs>lower</obs> in return. Reason in <think> </think>.",
    "What is my number? Lowest 1, highest {high}. Tries: {guesses}. Say <guess>x</guess> and read in <obs> whether it is higher or lower than "
    "x. Thinking happens in <think> </think>.",
    "Integer hunt: 1 <= secret <= {high}, no more than {guesses} guesses. Write <guess>n</guess>; feedback comes as <obs>higher</obs>, "
    "<obs>lower</obs> or <obs>correct</obs>. Put your reasoning into <think> </think> first.",
    "I hide a number from 1 up to {high}. Ask up to {guesses} times with <guess>number</guess>. My answer, <obs>higher</obs> or "
    "<obs>lower</obs>, tells where mine lies. <think> </think> is for you alone.",
    "You have {guesses} chances to name the secret number, which is any integer in 1..{high}. Name it with <guess>n</guess>, watch "
    "<obs>higher</obs> and <obs>lower</obs>, and think in <think> </think>.",
)
HELD_TEMPLATES = (
    "Somewhere in 1..{high} hides an integer. Track it down within {guesses} attempts. Attempt: <guess>n</guess>. Feedback: "
    "<obs>higher</obs>, "
    "<obs>lower</obs>, <obs>correct</obs>. Reasoning goes into <think> </think>.",
    "Which number from 1 to {high} am I thinking of? Ask with <guess>n</guess>, {guesses} times at most, and I will say "
    "<obs>higher</obs> or "
    "<obs>lower</obs> until it is <obs>correct</obs>. Put what you think in <think> </think>.",
)


# ---------------------------------------------------------------- the environment


def answer_guess(body, secret, high):
    """What the environment says to one guess: higher, lower, correct, or invalid (no whole number from 1 to `high`)."""
    if not re.fullmatch(r"[0-9]{1,9}", body.strip()) or not 1 <= int(body) <= high:
        return "invalid"
    return "correct" if int(body) == secret else "higher" if secret > int(body) else "lower"


def guesses_of(text):
    """What stands in each guess, in order; a closing tag without an opening one is an empty (invalid) guess, as it is to the episode."""
    return [head.rpartition("<guess>")[2].strip() if "<guess>" in head else "" for head in text.split("</guess>")[:-1]]


def replay(row, text):
    """[(guess as written, what was said)] of a game, up to `correct` or the last guess allowed."""
    game = []
    for body in guesses_of(text)[: row["max_guesses"]]:
        game.append((body, answer_guess(body, int(row["label"]), row["high"])))
        if game[-1][1] == "correct":
            break
    return game


@dataclass
class Episode:
    """The state is the secret and how many guesses were made. A guess that ends the game closes the turn: `step` then says so."""

    messages: list
    secret: int
    high: int
    max_guesses: int
    tools: None = None
    stop_strings: tuple = ("</guess>",)
    forbidden: tuple = ("<obs>",)
    step_answers: bool = True
    made: int = 0
    last: str = ""

    def say(self, body):
        self.made, self.last = self.made + 1, answer_guess(body, self.secret, self.high)
        return f"<obs>{self.last}</obs>"

    def over(self):
        return self.last == "correct" or self.made >= self.max_guesses

    def inline(self, text):
        call = last_call(text, ["guess"])
        if call is None:
            return None
        said = self.say(call[1])
        return None if self.over() else said

    def step(self, action):
        said = f"<obs>{self.last}</obs>" if self.over() else self.say(action.answer or "")  # not over: nobody stopped at the guess
        return Observation(said, ok=self.last != "invalid", done=self.over(), role="user")


def check_row(row):
    """What is wrong with a row, or ""."""
    for key, most in MOST.items():
        if not isinstance(row.get(key), int) or isinstance(row[key], bool) or not 1 <= row[key] <= most:
            return f"{key} {row.get(key)!r}: a whole number from 1 to {most}"
    if not re.fullmatch("[0-9]+", str(row.get("label"))) or not 1 <= int(row["label"]) <= row["high"]:
        return f"label {row.get('label')!r}: the secret, a whole number from 1 to {row['high']}"
    return ""


def start(row, folder):
    return Episode(row["messages"], int(row["label"]), row["high"], row["max_guesses"])


# ---------------------------------------------------------------- reward


def predict(trajectory):
    """The last guess."""
    guesses = guesses_of(whole_text(trajectory))
    return guesses[-1] if guesses else None


def reward(row, trajectory):
    """1 - .05 * (guesses - 1) if the secret was hit, 0 otherwise, .2 off for an observation made up. None if the episode failed."""
    if trajectory.finish_reason in ("error", "timeout") or row.get("label") is None:
        return None, {}
    game = replay(row, whole_text(trajectory))
    correct = bool(game) and game[-1][1] == "correct" and not fabricated(trajectory)
    parts = {
        "hit": float(correct),
        "guesses": -PRICE * (len(game) - 1) * correct + 0.0,
        "fabricated": -FABRICATION * fabricated(trajectory) + 0.0,
    }
    return round(sum(parts.values()), 12), parts | {"correct": float(correct)}


def full_reward(row):
    """What `gold` earns: bisection's guesses on this secret. A lucky guess can earn more on one row, no player more on average."""
    return round(1 - PRICE * (len(bisection(int(row["label"]), row["high"])) - 1), 12)


def metrics(rows, trajectories):
    """Success with its interval in all and in each column, guesses needed beside bisection's, and how well the replies were used."""
    from metrics import share_report

    report = {"groups": {}}
    for group in ("all", *sorted({row["task"] for row in rows})):
        chosen = [(row, t, replay(row, whole_text(t))) for row, t in zip(rows, trajectories) if group in ("all", row["task"])]
        flags = {}
        for row, t, game in chosen:
            flags.setdefault(row["id"], []).append(int(bool(game) and game[-1][1] == "correct" and not fabricated(t)))
        share = share_report(flags)
        part = {"accuracy": share["value"], "accuracy_low": share["low"], "accuracy_high": share["high"], **behaviour(chosen)}
        if group == "all":
            report |= part
            games = sorted({(row["high"], row["max_guesses"]) for row in rows})
            known = [(f"{name}, 1 to {high}", value) for high, guesses in games for name, value in floors(high, guesses).items()]
            report["baselines"] = {name: {"success": value} for name, value in known}
        else:
            report["groups"][group] = part | {"n": share["n"], "high": max(row["high"] for row, *_ in chosen)}
    return report | {"lines": lines(report["groups"])}


def lines(groups):
    """What eval.py prints: one line a column with its success, one with how it was played."""
    from tables import number, percent, share_text

    out = []
    for name, part in groups.items():
        share = {"value": part["accuracy"], "low": part["accuracy_low"], "high": part["accuracy_high"], "n": part["n"]}
        out.append([name, share_text(share)])
        out.append(["  guesses when right", f"{number(part['guesses_when_right'])}; bisection on the same {number(part['bisection_on_the_same'])}, "
                    f"log2 {part['high']} = {math.log2(part['high']):.2f}"])  # fmt: skip
        out.append(["  of the guesses", f"bisecting {percent(part['bisecting_share']).strip()}, possible {percent(part['consistent_share']).strip()}, "
                    f"invalid {percent(part['invalid_share']).strip()}; observations made up: {part['fabricated']}"])  # fmt: skip
    return out


def behaviour(chosen):
    """Of [(row, trajectory, game)]: guesses when right, share of invalid guesses, of guesses inside the interval still possible, and how
    far from its middle they lie (0: bisection; a uniform draw: about 1/4), as a share of its width; and the share that halve it exactly."""
    needed, ideal, inside, off, made, invalid, fakes, halves = [], [], [], [], 0, 0, 0, 0
    for row, t, game in chosen:
        fakes += fabricated(t)
        low, high = 1, row["high"]
        for number, (body, said) in enumerate(game):
            made, invalid = made + 1, invalid + (said == "invalid")
            if said == "invalid":
                continue
            guess = int(body)
            if number:
                inside.append(low <= guess <= high)
            if low <= guess <= high:
                off.append(abs(guess - (low + high) / 2) / (high - low + 1))
                halves += abs(2 * guess - low - high) <= 1
            low, high = (max(low, guess + 1), high) if said == "higher" else (low, min(high, guess - 1))
        if game and game[-1][1] == "correct":
            needed.append(len(game))
            ideal.append(len(bisection(int(row["label"]), row["high"])))
    mean = lambda values: sum(values) / len(values) if values else None
    return {
        "guesses_when_right": mean(needed), "bisection_on_the_same": mean(ideal), "guesses_mean": made / len(chosen) if chosen else None,
        "invalid_share": invalid / made if made else None, "consistent_share": mean(inside), "off_middle": mean(off), "fabricated": fakes,
        "bisecting_share": halves / made if made else None,
    }  # fmt: skip


def floors(high, guesses):
    """Success of three players, exactly: any number each time; any number still possible; bisection."""
    reach = [0.0] * (high + 1)  # of an interval of n numbers, with t guesses: 1/n now, else the part that holds the secret, with t - 1
    for _ in range(guesses):
        total, following = 0.0, [0.0]
        for n in range(1, high + 1):
            total += (n - 1) * reach[n - 1]  # sum over m < n of m * reach[m]
            following.append(1 / n + 2 * total / n**2)
        reach = following
    found = sum(len(bisection(secret, high)) <= guesses for secret in range(1, high + 1))
    return {"random": 1 - (1 - 1 / high) ** guesses, "random possible": reach[high], "bisection": found / high}


# ---------------------------------------------------------------- scripted players


def bisection(secret, high):
    """The guesses of a player who always halves: the lower middle of what is left."""
    low, out = 1, []
    while not out or out[-1] != secret:
        out.append((low + high) // 2)
        low, high = (out[-1] + 1, high) if secret > out[-1] else (low, out[-1] - 1)
    return out


def demonstration(secret, high):
    """(text, injected) of the program teacher. It writes down what is left before each guess: in the seed this one sentence carried N =
    1000 from .14 to .71, because the middle is then computed from two numbers in sight."""
    low, top, text, injected = 1, high, "", []
    for guess in bisection(secret, high):
        text += f"<think>\nThe number is between {low} and {top}.\n</think>\n\n<guess>{guess}</guess>"
        if guess != secret:
            low, top = (guess + 1, top) if secret > guess else (low, guess - 1)
            injected.append(f"<obs>{answer_guess(str(guess), secret, high)}</obs>")
            text += injected[-1] + "\n"
    return text, injected


def gold(row, folder=None):
    """Bisection, as pieces of one turn that end at each guess."""
    yield from pieces(*demonstration(int(row["label"]), row["high"]))


def random_play(row, folder, rng):
    """The floor: any number in the range, each time."""
    for number in range(row["max_guesses"]):
        yield ("<think>\nAny.\n</think>\n\n" if not number else "\n") + f"<guess>{int(rng.integers(1, row['high'] + 1))}</guess>"


def careless(secret, high, guesses, rng):
    """(text, injected) of a player who heeds what was said before half of the guesses and draws any number before the others, and writes
    nothing down. Not always successful: it may use up its guesses."""
    low, top, text, injected = 1, high, "", []
    for number in range(guesses):
        guess = rng.randint(low, top) if rng.random() < 0.5 else rng.randint(1, high)
        text += f"<think>\nI try a number.\n</think>\n\n<guess>{guess}</guess>"
        said = answer_guess(str(guess), secret, high)
        if said == "correct" or number == guesses - 1:
            break
        low, top = (max(low, guess + 1), top) if said == "higher" else (low, min(top, guess - 1))
        injected.append(f"<obs>{said}</obs>")
        text += injected[-1] + "\n"
    return text, injected


# ---------------------------------------------------------------- data


def make_row(name, number, secret, high, guesses, wordings, rng):
    text = wordings[rng.randrange(len(wordings))].format(high=high, guesses=guesses)
    return {"id": f"guess-{name}-{number}", "task": f"guess-{name}", "source_name": f"{high}-{secret}", "label": str(secret), "images": [],
            "messages": [{"role": "user", "content": text}], "high": high, "max_guesses": guesses}  # fmt: skip


def flags(group):
    """The flags of prepare_data.py that are this task's own."""
    group.add_argument("--high", type=int, default=HIGH, help="the secret lies in 1..HIGH (default: %(default)s)")
    group.add_argument("--easy-high", type=int, default=EASY_HIGH, help="range of bench_rl_train_easy, for a curriculum (default: %(default)s)")
    group.add_argument("--max-guesses", type=int, default=MAX_GUESSES, help="guesses in a game (default: %(default)s)")
    group.add_argument("--templates", type=int, default=1, help=f"training wordings, 1 to {len(TEMPLATES)} (default: %(default)s)")
    group.add_argument("--player", choices=PLAYERS, default=PLAYERS[0], help="who plays the demonstrations (default: %(default)s)")
    group.add_argument("--sft-size", type=int, default=200, help="demonstrations, validation included (default: %(default)s)")
    group.add_argument("--train-size", type=int, default=2000, help="games for RL, of each of the two ranges (default: %(default)s)")
    group.add_argument("--dev-size", type=int, default=60, help="in three columns (default: %(default)s)")
    group.add_argument("--test-size", type=int, default=300, help="in three columns, 300 at most (default: %(default)s)")


def options(args):
    """(high, easy_high, max_guesses, training wordings), checked."""
    get = lambda name, default: default if getattr(args, name, None) is None else getattr(args, name)
    high, easy, guesses, count = get("high", HIGH), get("easy_high", EASY_HIGH), get("max_guesses", MAX_GUESSES), get("templates", 1)
    for flag, value, low, top in (("high", high, 2, MOST["high"]), ("easy-high", easy, 2, high), ("max-guesses", guesses, 1, MOST["max_guesses"]),
                                  ("templates", count, 1, len(TEMPLATES)), ("sft-size", get("sft_size", 2), 2, 10**6),
                                  ("train-size", get("train_size", 1), 1, 10**6), ("dev-size", get("dev_size", 0), 0, 10**6),
                                  ("test-size", get("test_size", 0), 0, 10**6)):  # fmt: skip
        if not low <= value <= top:
            raise SystemExit(f"--{flag} {value}: a whole number from {low} to {top}" + (", which is --high" if flag == "easy-high" else ""))
    return high, easy, guesses, TEMPLATES[:count]


def prepare_sft(args):
    """sft/: games of the program teacher (the seed used 200), or of the careless player."""
    from datafiles import fresh_folder, write_json

    (high, _, guesses, wordings), rng = options(args), random.Random(f"{args.seed}-guess-sft")
    rows = [make_row("train", n, rng.randint(1, high), high, guesses, wordings, rng) for n in range(args.sft_size)]
    for row in rows:
        secret = int(row["label"])
        text, injected = careless(secret, high, guesses, rng) if getattr(args, "player", "") == "careless" else demonstration(secret, high)
        row["messages"] = [*row["messages"], {"role": "assistant", "content": text, "inline": injected}]
    cut = len(rows) - round(len(rows) * args.val_fraction)
    with fresh_folder(Path(args.output) / "guess" / "sft", "sft_stats.json") as folder:
        for name, part in (("train", rows[:cut]), ("val", rows[cut:])):
            write_jsonl(folder / f"sft_{name}.jsonl", part)
        write_json(folder / "sft_stats.json", {"rows": {"train": cut, "val": len(rows) - cut}, "high": high, "seed": args.seed})


def prepare_bench(args):
    """rl/: bench_rl_train (1..high), bench_rl_train_easy (1..easy_high, the curriculum's first part), bench_dev, bench_test (three columns)."""
    from datafiles import at_most, fresh_folder, write_json

    high, easy, guesses, wordings = options(args)
    rng = random.Random(f"{args.seed}-guess-bench")

    def games(name, size, top, words):
        """`size` secrets: all of 1..top in random order, as often as it takes."""
        secrets = [s for _ in range(-(-size // top)) for s in rng.sample(range(1, top + 1), top)][:size]
        return [make_row(name, n, secret, top, guesses, words, rng) for n, secret in enumerate(secrets)]

    def columns(size):
        each = size // 3 if size >= 3 else size
        return games("train", each, high, wordings) + games("heldout", each, high, HELD_TEMPLATES) + games("1000", each, FAR_HIGH, wordings)

    parts = {"bench_rl_" + name: games("train", args.train_size, top, wordings) for name, top in (("train", high), ("train_easy", easy))}
    parts |= {"bench_dev": columns(args.dev_size), "bench_test": columns(at_most("--test-size", args.test_size, 300))}
    with fresh_folder(Path(args.output) / "guess" / "rl", "bench_stats.json") as folder:
        for name, part in parts.items():
            write_jsonl(folder / f"{name}.jsonl", part)
        write_json(folder / "bench_stats.json", {
            "rows": {name: len(part) for name, part in parts.items()}, "seed": args.seed,
            "floors": {str(top): floors(top, guesses) for top in sorted({high, easy, FAR_HIGH})},
        })  # fmt: skip
