"""Seconds of a GRPO step (sample, advantages, forward and backward, AdamW), split by phase: ours, with other samplers, and trl's.

    python benchmarks/bench_rl_step.py --shape tiny --prompts 2 --group 4 --tokens 16                     # tries it out on a CPU
    python benchmarks/bench_rl_step.py                                                                    # on a GPU: 8 prompts x 8 x 256 tokens
    python benchmarks/bench_rl_step.py --model FOLDER --ways vllm ours generate trl trl-vllm --compile    # all peers, on real weights

Prompts: questions in the model's chat template (of random weights: 40 random tokens each). Every sequence has --tokens new tokens. Rewards are
drawn at random, loss ppo, all weights trained.

    ours            the local backend: bfloat16 weights, float32 masters and optimizer state
    vllm            the same with backends/vllm.py as its sampler; "sample" contains the copy of the new weights (needs --model)
    generate        the same with transformers' generate; the trainer gives the log-probabilities, which generate doesn't at this size
    trl, trl-vllm   trl's GRPOTrainer, with transformers' generate and with vLLM in its process (needs --model): its own steps, with its own
                    prompts rendered from the same questions; weights and optimizer in bfloat16, beta 0; peak memory without vLLM's

ratio and logp_gap compare the sampler's log-probabilities with the trainer's before the update: with the same weights the ratio is 1 but for
rounding. Ways with vLLM must not start while something else frees GPU memory.
"""

import argparse
import asyncio
import functools
import os
import statistics
import tempfile
import time

from common import QUESTIONS, attempt, chat_prompts, finish, make_trainer, peak_gib


async def step(args, trainer, number: int, generate=None) -> dict:
    import numpy as np
    import torch

    from backends import AdamParams
    from protocol import Datum, Sample, SamplingParams, TextChunk

    random = np.random.default_rng(number)
    if args.model:
        prompts = chat_prompts(args.model, 16)[number % 2 * 8 :][: args.prompts]
    else:
        prompts = [random.integers(0, trainer.model.vocab_size, 40).tolist() for _ in range(args.prompts)]
    chunks, begun = [TextChunk(tuple(p)) for p in prompts], time.perf_counter()
    if generate:
        made = await trainer.engine.run(lambda: generate([p for p in prompts for _ in range(args.group)]))
        groups = [[Sample(tokens, None) for tokens in made[i * args.group : (i + 1) * args.group]] for i in range(args.prompts)]
    else:
        asked = [trainer.sampler().sample([chunk], args.group, SamplingParams(args.tokens, seed=1000 * number + i)) for i, chunk in enumerate(chunks)]
        groups = await asyncio.gather(*asked)
    sampled, data = time.perf_counter(), []
    for chunk, samples in zip(chunks, groups):
        rewards, first = random.random(args.group), len(chunk) - 1
        for reward, s in zip(rewards, samples):
            whole, zeros = [*chunk.tokens, *s.tokens], np.zeros(first + args.tokens, dtype=np.float32)
            weights, old, advantages = zeros.copy(), zeros.copy(), zeros.copy()
            weights[first:], advantages[first:] = 1 / args.prompts / args.group / args.tokens, (reward - rewards.mean()) / rewards.std(ddof=1)
            if s.logprobs is not None:
                old[first:] = s.logprobs
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


def generation(args, net, lines: list) -> list:
    """New tokens of transformers' generate, a list a line."""
    import torch
    import transformers

    longest = max(map(len, lines))
    ids = torch.tensor([[0] * (longest - len(line)) + line for line in lines], device=net.device)
    mask = torch.tensor([[0] * (longest - len(line)) + [1] * len(line) for line in lines], device=net.device)
    # Not the folder's own settings, which penalize repetition and know when to stop
    net.generation_config = transformers.GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=args.tokens, pad_token_id=0)
    return net.generate(input_ids=ids, attention_mask=mask)[:, longest:].tolist()


def ours(args, way: str) -> dict:
    make = None
    if way == "vllm":
        from backends.vllm import VllmSampler, check_machine

        check_machine()
        if not args.model:
            raise SystemExit("vLLM needs --model FOLDER, a folder with weights and tokenizer")
        make = functools.partial(VllmSampler, tokenizer=None, trained=True, memory=0.3)
    trainer = make_trainer(args.shape, args.model, compile=args.compile, make=make)
    generate = functools.partial(generation, args, trainer.model.net) if way == "generate" else None

    async def play():
        return [await step(args, trainer, number, generate) for number in range(args.warm + args.rounds)]

    try:
        begun = time.perf_counter()
        steps = asyncio.run(play())
        steps, warm = steps[args.warm :], sum(one["step_s"] for one in steps[: args.warm])
    finally:
        trainer.close()
    result = {name: statistics.mean(one[name] for one in steps) for name in steps[0]} | {"n": len(steps), "peak_gib": peak_gib()}
    result |= {"step_min": min(one["step_s"] for one in steps), "step_max": max(one["step_s"] for one in steps)}
    return result | {"warm_s": warm, "in_all_s": time.perf_counter() - begun}


def trl(args, vllm: bool) -> dict:
    """trl takes its steps by itself; we look at the clock at the start and the end of each."""
    if not args.model:
        raise SystemExit("trl needs --model FOLDER, a folder with weights and tokenizer")
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}  # vLLM in its process reads them
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **(alone if vllm else {})}
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from datasets import Dataset

    begun, starts, seconds, gaps = time.perf_counter(), [], [], []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            starts.append(time.perf_counter())

        def on_step_end(self, *_, **__):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - starts[-1])

        def on_log(self, *_, logs=None, **__):
            gaps.extend(value for name, value in (logs or {}).items() if name == "sampling/sampling_logp_difference/mean")

    def reward(completions, **_):
        return [len(set(one[0]["content"])) / (1 + len(one[0]["content"])) for one in completions]

    sampler = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3} if vllm else {}
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=args.prompts * args.group, num_generations=args.group, max_completion_length=args.tokens,
        max_steps=args.warm + args.rounds, learning_rate=1e-6, beta=0.0, temperature=1.0, logging_steps=1, report_to=[], save_strategy="no",
        bf16=torch.cuda.is_available(), gradient_checkpointing=False, disable_tqdm=True,
        generation_kwargs={"ignore_eos": True} if vllm else {"min_new_tokens": args.tokens}, **sampler,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16), reward_funcs=reward, args=config, processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": QUESTIONS[i % 16]}]} for i in range(256)]), callbacks=[Clock()],
    )  # fmt: skip
    ready = time.perf_counter() - begun
    trainer.train()
    kept = seconds[args.warm :]
    result = {"step_s": statistics.mean(kept), "n": len(kept), "peak_gib": peak_gib(), "step_min": min(kept), "step_max": max(kept)}
    result |= {"logp_gap": statistics.mean(gaps[args.warm :])} if gaps else {}
    return result | {"warm_s": sum(seconds[: args.warm]), "ready_s": ready, "in_all_s": time.perf_counter() - begun}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--model", help="a model folder, in place of random weights of --shape")
    parser.add_argument("--prompts", type=int, default=8, help="8 at most with --model (default: %(default)s)")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-rounds", type=int, default=3, help="of generate and trl (default: %(default)s)")
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="compiled layers in training (ours, vllm, generate)")
    parser.add_argument("--ways", nargs="+", default=["ours", "generate"], help="of ours, vllm, generate, trl, trl-vllm")
    args = parser.parse_args()
    results = {}
    for way in args.ways:
        mine = argparse.Namespace(**vars(args) | {"rounds": args.rounds if way in ("ours", "vllm", "trl-vllm") else args.peer_rounds})
        play = functools.partial(trl, mine, way == "trl-vllm") if way.startswith("trl") else functools.partial(ours, mine, way)
        attempt(results, way, lambda way=way, play=play: {f"{way}, {args.prompts} x {args.group} x {args.tokens}": play()})
    finish("rl_step", args, results)


if __name__ == "__main__":
    main()
