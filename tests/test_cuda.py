"""On a GPU: kernels, CUDA graphs and the trainer, tiny models, float32 and bfloat16. Left out where there is none.

    python -m pytest tests/test_cuda.py
"""

import asyncio

import numpy as np
import pytest
import torch
from test_decode import datum, folder  # noqa: F401 (a fixture)
from test_engine import folders, run, shown, text, trajectory  # noqa: F401 (a fixture)

from backends import AdamParams
from backends.local import create_trainer, make_engine
from backends.model import load_model
from protocol import SamplingParams, TextChunk

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


async def gather(*coroutines):
    return await asyncio.gather(*coroutines)


@pytest.mark.parametrize("arch", ["qwen2", "llama", "qwen3", "qwen3_vl"])
def test_graphs_give_what_a_cpu_gives(folder, arch):  # noqa: F811
    """float32: the same tokens, greedy, sampled and truncated, refilled and with stop tokens; log-probabilities within 1e-3."""
    found = []
    for device, fused in (("cpu", False), ("cuda", True), ("cuda", False)):
        engine = make_engine(load_model(folder(arch), device=device, dtype="float32"), fused=fused, max_rows=6)
        assert bool(engine.slots) == fused and (not fused or engine.slots.kernels)
        stops = tuple(range(0, 100, 7))[:8]
        settings = [SamplingParams(30, 0.0), SamplingParams(30, seed=1), SamplingParams(30, 0.9, 0.9, 20, seed=3), SamplingParams(99, seed=5, stop_tokens=stops)]
        asked = [engine.sample([text(i, 9 + i), *shown(engine.model, i)], 3, one) for i, one in enumerate(settings)]
        found.append(run(gather(*asked)))
        engine.close()
    for other in found[1:]:
        for left, right in zip(found[0], other):
            assert [(s.tokens, s.stop_reason) for s in left] == [(s.tokens, s.stop_reason) for s in right]
            assert all(np.abs(np.subtract(a.logprobs, b.logprobs)).max() < 1e-3 for a, b in zip(left, right))


@pytest.mark.parametrize("arch", ["qwen3", "qwen2_5_vl", "qwen3_5"])
def test_turns_agree_with_the_trainer_in_bfloat16(folder, arch):  # noqa: F811
    engine = make_engine(load_model(folder(arch), device="cuda"))
    results = run(gather(*(trajectory(engine, seed) for seed in range(4))))
    gaps = []
    for chunks, sampled in results:
        scored = run(engine.logprobs(chunks))
        gaps += [np.abs(scored[start : start + len(s.tokens)] - s.logprobs) for start, s in sampled]
    assert engine.counts["reused"] and np.concatenate(gaps).mean() < 0.05
    engine.close()


@pytest.mark.parametrize("options", ["plain", "recompute", "compile"])
@pytest.mark.parametrize("rank, dtype", [(0, "float32"), (0, "bfloat16"), (4, "float32"), (4, "bfloat16")])
def test_training_is_that_of_a_cpu_and_the_sampler_follows(folder, rank, dtype, options):  # noqa: F811
    """The head's kernels, compiled layers and AdamW against the same steps on a CPU in float32."""

    async def go(device, dtype, **options):
        trainer = await create_trainer(folder("qwen3"), rank, device=device, dtype=dtype, **options)
        losses, gaps = [], []
        for _ in range(4):
            [sample] = await trainer.sampler().sample([text(0, 9)], 1, SamplingParams(12, seed=1))
            scored = await trainer.sampler().logprobs([text(0, 9), TextChunk(tuple(sample.tokens))])
            gaps.append(np.abs(scored[9:] - sample.logprobs).mean())
            losses.append((await trainer.forward_backward([datum(i) for i in range(4)])).metrics["loss_sum"])
            await trainer.optim_step(AdamParams(3e-3))
        trainer.close()
        return losses, gaps

    expected, _ = run(go("cpu", "float32"))
    losses, gaps = run(go("cuda", dtype, **({} if options == "plain" else {options: True})))
    assert losses == pytest.approx(expected, rel=1e-3 if dtype == "float32" else 0.03)
    assert max(gaps) < (1e-3 if dtype == "float32" else 0.05)
    assert expected[-1] < expected[0] - 1


def test_memory_is_given_back_and_what_cannot_fit_is_one_line(folder):  # noqa: F811
    engine = make_engine(load_model(folder("qwen3"), device="cuda"), memory_share=1e-4)
    few = engine.slots.free_bytes() // engine.slots.row_bytes(256)
    if few < 1:
        with pytest.raises(ValueError, match="lower max_tokens"):
            run(engine.sample([text(0, 9)], 1, SamplingParams(9)))
    else:
        assert len(run(engine.sample([text(0, 9)], 300, SamplingParams(9)))) == 300
    engine.close()
