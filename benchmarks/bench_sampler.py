"""Tokens per second of the sampler, with log-probabilities: ours (fast path, and transformers' forward) against transformers' generate.

    python benchmarks/bench_sampler.py --shape tiny --sequences 8 --tokens 16          # tries it out on a CPU
    python benchmarks/bench_sampler.py --sequences 64 512 --tokens 256                 # on a GPU, about two minutes

16 prompts of 24 to 56 tokens (mean 40), as many samples of each as are needed, temperature 1, random weights, no stop tokens. "fixed": every
sequence has --tokens new tokens. "spread": four times as many sequences with lengths evenly from 1 to --tokens; ours refills slots, the
peer's batch runs as long as its longest. Rates are new tokens over the whole call, prefill included. The peer gives no log-probabilities.
gap: mean |log p of the sampler - log p of the trainer's forward| on 32 sequences.
"""

import argparse
import asyncio
import statistics

from common import finish, peak_gib, random_model, random_net, rates, release, show, timed


def prompts(count: int, vocabulary: int):
    import numpy as np

    random = np.random.default_rng(0)
    return [random.integers(0, vocabulary, 24 + 32 * i // max(1, count - 1)) for i in range(count)]


def lengths(args, sequences: int, spread: bool):
    import numpy as np

    if not spread:
        return np.full(sequences, args.tokens)
    return np.random.default_rng(1).permutation(np.linspace(1, args.tokens, 4 * sequences).round().astype(int))


def ours(args, sequences: int, fused: bool, rounds: int) -> dict:
    """Results by kind of lengths."""
    from backends.engine import Engine

    engine = Engine(random_model(args.shape), max_rows=sequences, fused=fused)
    found = {kind: sample(args, engine, sequences, kind == "spread", rounds) for kind in ("fixed", "spread")}
    engine.close()
    return found


def sample(args, engine, sequences: int, spread: bool, rounds: int) -> dict:
    import numpy as np

    from protocol import SamplingParams, TextChunk

    wanted, chunks = lengths(args, sequences, spread), [[TextChunk(tuple(p.tolist()))] for p in prompts(16, engine.model.vocab_size)]
    played = []

    async def play():
        seed = len(played)
        if spread:
            asked = [engine.sample(chunks[i % 16], 1, SamplingParams(int(n), seed=1000 * seed + i)) for i, n in enumerate(wanted)]
        else:
            asked = [engine.sample(chunk, max(1, sequences // 16), SamplingParams(args.tokens, seed=seed)) for chunk in chunks[:sequences]]
        played.append(await asyncio.gather(*asked))

    seconds, warm = timed(lambda: asyncio.run(play()), rounds)
    made = sum(len(s.tokens) for samples in played[-1] for s in samples)
    assert made == wanted.sum()
    result = rates(made, seconds) | {"first_call_s": round(warm, 2), "peak_gib": round(peak_gib(), 1)}
    if spread:
        return result
    some = [(chunk, s) for chunk, samples in zip(chunks, played[-1]) for s in samples[:2]]

    async def score():
        return await asyncio.gather(*(engine.logprobs([*chunk, TextChunk(tuple(s.tokens))]) for chunk, s in some))

    gaps = np.concatenate([np.abs(scored[-len(s.tokens) :] - s.logprobs) for scored, (_, s) in zip(asyncio.run(score()), some)])
    result |= {"ms_a_step": 1e3 * statistics.mean(seconds) / args.tokens, "gap": float(gaps.mean()), "gap_max": float(gaps.max())}
    return result


def peer(args, sequences: int, static: bool, rounds: int):
    import torch

    net = random_net(args.shape)
    lines = [p for p in prompts(16, net.config.vocab_size) for _ in range(max(1, sequences // 16))][:sequences]
    longest = max(map(len, lines))
    ids = torch.zeros(len(lines), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, line in enumerate(lines):
        ids[i, longest - len(line) :], mask[i, longest - len(line) :] = torch.from_numpy(line), 1
    inputs = {"input_ids": ids.to(net.device), "attention_mask": mask.to(net.device)}
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": args.tokens, "min_new_tokens": args.tokens}
    if static:
        options["cache_implementation"] = "static"
    seconds, warm = timed(lambda: net.generate(**inputs, **options), rounds)
    fixed = rates(sequences * args.tokens, seconds) | {"first_call_s": round(warm, 2), "peak_gib": round(peak_gib(), 1)}
    # Spread lengths: four batches, each as long as its longest sequence, which is within 1 % of --tokens; computed from the same times
    wanted = lengths(args, sequences, True)
    longest = [max(wanted[i : i + sequences]) for i in range(0, len(wanted), sequences)]
    spread = rates(int(wanted.sum()), [sum(s * n / args.tokens for n in longest) for s in seconds]) | {"computed": 1}
    return {"fixed": fixed, "spread": spread}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=["fast", "forward", "generate"], help="of fast, forward, generate, static")
    args = parser.parse_args()
    results = {}
    for sequences in args.sequences:
        for way in args.ways:
            if way != "fast" and sequences != args.sequences[0]:
                continue
            release()
            if way in ("fast", "forward"):
                found = ours(args, sequences, way == "fast", args.rounds if way == "fast" else args.peer_rounds)
            else:
                found = peer(args, sequences, way == "static", args.peer_rounds)
            for kind, result in found.items():
                results[f"{way}, {sequences}, {kind}"] = result
                show(f"{way}, {sequences} x {args.tokens}, {kind}", result)
    finish("sampler", args, results)


if __name__ == "__main__":
    main()
