"""backends/pytrio.py through the real SDK, against a loopback service that trains with backends/local.py (stub_pytrio.py)."""

import asyncio
import os

import numpy as np
import pytest

pytrio = pytest.importorskip("pytrio", reason="the extra `remote` is not installed")
import torch  # noqa: E402
from helpers import png, tiny_folder  # noqa: E402
from stub_pytrio import LIMITS, serving  # noqa: E402

from backends import AdamParams, local, remote  # noqa: E402
from backends import pytrio as adapter  # noqa: E402
from protocol import Datum, ImageChunk, SamplingParams, TextChunk, load_chat  # noqa: E402

torch.set_num_threads(1)
ADAM = AdamParams(3e-3, grad_clip_norm=1.0)
TOLERANCE = 1e-5  # nats a token; both sides compute the same sums, but batches are cut differently (float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("pytrio") / "tiny", "qwen3_vl")


@pytest.fixture
def stub(model, tmp_path, monkeypatch):
    with serving(tmp_path, model, monkeypatch) as service:
        yield service


def picture(seed):
    return ImageChunk(png(56, 28, (40 * seed % 255, 90, 30)), 2)


def datums(model, count=5, rl=False):
    """Sequences with a picture each; the last 8 positions count."""
    chat, made = load_chat(model), []
    for seed in range(count):
        random = np.random.default_rng(seed)
        ids = lambda n: tuple(int(token) for token in random.integers(0, 250, n))  # noqa: B023
        start, end = (chat.tokenizer.convert_tokens_to_ids(f"<|vision_{name}|>") for name in ("start", "end"))
        chunks = [TextChunk((*ids(6 + seed), start)), picture(seed), TextChunk((end, *ids(12)))]
        length = sum(map(len, chunks))
        weights = np.zeros(length, dtype=np.float32)
        weights[-8:] = 1
        targets = np.zeros(length, dtype=np.int64)
        targets[-8:] = [*chunks[-1].tokens[-7:], 7]
        old = (random.normal(-5, 0.5, length) * weights).astype(np.float32)
        advantages = (random.normal(0, 1, length) * weights).astype(np.float32)
        made.append(Datum(chunks, targets, weights, old if rl else None, advantages if rl else None))
    return made


def prompt(model):
    return datums(model, 1)[0].chunks


async def steps(trainer, data, loss, config=None, count=3):
    """As train_sft.py does it: forward_backward and optim_step are both under way before either is awaited."""
    found = []
    for _ in range(count):
        forward = asyncio.ensure_future(trainer.forward_backward(data, loss, config))
        update = asyncio.ensure_future(trainer.optim_step(ADAM))
        output, stepped = await forward, await update
        found.append((output, stepped))
    return found


def assert_same(ours, theirs):
    for (a, stepped_a), (b, stepped_b) in zip(ours, theirs, strict=True):
        for left, right in zip(a.logprobs, b.logprobs, strict=True):
            np.testing.assert_allclose(left, right, atol=TOLERANCE)
        assert a.metrics["loss_sum"] == pytest.approx(b.metrics["loss_sum"], rel=1e-5, abs=1e-5)
        assert a.metrics["token_count"] == b.metrics["token_count"]
        for name in set(a.metrics) & set(b.metrics) - {"loss_sum", "token_count"}:
            assert a.metrics[name] == pytest.approx(b.metrics[name], rel=1e-4, abs=1e-4), name
        assert stepped_a["grad_norm"] == pytest.approx(stepped_b["grad_norm"], rel=1e-4)
        assert stepped_a["version"] == stepped_b["version"] and stepped_a["skipped"] == stepped_b["skipped"] == 0


def test_sft_gives_the_losses_of_the_local_backend(stub, model):
    async def both():
        data = datums(model)
        remote_trainer = await adapter.create_trainer(model, rank=8, seed=3, revision="main")
        ours = await steps(remote_trainer, data, "cross_entropy")
        local_trainer = await local.create_trainer(model, rank=8, seed=3, device="cpu")
        stub.made.append(local_trainer)
        assert_same(ours, await steps(local_trainer, data, "cross_entropy"))
        assert ours[-1][0].metrics["loss_sum"] < ours[0][0].metrics["loss_sum"]
        plain = await remote_trainer.forward(data)
        np.testing.assert_allclose(plain.logprobs[0], (await local_trainer.forward(data)).logprobs[0], atol=TOLERANCE)
        assert remote_trainer.base_model == model and remote_trainer.version == 3
        remote_trainer.close()

    asyncio.run(both())
    # 5 datums are two events (the service takes 4 at once); the step comes after both, and nothing was sent twice
    assert stub.types() == ["init_run", *["forward_backward", "forward_backward", "optimize_step"] * 3, "forward", "forward"]
    assert not any("telemetry" in path for _, path in stub.calls)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_rl_steps_weights_and_metrics(stub, model, loss):
    async def both():
        data = datums(model, 3, rl=True)
        for datum in data:  # what --importance-cap does: the services have no weights, so they go into the advantages
            datum.weights = datum.weights * np.linspace(0.5, 1.5, len(datum.weights), dtype=np.float32)
        config = {"temperature": 1.0} | ({} if loss == "importance_sampling" else {"clip_low_threshold": 0.7, "clip_high_threshold": 1.3})
        trainer = await adapter.create_trainer(model, rank=4, seed=1)
        ours = await steps(trainer, data, loss, config, count=2)
        local_trainer = await local.create_trainer(model, rank=4, seed=1, device="cpu")
        stub.made.append(local_trainer)
        theirs = await steps(local_trainer, data, loss, config, count=2)
        assert_same(ours, theirs)
        assert {"ratio_mean", "kl", "clip_fraction", "logp_gap"} <= set(ours[0][0].metrics)

    asyncio.run(both())
    assert stub.events[1][1]["loss"]["config"].keys() <= {"clip_low_threshold", "clip_high_threshold"}


def test_restored_with_optimizer_it_goes_on_exactly(stub, model):
    async def whole():
        data = datums(model, 4)
        trainer = await adapter.create_trainer(model, rank=4, seed=1)
        await steps(trainer, data, "cross_entropy", count=2)
        path = await trainer.save_state("runs/sft/checkpoints/step-000002/state")
        assert path == "trio://run1/weights/sft-step-000002-state"
        assert (await trainer.save_state("runs/sft/checkpoints/step-000002/state")).endswith("-state-2")
        rest = await steps(trainer, data, "cross_entropy", count=2)
        again = await adapter.load_trainer(path, with_optimizer=True)
        resumed = await steps(again, data, "cross_entropy", count=2)
        fresh = await steps(await adapter.load_trainer(path, with_optimizer=False), data, "cross_entropy", count=2)
        losses = lambda found: [output.metrics["loss_sum"] for output, _ in found]
        assert losses(resumed) == pytest.approx(losses(rest), rel=1e-6)
        assert losses(fresh)[0] == pytest.approx(losses(rest)[0], rel=1e-6) and losses(fresh)[1] != pytest.approx(losses(rest)[1], rel=1e-6)
        assert again.base_model == model

    asyncio.run(whole())


def test_sampling_with_pictures_is_that_of_the_local_sampler_and_exports_once_a_version(stub, model):
    async def whole():
        chunks, params = prompt(model), SamplingParams(12, seed=5)
        trainer = await adapter.create_trainer(model, rank=4, seed=1)
        sampler = trainer.sampler()
        groups = await asyncio.gather(*(sampler.sample(chunks, 3, params) for _ in range(4)))
        assert stub.types().count("save_weights") == 1
        base = await local.create_sampler(model, device="cpu")
        stub.made.append(base)
        theirs = await base.sample(chunks, 3, params)  # a fresh LoRA changes nothing
        for group in groups:
            assert [one.tokens for one in group] == [one.tokens for one in theirs]
            np.testing.assert_allclose(group[0].logprobs, theirs[0].logprobs, atol=TOLERANCE)
            assert all(one.stop_reason == "length" and len(one.tokens) == 12 for one in group)
        await steps(trainer, datums(model, 4), "cross_entropy", count=3)
        after = await sampler.sample(chunks, 3, params)
        await sampler.sample(chunks, 1, params)
        assert stub.types().count("save_weights") == 2 and sampler.version == 3
        path = await trainer.save_weights_for_sampler("final weights")
        assert path == "trio://run1/sampler_weights/final-weights"
        loaded = await adapter.create_sampler(model, path)
        assert [one.tokens for one in await loaded.sample(chunks, 3, params)] == [one.tokens for one in after]
        assert [one.tokens for one in after] != [one.tokens for one in theirs]

    asyncio.run(whole())


def test_stops_and_prompt_logprobs(stub, model):
    async def whole():
        chunks, base = [TextChunk(tuple(range(20, 40)))], await local.create_sampler(model, device="cpu")
        stub.made.append(base)
        sampler = await adapter.create_sampler(model)
        free = (await base.sample(chunks, 1, SamplingParams(20, seed=2)))[0]
        written = {i: base.tokenizer.decode([token]) for i, token in enumerate(free.tokens)}
        letters = {i: text for i, text in written.items() if text and text.isascii() and text.isprintable()}
        at = next(i for i in letters if i > 2 and not any(letters[i] in letters.get(k, "") for k in range(i)))
        token = free.tokens[next(i for i in range(3, 20) if free.tokens[i] not in free.tokens[:i])]
        for stops in ({"stop_tokens": (token,)}, {"stop_strings": (letters[at],)}, {"stop_tokens": (319,), "stop_strings": (letters[at],)}):
            params = SamplingParams(20, seed=2, **stops)
            assert await sampler.sample(chunks, 2, params) == await base.sample(chunks, 2, params), stops
        np.testing.assert_allclose(await sampler.logprobs(chunks), await base.logprobs(chunks), atol=TOLERANCE)
        with pytest.raises(ValueError, match="prompts with pictures"):
            await sampler.logprobs(prompt(model))

    asyncio.run(whole())


def test_what_the_service_would_refuse_is_refused_before_sending(stub, model):
    async def whole():
        for rank in (0, 2, 128):
            with pytest.raises(SystemExit, match="rank 4 to 64"):
                await adapter.create_trainer(model, rank=rank)
        with pytest.raises(SystemExit, match=f"nobody/nothing is not served for training; there are: {model}"):
            await adapter.create_trainer("nobody/nothing", rank=8)
        with pytest.raises(SystemExit, match="has no --device cuda"):
            await adapter.create_trainer(model, rank=8, device="cuda")
        with pytest.raises(SystemExit, match="not files of this machine"):
            await adapter.load_trainer("runs/sft/checkpoints/step-1/state")
        with pytest.raises(SystemExit, match="no such checkpoint"):
            await adapter.load_trainer("trio://run9/weights/x")
        trainer = await adapter.create_trainer(model, rank=8)
        length = LIMITS["max_seq_len"] + 1
        long = Datum([TextChunk((1,) * length)], np.ones(length, dtype=np.int64), np.ones(length, dtype=np.float32))
        for call, match in (
            (trainer.forward_backward([long]), "601 positions, PyTRIO takes 600"),
            (trainer.forward(datums(model, 1, rl=True), "gspo"), "--loss gspo"),
            (trainer.forward(datums(model, 1), "cross_entropy", {"temperature": 0.7}), "temperature 1 only"),
        ):
            with pytest.raises(SystemExit, match=match):
                await call
        with pytest.raises(ValueError, match="without gradients"):
            await trainer.optim_step(ADAM)
        with pytest.raises(ValueError, match="leaves no room"):
            await trainer.sampler().sample([TextChunk((1,) * 600)], 1, SamplingParams(5))
        assert stub.events == []

    asyncio.run(whole())
    pytrio.configure(api_key="wrong")
    with pytest.raises(SystemExit, match="not logged in .*trio login"):
        asyncio.run(adapter.create_sampler(model))
    pytrio.config.config.auth_state.api_key = ""
    with pytest.raises(SystemExit, match="not logged in .*PYTRIO_API_KEY"):
        asyncio.run(adapter.create_sampler(model))


def test_faults_are_repeated_within_bounds_and_no_step_is_taken_twice(stub, model, monkeypatch):
    async def whole():
        data = datums(model, 4)
        trainer = await adapter.create_trainer(model, rank=4, seed=1)
        sampler = trainer.sampler()
        stub.faults |= {"v1/events": [503, "drop", 504, "drop"], "/sample": [502, "drop", "half"]}
        ours = await steps(trainer, data, "cross_entropy", count=2)
        assert len(await sampler.sample(prompt(model), 2, SamplingParams(4))) == 2
        assert stub.types() == ["init_run", *["forward_backward", "optimize_step"] * 2, "save_weights"]
        stub.faults["/sample"] = ["half"] * remote.TRIES
        with pytest.raises(RuntimeError, match="^PyTRIO: [^\n]+$"):
            await sampler.sample(prompt(model), 2, SamplingParams(4))
        local_trainer = await local.create_trainer(model, rank=4, seed=1, device="cpu")
        stub.made.append(local_trainer)
        assert_same(ours, await steps(local_trainer, data, "cross_entropy", count=2))

    asyncio.run(whole())


def test_an_answer_that_never_comes_is_waited_for_within_bounds(stub, model, monkeypatch):
    """Sampling is asked for again, TRIES times; training may have been done, so it is not: one line that says how to go on."""
    monkeypatch.setattr(remote, "REQUEST_SECONDS", 1.0)

    async def whole():
        sampler = await adapter.create_sampler(model)
        stub.faults["/sample"] = ["hang"]
        assert len(await sampler.sample(prompt(model), 1, SamplingParams(2))) == 1
        stub.faults["/sample"] = ["hang"] * 3
        with pytest.raises(RuntimeError, match="^PyTRIO: asked 3 times, no answer within 1 s[^\n]*$"):
            await sampler.sample(prompt(model), 1, SamplingParams(2))
        trainer = await adapter.create_trainer(model, rank=4)
        stub.faults["v1/events"] = ["hang"] * 50  # whichever of the SDK's requests comes first
        with pytest.raises(SystemExit, match="^PyTRIO: (no answer within 1 s; go on from the last checkpoint with --resume|Response read timed out)"):
            await trainer.forward_backward(datums(model, 1))

    asyncio.run(whole())


def test_sampling_requests_under_way_are_limited(stub, model, monkeypatch):
    monkeypatch.setattr(remote, "CONCURRENCY", 3)
    running, most = 0, 0
    answer = stub.sample

    async def slowly(name, body):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return await answer(name, body)

    stub.sample = slowly

    async def whole():
        sampler = await adapter.create_sampler(model)
        await asyncio.gather(*(sampler.sample(prompt(model), 1, SamplingParams(1, seed=i)) for i in range(9)))

    asyncio.run(whole())
    assert most == 3


def test_a_service_that_stays_away_ends_the_run_with_a_line(stub, model, monkeypatch):
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.2)

    async def whole():
        trainer = await adapter.create_trainer(model, rank=4)
        stub.faults["v1/events"] = [503] * 200
        with pytest.raises(SystemExit, match="^PyTRIO: injected fault[^\n]*$"):
            await trainer.forward_backward(datums(model, 1))

    asyncio.run(whole())


def test_without_the_sdk_it_says_what_to_install():
    import subprocess
    import sys

    code = "import sys; sys.modules['pytrio'] = None\nimport asyncio\nfrom backends import pytrio\nasyncio.run(pytrio.create_sampler('x'))"
    root = os.path.dirname(os.path.dirname(os.path.abspath(adapter.__file__)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "uv sync --extra remote" in done.stderr
