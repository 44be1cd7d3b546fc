"""The ledger of experiments: what was asked, what was predicted, what came out. Each experiment is one runnable script under experiments/.

    python analysis.py ledger experiments/                # all of them, as a table and, below it, what was learnt
    python ledger.py record experiments/fund/03_ngrpo.sh --model models/tiny-fund --arm off outputs/a-1 outputs/a-2 --arm on outputs/b-1 outputs/b-2 \\
        --runs off runs/a-1 runs/a-2 --runs on runs/b-1 runs/b-2                       # what a script does at its end

A script states at its top, one line each: `# question:`, `# varies:`, `# prediction:`, `# seed:` (what the source document found), and
`# expect: MEASURE FIRST SECOND > 0.03` (or `<`; the arms by name), which makes the prediction checkable. At its end stands the block that its
own run fills in, one line of JSON a model:

    # RESULT {"model": ..., "commit": ..., "arms": {"off": {"tool": {"value", "low", "high", "n"}, "seeds": ...}}, "verdict": "≈", ...}

Experiments that are too unlike for that (several tables, several claims) tell what came out in words: `# question:`, `# varies:`, `# prediction:`,
`# measured:` and `# reconciled:` with a ✓, ≈ or ✗ before each finding.

verdict on the claim: ✓ the 95 % interval of the difference SECOND - FIRST lies wholly on its side of the bound, and so does each seed's own difference;
✗ all of them on the other side; ≈ neither, so that nothing is decided. Intervals are bootstraps over rows with the seeds' answers of a row together:
they say how sure the difference is for these seeds, not for others. Two runs that differ in nothing but the seed may lie twenty points apart, which no
number of rows brings to light: so seeds that disagree decide nothing, and each one's value is shown.

Measures of evaluations: tool, tool:CATEGORY, reasoning, reward, request (whole requests). Of training runs: zero_std, the mean share of flat groups,
and silent, that of groups without a gradient: a virtual full mark (NGRPO) makes the two differ.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

import numpy as np

import metrics
import runs
from records import read_jsonl

STEPS = {"zero_std": "frac_reward_zero_std", "silent": "frac_groups_silent"}  # measures of training runs
ASKED = ("question", "varies", "prediction")
CLAIMED, TOLD = (*ASKED, "seed", "expect"), (*ASKED, "measured", "reconciled")  # what must stand at the top: one or the other
FIELDS = tuple(dict.fromkeys((*CLAIMED, *TOLD, "learnt")))
EXPECT = re.compile(r"(\S+) (\S+) (\S+) ([<>]) (-?[\d.]+)")


# ---------------------------------------------------------------- reading


def read_script(path):
    """{path, results: [dict], and the FIELDS that are there} of an experiment; SystemExit if one that must be there is not."""
    entry = {"path": Path(path), "results": []}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if found := re.match(rf"# ({'|'.join(FIELDS)}): *(.+)", line):
            entry[found[1]] = (entry[found[1]] + " " if found[1] in entry else "") + found[2].strip()
        elif line.startswith("# RESULT "):
            try:
                entry["results"].append(json.loads(line.removeprefix("# RESULT ")))
            except ValueError as error:
                raise SystemExit(f"{path}, line {number}: the result is no JSON ({error}); take the line out and run the script again") from None
    missing = [name for name in (TOLD if "measured" in entry else CLAIMED) if name not in entry]
    if missing:
        raise SystemExit(f"{path}: no line '# {missing[0]}: ...' at its top")
    if "expect" in entry and not EXPECT.fullmatch(entry["expect"]):
        raise SystemExit(f"{path}: # expect: {entry['expect']}: MEASURE FIRST SECOND > NUMBER, as in: tool off on > 0.03")
    return entry


def find_scripts(folder):
    """The scripts that ask something: others are what they share."""
    found = sorted(path for path in Path(folder).rglob("*.sh") if re.search("^# question:", path.read_text(encoding="utf-8"), re.M))
    if not found:
        raise SystemExit(f"{folder}: no experiments there (scripts with a line '# question: ...')")
    return found


def table_lines(entry, name):
    """The lines of one experiment in the table, one a model."""
    if "expect" not in entry:
        run = not entry["measured"].startswith("not run")
        verdict = ", ".join(re.findall("[✓≈✗]", entry["reconciled"])) or "-"
        return [f"| {name} | - | told below | {'told below' if run else 'not run'} | - | {verdict} |"]
    measure, first, second, sign, bound = EXPECT.fullmatch(entry["expect"]).groups()
    claim, lines = f"{measure}: {second} - {first} {sign} {float(bound):g}", []
    for result in entry["results"]:
        change = result["difference"]
        measured = f"{change['value']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}], n={change['n']}"
        each = ", ".join(f"{change:+.3f}" for change in seed_changes(result["arms"], measure, first, second))
        lines.append(f"| {name} | {Path(result['model']).name} | {claim} | {measured} | {each} | {result['verdict']} |")
    return lines or [f"| {name} | - | {claim} | not run | - | - |"]


def show(folder):
    """The ledger as text: Markdown table, then question, prediction and lesson of each."""
    entries, out = [read_script(path) for path in find_scripts(folder)], []
    out.append("| experiment | model | expected | measured | each seed | verdict |\n|---|---|---|---|---|---|")
    for entry in entries:
        out += table_lines(entry, entry["path"].relative_to(folder).with_suffix("").as_posix())
    for entry in entries:
        out.append(f"\n{entry['path']}")
        out += [f"  {name:11}{entry[name]}" for name in FIELDS if name in entry]
        for result in entry["results"]:
            out.append(f"  {Path(result['model']).name}, commit {result['commit']}, seeds {result['seeds']}: {result['verdict']}")
            for arm, values in result["arms"].items():
                out.append(f"    {arm:11}" + "  ".join(f"{name} {part['value']:.3f} [{part['low']:.3f}, {part['high']:.3f}] n={part['n']} ({', '.join(f'{x:.3f}' for x in part['each'])})"
                                                        for name, part in values.items()))  # fmt: skip
    return "\n".join(out)


# ---------------------------------------------------------------- recording


def values_of(output, measure):
    """{row id: [value per sample]} of an evaluation. Ambiguous rows are left out; so are failed trajectories."""
    kind, _, category = measure.partition(":")
    config = json.loads((Path(output) / "config.json").read_text(encoding="utf-8"))
    rows, found = {row["id"]: row for row in read_jsonl(config["flags"]["data"])}, {}
    for record in runs.stream_jsonl(Path(output) / "trajectories.jsonl"):
        row = rows[record["id"]]
        if record["finish_reason"] in ("error", "timeout") or row.get("ambiguous") or (category and row["task"] != category):
            continue
        request = row.get("kind") == "request"
        if request != (kind == "request") and kind != "reward":
            continue
        value = {"tool": record["parts"].get("correct", 0), "request": record["parts"].get("correct", 0), "reward": record["reward"],
                 "reasoning": float(record["parts"].get("thought", 0) > 0)}[kind]  # fmt: skip
        found.setdefault(record["id"], []).append(float(value))
    return found


def pool(outputs, measure):
    """{row id: values of all seeds}, and the mean of each seed."""
    parts = [values_of(output, measure) for output in outputs]
    together = {key: [value for part in parts for value in part.get(key, [])] for key in dict.fromkeys(key for part in parts for key in part)}
    return together, [float(np.mean([value for values in part.values() for value in values])) for part in parts if part]


def mean_report(values, each, share):
    value, low, high = metrics.mean_interval([np.mean(row) for row in values.values()], share=share)
    return {"value": value, "low": low, "high": high, "n": sum(map(len, values.values())), "each": each}


def steps_report(folders, key):
    """Mean over the steps of training runs, None if they don't tell; the interval resamples steps, which are not independent of one another: read it as a hint."""
    logs = [[line[key] for line in read_jsonl(Path(folder) / "metrics.jsonl") if key in line] for folder in folders]
    if not all(logs):
        return None
    value, low, high = metrics.mean_interval([value for log in logs for value in log])
    return {"value": value, "low": low, "high": high, "n": sum(map(len, logs)), "each": [float(np.mean(log)) for log in logs]}


def seed_changes(result, measure, first, second):
    """SECOND - FIRST of each seed; an arm that was run once (raw, sft) stands against every seed of the other."""
    before, after = (result[name][measure]["each"] for name in (first, second))
    return [b - a for a, b in zip(before * (len(after) if len(before) == 1 else 1), after * (len(before) if len(after) == 1 else 1))]


def verdict(change, each, sign, bound):
    above = min(change["low"], *each) > bound
    below = max(change["high"], *each) < bound
    return "≈" if above == below else "✓" if above == (sign == ">") else "✗"


def origin(folders, commit=None):
    """(commit, day) of what was run, from its config.json: what it was recorded with may be another. `commit`: of folders that don't tell, as a copy without
    .git makes them. Several commits are all named."""
    configs = [json.loads(path.read_text(encoding="utf-8")) for folder in folders if (path := Path(folder) / "config.json").exists()]
    told = sorted({((config.get("git") or {}).get("commit") or commit or "unknown")[:10] for config in configs})
    return ", ".join(told), max((config.get("started") or "" for config in configs), default="")[:10] or "unknown"


def record(script, model, arms, run_arms, extra=(), commit=None):
    """Measure, judge, and write the script's RESULT line of this model. Returns it."""
    entry = read_script(script)
    measure, first, second, sign, bound = EXPECT.fullmatch(entry["expect"]).groups()
    wanted = list(dict.fromkeys([*([measure] if measure != "zero_std" else []), "tool", *extra]))
    if absent := [name for name in (first, second) if name not in (run_arms if measure == "zero_std" else arms)]:
        raise SystemExit(f"{script}: # expect: names the arm {absent[0]!r}; there are {', '.join(arms)}")
    pooled = {arm: {name: pool(outputs, name) for name in wanted} for arm, outputs in arms.items()}
    result = {arm: {name: mean_report(*part, name != "reward") for name, part in parts.items() if part[0]} for arm, parts in pooled.items()}
    for arm, folders in run_arms.items():
        result.setdefault(arm, {}).update({name: report for name, key in STEPS.items() if (report := steps_report(folders, key))})
    if measure == "zero_std":
        logs = [[line["frac_reward_zero_std"] for folder in run_arms[name] for line in read_jsonl(Path(folder) / "metrics.jsonl")] for name in (first, second)]
        pairs = {index: pair for index, pair in enumerate(zip(*logs))}
        changes = [b - a for a, b in pairs.values()]
    else:
        before, after = (pooled[name][measure][0] for name in (first, second))
        changes = [np.mean(after[key]) - np.mean(before[key]) for key in before if key in after]
    value, low, high = metrics.mean_interval(changes)
    change = {"value": value, "low": low, "high": high, "n": len(changes)}
    made, day = origin([folder for folders in (*arms.values(), *run_arms.values()) for folder in folders], commit)
    line = {"model": str(model), "commit": made, "seeds": max(map(len, arms.values())), "arms": result, "difference": change,
            "verdict": verdict(change, seed_changes(result, measure, first, second), sign, float(bound)), "when": day}  # fmt: skip
    rounded = json.loads(json.dumps(line), parse_float=lambda text: round(float(text), 4))
    write_result(Path(script), rounded)
    return rounded


def write_result(path, result):
    """Put the line in place of the one of the same model, or at the end. By renaming: bash goes on reading the file that it opened."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines()
             if not (line.startswith("# RESULT ") and json.loads(line.removeprefix("# RESULT "))["model"] == result["model"])]  # fmt: skip
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("\n".join([*lines, "# RESULT " + json.dumps(result, ensure_ascii=False)]) + "\n", encoding="utf-8")
    os.chmod(temporary, path.stat().st_mode)
    os.replace(temporary, path)


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("show", allow_abbrev=False).add_argument("folder", type=Path)
    sub = commands.add_parser("record", allow_abbrev=False)
    sub.add_argument("script", type=Path)
    sub.add_argument("--model", required=True)
    sub.add_argument("--arm", action="append", nargs="+", required=True, metavar="NAME OUTPUT", help="an arm: its name and its evaluations, one a seed")
    sub.add_argument("--runs", action="append", nargs="+", default=[], metavar="NAME RUN", help="the training runs of an arm, one a seed")
    sub.add_argument("--also", action="append", default=[], metavar="MEASURE", help="measures beside tool and that of # expect")
    sub.add_argument("--commit", help="that was run, where the folders don't tell (their config.json has no git)")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    if args.command == "show":
        print(show(args.folder))
        return
    named = [{name: folders for name, *folders in given} for given in (args.arm, args.runs)]
    result = record(args.script, args.model, *named, args.also, args.commit)
    change = result["difference"]
    print(f"{args.script.stem}: {change['value']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}], n={change['n']}, {result['verdict']}")


if __name__ == "__main__":
    sys.exit(main())
