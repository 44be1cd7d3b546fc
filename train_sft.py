r"""Stage 2: supervised cold start. Learn the whole interaction (think, call, look, answer, stop) from demonstrations.

    python train_sft.py --base-model models/tiny-vlm --rank 0 --freeze-vision --learning-rate 1.2e-3 --schedule cosine --warmup 0.05 --grad-clip 1 \
        --answer-weight 40 --batch-size 12 --epochs 6 --run-name sft                                                   # two cores, minutes
    python train_sft.py --base-model Qwen/Qwen3.5-4B --epochs 2 --run-name spec-o3-sft                                 # the seed's settings
    python train_sft.py --backend pytrio --base-model Qwen/Qwen3.5-4B --price 0.8,4.5,4.5 --run-name sft-4b             # on a service
    torchrun --nproc-per-node 2 train_sft.py --base-model Qwen/Qwen3.5-4B --epochs 2 --run-name spec-o3-sft             # two GPUs, the same update
    python train_sft.py --resume runs/sft                                                                              # go on after Ctrl-C

What is trained (seed 001, section 4.1): every token that the assistant writes: thought, call, answer, end of turn. Prompt, tool results and
pictures are context with weight zero. The loss is the mean over the trained tokens of a batch; the division is done here, in sight, because
backends sum. Under torchrun each rank takes its part of every batch, and rank 0 alone prints and writes.
Prints state_path (to go on training: train_rl.py --state-path) and sampler_path (to evaluate: eval.py --model-path).

Departures from the seed: --resume continues exactly; validation loss before the first step too; --answer-weight (1 = the seed) for models so
small that one token in two hundred carries all that is left to learn.
"""

import argparse
import asyncio
import math
import random
import time
from pathlib import Path

import numpy as np

import backends
import runs
import usage
from backends import parallel
from records import load_rows


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    whole, real = runs.number, lambda low, high=None: runs.number(float, low, high)
    # Model and data
    parser.add_argument("--base-model", default="Qwen/Qwen3.5-4B", help="hub id or folder (default: %(default)s)")
    parser.add_argument("--model-revision", default="main", help="of a hub id (default: %(default)s)")
    parser.add_argument("--template", help="chat template: a file or a name in templates/ (default: chosen by the model)")
    parser.add_argument("--task", default="spec_o3", help="a module of tasks/: whose tools stand in the prompt (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="folder of sft_train.jsonl and sft_val.jsonl (default: datasets/<task>/sft)")
    parser.add_argument("--max-seq-len", type=whole(int, 1), default=16384, help="longer rows are left out and counted (default: %(default)s)")
    # Optimisation
    parser.add_argument("--epochs", type=whole(int, 1), default=1, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=whole(int, 1), default=4, help="trajectories a step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=real(0), default=2e-5, help="(default: %(default)s)")
    parser.add_argument("--schedule", choices=["constant", "cosine"], default="constant", help="after the warm-up (default: %(default)s)")
    parser.add_argument("--warmup", type=real(0, 1), default=0.0, help="share of the steps (default: %(default)s)")
    parser.add_argument("--weight-decay", type=real(0), default=0.0, help="(default: %(default)s)")
    parser.add_argument("--grad-clip", type=real(0), default=0.0, help="norm, 0 = off (default: %(default)s)")
    parser.add_argument("--answer-weight", type=real(0), default=1.0, help="loss weight of the token that says the answer (default: %(default)s)")
    parser.add_argument("--rank", type=whole(int, 0), default=32, help="of the LoRA; 0 trains all weights (default: %(default)s)")
    parser.add_argument("--freeze-vision", action="store_true", help="with --rank 0: leave the vision tower as it is")
    # Running
    backends.add_flags(parser)
    parser.add_argument("--save-every", type=whole(int, 0), default=0, help="steps between checkpoints; 0 = at the end of an epoch only (default: 0)")
    parser.add_argument("--strict", action="store_true", help="exit 1 where a warning would do")
    usage.add_flags(parser)
    runs.add_run_flags(parser, "spec-o3-sft")
    args = runs.parse_args(parser)
    args.data_dir = Path(args.data_dir or Path("datasets") / args.task / "sft")
    return args


def fault(row, folder):
    """What is wrong with the messages of a row, before anything is trained; "" if nothing is."""
    for place, message in enumerate(row["messages"], 1):
        if message.get("role") not in ("system", "user", "assistant", "tool"):
            return f"message {place} needs a role: system, user, assistant or tool"
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            return f"message {place}: content {content!r} must be a text or a list of parts"
        for part in content if isinstance(content, list) else ():
            name = part.get("image") if isinstance(part, dict) and part.get("type") == "image" else None
            if isinstance(name, str) and not name.startswith(("data:", "http:", "https:")) and not (folder / name).is_file():
                return f"picture {name} isn't there"
    return ""


def answer_position(chat, datum, task):
    """Where the one token is predicted that tells the answers apart (the first after ANSWER_PREFIX in the last turn); None if there is none."""
    if not hasattr(task, "ANSWER_PREFIX"):
        return None
    trained = np.flatnonzero(datum.weights)  # [n], positions whose next token is trained
    text = ""
    for start in reversed(range(len(trained))):  # from the end: the shortest tail that holds the prefix begins with it
        text = chat.tokenizer.decode([int(datum.targets[trained[start]])]) + text
        if task.ANSWER_PREFIX in text:
            break
    else:
        return None
    written = ""
    for at in trained[start:]:
        written += chat.tokenizer.decode([int(datum.targets[at])])
        if task.ANSWER_PREFIX in written and not written.endswith(task.ANSWER_PREFIX):
            return int(at)
    return None


def learning_rate(args, step, total):
    """Rate of step 1..total."""
    warm = args.warmup * total
    scale = min(1.0, step / warm) if warm >= 1 else 1.0
    if args.schedule == "cosine" and step > warm:
        scale *= 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1.0, total - warm))
    return args.learning_rate * scale


def order_of(args, epoch, count):
    """The order of an epoch depends on seed and epoch alone, so that a resumed run needs no history."""
    return random.Random(f"{args.seed}-{epoch}").sample(range(count), count)


def to_come(args, train, val, step):
    """{phase_kind: tokens} from `step` on, of datums (None: left out). Validation is at the start and after each epoch."""
    per_epoch, lengths = math.ceil(len(train) / args.batch_size), [0 if datum is None else len(datum.weights) for datum in train]
    epoch, position = divmod(step, per_epoch)
    rest = [lengths[i] for i in order_of(args, epoch, len(train))[position * args.batch_size :]] if epoch < args.epochs else []
    trained = sum(rest) + sum(lengths) * max(0, args.epochs - epoch - 1)
    return {"training_train": trained, "scoring_prefill": usage.positions(d for d in val if d is not None) * (args.epochs - epoch + (step == 0))}


def trained_tokens(data):
    return sum(int((datum.weights != 0).sum()) for datum in data)


def token_loss(data, output):
    """Loss summed over trained tokens, each counted once, whatever its weight."""
    return -sum(float(logprobs[datum.weights != 0].sum()) for datum, logprobs in zip(data, output.logprobs))


async def main():
    args = parse_args()
    rank, ranks = parallel.join(args)
    from tqdm import tqdm

    from protocol import load_chat, sft_datum

    task, backend = runs.load_module("tasks", args.task), runs.load_module("backends", args.backend)
    options = backends.options(args, backend.create_trainer)
    if args.resume and runs.latest_checkpoint(args.resume):
        was = runs.read_config(args.resume)["flags"]["batch_size"]
        if was != args.batch_size:
            raise SystemExit(f"--batch-size {args.batch_size}: {args.resume} counts its place in the data in batches of {was}, which can't change on --resume")
    files = [args.data_dir / name for name in ("sft_train.jsonl", "sft_val.jsonl")]
    train, val = (load_rows(path, fault=lambda row: fault(row, args.data_dir)) for path in files)
    chat = load_chat(args.base_model, args.model_revision, args.template)

    # ---------------------------------------------------------------- rows -> datums, each made once
    cache, answers, left_out = {}, {}, set()  # answers: where each row's answer is predicted

    def datum_of(row):
        if row["id"] not in cache:
            try:
                cache[row["id"]] = datum = sft_datum(chat, row["messages"], task.TOOLS, args.data_dir, args.max_seq_len)
            except SystemExit as error:
                raise SystemExit(f"{args.data_dir}, row {row['id']}: {error}") from None
            if datum is None:
                left_out.add(row["id"])
            elif (at := answer_position(chat, datum, task)) is not None:
                answers[row["id"]], datum.weights[at] = at, args.answer_weight
        return cache[row["id"]]

    async def datums(rows):
        made = [await asyncio.to_thread(datum_of, row) for row in rows]
        return [datum for datum in made if datum is not None]

    first = await datums(train[: args.batch_size])
    for row in train if not first else ():  # the first batch is too long: is there one that isn't?
        if datum_of(row):
            break
    if left_out.issuperset(row["id"] for row in train):
        raise SystemExit(f"every row is longer than --max-seq-len {args.max_seq_len}: nothing would be trained")
    per_epoch = math.ceil(len(train) / args.batch_size)
    if args.price:  # the rows are made now; the run needs them all in any case
        step = (runs.latest_checkpoint(args.resume) or {"step": 0})["step"] if args.resume else 0
        usage.confirm(args, *[to_come(args, [datum_of(row) for row in train], [datum_of(row) for row in val], step)] * 2)
    run = runs.open_run(args.run_name, args, args.resume)  # only now: what is wrong before is mended and tried again under the same name
    runs.catch_interrupts()
    share = sum((datum.weights != 0).sum() for datum in first) / max(1, sum(len(datum.weights) for datum in first))
    print(f"{len(train)} rows, {len(val)} for validation; {share:.0%} of the first batch's positions are trained")

    # ---------------------------------------------------------------- trainer
    meter = usage.Meter(args.price, run.restored)
    if run.restored:
        trainer = await backend.load_trainer(run.restored["state_path"], with_optimizer=True, **options)
    else:
        if args.rank == 0:
            options["train_vision"] = not args.freeze_vision
        trainer = await backend.create_trainer(args.base_model, rank=args.rank, seed=args.seed, revision=args.model_revision, **options)
    trainer = usage.Counted(trainer, meter)
    run.total = per_epoch * args.epochs
    step = run.restored["step"] if run.restored else 0

    async def validate():
        """Loss over trained tokens, and the share of right answers: more than half of the probability, after the demonstrated looks."""
        total, count, right = 0.0, 0, []
        for start in range(0, len(val), 64 * ranks):
            mine = val[start : start + 64 * ranks][rank::ranks]
            data = await datums(mine)
            rows = [row for row in mine if cache[row["id"]] is not None]
            if rows or ranks > 1:
                output = await trainer.forward(data, "cross_entropy")
                total, count = total + token_loss(data, output), count + trained_tokens(data)
                right += [logprobs[answers[row["id"]]] > math.log(0.5) for row, logprobs in zip(rows, output.logprobs) if row["id"] in answers]
        total, count, right, asked = map(sum, zip(*await parallel.gather((total, count, int(sum(right)), len(right)))))
        return {"val/loss": total / count if count else float("nan"), "val/tokens": count} | ({"val/answer_right": right / asked} if asked else {})

    async def save():
        with runs.saving(run, step) as folder:
            state = {"epoch": step // per_epoch, "position": step % per_epoch, "base_model": args.base_model, "usage": dict(meter.total)}
            state["state_path"] = await trainer.save_state(folder / "state")
            state["sampler_path"] = await trainer.save_weights_for_sampler(folder / "sampler")
            runs.save_checkpoint(run, step, state)

    async def steps_meter():
        """What all ranks used since the last step, as metrics."""
        meter.share(await parallel.gather(meter.new()))
        return meter.step()

    if step == 0:
        runs.log_metrics(run, 0, await validate() | await steps_meter())

    # ---------------------------------------------------------------- loop
    def batch_at(index):
        """This rank's rows of step index+1."""
        epoch, position = divmod(index, per_epoch)
        order = order_of(args, epoch, len(train))
        return [train[i] for i in order[position * args.batch_size : (position + 1) * args.batch_size]][rank::ranks]

    bar = tqdm(total=run.total, initial=step, desc="SFT steps", disable=rank > 0 or None)
    upcoming = asyncio.ensure_future(datums(batch_at(step))) if step < run.total else None
    while step < run.total:
        begun = time.monotonic()
        data = await upcoming
        waited = time.monotonic() - begun
        upcoming = asyncio.ensure_future(datums(batch_at(step + 1))) if step + 1 < run.total else None  # made while this one trains
        tokens, total = map(sum, zip(*await parallel.gather((trained_tokens(data), sum(float(datum.weights.sum()) for datum in data)))))
        values, loss, entropy = {}, 0.0, 0.0
        if tokens:  # of all ranks: this one may have none
            scaled = [type(datum)(datum.chunks, datum.targets, datum.weights / total) for datum in data]
            rate = learning_rate(args, step + 1, run.total)
            adam = backends.AdamParams(learning_rate=rate, weight_decay=args.weight_decay, grad_clip_norm=args.grad_clip)
            # Both are submitted before either is awaited: a remote service then never waits for us between them.
            forward = asyncio.ensure_future(trainer.forward_backward(scaled, "cross_entropy"))
            update = asyncio.ensure_future(trainer.optim_step(adam))
            output, stepped = await forward, await update
            loss, entropy = token_loss(data, output), output.metrics.get("entropy", float("nan")) * trained_tokens(data) if data else 0.0
            values = {"lr": rate, "grad_norm": stepped["grad_norm"], "time/wait_data": waited}
        # Every rank hears of every other one here, so that all see the same losses and stop after the same step
        heard = await parallel.gather((loss, entropy, usage.positions(data), set(left_out), runs.stop_requested()))
        losses, entropies, positions, left_outs, stops = zip(*heard)
        left_out.update(*left_outs)  # in place: the next batch is being made in a thread
        stopping, seconds = any(stops), time.monotonic() - begun
        if tokens:
            values |= {"train/loss": sum(losses) / tokens, "train/assistant_tokens": tokens, "train/epoch": (step + 1) / per_epoch,
                       "entropy": sum(entropies) / tokens, "time/step": seconds, "tok_per_sec": sum(positions) / seconds}  # fmt: skip
        values["train/rows_left_out"] = len(left_out)
        step += 1
        bar.update()
        ended = step % per_epoch == 0
        if ended:
            values |= await validate()
        show = ("train/loss", "val/loss", "val/answer_right", "lr", "grad_norm", "time/step") if ended or step % max(1, run.total // 20) == 0 else ()
        runs.log_metrics(run, step, values | await steps_meter(), show)
        if ended or stopping or (args.save_every and step % args.save_every == 0):
            await save()
        if stopping and step < run.total:
            print(f"stopped after step {step}; go on with: python train_sft.py --resume {run.folder}")
            break
    bar.close()
    if upcoming:
        upcoming.cancel()
    if left_out:
        print(f"{len(left_out)} rows are longer than --max-seq-len {args.max_seq_len} and were left out")
    meter.report()
    runs.close_run(run, finished=step >= run.total)
    trainer.close()
    parallel.leave()
    if args.strict and left_out:
        raise SystemExit("rows were left out (--strict)")
    return 130 if step < run.total else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
