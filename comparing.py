"""Evaluations against one another: paired tests, solved sets, cross tables. What `analysis.py paired`, `solved` and `cross` print.

`solved` asks whether training opened problems or only made the known ones surer (seed 004, section 4.2: RL moves probability within what
can be reached). pass@1 may rise a lot while pass@64 stays: then the same problems are solved, more often.

`cross` puts models against data sets or wordings. A drop everywhere at the same length is forgetting; a drop under one wording together with
a much shorter text is a habit bound to that wording (seed 004, section 3.5).
"""

import json
from pathlib import Path

import numpy as np

import metrics
import runs
from tables import markdown, share_text

NUMBERS = [f"{name}{ending}" for name in ("accuracy", "macro_f1", "format_rate") for ending in ("", "_low", "_high")]
NUMBERS += ["count", "mean_turns", "score.of_played.value", "score.of_played.low", "score.of_played.high"]
SHARES = [(name, int | float | None, "a number") for name in NUMBERS]  # of metrics.json, where it has them

# ---------------------------------------------------------------- reading


def read_output(folder):
    """metrics.json of an evaluation, with the parts that every evaluation has."""
    path = folder / "metrics.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        begun = (folder / "trajectories.jsonl").exists()
        hint = "run eval.py again, it goes on where it stopped" if begun else "is it the --output of eval.py?"
        raise SystemExit(f"{folder}: no metrics.json; {hint}") from None
    except ValueError as error:
        raise SystemExit(f"{path}: not valid JSON ({error})") from None
    if wrong := report_fault(report):
        raise SystemExit(f"{path}: not as eval.py writes it ({wrong}); evaluate again")
    return report


def report_fault(report):
    """What is wrong with the content of a metrics.json, "" if nothing is."""
    if not isinstance(report, dict):
        return "no JSON object"
    for path, kind, what in (("score.of_played", dict, "an object"), ("config", dict, "an object"), ("config.settings", dict | None, "an object"),
                             ("config.flags", dict | None, "an object"), ("baselines", dict | None, "an object"), *SHARES):  # fmt: skip
        value = report
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            return f"{path} is {value!r}, not {what}"
    return "" if isinstance(report["score"]["of_played"].get("n"), int) else "score.of_played has no n"


def read_trajectories(folder):
    """The lines of trajectories.jsonl that were played (not failed) by eval.py, reduced to what a comparison needs."""
    path = folder / "trajectories.jsonl"
    if not path.exists():
        raise SystemExit(f"{path}: not there; is {folder} the --output of eval.py?")
    kept = []
    for number, record in enumerate(runs.stream_trajectories(path, ("id", "task", "finish_reason")), 1):
        if record["finish_reason"] in ("error", "timeout") or "eval" not in record:
            continue
        if not isinstance(record["eval"], dict) or record["eval"].get("correct") not in (0, 1, None):
            raise SystemExit(f"{path}, line {number}: eval is {record['eval']!r}, not as eval.py writes it")
        facts = {key: record["eval"].get(key) for key in ("label", "prediction", "correct", "sampled_tokens")}
        kept.append({"id": record["id"], "task": record["task"], **facts})
    return kept


def read_pair(first, second):
    """(reports, sides, flags, common): of two evaluations their metrics.json, their trajectories, {id: [0/1 a sample]}, and the rows that
    both have. Says which rows are left out and which settings differ."""
    reports, sides = [read_output(folder) for folder in (first, second)], [read_trajectories(folder) for folder in (first, second)]
    flags = [right_by_row(side) for side in sides]
    labels = [{line["id"]: line["label"] for line in side} for side in sides]
    common = [key for key in flags[0] if key in flags[1]]
    if not common:
        raise SystemExit(f"{first} and {second} have no labelled row in common: a paired test needs the same rows")
    other = [key for key in common if labels[0][key] != labels[1][key]]
    if other:
        raise SystemExit(f"{first} and {second} disagree about the label of {len(other)} rows (first: {other[0]!r}): not the same data")
    print(f"rows: {len(common)} in both, {len(flags[0]) - len(common)} only in {first}, {len(flags[1]) - len(common)} only in {second}")
    settings = [report["config"].get("settings", {}) for report in reports]
    for key in settings[0]:
        if settings[0][key] != settings[1].get(key) and key not in ("model_path", "weights_sha256"):
            values = ["none" if side.get(key) in (None, "") else side[key] for side in settings]
            print(f"note: {key} differs ({values[0]} and {values[1]}), so the difference may come from that")
    return reports, sides, flags, common


def right_by_row(side):
    """{id: [0/1 a sample]} of the lines of read_trajectories that could be graded."""
    found = {}
    for line in side:
        if line["correct"] is not None:
            found.setdefault(line["id"], []).append(line["correct"])
    return found


# ---------------------------------------------------------------- two evaluations


def paired(first, second):
    """Print and return the comparison of two evaluations (folders) on their common rows."""
    reports, sides, flags, common = read_pair(first, second)
    result = metrics.paired_report(*flags)
    print(f"right: {100 * result['first']:.1f} % -> {100 * result['second']:.1f} %, difference {100 * result['difference']:+.1f} points "
          f"[{100 * result['low']:+.1f}, {100 * result['high']:+.1f}]")
    print(f"rows better in {first}: {result['only_first']}, in {second}: {result['only_second']}; p = {result['p']:.2g} ({result['test']})")
    if all(report.get("macro_f1") is not None for report in reports):
        result["macro_f1"] = paired_macro_f1(sides, set(common), reports[0].get("positive", "YES"))
        print("Macro F1: {first:.1f} -> {second:.1f} %, difference {difference:+.1f} points [{low:+.1f}, {high:+.1f}]".format(
            **{key: 100 * value for key, value in result["macro_f1"].items()}) if result["macro_f1"] else "Macro F1: none of the common rows is positive")
    return result


def paired_macro_f1(sides, common, positive):
    """Difference of Macro F1 on the common rows with its interval: both sides see the same resampled rows. None without a positive row."""
    counts, groups = [], []
    for side in sides:
        lines = sorted((line for line in side if line["id"] in common), key=lambda line: line["id"])
        columns = [[line[key] for line in lines] for key in ("id", "task", "label", "prediction")]
        _, groups, array = metrics.confusion_columns(*columns, positive)
        counts.append(array.reshape(len(array), -1))  # [rows, groups * 4], rows in the same order on both sides
    joined = np.concatenate(counts, axis=1)

    macro = lambda sums: metrics.group_f1(sums.reshape(*sums.shape[:-1], 2, len(groups), 4))[1]  # [..., 2 * groups * 4] -> [..., 2]
    value, draws = macro(joined.sum(axis=0)), macro(metrics.bootstrap_sums(joined))  # [2], [resamples, 2]
    if np.isnan(value).any():
        return None
    low, high = metrics.interval(draws[:, 1] - draws[:, 0])
    return {"first": float(value[0]), "second": float(value[1]), "difference": float(value[1] - value[0]), "low": low, "high": high}


def solved(first, second, ks=()):
    """Print and return the solved sets of two evaluations: rows that both, one or neither solves within k samples, for each k."""
    _, _, flags, common = read_pair(first, second)
    most = min(len(side[key]) for side in flags for key in common)
    ks = ks or sorted({1, *(k for k in (8, 64) if k < most), most})
    if ks[-1] > most:
        raise SystemExit(f"--pass-at {ks[-1]}: a row has only {most} samples; evaluate again with more --samples")
    result = metrics.solved_report(*({key: side[key] for key in common} for side in flags), ks)
    lines = [["k", "both", f"only {first.name}", f"only {second.name}", "neither", "pass@k", "difference", "p"]]
    for k, part in result.items():
        change = f"{100 * part['difference']:+.1f} [{100 * part['low']:+.1f}, {100 * part['high']:+.1f}]"
        rates = f"{100 * part['first']:.1f} -> {100 * part['second']:.1f} %"
        counts = [f"{part[name]:.{0 if part['exact'] else 1}f}" for name in ("both", "only_first", "only_second", "neither")]
        lines.append([k, *counts, rates, change, f"{part['p']:.2g} ({part['test']})"])
    print(markdown(lines))
    if not all(part["exact"] for part in result.values()):
        print(f"Rows expected at k below {most} samples (unbiased); whole numbers where all samples are used. Intervals: 95 %, over rows.")
    for name, here, there in ((first.name, *flags), (second.name, *flags[::-1])):
        only = [key for key in common if any(here[key]) and not any(there[key])]
        if only:
            print(f"only {name}, of all samples: {', '.join(map(str, only[:10]))}{' ...' if len(only) > 10 else ''}")
    return result


# ---------------------------------------------------------------- models against data


def place(report, folder):
    """(name of the model, name of the data) of an evaluation, for the table of `cross`."""
    settings, flags = report["config"].get("settings", {}), report["config"].get("flags", {})
    path, policy = settings.get("model_path"), settings.get("policy", "model")
    steps = [part for part in Path(path or "").parts if part not in ("checkpoints", "sampler", "runs", "..", "/")]
    model = " ".join(steps[-2:]) if path else Path(str(settings.get("base_model", folder.name))).name
    data = Path(str(flags.get("data", "data")))
    model += "" if policy == "model" else f" ({policy})"
    return model, f"{settings.get('task', '')} {data.stem}".strip() + (" + inject" if settings.get("inject") else "")


def cross(folders, by_task=False):
    """Print and return the table of models (lines) against data (columns): accuracy with its interval, and tokens written.

    The folders are one evaluation for each cell. by_task: the columns are the kinds of rows within each evaluation instead of its file.
    With two models a last line gives their difference, row by row where both have the rows.
    """
    cells, models, columns = {}, [], []
    for folder in folders:
        report, lines = read_output(folder), read_trajectories(folder)
        model, data = place(report, folder)
        for column in sorted({line["task"] for line in lines}) if by_task else [data]:
            chosen = [line for line in lines if not by_task or line["task"] == column]
            if (model, column) in cells:
                raise SystemExit(f"{folder} and {cells[model, column]['folder']} are both {model} on {column}: name one of them")
            flags = right_by_row(chosen)
            tokens = float(np.mean([line["sampled_tokens"] or 0 for line in chosen])) if chosen else None
            cells[model, column] = {"folder": folder, "flags": flags, "share": metrics.share_report(flags), "tokens": tokens}
            models += [model] if model not in models else []
            columns += [column] if column not in columns else []
    lines = [["model", *columns]]
    for model in models:
        lines.append([model, *(_cell(cells.get((model, column))) for column in columns)])
    if len(models) == 2:
        lines.append(["difference", *(_change(*(cells.get((model, column)) for model in models)) for column in columns)])
    print(markdown(lines))
    return cells


def _cell(cell):
    if cell is None or cell["share"]["value"] is None:
        return "-"
    share = cell["share"]
    return f"{share_text(share).strip()}, {cell['tokens']:.0f} tokens"


def _change(before, after):
    if before is None or after is None or not set(before["flags"]) & set(after["flags"]):
        return "-"
    change = metrics.paired_report(before["flags"], after["flags"])
    length = f", {after['tokens'] - before['tokens']:+.0f} tokens"
    return f"{100 * change['difference']:+.1f} points [{100 * change['low']:+.1f}, {100 * change['high']:+.1f}], p = {change['p']:.2g}{length}"
