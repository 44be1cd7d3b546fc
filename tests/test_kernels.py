"""The Triton kernels, run by Triton's interpreter on the CPU, against the plain PyTorch that they stand for."""

import os

import pytest
import torch

if not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("on a GPU tests/test_cuda.py runs them; the interpreter would take them from it", allow_module_level=True)
pytest.importorskip("triton")
from backends import kernels
from backends.decode import _Plain

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("width", [64, 96])
def test_add_norm(width):
    x, delta, weight = torch.randn(3, width), torch.randn(3, width), torch.rand(width) + 0.5
    mine, plain = x.clone(), x.clone()
    for addend in (None, delta):
        assert torch.allclose(kernels.add_norm(mine, addend, weight, 1e-6), _Plain.add_norm(plain, addend, weight, 1e-6), atol=1e-5)
        assert torch.equal(mine, plain)
    assert torch.equal(mine, x + delta)  # the sum stays in x


@pytest.mark.parametrize("normed", [False, True])
def test_rotate_store(normed):
    """Queries are turned in place, keys and values land at (slot, place) and nowhere else."""
    heads, kv, dim, N = 6, 2, 16, 5
    qkv, line = torch.randn(N, (heads + 2 * kv) * dim), torch.arange(40.0)[:, None] * torch.rand(dim // 2)
    norms = (torch.rand(dim) + 0.5, torch.rand(dim) + 0.5) if normed else (None, None)
    slot, place, position = torch.tensor([2, 0, 2, 1, 2]), torch.tensor([3, 0, 4, 9, 5]), torch.tensor([3, 0, 4, 30, 5])
    made = []
    for module in (kernels, _Plain):
        mine, keys, values = qkv.clone(), torch.zeros(3, kv, 10, dim), torch.zeros(3, kv, 10, dim)
        module.rotate_store(mine, line.cos(), line.sin(), *norms, 1e-6, keys, values, slot, place, position, heads)
        made.append((mine[:, : heads * dim], keys, values))
    for mine, plain in zip(*made):
        assert torch.allclose(mine, plain, atol=1e-5)
    assert (made[0][2] != 0).any(-1).any(1).sum() == N


@pytest.mark.parametrize("heads, kv, dim", [(14, 2, 64), (4, 4, 32)])
def test_attend(heads, kv, dim):
    """Token n sees the places 0..place[n] of its slot: more than one block of keys, and less."""
    slot, place = torch.tensor([1, 0, 2]), torch.tensor([0, 70, 130])
    qkv, keys, values = torch.randn(3, (heads + 2 * kv) * dim), torch.randn(3, kv, 140, dim), torch.randn(3, kv, 140, dim)
    found = kernels.attend(qkv, keys, values, slot, place, heads)
    assert torch.allclose(found, _Plain.attend(qkv, keys, values, slot, place, heads, 140), atol=1e-5)
    keys[2, :, 131:], values[2, :, 131:] = float("nan"), float("nan")  # what lies beyond isn't even read
    assert torch.equal(found, kernels.attend(qkv, keys, values, slot, place, heads))


def test_gated():
    both = torch.randn(3, 2 * 1500)
    assert torch.allclose(kernels.gated(both), _Plain.gated(both), atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chosen_logprobs_and_their_gradient(temperature):
    """Against autograd on whole logits; two pieces, the second shorter, and a blocked token."""
    hidden, weight = torch.randn(7, 16, requires_grad=True), torch.randn(5000, 16, requires_grad=True)
    targets, blocked, sign = torch.randint(0, 5000, (7,)), torch.tensor([4, 4999]), torch.randn(7)
    targets[0] = 4998
    logits = ((hidden @ weight.t()).index_fill(1, blocked, -1e9) / temperature).log_softmax(-1)
    expected = logits.gather(1, targets[:, None])[:, 0]
    expected_gradients = torch.autograd.grad((expected * sign).sum(), (hidden, weight))
    logp, entropy = kernels.ChosenLogprobs.apply(hidden, weight, targets, blocked, temperature, 4)
    gradients = torch.autograd.grad((logp * sign).sum(), (hidden, weight))
    assert torch.allclose(logp, expected, atol=1e-5) and torch.allclose(entropy, -(logits.exp() * logits).sum(-1), atol=1e-5)
    for mine, plain in zip(gradients, expected_gradients):
        assert torch.allclose(mine, plain, atol=1e-5) and plain.abs().max() > 0.1


@pytest.mark.slow
def test_a_sampler_on_the_kernels(tmp_path):
    """The whole path: greedy tokens and log-probabilities equal those of transformers' forward."""
    import helpers
    from test_engine import run, sharpen, text

    from backends.local import make_engine
    from backends.model import load_model
    from protocol import SamplingParams

    folder, samples = sharpen(helpers.tiny_folder(tmp_path / "qwen3", "qwen3")), []
    for fused in (False, True):
        engine = make_engine(load_model(folder), fused=fused)
        if fused:
            engine.slots.kernels = kernels
        samples.append(run(engine.sample([text(0, 4)], 1, SamplingParams(3, temperature=0.0)))[0])
        engine.close()
    assert samples[0].tokens == samples[1].tokens
    assert samples[0].logprobs == pytest.approx(samples[1].logprobs, abs=1e-4)
