"""The local trainer and its checkpoints: tiny random models on the CPU, against plain autograd, plain transformers and plain peft."""

import asyncio
import json
import os
import shutil

import numpy as np
import pytest
import torch
from test_engine import ARCHS, VISION, folders, plain_logprobs, shown, text, trajectory  # noqa: F401 (a fixture)

from backends import AdamParams
from backends.local import check, create_sampler, create_trainer, load_trainer, token_losses, write_folder
from protocol import Datum, SamplingParams, TextChunk

torch.set_num_threads(1)
ADAM = AdamParams(1e-3)


def run(coroutine):
    return asyncio.run(coroutine)


@pytest.fixture
def trainers():
    """Closes the trainers and samplers that a test appends."""
    made = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def make(folders, trainers):  # noqa: F811
    def trainer(arch="qwen3", rank=0, **options):
        trainers.append(run(create_trainer(folders(arch), rank, **options)))
        return trainers[-1]

    return trainer


def datum(model, seed, length=20, trained=8, rl=True):
    """A sequence with a picture, whose last `trained` positions count."""
    chunks = [text(seed, length), *shown(model, seed), text(50 + seed, 5 + trained)]
    flat = model.flatten(chunks)
    weights = np.zeros(len(flat), dtype=np.float32)
    weights[-trained:] = 1
    targets = np.where(weights > 0, np.append(flat.ids[1:], 7), 0)
    random = np.random.default_rng(seed)
    old = (random.normal(-5, 1, len(flat)) * weights).astype(np.float32)
    advantages = (random.normal(0, 1, len(flat)) * weights).astype(np.float32)
    return Datum(chunks, targets, weights, old if rl else None, advantages if rl else None)


def batch(trainer, count=5, **options):
    return [datum(trainer.model, i, 12 + 3 * i, **options) for i in range(count)]


def parameters(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.net.named_parameters()}


def differences(left, right):
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


# ---------------------------------------------------------------------------------------------------------------------
# losses


def losses(loss, logp, old=(0.0, 0.0), advantages=(1.0, 1.0), config=None):
    logp = torch.tensor(logp, requires_grad=True)
    sequence = torch.zeros(len(old), dtype=torch.long)
    values, clipped = token_losses(loss, logp, torch.tensor(old), torch.tensor(advantages), sequence, config or {})
    values.sum().backward()
    return values.tolist(), logp.grad.tolist(), clipped.tolist()


def test_losses_by_hand():
    log = lambda *ratios: [float(np.log(r)) for r in ratios]
    near = lambda *values: pytest.approx(list(values), abs=1e-6)
    values, gradient, clipped = losses("cross_entropy", [-2.0, -3.0])
    assert values == [2, 3] and gradient == [-1, -1] and clipped == [False, False]
    values, gradient, _ = losses("importance_sampling", log(2.0, 0.5), advantages=(3.0, -1.0))
    assert values == near(-6, 0.5) and gradient == near(-6, 0.5)
    # ppo, bounds 0.8 and 1.2: a good token already 1.5 as likely stops, a bad one doesn't; the other way round below 0.8
    values, gradient, clipped = losses("ppo", log(1.5, 1.5), advantages=(2.0, -2.0))
    assert values == near(-2.4, 3.0) and gradient == near(0, 3.0) and clipped == [True, False]
    values, gradient, clipped = losses("ppo", log(0.5, 0.5), advantages=(2.0, -2.0))
    assert values == near(-1.0, 1.6) and gradient == near(-1.0, 0) and clipped == [False, True]
    assert losses("ppo", log(1.5, 1.5), advantages=(2.0, 2.0), config={"clip_high_threshold": 2.0})[2] == [False, False]
    # cispo: the clipped ratio is a constant weight, so a clipped token still has a gradient
    values, gradient, clipped = losses("cispo", log(1.5, 0.5), advantages=(1.0, 1.0))
    assert gradient == near(-1.2, -0.8) and clipped == [True, True] and values == near(*(np.array([-1.2, -0.8]) * log(1.5, 0.5)))
    # gspo: the ratio of the sequence is the geometric mean, sqrt(1.2 * 0.8); its gradient spreads over both tokens
    ratio = 0.96**0.5
    wide = {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}
    values, gradient, clipped = losses("gspo", log(1.2, 0.8), advantages=(2.0, 2.0), config=wide)
    assert values == near(-2 * ratio, -2 * ratio) and gradient == near(-2 * ratio, -2 * ratio) and clipped == [False, False]
    assert losses("gspo", log(1.2, 1.2))[2] == [True, True]  # its own bounds are narrow
    values, *_ = losses(lambda logp, old, advantages, sequence, config: (logp * config["k"], logp > 0), [-1.0, -2.0], config={"k": -3.0})
    assert values == [3, 6]


@pytest.mark.parametrize("arch", ["qwen3", "qwen3_vl"])
def test_gradients_are_those_of_plain_autograd(make, arch):
    """Head apart, only some positions, pieces recomputed, micro-batches of padded rows: the gradient of one plain forward a sequence."""
    trainer = make(arch, micro_positions=70)
    model, data = trainer.model, [datum(make(arch).model, i, 12 + 3 * i, rl=False) for i in range(4)]
    data[0].weights = data[0].weights * 0.3
    output = run(trainer.forward_backward(data))
    found = {name: p.grad.clone() for name, p in model.net.named_parameters() if p.grad is not None}
    model.net.zero_grad()
    total = 0.0
    for one, logprobs in zip(data, output.logprobs, strict=True):
        flat = model.flatten(one.chunks)
        hidden = model.hidden(torch.tensor(flat.ids)[None], flat.positions[:, None], [chunk for _, chunk in flat.pictures], grad=True)
        logits = model.net.get_output_embeddings()(hidden)[0].index_fill(-1, model.blocked, -1e9)
        logp = logits.log_softmax(-1).gather(-1, torch.tensor(one.targets)[:, None])[:, 0]
        total = total - (logp * torch.tensor(one.weights)).sum()
        assert np.abs(np.where(one.weights > 0, logp.detach().numpy(), 0) - logprobs).max() < 1e-5
    total.backward()
    assert output.metrics["loss_sum"] == pytest.approx(total.item(), rel=1e-5) and output.metrics["token_count"] == 32
    assert found.keys() == {name for name, p in model.net.named_parameters() if p.grad is not None}
    assert any("visual" in name for name in found) == (arch == "qwen3_vl")
    for name, p in model.net.named_parameters():
        assert torch.allclose(found[name], p.grad, atol=1e-4, rtol=1e-3), name


def test_the_head_in_pieces_is_the_head(make):
    trainer = make()
    data = batch(trainer)
    whole = run(trainer.forward_backward(data, "ppo"))
    gradients = [p.grad.clone() for p in trainer.weights]
    trainer._forget_gradients()
    trainer.model.vocab_size = 2**22  # makes pieces of 4 rows
    rows = []
    logprobs = trainer.model._logprobs
    trainer.model._logprobs = lambda *a: rows.append(len(a[0])) or logprobs(*a)
    pieces = run(trainer.forward_backward(data, "ppo"))
    assert max(rows) == 4 and len(rows) == 2 * 10  # each is computed twice
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(whole.logprobs, pieces.logprobs))
    assert all(torch.allclose(a, p.grad, atol=1e-4, rtol=1e-3) for a, p in zip(gradients, trainer.weights))


def test_calls_add_up_and_nothing_is_normalised(make):
    trainer = make("qwen3_vl")
    data = batch(trainer)
    both = run(trainer.forward_backward(data, "ppo"))
    gradients = [p.grad.clone() for p in trainer.weights]
    trainer._forget_gradients()
    parts = [run(trainer.forward_backward(part, "ppo")) for part in (data[:2], data[2:])]
    assert sum(part.metrics["loss_sum"] for part in parts) == pytest.approx(both.metrics["loss_sum"], rel=1e-5)
    assert sum(part.metrics["token_count"] for part in parts) == both.metrics["token_count"] == 40
    assert all(torch.allclose(a, p.grad, atol=1e-4, rtol=1e-3) for a, p in zip(gradients, trainer.weights))


def test_only_wanted_positions_cost_the_head(make):
    trainer = make("qwen3_vl")
    one = datum(trainer.model, 0)
    one.weights[-3:], one.advantages[-3:] = 0, 0  # nothing there
    one.weights[-4] = 0  # an advantage alone
    counted = []
    logits = trainer.model.logits
    trainer.model.logits = lambda rows, *a: counted.append(len(rows)) or logits(rows, *a)
    output = run(trainer.forward([one], "ppo"))
    assert counted == [5] and (output.logprobs[0] != 0).sum() == 5 and output.metrics["token_count"] == 4
    everywhere = run(trainer.forward([one], "ppo", everywhere=True))
    plain = plain_logprobs(trainer.model, one.chunks)[1:]
    text_next = trainer.model.flatten(one.chunks).key[1:] >= 0
    assert np.abs(everywhere.logprobs[0][:-1] - np.where(text_next, plain, 0)).max() < 1e-4
    assert everywhere.metrics["loss_sum"] == pytest.approx(output.metrics["loss_sum"], rel=1e-5)
    one.weights[:], one.advantages[:] = 0, 0
    nothing = run(trainer.forward_backward([one], "ppo"))
    assert not nothing.logprobs[0].any() and nothing.metrics == {"loss_sum": 0, "token_count": 0}


def test_P25_same_ids_alone_and_among_others(make):
    for arch in ARCHS:
        trainer = make(arch, micro_positions=10**6)
        data = batch(trainer, 8)
        together = run(trainer.forward(data, "ppo")).logprobs
        alone = [run(trainer.forward([one], "ppo")).logprobs[0] for one in data]
        assert max(np.abs(a - b).max() for a, b in zip(together, alone)) < 1e-5


@pytest.mark.parametrize("arch", ARCHS)
def test_P25_trainer_agrees_with_its_sampler(make, arch):
    """Text before the first picture, tokens after pictures in the first and in later turns: the two sides apart by float noise only."""
    trainer = make(arch)
    sampler = trainer.sampler()

    async def both():
        plain = await asyncio.gather(*(sampler.sample([text(i, 9)], 1, SamplingParams(9, seed=i)) for i in range(4)))
        turns = await asyncio.gather(*(trajectory(sampler, i) for i in range(4)))
        cases = [("text", [text(i, 9), TextChunk(tuple(s.tokens))], [(9, s)]) for i, [s] in enumerate(plain)]
        for chunks, sampled in turns:
            cases += [("after pictures, first turn", chunks, sampled[:1]), ("after pictures, later turns", chunks, sampled[1:])]
        gaps = {}
        for name, chunks, sampled in cases:
            flat = trainer.model.flatten(chunks)
            logprobs, weights = np.zeros(len(flat), dtype=np.float32), np.zeros(len(flat), dtype=np.float32)
            for start, sample in sampled:
                logprobs[start - 1 : start - 1 + len(sample.tokens)] = sample.logprobs
                weights[start - 1 : start - 1 + len(sample.tokens)] = 1
            targets = np.where(weights > 0, np.append(flat.ids[1:], 0), 0)
            output = await trainer.forward([Datum(chunks, targets, weights, logprobs, weights)], "ppo")
            gaps[name] = max(gaps.get(name, 0), np.abs(output.logprobs[0] - logprobs).max())
            assert output.metrics["clip_fraction"] == 0 and abs(output.metrics["ratio_mean"] - 1) < 1e-4
        return gaps

    gaps = run(both())
    print(arch, gaps)
    assert len(gaps) == 3 and max(gaps.values()) < 1e-4, gaps


def test_P23_temperature_divides_the_logits(make):
    trainer = make()

    async def gap(at):
        [sample] = await trainer.sampler().sample([text(0, 9)], 1, SamplingParams(20, temperature=0.6, seed=1))
        length = 9 + len(sample.tokens) - 1
        old, weights = np.zeros(length, dtype=np.float32), np.zeros(length, dtype=np.float32)
        old[8:], weights[8:] = sample.logprobs, 1
        targets = np.append(np.zeros(8, dtype=np.int64), sample.tokens)
        data = [Datum([text(0, 9), TextChunk(tuple(sample.tokens[:-1]))], targets, weights, old, weights)]
        return (await trainer.forward_backward(data, "ppo", {"temperature": at})).metrics

    right, wrong = run(gap(0.6)), run(gap(1.0))
    assert abs(right["ratio_mean"] - 1) < 1e-4 and right["logp_gap"] < 1e-4 and right["entropy"] < wrong["entropy"]
    assert wrong["logp_gap"] > 0.05


def test_P48_first_step_has_ratio_one_and_no_kl(make):
    """Also with LoRA, and for a model whose config asks for dropout."""
    for rank in (0, 4):
        trainer = make("qwen3_vl", rank)
        for module in trainer.model.net.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.5
        assert not any(module.training for module in trainer.model.net.modules())
        data = batch(trainer)
        for one, logprobs in zip(data, run(trainer.forward(data, "ppo")).logprobs):
            one.logprobs = logprobs
        metrics = run(trainer.forward_backward(data, "ppo")).metrics
        assert metrics["ratio_mean"] == 1 and metrics["kl"] == 0 and metrics["logp_gap"] == 0 and metrics["clip_fraction"] == 0


def test_unusable_data_is_named(make):
    trainer = make("qwen3_vl")
    good = batch(trainer, 2)

    def wrong(**changes):
        one = datum(trainer.model, 1)
        for name, value in changes.items():
            setattr(one, name, value(getattr(one, name)) if callable(value) else value)
        return [good[0], one]

    placeholder = trainer.model.image_token
    cases = [
        ("datum 1: 33 logprobs", wrong(logprobs=lambda x: np.append(x, 0)[:33]), "ppo", {}),  # P26
        ("datum 1: its logprobs are not all finite", wrong(logprobs=lambda x: x + np.nan), "ppo", {}),
        ("datum 1: loss 'ppo' needs logprobs", wrong(logprobs=None), "ppo", {}),
        ("datum 1: a target", wrong(targets=lambda x: x * 0 + placeholder), "cross_entropy", {}),
        ("datum 1: a target", wrong(targets=lambda x: x + 10**6), "cross_entropy", {}),
        ("empty batch", [], "ppo", {}),
        ("unknown loss 'dpo'", good, "dpo", {}),
        ("unknown loss config clip", good, "ppo", {"clip": 0.2}),
        ("temperature", good, "ppo", {"temperature": 0.0}),
    ]
    for words, data, loss, config in cases:
        with pytest.raises(ValueError) as error:
            run(trainer.forward_backward(data, loss, config))
        assert str(error.value).startswith(words) or words in str(error.value), (words, str(error.value))
        assert all(p.grad is None for p in trainer.weights)
    with pytest.raises(ValueError, match="without gradients"):
        run(trainer.optim_step(ADAM))
    check(good, "ppo", {})


# ---------------------------------------------------------------------------------------------------------------------
# steps


@pytest.mark.parametrize("arch", ARCHS)
def test_steps_learn(make, arch):
    trainer = make(arch)
    data = batch(trainer, 3, rl=False)

    async def steps():
        values = []
        for _ in range(12):
            values.append((await trainer.forward_backward(data)).metrics["loss_sum"])
            metrics = await trainer.optim_step(AdamParams(3e-3, grad_clip_norm=1.0))
        return values, metrics

    values, metrics = run(steps())
    assert values[-1] < 0.5 * values[0] and metrics["version"] == trainer.sampler().version == 12 and metrics["grad_norm"] > 0


def test_P27_the_sampler_sees_the_update(make):
    """Train towards one token: the same prompt, remembered from before, now gives it. A prompt that extends the old one is read anew."""
    trainer = make("qwen3_5")
    sampler, wanted, prompt = trainer.sampler(), 65, [text(0, 12), *shown(trainer.model, 1)]
    length = sum(map(len, prompt))

    async def story():
        [before] = await sampler.sample(prompt, 1, SamplingParams(6, temperature=0))
        chunks = [*prompt, TextChunk((wanted,) * 7)]
        weights = np.zeros(length + 7, dtype=np.float32)
        weights[length - 1 :] = 1
        data = [Datum(chunks, np.where(weights > 0, wanted, 0), weights)]
        for _ in range(20):
            await trainer.forward_backward(data)
            await trainer.optim_step(AdamParams(1e-2))
        assert not sampler.past and not trainer.model.pictures.outputs
        reused = sampler.counts["reused"]
        await sampler.sample([*prompt, TextChunk(tuple(before.tokens)), text(1, 3)], 1, SamplingParams(1))
        [after] = await sampler.sample(prompt, 1, SamplingParams(6, temperature=0))
        return before, after, sampler.counts["reused"] - reused

    before, after, reused = run(story())
    assert before.tokens != after.tokens == [wanted] * 6 and reused == 0 and sampler.version == 20


def test_a_gradient_that_is_not_finite_is_left_out_and_counted(make, capsys):
    trainer = make()
    data, start = batch(trainer), parameters(trainer)
    run(trainer.forward_backward(data, "ppo"))
    trainer.weights[0].grad[0, 0] = float("inf")
    metrics = run(trainer.optim_step(ADAM))
    assert metrics["skipped"] == metrics["skipped_total"] == 1 and metrics["version"] == 0 and not np.isfinite(metrics["grad_norm"])
    assert "left out" in capsys.readouterr().out and not differences(start, parameters(trainer))
    run(trainer.forward_backward(data, "ppo"))
    metrics = run(trainer.optim_step(ADAM))
    assert metrics["skipped"] == 0 and metrics["skipped_total"] == 1 and metrics["version"] == 1
    assert all(torch.isfinite(p).all() for p in trainer.weights) and differences(start, parameters(trainer))


def test_clipping_and_decay(make):
    trainer = make()
    data, start = batch(trainer), parameters(trainer)
    run(trainer.forward_backward(data, "ppo"))
    full = torch.cat([p.grad.flatten() for p in trainer.weights]).norm().item()
    assert run(trainer.optim_step(AdamParams(0.0, grad_clip_norm=0.01)))["grad_norm"] == pytest.approx(full, rel=1e-4)  # before clipping
    assert not differences(start, parameters(trainer))  # learning rate 0
    assert trainer.optimizer.state[trainer.weights[0]]["exp_avg"].norm() < 0.01
    for p in trainer.weights:
        p.grad = torch.zeros_like(p)
    trainer.pending, trainer.optimizer.state = True, trainer.optimizer.state.__class__(dict)
    run(trainer.optim_step(AdamParams(0.1, weight_decay=0.5)))
    now = parameters(trainer)
    assert all(torch.allclose(now[name], start[name] * (0.95 if start[name].ndim >= 2 else 1)) for name in now)


@pytest.mark.parametrize("arch", VISION)
def test_a_frozen_tower_stays_and_passes_pictures_once(make, arch):
    for train_vision in (True, False):
        trainer = make(arch, train_vision=train_vision)
        start, data = parameters(trainer), batch(trainer)
        passed, tower = [], trainer.model.pictures.tower

        def counted(passed=passed, tower=tower, **inputs):
            passed.append(len(inputs["image_grid_thw"]))
            return tower(**inputs)

        trainer.model.pictures.tower = counted
        for _ in range(2):
            run(trainer.forward_backward([*data, *data], "ppo"))  # each picture twice
            run(trainer.optim_step(ADAM))
        changed = differences(start, parameters(trainer))
        assert any(".visual." in name for name in changed) == train_vision and any(".layers." in name for name in changed)
        assert sum(passed) == (10 if train_vision else 5)
        assert {p.requires_grad for name, p in trainer.model.net.named_parameters() if ".visual." in name} == {train_vision}


# ---------------------------------------------------------------------------------------------------------------------
# checkpoints


async def advance(trainer, steps, start=0):
    for step in range(start, start + steps):
        data = [datum(trainer.model, 10 * step + i) for i in range(3)]
        await trainer.forward_backward(data, "ppo", {"temperature": 0.9})
        metrics = await trainer.optim_step(AdamParams(2e-3, weight_decay=0.01, grad_clip_norm=1.0))
    return metrics


@pytest.mark.parametrize("arch, rank, dtype", [("qwen3_vl", 0, "float32"), ("qwen3_5", 4, "float32"), ("qwen3", 0, "bfloat16")])
def test_P21_six_steps_are_three_and_three(make, trainers, tmp_path, arch, rank, dtype):
    straight, broken = make(arch, rank, seed=3, dtype=dtype), make(arch, rank, seed=3, dtype=dtype)
    run(advance(straight, 6))
    run(advance(broken, 3))
    run(broken.save_state(tmp_path / "state"))
    resumed = run(load_trainer(tmp_path / "state", dtype=dtype))
    trainers.append(resumed)
    assert resumed.sampler().version == 3 and resumed.rank == rank and resumed.base_model == straight.base_model
    metrics = run(advance(resumed, 3, start=3))
    assert not differences(parameters(straight), parameters(resumed)) and metrics["version"] == 6
    assert all(torch.equal(a, b) for a, b in zip(straight.masters, resumed.masters))
    fresh = run(load_trainer(tmp_path / "state", with_optimizer=False, dtype=dtype))  # the same weights, nothing else
    trainers.append(fresh)
    assert not differences(parameters(broken), parameters(fresh)) and fresh.sampler().version == 0 and not fresh.optimizer.state


def test_small_steps_are_not_lost_in_bfloat16(make):
    """A step of 1e-4 of a weight rounds to nothing in bfloat16; a hundred of them must not."""
    trainer = make(dtype="bfloat16")
    start = parameters(trainer)
    for _ in range(100):
        for master in trainer.masters:
            master.grad = torch.ones_like(master)
        trainer.pending = True
        run(trainer.optim_step(AdamParams(1e-4)))
    name = next(name for name in start if start[name].ndim >= 2)
    moved = (start[name].float() - parameters(trainer)[name].float()).mean().item()
    assert moved == pytest.approx(1e-2, rel=0.1)


def test_checkpoint_is_an_ordinary_folder(make, trainers, tmp_path):
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

    trainer = make("qwen3_vl")
    run(advance(trainer, 1))
    path = run(trainer.save_weights_for_sampler(tmp_path / "a" / "weights"))
    assert path == str(tmp_path / "a" / "weights") and sorted(os.listdir(tmp_path / "a")) == ["weights"]
    assert "optimizer.pt" not in os.listdir(path)
    for name in ("tokenizer.json", "chat_template.jinja", "preprocessor_config.json"):
        with open(os.path.join(path, name), "rb") as ours, open(os.path.join(trainer.base_model, name), "rb") as theirs:
            assert ours.read() == theirs.read()
    net = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    assert not differences(parameters(trainer), {name: p.detach() for name, p in net.named_parameters()})
    assert AutoTokenizer.from_pretrained(path).chat_template and AutoImageProcessor.from_pretrained(path)
    sampler = run(create_sampler(trainer.base_model, path))
    trainers.append(sampler)
    prompt = [text(0, 9), *shown(trainer.model, 0)]
    ours, theirs = (run(s.sample(prompt, 2, SamplingParams(8))) for s in (trainer.sampler(), sampler))
    assert ours == theirs


@pytest.mark.parametrize("arch", ["qwen2_5_vl", "qwen3_5", "qwen3"])
def test_P28_adapter_works_outside_and_isnt_the_base(make, folders, trainers, tmp_path, arch):  # noqa: F811
    from peft import PeftModel

    from backends.model import load_model

    trainer = make(arch, rank=4)
    assert not any(p.requires_grad for name, p in trainer.model.net.named_parameters() if "lora_" not in name)
    names = [name for name, p in trainer.model.net.named_parameters() if p.requires_grad]
    assert names and not any("visual" in name or "lm_head" in name for name in names)
    prompt = [text(0, 9), *shown(trainer.model, 0), text(1, 6)]
    base = run(trainer.sampler().logprobs(prompt))
    run(advance(trainer, 3))
    ours = run(trainer.sampler().logprobs(prompt))
    path = run(trainer.save_weights_for_sampler(tmp_path / "adapter"))
    assert sorted(os.listdir(path)) == ["adapter_config.json", "adapter_model.safetensors"]
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == folders(arch) and config["r"] == 4
    outside = load_model(folders(arch))
    PeftModel.from_pretrained(outside.net, path)
    there = plain_logprobs(outside, prompt)
    there[outside.flatten(prompt).key < 0] = 0
    inside = run(create_sampler(folders(arch), path))
    alone = run(create_sampler(path))  # its config knows the base
    trainers += [inside, alone]
    assert np.abs(ours - base).max() > 1e-2 and np.abs(ours - there).max() < 1e-4
    assert np.array_equal(run(inside.logprobs(prompt)), ours) and np.array_equal(run(alone.logprobs(prompt)), ours)


def test_P28_an_adapter_that_fits_nowhere_is_refused(make, folders, tmp_path):  # noqa: F811
    """peft itself only warns, and samples the base model."""
    import safetensors.torch

    path = run(make("qwen3", rank=2).save_weights_for_sampler(tmp_path / "adapter"))
    file = os.path.join(path, "adapter_model.safetensors")
    weights = safetensors.torch.load_file(file)
    safetensors.torch.save_file({name.replace(".layers.", ".language_model.layers."): w for name, w in weights.items()}, file)
    for load in (lambda: create_sampler(folders("qwen3"), path), lambda: load_trainer(path, with_optimizer=False)):
        with pytest.raises(SystemExit, match="doesn't fit"):
            run(load())


def fill(words):
    return lambda folder: (folder / "words").write_text(words)


def test_P45_a_failed_or_killed_save_leaves_the_one_before(tmp_path, make, monkeypatch):
    trainer, path = make(), tmp_path / "state"
    run(advance(trainer, 1))
    run(trainer.save_state(path))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    run(advance(trainer, 1, start=1))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:  # weights written, then the disk is full
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space left on device") as error:
            run(trainer.save_state(path))
    assert "untouched" in str(error.value) and str(path) in str(error.value)
    assert os.listdir(tmp_path) == ["state"] and {file.name: file.read_bytes() for file in path.iterdir()} == before
    (tmp_path / "state.tmp").mkdir()  # what a kill leaves
    (tmp_path / "state.tmp" / "model.safetensors").write_bytes(b"half")
    resumed = run(load_trainer(path))
    assert resumed.sampler().version == 1
    resumed.close()
    run(trainer.save_state(path))
    assert os.listdir(tmp_path) == ["state"]
    again = run(load_trainer(path))
    assert again.sampler().version == 2
    again.close()
    os.rename(path, tmp_path / "state.old")  # killed between the two renames
    (tmp_path / "state.tmp").mkdir()
    rescued = run(load_trainer(path))
    assert rescued.sampler().version == 2
    rescued.close()


def test_folders_are_replaced_whole(tmp_path):
    path = tmp_path / "a"
    write_folder(path, fill("one"))
    write_folder(path, fill("two"))
    assert (path / "words").read_text() == "two" and os.listdir(tmp_path) == ["a"]
    with pytest.raises(OSError, match="untouched"):
        write_folder(path, fill("three"), lambda folder: 1 / 0)
    assert (path / "words").read_text() == "two" and os.listdir(tmp_path) == ["a"]


def test_what_cannot_be_loaded_is_one_line(make, folders, tmp_path):  # noqa: F811
    weights = run(make().save_weights_for_sampler(tmp_path / "weights"))
    adapter = run(make(rank=2).save_state(tmp_path / "adapter"))
    broken = shutil.copytree(adapter, tmp_path / "broken")
    (broken / "optimizer.pt").write_bytes(b"PK half a file")
    moved = shutil.copytree(adapter, tmp_path / "moved")
    config = json.loads((moved / "adapter_config.json").read_text())
    (moved / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "/gone/base"}))
    cases = [
        ("only what save_state wrote", lambda: load_trainer(weights)),
        ("can't be read", lambda: load_trainer(broken)),
        ("/gone/base", lambda: load_trainer(moved)),
        ("no such folder", lambda: load_trainer(tmp_path / "none", with_optimizer=False)),
        ("no optimizer.pt", lambda: load_trainer(tmp_path / "none")),
        ("adapter folder", lambda: create_trainer(adapter)),
        ("--device cuda:99: torch can't use it here", lambda: create_trainer(folders("qwen3"), device="cuda:99")),
        ("--device abacus: torch can't use it here", lambda: create_trainer(folders("qwen3"), device="abacus")),
        ("rank -1", lambda: create_trainer(folders("qwen3"), -1)),
        ("language model only", lambda: create_trainer(folders("qwen3_vl"), 4, train_vision=True)),
    ]
    for words, load in cases:
        with pytest.raises(SystemExit) as error:
            run(load())
        assert words in str(error.value) and "\n" not in str(error.value)
    rescued = run(load_trainer(moved, base_model=folders("qwen3")))
    rescued.close()


def test_the_event_loop_stays_free(make):
    trainer = make("qwen3_5")
    data = batch(trainer)

    async def both():
        work, beats = asyncio.create_task(trainer.forward_backward(data * 4, "ppo")), 0
        while not work.done():
            await asyncio.sleep(0.001)
            beats += 1
        return beats

    assert run(both()) > 5
