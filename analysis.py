"""Stage 5: run folders and evaluation folders -> curves, comparisons, paired tests, tables and a trajectory viewer.

    python analysis.py curves runs/spec-o3-rl                                 # metrics.jsonl -> curves.png, curves.pdf
    python analysis.py compare outputs/base outputs/sft outputs/rl --published    # four panels with intervals
    python analysis.py paired outputs/sft outputs/rl                          # is the difference more than chance?
    python analysis.py solved outputs/sft outputs/rl                          # which rows each solves within 1, 8, 64 samples
    python analysis.py cross outputs/sft-r1 outputs/sft-neutral outputs/rl-r1 outputs/rl-neutral    # models against data sets or wordings
    python analysis.py table outputs/base outputs/sft outputs/rl              # Markdown
    python analysis.py show outputs/sft outputs/rl                            # each one's report once more, as eval.py printed it
    python analysis.py ledger experiments/                                    # every experiment: question, prediction, finding, verdict
    python analysis.py report outputs/rl                                      # report.html, one file that needs no server

Everything is read from the folders; nothing is typed in here. `--published` adds the five rows of the published chapter, which are data
too (tasks/spec_o3_published.json). Intervals are 95 %: Wilson for shares, bootstrap over rows for F1 and for several samples a row.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

import numpy as np

import comparing
import ledger
import metrics
import runs
from comparing import read_output
from protocol import read_jsonl
from tables import markdown, print_table
from viewer import write_report

ROOT = Path(__file__).resolve().parent
PUBLISHED = ROOT / "tasks" / "spec_o3_published.json"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito: told apart by all eyes
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#808080", "axes.linewidth": 0.8,
         "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.grid": True, "grid.color": "#e4e4e4",
         "grid.linewidth": 0.8, "axes.axisbelow": True, "xtick.color": "#404040", "ytick.color": "#404040", "legend.frameon": False,
         "savefig.dpi": 160, "figure.constrained_layout.use": True, "pdf.fonttype": 42}
PANELS = (("accuracy", "Accuracy (%)"), ("macro_f1", "Macro F1 (%)"), ("format_rate", "Strict format (%)"), ("correct", "Correct answers"))


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, text, metavar, nargs):
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.add_argument("folders", type=Path, nargs=nargs, metavar=metavar)
        return sub

    curves = command("curves", "draw the metrics of training runs", "RUN", "+")
    curves.add_argument("--keys", help="names of metrics with commas, * for any text (default: the twelve that matter most)")
    curves.add_argument("--smooth", type=runs.number(int, 0), default=0, help="steps of the running mean (default: 1/25 of the run)")
    compare = command("compare", "draw accuracy, Macro F1, format and correct answers of evaluations", "OUTPUT", "*")
    table = command("table", "print a Markdown table of evaluations", "OUTPUT", "*")
    for sub in (compare, table):
        sub.add_argument("--published", action="store_true", help="add the five results of the published chapter")
    for sub in (curves, compare):
        sub.add_argument("--save", type=Path, help="path without ending, for .png and .pdf (default: in or beside the first folder)")
    for sub in (curves, compare, table):
        sub.add_argument("--names", help="names to show instead of the folders', with commas")
    command("show", "print the reports of evaluations once more, as eval.py did", "OUTPUT", "+")
    command("ledger", "print the experiments of a folder: question, prediction, what was measured, verdict", "FOLDER", 1)
    command("paired", "compare two evaluations on the rows that both have", "OUTPUT", 2)
    solved = command("solved", "compare the sets of rows that two evaluations solve within k samples", "OUTPUT", 2)
    solved.add_argument("--pass-at", metavar="K,K", help="these k (default: 1, 8, 64 as far as there are samples, and all samples)")
    cross = command("cross", "print models against data sets or wordings: one evaluation a cell", "OUTPUT", "+")
    cross.add_argument("--by-task", action="store_true", help="columns are the kinds of rows within each evaluation, not its file")
    report = command("report", "write the trajectories of an evaluation or a run as one HTML file", "FOLDER", 1)
    report.add_argument("--limit", type=runs.number(int, 0), default=1000, help="trajectories, taken evenly; 0 = all (default: 1000)")
    report.add_argument("--save", type=Path, help="file to write (default: FOLDER/report.html)")
    args = parser.parse_args(argv)
    if args.command in ("compare", "table") and not args.folders and not args.published:
        parser.error("name at least one OUTPUT, or --published")
    names = args.names.split(",") if getattr(args, "names", None) else [folder.resolve().name for folder in args.folders]
    if len(names) != len(args.folders):
        parser.error(f"--names has {len(names)} names for {len(args.folders)} folders")
    args.names = names
    try:
        args.pass_at = sorted({runs.number(int, 1)(k) for k in args.pass_at.split(",")}) if getattr(args, "pass_at", None) else []
    except argparse.ArgumentTypeError as error:
        parser.error(f"--pass-at {args.pass_at!r}: whole numbers from 1 with commas, as in 1,8 ({error})")
    return args


# ---------------------------------------------------------------- reading


def output_row(name, report):
    """One line of comparisons: {name, count, accuracy..., macro_f1..., format_rate..., correct...}, each with _low and _high or None."""
    row = {"name": name, "published": False, "report": report}
    share = report["score"]["of_played"]  # tasks without an accuracy of their own have this
    fallback = {"accuracy": share["value"], "accuracy_low": share["low"], "accuracy_high": share["high"]}
    for key in ("accuracy", "macro_f1", "format_rate"):
        for suffix in ("", "_low", "_high"):
            row[key + suffix] = report.get(key + suffix, fallback.get(key + suffix))
    row["count"] = report.get("count") or share.get("samples", share["n"])
    return add_correct(row)


def partial(row):
    """" (1 of 2 tasks)" where Macro F1 is the mean of fewer: a task without a positive row has no F1. Else ""."""
    there, tasks = row["report"].get("macro_f1_groups"), row["report"].get("tasks")
    return f" ({there} of {len(tasks)} tasks)" if there and tasks and there < len(tasks) else ""


def add_correct(row):
    """Correct answers and their interval follow from the accuracy."""
    known = [suffix for suffix in ("", "_low", "_high") if row[f"accuracy{suffix}"] is not None]
    return row | {f"correct{suffix}": row[f"accuracy{suffix}"] * row["count"] for suffix in known}


def published_rows():
    """The published results as rows: shares with Wilson intervals from their counts, Macro F1 with none, as totals don't give one."""
    data, rows = json.loads(PUBLISHED.read_text(encoding="utf-8")), []
    for result in data["results"]:
        row = {"name": f"{result['name']} (published)", "published": True, "count": result["count"], "report": {**result, "config": {}}}
        for key, right in (("accuracy", result["correct"]), ("format_rate", result["format_ok"])):
            low, high = metrics.wilson(right, result["count"])
            row |= {key: result[key], f"{key}_low": low, f"{key}_high": high}
        rows.append(add_correct(row | {"macro_f1": result["macro_f1"], "macro_f1_low": None, "macro_f1_high": None}))
    return rows


def always_positive(rows):
    """(name, {accuracy, macro_f1}) of saying yes to everything: from the labels, or of the published split if nothing else is drawn."""
    mixed = len({str(row["report"].get("baselines")) for row in rows}) > 1  # then the line is that of one result, which is named
    for row in rows:
        for name, values in row["report"].get("baselines", {}).items():
            if name.startswith("always"):
                return name.replace("_", " ") + (f" ({row['name']})" if mixed else ""), values
    if not any(row["published"] for row in rows):
        return None
    return "always YES", json.loads(PUBLISHED.read_text(encoding="utf-8"))["dev"]["always_YES"]


def gather(args):
    rows = published_rows() if args.published else []
    return rows + [output_row(name, read_output(folder)) for name, folder in zip(args.names, args.folders)]


# ---------------------------------------------------------------- figures


def save_figure(figure, path):
    """Write path.png and path.pdf and say so."""
    import matplotlib.pyplot as plt

    runs.make_folder(path.parent, "--save")
    for ending in (".png", ".pdf"):
        figure.savefig(path.with_name(path.name + ending))
    plt.close(figure)
    print(f"{path}.png, {path}.pdf")


def start_figure(*shape, **options):
    """(figure, axes [rows, columns]) in the house style, without a window."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE)
    return plt.subplots(*shape, squeeze=False, **options)


def draw_comparison(rows, path):
    """One panel a measure, one line a result: a dot, its interval, its value; a dashed line is what yes to everything earns."""
    panels = [panel for panel in PANELS if any(row.get(panel[0]) is not None for row in rows)]
    if not panels:
        raise SystemExit("no accuracy, Macro F1 or format rate in these outputs (rows without labels have none)")
    height = 0.36 * len(rows) + 1.1
    figure, axes = start_figure(1, len(panels), figsize=(2.3 * len(panels) + 1.8, height), sharey=True)
    baseline, top, mixed = always_positive(rows), max(row["count"] for row in rows), len({row["count"] for row in rows}) > 1
    for axis, (key, title) in zip(axes[0], panels):
        scale, limit = (1, top) if key == "correct" else (100, 100)
        for line, row in enumerate(rows):
            value, low, high = (row.get(key + suffix) for suffix in ("", "_low", "_high"))
            if value is None:
                continue
            colour = "#707070" if row["published"] else COLOURS[0]
            if low is not None:
                axis.plot([low * scale, high * scale], [line, line], color=colour, linewidth=1.4, solid_capstyle="butt")
            axis.plot(value * scale, line, "o", color=colour, markersize=5, markerfacecolor="white" if row["published"] else colour)
            text = f"{value * scale:.{0 if key == 'correct' else 1}f}" + (f" / {row['count']}" if key == "correct" and mixed else "")
            text += partial(row) if key == "macro_f1" else ""
            axis.annotate(text, (value * scale, line), (0, 5), textcoords="offset points", ha="center", va="bottom", fontsize=7.5,
                          color=colour, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4})
        if baseline and baseline[1].get(key) is not None:
            axis.axvline(100 * baseline[1][key], color=COLOURS[1], linewidth=1, linestyle=(0, (4, 3)), zorder=0)
            axis.annotate(baseline[0], (100 * baseline[1][key], len(rows) - 0.42), (3, 0), textcoords="offset points", va="center",
                          fontsize=7, color=COLOURS[1])
        axis.set_title(title if key != "correct" or mixed else f"{title} of {top}")
        axis.set_xlim(-0.03 * limit, 1.03 * limit)
        axis.set_ylim(len(rows) - 0.2, -0.7)
        axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
    save_figure(figure, path)


def choose_keys(logs, wanted):
    """The metrics to draw: those asked for, or up to twelve, rewards and losses first."""
    lines = [line for log in logs for line in log]
    keys = list(dict.fromkeys(key for line in lines for key in line if isinstance(line[key], (int, float)) and key not in ("step", "time")))
    if wanted:
        patterns = [re.escape(word.strip()).replace(r"\*", ".*") for word in wanted.split(",")]
        chosen = [key for pattern in patterns for key in keys if re.fullmatch(pattern, key)]
        if not chosen:
            raise SystemExit(f"--keys {wanted}: no such metric; there are {', '.join(keys) or 'none'}")
        return list(dict.fromkeys(chosen))
    order = ("reward", "loss", "accuracy", "correct", "f1", "format", "zero_std", "degenerate", "kl", "entropy", "clip", "ratio", "turns",
             "tool", "tokens", "length", "grad", "gap", "diff", "lr")
    rank = lambda key: next((i for i, word in enumerate(order) if word in key.lower()), len(order))
    constant = {key for key in keys if len({line[key] for line in lines if line.get(key) is not None}) < 2}
    return sorted([key for key in keys if not key.startswith("time") and key not in constant] or keys, key=rank)[:12]


def running_mean(values, width):
    """Mean over `width` values around each one, fewer at both ends."""
    sums, places = np.concatenate([[0.0], np.cumsum(values)]), np.arange(len(values))
    low, high = np.maximum(0, places - (width - 1) // 2), np.minimum(len(values), places + width // 2 + 1)
    return (sums[high] - sums[low]) / (high - low)


def read_metrics(path):
    """The lines of a run's metrics.jsonl."""
    lines = read_jsonl(path, partial=True)
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise SystemExit(f"{path}, line {number}: not as a training run writes it (an object with step)")
    return lines


def draw_curves(folders, names, path, wanted=None, smooth=0):
    """One panel a metric, one colour a run: the values, pale, and their running mean."""
    logs = [read_metrics(folder / "metrics.jsonl") for folder in folders]
    keys = choose_keys(logs, wanted)
    if not keys:
        raise SystemExit(f"{folders[0]}: metrics.jsonl has no numbers yet")
    columns = 2 if len(keys) == 4 else min(3, len(keys))
    lines = -(-len(keys) // columns)
    figure, axes = start_figure(lines, columns, figsize=(3.1 * columns, 2.0 * lines + 0.4), sharex=True)
    for axis, key in zip(axes.flat, keys):
        for log, name, colour in zip(logs, names, COLOURS * (1 + len(logs) // len(COLOURS))):
            points = [(line["step"], line[key]) for line in log if isinstance(line.get(key), (int, float))]
            if not points:
                continue
            steps, values = np.array(points, dtype=float).T
            width = smooth or max(1, len(values) // 25)
            if width > 1:
                axis.plot(steps, values, color=colour, linewidth=0.7, alpha=0.3)
            mark = "o-" if len(values) < 3 else "-"  # one value alone would be invisible
            axis.plot(steps, running_mean(values, width), mark, color=colour, linewidth=1.5, markersize=3, label=name)
        axis.set_title(key)
        axis.margins(x=0.02)
    for axis in axes.flat[len(keys):]:
        axis.set_visible(False)
    for axis in axes.flat[max(0, len(keys) - columns) : len(keys)]:  # the lowest panel of each column carries the label
        axis.set_xlabel("step")
        axis.tick_params(labelbottom=True)
    if len(logs) > 1:
        handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=min(4, len(handles)))
    save_figure(figure, path)


# ---------------------------------------------------------------- tables


def markdown_table(rows):
    """Accuracy, Macro F1, format, correct, turns and tool calls of each result, with intervals; the always-yes baseline last."""

    def cell(row, key):
        low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
        return "-" if row.get(key) is None else f"{100 * row[key]:.1f}" + ("" if low is None else f" [{100 * low:.1f}, {100 * high:.1f}]")

    columns = ("Result", "Accuracy %", "Macro F1 %", "Format %", "Correct", "Turns", "Tool calls (good)", "Failed", "Tokens a turn")
    lines = [columns]
    for row in rows:
        report, settings = row["report"], row["report"]["config"].get("settings", {})
        correct = "-" if row.get("correct") is None else f"{row['correct']:.0f} / {row['count']}"
        turns = "-" if report.get("mean_turns") is None else f"{report['mean_turns']:.2f}"
        calls = f"{report.get('tool_calls', '-')} ({report.get('tool_successes', '-')})"
        budget = settings.get("max_tokens", report.get("max_tokens", "-"))
        shares = [cell(row, key) + (partial(row) if key == "macro_f1" else "") for key in ("accuracy", "macro_f1", "format_rate")]
        lines.append((row["name"], *shares, correct, turns, calls, report.get("n_error", "-"), budget))
    baseline = always_positive(rows)
    if baseline:
        lines.append((f"baseline: {baseline[0]}", cell(baseline[1], "accuracy"), cell(baseline[1], "macro_f1"), *["-"] * 6))
    return markdown(lines)


def run_command(args):
    first = args.folders[0] if args.folders else Path("outputs") / "published"
    if args.command == "curves":
        draw_curves(args.folders, args.names, args.save or first / "curves", args.keys, args.smooth)
    elif args.command == "compare":
        draw_comparison(gather(args), args.save or first.parent / "comparison")
    elif args.command == "table":
        print(markdown_table(gather(args)))
    elif args.command == "paired":
        comparing.paired(*args.folders)
    elif args.command == "solved":
        comparing.solved(*args.folders, args.pass_at)
    elif args.command == "cross":
        comparing.cross(args.folders, args.by_task)
    elif args.command == "show":
        for folder in args.folders:
            print(f"\n{folder}")
            print_table(read_output(folder))
    elif args.command == "ledger":
        print(ledger.show(first))
    else:
        write_report(first, args.save or first / "report.html", args.limit)


def main(argv=None):
    args = parse_args(argv)
    try:
        run_command(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has; Python would complain once more when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
