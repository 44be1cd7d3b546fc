"""Seconds of a GRPO step (sample, advantages, forward and backward, AdamW), split by phase: ours, and the same with transformers' generate.

    python benchmarks/bench_rl_step.py --shape tiny --prompts 2 --group 4 --tokens 16          # tries it out on a CPU
    python benchmarks/bench_rl_step.py                                                         # on a GPU: 8 prompts x 8 x 256 tokens

Random weights, prompts of 40 tokens, rewards drawn at random, loss ppo, all weights trained. ratio and logp_gap compare the sampler's
log-probabilities with the trainer's before the update: with the same weights the ratio is 1 but for rounding. The peer samples with
`generate`, asks the trainer for the log-probabilities (generate gives none at this size) and trains by the same code.
"""

import argparse
import asyncio
import functools
import statistics
import time

from common import finish, peak_gib, random_trainer, release, show


async def step(args, trainer, number: int, generate=None) -> dict:
    import numpy as np
    import torch

    from backends import AdamParams
    from protocol import Datum, Sample, SamplingParams, TextChunk

    random = np.random.default_rng(number)
    prompts = [random.integers(0, trainer.model.vocab_size, 40) for _ in range(args.prompts)]
    chunks, begun = [TextChunk(tuple(p.tolist())) for p in prompts], time.perf_counter()
    if generate:
        ids = torch.from_numpy(np.repeat(np.stack(prompts), args.group, 0)).to(trainer.model.device)
        made = (await trainer.engine.run(lambda: generate(ids)))[:, 40:].tolist()
        groups = [[Sample(tokens, None) for tokens in made[i * args.group : (i + 1) * args.group]] for i in range(args.prompts)]
    else:
        asked = [trainer.sampler().sample([chunk], args.group, SamplingParams(args.tokens, seed=1000 * number + i)) for i, chunk in enumerate(chunks)]
        groups = await asyncio.gather(*asked)
    sampled, data = time.perf_counter(), []
    for chunk, samples in zip(chunks, groups):
        rewards = random.random(args.group)
        for reward, s in zip(rewards, samples):
            whole, zeros = [*chunk.tokens, *s.tokens], np.zeros(40 + args.tokens - 1, dtype=np.float32)
            weights, old, advantages = zeros.copy(), zeros.copy(), zeros.copy()
            weights[39:], advantages[39:] = 1 / args.prompts / args.group / args.tokens, (reward - rewards.mean()) / rewards.std(ddof=1)
            if s.logprobs is not None:
                old[39:] = s.logprobs
            data.append(Datum([TextChunk(tuple(whole[:-1]))], np.array(whole[1:]) * (weights > 0), weights, old, advantages))
    if generate:
        scored = await trainer.forward(data, "cross_entropy")
        for datum, logprobs in zip(data, scored.logprobs):
            datum.logprobs[:] = logprobs
    built = time.perf_counter()
    output = await trainer.forward_backward(data, "ppo")
    passed = time.perf_counter()
    await trainer.optim_step(AdamParams(1e-6, grad_clip_norm=1.0))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    ended = time.perf_counter()
    phases = {"step_s": ended - begun, "sample_s": sampled - begun, "build_s": built - sampled, "pass_s": passed - built, "update_s": ended - passed}
    return phases | {name: output.metrics[name] for name in ("ratio_mean", "logp_gap")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--ways", nargs="+", default=["ours", "generate"])
    args = parser.parse_args()
    results = {}
    for way in args.ways:
        release()
        trainer = random_trainer(args.shape, compile=args.compile)
        options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": args.tokens, "min_new_tokens": args.tokens}
        generate = functools.partial(trainer.model.net.generate, **options) if way == "generate" else None

        async def play(trainer=trainer, generate=generate):
            return [await step(args, trainer, number, generate) for number in range(args.warm + args.rounds)][args.warm :]

        steps = asyncio.run(play())
        results[way] = {name: statistics.mean(one[name] for one in steps) for name in steps[0]} | {"n": len(steps), "peak_gib": peak_gib()}
        results[way] |= {"step_min": min(one["step_s"] for one in steps), "step_max": max(one["step_s"] for one in steps)}
        show(f"{way}, {args.prompts} x {args.group} x {args.tokens}", results[way])
        trainer.close()
        del trainer
    finish("rl_step", args, results)


if __name__ == "__main__":
    main()
