"""Stands in for vLLM 0.26: the part of its interface that backends/vllm.py calls, under the same names and defaults, on a CPU.

It has weights of its own (noise until they are loaded), keeps them until the next load, and reads the whole sequence anew for each token.
"""

from __future__ import annotations

import enum
import io
import sys
import types
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from backends.model import load_model
from protocol import ImageChunk, TextChunk


class RequestOutputKind(enum.Enum):
    CUMULATIVE, DELTA, FINAL_ONLY = range(3)


@dataclass
class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: list | None = None
    stop_token_ids: list | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict | None = None

    def __post_init__(self):
        if self.stop and not self.detokenize:
            raise ValueError("stop strings are only supported when detokenize is True")
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be in [0, 2], got {self.temperature}.")
        assert self.ignore_eos and self.flat_logprobs and self.output_kind is RequestOutputKind.FINAL_ONLY


@dataclass
class EngineArgs:
    model: str
    revision: str | None = None
    dtype: str = "auto"
    load_format: str = "auto"
    gpu_memory_utilization: float = 0.92
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    logprobs_mode: str = "raw_logprobs"
    generation_config: str = "auto"
    disable_log_stats: bool = False
    seed: int = 0
    limit_mm_per_prompt: dict = field(default_factory=dict)


@dataclass
class Running:
    key: str
    chunks: list
    params: SamplingParams
    random: torch.Generator
    ids: list
    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)


class LLMEngine:
    fail = ""  # what from_engine_args raises
    made: list = []

    @classmethod
    def from_engine_args(cls, args: EngineArgs):
        if cls.fail:
            raise ValueError(cls.fail)
        return cls(args)

    def __init__(self, args):
        assert args.load_format == "dummy" and args.logprobs_mode == "processed_logprobs" and args.max_model_len == -1
        self.args, self.inside, self.running, self.calls, self.draining = args, load_model(args.model, device="cpu"), [], [], False
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in self.inside.net.parameters():
                parameter.normal_()
        self.model_config = SimpleNamespace(max_model_len=min(self.inside.max_positions, 256))
        self.renderer, self.engine_core = SimpleNamespace(render_cmpl=self._render), SimpleNamespace(shutdown=lambda: self.calls.append("shutdown"))
        self.made.append(self)

    # ------------------------------------------------------------------ weights

    def apply_model(self, function):
        return [function(self)]

    def named_parameters(self):
        return self.inside.net.named_parameters()

    def load_weights(self, weights):
        mine, loaded = dict(self.named_parameters()), set()
        for name, tensor in weights:
            if name not in mine:
                raise ValueError(f"There is no module or parameter named {name!r}")
            assert mine[name].shape == tensor.shape and not tensor.requires_grad
            mine[name].data.copy_(tensor)
            loaded.add(name)
        self.inside.weights_changed()
        self.calls.append(len(loaded))
        return loaded

    def reset_encoder_cache(self):
        if self.inside.pictures:
            self.inside.pictures.outputs.empty()
        self.calls.append("encoder")

    def reset_prefix_cache(self) -> bool:
        assert not self.running
        if not self.draining:
            self.calls.append("prefixes")
        return not self.draining

    # ------------------------------------------------------------------ requests

    def _render(self, prompts):
        return [{"type": "token", **prompt} for prompt in prompts]

    def add_request(self, request_id: str, prompt, params):
        assert prompt["type"] == "token" and isinstance(request_id, str)
        pictures = iter(prompt.get("multi_modal_data", {}).get("image", ()))
        chunks, words = [], []
        for token in prompt["prompt_token_ids"]:  # one placeholder a picture
            if token != self.inside.image_token:
                words.append(token)
                continue
            out = io.BytesIO()
            next(pictures).save(out, format="PNG")
            grid = self.inside.pictures.prepared(ImageChunk(out.getvalue(), 0))["image_grid_thw"]
            chunks, words = [*chunks, TextChunk(tuple(words)), ImageChunk(out.getvalue(), int(grid.prod()) // 4)], []
        assert next(pictures, None) is None
        chunks = [chunk for chunk in [*chunks, TextChunk(tuple(words))] if len(chunk)]
        random = torch.Generator().manual_seed(params.seed or 0)
        self.running.append(Running(request_id, chunks, params, random, self.inside.flatten(chunks).ids.tolist()))
        return request_id + "-internal"

    def abort_request(self, request_ids):
        self.calls.append(("abort", len(request_ids)))
        self.running = [one for one in self.running if one.key not in request_ids]

    def _logits(self, one):
        flat = self.inside.flatten([*one.chunks, TextChunk(tuple(one.tokens))] if one.tokens else one.chunks)
        pictures = [chunk for _, chunk in flat.pictures]
        hidden = self.inside.hidden(torch.from_numpy(flat.ids)[None], flat.positions[:, None], pictures)[0]
        return self.inside._head(hidden)  # [T, V]

    @torch.no_grad()
    def step(self):
        self.draining = bool(self.running)
        return [output for one in list(self.running) if (output := self._one(one))]

    def _one(self, one):
        p, logits, reason, why = one.params, self._logits(one), None, None
        scored = logits.log_softmax(-1)
        last = logits[-1].clone()
        for token, bias in (p.logit_bias or {}).items():
            last[token] += bias
        logprobs = (last / (p.temperature or 1)).log_softmax(-1)
        token = int(torch.multinomial(logprobs.exp(), 1, generator=one.random)) if p.temperature else int(last.argmax())
        one.tokens.append(token)
        one.logprobs.append(float(logprobs[token]))
        if token in (p.stop_token_ids or ()):
            reason, why = "stop", token
        elif len(one.tokens) == p.max_tokens:
            reason = "length"
        elif p.stop and (found := [s for s in p.stop if s in self.tokenizer.decode(one.tokens, skip_special_tokens=p.skip_special_tokens)]):
            reason, why = "stop", found[0]
        if reason is None:
            return None
        self.running.remove(one)
        flat = SimpleNamespace(logprobs=[float(scored[t - 1, one.ids[t]]) for t in range(1, len(one.ids))])
        made = SimpleNamespace(token_ids=one.tokens, logprobs=SimpleNamespace(logprobs=one.logprobs), finish_reason=reason, stop_reason=why)
        return SimpleNamespace(request_id=one.key, prompt_token_ids=one.ids, prompt_logprobs=None if p.prompt_logprobs is None else flat, outputs=[made])

    @property
    def tokenizer(self):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.args.model)


def install(monkeypatch):
    """Puts it in vLLM's place."""
    top, params, distributed = types.ModuleType("vllm"), types.ModuleType("vllm.sampling_params"), types.ModuleType("vllm.distributed")
    top.EngineArgs, top.LLMEngine, top.SamplingParams, params.RequestOutputKind = EngineArgs, LLMEngine, SamplingParams, RequestOutputKind
    distributed.cleanup_dist_env_and_memory = lambda: None
    for module in (top, params, distributed):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(LLMEngine, "made", [])
    monkeypatch.setattr(LLMEngine, "fail", "")
