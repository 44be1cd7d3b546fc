"""Stage 5: run folders and evaluation folders -> curves, comparisons, paired tests, tables and a trajectory viewer.

    python analysis.py curves runs/spec-o3-rl                                 # metrics.jsonl -> curves.png, curves.pdf
    python analysis.py compare outputs/base outputs/sft outputs/rl --published    # four panels with intervals
    python analysis.py paired outputs/sft outputs/rl                          # is the difference more than chance?
    python analysis.py table outputs/base outputs/sft outputs/rl              # Markdown; `ledger experiments/` prints what was asked and found
    python analysis.py report outputs/rl                                      # report.html, one file that needs no server

Everything is read from the folders; nothing is typed in here. `--published` adds the five rows of the published chapter, which are data
too (tasks/spec_o3_published.json). Intervals are 95 %: Wilson for shares, bootstrap over rows for F1 and for several samples a row.
"""

import argparse
import base64
import hashlib
import html
import json
import re
import sys
from itertools import takewhile
from pathlib import Path

import numpy as np

import ledger
import metrics
import runs
from protocol import read_jsonl

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
    command("ledger", "print the experiments of a folder: question, prediction, what was measured, verdict", "FOLDER", 1)
    command("paired", "compare two evaluations on the rows that both have", "OUTPUT", 2)
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
    return args


# ---------------------------------------------------------------- reading


def read_output(folder):
    """metrics.json of an evaluation."""
    try:
        return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    except OSError:
        begun = (folder / "trajectories.jsonl").exists()
        hint = "run eval.py again, it goes on where it stopped" if begun else "is it the --output of eval.py?"
        raise SystemExit(f"{folder}: no metrics.json; {hint}") from None
    except ValueError as error:
        raise SystemExit(f"{folder / 'metrics.json'}: not valid JSON ({error})") from None


def output_row(name, report):
    """One line of comparisons: {name, count, accuracy..., macro_f1..., format_rate..., correct...}, each with _low and _high or None."""
    row = {"name": name, "published": False, "report": report}
    share = report["score"]["of_played"]  # tasks without an accuracy of their own have this
    fallback = {"accuracy": share["value"], "accuracy_low": share["low"], "accuracy_high": share["high"]}
    for key in ("accuracy", "macro_f1", "format_rate"):
        for suffix in ("", "_low", "_high"):
            row[key + suffix] = report.get(key + suffix, fallback.get(key + suffix))
    row["count"] = report.get("count") or share["n"]
    return add_correct(row)


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

    path.parent.mkdir(parents=True, exist_ok=True)
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


def draw_curves(folders, names, path, wanted=None, smooth=0):
    """One panel a metric, one colour a run: the values, pale, and their running mean."""
    logs = [read_jsonl(folder / "metrics.jsonl", partial=True) for folder in folders]
    keys = choose_keys(logs, wanted)
    if not keys:
        raise SystemExit(f"{folders[0]}: metrics.jsonl has no numbers yet")
    columns = min(3, len(keys))
    lines = -(-len(keys) // columns)
    figure, axes = start_figure(lines, columns, figsize=(3.1 * columns, 2.0 * lines + 0.4), sharex=True)
    for axis, key in zip(axes.flat, keys):
        for log, name, colour in zip(logs, names, COLOURS * (1 + len(logs) // len(COLOURS))):
            points = [(line["step"], line[key]) for line in log if isinstance(line.get(key), (int, float)) and "step" in line]
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


# ---------------------------------------------------------------- tests and tables


def read_trajectories(folder):
    """The lines of trajectories.jsonl that were played (not failed) by eval.py, reduced to what a comparison needs."""
    path = folder / "trajectories.jsonl"
    if not path.exists():
        raise SystemExit(f"{path}: not there; is {folder} the --output of eval.py?")
    kept = []
    for record in runs.stream_jsonl(path):
        if record.get("finish_reason") not in ("error", "timeout") and "eval" in record:
            facts = {key: record["eval"].get(key) for key in ("label", "prediction", "correct")}
            kept.append({"id": record["id"], "task": record["task"], **facts})
    return kept


def paired(first, second):
    """Print and return the comparison of two evaluations (folders) on their common rows."""
    reports, sides = [read_output(folder) for folder in (first, second)], [read_trajectories(folder) for folder in (first, second)]
    flags = [{}, {}]
    for side, found in zip(sides, flags):
        for line in side:
            if line["correct"] is not None:
                found.setdefault(line["id"], []).append(line["correct"])
    labels = [{line["id"]: line["label"] for line in side} for side in sides]
    common = [key for key in flags[0] if key in flags[1]]
    if not common:
        raise SystemExit(f"{first} and {second} have no labelled row in common: a paired test needs the same rows")
    other = [key for key in common if labels[0][key] != labels[1][key]]
    if other:
        raise SystemExit(f"{first} and {second} disagree about the label of {len(other)} rows (first: {other[0]!r}): not the same data")
    result = metrics.paired_report(*flags)
    print(f"rows: {len(common)} in both, {len(flags[0]) - len(common)} only in {first}, {len(flags[1]) - len(common)} only in {second}")
    settings = [report["config"].get("settings", {}) for report in reports]
    for key in settings[0]:
        if settings[0][key] != settings[1].get(key) and key not in ("model_path", "weights_sha256"):
            print(f"note: {key} differs ({settings[0][key]} and {settings[1].get(key)}), so the difference may come from that")
    print(f"right: {100 * result['first']:.1f} % -> {100 * result['second']:.1f} %, difference {100 * result['difference']:+.1f} points "
          f"[{100 * result['low']:+.1f}, {100 * result['high']:+.1f}]")
    print(f"rows better in {first}: {result['only_first']}, in {second}: {result['only_second']}; p = {result['p']:.2g} ({result['test']})")
    if all(report.get("macro_f1") is not None for report in reports):
        result["macro_f1"] = paired_macro_f1(sides, set(common), reports[0]["positive"])
        print("Macro F1: {first:.1f} -> {second:.1f} %, difference {difference:+.1f} points [{low:+.1f}, {high:+.1f}]".format(
            **{key: 100 * value for key, value in result["macro_f1"].items()}))
    return result


def paired_macro_f1(sides, common, positive):
    """Difference of Macro F1 on the common rows with its interval: both sides see the same resampled rows."""
    counts, groups = [], []
    for side in sides:
        lines = sorted((line for line in side if line["id"] in common), key=lambda line: line["id"])
        columns = [[line[key] for line in lines] for key in ("id", "task", "label", "prediction")]
        _, groups, array = metrics.confusion_columns(*columns, positive)
        counts.append(array.reshape(len(array), -1))  # [rows, groups * 4], rows in the same order on both sides
    joined = np.concatenate(counts, axis=1)

    macro = lambda sums: metrics.group_f1(sums.reshape(*sums.shape[:-1], 2, len(groups), 4))[1]  # [..., 2 * groups * 4] -> [..., 2]
    value, draws = macro(joined.sum(axis=0)), macro(metrics.bootstrap_sums(joined))  # [2], [resamples, 2]
    low, high = metrics.interval(draws[:, 1] - draws[:, 0])
    return {"first": float(value[0]), "second": float(value[1]), "difference": float(value[1] - value[0]), "low": low, "high": high}


def markdown_table(rows):
    """Accuracy, Macro F1, format, correct, turns and tool calls of each result, with intervals; the always-yes baseline last."""

    def cell(row, key):
        low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
        return "-" if row.get(key) is None else f"{100 * row[key]:.1f}" + ("" if low is None else f" [{100 * low:.1f}, {100 * high:.1f}]")

    columns = ("Result", "Accuracy %", "Macro F1 %", "Format %", "Correct", "Turns", "Tool calls (good)", "Failed", "Tokens a turn")
    lines = [columns, ("---",) * len(columns)]
    for row in rows:
        report, settings = row["report"], row["report"]["config"].get("settings", {})
        correct = "-" if row.get("correct") is None else f"{row['correct']:.0f} / {row['count']}"
        turns = "-" if report.get("mean_turns") is None else f"{report['mean_turns']:.2f}"
        calls = f"{report.get('tool_calls', '-')} ({report.get('tool_successes', '-')})"
        budget = settings.get("max_tokens", report.get("max_tokens", "-"))
        shares = [cell(row, key) for key in ("accuracy", "macro_f1", "format_rate")]
        lines.append((row["name"], *shares, correct, turns, calls, report.get("n_error", "-"), budget))
    baseline = always_positive(rows)
    if baseline:
        lines.append((f"baseline: {baseline[0]}", cell(baseline[1], "accuracy"), cell(baseline[1], "macro_f1"), *["-"] * 6))
    return "\n".join("| " + " | ".join(str(item).replace("|", "\\|") for item in line) + " |" for line in lines)


# ---------------------------------------------------------------- viewer


def embed(value):
    """JSON that can stand inside a <script> block: ASCII only, and nothing in it can close the block or open a comment."""
    return json.dumps(value).replace("<", "\\u003c")


def action_line(turn):
    """(one line about the parsed action, whether it is a fault)."""
    action = turn.get("action") or {}
    call = action.get("call")
    parts = [action.get("kind", "")]
    parts += [f"{call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}"] if call else []
    parts += [str(action["answer"])] if action.get("answer") else []
    parts += [action["error"]] if action.get("error") else []
    return ": ".join(part for part in parts if part), bool(action.get("error")) or action.get("kind") == "invalid"


def view(record, prompts):
    """(index entry, body) of one trajectory for the viewer; pictures are named by the path that the record has."""
    extra, turns = record.get("eval") or {}, []
    parts = record.get("parts") or {}
    for turn in record.get("turns", []):
        action, bad = action_line(turn)
        seen, logprobs = turn.get("observation"), [value for value in turn.get("logprobs", []) if value is not None]
        seconds = sum((turn.get("seconds") or {}).values())
        facts = f"{len(turn.get('tokens', []))} tokens, {seconds:.2f} s, ended by {turn.get('stop_reason', '')}"
        facts += f", mean log-probability {np.mean(logprobs):.2f}" if any(logprobs) else ""
        turns.append({"text": turn["text"], "facts": facts, "action": action, "bad": bad,
                      "observation": seen and (seen["text"] + ("" if seen["ok"] else "  (not ok)")),
                      "pictures": seen["images"] if seen else []})
    first = [part["image"] for part in takewhile(lambda part: "sampled" not in part, record.get("sequence", [])) if "image" in part]
    entry = {"id": record["id"], "task": record.get("task", ""), "step": record.get("step"), "reward": record.get("reward"),
             "finish": record.get("finish_reason", ""), "turns": len(turns), "label": extra.get("label"),
             "correct": extra["correct"] if "correct" in extra else parts["correct"] > 0.5 if "correct" in parts else None,
             "prediction": extra.get("prediction", record.get("prediction"))}
    shares = "".join(f", P({choice}) {share:.3f}" for choice, share in (extra.get("choices") or {}).items())
    body = {"prompt": extra.get("prompt") or record.get("prompt") or prompts.get(record["id"], []), "pictures": first, "turns": turns,
            "parts": "".join(f", {name} {value:g}" for name, value in parts.items()), "error": record.get("error", ""),
            "facts": f"sample {record.get('sample_index', 0)}, weights version {record.get('sampler_version', 0)}{shares}"}
    return entry, body


def read_prompts(folder):
    """{row id: prompt} for training runs, whose trajectories don't repeat it: from the rows that the run's config names, if still there."""
    try:
        flags = json.loads((folder / "config.json").read_text(encoding="utf-8"))["flags"]
        rows = read_jsonl(flags["data"]) if Path(flags["data"]).is_file() else []
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    text = lambda content: content if isinstance(content, str) else "\n".join(part.get("text", "<image>") for part in content or [])
    return {row["id"]: [{"role": message["role"], "text": text(message["content"])} for message in row["messages"]] for row in rows}


def write_report(folder, path, limit):
    """One HTML file with the trajectories of folder/trajectories.jsonl and their pictures. Each stands in a block of its own that the
    browser reads when it is shown, so a thousand are no burden; the page may load nothing and run no script but its own."""
    source = folder / "trajectories.jsonl"
    if not source.exists():
        raise SystemExit(f"{source}: not there; evaluations and RL runs write it")
    with open(source, "rb") as file:
        total = sum(1 for line in file if line.strip())
    chosen = {i * total // limit for i in range(limit)} if 0 < limit < total else range(total)
    template = (ROOT / "templates" / "viewer.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", template, re.S)[1]
    fingerprint = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = template.replace("{{script_hash}}", f"sha256-{fingerprint}").replace("{{title}}", html.escape(folder.resolve().name))
    head, tail = page.split("{{data}}")
    temporary, index, keys, prompts = path.with_name(path.name + ".tmp"), [], {}, read_prompts(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(head)
        for number, record in enumerate(runs.stream_jsonl(source)):
            if number not in chosen:
                continue
            entry, body = view(record, prompts)
            for part in (body, *body["turns"]):
                part["pictures"] = [_embed_picture(file, folder, name, keys) for name in part["pictures"]]
            file.write(f'<script type="application/json" id="t{len(index)}">{embed(body)}</script>\n')
            index.append(entry)
        file.write(f'<script type="application/json" id="index">{embed(index)}</script>\n{tail}')
    temporary.replace(path)
    print(f"{path}: {len(index)} of {total} trajectories, {len(keys)} pictures, {path.stat().st_size / 1e6:.1f} MB")


def _embed_picture(file, folder, name, keys):
    """Write a picture into the page the first time it is used; returns its key, -1 if it isn't there."""
    if name not in keys:
        if Path(name).is_absolute() or ".." in Path(name).parts or not (folder / name).is_file():
            return -1  # a record can't pull other files into the page
        keys[name] = len(keys)
        file.write(f'<script type="text/plain" id="p{keys[name]}">{base64.b64encode((folder / name).read_bytes()).decode()}</script>\n')
    return keys[name]


def main(argv=None):
    args = parse_args(argv)
    first = args.folders[0] if args.folders else Path("outputs") / "published"
    if args.command == "curves":
        draw_curves(args.folders, args.names, args.save or first / "curves", args.keys, args.smooth)
    elif args.command == "compare": draw_comparison(gather(args), args.save or first.parent / "comparison")
    elif args.command == "table": print(markdown_table(gather(args)))
    elif args.command == "paired": paired(*args.folders)
    elif args.command == "ledger": print(ledger.show(first))
    else:
        write_report(first, args.save or first / "report.html", args.limit)


if __name__ == "__main__":
    sys.exit(main())
