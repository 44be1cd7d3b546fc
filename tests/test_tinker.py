"""backends/tinker.py with the real SDK, as far as that goes without a server: conversions, refusals, telemetry. The rest: integration/skyrl.py."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

tinker = pytest.importorskip("tinker", reason="the extra `remote` is not installed")

from helpers import png  # noqa: E402

from backends import AdamParams, remote  # noqa: E402
from backends import tinker as adapter  # noqa: E402
from protocol import Datum, ImageChunk, SamplingParams, TextChunk  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


def test_our_types_become_theirs():
    chunks = [TextChunk((1, 2, 3)), ImageChunk(png(), 2), TextChunk(()), TextChunk((4,))]
    model_input = adapter.to_input(chunks)
    assert [type(chunk).__name__ for chunk in model_input.chunks] == ["EncodedTextChunk", "ImageChunk", "EncodedTextChunk"]
    assert list(model_input.chunks[0].tokens) == [1, 2, 3] and model_input.chunks[1].expected_tokens == 2
    datum = adapter.to_datum(model_input, {"target_tokens": np.arange(6), "weights": np.ones(6, dtype=np.float32)})
    assert datum.loss_fn_inputs["target_tokens"].to_numpy().tolist() == list(range(6))
    params = adapter.to_params(9, [7], SamplingParams(20, 0.5, 0.9, seed=3))
    assert (params.max_tokens, params.stop, params.temperature, params.top_p, params.seed, params.top_k) == (9, [7], 0.5, 0.9, 3, -1)
    assert adapter.to_adam(AdamParams(1e-3, grad_clip_norm=2.0)).grad_clip_norm == 2.0


@pytest.mark.parametrize("asked", [False, True])
def test_telemetry_is_off_unless_it_is_asked_for(monkeypatch, asked):
    seen = {}
    monkeypatch.setattr(tinker, "ServiceClient", lambda base_url=None: seen.update(telemetry=os.environ.get("TINKER_TELEMETRY"), base_url=base_url))
    monkeypatch.delenv("TINKER_TELEMETRY", raising=False)
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    monkeypatch.setenv("TOOLGRAD_TELEMETRY", "1" if asked else "")
    adapter.connect()
    assert seen["telemetry"] == (None if asked else "0")
    monkeypatch.delenv("TINKER_TELEMETRY", raising=False)


def test_a_server_that_is_not_there_is_named_at_once(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"  # bound, but nobody listens
        monkeypatch.setenv("TINKER_API_KEY", "tml-any")
        with pytest.raises(SystemExit, match=f"^Tinker: nobody answers at {address} [^\n]*--base-url[^\n]*$"):
            asyncio.run(adapter.create_trainer("any", rank=8, base_url=address))


class Server:
    """A training client whose `forward` answers with `missing` log-probabilities too few. Counts what it is sent."""

    def __init__(self, missing):
        self.missing, self.sent = missing, 0

    async def forward_async(self, data, loss, config=None):
        self.sent += 1
        counts = [datum.model_input.length - self.missing for datum in data]

        async def answer():
            return SimpleNamespace(loss_fn_outputs=[{"logprobs": tinker.TensorData.from_numpy(np.zeros(n, dtype=np.float32))} for n in counts], metrics={})

        return answer()


def with_picture():
    chunks = [TextChunk((1, 2, 3)), ImageChunk(png(), 2), TextChunk((4, 5))]
    return Datum(chunks, np.ones(7, dtype=np.int64), np.ones(7, dtype=np.float32))


def test_a_server_that_drops_pictures_is_found_out_before_anything_is_trained():
    async def whole():
        blind = remote.Trainer(adapter, None, Server(missing=2), "x", {"training": None, "sampling": None})
        with pytest.raises(SystemExit, match="drops pictures without a word"):
            await blind.forward_backward([with_picture()])  # (this client could not even do it)
        assert blind.client.sent == 1
        text = Datum([TextChunk((1, 2, 3))], np.ones(3, dtype=np.int64), np.ones(3, dtype=np.float32))
        blind.client.missing = 0
        assert (await blind.forward([text])).metrics["token_count"] == 3 and blind.client.sent == 2, "text is served, without a question"
        seeing = remote.Trainer(adapter, None, Server(missing=0), "x", {"training": None, "sampling": None})
        for _ in range(2):
            output = await seeing.forward([with_picture()])
        assert output.metrics["token_count"] == 7 and seeing.client.sent == 3, "one question, then the two passes"

    asyncio.run(whole())


def test_what_the_service_cannot_do_is_refused():
    for call, said in (
        (adapter.create_trainer("x", rank=0), "--rank 0: Tinker trains LoRAs"),
        (adapter.create_trainer("x", rank=8, device="cuda"), "has no --device cuda"),
        (adapter.load_trainer("runs/sft/checkpoints/step-1/state"), "not files of this machine"),
        (adapter.create_sampler("x", "runs/sft/checkpoints/step-1/sampler"), "samples from what it saved"),
    ):
        with pytest.raises(SystemExit, match=said):
            asyncio.run(call)


def test_without_the_sdk_it_says_what_to_install():
    code = "import sys; sys.modules['tinker'] = None\nimport asyncio\nfrom backends import tinker\nasyncio.run(tinker.create_sampler('x'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "uv sync --extra remote" in done.stderr
