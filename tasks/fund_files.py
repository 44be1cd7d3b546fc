"""Your own requests, and tools if they aren't the six, in place of the generator: `--requests FILE.jsonl [--tools FILE.json]`.

    {"request": "Pay 70 to Ann", "action": {"tool": "transfer_funds", "params": {"amount": 70, "to": "Ann"}}}
    {"request": "Check my cash, then pay Ann 70", "previous": [{"tool": "check_balance", "result": "900"}], "action": {...},
     "thought": "...", "plan": ["pay Ann"]}                                           (on one line in the file)

One line, one decision. Needed: request, action. Optional: thought, plan (SFT uses only lines with a thought), previous (steps done, with
what they gave), category, lang, split (train, dev, test; else by hash of the request: 80, 10, 10 %), accepted (tools that are right too:
marks the line as ambiguous). `--policy gold` proves that each action
is read as it was meant. Tools are OpenAI-style function schemas, a JSON list. Lines of the same request always go to the same split.
"""

import hashlib
import json
from pathlib import Path

from tasks.fund_synthetic import demonstrate, make_row, options, training, write_folder


def load_tools(path):
    """A JSON list of function schemas; None means the six tools of the task."""
    if path is None:
        return None
    try:
        tools = json.loads(Path(path).read_text(encoding="utf-8"))
        names = [tool.get("function", tool)["name"] for tool in tools]
        if not all(isinstance(name, str) and name for name in names):
            raise ValueError("a name must be a text")
        schemas = [tool.get("function", tool).get("parameters") or {} for tool in tools]
        if not all(isinstance(schema.get("properties", {}), dict) and isinstance(schema.get("required", []), list) for schema in schemas):
            raise ValueError("parameters must be an object with properties (an object) and required (a list)")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise SystemExit(f"--tools {path}: not a JSON list of function schemas ({error})") from None
    if len(set(names)) != len(names) or not names:
        raise SystemExit(f"--tools {path}: it needs at least one tool, each with a name of its own")
    return tools


def read_requests(path, tools, chosen):
    """{split: rows}. A line that can't be graded stops here, with its number and the reason."""
    from protocol import read_jsonl
    from tasks.fund import messages, read_reply, reply_text

    if not Path(path).is_file():
        raise SystemExit(f"--requests {path}: no such file")
    rows = {"train": [], "dev": [], "test": []}
    for number, line in enumerate(read_jsonl(path), 1):
        where = f"{path}, line {number}"
        if not isinstance(line, dict) or not isinstance(line.get("request"), str) or not isinstance(line.get("action"), dict):
            raise SystemExit(f"{where}: needs request (text) and action {{tool, params}}")
        action, previous = line["action"], line.get("previous") or []
        expected = {"tool": action.get("tool"), "params": action.get("params", {})}
        expected |= {"thought": line.get("thought") or "", "plan": line.get("plan") or []}
        reply = read_reply(reply_text(expected), "react", tools)
        faults = [fault for fault in reply.faults if fault != "thought: it is empty"]
        if faults:
            raise SystemExit(f"{where}: the action can't be right, {faults[0]}")
        if not all(isinstance(step, dict) and {"tool", "result"} <= set(step) for step in previous):
            raise SystemExit(f"{where}: previous must be a list of {{tool, result}}")
        split = line.get("split") or by_hash(line["request"])
        if split not in rows:
            raise SystemExit(f"{where}: split {split!r}: choose train, dev or test")
        kind = "multi" if previous else "single"
        made = {"request": line["request"], "expected": expected, "wording": [], "accepted": line.get("accepted") or [expected["tool"]],
                "ambiguous": bool(line.get("accepted"))}  # fmt: skip
        steps = [(step["tool"], step["result"]) for step in previous]
        row = make_row(f"own-{number:06d}", kind, line.get("category", kind), split, line.get("lang", ""), made, expected, steps, chosen)
        row |= {"several": bool(previous) or len(expected["plan"]) > 1, "entities": [], "own": True}
        row |= {"source_name": row["source_name"].replace("synthetic", "own")}
        row |= {"messages": messages(line["request"], steps, chosen["form"], tools)}
        rows[split].append(row | ({"tools": tools} if tools else {}))
    if not any(rows.values()):
        raise SystemExit(f"--requests {path}: no line in it")
    return rows


def by_hash(request):
    share = int(hashlib.sha256(request.encode()).hexdigest()[:8], 16) % 10
    return "dev" if share == 8 else "test" if share == 9 else "train"


def _read(args):
    chosen = options(args)
    return chosen, read_requests(args.requests, load_tools(getattr(args, "tools", None)), chosen)


def prepare_sft(args):
    """Demonstrations: the lines of training and, for validation, of dev that have a thought."""
    chosen, rows = _read(args)
    files = {"sft_train": training(rows["train"], chosen), "sft_val": rows["dev"]}
    plain = chosen["form"] == "tool-only"
    files = {name: [demonstrate(row) for row in part if row["expected"]["thought"] or plain] for name, part in files.items()}
    if not files["sft_train"]:
        raise SystemExit(f"--requests {args.requests}: no training line has a thought to demonstrate; make only the stage bench")
    write_folder(Path(args.output) / "fund" / "sft", files, "sft_stats.json", {"source": str(args.requests), **chosen})


def prepare_bench(args):
    chosen, rows = _read(args)
    files = {"bench_rl_train": training(rows["train"], chosen), "bench_dev": rows["dev"], "bench_test": rows["test"]}
    write_folder(Path(args.output) / "fund" / "rl", files, "bench_stats.json", {"source": str(args.requests), **chosen})
