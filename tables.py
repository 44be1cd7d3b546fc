"""How results are written for a person: shares with their intervals, the lines that eval.py prints, Markdown."""


def percent(value, low=None, high=None):
    """0.5 -> " 50.0 %  [low, high]"."""
    return "-" if value is None else f"{100 * value:5.1f} %" + ("" if low is None else f"  [{100 * low:.1f}, {100 * high:.1f}]")


def share_text(share):
    """A share_report of metrics.py: " 50.0 %  [40.0, 60.0]  n=90", or "n=90 rows" where a row has several samples."""
    return percent(share["value"], share["low"], share["high"]) + f"  n={share['n']}{' rows' if 'samples' in share else ''}"


def number(value, digits=2):
    """1.234 -> "1.23"; None -> "-"."""
    return "-" if value is None else f"{value:.{digits}f}"


def markdown(lines):
    """A Markdown table of lists of cells, the first of which is the head."""
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def print_table(report):
    """The result for a person, intervals at 95 %."""
    lines = [("trajectories", f"{report['n_ok']} played, {report['n_error']} failed ({report['n_rows']} rows x {report['n_samples']})")]
    for name, key in (("right, of those played", "of_played"), ("right, failures as wrong", "of_all")):
        share = report["score"][key]
        if share["value"] is not None and (report["n_error"] or report.get("accuracy") is None):
            lines.append((name, share_text(share)))
    if report["n_samples"] > 1:
        lines += [(f"pass@{k}", percent(part["value"], part["low"], part["high"])) for k, part in report["pass_at"].items()]
    for key in ("macro_f1", "accuracy", "format_rate"):
        if report.get(key) is not None:
            partial = key == "macro_f1" and report["macro_f1_groups"] < len(report["tasks"])
            over = f"  over {report['macro_f1_groups']} of {len(report['tasks'])} tasks: the others have no positive" if partial else ""
            lines.append((key, percent(report[key], report[f"{key}_low"], report[f"{key}_high"]) + over))
    for name, part in (report.get("tasks") or {}).items():
        lines.append((f"  {name} F1 ({part['count']})", percent(part["f1"], part["f1_low"], part["f1_high"])))
    for name, part in (report.get("baselines") or {}).items():
        lines.append((f"baseline {name}", "  ".join(f"{key} {100 * value:.1f} %" for key, value in part.items() if value is not None)))
    lines += [tuple(line) for line in report.get("lines") or ()]  # a task's own
    if report["n_ok"]:
        lines.append(("turns", f"{report['mean_turns']:.2f} a trajectory, {report['mean_sampled_tokens']:.0f} tokens"))
    lines.append(("tool calls", f"{report['tool_calls']}, {report['tool_successes']} good; {report['parse_errors']} malformed actions"))
    lines.append(("finish reasons", ", ".join(f"{name} {count}" for name, count in report["finish_reasons"].items())))
    width = max(27, *(len(name) for name, _ in lines))
    for name, text in lines:
        print(f"{name:{width}} {text}")
