"""What an evaluation of the fund assistant says (seed 003): accuracy of the tool by category, single against several steps, whole requests,
ambiguous rows apart, reasoning apart from tools (section 4.4), why replies could not be read, which tool was taken for which.

Shares have 95 % intervals (Wilson; several samples a row: bootstrap over rows). The floors stand beside them: always one tool, any tool at
random, and gold, which is what the parser and the reward make of the right reply of each row.
"""

from collections import Counter

from metrics import share_report
from tables import share_text
from tasks import fund_rewards

SHORT = {"check_balance": "balance", "transfer_funds": "transfer", "withdraw_funds": "withdraw", "place_order": "order",
         "get_transaction_history": "history", "check_market_status": "market"}  # fmt: skip


def report(rows, trajectories):
    """rows and trajectories run in parallel. Ambiguous rows (section 7.7) are in no accuracy: they stand apart, by their label and with every
    accepted tool counted as right."""
    from tasks.fund import Reply, replies, succeeded

    steps, requests, confusion, faults = {}, {}, {}, Counter()
    shares = {}  # name -> {row id: [0/1]}

    def count(name, row, right):
        shares.setdefault(name, {}).setdefault(row["id"], []).append(int(right))

    for row, trajectory in zip(rows, trajectories, strict=True):
        found = replies(row, trajectory) or [Reply(faults=["empty: nothing was written"])]
        faults.update(reply.error.partition(":")[0] for reply in found if reply.error)
        count("format", row, not any(reply.error for reply in found))
        count("gold", row, gold_is_right(row))
        if row.get("kind") == "request":
            requests[row["id"]] = row
            count("whole", row, succeeded(row, trajectory))
            count("sequence", row, [r.tool for r in found] == [s["tool"] for s in row["path"]])
            for number, step in enumerate(row["path"]):
                count("run_steps", row, number < len(found) and found[number].tool == step["tool"])
            continue
        reply, expected = found[0], row["expected"]
        right = reply.tool == expected["tool"]
        if row.get("ambiguous"):
            count("ambiguous_label", row, right)
            count("ambiguous_accepted", row, reply.tool in row["accepted"])
            continue
        steps[row["id"]] = row
        for name in ("all", f"category {row['task']}", f"kind {row['kind']}", f"language {row.get('lang', '?')}"):
            count(name, row, right)
        count("params", row, right and fund_rewards.same_params(reply.params, expected["params"]))
        sound = fund_rewards.sound_thought(reply.thought, row["request"])
        count("reasoning", row, sound)
        count("wrong_in_spite", row, sound and not right)
        chosen = reply.tool if reply.known else "none" if reply.tool is None else "unknown"
        confusion.setdefault(expected["tool"], Counter())[chosen] += 1
    result = {"faults": dict(faults.most_common()), **_flat("format_rate", share_report(shares.get("format", {})))}
    if steps:
        result |= _flat("accuracy", share_report(shares["all"]))
        result |= {
            "params_accuracy": share_report(shares["params"]), "reasoning": share_report(shares["reasoning"]),
            "wrong_in_spite": share_report(shares["wrong_in_spite"]),
            "confusion": {tool: dict(row.most_common()) for tool, row in sorted(confusion.items())},
            "baselines": floors(steps.values()) | {"gold": {"accuracy": share_report(shares["gold"])["value"]}},
        }  # fmt: skip
    for group, word in (("categories", "category "), ("kinds", "kind "), ("languages", "language ")):
        result[group] = {name.removeprefix(word): share_report(flags) for name, flags in sorted(shares.items()) if name.startswith(word)}
    if requests:
        result["requests"] = {name: share_report(shares[name]) for name in ("whole", "sequence", "run_steps")}
    if "ambiguous_label" in shares:
        result["ambiguous"] = {name: share_report(shares[f"ambiguous_{name}"]) for name in ("label", "accepted")}
    return result | {"lines": lines(result, list(steps.values()))}


def gold_is_right(row):
    """Whether the right reply of every step is read as such and earns full marks: a row with a false or unreachable answer shows here."""
    from tasks.fund import full_reward, read_reply, reply_text

    form, mode = row.get("form", "react"), row.get("reward_mode", "ground-truth")
    for step in row.get("path") or [row["expected"]]:
        reply = read_reply(reply_text(step, form), form, row.get("tools"))
        earned = fund_rewards.score(mode, reply, step, row["request"], row.get("several", False), float(row.get("misuse_penalty", 0.0)))
        if reply.tool != step["tool"] or sum(earned.values()) < full_reward(row) - 1e-9:
            return False
    return True


def floors(rows):
    """{name: {accuracy}}: always the same tool, for check_balance and for the most frequent one; any tool at random (expected)."""
    from tasks.fund import ANSWERS

    rows = list(rows)
    labels, choices = Counter(row["expected"]["tool"] for row in rows), [len(row.get("tools") or ANSWERS) for row in rows]
    names = dict.fromkeys(("check_balance", labels.most_common(1)[0][0]))
    found = {f"always_{name}": {"accuracy": labels[name] / len(rows)} for name in names if name in labels}
    return found | {"random_tool": {"accuracy": sum(1 / count for count in choices) / len(rows)}}


def lines(result, steps):
    """[[name, text]] for eval.py to print."""
    out = []
    if steps:
        out += [["reasoning is a thought", share_text(result["reasoning"])], ["  sound, but wrong tool", share_text(result["wrong_in_spite"])],
                ["tool and parameters right", share_text(result["params_accuracy"])]]  # fmt: skip
    for name, share in result["categories"].items():
        labels = Counter(row["expected"]["tool"] for row in steps if row["task"] == name)
        out.append([f"  {name}", share_text(share) + f"   always one tool {100 * max(labels.values()) / sum(labels.values()):.1f} %"])
    for name, word in (("single", "single-step tool"), ("multi", "step of several, tool")):
        if name in result["kinds"]:
            out.append([word, share_text(result["kinds"][name])])
    out += [[f"  language {name}", share_text(share)] for name, share in result["languages"].items() if len(result["languages"]) > 1]
    words = {"whole": "whole requests carried out", "sequence": "  all tools in order", "run_steps": "  steps on the way, tool"}
    out += [[words[name], share_text(share)] for name, share in result.get("requests", {}).items()]
    words = {"label": "ambiguous rows, as labelled", "accepted": "  any accepted tool"}
    out += [[words[name], share_text(share)] for name, share in result.get("ambiguous", {}).items()]
    faults = ", ".join(f"{name} {count}" for name, count in result["faults"].items())
    out.append(["faults of replies", faults or "none"])
    return out + [["confusion", "rows: the right tool, columns: the chosen one"] for _ in steps[:1]] + [["", line] for line in matrix(result.get("confusion", {}))]


def matrix(confusion):
    """The confusion as lines of text; "other" is no tool or one that does not exist."""
    names = list(dict.fromkeys([*confusion, *(chosen for row in confusion.values() for chosen in row if chosen not in ("none", "unknown"))]))
    if not names:
        return []
    short = [SHORT.get(name, name)[:9] for name in names] + ["other"]
    table = [" " * 10 + "".join(f"{name:>10}" for name in short)]
    for tool in (name for name in names if name in confusion):
        row = confusion[tool]
        counts = [row.get(name, 0) for name in names] + [row.get("none", 0) + row.get("unknown", 0)]
        table.append(f"{SHORT.get(tool, tool)[:9]:10}" + "".join(f"{count:>10}" for count in counts))
    return table


def _flat(name, share):
    return {name: share["value"], f"{name}_low": share["low"], f"{name}_high": share["high"]}
