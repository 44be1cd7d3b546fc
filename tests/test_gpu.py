"""Options of training on a GPU, as far as a CPU can tell: the same gradients, estimates worked by hand."""

import pytest
import torch
from test_engine import folders  # noqa: F401 (a fixture)
from test_local import batch, make, run, trainers  # noqa: F401 (fixtures)

from backends.gpu import HEAD_BYTES, fitting_positions, training_bytes, usable
from protocol import SamplingParams, TextChunk

torch.set_num_threads(1)


def gradients(trainer, data):
    run(trainer.forward_backward(data, "ppo"))
    return {name: p.grad.clone() for name, p in trainer.model.net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("arch, rank", [("qwen3", 0), ("qwen3_vl", 4)])
def test_recomputed_layers_give_the_same_gradients(make, arch, rank):  # noqa: F811
    plain, thrifty = make(arch, rank), make(arch, rank, recompute=True)
    data, passed = batch(plain), []
    for trainer in (plain, thrifty):
        body = getattr(trainer.model.inner, "language_model", trainer.model.inner)
        body.layers[0].input_layernorm.register_forward_hook(lambda *_, trainer=trainer: passed.append(trainer))
    expected, found = gradients(plain, data), gradients(thrifty, data)
    assert passed.count(thrifty) == 2 * passed.count(plain) > 0
    assert expected.keys() == found.keys() and all(torch.allclose(expected[name], found[name], atol=1e-6) for name in expected)
    prompt = [TextChunk((1, 2, 3))]
    tokens = [run(t.sampler().sample(prompt, 1, SamplingParams(5)))[0].tokens for t in (plain, thrifty)]
    assert tokens[0] == tokens[1]  # the cache still works in wrapped layers


def test_compiled_layers_are_for_gradients_only(make, monkeypatch):  # noqa: F811
    """With a stand-in for torch.compile: it is used where gradients are wanted and nowhere else."""
    calls = []
    monkeypatch.setattr(torch, "compile", lambda f, **_: lambda *args, **kwargs: calls.append(1) or f(*args, **kwargs))
    trainer = make("qwen3", compile=True)
    run(trainer.sampler().sample([TextChunk((1, 2, 3))], 1, SamplingParams(3)))
    run(trainer.forward(batch(trainer, 2)))
    assert not calls
    run(trainer.forward_backward(batch(trainer, 2)))
    assert len(calls) == len(trainer.model.inner.layers)


def test_padding_is_not_taken_for_a_second_sequence(make, monkeypatch):  # noqa: F811
    """transformers builds an explicit mask [B, T, T] when positions start anew in a row; padded rows must not look like that."""
    from transformers import masking_utils

    found = []
    find = masking_utils.find_packed_sequence_indices
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda positions: found.append(find(positions)) or found[-1])
    trainer = make("qwen3")
    data = batch(trainer, 4)
    assert len({sum(map(len, datum.chunks)) for datum in data}) == 4
    run(trainer.forward(data))
    assert found and all(mask is None for mask in found)


def test_memory_by_hand(make):  # noqa: F811
    """The tiny model: 2 layers, width 64, 4 + 2 x 2 heads of 16, inner 128, 320 tokens; float32."""
    trainer = make("qwen3")
    count = sum(p.numel() for p in trainer.model.net.parameters())
    fixed, each = training_bytes(trainer.model, trainer.weights, compile=False, recompute=False)
    assert fixed == 4 * count + 12 * count + HEAD_BYTES + 4 * 320 * 64
    assert each == 2 * 4 * (640 + 3 * 128 + 512) + 8 * 4 * 64
    assert training_bytes(trainer.model, trainer.weights, compile=False, recompute=True)[1] == 2 * 4 * 64 + 4 * (640 + 3 * 128 + 512) + 8 * 4 * 64
    assert training_bytes(trainer.model, [], False, False)[0] == 4 * count + HEAD_BYTES + 4 * 320 * 64
    assert fitting_positions(1000, 10, 100_000) == 7900 and fitting_positions(1000, 10, 10**9) == 16384
    with pytest.raises(SystemExit, match="recompute"):
        fitting_positions(1000, 10, 5000)


def test_a_process_may_plan_with_its_share_of_the_memory_only(monkeypatch):
    """Several processes on one GPU each see what the others haven't taken yet."""
    monkeypatch.delenv("TOOLGRAD_GPU_SHARE", raising=False)
    assert usable(900, 1000) == 900
    monkeypatch.setenv("TOOLGRAD_GPU_SHARE", "0.2")
    assert usable(900, 1000) == 200 and usable(150, 1000) == 150
    for wrong in ("0", "20", "a fifth"):
        monkeypatch.setenv("TOOLGRAD_GPU_SHARE", wrong)
        with pytest.raises(SystemExit, match="TOOLGRAD_GPU_SHARE=.*as in 0.2"):
            usable(900, 1000)
