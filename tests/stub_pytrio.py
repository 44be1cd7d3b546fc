"""A PyTRIO service on loopback whose trainers and samplers are those of backends/local.py: training through the real SDK really trains.

    with Stub(tmp_path, tiny_folder(...)) as stub:                  # one model, known by its folder's path
        pytrio.configure(base_url=stub.url, api_key="any")          # PYTRIO_BASE_URL, PYTRIO_API_KEY do the same
        ...
        stub.calls                                                  # [(method, path)]
        stub.events                                                 # [(type, payload)] as executed
        stub.faults["v1/events"] = [503, "drop"]                    # what the next requests with this in their path meet
    with serving(tmp_path, model, monkeypatch) as stub: ...         # the same, with the SDK of this process turned to it, and short patience

Both planes of the protocol are served by one port (facts 3.6): control JSON under /api, events as MessagePack with long polling under
/v1/events, sampling as JSON. Events of a run are executed in the order of their index, each once, whatever is sent again.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgpack
import numpy as np

from backends import AdamParams, local
from records import Datum, ImageChunk, SamplingParams, TextChunk

NOW, LATER = "2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
LIMITS = {"max_batch_size": 4, "max_tokens_per_request": 4000, "max_seq_len": 600}


def chunks_of(plain: list) -> list:
    """Our chunks from the wire's; the picture's positions are what the client expects (the real service counts for itself)."""
    out = []
    for chunk in plain:
        if chunk["type"] == "image":
            data = chunk["data"] if isinstance(chunk["data"], bytes) else base64.b64decode(chunk["data"])
            out.append(ImageChunk(data, chunk["expected_tokens"], chunk["format"]))
        else:
            out.append(TextChunk(tuple(chunk["tokens"])))
    return out


def datum_of(plain: dict) -> Datum:
    array = lambda name: None if plain.get(name) is None else np.array(plain[name], dtype=np.float32)
    targets = np.array(plain["target_ids"], dtype=np.int64)
    weights = array("weights")
    if weights is None:  # a policy loss: positions without an advantage add nothing
        weights = (array("advantages") != 0).astype(np.float32)
    return Datum(chunks_of(plain["model_input"]["chunks"]), targets, weights, array("logprobs"), array("advantages"))


def tensor(array) -> dict:
    array = np.ascontiguousarray(array, dtype="<f4")
    return {"dtype": "<f4", "shape": list(array.shape), "encoding": "raw_le", "data": array.tobytes()}


class Run:
    """A training run: its events are executed one by one in a thread of its own."""

    def __init__(self, stub, name: str, setup: dict):
        self.stub, self.name, self.setup, self.trainer = stub, name, setup, None
        self.waiting, self.done, self.next, self.changed = {}, {}, 1, threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def add(self, event: dict):
        with self.changed:
            self.waiting[event["metadata"]["index"]] = event
            self.changed.notify_all()

    def _work(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.next in self.waiting or self.stub.closed)
                if self.stub.closed:
                    return
                event = self.waiting.pop(self.next)
                self.next += 1
            answer = {"version": 1, "event_id": event["event_id"], "type": event["type"]}
            usage = {"input_tokens": 0, "output_tokens": 0, "train_tokens": 0}
            try:
                self.stub.events.append((event["type"], event["payload"]))
                result = asyncio.run(self._execute(event["type"].partition(".")[2], event["payload"]))
                answer |= {"status": "succeeded", "result": result, "usage": usage}
            except (Exception, SystemExit) as error:
                answer |= {"status": "failed", "error": {"code": "trainer_failed", "message": str(error)}, "usage": usage}
            with self.changed:
                self.done[event["event_id"]] = answer
                self.changed.notify_all()

    async def _execute(self, kind: str, payload: dict) -> dict:
        if kind == "init_run":
            lora = payload["lora_config"]
            if uri := payload.get("checkpoint_uri"):
                self.trainer = await local.load_trainer(self.stub.checkpoints[uri]["folder"], payload["load_optimizer"], device="cpu")
            else:
                self.trainer = await local.create_trainer(payload["base_model"], lora["rank"], lora["seed"], device="cpu")
            self.stub.made.append(self.trainer)
            return {}
        if kind in ("forward", "forward_backward"):
            data, loss = [datum_of(plain) for plain in payload["data"]], payload["loss"]
            output = await getattr(self.trainer, kind)(data, loss["type"], loss.get("config") or {})
            total, count = float(output.metrics["loss_sum"]), int(output.metrics["token_count"])
            metrics = {"loss_sum": total, "loss_mean": total / max(1, count), "token_count": count}
            return {"loss_fn_outputs": [{"logprobs": tensor(values)} for values in output.logprobs], "metrics": metrics}
        if kind == "optimize_step":
            metrics = await self.trainer.optim_step(AdamParams(**payload["adam_params"]))
            return {"metrics": {name: float(value) for name, value in metrics.items()}}
        folder = "weights" if kind == "save_state" else "sampler_weights"
        uri, place = f"trio://{self.name}/{folder}/{payload['name']}", self.stub.folder / self.name / folder / payload["name"]
        save = self.trainer.save_state if kind == "save_state" else self.trainer.save_weights_for_sampler
        await save(place)
        self.stub.checkpoints[uri] = {"folder": place, **self.setup}
        return {"checkpoint": {"uri": uri, "model_id": self.setup["base_model"], "size_bytes": 1, "checkpoint_cuid": uri}}


class Stub:
    """See the top of this file. Any key but "wrong" is good."""

    def __init__(self, folder, model: str, limits: dict | None = None):
        self.folder, self.model, self.limits = Path(folder), str(model), LIMITS | (limits or {})
        self.calls, self.events, self.made, self.closed = [], [], [], False
        self.faults, self.runs, self.checkpoints, self.samplers, self.lock = {}, {}, {}, {}, threading.Lock()
        handler = type("Handler", (Handler,), {"stub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True
        for run in self.runs.values():
            with run.changed:
                run.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()
        for one in self.made:
            one.close()

    def types(self) -> list:
        return [kind.partition(".")[2] for kind, _ in self.events]

    # ------------------------------------------------------------------ control

    def control(self, method: str, path: str, query: dict, body: dict):
        """(status, answer) of a call below /api."""
        parts = path.split("/")
        if path == "openapi/v1/api-key/verify":
            return 200, {"api_key_tid": "k", "api_key_name": None, "user_cuid": "u", "username": "tester", "display_name": None,
                         "workspace_cuid": "w", "workspace_name": "w", "workspace_type": "personal", "expires_at": None}  # fmt: skip
        if path == "sdk/bootstrap":
            return 200, {"compatibility": {"status": "compatible", "sdk_version": query["sdk_version"][0]}, "notices": []}
        if path == "models":
            model = {"cuid": "m", "alias": "tiny", "model_id": self.model, "context_length": 4096, "train_available": True,
                     "sample_available": True, "trainer": self.limits, "sampler": self.limits, "created_at": NOW, "updated_at": NOW}  # fmt: skip
            return 200, {"items": [model], "total": 1, "limit": 100, "offset": 0}
        if path == "openapi/v1/training-runs/by-checkpoint-uri":
            found = self.checkpoints.get(query["checkpoint_uri"][0])
            if not found:
                return 404, {"code": "checkpoint_not_found", "message": "no such checkpoint"}
            return 200, {name: value for name, value in found.items() if name != "folder"}
        if path == "openapi/v1/service-sessions":
            return 200, {"service_session_cuid": "s", "workspace_cuid": "w", "status": "ACTIVE", "created_at": NOW}
        if parts[-1] == "training-runs" and method == "POST":
            source = self.checkpoints.get(body.get("source_checkpoint_uri"))
            setup = {"base_model": self.model, **{name: body.get(name) for name in ("lora_rank", "seed")}}
            setup |= {name: body[name] for name in ("train_mlp", "train_attn", "train_unembed")}
            if not source and body["base_model"] != self.model:
                return 404, {"code": "model_not_found", "message": f"no model {body['base_model']}"}
            name = f"run{len(self.runs) + 1}"
            self.runs[name] = Run(self, name, setup)
            return 200, {"training_run_cuid": name, "trainer": self.limits, **self._binding()}
        if parts[-1] == "sampling-runs" and method == "POST":
            uri = body.get("source_checkpoint_uri")
            if uri and uri not in self.checkpoints:
                return 404, {"code": "checkpoint_not_found", "message": "no such checkpoint"}
            sampler = asyncio.run(local.create_sampler(self.model, self.checkpoints[uri]["folder"] if uri else None, device="cpu"))
            with self.lock:
                name = f"sampling{len(self.samplers) + 1}"
                self.samplers[name] = sampler
                self.made.append(sampler)
            return 200, {"sampling_run_cuid": name, "sampler": self.limits, **self._binding()}
        return 200, {}  # closing a session, telemetry

    def _binding(self) -> dict:
        actor = {"actor_cuid": "a", "endpoint": self.url, "connect_mode": "direct", "tls_enabled": False}
        return {"service_session_cuid": "s", "workspace_cuid": "w", "status": "RUNNING", "run_index": 1, "model_spec_cuid": "m",
                "model_alias": "tiny", "model_id": self.model, "actor": actor, "actor_jwt": {"token": "t", "expires_at": LATER},
                "created_at": NOW}  # fmt: skip

    # ------------------------------------------------------------------ actor

    def submit(self, event: dict):
        run = self.runs[event["metadata"]["run_id"]]
        with run.changed:
            known = event["event_id"] in run.done or any(event["event_id"] == one["event_id"] for one in run.waiting.values())
            known |= event["metadata"]["index"] < run.next
        if known:
            return 409, {"error": {"code": "event_exists", "message": "this event was sent before"}}
        run.add(event)
        return 200, {"version": 1, "event_id": event["event_id"], "type": event["type"], "status": "accepted"}

    def poll(self, event_id: str, wait: float):
        until = time.monotonic() + min(wait, 5.0)
        while time.monotonic() < until:
            for run in list(self.runs.values()):
                if event_id in run.done:
                    return 200, run.done[event_id]
            time.sleep(0.002)
        return 504, {"error": {"code": "gateway_timeout", "message": "still running"}}

    async def sample(self, name: str, body: dict):
        sampler, asked = self.samplers[name], body["sampling_params"]
        chunks = chunks_of(body["prompt"]["chunks"])
        params = SamplingParams(asked["max_tokens"], asked.get("temperature", 1.0), asked.get("top_p", 1.0), asked.get("top_k", -1),
                                asked.get("seed") or 0, tuple(asked.get("stop_token_ids", ())), tuple(asked.get("stop", ())))  # fmt: skip
        samples = await sampler.sample(chunks, body["num_samples"], params)
        reason = {"stop_string": "stop"}
        rows = [{"tokens": s.tokens, "logprobs": s.logprobs, "stop_reason": reason.get(s.stop_reason, s.stop_reason)} for s in samples]
        prompt = None
        if body["return_prompt_logprobs"]:
            prompt = [None, *(float(value) for value in (await sampler.logprobs(chunks))[1:])]
        return 200, {"request_id": body["request_id"], "sequences": rows, "prompt_logprobs": prompt}


@contextmanager
def serving(folder, model, monkeypatch, limits=None):
    """A Stub that the SDK of this process talks to, patient for seconds instead of minutes."""
    import pytrio
    from pytrio.runtime.service import cancel_active_service_runtimes

    from backends import remote

    monkeypatch.setattr(remote, "RETRY_SECONDS", 5.0)
    monkeypatch.setattr(remote, "PAUSE", 0.02)
    before = pytrio.config.config.configuration.model_copy(deep=True)
    with Stub(Path(folder) / "service", model, limits) as service:
        pytrio.configure(base_url=service.url, api_key="any", home=str(folder), log_level="ERROR", retry_initial_delay_seconds=0.02)
        yield service
        gc.collect()
        cancel_active_service_runtimes()  # sessions end while there is somebody to tell
    pytrio.configure(base_url=before.base_url, home=before.home, log_level=before.log_level)
    pytrio.config.config.auth_state.api_key = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body of an answer are two writes; the second would wait 40 ms for the first one's receipt
    stub: Stub

    def log_message(self, *_):
        pass

    def _serve(self):
        url, stub = urlsplit(self.path), self.stub
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = url.path.lstrip("/")
        stub.calls.append((self.command, path))
        fault = next((faults.pop(0) for key, faults in stub.faults.items() if key in path and faults), None)
        if fault == "drop":
            self.close_connection = True
            return
        if fault == "hang":
            time.sleep(3)
            return
        if fault == "half":  # the answer breaks off in the middle
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"sequences"')
            self.close_connection = True
            return
        if fault:
            return self._answer(fault, {"code": "injected", "message": "injected fault"})
        if path.startswith("api/"):
            if self.headers.get("X-API-Key") == "wrong":
                return self._answer(401, {"code": "unauthorized", "message": "unknown key"})
            return self._answer(*stub.control(self.command, path[4:], parse_qs(url.query), json.loads(raw) if raw else {}))
        if path == "v1/events":
            return self._answer(*stub.submit(msgpack.unpackb(raw, raw=False)), packed=True)
        if path.startswith("v1/events/"):
            wait = float(self.headers.get("Prefer", "wait=1").partition("=")[2])
            return self._answer(*stub.poll(path.rpartition("/")[2], wait), packed=True)
        if path.endswith("/sample"):
            try:
                return self._answer(*asyncio.run(stub.sample(path.split("/")[2], json.loads(raw))))
            except ValueError as error:
                return self._answer(400, {"error": {"code": "bad_request", "message": str(error)}})
        return self._answer(200, {"heartbeat_ms": 60000})

    def _answer(self, status: int, body: dict, packed: bool = False):
        data = msgpack.packb(body, use_bin_type=True) if packed else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/msgpack" if packed else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve
