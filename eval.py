"""Stage 4: pass@1, pass@k and the task's own metrics of one model or scripted policy, with every trajectory kept.

    python eval.py --policy gold --base-model models/tiny-vlm --output outputs/gold       # proves the grader: must earn full reward
    python eval.py --base-model models/tiny-vlm --model-path runs/spec-o3-sft/checkpoints/step-000200/sampler --output outputs/sft
    python eval.py --base-model Qwen/Qwen3.5-4B --model-path PATH --output outputs/rl --max-tokens 6144 --samples 8 --pass-at 1,8
    python eval.py --base-model Qwen/Qwen3.5-4B --model-path PATH --output outputs/rl-no-tool --policy no-tool

Writes <output>/trajectories.jsonl (each as it finishes), images/, predictions.csv, config.json (every setting) and metrics.json. The same
command again goes on where it stopped and runs only what is missing or failed; with another setting it stops and says which.

Policies: `model`; `no-tool` (the same model must answer from the first picture: its turn is written up to the answer, then the likelier
choice is taken); `random-windows` (scripted looks at random places, then the same forced answer); `always-yes`; `gold`; `human` (you).
A trajectory that failed (tool, backend) is never a wrong answer: it is counted apart and shown in a second denominator.

Differences from the published chapter: top-p is a flag and is 1.0 unless you say otherwise (it used 0.95 without recording it), no barrier
between batches, intervals and baselines beside every score.
"""

import argparse
import asyncio
import csv
import hashlib
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import backends
import metrics
import runs
import tables
import usage
from policies import NEED_MODEL, NEEDS, POLICIES, policy_sampler
from protocol import SamplingParams, json_line, load_chat, write_jsonl
from records import load_rows
from rollout import Trajectory, derive_seed, rollout, trajectory_from_json, trajectory_to_json

ROOT = Path(__file__).resolve().parent
PINNED = {"Qwen/Qwen3.5-4B": "851bf6e806efd8d0a36b00ddf55e13ccb7b8cd0a"}  # the revision of the published evaluation
FAILED = ("error", "timeout")  # finish reasons that are nobody's answer
WRITES = ("trajectories.jsonl", "predictions.csv", "metrics.json", "config.json", "images")


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    whole, real = lambda low: runs.number(int, low), lambda low, high=None: runs.number(float, low, high)
    # What is evaluated
    parser.add_argument("--output", type=Path, required=True, help="folder of this evaluation")
    parser.add_argument("--task", default="spec_o3", help="a module of tasks/ (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="JSONL of rows (default: datasets/<task>/rl/bench_dev.jsonl)")
    parser.add_argument("--limit", type=whole(0), default=0, help="rows, drawn from the whole file, always the same; 0 = all (default: 0)")
    parser.add_argument("--base-model", default="Qwen/Qwen3.5-4B", help="hub id or folder (default: %(default)s)")
    parser.add_argument("--model-revision", help="of --base-model (default: pinned for Qwen/Qwen3.5-4B, else main)")
    parser.add_argument("--model-path", help="sampler_path that training printed, or a run folder for its last one (default: the base model)")
    parser.add_argument("--template", help="chat template: a file or a name in templates/ (default: chosen by the model)")
    parser.add_argument("--policy", choices=POLICIES, default="model", help="who plays (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="put a value into every row, as in judge=v1 (JSON or text); may be given again")
    parser.add_argument("--inject", metavar="TEXT", help="end of the prompt (default: the task's format reminder for a bare base model)")
    # Sampling
    parser.add_argument("--samples", type=whole(1), default=1, help="trajectories a row (default: 1)")
    parser.add_argument("--pass-at", default="1", metavar="K,K", help="report pass@k for these k (default: 1)")
    parser.add_argument("--temperature", type=real(0), default=0.6, help="0 = greedy (default: %(default)s)")
    parser.add_argument("--top-p", type=real(1e-6, 1), default=1.0, help="(default: %(default)s)")
    parser.add_argument("--max-turns", type=whole(1), default=8, help="generations, the answer included (default: %(default)s)")
    parser.add_argument("--max-tokens", type=whole(1), default=2048, help="tokens a generation (default: %(default)s)")
    parser.add_argument("--max-seq-len", type=whole(1), default=16384, help="tokens and picture positions in all (default: %(default)s)")
    parser.add_argument("--tool-timeout", type=real(0.001), default=60.0, help="seconds a tool may take (default: %(default)s)")
    parser.add_argument("--seed", type=runs.number(int, 0, 2**31 - 1), default=42, help="(default: %(default)s)")
    # Running
    parser.add_argument("--backend", default="local", help="a module of backends/ (default: %(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (default: the backend's choice)")
    parser.add_argument("--base-url", type=backends.service_url, help="address of a service, for --backend pytrio and tinker (default: theirs)")
    parser.add_argument("--vllm-memory", type=runs.number(float, 0.01, 0.99), metavar="SHARE", help="of the GPU's memory, with --backend vllm (default: 0.8)")
    usage.add_flags(parser)
    parser.add_argument("--concurrency", type=whole(1), default=16, help="trajectories at a time (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="delete what an earlier evaluation left in --output")
    parser.add_argument("--strict", action="store_true", help="exit 1 if anything failed or most generations were cut off")
    args = parser.parse_args(argv)
    try:
        args.pass_at = sorted({int(k) for k in args.pass_at.split(",")})
    except ValueError:
        parser.error(f"--pass-at {args.pass_at!r}: whole numbers with commas, as in 1,8")
    if args.pass_at[0] < 1 or args.pass_at[-1] > args.samples:
        parser.error(f"--pass-at {','.join(map(str, args.pass_at))} needs k from 1 to --samples, which is {args.samples}")
    args.data = args.data or Path("datasets") / args.task / "rl" / "bench_dev.jsonl"
    args.model_path = runs.resolve(args.model_path, "sampler_path")
    args.model_revision = args.model_revision or PINNED.get(args.base_model)
    args.concurrency = 1 if args.policy == "human" else args.concurrency
    return args


# ---------------------------------------------------------------- what is there


def choose_rows(rows, limit):
    """`limit` of the rows (0: all), by hash of the id: files are often ordered by task, so the first rows, or every tenth, may be of one
    task. A larger limit adds rows."""
    rank = lambda row: hashlib.sha256(str(row["id"]).encode("utf-8", "surrogatepass")).digest()
    chosen = {row["id"] for row in sorted(rows, key=rank)[: limit or None]}
    return [row | {"label": row.get("label")} for row in rows if row["id"] in chosen]


def digest(path):
    """Short sha256 of a file, or of the files of a folder by name, size and first and last 64 kB: tells new weights in an old place."""
    path, sha = Path(path), hashlib.sha256()
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        size = file.stat().st_size
        sha.update(f"{file.relative_to(path)} {size}\n".encode())
        with open(file, "rb") as opened:
            if path.is_file() and size < 1 << 30:
                sha.update(opened.read())
            else:
                sha.update(opened.read(1 << 16))
                opened.seek(max(0, size - (1 << 16)))
                sha.update(opened.read())
    return sha.hexdigest()[:16]


def identity(args, inject):
    """The settings that decide what a trajectory is: if one of them differs, old trajectories must not be mixed with new ones."""
    names = ("task", "policy", "base_model", "model_revision", "model_path", "template", "temperature", "top_p", "max_turns",
             "max_tokens", "max_seq_len", "seed")
    local = args.model_path and Path(args.model_path).exists()
    return {name: getattr(args, name) for name in names} | {
        "inject": inject, "set": sorted(args.set) or None, "data_sha256": digest(args.data), "weights_sha256": digest(args.model_path) if local else None,
        "backend": args.backend if args.policy in NEED_MODEL else None}


def ends_whole(path):
    """Whether the last line is finished: a process that is killed may leave half of one."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 1))
        return file.read() in (b"", b"\n")


def open_output(args, settings):
    """Make or reopen the folder. Returns what play_all returns, of the trajectories that are there: {(id, sample): light}."""
    config, log = args.output / "config.json", args.output / "trajectories.jsonl"
    if (args.output / "checkpoints.jsonl").exists() or (args.output / "metrics.jsonl").exists():
        raise SystemExit(f"--output {args.output} is a training run: choose another folder")
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged
        found = None
    others = sorted({entry.name for entry in args.output.iterdir()} - {".lock", *WRITES})
    foreign = found is not None and not (isinstance(found, dict) and "settings" in found)  # a model's, for instance
    if foreign or (found is None and not log.exists() and (others or config.exists())):
        raise SystemExit(f"--output {args.output} holds files that are not of an evaluation ({', '.join(others[:3]) or 'config.json'}): choose another folder")
    if args.overwrite:
        for path in (args.output / name for name in WRITES):
            if path.is_dir():
                for picture in path.glob("*.png"):
                    picture.unlink()
            else:
                path.unlink(missing_ok=True)
    if log.exists():
        if found is None:
            raise SystemExit(f"{log} is there but its config.json is not: take another --output, or --overwrite")
        before = found["settings"]
        changed = [f"{key} was {before.get(key)!r}, is {value!r}" for key, value in settings.items() if before.get(key) != value]
        if changed:
            raise SystemExit(f"{args.output} has another evaluation ({'; '.join(changed)}): choose another --output, or --overwrite")
    everything = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    runs.write_json(config, {"settings": settings, "flags": everything, **runs.environment()})
    done, lines, failed = {}, 0, lambda record: record["finish_reason"] in FAILED
    for record in runs.stream_jsonl(log) if log.exists() else ():
        lines += 1
        if not isinstance(record, dict) or not {"id", "sample_index", "finish_reason", "eval"} <= set(record):
            raise SystemExit(f"{log}, line {lines}: not a trajectory of eval.py; take the line out, or --overwrite")
        if not failed(record):
            done[record["id"], record["sample_index"]] = lighten(read_back(record, args.output), record)
    if lines != len(done) or (log.exists() and not ends_whole(log)):  # failures are run again; a torn line goes
        write_jsonl(log, (record for record in runs.stream_jsonl(log) if not failed(record)))
    return done


# ---------------------------------------------------------------- running


def plain_prompt(messages):
    """[{role, text}] of the prompt, for readers; pictures are marked by <image>."""
    texts = []
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "\n".join(part.get("text", "<image>") for part in content)
        texts.append({"role": message.get("role", ""), "text": text})
    return texts


def inject_text(rows, text):
    """Append text to the last message of each prompt."""
    for row in rows:
        last = dict(row["messages"][-1])
        content = last["content"]
        last["content"] = f"{content}\n{text}" if isinstance(content, str) else [*content, {"type": "text", "text": text}]
        row["messages"] = [*row["messages"][:-1], last]


def lighten(trajectory, record):
    """(trajectory, record["eval"]) without what no metric needs: thousands of trajectories with their pictures don't fit into memory."""
    trajectory.chunks, trajectory.sampled, trajectory.logprobs = [], [], []
    for turn in trajectory.turns:
        turn.tokens, turn.logprobs = [], []
        if turn.observation:
            turn.observation.images = []
    return trajectory, record["eval"]


def answer_of(task, trajectory):
    """The answer that counts, by the task's reading if it has one of its own; none of a trajectory that failed."""
    if trajectory.finish_reason in FAILED:
        return None
    return task.predict(trajectory) if hasattr(task, "predict") else trajectory.prediction


def score(trajectory):
    """1, 0 or None (failed, or no label): whether the answer is right, as the task's reward reads it."""
    if trajectory.finish_reason in FAILED or trajectory.reward is None:
        return None
    return int(trajectory.parts.get("correct", trajectory.reward >= 1) > 0.5)


async def play(args, task, row, index, chat, sampler):
    """One trajectory and its record. Whatever goes wrong becomes a trajectory with finish reason "error"."""
    budget = args.max_tokens if args.policy == "model" else args.max_seq_len  # what a script says is no generation to cut off
    params = SamplingParams(budget, args.temperature, args.top_p, stop_tokens=chat.stop_tokens)
    folder, images, player = args.data.parent, args.output / "images", None
    try:
        player = policy_sampler(args.policy, task, row, folder, chat, sampler, derive_seed(args.seed, index), images)
        trajectory = await rollout(task, row, chat, player, params, folder=folder, max_turns=args.max_turns, max_seq_len=args.max_seq_len,
                                   sample_index=index, seed=args.seed, images_dir=images, tool_timeout=args.tool_timeout)
        record = trajectory_to_json(trajectory, args.output)
    except (Exception, SystemExit) as error:
        text = f"eval: {type(error).__name__}: {error}"
        trajectory = Trajectory(row["id"], row.get("task", args.task), index, args.seed, finish_reason="error", error=text)
        record = trajectory_to_json(trajectory, args.output)
    record["eval"] = {
        "label": row.get("label"), "source_name": row.get("source_name"), "prediction": answer_of(task, trajectory),
        "correct": score(trajectory), "choices": getattr(player, "choices", None), "prompt": plain_prompt(row["messages"]),
        "sampled_tokens": sum(len(turn.tokens) for turn in trajectory.turns)}
    return trajectory, record


def read_back(record, base):
    """The trajectory of a line of trajectories.jsonl, without its pictures."""
    return trajectory_from_json({key: value for key, value in record.items() if key != "eval"}, base, pictures=False)


@dataclass
class Progress:
    """What the workers of `play_all` share."""

    total: int
    results: dict = field(default_factory=dict)  # {(id, sample): light}
    failed: int = 0
    said: float = field(default_factory=time.monotonic)  # when a line was last printed
    hopeless: str = ""  # the error, if so many failed and nothing else happened that going on is of no use


async def play_all(args, task, jobs, chat, sampler, log):
    """Play (row, sample) jobs, `concurrency` at a time, no barrier; each is written when it finishes. Returns {(id, sample): light}."""
    progress, pending = Progress(len(jobs)), iter(jobs)

    async def work():
        for row, index in pending:  # one iterator for all workers: each takes the next job
            trajectory, record = await play(args, task, row, index, chat, sampler)
            log.write(json_line(record))
            log.flush()
            progress.results[row["id"], index] = lighten(trajectory, record)
            note(progress, trajectory, args.concurrency)
            if progress.hopeless:
                return

    watcher = asyncio.create_task(leave_when_asked(progress, sampler))
    await asyncio.gather(*[work() for _ in range(min(args.concurrency, len(jobs)))])
    watcher.cancel()
    if progress.hopeless:
        raise SystemExit(f"{args.output}: the first {len(progress.results)} trajectories all failed, the last one with: {progress.hopeless[:300]}")
    return progress.results


def note(progress, trajectory, concurrency):
    """Count a trajectory; say how far it is every ten seconds, and at the end."""
    progress.failed += trajectory.finish_reason in FAILED
    done = len(progress.results)
    if progress.failed == done >= max(20, 2 * concurrency):
        progress.hopeless = trajectory.error
    elif not progress.hopeless and (time.monotonic() - progress.said > 10 or done == progress.total):
        progress.said = time.monotonic()
        print(f"{done}/{progress.total} trajectories, {progress.failed} failed", flush=True)


async def leave_when_asked(progress, sampler):
    """End the process after Ctrl-C. What is under way is lost, what was written stays."""
    while not runs.stop_requested():
        await asyncio.sleep(0.1)
    print(f"stopped after {len(progress.results)} of {progress.total} trajectories; the same command goes on from here", flush=True)
    try:
        await asyncio.wait_for(close(sampler), 5)
    finally:
        os._exit(130)  # threads may be in the middle of a generation or of a person's input: nothing of theirs is needed


async def close(sampler):
    """Backends that hold processes or connections have `close`."""
    if hasattr(sampler, "close"):
        done = sampler.close()
        if asyncio.iscoroutine(done):
            await done


# ---------------------------------------------------------------- results


def summarise(args, task, rows, results):
    """metrics.json without its config. results: {(id, sample): (trajectory, record)}."""
    order = [(row, *results[row["id"], index]) for row in rows for index in range(args.samples)]
    played = [(row, t) for row, t, _ in order if t.finish_reason not in FAILED]
    turns = [turn for _, t in played for turn in t.turns]
    calls = [turn for turn in turns if turn.action and turn.action.kind == "tool" and turn.observation]
    flags, flags_all = {}, {}
    for row, _, record in order:
        if record["correct"] is not None:
            flags.setdefault(row["id"], []).append(record["correct"])
        if row.get("label") is not None or record["correct"] is not None:
            flags_all.setdefault(row["id"], []).append(record["correct"] or 0)
    rewards = [t.reward for _, t in played if t.reward is not None] or [None]
    full = getattr(task, "full_reward", lambda row: 1.0)  # what gold must earn on a row
    report = {
        "n_rows": len(rows), "n_samples": args.samples, "n_ok": len(played), "n_error": len(order) - len(played),
        "score": {"of_played": metrics.share_report(flags), "of_all": metrics.share_report(flags_all)},
        "pass_at": metrics.pass_report(flags, args.pass_at) if flags else {},
        "below_full": sum(t.reward is not None and t.reward < full(row) - 1e-9 for row, t in played),
        "reward": float(np.mean(rewards)) if rewards[0] is not None else None, "reward_min": min(rewards),
        "finish_reasons": dict(Counter(t.finish_reason for _, t, _ in order).most_common()),
        "mean_turns": len(turns) / len(played) if played else None,
        "tool_calls": len(calls), "tool_successes": sum(turn.observation.ok for turn in calls),
        "parse_errors": sum(bool(turn.action and turn.action.error) for turn in turns),
        "mean_sampled_tokens": float(np.mean([record["sampled_tokens"] for *_, record in order])),
        "errors": dict(Counter(t.error[:200] for _, t, _ in order if t.error).most_common(5)),
    }
    return report | (task.metrics([row for row, _ in played], [t for _, t in played]) if played else {})


def write_predictions(args, task, rows, results):
    """predictions.csv: one line a trajectory; P(choice) where the policy was asked for it."""
    choices = list(getattr(task, "ANSWERS", ()))
    path = args.output / "predictions.csv"
    with open(path.with_suffix(".tmp"), "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        table = csv.writer(file)
        columns = ["id", "source_name", "task", "sample", "prediction", "label", "finish_reason", "turns", "tool_calls"]
        table.writerow(columns + [f"p_{choice}" for choice in choices])
        for row in rows:
            for index in range(args.samples):
                trajectory, record = results[row["id"], index]
                calls = sum(bool(turn.action and turn.action.kind == "tool" and turn.observation) for turn in trajectory.turns)
                cells = [row["id"], row.get("source_name"), row.get("task"), index, record["prediction"], row.get("label")]
                shares = [(record["choices"] or {}).get(choice) for choice in choices]
                table.writerow([*cells, trajectory.finish_reason, len(trajectory.turns), calls, *shares])
    os.replace(path.with_suffix(".tmp"), path)


def warnings(args, report):
    """What a reader must know before quoting the score."""
    total, reasons = report["n_rows"] * report["n_samples"], report["finish_reasons"]
    found = [f"{report['n_error']} trajectories failed and are in no score; the same command runs them again"] if report["n_error"] else []
    for reason, flag in (("length", "max-tokens"), ("max_seq_len", "max-seq-len"), ("max_turns", "max-turns")):
        if reasons.get(reason, 0) > 0.2 * total:
            found.append(f"{reasons[reason]} of {total} trajectories were cut off by --{flag} {getattr(args, flag.replace('-', '_'))}")
    if args.policy == "gold" and report["reward_min"] is None:
        found.append("no row has a label, so the gold policy could not be graded")
    elif args.policy == "gold" and report["below_full"]:
        found.append("the gold policy did not earn full reward: the grader, the parser or the template is broken")
    return found


def main(argv=None):
    args = parse_args(argv)
    task = runs.load_module("tasks", args.task)
    backend = runs.load_module("backends", args.backend) if args.policy in NEED_MODEL else None
    options = backends.options(args, backend.create_sampler, args.model_revision) if backend else {}
    if not hasattr(task, NEEDS.get(args.policy, "start")):
        raise SystemExit(f"--policy {args.policy}: tasks/{args.task}.py has no {NEEDS[args.policy]}()")
    rows, inject = choose_rows(load_rows(args.data, task, args.set), args.limit), args.inject
    if inject is None and args.policy == "model" and not args.model_path and getattr(task, "FORMAT_REMINDER", ""):
        inject = task.FORMAT_REMINDER
        print(f"base model: the task's format reminder is appended to the prompt (--inject '' leaves it out): {inject}")
    if inject:
        inject_text(rows, inject)
    if args.output.exists() and not args.output.is_dir():
        raise SystemExit(f"--output {args.output} is a file")
    runs.make_folder(args.output, "--output")
    lock = runs.lock_folder(args.output)
    results = open_output(args, identity(args, inject or ""))
    last = args.output / "metrics.json"
    try:
        before = json.loads(last.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged: it is made again
        before = None
    meter = usage.Meter(args.price, before)
    jobs = [(row, index) for row in rows for index in range(args.samples) if (row["id"], index) not in results]
    print(f"{args.output}: {len(jobs)} trajectories to play, {len(rows) * args.samples - len(jobs)} are there already", flush=True)
    chat = load_chat(args.base_model, args.model_revision, args.template) if jobs else None
    if jobs and backend and args.price:
        usage.confirm(args, *usage.episodes(args, task, chat, rows, len(jobs)))
    runs.catch_interrupts()
    started = time.monotonic()

    async def run():
        made = await backend.create_sampler(args.base_model, args.model_path, **options) if backend else None
        sampler = usage.Counted(made, meter) if backend else None
        try:
            with open(args.output / "trajectories.jsonl", "ab") as log:
                return await play_all(args, task, jobs, chat, sampler, log)
        finally:
            await close(sampler)

    results |= asyncio.run(run()) if jobs else {}
    report = summarise(args, task, rows, results)
    report["seconds"], report["usage"] = round(time.monotonic() - started, 1), dict(meter.total)
    report["config"] = json.loads((args.output / "config.json").read_text(encoding="utf-8"))
    write_predictions(args, task, rows, results)
    runs.write_json(args.output / "metrics.json", report)
    tables.print_table(report)
    meter.report()
    found = warnings(args, report)
    for line in found:
        print(f"WARNING: {line}")
    print(f"{args.output}/: metrics.json, predictions.csv, trajectories.jsonl, images/; python analysis.py report {args.output} shows them")
    if lock:
        lock.close()
    return 1 if (found and (args.strict or args.policy == "gold")) or not report["n_ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
