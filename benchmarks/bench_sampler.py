"""Tokens per second of the sampler, with log-probabilities: ours (fast path, and transformers' forward) against transformers and vLLM.

    python benchmarks/bench_sampler.py --shape tiny --sequences 8 --tokens 16                      # tries it out on a CPU
    python benchmarks/bench_sampler.py --sequences 64 512 --tokens 256                             # on a GPU, about two minutes
    python benchmarks/bench_sampler.py --model FOLDER --ways vllm vllm-plain fast generate static  # all peers, on real weights (vLLM needs them)

16 prompts (of a model: questions in its chat template; random ones have 24 to 56 tokens, mean 40), as many samples of each as are needed,
temperature 1, no stop tokens. "fixed": every sequence has --tokens new tokens. "spread": four times as many sequences with lengths evenly from
1 to --tokens through as many slots; ours and vLLM refill them, a batch of `generate` runs as long as its longest. Rates are new tokens over
the whole call, prefill included.

    fast, forward      ours: CUDA graphs and our kernels; transformers' own forward
    generate, static   transformers' generate, with its dynamic cache and with cache_implementation="static"; they give no log-probabilities
    vllm, vllm-plain   vLLM's engine in this process, with log-probabilities of the sampled tokens, and without; no detokenizing. It starts once
                       for all; --sequences is the most that is under way at once

gap: mean |log p of the sampler - log p of the trainer's forward| on 32 sequences. Peers run with the first of --peer-sequences (default: of
--sequences). vLLM must not start while something else frees GPU memory: name its ways first.
"""

import argparse
import asyncio
import collections
import os
import statistics

from common import attempt, chat_prompts, finish, make_model, make_net, peak_gib, rates, timed


def prompts(args, vocabulary: int) -> list:
    """16 lists of ids."""
    import numpy as np

    if args.model:
        return chat_prompts(args.model, 16)
    random = np.random.default_rng(0)
    return [random.integers(0, vocabulary, 24 + 32 * i // 15).tolist() for i in range(16)]


def lengths(args, sequences: int, spread: bool):
    import numpy as np

    if not spread:
        return np.full(sequences, args.tokens)
    return np.random.default_rng(1).permutation(np.linspace(1, args.tokens, 4 * sequences).round().astype(int))


# ---------------------------------------------------------------------------------------------------------------------
# ours


def ours(args, sequences: int, fused: bool, rounds: int) -> dict:
    """Results by kind of lengths."""
    from backends.engine import Engine

    engine = Engine(make_model(args.shape, args.model), max_rows=sequences, fused=fused)
    found = {kind: sample(args, engine, sequences, kind == "spread", rounds) for kind in args.kinds}
    engine.close()
    return found


def sample(args, engine, sequences: int, spread: bool, rounds: int) -> dict:
    import numpy as np

    from protocol import SamplingParams, TextChunk

    wanted, chunks = lengths(args, sequences, spread), [[TextChunk(tuple(p))] for p in prompts(args, engine.model.vocab_size)]
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


# ---------------------------------------------------------------------------------------------------------------------
# peers


def generate(args, sequences: int, static: bool):
    import torch
    import transformers

    net = make_net(args.shape, args.model)
    lines = [p for p in prompts(args, net.config.vocab_size) for _ in range(max(1, sequences // 16))][:sequences]
    longest = max(map(len, lines))
    ids = torch.zeros(len(lines), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, line in enumerate(lines):
        ids[i, longest - len(line) :], mask[i, longest - len(line) :] = torch.tensor(line), 1
    inputs = {"input_ids": ids.to(net.device), "attention_mask": mask.to(net.device)}
    # Not the folder's own settings, which penalize repetition and know when to stop
    net.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=args.tokens, pad_token_id=0, cache_implementation="static" if static else None
    )
    made = []
    seconds, warm = timed(lambda: made.append(net.generate(**inputs).shape[1] - longest), args.peer_rounds)
    assert set(made) == {args.tokens}
    fixed = rates(sequences * args.tokens, seconds) | {"first_call_s": round(warm, 2), "peak_gib": round(peak_gib(), 1)}
    # Spread lengths: four batches, each as long as its longest sequence, which is within 1 % of --tokens; computed from the same times
    wanted = lengths(args, sequences, True)
    longest = [max(wanted[i : i + sequences]) for i in range(0, len(wanted), sequences)]
    spread = rates(int(wanted.sum()), [sum(s * n / args.tokens for n in longest) for s in seconds]) | {"computed": 1}
    return {kind: {"fixed": fixed, "spread": spread}[kind] for kind in args.kinds}


def start_vllm(args):
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    from vllm import EngineArgs, LLMEngine
    from vllm.usage.usage_lib import UsageContext

    if not args.model:
        raise SystemExit("vLLM needs --model FOLDER, a folder with weights and tokenizer")
    options = {"max_model_len": 1024, "gpu_memory_utilization": 0.3, "max_num_seqs": max(args.sequences + args.peer_sequences), "disable_log_stats": True}
    given = EngineArgs(model=args.model, dtype="bfloat16", generation_config="vllm", **options)
    return LLMEngine.from_engine_args(given, usage_context=UsageContext.LLM_CLASS)  # with the defaults of its class for batches


def vllm(args, engine, sequences: int, logprobs: bool) -> dict:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    lines, found, numbers = prompts(args, 0), {}, iter(range(10**9))
    common = {"temperature": 1.0, "ignore_eos": True, "detokenize": False, "flat_logprobs": True, "output_kind": RequestOutputKind.FINAL_ONLY}
    for kind in args.kinds:
        wanted = lengths(args, sequences, kind == "spread")

        def play(wanted=wanted):
            waiting, running, made = collections.deque(enumerate(wanted)), 0, 0
            while waiting or running:
                while waiting and running < sequences:
                    i, n = waiting.popleft()
                    params = SamplingParams(max_tokens=int(n), min_tokens=int(n), logprobs=0 if logprobs else None, **common)
                    [prompt] = engine.renderer.render_cmpl([{"prompt_token_ids": lines[i % 16]}])
                    engine.add_request(str(next(numbers)), prompt, params)
                    running += 1
                for output in engine.step():
                    made, running = made + len(output.outputs[0].token_ids), running - 1
            assert made == wanted.sum()

        seconds, warm = timed(play, args.peer_rounds)
        found[kind] = rates(int(wanted.sum()), seconds) | {"first_call_s": round(warm, 2)}
        if kind == "fixed":
            found[kind]["ms_a_step"] = 1e3 * statistics.mean(seconds) / args.tokens
    return found


def stop_vllm(engine):
    from vllm.distributed import cleanup_dist_env_and_memory

    engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--model", help="a model folder, in place of random weights of --shape")
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--peer-sequences", type=int, nargs="+", help="(default: the first of --sequences)")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--kinds", nargs="+", default=["fixed", "spread"], choices=["fixed", "spread"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=["fast", "forward", "generate"], help="of fast, forward, generate, static, vllm, vllm-plain")
    args = parser.parse_args()
    args.peer_sequences = args.peer_sequences or args.sequences[:1]
    results, engine = {}, None

    def measure(way, sequences):
        nonlocal engine
        if way in ("fast", "forward"):
            found = ours(args, sequences, way == "fast", args.rounds if way == "fast" else args.peer_rounds)
        elif way.startswith("vllm"):
            engine = engine or start_vllm(args)
            found = vllm(args, engine, sequences, way == "vllm")
        else:
            found = generate(args, sequences, way == "static")
        return {f"{way}, {sequences} x {args.tokens}, {kind}": result for kind, result in found.items()}

    for number, way in enumerate(args.ways):
        for sequences in args.sequences if way == "fast" else args.peer_sequences:
            attempt(results, f"{way}, {sequences}", lambda way=way, sequences=sequences: measure(way, sequences))
        if engine and not any(later.startswith("vllm") for later in args.ways[number + 1 :]):
            stop_vllm(engine)
            engine = None
    finish("sampler", args, results)


if __name__ == "__main__":
    main()
