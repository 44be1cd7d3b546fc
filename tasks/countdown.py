"""Countdown: make a target of three or four numbers, each used once, with + - * / (seed 004, sections 3.5 to 3.10).

    python prepare_data.py all --task countdown
    python eval.py --task countdown --policy gold --base-model MODEL --data datasets/countdown/rl/bench_test.jsonl --output outputs/gold

Rows say how they are played and judged: `tool` ("none"; "calc": `<calc>3*4</calc>` is followed by `<result>12</result>` in the same
turn; "calc+ask": an expert may be asked too, `<ask>`, `<reply>`), `judge` (v1, v2, v2.1, v3: tasks/countdown_rewards.py), `max_new`
(tokens, the scale of v3's length term). Problems, solver and program teacher: tasks/countdown_teacher.py.

Questions are numbered for ever by seed: [0:90000] is the pool for training, [90000:90200] for development, [95000:95100] held out. The test
questions exist with the first training prompt (bench_test) and with prompts that no training row has (bench_test_heldout): in the seed
one prompt in training went from .966 to .036 when the wording changed, ten held .919.

The judge is a value of the row: `--set judge=v1` of train_rl.py and eval.py takes another one for the same rows.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import calculator
import expert
from inline import fabricated, last_call, pieces, whole_text
from protocol import Observation, read_jsonl, write_jsonl
from tasks import countdown_rewards as rewards
from tasks import countdown_teacher as teacher

TOOLS = None
SETTABLE = ("tool", "judge", "max_new", "expert")  # by --set, where rows lack them, too
TOOL_MODES = ("none", "calc", "calc+ask")
ANSWER = re.compile(r"<answer>\s*((?:(?!</?answer>).)*?)\s*</answer>", re.DOTALL)
MAX_NEW = 1400
CACHE = Path("outputs") / "expert-cache"

# The first one is the R1 form of the seed's experiments. Each says where thoughts and answer belong; only their words differ.
TEMPLATES = (
    "Using the numbers {numbers}, make an expression that equals {target}. Use + - * / and each number exactly once. Show your work in "
    "<think> </think>, then give the expression in <answer> </answer>, for example <answer>(1 + 2) / 3</answer>.",
    "Numbers: {numbers}. Target: {target}. Combine all the numbers, each once, with + - * / and brackets. Think inside <think> </think> "
    "and "
    "finish with <answer>expression</answer>.",
    "Reach {target} with {numbers}. Every number must be used, none twice; allowed are + - * /. Reason in <think> </think>; the final "
    "expression goes into <answer> </answer>.",
    "Here is a number puzzle. You hold {numbers}. Which expression of them, each used one time, has the value {target}? First <think> your "
    "search </think>, then <answer> the expression </answer>.",
    "Find a way to get {target} from {numbers}. Each number appears once, operations are + - * /. Work inside <think></think>, result "
    "inside "
    "<answer></answer>.",
    "Countdown round! Cards: {numbers}. Goal: {target}. All cards, once each, joined by + - * /. Put the search between <think> and "
    "</think> "
    "and the expression between <answer> and </answer>.",
    "Write an arithmetic expression that is equal to {target}. It must contain {numbers}, each exactly once, and only + - * / ( ). "
    "Thoughts: <think> </think>. Expression: <answer> </answer>.",
    "{target} is wanted; given are {numbers}. Build it with the four operations and use up every number. <think> first </think>, "
    "<answer> last </answer>.",
    "Can you make {target}? You may add, subtract, multiply and divide {numbers}, and must use each of them once. Think in <think> "
    "</think>, "
    "then answer with <answer>expression</answer>.",
    "Take the numbers {numbers}. Insert + - * / and brackets, in any order of the numbers, so that the value is {target}. Try things out "
    "in <think> </think> and write the solution in <answer> </answer>.",
)
HELD_TEMPLATES = (
    "A puzzle for you: with {numbers} and the four basic operations, hit {target}; no number may be left over or used again. "
    "Scratch work in <think> </think>, solution in <answer> </answer>.",
    "target = {target}\nnumbers = {numbers}\nReturn one expression over all the numbers. Format: <think>work</think> "
    "<answer>expression</answer>.",
    "My friend says that {target} can be made of {numbers}, using each once and only + - * /. Show how: <think> ... </think> and then "
    "<answer> ... </answer>.",
)
CALC_NOTES = (
    "A calculator helps: write <calc>2*3+4</calc> and the value appears as <result>10</result>.",
    "For arithmetic, write <calc>expression</calc>; what follows in <result> is exact. Do not write results yourself.",
    "You have a calculator. <calc>8/3</calc> is answered by <result>8/3</result>.",
)
ASK_NOTES = (
    "If your own search fails you may ask an expert, at most 3 times, at a price: <ask>question</ask>, answered in <reply>. Check what "
    "it says.",
    "An expert can be asked with <ask>question</ask> (3 times at most, each costs a little); the <reply> may be wrong.",
    "Stuck? <ask>question</ask> gives a <reply> from an expert who is not always right. Three questions at most; each is charged.",
)


# ---------------------------------------------------------------- the environment


@dataclass
class Episode:
    """One answer, with its inline tools. What was called before is counted here."""

    messages: list
    row: dict
    stop_strings: tuple = ()
    forbidden: tuple = ()
    tools: None = None
    calls: int = 0
    asks: int = 0

    def step(self, action):
        return Observation(done=True)

    def inline(self, text):
        call = last_call(text, [stop[2:-1] for stop in self.stop_strings])
        if call is None:
            return None
        if call[0] == "calc":
            self.calls += 1
            return calculator.inline_result(text, self.calls - 1)
        self.asks += 1
        return expert.inline_reply(text, self.asks - 1, lambda question, number: ask(self.row, question, number))


def check_row(row):
    """What is wrong with a row, or "". A wrong --set ends here too."""
    for key, known, default in (("tool", TOOL_MODES, "none"), ("judge", rewards.JUDGES, "v3")):
        if row.get(key, default) not in known:
            return f"{key} {row[key]!r}: there are {', '.join(known)}"
    if not isinstance(row.get("max_new", MAX_NEW), int) or row.get("max_new", MAX_NEW) < 1:
        return f"max_new {row['max_new']!r}: a whole number of tokens from 1"
    numbers = row.get("numbers")
    if not isinstance(numbers, list) or not numbers or not all(isinstance(n, int) for n in [*numbers, row.get("target")]):
        return "needs numbers (a list) and target, all whole; write the file with prepare_data.py bench"
    return ""


def start(row, folder):
    """The episode of a row; one without `tool` has none."""
    if wrong := check_row(row):
        raise SystemExit(f"row {row['id']}: {wrong}")
    mode = row.get("tool", "none")
    used = [module for module, name in ((calculator, "calc"), (expert, "ask")) if name in mode.split("+")]
    return Episode(row["messages"], row, tuple(module.STOP for module in used), tuple(module.FORBIDDEN for module in used))


def ask(row, question, number):
    """The expert's reply: an expression. The built-in one solves what it is asked, so it must be told the numbers and the target."""
    who = row.get("expert") or {"kind": "program", "wrong": 0.2, "seed": 0}
    if who["kind"] == "remote":
        system = "Reply with one arithmetic expression over the given numbers, each used exactly once, and nothing else."
        return expert.remote_reply(question, who["url"], who["model"], CACHE, system)
    told = Counter(calculator.numbers(question))
    if Counter([*row["numbers"], row["target"]]) - told:
        return "Tell me all the numbers and the target."
    right, _ = teacher.solve(row["numbers"], row["target"])
    return expert.program_reply(right, teacher.near_miss(row["numbers"], row["target"]), who["wrong"], who["seed"], row["id"], number)


# ---------------------------------------------------------------- reward


def predict(trajectory):
    """The expression that counts, as reward reads it: what stands in the last answer block after the thoughts."""
    return rewards.last_answer(whole_text(trajectory))


def facts_of(row, trajectory):
    inline = [result for turn in trajectory.turns for result in turn.inline]
    return rewards.read(
        whole_text(trajectory), row["numbers"], row["target"], trajectory.format_ok,
        tokens=sum(trajectory.sampled), max_tokens=row.get("max_new", MAX_NEW), fabricated=fabricated(trajectory),
        asks=sum(result.startswith(expert.FORBIDDEN) for result in inline),
    )  # fmt: skip


def reward(row, trajectory):
    """By the row's judge. None if the episode failed for no fault of the model's."""
    if trajectory.finish_reason in ("error", "timeout"):
        return None, {}
    return rewards.judge(row.get("judge", "v3"), facts_of(row, trajectory))


def full_reward(row):
    """What `gold` must earn at least: v3 takes up to .05 for length."""
    return 0.95 if row.get("judge", "v3") == "v3" else 1.0


def metrics(rows, trajectories):
    """Accuracy with its interval, for 3 and 4 numbers apart; the seed's readings of behaviour; floors of players who do not search."""
    from metrics import share_report

    facts = [facts_of(row, t) for row, t in zip(rows, trajectories)]
    report = {"groups": {}}
    for group in ("all", *sorted({row["task"] for row in rows})):
        chosen = [(row, t, f) for row, t, f in zip(rows, trajectories, facts) if group in ("all", row["task"])]
        flags = {}
        for row, _, fact in chosen:
            flags.setdefault(row["id"], []).append(int(fact.correct))
        share = share_report(flags)
        part = {"accuracy": share["value"], "accuracy_low": share["low"], "accuracy_high": share["high"], **behaviour(chosen)}
        part["floors"] = floors([row for row, _, _ in chosen])
        if group == "all":
            report |= {key: value for key, value in part.items() if key != "floors"}
            report["baselines"] = {name: {"accuracy": value} for name, value in part["floors"].items()}
        else:
            report["groups"][group] = part | {"n": share["n"]}
    return report | {"lines": lines(report)}


def lines(report):
    """What eval.py prints: accuracy by kind of problem, and how the search was written."""
    from tables import number, percent, share_text

    share = lambda key: percent(report[key]).strip()
    out = []
    for name, part in report["groups"].items():
        value = {"value": part["accuracy"], "low": part["accuracy_low"], "high": part["accuracy_high"], "n": part["n"]}
        out.append([name, share_text(value)])
    return [
        *out,
        ["characters, cut off", f"{number(report['characters'], 0)} a trajectory, {share('cut_off')} hit the limit"],
        ["steps of the search", f"{number(report['steps'], 1)}, of their values {share('values_right')} right"],
        ["marks too high/low/perfect", f"{number(report['marks'], 1)}, {share('marks_right')} true, {share('marks_reversed')} reversed"],
        ["with * or /, repeated lines", f"{share('multiplies')} of the trajectories, {number(report['repeated'], 1)} lines"],
        ["wrong claims of success", f"{share('false_claim')} of the trajectories"],
        ["calculator, expert", f"{number(report['calls'], 1)} calls ({number(report['call_errors'], 2)} refused), {number(report['asks'])} "
         f"questions; made up in {share('fabricated')}"],
    ]  # fmt: skip


def behaviour(chosen):
    """Means of `countdown_rewards.readings` over [(row, trajectory, facts)], and how the trajectories ended."""

    def mean(values):
        values = [float(value) for value in values if value is not None]
        return sum(values) / len(values) if values else None

    keys = (
        "steps",
        "values_right",
        "marks",
        "marks_right",
        "marks_reversed",
        "multiplies",
        "repeated",
        "illegal",
        "false_claim",
        "characters",
    )
    inline = [[result for turn in t.turns for result in turn.inline] for _, t, _ in chosen]
    return {
        **{key: mean(fact.process[key] for _, _, fact in chosen) for key in keys},
        "cut_off": mean(t.finish_reason in ("length", "max_seq_len") for _, t, _ in chosen),
        "fabricated": mean(fact.fabricated for *_, fact in chosen),
        "calls": mean(sum(r.startswith(calculator.FORBIDDEN) for r in results) for results in inline),
        "call_errors": mean(sum("error:" in r for r in results) for results in inline),
        "asks": mean(fact.asks for *_, fact in chosen),
    }  # fmt: skip


def floors(rows):
    """Accuracy of: one sum or difference at random, always adding everything up, and every question that sums and differences can solve."""
    rows = list({row["id"]: row for row in rows}.values())
    lines = [[value for _, value in teacher.layer0(row["numbers"])] for row in rows]
    hits = [[value == row["target"] for value in values] for row, values in zip(rows, lines)]
    count = max(1, len(rows))
    return {
        "random_sum": sum(sum(hit) / len(hit) for hit in hits) / count,
        "add_everything": sum(row["target"] == sum(row["numbers"]) for row in rows) / count,
        "sums_only": sum(any(hit) for hit in hits) / count,
    }


# ---------------------------------------------------------------- scripted players


def gold(row, folder=None):
    """Must earn the maximum on every row: the program teacher, through the calculator where there is one. Pieces of one turn."""
    yield from pieces(*teacher.demonstrate(row["numbers"], row["target"], row.get("tool", "none") != "none"))


def random_play(row, folder, rng):
    """The floor: one sum or difference, drawn by `rng` (numpy's)."""
    lines = teacher.layer0(row["numbers"])
    yield f"<think>\nAny.\n</think>\n\n<answer>{lines[int(rng.integers(len(lines)))][0]}</answer>"


# ---------------------------------------------------------------- data


def flags(group):
    """The flags of prepare_data.py that are this task's own."""
    group.add_argument("--counts", default="3,4", help="numbers of a problem: 3, 4 or 3,4 (default: %(default)s)")
    group.add_argument("--tool", default="none", help=f"inline tools of the rows: {', '.join(TOOL_MODES)} (default: %(default)s)")
    group.add_argument("--judge", default="v3", help=f"reward of the rows: {', '.join(rewards.JUDGES)} (default: %(default)s)")
    group.add_argument("--max-new", type=int, default=MAX_NEW, help="tokens that v3's length term is scaled to (default: %(default)s)")
    group.add_argument("--templates", type=int, default=1, help=f"training wordings, 1 to {len(TEMPLATES)} (default: %(default)s)")
    group.add_argument("--expert", default="program", help="who answers <ask>: program or remote (default: %(default)s)")
    group.add_argument("--expert-wrong", type=float, default=0.2, help="share of wrong replies of the program (default: %(default)s)")
    group.add_argument("--expert-url", help="remote: base URL of an OpenAI-compatible server, as in http://localhost:8000/v1")
    group.add_argument("--expert-model", help="remote: the model's name there")
    group.add_argument("--distil", type=Path, metavar="OUTPUT", help="sft: a model's own right answers, of an eval.py folder on bench_rl_train")
    group.add_argument("--sft-size", type=int, default=4000, help="demonstrations, validation included (default: %(default)s)")
    group.add_argument("--train-size", type=int, default=8000, help="questions for RL, of the pool (default: %(default)s)")
    group.add_argument("--dev-size", type=int, default=100, help="development questions, 200 of a kind at most (default: %(default)s)")
    group.add_argument("--test-size", type=int, default=200, help="held-out questions, 100 of a kind at most (default: %(default)s)")


def options(args):
    """The settings of this task among the flags, checked."""
    get = lambda name, default: default if getattr(args, name, None) is None else getattr(args, name)
    found = {"tool": get("tool", "none"), "judge": get("judge", "v3"), "max_new": get("max_new", MAX_NEW), "templates": get("templates", 1)}
    for name, known in (("tool", TOOL_MODES), ("judge", rewards.JUDGES), ("templates", range(1, len(TEMPLATES) + 1))):
        if found[name] not in known:
            raise SystemExit(f"--{name} {found[name]}: there are {', '.join(map(str, known))}")
    for name, low in (("max_new", 1), ("sft_size", 2), ("train_size", 1), ("dev_size", 0), ("test_size", 0)):
        if get(name, low) < low:
            raise SystemExit(f"--{name.replace('_', '-')} {get(name, low)}: a whole number from {low}")
    counts = str(get("counts", "3,4")).split(",")
    if not counts or set(counts) - {"3", "4"}:
        raise SystemExit(f"--counts {','.join(counts)}: 3, 4 or 3,4")
    for name in ("sft_size", "train_size"):
        if -(-get(name, 0) // len(counts)) > teacher.POOL[1] - teacher.POOL[0]:
            raise SystemExit(f"--{name.replace('_', '-')} {get(name, 0)}: the pool has {teacher.POOL[1] - teacher.POOL[0]} questions of a kind")
    who = {"kind": get("expert", "program"), "wrong": float(get("expert_wrong", 0.2)), "seed": args.seed}
    if who["kind"] not in ("program", "remote"):
        raise SystemExit(f"--expert {who['kind']}: there are program, remote")
    if not 0 <= who["wrong"] <= 1:
        raise SystemExit(f"--expert-wrong {who['wrong']}: a share from 0 to 1")
    if who["kind"] == "remote":
        who |= {"url": get("expert_url", None), "model": get("expert_model", None)}
        if not who["url"] or not who["model"]:
            raise SystemExit("--expert remote needs --expert-url and --expert-model")
    return found | {"counts": sorted({int(count) for count in counts}), "expert": who if "ask" in found["tool"] else None}


def make_row(count, index, seed, settings, rng=None, held=False):
    """The row of one problem. `rng` draws the wording among the settings' first `templates`; None: the first.

    `held`: a held-out wording.
    """
    given, target = teacher.problem(count, seed, index)
    wordings = HELD_TEMPLATES if held else TEMPLATES[: settings["templates"]]
    number = index % len(wordings) if held else rng.randrange(len(wordings)) if rng else 0
    text = wordings[number].format(numbers=", ".join(map(str, given)), target=target)
    for name, notes in (("calc", CALC_NOTES), ("ask", ASK_NOTES)):
        if name in settings["tool"].split("+"):
            text += "\n" + notes[rng.randrange(len(notes)) if rng and settings["templates"] > 1 else 0]
    row = {
        "id": f"countdown-{count}-{index}" + ("-held" if held else ""), "task": f"countdown-{count}", "source_name": f"{count}-{index}",
        "label": teacher.solve(given, target)[0], "messages": [{"role": "user", "content": text}], "images": [],
        "numbers": given, "target": target, "tool": settings["tool"], "judge": settings["judge"], "max_new": settings["max_new"],
        "template": f"{'held' if held else 'train'}-{number}",
    }  # fmt: skip
    return row | ({"expert": settings["expert"]} if settings["expert"] else {})


def share_out(size, counts):
    """`size` rows over the kinds of problem, as evenly as it goes."""
    return {count: size // len(counts) + (position < size % len(counts)) for position, count in enumerate(counts)}


def demonstration(row):
    """(text, injected) for the cold start. With the expert, every fifth hard question meets a wrong reply first, and asks again."""
    replies = ()
    if "ask" in row["tool"]:
        right, _ = teacher.solve(row["numbers"], row["target"])
        doubted = expert.draw(row["id"], "demonstration") < 0.2
        replies = (teacher.near_miss(row["numbers"], row["target"]), right) if doubted else (right,)
    return teacher.demonstrate(row["numbers"], row["target"], row["tool"] != "none", replies)


def distilled(rows, records):
    """SFT rows of a model's own right answers, the first one of each question (self-distillation, seed 004, section 3.7).

    records: lines of trajectories.jsonl. Turns with injected results keep them in `inline`.
    """
    by_id, out = {row["id"]: row for row in rows}, {}
    for record in records:
        row = by_id.get(record["id"])
        if (
            row
            and row["id"] not in out
            and record["parts"].get("correct") == 1
            and record["finish_reason"] == "answer"
            and len(record["turns"]) == 1
        ):
            turn = record["turns"][0]
            text = turn["text"] if turn["text"].startswith("<think>") else f"<think>\n{turn['text']}"
            out[row["id"]] = row | {"messages": [*row["messages"], {"role": "assistant", "content": text, "inline": turn["inline"]}]}
    return [out[row["id"]] for row in rows if row["id"] in out]


def prepare_sft(args):
    """sft/: the program teacher's demonstrations, or a model's own right answers (`distil`: an evaluation's folder, on bench_rl_train)."""
    from datafiles import fresh_folder, split_sources, write_json
    from runs import stream_trajectories

    settings, root = options(args), Path(args.output) / "countdown"
    if getattr(args, "distil", None):
        questions, played = root / "rl" / "bench_rl_train.jsonl", Path(args.distil) / "trajectories.jsonl"
        if not played.is_file():
            raise SystemExit(f"--distil {args.distil}: no trajectories.jsonl there; it is an --output folder of eval.py")
        if not questions.is_file():
            raise SystemExit(f"--distil {args.distil}: its questions are not in {questions}; write them before, with prepare_data.py bench --task countdown")
        rows = distilled(read_jsonl(questions), stream_trajectories(played))
        if not rows:
            raise SystemExit(f"--distil {args.distil}: no right answer to a question of {questions}")
    else:
        rng, rows = random.Random(f"{args.seed}-sft-words"), []
        for count, size in share_out(args.sft_size, settings["counts"]).items():
            rows += [make_row(count, i, args.seed, settings, rng) for i in teacher.pool_indices(count, args.seed, size, "sft")]
        for row in rows:
            text, injected = demonstration(row)
            row["messages"] = [*row["messages"], {"role": "assistant", "content": text, "inline": injected}]
    held = split_sources([row["source_name"] for row in rows], args.val_fraction, args.seed)
    parts = {"train": [row for row in rows if row["source_name"] not in held], "val": [row for row in rows if row["source_name"] in held]}
    random.Random(args.seed).shuffle(parts["train"])
    with fresh_folder(root / "sft", "sft_stats.json") as folder:
        for name, part in parts.items():
            write_jsonl(folder / f"sft_{name}.jsonl", part)
        write_json(
            folder / "sft_stats.json", {"rows": {name: len(part) for name, part in parts.items()}, "settings": settings, "seed": args.seed}
        )


def prepare_bench(args):
    """rl/: bench_rl_train (pool), bench_dev, bench_test (held-out questions, at most 100 of a kind), bench_test_heldout (other wordings)."""
    from datafiles import at_most, fresh_folder, write_json

    settings, rng = options(args), random.Random(f"{args.seed}-bench-words")
    parts = {name: [] for name in ("bench_rl_train", "bench_dev", "bench_test", "bench_test_heldout")}
    there = lambda place: len(range(*place)) * len(settings["counts"])
    dev, test = at_most("--dev-size", args.dev_size, there(teacher.DEV)), at_most("--test-size", args.test_size, there(teacher.HELD_OUT))
    sizes = [share_out(size, settings["counts"]) for size in (args.train_size, dev, test)]
    for count in settings["counts"]:
        train, dev, test = (size[count] for size in sizes)
        pool = teacher.pool_indices(count, args.seed, train, "train")
        parts["bench_rl_train"] += [make_row(count, i, args.seed, settings, rng) for i in pool]
        parts["bench_dev"] += [make_row(count, i, args.seed, settings) for i in list(range(*teacher.DEV))[:dev]]
        for i in list(range(*teacher.HELD_OUT))[:test]:
            parts["bench_test"].append(make_row(count, i, args.seed, settings))
            parts["bench_test_heldout"].append(make_row(count, i, args.seed, settings, held=True))
    random.Random(args.seed).shuffle(parts["bench_rl_train"])
    keys = {name: {teacher.key(row["numbers"], row["target"]) for row in part} for name, part in parts.items()}
    assert not keys["bench_rl_train"] & (keys["bench_dev"] | keys["bench_test"]), "a question of the pool is held out too"
    with fresh_folder(Path(args.output) / "countdown" / "rl", "bench_stats.json") as folder:
        for name, part in parts.items():
            write_jsonl(folder / f"{name}.jsonl", part)
        write_json(folder / "bench_stats.json", {
            "rows": {name: len(part) for name, part in parts.items()}, "floors": {name: floors(part) for name, part in parts.items()},
            "pool": teacher.POOL, "dev": teacher.DEV, "held_out": teacher.HELD_OUT, "train_and_held_out_share": 0,
            "settings": settings, "seed": args.seed,
        })  # fmt: skip
