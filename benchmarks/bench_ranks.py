"""One rank against several: a training step, rollouts, a whole RL step, and FSDP2. Starts the ranks itself; the batch is the same for all.

    python benchmarks/bench_ranks.py --shape tiny --sequences 4 --length 32 --prompts 4 --group 2 --tokens 8 --rounds 2      # two processes on a CPU
    python benchmarks/bench_ranks.py                                                        # on two GPUs: 64 x 512 tokens; 16 prompts x 8 x 256 tokens

Random weights from seed 0, all of them trained. Each way runs in processes of its own (torchrun). Rates are those of the whole job, over the
time of the slowest rank; efficiency = (rate of n ranks / rate of one) / n. rollouts: prompts of 40 tokens, sampled with log-probabilities.
rl: the same rollouts, rewards drawn at random, loss ppo, one update; its phases are those of rank 0, and "wait" is what it waits for the
others' rollouts. ppo: updates of RL on the sequences of sft (given tokens, random advantages), to compare one rank with several. fsdp: the
training step with weights and state split over the ranks; its peak, losses and norms stand beside those of sft. loss_gap, norm_gap: several
ranks against one, the largest difference over the steps, relative to the largest value.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time

from common import finish, make_trainer, peak_gib, release, show

WAYS = ("sft", "ppo", "rollouts", "rl", "fsdp")
MARK = "RESULT "


def training_data(args, vocabulary, rank, ranks):
    """This rank's sequences, every position trained, weights of the whole batch's mean."""
    import numpy as np

    from protocol import Datum, TextChunk

    random = np.random.default_rng(0)
    ids = random.integers(0, vocabulary, (args.sequences, args.length + 1))  # [sequences, length + 1]
    weights = np.full(args.length, 1 / args.sequences / args.length, dtype=np.float32)
    return [Datum([TextChunk(tuple(row[:-1].tolist()))], row[1:], weights, None, None) for row in ids[rank::ranks]]


async def sft(args, trainer, rank, ranks, rounds, loss="cross_entropy"):
    """[{step_s, loss, norm}]"""
    import numpy as np

    from backends import AdamParams, parallel

    data, steps = training_data(args, trainer.model.vocab_size, rank, ranks), []
    if loss == "ppo":
        advantages = np.random.default_rng(1).normal(size=args.sequences).astype(np.float32)[rank::ranks]
        scored = await trainer.forward(data)
        for datum, old, advantage in zip(data, scored.logprobs, advantages):
            datum.logprobs, datum.advantages = old, np.full_like(old, advantage)
    for _ in range(rounds):
        await parallel.gather(None)
        begun = time.perf_counter()
        forward = asyncio.ensure_future(trainer.forward_backward(data, loss))
        update = asyncio.ensure_future(trainer.optim_step(AdamParams(1e-4, grad_clip_norm=1.0)))
        mine, norm = (await forward).metrics["loss_sum"], (await update)["grad_norm"]
        seconds = time.perf_counter() - begun  # optim_step has read the norm, so the GPU is done but for the optimizer
        heard = await parallel.gather((seconds, mine))
        steps.append({"step_s": max(s for s, _ in heard), "loss": sum(part for _, part in heard), "norm": norm})
    return steps


async def rl(args, trainer, rank, ranks, rounds, learn=True):
    """[{step_s, sample_s, wait_s, pass_s, update_s}], the last three with `learn` only."""
    import numpy as np

    from backends import AdamParams, parallel
    from protocol import Datum, SamplingParams, TextChunk

    steps, width = [], 40
    for number in range(rounds):
        random = np.random.default_rng(number)
        prompts = random.integers(0, trainer.model.vocab_size, (args.prompts, width)).tolist()
        rewards = random.random((args.prompts, args.group))
        await parallel.gather(None)
        begun, mine = time.perf_counter(), range(args.prompts)[rank::ranks]
        params = lambda i, number=number: SamplingParams(args.tokens, seed=1000 * number + i)
        groups = await asyncio.gather(*(trainer.sampler().sample([TextChunk(tuple(prompts[i]))], args.group, params(i)) for i in mine))
        marks, data = [time.perf_counter()], []
        for i, samples in zip(mine, groups) if learn else ():
            advantages = (rewards[i] - rewards[i].mean()) / rewards[i].std(ddof=1)
            for advantage, sample in zip(advantages, samples):
                whole, zeros = [*prompts[i], *sample.tokens], np.zeros(width + args.tokens - 1, dtype=np.float32)
                weights, old, spread = zeros.copy(), zeros.copy(), zeros.copy()
                weights[width - 1 :], old[width - 1 :], spread[width - 1 :] = 1 / args.prompts / args.group / args.tokens, sample.logprobs, advantage
                data.append(Datum([TextChunk(tuple(whole[:-1]))], np.array(whole[1:]) * (weights > 0), weights, old, spread))
        await parallel.gather(None)
        marks.append(time.perf_counter())
        if learn:
            await trainer.forward_backward(data, "ppo")
            marks.append(time.perf_counter())
            await trainer.optim_step(AdamParams(1e-6, grad_clip_norm=1.0))
            marks.append(time.perf_counter())
        spans = dict(zip(("sample_s", "wait_s", "pass_s", "update_s"), np.diff([begun, *marks]).tolist()))
        steps.append({"step_s": max(await parallel.gather(marks[-1] - begun))} | spans)
    return steps


async def measure(args, way):
    """One way in this rank: seconds, rates, losses, peak."""
    from backends import parallel

    rank, ranks = parallel.world()
    release()
    trainer = make_trainer(args.shape, compile=args.compile, micro_positions=args.micro_positions, fsdp=way == "fsdp")
    play, how = {"rl": (rl, True), "rollouts": (rl, False), "ppo": (sft, "ppo")}.get(way, (sft, "cross_entropy"))
    steps = await play(args, trainer, rank, ranks, args.warm + args.rounds, how)
    timed = steps[args.warm :]
    found = {name: statistics.mean(step[name] for step in timed) for name in timed[0] if name.endswith("_s")}
    tokens = args.prompts * args.group * args.tokens if way in ("rl", "rollouts") else args.sequences * args.length
    found |= {"tok_s": tokens / found["step_s"], "step_min": min(s["step_s"] for s in timed), "step_max": max(s["step_s"] for s in timed), "n": len(timed)}
    found |= {"samples_s": args.prompts * args.group / found["step_s"]} if way == "rollouts" else {}
    found |= {"peak_gib": max(await parallel.gather(peak_gib())), "losses": [step["loss"] for step in steps if "loss" in step],
              "norms": [step["norm"] for step in steps if "norm" in step]}  # fmt: skip
    trainer.close()
    return found


def worker(args):
    from backends import parallel

    args.backend, args.base_url, args.device = "local", None, None
    rank, ranks = parallel.join(args)

    async def play():
        return {way: await measure(args, way) for way in args.ways if way != "fsdp" or ranks > 1}

    results = asyncio.run(play())
    if rank == 0:
        print(MARK + json.dumps(results), flush=True)
    parallel.leave()


def launch(args, ranks: int) -> dict:
    """Results of `ranks` processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), os.path.abspath(__file__), *sys.argv[1:]]
    environment = os.environ | ({} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    results = None
    for line in process.stdout:
        if line.startswith(MARK):
            results = json.loads(line.removeprefix(MARK))
        else:
            print(line, end="", flush=True)
    if process.wait() or results is None:
        raise SystemExit(f"{ranks} ranks: no result, see above")
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="the first is what the others are compared with")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--micro-positions", type=int, default=0, help="trained at once (0: what fits); small ones show what weights and state take")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    args = parser.parse_args()
    if "RANK" in os.environ:
        return worker(args)
    found = {ranks: launch(args, ranks) for ranks in args.ranks}
    first = args.ranks[0]
    for ranks, results in found.items():
        for way, result in results.items():
            alone = found[first].get("sft" if way == "fsdp" else way)
            if alone and ranks != first:
                result["efficiency"] = result["tok_s"] / alone["tok_s"] * first / ranks
                for name, values in (("loss_gap", "losses"), ("norm_gap", "norms")) if result["losses"] else ():
                    result[name] = max(abs(a - b) for a, b in zip(result[values], alone[values])) / max(map(abs, alone[values]))
            show(f"{way}, {ranks} ranks", {name: value for name, value in result.items() if name not in ("losses", "norms")})
    finish("ranks", args, {str(ranks): results for ranks, results in found.items()})


if __name__ == "__main__":
    main()
