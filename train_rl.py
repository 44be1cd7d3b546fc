"""Stage 3: GRPO through the real tool loop. Sample groups, reward, compare within the group, one update, log, save.

    python train_rl.py --state-path runs/sft --learning-rate 2e-4 --max-steps 60 --max-turns 4 --max-tokens 96 --run-name rl     # two cores, minutes
    python train_rl.py --state-path runs/spec-o3-sft --epochs 1                                                                  # the seed's settings
    python train_rl.py --resume runs/rl                                                                                          # go on after Ctrl-C

One step (seed 001, section 5): --batch-size questions, --group-size trajectories of each from one policy version; reward by the task;
advantage within the group; every sampled token of a trajectory carries its trajectory's advantage over the number of sampled tokens in the
batch (the token mean of the seed; backends sum); one optimizer step. Groups whose rewards are all equal say nothing: skipped and counted.

Options and what each does to the gradient:
    --advantage grpo|mean|rloo       by the group's standard deviation | not divided (Dr. GRPO) | against the mean of the others
    --virtual-max off|on|auto        NGRPO: a full-mark sample joins the statistics, so that a group that failed alike still learns;
                                     auto = while the running share of flat groups is above 30 %
    --loss ppo|importance_sampling|cispo|gspo, --clip-low, --clip-high     the bounds of the ratio are 1 - low and 1 + high
    --kl-coef B                      adds -B (logp - logp_anchor) to every token's advantage; the anchor is the policy RL began with
    --truncated keep|mask            mask: trajectories cut by a limit stay in the statistics but train no token (DAPO)
    --length-penalty P               takes P x (sampled tokens / --max-tokens / --max-turns) off the reward
    --refill N                       up to N more rounds of questions in place of flat groups (DAPO's dynamic sampling, bounded)
    --pool OUTPUT --pool-range LO,HI only questions that an evaluation of several samples solved between LO and HI times
    --importance-cap C               weighs each token by min(p_trainer/p_sampler, C): for a sampler with other kernels than the trainer

Departures from the seed: exact --resume; a dead branch is dropped while three quarters of its group live; truncation is a finish reason of
its own; reward and evaluation read the answer in the same way.
"""

import argparse
import asyncio
import json
import math
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import backends
import runs
import usage


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    whole, real = runs.number, lambda low=None, high=None: runs.number(float, low, high)
    # Model and data
    parser.add_argument("--state-path", required=True, help="where to begin: state_path of train_sft.py, its run folder, or a model folder")
    parser.add_argument("--resume-optimizer", action="store_true", help="keep the optimizer state of --state-path")
    parser.add_argument("--base-model", help="tokenizer, processor, template (default: what the state says)")
    parser.add_argument("--model-revision", default="main", help="of a hub id (default: %(default)s)")
    parser.add_argument("--template", help="chat template: a file or a name in templates/ (default: chosen by the model)")
    parser.add_argument("--task", default="spec_o3", help="a module of tasks/ (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="JSONL of questions (default: datasets/<task>/rl/bench_rl_train.jsonl)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="put a value into every row, as in judge=v3 (JSON or text); may be given again")
    parser.add_argument("--pool", type=Path, help="an --output folder of eval.py with several samples a question")
    parser.add_argument("--pool-range", default="1,7", help="with --pool: solved between these times (default: %(default)s)")
    # Rollout
    parser.add_argument("--batch-size", type=whole(int, 1), default=8, help="questions a step (default: %(default)s)")
    parser.add_argument("--group-size", type=whole(int, 2), default=8, help="trajectories a question, at least 2 (default: %(default)s)")
    parser.add_argument("--max-turns", type=whole(int, 1), default=8, help="generations, the answer included (default: %(default)s)")
    parser.add_argument("--max-tokens", type=whole(int, 1), default=2048, help="tokens a generation (default: %(default)s)")
    parser.add_argument("--max-seq-len", type=whole(int, 1), default=16384, help="positions in all (default: %(default)s)")
    parser.add_argument("--temperature", type=real(1e-3), default=1.0, help="of sampler and trainer (default: %(default)s)")
    parser.add_argument("--top-p", type=real(1e-6, 1), default=1.0, help="(default: %(default)s)")
    parser.add_argument("--tool-timeout", type=real(0.001), default=60.0, help="seconds a tool may take (default: %(default)s)")
    parser.add_argument("--tool-workers", type=whole(int, 1), default=4, help="threads for tools (default: %(default)s)")
    # Algorithm
    parser.add_argument("--advantage", choices=["grpo", "mean", "rloo"], default="grpo", help="(default: %(default)s)")
    parser.add_argument("--virtual-max", choices=["off", "on", "auto"], default="off", help="NGRPO (default: %(default)s)")
    parser.add_argument("--max-reward", type=real(), default=1.0, help="full marks, for --virtual-max (default: %(default)s)")
    parser.add_argument("--loss", choices=["ppo", "importance_sampling", "cispo", "gspo"], default="ppo", help="(default: %(default)s)")
    parser.add_argument("--clip-ratio", type=real(0), default=0.2, help="both bounds, unless given apart (default: %(default)s)")
    parser.add_argument("--clip-low", type=real(0, 1))
    parser.add_argument("--clip-high", type=real(0))
    parser.add_argument("--kl-coef", type=real(0), default=0.0, help="(default: %(default)s)")
    parser.add_argument("--truncated", choices=["keep", "mask"], default="keep", help="(default: %(default)s)")
    parser.add_argument("--length-penalty", type=real(0), default=0.0, help="(default: %(default)s)")
    parser.add_argument("--refill", type=whole(int, 0), default=0, help="rounds (default: %(default)s)")
    parser.add_argument("--importance-cap", type=real(0), default=0.0, help="0 = off (default: %(default)s)")
    # Optimisation
    parser.add_argument("--epochs", type=whole(int, 1), default=1, help="(default: %(default)s)")
    parser.add_argument("--max-steps", type=whole(int, 0), default=0, help="stop after so many steps, 0 = all epochs (default: %(default)s)")
    parser.add_argument("--learning-rate", type=real(0), default=1e-6, help="(default: %(default)s)")
    parser.add_argument("--warmup-steps", type=whole(int, 0), default=0, help="(default: %(default)s)")
    parser.add_argument("--grad-clip", type=real(0), default=0.0, help="norm, 0 = off (default: %(default)s)")
    # Running
    parser.add_argument("--backend", default="local", help="a module of backends/ (default: %(default)s)")
    parser.add_argument("--device", help="cpu, cuda ... (default: the backend's choice)")
    parser.add_argument("--base-url", type=backends.service_url, help="address of a service, for --backend pytrio and tinker (default: theirs)")
    parser.add_argument("--save-every", type=whole(int, 0), default=100, help="steps between checkpoints; 0 = at the end only (default: %(default)s)")
    parser.add_argument("--log-groups", type=whole(int, 0), default=1, help="groups a step whose trajectories are kept (default: %(default)s)")
    parser.add_argument("--strict", action="store_true", help="stop where a warning would do: nothing to learn from at step 1")
    usage.add_flags(parser)
    runs.add_run_flags(parser, "spec-o3-rl")
    args = runs.parse_args(parser)
    args.data = Path(args.data or Path("datasets") / args.task / "rl" / "bench_rl_train.jsonl")
    args.clip_low = args.clip_ratio if args.clip_low is None else args.clip_low
    args.clip_high = args.clip_ratio if args.clip_high is None else args.clip_high
    return args


def load_rows(args, task):
    """Questions, after the pool filter."""
    from protocol import read_jsonl

    rows, chosen = read_jsonl(args.data), {}
    for pair in args.set:
        name, separator, value = pair.partition("=")
        if not separator or name in ("", "id", "messages", "label"):
            raise SystemExit(f"--set {pair!r}: KEY=VALUE with a key of the row other than id, messages and label")
        try:
            chosen[name] = json.loads(value)
        except ValueError:
            chosen[name] = value
    rows = [row | chosen if isinstance(row, dict) else row for row in rows]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or "id" not in row or not row.get("messages"):
            raise SystemExit(f"{args.data}, row {number}: needs id and messages; write the file with prepare_data.py bench")
        if wrong := getattr(task, "check_row", lambda row: "")(row):
            raise SystemExit(f"{args.data}, row {number}: {wrong}")
    if args.pool:
        try:
            low, high = (int(bound) for bound in args.pool_range.split(","))
            if low > high:
                raise ValueError
        except ValueError:
            raise SystemExit(f"--pool-range {args.pool_range!r}: two whole numbers, the smaller first, as in 1,7") from None
        if not (args.pool / "trajectories.jsonl").is_file():
            raise SystemExit(f"--pool {args.pool}: no trajectories.jsonl there; it is an --output folder of eval.py")
        solved = Counter()
        for record in runs.stream_jsonl(args.pool / "trajectories.jsonl"):
            solved[record["id"]] += record["parts"].get("correct", 0) == 1
        before, rows = len(rows), [row for row in rows if row["id"] in solved and low <= solved[row["id"]] <= high]
        print(f"--pool: {len(rows)} of {before} questions were solved {low} to {high} times")
    if not rows:
        raise SystemExit(f"{args.data}: no questions" + (" left by --pool" if args.pool else ""))
    return rows


def group_rewards(group, args):
    """Rewards of a group's trajectories, None where there is none (failed), with the length penalty."""
    budget = args.max_tokens * args.max_turns
    return [None if t.reward is None else t.reward - args.length_penalty * sum(t.sampled) / budget for t in group]


def healthy(group):
    """Whether at least three quarters of the group lived: what is left of it then is trained, otherwise it is dropped."""
    return sum(t.reward is not None for t in group) >= max(2, 0.75 * len(group))


def measures(trajectories):
    """What tells a healthy run from a dead one, over all trajectories of a step."""
    alive = [t for t in trajectories if t.reward is not None] or trajectories
    calls = [turn for t in alive for turn in t.turns if turn.action is not None and turn.action.kind == "tool"]
    ends = Counter(t.finish_reason for t in trajectories)
    values = {
        "reward/mean": np.mean([t.reward or 0.0 for t in alive]),
        "reward/std": np.std([t.reward or 0.0 for t in alive]),
        "format_rate": np.mean([t.format_ok for t in alive]),
        "turns_mean": np.mean([len(t.turns) for t in alive]),
        "tool_calls_mean": (len(calls) + sum(len(turn.inline) for t in alive for turn in t.turns)) / len(alive),
        "tool_errors": sum(turn.observation is not None and not turn.observation.ok for turn in calls),
        "completions/mean_length": np.mean([sum(t.sampled) for t in alive]),
        "clipped_ratio": sum(ends[name] for name in ("length", "max_seq_len")) / len(trajectories),
        "time/tool": sum(t.seconds.get("tool", 0.0) for t in trajectories),
    }
    for name in sorted({name for t in alive for name in t.parts}):
        values[f"reward/{name}"] = np.mean([t.parts.get(name, 0.0) for t in alive])
    return {**{name: float(value) for name, value in values.items()}, **{f"finish/{name}": count for name, count in ends.items()}}


def warn_if_hopeless(values, trajectories, groups, strict):
    """Step 1: say loudly what cannot learn, and why."""
    reasons = []
    if values["clipped_ratio"] > 0.5:
        reasons.append(f"{values['clipped_ratio']:.0%} of the generations were cut off: raise --max-tokens or --max-seq-len")
    if values["frac_reward_zero_std"] == 1:
        reasons.append("the rewards of every group are equal: the questions are all too easy, all too hard, or the format is not learnt yet (run SFT first)")
    failed = [t for t in trajectories if t.reward is None]
    if len(failed) > len(trajectories) / 4:
        reasons.append(f"{len(failed)} of {len(trajectories)} trajectories failed, the first: {failed[0].error or 'no reward'}")
    if groups and values["tool_calls_mean"] == 0:
        reasons.append("no tool was called: is the template that of SFT?")
    for reason in reasons:
        print(f"WARNING: {reason}", flush=True)
    if reasons and strict:
        raise SystemExit("stopped at step 1 (--strict)")


def normalised(datum, tokens):
    """The batch's token mean, since backends sum."""
    datum.advantages = (datum.advantages / tokens).astype(np.float32)
    return datum


async def main():
    args = parse_args()
    task, backend = runs.load_module("tasks", args.task), runs.load_module("backends", args.backend)
    options = backends.options(args, backend.load_trainer)
    rows, folder = load_rows(args, task), args.data.parent  # before the run takes its name: what is wrong here is mended and tried again
    begin = runs.resolve(args.state_path, "state_path")
    run = runs.open_run(args.run_name, args, args.resume)
    runs.catch_interrupts()
    from tqdm import tqdm

    import advantages
    from protocol import SamplingParams, json_line, load_chat, rl_datum
    from rollout import derive_seed, rollout_group, trajectory_to_json

    # ---------------------------------------------------------------- model, questions
    meter = usage.Meter(args.price, run.restored)
    state_path = run.restored["state_path"] if run.restored else begin
    with_optimizer = args.resume_optimizer or bool(run.restored)
    trainer = usage.Counted(await backend.load_trainer(state_path, with_optimizer=with_optimizer, **options), meter)
    chat = load_chat(args.base_model or trainer.base_model, args.model_revision, args.template)
    anchor = usage.Counted(await backend.load_trainer(begin, with_optimizer=False, **options), meter) if args.kl_coef else None
    params = SamplingParams(args.max_tokens, args.temperature, args.top_p)
    per_epoch = math.ceil(len(rows) / args.batch_size)
    run.total = min(per_epoch * args.epochs, args.max_steps or per_epoch * args.epochs)
    step, flat_share = (run.restored["step"], run.restored["flat_share"]) if run.restored else (0, 0.0)
    updates = run.restored["updates"] if run.restored else 0
    if args.price:
        count = (run.total - step) * args.batch_size * args.group_size
        usage.confirm(args, *usage.episodes(args, task, chat, rows, count, args.group_size), f"start it with --resume {run.folder} --yes")
    advantage = {"grpo": advantages.grpo, "mean": advantages.mean_only, "rloo": advantages.rloo}[args.advantage]
    tools = ThreadPoolExecutor(args.tool_workers, thread_name_prefix="tool")

    def questions(number, index):
        """Rows of step index+1; number > 0: the rounds of --refill, drawn from an order of their own."""
        epoch, position = divmod(index, per_epoch)
        order = random.Random(f"{args.seed}-{epoch}-{number}").sample(range(len(rows)), len(rows))
        return [rows[i] for i in order[position * args.batch_size : (position + 1) * args.batch_size]]

    async def sample_groups(batch, number, bar):
        seed = derive_seed(args.seed, "step", step, number)

        async def one(row):
            group = await rollout_group(
                task, row, chat, trainer.sampler(), params, group_size=args.group_size, folder=folder, max_turns=args.max_turns,
                max_seq_len=args.max_seq_len, seed=seed, executor=tools, tool_timeout=args.tool_timeout,
            )  # fmt: skip
            bar.update(len(group))
            return group

        return await asyncio.gather(*(one(row) for row in batch))

    def judge(groups):
        """[(trajectory, advantage)] of the groups that say something, and how many were flat or dropped."""
        virtual = args.max_reward if args.virtual_max == "on" or (args.virtual_max == "auto" and flat_share > 0.3) else None
        useful, flat, dropped = [], 0, 0
        for group in groups:
            if not healthy(group):
                dropped += 1
                continue
            rewards = group_rewards(group, args)
            values, equal = advantage(rewards, virtual) if args.advantage == "grpo" else advantage(rewards)
            flat += equal
            useful += [] if equal else [(t, float(value)) for t, value in zip(group, values) if t.reward is not None]
        return useful, flat, dropped, virtual is not None

    async def penalise_distance(data):
        """KL to the anchor as a per-token penalty on the advantage, before the division."""
        now = await anchor.forward(data, "cross_entropy", {"temperature": args.temperature})
        for datum, reference in zip(data, now.logprobs):
            datum.advantages = datum.advantages - args.kl_coef * (datum.logprobs - reference) * (datum.weights != 0)
        return float(np.mean(np.concatenate([(d.logprobs - r)[d.weights != 0] for d, r in zip(data, now.logprobs)])))

    async def save():
        with runs.saving(run, step) as where:
            state = {"epoch": step // per_epoch, "position": step % per_epoch, "flat_share": flat_share, "updates": updates, "usage": dict(meter.total)}
            state["state_path"] = await trainer.save_state(where / "state")
            state["sampler_path"] = await trainer.save_weights_for_sampler(where / "sampler")
            runs.save_checkpoint(run, step, state)

    # ---------------------------------------------------------------- loop
    outer = tqdm(total=run.total * args.batch_size * args.group_size, initial=step * args.batch_size * args.group_size, desc="trajectories", disable=None)
    inner = tqdm(total=args.batch_size * args.group_size, desc="this step", leave=False, disable=None)
    while step < run.total:
        begun, phases = time.monotonic(), {}
        inner.reset()
        inner.set_description("sampling")
        groups = await sample_groups(questions(0, step), 0, inner)
        useful, flat, dropped, virtual = judge(groups)
        for number in range(1, args.refill + 1):
            wanted = math.ceil(len(groups) / number) - len(useful) // args.group_size if flat else 0
            if wanted <= 0:
                break
            groups += await sample_groups(questions(number, step)[:wanted], number, inner)
            useful, flat, dropped, virtual = judge(groups)
        trajectories = [t for group in groups for t in group]
        phases["time/rollout"] = time.monotonic() - begun
        if all(t.reward is None for t in trajectories):
            raise SystemExit(f"every trajectory of step {step + 1} failed, the first: {trajectories[0].error or 'it has no reward; do the rows have labels?'}")
        flat_share = 0.9 * flat_share + 0.1 * flat / len(groups)
        values = measures(trajectories)
        values |= {"frac_reward_zero_std": flat / len(groups), "groups_dropped": dropped, "failed": sum(t.reward is None for t in trajectories),
                   "virtual_max": int(virtual), "sampler_version": trainer.sampler().version}  # fmt: skip

        # ------------------------------------------------------------ one update
        inner.set_description("training")
        cut = [t for t, _ in useful if t.finish_reason in ("length", "max_seq_len")]
        kept = [(t, value) for t, value in useful if any(t.sampled) and not (args.truncated == "mask" and t in cut)]
        data = [rl_datum(t, value) for t, value in kept]
        values["trained_trajectories"] = len(data)
        if data and args.kl_coef:
            values["kl_anchor"] = await penalise_distance(data)
        if data:
            tokens = sum(int((datum.weights != 0).sum()) for datum in data)
            data = [normalised(datum, tokens) for datum in data]
            config = {"temperature": args.temperature}
            if args.loss != "importance_sampling":
                config |= {"clip_low_threshold": 1 - args.clip_low, "clip_high_threshold": 1 + args.clip_high}
            if args.importance_cap:  # what the sampler's probabilities lack against the trainer's, as a constant weight
                before = await trainer.forward(data, "cross_entropy", {"temperature": args.temperature})
                for datum, logprobs in zip(data, before.logprobs):
                    datum.weights = datum.weights * np.minimum(np.exp(logprobs - datum.logprobs), args.importance_cap).astype(np.float32)
                    datum.logprobs = logprobs
            rate = args.learning_rate * min(1.0, (updates + 1) / max(1, args.warmup_steps))
            forward = asyncio.ensure_future(trainer.forward_backward(data, args.loss, config))
            update = asyncio.ensure_future(trainer.optim_step(backends.AdamParams(learning_rate=rate, grad_clip_norm=args.grad_clip)))
            output, stepped = await forward, await update
            updates += 1
            found = output.metrics
            values |= {"loss": found["loss_sum"], "train/assistant_tokens": tokens, "lr": rate, "grad_norm": stepped["grad_norm"]}
            names = {"ratio_mean": "ratio_mean", "clip_fraction": "clip_fraction", "kl": "kl", "entropy": "entropy", "logp_gap": "sampler_logp_diff"}
            values |= {ours: found[theirs] for theirs, ours in names.items() if theirs in found}
        else:
            values["train/assistant_tokens"] = 0
        phases["time/train"] = time.monotonic() - begun - phases["time/rollout"]
        seconds = time.monotonic() - begun
        values |= {**phases, "time/step": seconds, "tok_per_sec": sum(sum(t.sampled) for t in trajectories) / seconds, "train/updates": updates}
        if step == 0:
            warn_if_hopeless(values, trajectories, groups, args.strict)
        step += 1
        with open(run.folder / "trajectories.jsonl", "ab") as file:
            for group in groups[: args.log_groups]:
                for t in group:
                    file.write(json_line({"step": step, **trajectory_to_json(t, run.folder)}))
        outer.update(len(trajectories))
        shown = ("reward/mean", "reward/correct", "format_rate", "tool_calls_mean", "frac_reward_zero_std", "entropy", "kl", "grad_norm", "time/step")
        runs.log_metrics(run, step, values | meter.step() | {"train/epoch": step / per_epoch}, shown if step % max(1, run.total // 30) == 0 or step == 1 else ())
        stopping = runs.stop_requested()
        if step == run.total or stopping or step % per_epoch == 0 or (args.save_every and step % args.save_every == 0):
            await save()
        if stopping and step < run.total:
            print(f"stopped after step {step}; go on with: python train_rl.py --resume {run.folder}")
            break
    inner.close()
    outer.close()
    tools.shutdown(wait=False, cancel_futures=True)
    meter.report()
    runs.close_run(run, finished=step >= run.total)
    trainer.close()
    if anchor:
        anchor.close()
    return 130 if runs.stop_requested() and step < run.total else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
