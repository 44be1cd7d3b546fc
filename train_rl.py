r"""Stage 3: GRPO through the real tool loop. Sample groups, reward, compare within the group, one update, log, save.

    python train_rl.py --state-path runs/sft --learning-rate 3e-4 --kl-coef 0.2 --warmup-steps 10 --grad-clip 1 --max-steps 80 \
        --max-turns 4 --max-tokens 80 --max-seq-len 1024 --run-name rl                                                           # two cores, minutes
    python train_rl.py --state-path runs/spec-o3-sft --epochs 1                                                                  # the seed's settings
    torchrun --nproc-per-node 2 train_rl.py --state-path runs/spec-o3-sft --epochs 1                                             # two GPUs, the same update
    python train_rl.py --resume runs/rl                                                                                          # go on after Ctrl-C

One step (seed 001, section 5): --batch-size questions, --group-size trajectories of each from one policy version; reward by the task;
advantage within the group; every sampled token of a trajectory carries its trajectory's advantage over the number of sampled tokens in the
batch (the token mean of the seed; backends sum); one optimizer step. Groups whose rewards are all equal say nothing: skipped and counted.
Under torchrun each rank samples its part of the questions (seeds don't depend on who samples), --refill fills up each rank for itself, all
numbers are those of all ranks, and rank 0 alone prints and writes.

Options and what each does to the gradient:
    --advantage grpo|mean|rloo       by the group's standard deviation | not divided (Dr. GRPO) | against the mean of the others
    --virtual-max off|on|auto        NGRPO: a sample with full marks (--max-reward) joins the statistics, so that a group whose rewards are
                                     equal and below it is pushed away from what it did. It also pushes down right answers if they can't reach
                                     --max-reward: set that to what the reward can really give. auto: on while the running share of flat
                                     groups (0.9 old + 0.1 new, from 0) is above 30 %, until it is below 20 %: switched on by four steps of
                                     flat groups alone, or nine of every second one flat; off by six without any (0.34 x 0.9^6 = 0.18)
    --phase-weights PHASES           PRS: the reward is the weighted sum of the named parts, by share of the training: "0:thought=1;0.5:tool=1"
    --lead LOW,HIGH                  GRPO-LEAD: advantages of a question x LOW (its category was always right so far) to HIGH (always wrong)
    --dart REASONING,TOOL            DART: loss weights of the tokens of reasoning and of the call, each over their mean; 0.5,0.5 = no change
    --loss ppo|importance_sampling|cispo|gspo, --clip-low, --clip-high     the bounds of the ratio are 1 - low and 1 + high
    --kl-coef B                      adds -B (logp - logp_anchor) to every token's advantage; the anchor is the policy RL began with
    --truncated keep|mask            mask: trajectories cut by a limit stay in the statistics but train no token (DAPO)
    --length-penalty P               takes P x (sampled tokens / --max-tokens / --max-turns) off the reward
    --refill N                       up to N more rounds of questions in place of flat groups (DAPO's dynamic sampling, bounded)
    --pool OUTPUT --pool-range LO,HI only questions that an evaluation of several samples solved between LO and HI times
    --importance-cap C               weighs each token by min(p_trainer/p_sampler, C): for a sampler with other kernels than the trainer

frac_reward_zero_std counts groups of equal rewards, with or without a virtual sample; frac_groups_silent those that gave no gradient.
health.py warns while the run goes on, and prints its table of thresholds at the end.

Departures from the seed: exact --resume; a dead branch is dropped while three quarters of its group live; truncation is a finish reason of
its own; reward and evaluation read the answer in the same way.
"""

import argparse
import asyncio
import math
import random
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np

import advantages
import backends
import health
import runs
import usage
from backends import parallel
from records import load_rows


def pair(text, example="0.3,0.7"):
    """"0.3,0.7" -> (0.3, 0.7); what is none is told the example of its own flag."""
    numbers = [float(part) for part in text.split(",")]
    if len(numbers) != 2 or not all(math.isfinite(number) and number >= 0 for number in numbers) or not sum(numbers):
        raise ValueError(f"{text!r} is not two numbers from 0 on, as in {example}")
    return tuple(numbers)


def readable(read):
    """An argparse type: the text as it was typed (config.json keeps that), if `read` can make something of it."""

    def check(text):
        try:
            read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


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
    parser.add_argument("--pool-range", metavar="LO,HI", help="with --pool: solved between these times (default: 1,7)")
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
    parser.add_argument("--phase-weights", type=readable(advantages.read_phases), metavar="PHASES", help="PRS, as in \"0:thought=1,tool=0.2;0.5:tool=1\"")
    parser.add_argument("--lead", type=readable(partial(pair, example="0.3,3")), metavar="LOW,HIGH", help="GRPO-LEAD, as in 0.3,3")
    parser.add_argument("--dart", type=readable(pair), metavar="REASONING,TOOL", help="token weights, as in 0.3,0.7")
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
    backends.add_flags(parser)
    parser.add_argument("--vllm-memory", type=real(0.01, 0.99), metavar="SHARE", help="of the GPU's memory, with --backend vllm (default: 0.3)")
    parser.add_argument("--save-every", type=whole(int, 0), default=100, help="steps between checkpoints; 0 = at the end only (default: %(default)s)")
    parser.add_argument("--log-groups", type=whole(int, 0), default=1, help="groups a step whose trajectories are kept (default: %(default)s)")
    parser.add_argument("--strict", action="store_true", help="stop where a warning would do: nothing to learn from at step 1")
    usage.add_flags(parser)
    runs.add_run_flags(parser, "spec-o3-rl")
    args = runs.parse_args(parser)
    if args.virtual_max != "off" and args.advantage != "grpo":
        parser.error(f"--virtual-max {args.virtual_max} belongs to --advantage grpo: {args.advantage} has no statistics that it could join")
    if args.pool_range and not args.pool and not args.resume:
        parser.error("--pool-range needs --pool OUTPUT")
    args.data = Path(args.data or Path("datasets") / args.task / "rl" / "bench_rl_train.jsonl")
    args.clip_low = args.clip_ratio if args.clip_low is None else args.clip_low
    args.clip_high = args.clip_ratio if args.clip_high is None else args.clip_high
    return args


def filter_pool(args, rows):
    """The rows that were solved between the times of --pool-range in the evaluation --pool."""
    asked = args.pool_range or "1,7"
    try:
        low, high = (int(bound) for bound in asked.split(","))
        if low > high:
            raise ValueError
    except ValueError:
        raise SystemExit(f"--pool-range {asked!r}: two whole numbers, the smaller first, as in 1,7") from None
    if not (args.pool / "trajectories.jsonl").is_file():
        raise SystemExit(f"--pool {args.pool}: no trajectories.jsonl there; it is an --output folder of eval.py")
    solved = Counter()
    for record in runs.stream_trajectories(args.pool / "trajectories.jsonl", ("id", "parts")):
        solved[record["id"]] += record["parts"].get("correct", 0) == 1
    if not any(row["id"] in solved for row in rows):
        raise SystemExit(f"--pool {args.pool}: no question of {args.data} is in it, by id; it must be an evaluation of the same rows")
    kept = [row for row in rows if row["id"] in solved and low <= solved[row["id"]] <= high]
    print(f"--pool: {len(kept)} of {len(rows)} questions were solved {low} to {high} times")
    return kept


def load_questions(args, task):
    """Rows with ids of their own, and labels where the task needs them; after the pool filter."""
    rows = load_rows(args.data, task, args.set, graded=True)
    rows = filter_pool(args, rows) if args.pool else rows
    if not rows:
        raise SystemExit(f"{args.data}: no questions left by --pool")
    return rows


def batch_of(rows, args, epoch, offset, number=0):
    """The questions of a step. The order of an epoch depends on seed and epoch alone, so that a resumed run needs no history; number > 0: the
    rounds of --refill have orders of their own."""
    order = random.Random(f"{args.seed}-{epoch}-{number}").sample(range(len(rows)), len(rows))
    return [rows[i] for i in order[offset : offset + args.batch_size]]


def steps_left(rows, args, epoch, offset):
    """`offset` counts rows, not steps: a run may go on with another --batch-size."""
    return max(0, math.ceil((len(rows) - offset) / args.batch_size) + (args.epochs - epoch - 1) * math.ceil(len(rows) / args.batch_size))


def group_rewards(group, args, done=0.0):
    """Rewards of a group's trajectories, None where there is none (failed): by --phase-weights at this share of the training, with the
    length penalty."""
    budget = args.max_tokens * args.max_turns
    phases = advantages.read_phases(args.phase_weights) if args.phase_weights else None
    total = lambda t: advantages.phase_reward(t.parts, phases, done) if phases else t.reward
    return [None if t.reward is None else total(t) - args.length_penalty * sum(t.sampled) / budget for t in group]


def healthy(group):
    """Whether at least three quarters of the group lived: what is left of it then is trained, otherwise it is dropped."""
    return sum(t.reward is not None for t in group) >= max(2, 0.75 * len(group))


def judge(groups, args, memory, done):
    """([(trajectory, advantage)] of the groups that say something, counts): flat = equal rewards, silent = no gradient, dropped = too many
    trajectories failed. `memory`: what earlier steps left (virtual, errors)."""
    estimate = {"grpo": advantages.grpo, "mean": advantages.mean_only, "rloo": advantages.rloo}[args.advantage]
    useful, counts = [], Counter()
    for group in groups:
        if not healthy(group):
            counts["dropped"] += 1
            continue
        rewards = group_rewards(group, args, done)
        values, flat = estimate(rewards)
        counts["flat"] += flat
        if memory["virtual"]:
            values, flat = advantages.grpo(rewards, args.max_reward)
        counts["silent"] += flat
        if args.lead:
            values = values * advantages.lead_weight(memory["errors"].get(group[0].task), *pair(args.lead))
        useful += [] if flat else [(t, float(value)) for t, value in zip(group, values) if t.reward is not None]
    return useful, counts


def remember(memory, groups, counts, args):
    """What the next steps need: the share of flat groups, whether the virtual sample is in, each category's share of wrong answers."""
    memory["flat_share"] = 0.9 * memory["flat_share"] + 0.1 * counts["flat"] / len(groups)
    if args.virtual_max == "auto":
        memory["virtual"] = advantages.virtual_switch(memory["virtual"], memory["flat_share"])
    wrong = {}
    for t in (t for group in groups for t in group if t.reward is not None):
        wrong.setdefault(t.task, []).append(1 - t.parts.get("correct", float(t.reward >= args.max_reward)))
    for name, values in wrong.items():
        memory["errors"][name] = 0.9 * memory["errors"].get(name, np.mean(values)) + 0.1 * float(np.mean(values))


def dart_weights(trajectory, row, task, chat, split):
    """Weights of the sampled tokens by the field of the reply that they stand in: the task says where its fields are."""
    from protocol import decode

    weights = []
    for turn in trajectory.turns:
        ends = advantages.character_ends(lambda tokens: decode(chat, tokens), turn.tokens)
        weights.append(advantages.token_weights(ends, task.token_spans(row, decode(chat, turn.tokens)), *split))
    return np.concatenate(weights)


def check_phases(args, groups):
    """A part that no trajectory has is a slip of the pen: it would silently count nothing."""
    there = sorted({name for group in groups for t in group for name in t.parts})
    missing = {name for _, weights in advantages.read_phases(args.phase_weights) for name in weights} - {*there}
    if missing and there:  # nothing there: every trajectory failed, which is said elsewhere
        raise SystemExit(f"--phase-weights: no part {', '.join(sorted(missing))}; the rewards of this task have {', '.join(there)}")


async def update(trainer, anchor, data, args, updates):
    """One optimizer step on the datums of all ranks, if there are any. Returns its metrics; `data`: this rank's."""
    mine = sum(int((datum.weights != 0).sum()) for datum in data)
    trained, tokens = map(sum, zip(*await parallel.gather((len(data), mine))))
    values = {"trained_trajectories": trained, "train/assistant_tokens": tokens}
    if not trained:
        return values
    temperature, here = {"temperature": args.temperature}, {}  # here: means over this rank's tokens
    if anchor:  # the distance to the anchor is a penalty on each token's advantage, before the division
        now = await anchor.forward(data, "cross_entropy", temperature)
        for datum, reference in zip(data, now.logprobs):
            datum.advantages = datum.advantages - args.kl_coef * (datum.logprobs - reference) * (datum.weights != 0)
        apart = [(datum.logprobs - reference)[datum.weights != 0] for datum, reference in zip(data, now.logprobs)]
        here |= {"kl_anchor": float(np.mean(np.concatenate(apart)))} if apart else {}
    for datum in data:  # the token mean of the whole batch, since backends sum
        datum.advantages = (datum.advantages / max(1, tokens)).astype(np.float32)
    if args.importance_cap:  # what the sampler's probabilities lack against the trainer's, as a constant weight
        before = await trainer.forward(data, "cross_entropy", temperature)
        for datum, logprobs in zip(data, before.logprobs):
            datum.weights = datum.weights * np.minimum(np.exp(logprobs - datum.logprobs), args.importance_cap).astype(np.float32)
            datum.logprobs = logprobs
    bounds = {"clip_low_threshold": 1 - args.clip_low, "clip_high_threshold": 1 + args.clip_high}
    rate = args.learning_rate * min(1.0, (updates + 1) / max(1, args.warmup_steps))
    # Both are submitted before either is awaited: a remote service then never waits for us between them.
    forward = asyncio.ensure_future(trainer.forward_backward(data, args.loss, temperature | ({} if args.loss == "importance_sampling" else bounds)))
    step = asyncio.ensure_future(trainer.optim_step(backends.AdamParams(learning_rate=rate, grad_clip_norm=args.grad_clip)))
    output, stepped = await forward, await step
    names = {"ratio_mean": "ratio_mean", "clip_fraction": "clip_fraction", "kl": "kl", "entropy": "entropy", "logp_gap": "sampler_logp_diff"}
    here |= {ours: output.metrics[theirs] for theirs, ours in names.items() if theirs in output.metrics}
    parts = await parallel.gather((output.metrics["loss_sum"], mine, here))
    known = list(dict.fromkeys(name for _, _, means in parts for name in means))
    means = {name: sum(count * means[name] for _, count, means in parts if count) / max(1, tokens) for name in known}
    return values | {"loss": sum(loss for loss, _, _ in parts), "lr": rate, "grad_norm": stepped["grad_norm"]} | means


async def main():
    args = parse_args()
    rank, ranks = parallel.join(args)
    task, backend = runs.load_module("tasks", args.task), runs.load_module("backends", args.backend)
    options = backends.options(args, backend.load_trainer)
    sampling = {"sampling": True} if args.fsdp else {}  # split weights can't be sampled from: a whole copy stands beside them
    rows, folder = load_questions(args, task), args.data.parent  # before the run takes its name: what is wrong here is mended and tried again
    if args.dart and not hasattr(task, "token_spans"):
        raise SystemExit(f"--dart: tasks/{args.task}.py has no token_spans(row, text), which says where reasoning and call stand")
    # A resumed run needs the place where it began for the anchor alone: its folder may be gone.
    begin = runs.resolve(args.state_path, "state_path") if args.kl_coef or not (args.resume and runs.latest_checkpoint(args.resume)) else None
    run = runs.open_run(args.run_name, args, args.resume)
    runs.catch_interrupts()
    from tqdm import tqdm

    from protocol import SamplingParams, json_line, load_chat, rl_datum
    from records import outline
    from rollout import derive_seed, rollout_group, trajectory_to_json

    # ---------------------------------------------------------------- model, place in the data
    before = run.restored or {"state_path": begin, "step": 0, "epoch": 0, "offset": 0, "updates": 0}
    meter, with_optimizer = usage.Meter(args.price, run.restored), args.resume_optimizer or bool(run.restored)
    trainer = usage.Counted(await backend.load_trainer(before["state_path"], with_optimizer=with_optimizer, **options, **sampling), meter)
    chat = load_chat(args.base_model or trainer.base_model, args.model_revision, args.template)
    anchor = usage.Counted(await backend.load_trainer(begin, with_optimizer=False, **options), meter) if args.kl_coef else None
    params = SamplingParams(args.max_tokens, args.temperature, args.top_p)
    step, updates, epoch = before["step"], before["updates"], before["epoch"]
    offset = before.get("offset", before.get("position", 0) * args.batch_size)  # in rows (older checkpoints counted steps)
    memory = {"flat_share": before.get("flat_share", 0.0), "virtual": before.get("virtual", False), "errors": before.get("errors", {})}
    memory["virtual"] = {"on": True, "off": False, "auto": memory["virtual"]}[args.virtual_max]
    by_id = {str(row["id"]): row for row in rows}
    run.total = min(step + steps_left(rows, args, epoch, offset), args.max_steps or math.inf)
    tools, recent, said = ThreadPoolExecutor(args.tool_workers, thread_name_prefix="tool"), deque(maxlen=health.WINDOW), set()
    if args.price:
        count = (run.total - step) * args.batch_size * args.group_size
        usage.confirm(args, *usage.episodes(args, task, chat, rows, count, args.group_size), f"start it with --resume {run.folder} --yes")
    outer = tqdm(total=run.total * args.batch_size * args.group_size, initial=step * args.batch_size * args.group_size, desc="trajectories", disable=rank > 0 or None)
    inner = tqdm(total=args.batch_size * args.group_size // ranks, desc="this step", leave=False, disable=rank > 0 or None)

    # ---------------------------------------------------------------- phases of a step
    async def sample(batch, number):
        """A group of trajectories of each question."""
        seed = derive_seed(args.seed, "step", step, number)

        async def one(row):
            group = await rollout_group(
                task, row, chat, trainer.sampler(), params, group_size=args.group_size, folder=folder, max_turns=args.max_turns,
                max_seq_len=args.max_seq_len, seed=seed, executor=tools, tool_timeout=args.tool_timeout,
            )  # fmt: skip
            inner.update(len(group))
            return group

        return await asyncio.gather(*(one(row) for row in batch))

    async def explore(done):
        """This rank's groups of the step, what they say (see `judge`), and counts."""
        groups = await sample(batch_of(rows, args, epoch, offset)[rank::ranks], 0)
        useful, counts = judge(groups, args, memory, done)
        for number in range(1, args.refill + 1):
            wanted = math.ceil(len(groups) / number) - len(useful) // args.group_size if counts["silent"] else 0
            if wanted <= 0:
                break
            groups += await sample(batch_of(rows, args, epoch, offset, number)[rank::ranks][:wanted], number)
            useful, counts = judge(groups, args, memory, done)
        return groups, useful, counts

    async def meet(groups, counts):
        """Outlines of all ranks' groups in the order of the batch, and counts of all: what follows from these is the same on every rank."""
        parts = await parallel.gather(([[outline(t) for t in group] for group in groups], counts))
        everyone = [group for abreast in zip_longest(*(part for part, _ in parts)) for group in abreast if group is not None]
        return everyone, sum((part for _, part in parts), Counter())

    def datums(useful):
        """What is trained."""
        cut = [t for t, _ in useful if t.finish_reason in ("length", "max_seq_len")]
        kept = [(t, value) for t, value in useful if any(t.sampled) and not (args.truncated == "mask" and t in cut)]
        weights = [dart_weights(t, by_id[t.id], task, chat, pair(args.dart)) if args.dart else None for t, _ in kept]
        return [rl_datum(t, value, weight) for (t, value), weight in zip(kept, weights)]

    async def keep(groups):
        """Writes the first --log-groups groups of the batch. Returns whether any rank was asked to stop."""
        logged = [group for place, group in enumerate(groups) if rank + place * ranks < args.log_groups]
        lines = [json_line({"step": step, **trajectory_to_json(t, run.folder)}) for group in logged for t in group]
        parts = await parallel.gather((lines, meter.new(), runs.stop_requested()))
        meter.share([used for _, used, _ in parts])
        if run.writes:
            with open(run.folder / "trajectories.jsonl", "ab") as file:
                file.writelines(line for lines, _, _ in parts for line in lines)
        return any(stop for _, _, stop in parts)

    async def save():
        with runs.saving(run, step) as where:
            state = {"epoch": epoch, "offset": offset, "updates": updates, **memory, "usage": dict(meter.total)}
            state["state_path"] = await trainer.save_state(where / "state")
            state["sampler_path"] = await trainer.save_weights_for_sampler(where / "sampler")
            runs.save_checkpoint(run, step, state)

    # ---------------------------------------------------------------- loop
    while step < run.total:
        begun, done = time.monotonic(), step / run.total
        inner.reset()
        inner.set_description("sampling")
        groups, useful, counts = await explore(done)
        everyone, counts = await meet(groups, counts)
        sampled, trajectories = time.monotonic() - begun, [t for group in everyone for t in group]
        if args.phase_weights and step == 0:
            check_phases(args, everyone)
        if all(t.reward is None for t in trajectories):
            raise SystemExit(f"every trajectory of step {step + 1} failed, the first: {trajectories[0].error or 'it has no reward; do the rows have labels?'}")
        values = health.measures(trajectories) | health.spread(everyone, [group_rewards(group, args, done) for group in everyone])
        values |= {"frac_reward_zero_std": counts["flat"] / len(everyone), "frac_groups_silent": counts["silent"] / len(everyone),
                   "groups_dropped": counts["dropped"], "failed": sum(t.reward is None for t in trajectories),
                   "virtual_max": int(memory["virtual"]), "sampler_version": trainer.sampler().version}  # fmt: skip
        remember(memory, everyone, counts, args)

        inner.set_description("training")
        values |= await update(trainer, anchor, datums(useful), args, updates)
        updates += values["trained_trajectories"] > 0
        seconds = time.monotonic() - begun
        values |= {"time/rollout": sampled, "time/train": seconds - sampled, "time/step": seconds, "train/updates": updates,
                   "tok_per_sec": sum(sum(t.sampled) for t in trajectories) / seconds}  # fmt: skip
        if step == 0:
            health.hopeless(values, trajectories, bool(getattr(task, "TOOLS", None)), args.strict)
        recent.append(values)
        said = health.warn(recent, said)

        step, offset = step + 1, offset + args.batch_size
        epoch, offset = (epoch, offset) if offset < len(rows) else (epoch + 1, 0)
        stopping = await keep(groups)
        outer.update(len(trajectories))
        shown = ("reward/mean", "reward/correct", "format_rate", "tool_calls_mean", "frac_reward_zero_std", "entropy", "kl", "grad_norm", "time/step")
        values |= meter.step() | {"train/epoch": epoch + offset / len(rows)}
        runs.log_metrics(run, step, values, shown if step % max(1, run.total // 30) == 0 or step == 1 else ())
        if step == run.total or stopping or offset == 0 or (args.save_every and step % args.save_every == 0):
            await save()
        if stopping and step < run.total:
            print(f"stopped after step {step}; go on with: python train_rl.py --resume {run.folder}")
            break
    inner.close()
    outer.close()
    tools.shutdown(wait=False, cancel_futures=True)
    if run.writes:
        print(health.table(run.folder, args.max_reward))
    meter.report()
    runs.close_run(run, finished=step >= run.total)
    trainer.close()
    if anchor:
        anchor.close()
    parallel.leave()
    return 130 if step < run.total else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
