"""Tokens per second of a training step (forward, backward, AdamW): ours against plain transformers with torch's optimizer.

    python benchmarks/bench_train.py --shape tiny --sequences 4 --length 32            # tries it out on a CPU
    python benchmarks/bench_train.py                                                   # on a GPU: 64 x 512 tokens, about two minutes

Every position is trained, with cross-entropy. Ours: `forward_backward` and `optim_step` of the local backend, from lists of tokens to new
weights: bfloat16 with float32 master weights and optimizer state, log-probabilities and entropies of all tokens brought back. The peer
keeps weights and optimizer in bfloat16 and all logits in memory. MFU = (6 N + 6 T width layers) x tokens / time / 990 TFLOP/s.
"""

import argparse
import asyncio
import functools
import statistics

from common import attempt, finish, make_net, make_trainer, peak_gib, rates, timed


def mfu(net, args, seconds: list) -> float:
    config, count = net.config, sum(p.numel() for p in net.parameters())
    flops = (6 * count + 6 * args.length * config.hidden_size * config.num_hidden_layers) * args.sequences * args.length
    return flops / statistics.mean(seconds) / 990e12


def ours(args, **options):
    import numpy as np

    from backends import AdamParams
    from protocol import Datum, TextChunk

    trainer = make_trainer(args.shape, args.model, **options)
    random, data = np.random.default_rng(0), []
    for _ in range(args.sequences):
        ids = random.integers(0, trainer.model.vocab_size, args.length + 1)
        weights = np.full(args.length, 1 / args.sequences / args.length, dtype=np.float32)
        data.append(Datum([TextChunk(tuple(ids[:-1].tolist()))], ids[1:], weights, None, None))
    losses = []

    async def step():
        forward = asyncio.ensure_future(trainer.forward_backward(data))
        update = asyncio.ensure_future(trainer.optim_step(AdamParams(1e-4, grad_clip_norm=1.0)))
        losses.append((await forward).metrics["loss_sum"])
        await update

    seconds, warm = timed(lambda: asyncio.run(step()), args.rounds, args.warm)
    result = rates(args.sequences * args.length, seconds) | {"ms": 1e3 * statistics.mean(seconds), "mfu": mfu(trainer.model.net, args, seconds)}
    result |= {"peak_gib": peak_gib(), "warm_s": warm, "micro_positions": trainer.micro_positions, "first_loss": losses[0], "last_loss": losses[-1]}
    trainer.close()
    return result


def peer(args):
    import torch

    net = make_net(args.shape, args.model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, net.config.vocab_size, (args.sequences, args.length + 1), device=net.device)

    def step():
        logits = net(input_ids=ids[:, :-1], use_cache=False).logits.flatten(0, 1)
        torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds, warm = timed(step, args.rounds, args.warm)
    result = rates(args.sequences * args.length, seconds) | {"ms": 1e3 * statistics.mean(seconds), "mfu": mfu(net, args, seconds)}
    return result | {"peak_gib": peak_gib(), "warm_s": warm}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--model", help="a model folder, in place of random weights of --shape")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--micro-positions", type=int, default=0)
    parser.add_argument("--ways", nargs="+", default=["plain", "compile", "recompute", "transformers"])
    args = parser.parse_args()
    results = {}
    for way in args.ways:
        options = {"compile": "compile" in way, "recompute": "recompute" in way, "micro_positions": args.micro_positions}
        play = functools.partial(peer, args) if way == "transformers" else functools.partial(ours, args, **options)
        attempt(results, way, lambda way=way, play=play: {f"{way}, {args.sequences} x {args.length}": play()})
    finish("train", args, results)


if __name__ == "__main__":
    main()
