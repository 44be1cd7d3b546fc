"""Episodes of several turns with lengths from a script: together against one after another, and with the memory of earlier turns on and off.

    python benchmarks/bench_multiturn.py --shape tiny --episodes 8           # tries it out on a CPU
    python benchmarks/bench_multiturn.py                                     # on a GPU: 64 episodes

An episode: a prompt of 400 tokens, then 2 to 5 turns of 20 to 120 sampled tokens and an observation of 150 tokens each (a picture's size),
after a tool that takes 20 ms. Random weights. reused: share of prompt positions that were not read again.
"""

import argparse
import asyncio
import statistics

from common import finish, make_model, release, show, timed


async def episode(engine, number: int) -> int:
    """Tokens sampled."""
    import numpy as np

    from protocol import SamplingParams, TextChunk

    random = np.random.default_rng(number)
    words = lambda count: TextChunk(tuple(random.integers(0, engine.model.vocab_size, count).tolist()))
    chunks, total = [words(400)], 0
    for turn in range(random.integers(2, 6)):
        [sample] = await engine.sample(chunks, 1, SamplingParams(int(random.integers(20, 121)), seed=100 * number + turn))
        await asyncio.sleep(0.02)
        chunks, total = [*chunks, TextChunk(tuple(sample.tokens)), words(150)], total + len(sample.tokens)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--model", help="a model folder, in place of random weights of --shape")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--alone", type=int, default=8, help="episodes played one after another")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    from backends.engine import Engine

    results = {}
    for way in ("together", "together, nothing kept", "one after another", "together, transformers' forward"):
        release()
        engine = Engine(make_model(args.shape, args.model), fused="forward" not in way, cache_tokens=0 if "nothing" in way else 200_000)
        count, played = args.alone if "one after" in way else args.episodes, []

        async def play(engine=engine, count=count, played=played, together="one after" not in way):
            first = count * len(played)
            episodes = [episode(engine, first + i) for i in range(count)]
            played.append(await asyncio.gather(*episodes) if together else [await one for one in episodes])

        seconds, warm = timed(lambda play=play: asyncio.run(play()), args.rounds)
        per_episode = [s / count for s in seconds]
        read = engine.counts["prefilled"] + engine.counts["reused"]
        results[way] = {"episodes_s": statistics.mean(1 / s for s in per_episode), "min": 1 / max(per_episode), "max": 1 / min(per_episode), "n": len(seconds),
                        "tok_s": statistics.mean(sum(made) / s for made, s in zip(played[1:], seconds)), "reused": engine.counts["reused"] / read,
                        "first_call_s": warm}  # fmt: skip
        show(way, results[way])
        engine.close()
    finish("multiturn", args, results)


if __name__ == "__main__":
    main()
