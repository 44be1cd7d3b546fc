"""The sampler's fast path, without a GPU: slots, bursts, refilling, LoRA, memory. Compared with plain forwards and with the other path."""

import asyncio

import helpers
import numpy as np
import pytest
import torch
from test_engine import folders, picture, plain_logprobs, run, sharpen, shown, text, trajectory  # noqa: F401 (a fixture)

from backends import AdamParams
from backends.decode import BURST, STOPS, Slots, has_shape, merged
from backends.local import create_trainer, make_engine
from backends.model import load_model
from protocol import Datum, SamplingParams, TextChunk

torch.set_num_threads(1)
ARCHS = ("qwen2", "llama", "qwen3", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module")
def folder(folders, tmp_path_factory):  # noqa: F811
    """Architecture -> folder; beside those of test_engine, Qwen2 (biases) and Llama (stretched rotary embedding), heads apart."""
    made = {}

    def find(arch):
        if arch not in ("qwen2", "llama"):
            return folders(arch)
        if arch not in made:
            import transformers

            path = tmp_path_factory.mktemp(arch)
            tokenizer = helpers.tiny_tokenizer(path)
            shape = helpers.tiny_config("qwen3", tokenizer).to_dict()
            names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "pad_token_id")
            rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            extra = {"rope_parameters": rope | {"original_max_position_embeddings": 64}} if arch == "llama" else {}
            kind = transformers.LlamaConfig if arch == "llama" else transformers.Qwen2Config
            config = kind(**{name: shape[name] for name in names}, max_position_embeddings=4096, tie_word_embeddings=False, **extra)
            torch.manual_seed(0)
            net = transformers.AutoModelForCausalLM.from_config(config)
            for layer in net.model.layers if arch == "qwen2" else ():
                for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                    torch.nn.init.normal_(projection.bias)
            net.save_pretrained(path)
            made[arch] = sharpen(str(path))
        return made[arch]

    return find


@pytest.fixture
def engine(folder):
    made = []

    def make(arch="qwen3", fused=True, **options):
        made.append(make_engine(load_model(folder(arch)), fused=fused, **options))
        assert bool(made[-1].slots) == fused
        return made[-1]

    yield make
    for one in made:
        one.close()


async def gather(*coroutines):
    return await asyncio.gather(*coroutines)


@pytest.mark.parametrize("arch", ARCHS)
def test_log_probabilities_are_those_of_a_plain_forward(engine, arch):
    """Several turns with pictures, remembered prefixes, all in one batch."""
    sampler = engine(arch)
    results = run(gather(*(trajectory(sampler, seed) for seed in range(5))))
    assert sampler.counts["reused"] > sampler.counts["prefilled"] / 2 > 0
    for chunks, sampled in results:
        plain = plain_logprobs(sampler.model, chunks)
        assert plain.std() > 0.5
        for start, sample in sampled:
            assert np.abs(plain[start : start + len(sample.tokens)] - sample.logprobs).max() < 1e-3


@pytest.mark.parametrize("arch", ["qwen2", "qwen3_vl"])
def test_both_paths_give_the_same_tokens(engine, arch):
    """Greedy, sampled and truncated: the noise of a request is the same numbers on both."""
    settings = [SamplingParams(21, 0.0), SamplingParams(21, seed=1), SamplingParams(9, 0.7, 0.8, seed=2), SamplingParams(30, 1.3, top_k=5, seed=-3)]
    found = []
    for fused in (False, True):
        sampler = engine(arch, fused)
        found.append(run(gather(*(sampler.sample([text(i, 9 + i), *shown(sampler.model, i)], 3, one) for i, one in enumerate(settings)))))
    for left, right in zip(*found):
        assert [s.tokens for s in left] == [s.tokens for s in right]
        assert all(np.abs(np.subtract(a.logprobs, b.logprobs)).max() < 1e-3 for a, b in zip(left, right))
    assert len({tuple(s.tokens) for s in found[1][1]}) == 3


def test_slots_are_refilled_and_seeds_are_the_requests_own(engine):
    """30 sequences of 1 to 40 tokens through 4 slots, one request of 11 among them: tokens as through many slots, few steps idle."""
    few, many = engine(max_rows=4), engine()
    asked = [(1, SamplingParams(1 + 7 * i % 40, seed=i)) for i in range(19)] + [(11, SamplingParams(20, seed=99))]
    results = []
    for sampler in (few, many):
        results.append(run(gather(*(sampler.sample([text(n, 6 + n % 3)], n, params) for n, params in asked))))
        assert [len(s.tokens) for samples in results[-1] for s in samples] == [p.max_tokens for n, p in asked for _ in range(n)]
    for left, right in zip(*results):
        assert [s.tokens for s in left] == [s.tokens for s in right]
    assert few.slots.rows == 4
    assert few.counts["steps"] * 4 < 1.6 * few.counts["sampled"]


def test_a_prompt_is_read_once_for_its_group(engine):
    sampler = engine(max_rows=6)
    run(sampler.sample([text(0, 40)], 6, SamplingParams(2)))
    assert sampler.counts["prefilled"] == 40
    run(sampler.sample([text(1, 40)], 20, SamplingParams(3)))  # more than there are slots: the last position again for each lot
    assert sampler.counts["prefilled"] <= 80 + 3


@pytest.mark.parametrize("place", [1, 5, BURST, BURST + 3])
def test_stop_tokens_and_stop_strings(engine, place):
    """The first ends a sequence on the device, the second on the host, as do stop tokens for which a slot has no space."""
    sampler = engine()
    prompt = [text(0, 9)]
    free = next(s for s in (run(sampler.sample(prompt, 1, SamplingParams(24, seed=i)))[0] for i in range(50)) if s.tokens[place] not in s.tokens[:place])
    seed = next(i for i in range(50) if run(sampler.sample(prompt, 1, SamplingParams(24, seed=i)))[0].tokens == free.tokens)
    unused = tuple(t for t in range(320) if t not in free.tokens)[:STOPS]
    for stops in ((free.tokens[place],), (*unused, free.tokens[place])):
        [sample] = run(sampler.sample(prompt, 1, SamplingParams(24, seed=seed, stop_tokens=stops)))
        assert (sample.tokens, sample.logprobs, sample.stop_reason) == (free.tokens[: place + 1], free.logprobs[: place + 1], "stop")
    string = sampler.tokenizer.decode(free.tokens[place : place + 2])
    sampler._stop_string = lambda tokens, strings: tokens[-2:] == free.tokens[place : place + 2]  # bytes of random tokens are no text
    [sample] = run(sampler.sample(prompt, 1, SamplingParams(24, seed=seed, stop_strings=(string or "x",))))
    assert sample.tokens == free.tokens[: place + 2] and len(sample.logprobs) == place + 2 and sample.stop_reason == "stop_string"
    chunks = [*prompt, TextChunk(tuple(sample.tokens)), text(3, 4)]  # what came after it left no trace
    [later] = run(sampler.sample(chunks, 1, SamplingParams(6)))
    plain = plain_logprobs(sampler.model, [*chunks, TextChunk(tuple(later.tokens))])[-6:]
    assert np.abs(plain - later.logprobs).max() < 1e-3 and sampler.counts["reused"]


def test_memory_grows_and_what_cannot_fit_is_one_line(engine):
    sampler = engine(max_rows=3)
    first = run(sampler.sample([text(0, 9)], 3, SamplingParams(12, seed=1)))
    assert sampler.slots.capacity == 256
    run(sampler.sample([text(0, 300)], 1, SamplingParams(12)))
    assert sampler.slots.capacity == 512
    assert [s.tokens for s in run(sampler.sample([text(0, 9)], 3, SamplingParams(12, seed=1)))] == [s.tokens for s in first]
    sampler.slots.free_bytes = lambda: 2 * sampler.slots.row_bytes(1024)
    run(sampler.sample([text(0, 600)], 3, SamplingParams(2)))
    assert sampler.slots.rows == 2  # two at a time

    async def both():
        asked = sampler.sample([text(0, 9)], 1, SamplingParams(3000)), sampler.sample([text(0, 9)], 1, SamplingParams(5))
        return await asyncio.gather(*asked, return_exceptions=True)

    large, small = run(both())
    assert isinstance(large, ValueError) and "lower max_tokens" in str(large) and "3009 positions" in str(large) and "\n" not in str(large)
    assert len(small[0].tokens) == 5


def test_growing_spares_those_under_way(engine):
    async def ask(sampler):
        first = asyncio.create_task(sampler.sample([text(0, 9)], 2, SamplingParams(200, seed=1)))
        while sampler.counts["steps"] < 2 * BURST:
            await asyncio.sleep(0.001)
        await sampler.sample([text(1, 300)], 2, SamplingParams(20))
        return await first

    alone, crowd = engine(), engine()
    expected = run(alone.sample([text(0, 9)], 2, SamplingParams(200, seed=1)))
    assert [s.tokens for s in run(ask(crowd))] == [s.tokens for s in expected]
    assert crowd.slots.capacity == 512


def test_not_finite_logits_fail_their_own_request_only(engine):
    sampler = engine()
    asked = [([text(i, 9)], 1, SamplingParams(10, seed=i)) for i in range(5)]
    expected = [run(sampler.sample(*one))[0].tokens for one in asked]
    forward, broken = sampler.slots.forward, []

    def faulty(ids, slot, place, position, width=None):
        hidden = forward(ids, slot, place, position, width)
        bad = [row for row, s in enumerate(sampler.active) if s and s.request.flat.ids[0] == 249] if slot is None else []
        for row in bad:
            broken.append(row)
            hidden[row], sampler.slots.memory[:, :, row] = float("nan"), float("nan")
        return hidden

    sampler.slots.forward = faulty

    async def ask():
        bad = sampler.sample([TextChunk((249, 1, 2))], 2, SamplingParams(10))
        return await asyncio.gather(bad, *(sampler.sample(*one) for one in asked), return_exceptions=True)

    bad, *others = run(ask())
    assert isinstance(bad, FloatingPointError) and "not finite" in str(bad) and broken
    assert [samples[0].tokens for samples in others] == expected
    assert torch.isfinite(sampler.slots.memory).all()


def datum(seed):
    ids = np.random.default_rng(seed).integers(0, 250, 12)
    weights = np.ones(12, dtype=np.float32)
    return Datum([TextChunk(tuple(ids.tolist()))], np.append(ids[1:], 3), weights, None, None)


@pytest.mark.parametrize("rank, arch", [(0, "qwen2"), (0, "qwen3_vl"), (4, "qwen3"), (4, "qwen2_5_vl")])
def test_the_next_sample_sees_the_update(folder, rank, arch):
    """Weights are shared: joined matrices are the trainer's own memory; a LoRA is merged again. The version counts."""

    async def go():
        trainer = await create_trainer(folder(arch), rank, fused=True)
        sampler, seen = trainer.sampler(), []
        prompt = [text(0, 9), *shown(sampler.model, 0)]
        for _ in range(3):
            [sample] = await sampler.sample(prompt, 1, SamplingParams(12, seed=1))
            chunks = [*prompt, TextChunk(tuple(sample.tokens))]
            gap = np.abs(plain_logprobs(trainer.model, chunks)[-12:] - sample.logprobs).max()
            seen.append((sample.logprobs, gap))
            await trainer.forward_backward([datum(i) for i in range(4)])
            await trainer.optim_step(AdamParams(3e-3))
        trainer.close()
        return trainer, seen

    trainer, seen = run(go())
    assert all(gap < 1e-3 for _, gap in seen)
    assert abs(seen[0][0][0] - seen[1][0][0]) > 1e-2 and abs(seen[1][0][0] - seen[2][0][0]) > 1e-2
    layer, mine = trainer.engine.slots.body.layers[0], trainer.engine.slots.layers[0]
    shared = getattr(layer.self_attn.k_proj, "base_layer", layer.self_attn.k_proj).weight.untyped_storage().data_ptr() == mine.qkv.untyped_storage().data_ptr()
    assert shared == (rank == 0)


def test_a_checkpoint_of_joined_weights_is_an_ordinary_folder(folder, tmp_path):
    import transformers

    async def go():
        trainer = await create_trainer(folder("qwen2"), fused=True)
        await trainer.forward_backward([datum(0)])
        await trainer.optim_step(AdamParams(1e-2))
        path = await trainer.save_weights_for_sampler(tmp_path / "saved")
        trainer.close()
        return trainer, path

    trainer, path = run(go())
    saved = transformers.AutoModelForCausalLM.from_pretrained(path).state_dict()
    here = trainer.model.net.state_dict()
    assert saved.keys() == here.keys() and all(torch.equal(saved[name], here[name]) for name in here)
    assert sum(file.stat().st_size for file in tmp_path.glob("saved/*.safetensors")) < 1.1 * sum(p.numel() * 4 for p in trainer.model.net.parameters())


def test_merging_into_bfloat16_keeps_small_updates_on_average():
    """An update of a twentieth of the distance of two bfloat16 numbers would vanish if it were rounded to the nearest."""
    linear = torch.nn.Linear(64, 256, bias=False, dtype=torch.bfloat16)
    linear.weight.data.fill_(1.0)  # the next number is 1 + 2^-7
    linear.lora_A, linear.lora_B = ({"default": torch.nn.Linear(*shape, bias=False)} for shape in ((64, 1), (1, 256)))
    linear.lora_A["default"].weight.data.fill_(2**-7 / 20)
    linear.lora_B["default"].weight.data.fill_(1.0)
    linear.active_adapters, linear.scaling = ["default"], {"default": 1.0}
    whole = merged([linear], torch.Generator().manual_seed(0))
    change = (whole.float() - 1).mean().item() / (2**-7 / 20)
    assert whole.dtype == torch.bfloat16 and abs(change - 1) < 0.2  # 16,384 weights: standard error 0.034
    linear.lora_B["default"].weight.data.zero_()
    assert torch.equal(merged([linear], torch.Generator()), linear.weight)


def test_other_architectures_are_left_to_transformers(folder):
    assert not has_shape(load_model(folder("qwen3_5")))
    sampler = make_engine(load_model(folder("qwen3_5")), fused=True)
    assert sampler.slots is None and len(run(sampler.sample([text(0, 5)], 2, SamplingParams(2)))) == 2
    sampler.close()


def test_names_of_modules_are_not_believed(folder):
    """A model with the right modules that computes something else, as Granite does with its multipliers, is found out by numbers."""
    model = load_model(folder("qwen3"))
    assert Slots(model, 2, 0.4).agrees()
    layer = model.inner.layers[0]
    layer.mlp.register_forward_hook(lambda module, inputs, output: 0.5 * output)
    assert has_shape(model) and not Slots(model, 2, 0.4).agrees()
