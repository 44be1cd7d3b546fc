"""Sequences packed behind each other give what they give in a padded batch: log-probabilities and gradients, with pictures, recomputed or not."""

import json

import numpy as np
import pytest
import torch
from helpers import tiny_folder
from test_engine import shown, text

from backends.gpu import wrap_layers
from backends.model import load_model, micro_batches
from backends.packing import switch_on

torch.set_num_threads(1)


def scores(model, grad=False):
    """Log-probabilities [N] of three sequences of different lengths, and the gradient of the first layer's queries."""
    flats = [model.flatten([text(i, 5 + 9 * i), *shown(model, i), text(i + 7, 4)]) for i in range(3)]
    targets = [np.append(flat.ids[1:], 1) for flat in flats]
    wanted = [np.append(flat.key[1:] >= 0, True) for flat in flats]
    logp, entropy = model.score(flats, targets, wanted, 0.7, grad)
    if not grad:
        return logp, entropy
    logp.sum().backward()
    weight = getattr(model.inner, "language_model", model.inner).layers[0].self_attn.q_proj.weight
    found, weight.grad = weight.grad, None
    return logp.detach(), found


@pytest.mark.parametrize("arch", ["qwen3", "qwen2_5_vl", "qwen3_vl"])
def test_packed_is_padded(arch, tmp_path):
    model = load_model(tiny_folder(tmp_path / "model", arch), device="cpu")
    assert not model.packs  # on a CPU padding is faster than a loop
    apart, learnt = scores(model), scores(model, True)
    model.packs = switch_on(model)
    assert model.packs
    for expected, found in zip((*apart, *learnt), (*scores(model), *scores(model, True))):
        assert torch.allclose(found, expected, atol=1e-5) and expected.abs().max() > 1e-3
    wrap_layers(model, compile=False, recompute=True)  # the backward pass runs the layers again, and must know the bounds then
    assert torch.allclose(scores(model, True)[1], learnt[1], atol=1e-5)
    model.net.save_pretrained(tmp_path / "saved")  # a way of computing is not part of a model
    assert "packing" not in json.dumps(json.loads((tmp_path / "saved" / "config.json").read_text()))


def test_what_mixes_tokens_otherwise_is_not_packed(tmp_path):
    model = load_model(tiny_folder(tmp_path, "qwen3_5"), device="cpu")
    before = scores(model)[0]
    assert not switch_on(model) and torch.equal(scores(model)[0], before)


def test_groups_of_packed_sequences_fill_the_budget():
    lengths = [7, 3, 5, 9, 1, 12]
    groups = micro_batches(lengths, 12, packed=True)
    assert [sum(lengths[i] for i in group) for group in groups] == [12, 9, 12, 4]
    assert sorted(i for group in groups for i in group) == list(range(6))
