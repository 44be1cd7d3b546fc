"""The trajectories of an evaluation or a training run as one HTML file that needs no server: what `analysis.py report` writes.

What a model wrote is shown as text, whatever it is: the page may load nothing, and runs no script but its own.
"""

import base64
import hashlib
import html
import json
import re
from itertools import takewhile
from pathlib import Path

import numpy as np

import runs
from records import load_rows

ROOT = Path(__file__).resolve().parent


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
        path = Path(flags["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    text = lambda content: content if isinstance(content, str) else "\n".join(part.get("text", "<image>") for part in content or [])
    rows = load_rows(path) if path.is_file() else []
    return {row["id"]: [{"role": message.get("role"), "text": text(message.get("content"))} for message in row["messages"]] for row in rows}


def write_report(folder, path, limit):
    """One HTML file with the trajectories of folder/trajectories.jsonl and their pictures. Each stands in a block of its own that the
    browser reads when it is shown, so a thousand are no burden; the page may load nothing and run no script but its own."""
    source = folder / "trajectories.jsonl"
    if not source.exists():
        raise SystemExit(f"{source}: not there; evaluations and RL runs write it")
    if path.is_dir():
        raise SystemExit(f"--save {path} is a folder: name a file in it")
    with open(source, "rb") as file:
        total = sum(1 for line in file if line.strip())
    chosen = {i * total // limit for i in range(limit)} if 0 < limit < total else range(total)
    template = (ROOT / "templates" / "viewer.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", template, re.S)[1]
    fingerprint = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = template.replace("{{script_hash}}", f"sha256-{fingerprint}").replace("{{title}}", html.escape(folder.resolve().name))
    head, tail = page.split("{{data}}")
    temporary, index, keys, prompts = path.with_name(path.name + ".tmp"), [], {}, read_prompts(folder)
    runs.make_folder(path.parent, "--save")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(head)
        for number, record in enumerate(runs.stream_trajectories(source)):
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
