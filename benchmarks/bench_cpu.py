"""The shipped model on a CPU: seconds of an SFT step and of an RL step of the speedrun's kind, split by phase; and sampling one by one.

    python benchmarks/bench_cpu.py               # about two minutes on two cores

Rows: a prompt of 150 tokens with a picture of 224 x 96, a turn of 40 tokens, a second picture (a zoom), a turn of 30. SFT: a batch of 16 such
rows. RL: 4 prompts x 8 episodes of two turns at temperature 1, then one ppo update of all weights but the tower's (frozen). The peer of the
rollouts is the same sampler asked for one episode after another, as a loop over `generate` would.
"""

import argparse
import asyncio
import statistics
import time

import common


def zoom(model, random, size=(224, 96)):
    """A drawn window as a chunk, with its time in the total."""
    from protocol import ImageChunk
    from tasks.spec_o3_synthetic import informative_window, make_spectrum
    from tools import render_spectrum

    spectrum = make_spectrum("wd", True, random)
    data = render_spectrum(spectrum["wavelength"], spectrum["flux"], *informative_window("wd", random)[0], size=size)
    data = data if isinstance(data, bytes) else data[0]
    grid = model.pictures.prepared(ImageChunk(data, 1))["image_grid_thw"]
    return ImageChunk(data, int(grid.prod()) // model.pictures.processor.merge_size**2)


def words(random, count):
    from protocol import TextChunk

    return TextChunk(tuple(random.integers(0, 250, count).tolist()))


async def episode(trainer, prompt, seed, random, drawing):
    """A trained sequence of two turns."""
    import numpy as np

    from protocol import Datum, SamplingParams, TextChunk

    chunks, pieces = list(prompt), []
    for turn, count in enumerate((40, 30)):
        [sample] = await trainer.sampler().sample(chunks, 1, SamplingParams(count, seed=100 * seed + turn))
        pieces.append((sum(map(len, chunks)), sample))
        chunks.append(TextChunk(tuple(sample.tokens)))
        if turn == 0:
            begun = time.perf_counter()
            chunks.append(await asyncio.to_thread(zoom, trainer.model, random))
            drawing.append(time.perf_counter() - begun)
    length = sum(map(len, chunks))
    targets, weights = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.float32)
    old, advantages = np.zeros(length, dtype=np.float32), np.zeros(length, dtype=np.float32)
    for start, sample in pieces:  # position t predicts the token at t + 1
        here = slice(start - 1, start - 1 + len(sample.tokens))
        targets[here], weights[here], old[here], advantages[here] = sample.tokens, 1.0, sample.logprobs, random.normal()
    return Datum(chunks, targets, weights / length, old, advantages)


async def play(args, trainer):
    import numpy as np

    from backends import AdamParams

    random, found = np.random.default_rng(0), {"sft": [], "rl": [], "one by one": []}
    for number in range(args.rounds + 1):  # the first round warms up
        prompts = [[words(random, 70), zoom(trainer.model, random), words(random, 60)] for _ in range(4)]
        for kind in found:
            count = {"sft": 16, "rl": 32, "one by one": 4}[kind]
            drawing, begun = [], time.perf_counter()
            episodes = [episode(trainer, prompts[i % 4], 100 * number + i, random, drawing) for i in range(count)]
            data = [await one for one in episodes] if kind == "one by one" else await asyncio.gather(*episodes)
            sampled = time.perf_counter()
            phases = {"rollouts_s": sampled - begun, "episodes_s": count / (sampled - begun), "drawing_s": sum(drawing)}
            if kind != "one by one":
                await trainer.forward_backward(data, "cross_entropy" if kind == "sft" else "ppo")
                passed = time.perf_counter()
                await trainer.optim_step(AdamParams(1e-5, grad_clip_norm=1.0))
                phases |= {"pass_s": passed - sampled, "update_s": time.perf_counter() - passed}
            if kind == "sft":  # its rows are written, not sampled
                phases = {name: phases[name] for name in ("pass_s", "update_s")} | {"step_s": phases["pass_s"] + phases["update_s"]}
            elif kind == "rl":
                phases["step_s"] = sum(phases[name] for name in ("rollouts_s", "pass_s", "update_s"))
            if number:
                found[kind].append(phases)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/tiny-vlm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    import torch

    from backends.local import create_trainer

    torch.set_num_threads(args.threads)
    trainer = asyncio.run(create_trainer(args.model, 0, train_vision=False, device="cpu"))
    results = {}
    for kind, rounds in asyncio.run(play(args, trainer)).items():
        results[kind] = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]} | {"n": len(rounds)}
        common.show(kind, results[kind])
    trainer.close()
    common.finish("cpu", args, results)


if __name__ == "__main__":
    main()
