"""The batched sampler: tiny random models of four families, on the CPU. Everything is compared with plain, uncached forwards."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import helpers
import numpy as np
import pytest
import torch

from backends.draw import draw, truncate
from backends.engine import Engine, generator
from backends.local import create_sampler, make_engine
from backends.model import load_model, micro_batches
from protocol import ImageChunk, SamplingParams, TextChunk

torch.set_num_threads(1)
ARCHS = ("qwen3", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
VISION = ARCHS[1:]
PICTURE = 8  # positions of a picture made by `picture`


def sharpen(folder):
    """Weights of a size that makes the outputs differ: fresh ones are so small that all tokens are equally likely."""
    import safetensors.torch

    file = os.path.join(folder, "model.safetensors")
    weights = safetensors.torch.load_file(file)
    torch.manual_seed(0)
    for name, weight in weights.items():
        if weight.ndim >= 2:
            weight.normal_(0, 0.3 if "embed_tokens" in name else weight[0].numel() ** -0.5)
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Architecture -> folder of a tiny model, made when first asked for."""
    made = {}

    def folder(arch):
        if arch not in made:
            made[arch] = sharpen(helpers.tiny_folder(tmp_path_factory.mktemp(arch), arch))
        return made[arch]

    return folder


@pytest.fixture
def engine(folders):
    """Makes engines and closes them in the end."""
    made = []

    def make(arch="qwen3", **options):
        made.append(make_engine(load_model(folders(arch)), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def picture(seed):
    """Coloured blocks, 112 x 56 pixels: 8 positions."""
    import io

    from PIL import Image

    blocks = np.random.default_rng(seed).integers(0, 256, (4, 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(blocks.repeat(14, 0).repeat(14, 1)).save(out, format="PNG")
    return ImageChunk(out.getvalue(), PICTURE)


def text(seed, count):
    return TextChunk(tuple(np.random.default_rng(seed).integers(0, 250, count).tolist()))


def shown(model, seed):
    """A picture between its start and end tokens; a line of text for a model without eyes."""
    if model.pictures is None:
        return [text(seed, 6)]
    return [TextChunk((model.config.vision_start_token_id,)), picture(seed), TextChunk((model.config.vision_end_token_id,))]


async def trajectory(engine, seed, turns=3, max_tokens=9):
    """Alternating pictures and samples. Returns the chunks, and a (start, Sample) a turn."""
    chunks, sampled = [text(seed, 12 + seed % 3), *shown(engine.model, 100 + seed)], []
    for turn in range(turns):
        [sample] = await engine.sample(chunks, 1, SamplingParams(max_tokens + seed % 4, seed=10 * seed + turn))
        sampled.append((sum(map(len, chunks)), sample))
        chunks = [*chunks, TextChunk(tuple(sample.tokens)), text(7, 3), *shown(engine.model, 900 + 9 * seed + turn), text(8, 2 + seed % 2)]
    return chunks, sampled


def plain_logprobs(model, chunks, temperature=1.0):
    """log p of each position given those before, float32 [T], by one ordinary forward of the whole transformers model on its own inputs."""
    flat = model.flatten(chunks)
    ids = torch.tensor(flat.ids)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if flat.pictures:
        prepared = [model.pictures.prepared(chunk) for _, chunk in flat.pictures]
        inputs |= {name: torch.cat([one[name] for one in prepared]) for name in prepared[0]}
        inputs["mm_token_type_ids"] = (ids == model.image_token).int()
    substitute = vars(model.inner).pop("get_image_features", None)  # the model's own method shows again
    try:
        with torch.no_grad():
            logits = model.net(**inputs).logits[0].float() / temperature
    finally:
        if substitute:
            model.inner.get_image_features = substitute
    logits[:, model.blocked] = -1e9
    return np.append(0, logits.log_softmax(-1)[:-1].gather(-1, ids[0, 1:, None])[:, 0].numpy())


def run(coroutine):
    return asyncio.run(coroutine)


async def gather(*coroutines):
    return await asyncio.gather(*coroutines)


# ---------------------------------------------------------------------------------------------------------------------
# right tokens, right log-probabilities


@pytest.mark.parametrize("arch", ARCHS)
def test_P25_sampler_agrees_with_plain_forward(engine, arch):
    """First and later turns, on text and after pictures, in a batch, with remembered prefixes: all against one uncached forward."""
    sampler = engine(arch)
    results = run(gather(*(trajectory(sampler, seed) for seed in range(5))))
    assert sampler.counts["reused"] > sampler.counts["prefilled"] / 2 > 0
    gaps = {"first turn": 0.0, "later turns": 0.0}
    for chunks, sampled in results:
        plain = plain_logprobs(sampler.model, chunks)
        assert plain.std() > 0.5  # else the comparison would be of nothing
        for turn, (start, sample) in enumerate(sampled):
            gap = np.abs(plain[start : start + len(sample.tokens)] - sample.logprobs).max()
            name = "later turns" if turn else "first turn"
            gaps[name] = max(gaps[name], gap)
    print(arch, gaps)
    assert max(gaps.values()) < 1e-4, gaps


@pytest.mark.parametrize("arch", ARCHS)
def test_logprobs_are_those_of_a_plain_forward(engine, arch):
    sampler = engine(arch)
    sequences = [[text(i, 5 + 3 * i), *shown(sampler.model, i), text(9, 4), *shown(sampler.model, 50 + i), text(i, 3)] for i in range(4)]
    for chunks, found in zip(sequences, run(gather(*map(sampler.logprobs, sequences))), strict=True):
        plain, ids = plain_logprobs(sampler.model, chunks), sampler.model.flatten(chunks).ids
        plain[ids == sampler.model.image_token] = 0  # nobody predicts a picture
        assert found.dtype == np.float32 and found[0] == 0
        assert np.abs(found - plain).max() < 1e-4


@pytest.mark.parametrize("arch", VISION)
def test_P32_another_tool_picture_changes_what_follows(engine, arch):
    """Only positions after the picture change, and they do: also when the turn before it comes from memory."""
    sampler = engine(arch)
    first = [text(1, 10), *shown(sampler.model, 1), text(2, 5)]
    [sample] = run(sampler.sample(first, 1, SamplingParams(6, seed=3)))
    history = [*first, TextChunk(tuple(sample.tokens)), text(3, 2)]
    answers, scores = [], []
    for seed in (11, 12):
        chunks = [*history, *shown(sampler.model, seed), text(4, 3)]
        before = sampler.counts["reused"]
        answers.append(run(sampler.sample(chunks, 1, SamplingParams(8, seed=5)))[0])
        assert sampler.counts["reused"] > before
        scores.append(run(sampler.logprobs([*chunks, text(5, 8)])))
    place = sum(map(len, history)) + 1 + PICTURE
    assert np.array_equal(scores[0][: place - PICTURE], scores[1][: place - PICTURE])
    assert np.abs(scores[0][place:] - scores[1][place:]).min() > 1e-4
    assert answers[0].logprobs != answers[1].logprobs


@pytest.mark.parametrize("arch", ["qwen3_vl", "qwen3_5"])
def test_the_rest_of_the_batch_does_not_matter(engine, arch):
    """A request alone gives the tokens that it gives among 7 others of other lengths and seeds."""
    alone, crowd = engine(arch), engine(arch)
    separate = [run(trajectory(alone, seed)) for seed in range(8)]
    together = run(gather(*(trajectory(crowd, seed) for seed in range(8))))
    assert crowd.counts["steps"] < alone.counts["steps"] / 4
    for (chunks, _), (others, _) in zip(separate, together):
        assert chunks == others


def test_P43_samples_of_a_group_differ_and_repeat(engine):
    sampler = engine("qwen3_vl")
    prompt = [text(0, 20), *shown(sampler.model, 0)]
    ask = lambda seed: [s.tokens for s in run(sampler.sample(prompt, 6, SamplingParams(12, seed=seed)))]
    first, again, other = ask(1), ask(1), ask(2)
    assert first == again and first != other
    assert len(set(map(tuple, first))) == 6
    assert generator(-1, 0).random() != generator(1, 0).random()  # any integer will do as a seed


@pytest.mark.parametrize("arch", ["qwen3", "qwen3_5"])
def test_greedy_takes_the_most_likely_token(engine, arch):
    sampler = engine(arch)
    prompt = [text(0, 15), *shown(sampler.model, 3)]
    [sample] = run(sampler.sample(prompt, 1, SamplingParams(10, temperature=0)))
    for i, token in enumerate(sample.tokens):
        here = [*prompt, TextChunk(tuple(sample.tokens[:i]))]
        best = [plain_logprobs(sampler.model, [*here, TextChunk((other,))])[-1] for other in (token, *range(0, 250, 25))]
        assert best[0] == max(best) and abs(best[0] - sample.logprobs[i]) < 1e-4  # of softmax(logits), though greedy


def test_a_prompt_is_read_once_for_its_samples_and_its_copies(engine):
    sampler = engine("qwen3_vl")
    prompt = [text(0, 30), *shown(sampler.model, 0)]
    length = sum(map(len, prompt))
    run(sampler.sample(prompt, 8, SamplingParams(2)))
    assert sampler.counts["prefilled"] == length
    run(gather(*(sampler.sample([text(1, 1), *prompt], 1, SamplingParams(2, seed=i)) for i in range(8))))
    assert sampler.counts["prefilled"] == 2 * length + 1


@pytest.mark.parametrize("limit", [0, 45])
def test_memory_is_bounded_and_only_a_shortcut(engine, limit):
    """With no or little memory the same tokens come, only later."""
    full, small = engine("qwen3_5"), engine("qwen3_5", cache_tokens=limit)
    assert run(trajectory(full, 1))[0] == run(trajectory(small, 1))[0]
    assert sum(length for length, _ in small.past.values()) <= limit
    assert small.counts["reused"] < full.counts["reused"]


def test_longest_remembered_prefix_serves(engine):
    sampler = engine("qwen3")
    [short] = run(sampler.sample([text(0, 10)], 1, SamplingParams(4)))
    longer = [text(0, 10), TextChunk(tuple(short.tokens)), text(1, 7)]
    [more] = run(sampler.sample(longer, 1, SamplingParams(4)))
    before = sampler.counts["reused"]
    run(sampler.sample([*longer, TextChunk(tuple(more.tokens)), text(2, 3)], 1, SamplingParams(1)))
    assert sampler.counts["reused"] - before == 10 + 4 + 7 + 3  # all but the last sampled token and what is new
    before = sampler.counts["reused"]
    run(sampler.sample([text(5, 30)], 1, SamplingParams(1)))  # nothing in common
    assert sampler.counts["reused"] == before


def test_a_picture_passes_the_tower_once(engine):
    sampler = engine("qwen3_vl")
    passed = []
    tower = sampler.model.pictures.tower
    sampler.model.pictures.tower = lambda **inputs: passed.append(len(inputs["image_grid_thw"])) or tower(**inputs)
    for i in range(3):
        three = [chunk for seed in (0, 1, 0) for chunk in shown(sampler.model, seed)]
        run(sampler.sample([text(i, 4), *three], 2, SamplingParams(2)))
    assert passed == [2]


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_sliding_windows(tmp_path, name):
    """One mask for all layers, and one by type of layer; prompts much longer than the window."""
    import transformers

    helpers.tiny_tokenizer(tmp_path)
    sizes = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    sizes |= {"head_dim": 16, "sliding_window": 6, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "tie_word_embeddings": True}
    if name == "mistral":
        config = transformers.MistralConfig(num_hidden_layers=2, **sizes)
    else:
        types = ["sliding_attention", "full_attention", "sliding_attention"]
        config = transformers.Gemma3TextConfig(num_hidden_layers=3, layer_types=types, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    sampler = run(create_sampler(sharpen(tmp_path)))
    for chunks, sampled in run(gather(*(trajectory(sampler, seed) for seed in range(3)))):
        plain = plain_logprobs(sampler.model, chunks)
        for start, sample in sampled:
            assert np.abs(plain[start : start + len(sample.tokens)] - sample.logprobs).max() < 1e-4
    assert sampler.counts["reused"]
    sampler.close()


# ---------------------------------------------------------------------------------------------------------------------
# drawing and stopping


def draws(logits, uniforms, temperature=1.0, top_k=-1, top_p=1.0):
    rows = torch.tensor(logits, dtype=torch.float32).expand(len(uniforms), -1)
    full = lambda value: torch.full((len(uniforms),), value)
    tokens, logprobs = draw(rows, full(float(temperature)), full(top_k), full(float(top_p)), torch.tensor(uniforms, dtype=torch.float64))
    return tokens.tolist(), logprobs


def test_draw_follows_the_distribution():
    logits = [0.0, 1.0, -1e9, 2.0]
    for temperature in (1.0, 0.5):
        grid = (np.arange(20000) + 0.5) / 20000
        tokens, logprobs = draws(logits, grid, temperature)
        p = torch.softmax(torch.tensor(logits) / temperature, -1)
        assert np.abs(np.bincount(tokens, minlength=4) / 20000 - p.numpy()).max() < 1e-3
        assert torch.allclose(logprobs, p.log()[tokens])
        assert 2 not in tokens


def test_draw_edges():
    tokens, _ = draws([1.0, 3.0, 3.0, 0.0], [0.0, 0.5, 1 - 1e-16], temperature=0)
    assert tokens == [1, 1, 1]  # equal logits: the lowest id
    tokens, _ = draws([-1e9, 0.0, 0.0, -1e9], [0.0, 1 - 1e-16])
    assert tokens == [1, 2]  # never an impossible token, even at the ends
    assert torch.isnan(draws([float("nan"), 0.0], [0.5])[1]).all()


def test_P50_top_k_and_top_p():
    p = torch.tensor([[0.1, 0.4, 0.3, 0.2]])
    cut = lambda k, q: torch.nn.functional.normalize(truncate(p, torch.tensor([k]), torch.tensor([q]))[0], p=1, dim=0).tolist()
    assert cut(-1, 1.0) == cut(0, 1.0) == cut(99, 1.0) == pytest.approx([0.1, 0.4, 0.3, 0.2])
    assert cut(1, 1.0) == cut(-1, 0.01) == [0, 1, 0, 0]  # at least one is left
    assert cut(2, 1.0) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert [x > 0 for x in cut(-1, 0.75)] == [False, True, True, True]  # 0.4 + 0.3 is not yet 0.75
    assert [x > 0 for x in cut(2, 0.5)] == [False, True, False, False]  # top_p counts in what top_k left: 4/7
    tokens, logprobs = draws([0.0, 3.0, 2.0, 1.0], [0.01, 0.5, 0.99], top_k=2)
    assert set(tokens) == {1, 2}
    full = torch.log_softmax(torch.tensor([0.0, 3.0, 2.0, 1.0]), -1)
    assert torch.allclose(logprobs, full[tokens])  # before truncation


def test_mixed_parameters_in_one_batch(engine):
    sampler = engine("qwen3")
    settings = [SamplingParams(8, 0.0), SamplingParams(8, 1.0, seed=1)]
    settings += [SamplingParams(8, 0.7, 0.5, seed=2), SamplingParams(8, 1.3, top_k=3, seed=3)]
    alone = [run(sampler.sample([text(0, 9)], 1, one))[0].tokens for one in settings]
    together = run(gather(*(sampler.sample([text(0, 9)], 1, one) for one in settings)))
    assert alone == [samples[0].tokens for samples in together]
    [cold] = run(sampler.sample([text(0, 9)], 1, SamplingParams(8, 1.3, top_k=1)))
    assert cold.tokens == alone[0]
    plain = plain_logprobs(sampler.model, [text(0, 9), TextChunk(tuple(alone[2]))], 0.7)[9:]
    assert np.abs(plain - together[2][0].logprobs).max() < 1e-4  # temperature is in the log-probabilities, top_p is not


def test_stop_token_is_included_and_length_is_exact(engine):
    sampler = engine("qwen3")
    [free] = run(sampler.sample([text(0, 9)], 1, SamplingParams(12, seed=4)))
    assert free.stop_reason == "length" and len(free.tokens) == len(free.logprobs) == 12
    stop = free.tokens[5]
    [stopped] = run(sampler.sample([text(0, 9)], 1, SamplingParams(12, seed=4, stop_tokens=(stop,))))
    assert stopped.stop_reason == "stop" and stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
    [one] = run(sampler.sample([text(0, 9)], 1, SamplingParams(1, seed=4)))
    assert one.tokens == free.tokens[:1] and one.stop_reason == "length"


def force(sampler, prompt_length, tokens):
    """Makes the model write these tokens after a prompt of that many positions, whatever it would have written."""
    hidden = sampler.model.hidden

    def forced(ids, positions, *args, **options):
        forced.at = positions[0, :, -1] + 1 - prompt_length  # number of the token to write, for each row
        return hidden(ids, positions, *args, **options)

    def logits(rows, temperature=1.0):
        result = torch.full((len(rows), sampler.model.vocab_size), -1e9)
        result[0, tokens[int(forced.at[0])]] = 0.0
        return result

    sampler.model.hidden, sampler.model.logits = forced, logits


@pytest.mark.parametrize("written, strings, expected", [
    ("1+1 <calc> 2</calc> and", ("</calc>",), "1+1 <calc> 2</calc>"),
    ("a > b, c </calc", ("</calc>",), None),  # the last letter alone is not enough
    ("naïve é! ok", ("é!", "zzz"), "naïve é!"),  # letters of two bytes come as two tokens here
    ("größe 10 € done", ("€",), "größe 10 €"),
    ("end here ", ("here ",), "end here "),
    ("</think> x", ("</think>",), "</think>"),  # one token
])
def test_stop_strings(engine, written, strings, expected):
    sampler = engine("qwen3")
    tokens = sampler.tokenizer(written, add_special_tokens=False).input_ids
    force(sampler, 5, tokens)
    [sample] = run(sampler.sample([text(0, 5)], 1, SamplingParams(len(tokens), stop_strings=strings)))
    assert sample.stop_reason == ("stop_string" if expected else "length")
    assert sampler.tokenizer.decode(sample.tokens) == (expected or written)
    assert len(sample.logprobs) == len(sample.tokens)


def test_pictures_are_never_sampled(engine):
    """The placeholder of a picture is an ordinary row of the head. Were it drawn, the next forward would look for a picture."""
    sampler = engine("qwen2_5_vl")
    with torch.no_grad():
        sampler.model.inner.get_input_embeddings().weight[sampler.model.image_token] *= 30
    samples = run(sampler.sample([text(0, 9)], 16, SamplingParams(20, 3.0)))
    assert not any({*sampler.model.blocked.tolist()} & {*sample.tokens} for sample in samples)


# ---------------------------------------------------------------------------------------------------------------------
# what goes wrong


def test_unusable_requests_say_so_and_spare_the_others(engine):
    sampler = engine("qwen3_vl")
    limit = sampler.model.max_positions
    good, one = [text(0, 8), *shown(sampler.model, 1)], SamplingParams(2)
    wrong = {
        "max_position_embeddings": ([text(0, limit + 1)], 1, one),
        "leaves no room": ([text(0, limit)], 1, one),
        "empty": ([], 1, one),
        "between 0 and": ([TextChunk((5, 100000))], 1, one),
        "image processor": ([TextChunk((1, 2)), ImageChunk(picture(0).data, 3)], 1, one),
        "stands for a picture": ([TextChunk((sampler.model.image_token,))], 1, one),
        "at least 1": (good, 0, one),
        "max_tokens": (good, 1, SamplingParams(0)),
        "top_p": (good, 1, SamplingParams(2, top_p=0.0)),
        "top_k": (good, 1, SamplingParams(2, top_k=-2)),
        "temperature": (good, 1, SamplingParams(2, temperature=-1.0)),
        "stop strings": (good, 1, SamplingParams(2, stop_strings=("",))),
    }

    async def ask():
        asked = [sampler.sample(*request) for request in wrong.values()] + [sampler.sample(good, 2, one)]
        return await asyncio.gather(*asked, return_exceptions=True)

    *errors, fine = run(ask())
    for words, error in zip(wrong, errors, strict=True):
        assert isinstance(error, ValueError) and words in str(error) and "\n" not in str(error), (words, error)
    assert len(fine) == 2
    blind = engine("qwen3")
    with pytest.raises(ValueError, match="text only"):
        run(blind.sample([picture(0)], 1, one))


def test_generation_ends_where_the_model_can_read_no_further(engine):
    sampler = engine("qwen3")
    sampler.model.max_positions = 20
    [sample] = run(sampler.sample([text(0, 15)], 1, SamplingParams(100)))
    assert len(sample.tokens) == 5 and sample.stop_reason == "length"


def test_P26_not_finite_logits_fail_their_own_request_only(engine):
    """A prompt with token 249 meets NaN at its third token; its neighbours, and those that get its rows afterwards, go on."""
    sampler = engine("qwen3")
    hidden = sampler.model.hidden

    def broken(ids, positions, pictures=(), mask=None, cache=None, grad=False):
        result = hidden(ids, positions, pictures, mask, cache, grad)
        for row in range(len(ids)):
            if row < len(sampler.active) and sampler.active[row] and ids.shape[1] == 1 and len(sampler.active[row].tokens) == 2:
                if 249 in sampler.active[row].request.flat.ids:
                    result[row] = float("nan")
                    for layer in cache.layers:
                        layer.keys[row], layer.values[row] = float("nan"), float("nan")
        return result

    params = [SamplingParams(10, seed=i) for i in range(6)]
    expected = [run(sampler.sample([text(i, 9)], 1, params[i]))[0].tokens for i in range(6)]
    sampler.model.hidden = broken

    async def ask(bad):
        asked = [sampler.sample([TextChunk((249, 1, 2)), text(9, 9)], 2, params[0]) for _ in range(bad)]
        asked += [sampler.sample([text(i, 9)], 1, params[i]) for i in range(6)]
        return await asyncio.gather(*asked, return_exceptions=True)

    bad, *others = run(ask(1))
    assert isinstance(bad, FloatingPointError) and "not finite" in str(bad)
    for later in (others, run(ask(0))):  # now somebody else has its rows
        assert [samples[0].tokens for samples in later] == expected


def test_a_fault_in_the_worker_reaches_everyone_and_does_not_last(engine):
    sampler = engine("qwen3")
    step, calls = sampler._step, []

    def faulty():
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError("no room")
        step()

    sampler._step = faulty

    async def ask():
        return await asyncio.gather(*(sampler.sample([text(i, 5)], 2, SamplingParams(9)) for i in range(4)), return_exceptions=True)

    assert all(isinstance(error, MemoryError) for error in run(ask()))
    assert all(len(samples) == 2 for samples in run(ask()))


def test_a_cancelled_task_frees_its_rows(engine):
    sampler = engine("qwen3")

    async def ask():
        task = asyncio.create_task(sampler.sample([text(0, 5)], 4, SamplingParams(4000)))
        while sum(map(bool, sampler.active)) < 4:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await sampler.sample([text(1, 5)], 1, SamplingParams(3))
        return sum(map(bool, sampler.active))

    assert run(ask()) == 0


def test_closing_ends_what_is_pending(engine):
    sampler = engine("qwen3")

    async def ask():
        tasks = [asyncio.create_task(sampler.sample([text(i, 5)], 1, SamplingParams(4000))) for i in range(3)]
        tasks.append(asyncio.create_task(sampler.run(lambda: 1)))  # waits for the three
        await asyncio.sleep(0.2)
        sampler.close()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert all(isinstance(error, RuntimeError) and "closed" in str(error) for error in results)
        with pytest.raises(RuntimeError, match="closed"):
            await sampler.sample([text(0, 5)], 1, SamplingParams(1))

    run(ask())
    assert not sampler.thread.is_alive()


def test_jobs_wait_for_what_came_before_and_go_before_what_comes_after(engine):
    """Else weights would change under a sequence. Told by what the job itself sees: 60 tokens drawn, nobody at work."""
    sampler = engine("qwen3")

    async def ask():
        first = asyncio.create_task(sampler.sample([text(0, 5)], 1, SamplingParams(60)))
        while not sampler.counts["steps"]:
            await asyncio.sleep(0.001)
        job = asyncio.create_task(sampler.run(lambda: (sampler.counts["sampled"], sum(map(bool, sampler.active)))))
        await asyncio.sleep(0)
        await asyncio.gather(first, sampler.sample([text(0, 5)], 1, SamplingParams(1)))
        return await job, sampler.counts["sampled"]

    assert run(ask()) == ((60, 0), 61)


def test_more_sequences_than_rows_wait_their_turn(engine):
    sampler = engine("qwen3", max_rows=4)
    asked = [sampler.sample([text(i, 5)], 1, SamplingParams(6, seed=i)) for i in range(11)]
    samples = run(gather(*asked, sampler.sample([text(0, 5)], 9, SamplingParams(2))))
    assert [len(group) for group in samples] == [1] * 11 + [9]


def test_micro_batches_cover_everything_within_the_budget():
    lengths = [5, 100, 7, 30, 31, 5, 90]
    groups = micro_batches(lengths, 100)
    assert sorted(i for group in groups for i in group) == list(range(7))
    assert all(len(group) == 1 or len(group) * max(lengths[i] for i in group) <= 100 for group in groups)
    assert micro_batches([], 10) == [] and len(micro_batches([50, 50], 10)) == 2


INTERRUPTED = """
import asyncio, sys, torch
torch.set_num_threads(1)
from backends.local import create_sampler
from protocol import SamplingParams, TextChunk
async def main():
    sampler = await create_sampler(sys.argv[1])
    tasks = [asyncio.create_task(sampler.sample([TextChunk((1, 2, 3))], 8, SamplingParams(4000, seed=i))) for i in range(4)]
    while not sampler.counts["steps"]:
        await asyncio.sleep(0.01)
    print("sampling", flush=True)
    await asyncio.gather(*tasks)
asyncio.run(main())
"""


def test_P36_ctrl_c_ends_the_process(folders):
    folder = folders("qwen3")
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, "-c", INTERRUPTED, folder]
    heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell inherit "ignore"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root, preexec_fn=heed)
    try:
        assert process.stdout.readline() == "sampling\n", process.stderr.read()
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=30)[1]  # a process that hangs never ends; a busy machine takes its time
    finally:
        process.kill()
    assert time.monotonic() - started < 30
    assert process.returncode != 0 and "KeyboardInterrupt" in error and "Fatal" not in error


def test_a_missing_or_damaged_model_is_one_line(tmp_path, folders):
    import shutil

    cases = {"no such folder": tmp_path / "nothing", "can't be loaded": tmp_path / "empty"}
    (tmp_path / "empty").mkdir()
    shutil.copytree(folders("qwen3"), tmp_path / "cut")
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    cases["can't"] = tmp_path / "cut"
    for words, path in cases.items():
        with pytest.raises(SystemExit) as error:
            run(create_sampler(path))
        assert words in str(error.value) and path.name in str(error.value) and "\n" not in str(error.value)


def test_engine_needs_no_tokenizer(folders):
    sampler = Engine(load_model(folders("qwen3")))
    assert len(run(sampler.sample([text(0, 5)], 2, SamplingParams(2)))) == 2
    sampler.close()
