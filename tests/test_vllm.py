"""The vLLM backend, on a stub of vLLM's interface (stub_vllm.py): the same weights, order and answers as the local engine."""

import asyncio
from argparse import Namespace

import numpy as np
import pytest
import stub_vllm
import torch
from test_engine import folders, plain_logprobs, shown, text  # noqa: F401 (a fixture)

import backends
from backends import AdamParams, local, vllm
from protocol import Datum, SamplingParams, TextChunk, cut_chunks

torch.set_num_threads(1)


@pytest.fixture
def make(folders, monkeypatch):  # noqa: F811
    """Makes trainers with the stub's sampler on the CPU."""
    stub_vllm.install(monkeypatch)
    monkeypatch.setattr(vllm, "check_machine", lambda device="auto": None)
    made = []

    def trainer(arch="qwen3", rank=0, **options):
        made.append(asyncio.run(vllm.create_trainer(folders(arch), rank, device="cpu", **options)))
        return made[-1]

    yield trainer
    for one in made:
        one.close()


def datum(chunks, sample):
    """The sample as a sequence to train on, with the sampler's log-probabilities."""
    whole = [*chunks, TextChunk(tuple(sample.tokens))]
    length, count = sum(map(len, whole)) - 1, len(sample.tokens)
    targets, weights, old, advantages = np.zeros(length, dtype=np.int64), *np.zeros((3, length), dtype=np.float32)
    targets[-count:], weights[-count:], old[-count:], advantages[-count:] = sample.tokens, 1, sample.logprobs, 1
    return Datum(cut_chunks(whole, length), targets, weights, old, advantages)


@pytest.mark.parametrize("arch, rank", [("qwen3", 0), ("qwen3", 4), ("qwen3_vl", 0), ("qwen3_vl", 4), ("qwen3_5", 0)])
def test_samples_come_from_the_trainers_weights(make, arch, rank):
    """Before and after updates, with pictures, with a LoRA: sampler and trainer agree on every log-probability, at the temperature asked for."""
    trainer = make(arch, rank)
    prompts = [[text(i, 9 + i), *shown(trainer.model, i)] for i in range(3)]

    async def play(version):
        asked = [trainer.sampler().sample(prompt, 2, SamplingParams(6, 0.7, seed=i)) for i, prompt in enumerate(prompts)]
        groups = await asyncio.gather(*asked)
        data = [datum(prompt, sample) for prompt, group in zip(prompts, groups) for sample in group]
        output = await trainer.forward_backward(data, "ppo", {"temperature": 0.7})
        assert output.metrics["logp_gap"] < 1e-4 and output.metrics["ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert trainer.sampler().version == version
        for _ in range(2):  # two updates, one copy
            await trainer.forward_backward(data, "ppo", {"temperature": 0.7})
            await trainer.optim_step(AdamParams(3e-2))
        return groups

    first, second = asyncio.run(play(0)), asyncio.run(play(2))
    assert any(a.logprobs != b.logprobs for one, two in zip(first, second) for a, b in zip(one, two))
    [engine] = stub_vllm.LLMEngine.made
    whole, once = [call for call in engine.calls if isinstance(call, int)]
    assert engine.calls.count("prefixes") == 2 and engine.calls.count("encoder") == 2
    assert once <= whole and (once < whole) == (rank > 0)  # of a LoRA only what it changes


def test_a_sampler_alone_reads_adapters(make, folders, tmp_path):  # noqa: F811
    """create_sampler on what a LoRA trainer saved: its log-probabilities are the trainer's."""
    trainer = make("qwen3", 4)
    prompt = [text(1, 12)]

    async def play():
        [sample] = await trainer.sampler().sample(prompt, 1, SamplingParams(5))
        for _ in range(3):
            await trainer.forward_backward([datum(prompt, sample)], "cross_entropy")
            await trainer.optim_step(AdamParams(3e-2))
        base = await (alone := await vllm.create_sampler(folders("qwen3"))).logprobs([text(2, 30)])
        alone.close()
        path = await trainer.save_weights_for_sampler(tmp_path / "adapter")
        sampler = await vllm.create_sampler(folders("qwen3"), path)
        found, expected = await sampler.logprobs([text(2, 30)]), await trainer.sampler().logprobs([text(2, 30)])
        sampled = await sampler.sample(prompt, 1, SamplingParams(5, top_p=0.9, top_k=3))
        sampler.close()
        return found, expected, base, sampled

    found, expected, base, sampled = asyncio.run(play())
    assert np.abs(found - expected).mean() < 0.05 < 0.5 < np.abs(found - base).mean()  # bfloat16 against float32; and the adapter counts
    assert len(sampled[0].tokens) == 5
    assert stub_vllm.LLMEngine.made[2].calls[-1] == "shutdown"


@pytest.mark.parametrize("arch", ["qwen3", "qwen2_5_vl"])
def test_logprobs_agree_with_a_plain_forward(make, arch):
    trainer = make(arch)
    trainer.model.blocked = trainer.model.blocked[:0]  # vLLM leaves placeholders their share of the probability of a given token
    chunks = [text(3, 14), *shown(trainer.model, 5), text(4, 6)]
    found, flat = asyncio.run(trainer.sampler().logprobs(chunks)), trainer.model.flatten(chunks)
    expected = np.where(flat.key < 0, 0, plain_logprobs(trainer.model, chunks))
    assert found.dtype == np.float32 and np.abs(found - expected)[1:].max() < 1e-4 and found[0] == 0


def test_ends_and_seeds(make):
    trainer = make()
    sampler, prompt = trainer.sampler(), [text(0, 10)]

    async def play(n=1, **options):
        return await sampler.sample(prompt, n, SamplingParams(**{"max_tokens": 8, "seed": 5} | options))

    one, again, other = asyncio.run(play(4)), asyncio.run(play(4)), asyncio.run(play(4, seed=6))
    assert one == again != other and len({tuple(sample.tokens) for sample in one}) == 4
    assert all(sample.stop_reason == "length" and len(sample.tokens) == 8 for sample in one)
    [stopped] = asyncio.run(play(stop_tokens=(one[0].tokens[2],)))
    assert stopped.stop_reason == "stop" and stopped.tokens == one[0].tokens[: 1 + one[0].tokens.index(stopped.tokens[-1])]
    [whole] = asyncio.run(play(max_tokens=40))
    letter = next(t for t in map(sampler.tokenizer.decode, whole.tokens) if t.strip() and t.isascii())
    [cut] = asyncio.run(play(max_tokens=40, stop_strings=(letter,)))
    assert cut.stop_reason == "stop_string" and letter in sampler.tokenizer.decode(cut.tokens[-1:]) and cut.tokens == whole.tokens[: len(cut.tokens)]
    greedy = asyncio.run(play(2, temperature=0.0))
    assert greedy[0] == greedy[1]
    [long] = asyncio.run(play(max_tokens=1000))
    assert len(long.tokens) == 256 - 10  # what vLLM can read at most, in this stub


def test_a_job_waits_and_later_requests_wait_for_it(make):
    trainer, seen = make(), []
    sampler = trainer.sampler()

    async def play():
        first = asyncio.ensure_future(sampler.sample([text(0, 8)], 2, SamplingParams(20)))
        await asyncio.sleep(0)
        job = asyncio.ensure_future(sampler.run(lambda: seen.append((first.done(), len(sampler.under_way)))))
        await asyncio.sleep(0)
        last = asyncio.ensure_future(sampler.sample([text(1, 8)], 1, SamplingParams(2)))
        await asyncio.gather(first, job, last)
        given_up = asyncio.ensure_future(sampler.sample([text(2, 8)], 3, SamplingParams(200)))
        while len(sampler.under_way) < 3:
            await asyncio.sleep(0.01)
        given_up.cancel()
        await sampler.sample([text(3, 8)], 1, SamplingParams(2))

    asyncio.run(play())
    assert seen == [(False, 0)] or seen == [(True, 0)]
    assert ("abort", 3) in stub_vllm.LLMEngine.made[0].calls


def test_what_cannot_be_is_said_in_one_line(make, folders, monkeypatch):  # noqa: F811
    trainer = make()
    sample = lambda *args, **options: asyncio.run(trainer.sampler().sample([text(0, 8)], 1, SamplingParams(*args, **options)))
    with pytest.raises(ValueError, match="can't be compared with the trainer's; use 1 and 0, or --backend local"):
        sample(4, top_p=0.9)
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        sample(0)
    with pytest.raises(ValueError, match=r"temperature must be in \[0, 2\]"):
        sample(4, 3.0)
    assert len(sample(4)[0].tokens) == 4  # it goes on
    monkeypatch.setattr(stub_vllm.LLMEngine, "fail", "Free memory on device is less than desired\nmore")
    broken = make()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"vLLM can't start \(Free memory on device is less than desired\); .*--vllm-memory than 0.3"):
            asyncio.run(broken.sampler().sample([text(0, 8)], 1, SamplingParams(4)))
    with pytest.raises(SystemExit, match="--vllm-memory 1.5"):
        make(vllm_memory=1.5)


def test_tensors_without_partner_are_told(make, monkeypatch):
    """A family whose names vLLM doesn't know must not be sampled with noise."""
    trainer = make()
    everything = vllm.named_weights
    monkeypatch.setattr(vllm, "named_weights", lambda *args, **options: list(everything(*args, **options))[:-2])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="vLLM found no weights for 2 tensors"):
            asyncio.run(trainer.sampler().sample([text(0, 8)], 1, SamplingParams(4)))


def test_machine_and_flags(monkeypatch):
    monkeypatch.setattr(vllm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="vLLM is not installed; uv sync --extra vllm"):
        vllm.check_machine()
    monkeypatch.setattr(vllm.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees no GPU here"):
        vllm.check_machine()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SystemExit, match="--device cuda:1: .*CUDA_VISIBLE_DEVICES"):
        vllm.check_machine("cuda:1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="without torchrun"):
        vllm.check_machine()
    args = Namespace(base_url=None, device=None, vllm_memory=0.5, backend="local")
    assert backends.options(args, vllm.load_trainer) == {"vllm_memory": 0.5}
    with pytest.raises(SystemExit, match="--vllm-memory 0.5: --backend local has no vLLM"):
        backends.options(args, local.load_trainer)
