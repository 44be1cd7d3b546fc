"""Grade-school word problems with a number as the answer (GSM8K; seed 004, section 3.4: GRPO with a reward of 0 or 1 and nothing else).

    python prepare_data.py all --task gsm8k                                     # openai/gsm8k from the hub
    python prepare_data.py all --task gsm8k --bench-source ../shared/data       # a folder with gsm8k_train.jsonl, gsm8k_test.jsonl: no hub

Nothing is paid for form: that answers come to end in `#### number` is a finding (56 % to 97 % in the seed), read by `metrics` and not by
`reward`. The test questions are kept in two parts: [0:200] is looked at during training and used for choices (bench_dev), [200:500] never
(bench_test). The seed chose a checkpoint and scored it on the same 200 questions, and its score was 2 points too high.

Every question exists with two prompts: `r1` (thoughts and answer in tags) and `neutral`. A gain under one prompt only is a habit bound to
it (seed 004, section 3.5: after RL on Countdown the R1 prompt lost .36 and the neutral one .13).

Rows: id, task ("gsm8k"), source_name ("train-17"), label (the number as text), prompt ("r1" or "neutral"), messages, solution.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from protocol import Observation, read_jsonl, write_jsonl

TOOLS = None
ANSWER = re.compile(r"(.+)", re.DOTALL)  # whatever is written is an answer; `read_number` finds the number in it
HUB = ("openai/gsm8k", "main")
SLICES = {"dev": (0, 200), "test": (200, 500)}  # of the test split
NUMBER = re.compile(r"(?:(?<![0-9])-)?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)")  # 3-4 is two numbers, not 3 and -4
HASH_MARK = re.compile(r"####[^#\n]*[0-9][^#\n]*\s*\Z")  # a last line that begins with #### and has a number
LABELLED = True  # a row without a label can be answered, not rewarded
PROMPTS = {
    "r1": "Solve the problem. Think first, inside <think> and </think>; then give the number, and nothing else, "
    "inside <answer> and </answer>."
    "\n\nProblem: {question}",
    "neutral": "{question}\n\nReason step by step. Write the final number on the last line, after ####.",
}


@dataclass
class Episode:
    """One question, one turn."""

    messages: list
    tools: None = None

    def step(self, action):
        return Observation(done=True)


def check_row(row):
    """What is wrong with a row, or ""."""
    if row.get("prompt") not in PROMPTS:
        return f"prompt {row.get('prompt')!r}: there are {', '.join(PROMPTS)}"
    return "" if row.get("label") is None or as_number(str(row["label"])) is not None else f"label {row['label']!r} is no number"


def start(row, folder):
    return Episode(row["messages"])


# ---------------------------------------------------------------- the one reading of an answer


def as_number(text):
    """The exact value of "1,234.50", "$18" or "-3"; None if it is no number."""
    try:
        return Fraction(text.replace(",", "").replace("$", "").rstrip("."))
    except (ValueError, ZeroDivisionError):
        return None


def read_number(text):
    """The number that an answer ends with, by the seed's rule: what follows the last `####`, else the last number of the text.

    Where there is an <answer> block after the thoughts, only that block is read. Numbers of more than 40 characters are none.
    """
    body = text.rsplit("</think>", 1)[-1]
    blocks = re.findall(r"<answer>((?:(?!</?answer>).)*)</answer>", body, re.DOTALL)
    body = blocks[-1] if blocks else body
    _, mark, tail = body.rpartition("####")
    found = NUMBER.findall(tail)
    if not found or any(len(number) > 40 for number in found):
        return None
    number = found[0] if mark else found[-1]
    return number.replace("$", "").replace(",", "")


def predict(trajectory):
    """The number that counts, as text. Only a finished turn has one: the last number of a text that was cut off is an accident."""
    return read_number(trajectory.prediction) if trajectory.finish_reason == "answer" and trajectory.prediction else None


def same(prediction, label):
    """Equal as numbers: 18, 18.0 and 18.00 are one answer."""
    first, second = as_number(prediction or ""), as_number(label)
    return first is not None and first == second


def reward(row, trajectory):
    """1 if the number is right, else 0; None if the episode failed or there is no label."""
    if trajectory.finish_reason in ("error", "timeout") or row.get("label") is None:
        return None, {}
    correct = float(same(predict(trajectory), row["label"]))
    return correct, {"correct": correct}


def full_reward(row):
    """What `gold` must earn."""
    return 1.0


def metrics(rows, trajectories):
    """Accuracy with its interval (all, and by prompt), the share that ends in ####, length, cut-offs, and the two trivial floors."""
    from metrics import share_report
    from tables import percent, share_text

    right, form, by_prompt = {}, {}, {}
    for row, t in zip(rows, trajectories):
        correct = int(same(predict(t), row["label"]))
        right.setdefault(row["id"], []).append(correct)
        by_prompt.setdefault(row["prompt"], {}).setdefault(row["id"], []).append(correct)
        form.setdefault(row["id"], []).append(int(bool(t.turns and HASH_MARK.search(t.turns[-1].text))))
    share, marks = share_report(right), share_report(form)
    labels = Counter(row["label"] for row in {row["id"]: row for row in rows}.values())
    common, count = labels.most_common(1)[0] if labels else (None, 0)
    total = sum(labels.values())
    lengths = [len(turn.text) for t in trajectories for turn in t.turns]
    by_prompt = {name: share_report(flags) for name, flags in sorted(by_prompt.items())}
    cut = sum(t.finish_reason in ("length", "max_seq_len") for t in trajectories)
    lines = [[f"prompt {name}", share_text(part)] for name, part in by_prompt.items()]
    lines.append(["ends in #### number", percent(marks["value"], marks["low"], marks["high"])])
    lines.append(["characters, cut off", f"{sum(lengths) / max(1, len(lengths)):.0f} a turn, {cut} cut off"])
    return {
        "accuracy": share["value"], "accuracy_low": share["low"], "accuracy_high": share["high"],
        "hash_mark": marks,  # the #### that nobody pays for
        "by_prompt": by_prompt,
        "lines": lines,
        "mean_characters": sum(lengths) / len(lengths) if lengths else None,
        "no_number": sum(predict(t) is None for t in trajectories),
        "cut_off": cut,
        "majority_answer": common,
        "baselines": {
            "majority": {"accuracy": count / total if total else 0.0},
            "number_of_the_question": {"accuracy": copy_floor(rows)},
        },
    }  # fmt: skip


def copy_floor(rows):
    """Accuracy expected of a player who names one of the question's own numbers at random."""
    chances = []
    for row in {row["id"]: row for row in rows}.values():
        given = NUMBER.findall(row["messages"][-1]["content"])
        chances.append(sum(same(number, row["label"]) for number in given) / len(given) if given else 0.0)
    return sum(chances) / len(chances) if chances else 0.0


# ---------------------------------------------------------------- scripted players


def demonstration(row):
    """The published solution in the form that the row's prompt asks for."""
    text = f"<think>\n{row['solution']}\n</think>\n\n"
    return text + (f"<answer>{row['label']}</answer>" if row["prompt"] == "r1" else f"#### {row['label']}")


def gold(row, folder=None):
    """Must earn full reward on every row: pieces of one turn, as a sampler would give them."""
    yield demonstration(row)


# ---------------------------------------------------------------- data


def flags(group):
    """The flags of prepare_data.py that are this task's own."""
    group.add_argument("--bench-source", type=Path, metavar="PATH",
                       help="folder with [gsm8k_]train.jsonl and [gsm8k_]test.jsonl, or one of the two files (default: openai/gsm8k)")  # fmt: skip
    group.add_argument("--prompt", default="neutral", help=f"of the training rows: {' or '.join(PROMPTS)} (default: %(default)s)")
    group.add_argument("--sft-size", type=int, default=0, help="demonstrations, validation included; 0 = all (default: 0)")
    group.add_argument("--train-size", type=int, default=0, help="questions for RL; 0 = all (default: 0)")
    for name, (low, high) in SLICES.items():
        group.add_argument(f"--{name}-size", type=int, default=high - low, help=f"the first so many of test[{low}:{high}] (default: %(default)s)")


def load_split(source, name):
    """[{question, answer}] of the split "train" or "test": from a folder, from a file or the one beside it (JSONL), or from the hub."""
    if source is None:
        from datasets import load_dataset

        try:
            return [dict(record) for record in load_dataset(*HUB, split=name)]
        except Exception as error:  # the hub's client raises its own kinds
            raise SystemExit(f"{HUB[0]}: cannot be loaded ({str(error).splitlines()[0][:200]}); give --bench-source FOLDER") from error
    source = Path(source)
    if source.is_file():  # one of the two: the name says which, and what the other is called
        base, word, ending = source.name.rpartition("test" if "test" in source.name else "train")
        if not word:
            raise SystemExit(f"--bench-source {source}: the name of a file must hold train or test; or give the folder")
        choices = [source.with_name(base + name + ending)]
    else:
        choices = [source / f"gsm8k_{name}.jsonl", source / f"{name}.jsonl"]
    path = next((path for path in choices if path.is_file()), None)
    if path is None:
        raise SystemExit(f"--bench-source {source}: no {' and no '.join(path.name for path in choices)} there")
    return read_jsonl(path)


def make_row(record, name, number, prompt, where):
    """A row of one record; stops with the place if question, answer or the final number is missing."""
    if not isinstance(record, dict) or not all(isinstance(record.get(key), str) and record[key].strip() for key in ("question", "answer")):
        raise SystemExit(f"{where}, row {number + 1}: needs question and answer, both text")
    solution, mark, final = record["answer"].rpartition("####")
    label = final.strip().replace(",", "").replace("$", "")
    if not mark or as_number(label) is None:
        raise SystemExit(f"{where}, row {number + 1}: the answer must end in '#### number', it ends in {record['answer'][-40:]!r}")
    return {
        "id": f"gsm8k-{name}-{number}-{prompt}", "task": "gsm8k", "source_name": f"{name}-{number}", "label": label, "prompt": prompt,
        "messages": [{"role": "user", "content": PROMPTS[prompt].format(question=record["question"].strip())}], "images": [],
        "solution": re.sub(r"<<[^<>]*>>", "", solution).strip(),
    }  # fmt: skip


def load_rows(args, name, prompt):
    """All rows of a split, in the published order (the slices depend on it)."""
    source = getattr(args, "bench_source", None)
    return [make_row(record, name, number, prompt, source or HUB[0]) for number, record in enumerate(load_split(source, name))]


def question_key(row):
    return re.sub(r"\W+", " ", row["messages"][0]["content"]).casefold()


def options(args):
    """(prompt of the training rows, {size: rows or None for all}), checked."""
    prompt = getattr(args, "prompt", None) or "neutral"
    if prompt not in PROMPTS:
        raise SystemExit(f"--prompt {prompt}: there are {', '.join(PROMPTS)}")
    sizes = {name: getattr(args, f"{name}_size", None) for name in ("sft", "train", *SLICES)}
    for name, size in sizes.items():
        low, top = (0, 10**6) if name not in SLICES else (1, SLICES[name][1] - SLICES[name][0])
        if size is not None and not low <= size <= top:
            raise SystemExit(f"--{name}-size {size}: a whole number from {low} to {top}")
    return prompt, {name: size or None for name, size in sizes.items()}


def prepare_sft(args):
    """sft/: the published solutions as demonstrations, sft_size of them (validation included), drawn by seed."""
    from datafiles import at_most, fresh_folder, split_sources, write_json

    prompt, sizes = options(args)
    rows = load_rows(args, "train", prompt)
    rows = random.Random(f"{args.seed}-sft").sample(rows, at_most("--sft-size", sizes["sft"] or len(rows), len(rows)))
    held = split_sources([row["source_name"] for row in rows], args.val_fraction, args.seed)
    for row in rows:
        row["messages"] = [*row["messages"], {"role": "assistant", "content": demonstration(row)}]
    with fresh_folder(Path(args.output) / "gsm8k" / "sft", "sft_stats.json") as folder:
        parts = {"train": [r for r in rows if r["source_name"] not in held], "val": [r for r in rows if r["source_name"] in held]}
        for name, part in parts.items():
            write_jsonl(folder / f"sft_{name}.jsonl", part)
        write_json(folder / "sft_stats.json", {"rows": {name: len(part) for name, part in parts.items()}, "seed": args.seed})


def prepare_bench(args):
    """rl/: bench_rl_train (train split), bench_dev (test[0:200]), bench_test (test[200:500]), the last two again with the other prompt."""
    from datafiles import at_most, fresh_folder, write_json

    prompt, sizes = options(args)
    other = next(name for name in PROMPTS if name != prompt)
    train = load_rows(args, "train", prompt)
    parts = {"bench_rl_train": random.Random(f"{args.seed}-train").sample(train, at_most("--train-size", sizes["train"] or len(train), len(train)))}
    for ending, wording in (("", prompt), (f"_{other}", other)):
        test = load_rows(args, "test", wording)
        if len(test) < SLICES["test"][1]:
            raise SystemExit(f"the test split has {len(test)} rows, the slices need {SLICES['test'][1]}: is it the file of GSM8K?")
        parts |= {f"bench_{name}{ending}": test[slice(*bounds)][: sizes[name]] for name, bounds in SLICES.items()}
    known = {question_key(row) for row in parts["bench_rl_train"]}
    shared = [row["id"] for name in ("bench_dev", "bench_test") for row in parts[name] if question_key(row) in known]
    with fresh_folder(Path(args.output) / "gsm8k" / "rl", "bench_stats.json") as folder:
        for name, part in parts.items():
            write_jsonl(folder / f"{name}.jsonl", part)
        write_json(folder / "bench_stats.json", {
            "rows": {name: len(part) for name, part in parts.items()}, "prompt": prompt, "seed": args.seed,
            "slices_of_test": SLICES, "questions_of_train_in_dev_or_test": shared,
        })  # fmt: skip
