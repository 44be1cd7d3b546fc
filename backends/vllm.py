"""vLLM as the sampler beside the local trainer: one process, one GPU, two copies of the weights.

    trainer = await load_trainer("runs/sft/checkpoints/step-900/state", vllm_memory=0.3)     # the Trainer of local.py, all its losses and files
    samples = await trainer.sampler().sample(chunks, 8, SamplingParams(max_tokens=64))       # by vLLM, with the weights as they are now
    sampler = await create_sampler("Qwen/Qwen2.5-0.5B-Instruct")                             # sampling alone, for eval.py

For models whose layers the local sampler doesn't know. It needs vllm 0.26 (`uv sync --extra vllm`) and starts with the first request, in a minute.

- Same order as the local engine: one thread steps vLLM and does the trainer's work; a job waits for the sequences under way, and later requests
  see its result. After an update the trained weights are copied (a LoRA merged, W + BA), and vLLM's memory of prefixes is emptied.
- Log-probabilities are those of softmax(logits / temperature), as the trainer's, but from other kernels: `sampler_logp_diff` says how far off
  (0.01 to 0.02 a token is bfloat16), and --importance-cap makes up for it. With top_p or top_k vLLM gives those of what is left after the cut,
  which no trainer could compare with: a trainer's sampler refuses them.
- A sample's random numbers depend on its seed alone, but logits depend a little on what else is in the batch: tokens can differ between runs.
- `vllm_memory` is the share of the whole GPU that vLLM may take for its weights, keys and values; training is planned in the rest.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import itertools
import math
import os
import queue
import threading

import numpy as np
import torch

from backends import local, parallel
from backends.decode import merged
from backends.engine import Engine, check_request
from backends.model import NEVER, Model
from protocol import Sample, SamplingParams, TextChunk


def check_machine(device="auto"):
    """SystemExit with one line if vLLM can't run here."""
    if importlib.util.find_spec("vllm") is None:
        raise SystemExit("--backend vllm: vLLM is not installed; uv sync --extra vllm (Linux, an NVIDIA GPU), or use --backend local")
    if not torch.cuda.is_available():
        raise SystemExit("--backend vllm: torch sees no GPU here; --backend local works on a CPU")
    if str(device) not in ("auto", "cuda", "cuda:0"):
        raise SystemExit(f"--device {device}: vLLM takes the first GPU that it sees; choose with CUDA_VISIBLE_DEVICES")
    if parallel.world()[1] > 1:
        raise SystemExit("--backend vllm runs in one process; start it without torchrun, or use --backend local")


async def create_trainer(base_model, rank: int = 0, seed: int = 0, *, vllm_memory: float = 0.3, device="auto", revision=None, **options):
    check_machine(device)
    options |= beside(vllm_memory, revision) | {"device": device, "revision": revision}
    return await local.create_trainer(base_model, rank, seed, **options)


async def load_trainer(state_path, with_optimizer: bool = True, *, vllm_memory: float = 0.3, device="auto", revision=None, **options):
    check_machine(device)
    options |= beside(vllm_memory, revision) | {"device": device, "revision": revision}
    return await local.load_trainer(state_path, with_optimizer, **options)


async def create_sampler(base_model, sampler_path=None, *, vllm_memory: float = 0.8, device="auto", revision=None, **options) -> VllmSampler:
    check_machine(device)
    make = functools.partial(make_sampler, trained=False, memory=vllm_memory, revision=revision)
    # On the CPU, from where vLLM copies them: a LoRA is merged on the way, and what the folder holds needn't be of vLLM's own layout
    return await local.create_sampler(base_model, sampler_path, device="cpu", dtype="bfloat16", revision=revision, make=make, **options)


def beside(memory, revision) -> dict:
    """Options of local.py for a trainer with this sampler."""
    reserved = int(memory * torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else 0
    return {"make": functools.partial(make_sampler, trained=True, memory=memory, revision=revision), "reserved": reserved}


def make_sampler(model: Model, **options) -> VllmSampler:
    from transformers import AutoTokenizer

    return VllmSampler(model, AutoTokenizer.from_pretrained(model.name), **options)


def named_weights(model: Model, dice, trained_only=False):
    """(name, tensor) as transformers names the tensors of a checkpoint. LoRAs are merged; tied weights come once."""
    adapted = {name for name, module in model.net.named_modules() if hasattr(module, "lora_A")}
    for name, tensor in model.net.named_parameters():
        owner, _, kind = name.rpartition(".")
        owner = owner.removesuffix(".base_layer")
        if ".lora_" in name:
            continue
        if owner in adapted and kind == "weight":
            yield f"{owner}.weight", merged([model.net.get_submodule(owner)], dice)
        elif tensor.requires_grad or not trained_only:
            yield f"{owner}.{kind}", tensor.detach()


class VllmSampler:
    """The interface of `Engine` (engine.py). trained: it belongs to a trainer. max_rows: sequences decoded together; more wait their turn."""

    def __init__(self, model: Model, tokenizer, *, trained: bool, memory: float, revision=None, max_rows=256):
        if not 0 < memory < 1:
            raise SystemExit(f"--vllm-memory {memory}: a share of the GPU's memory, between 0 and 1")
        strange = [name for name, _ in model.net.named_parameters() if any(part in name for part in ("lora_magnitude", "lora_embedding", "modules_to_save"))]
        if strange:
            raise SystemExit(f"model {model.name!r}: its adapter is no plain LoRA ({strange[0]}), which can't be merged for vLLM; use --backend local")
        self.model, self.tokenizer, self.trained, self.memory, self.revision, self.max_rows = model, tokenizer, trained, memory, revision, max_rows
        self.dice = torch.Generator(model.device).manual_seed(0)  # see decode.merged
        self.engine, self.stale, self.failed, self.numbers = None, True, None, itertools.count()
        self.waiting, self.under_way = [], {}  # Requests; vLLM's id of a sequence -> (Request, number of the sample)
        self.inbox, self.lock, self.closed = queue.SimpleQueue(), threading.Lock(), False
        self.thread = threading.Thread(target=self._loop, name="vllm", daemon=True)
        self.thread.start()

    version, run, _ask = Engine.version, Engine.run, Engine._ask  # the same queue before another worker
    close = functools.partialmethod(Engine.close, timeout=60.0)  # vLLM takes seconds to give its memory back

    async def sample(self, chunks: list, n: int, params: SamplingParams) -> list[Sample]:
        """n samples of a prompt. ValueError if prompt or parameters are unusable, FloatingPointError if the model's logits aren't finite."""
        check_request(n, params, self.tokenizer)
        if self.trained and (params.top_p < 1 or params.top_k > 0):
            raise ValueError("vLLM's log-probabilities after top_p or top_k can't be compared with the trainer's; use 1 and 0, or --backend local")
        return await self._ask(kind="sample", chunks=list(chunks), n=n, params=params)

    async def logprobs(self, chunks: list) -> np.ndarray:
        """As `Engine.logprobs`, but placeholders keep their share of the probability, which is nothing in a trained model."""
        return await self._ask(kind="logprobs", chunks=list(chunks), n=1)

    def weights_changed(self):
        """For the trainer, inside a job. vLLM gets them with the next request: several updates in a row cost one copy."""
        self.model.weights_changed()
        self.stale = True

    def _loop(self):
        if self.model.device.type == "cuda":
            torch.cuda.set_device(self.model.device)
        with torch.no_grad():
            while not self.closed:
                try:
                    self._turn()
                except BaseException as error:
                    self._fail_all(error)
        self._fail_all(RuntimeError("the sampler was closed"))
        if self.engine is not None:
            from vllm.distributed import cleanup_dist_env_and_memory

            self.engine.engine_core.shutdown()
            self.engine = None
            cleanup_dist_env_and_memory()

    def _turn(self):
        """Takes what arrived, begins what may begin, and lets vLLM make a step."""
        while not self.inbox.empty() or not (self.waiting or self.under_way):
            request = self.inbox.get()
            if request is None:
                return
            self.waiting.append(request)
        given_up = [key for key, (request, _) in self.under_way.items() if request.cancelled]
        if given_up:
            self.engine.abort_request(given_up)
            for key in given_up:
                del self.under_way[key]
        while self.waiting and (self.waiting[0].kind != "job" or not self.under_way):
            request = self.waiting.pop(0)
            try:
                if request.kind == "job":
                    with torch.enable_grad():
                        request.finish(request.job())
                elif not request.cancelled:
                    self._submit(request)
            except BaseException as error:
                request.finish(error=error)
        for output in self.engine.step() if self.under_way else ():
            self._take(output)

    def _fail_all(self, error):
        arrived = [self.inbox.get() for _ in range(self.inbox.qsize())]
        for request in {request for request, _ in self.under_way.values()} | {*self.waiting, *arrived} - {None}:
            request.finish(error=error)
        keys, self.waiting, self.under_way = list(self.under_way), [], {}
        with contextlib.suppress(Exception):  # what broke may be vLLM itself
            self.engine.abort_request(keys) if keys else None

    def _start(self):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # read when vllm is imported; its weights must be within reach
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from vllm import EngineArgs, LLMEngine

        try:
            self.engine = LLMEngine.from_engine_args(EngineArgs(
                model=self.model.name, revision=self.revision, dtype=str(self.model.dtype).removeprefix("torch."), load_format="dummy",
                gpu_memory_utilization=self.memory, max_model_len=-1, max_num_seqs=self.max_rows, max_num_batched_tokens=8192,
                logprobs_mode="processed_logprobs", generation_config="vllm", disable_log_stats=True, seed=0,
                limit_mm_per_prompt={"video": 0} if self.model.pictures else {},  # vLLM measures memory with the largest that may come
            ))  # fmt: skip
        except Exception as error:
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RuntimeError(f"vLLM can't start ({line}); if that is about memory, try another --vllm-memory than {self.memory}") from error

    def _refresh(self):
        """vLLM with the weights as they are now; the first time it is started and gets all of them."""
        first = self.engine is None
        if first:
            self._start()

        def copy(theirs):
            loaded = theirs.load_weights(named_weights(self.model, self.dice, trained_only=not first))
            return {name for name, _ in theirs.named_parameters()} - loaded if first else set()

        if missing := sorted(self.engine.apply_model(copy)[0]):
            raise RuntimeError(f"vLLM found no weights for {len(missing)} tensors of its {self.model.name!r}, such as {missing[0]}; use --backend local")
        self.engine.reset_encoder_cache()
        for _ in range(100):  # a step of sequences that have ended may still be under way, and holds the memory
            if self.engine.reset_prefix_cache():
                break
            self.engine.step()
        else:
            raise RuntimeError("vLLM keeps prefixes of the old weights and doesn't let go of them; use --backend local")
        self.stale = False

    def _submit(self, request):
        from PIL import Image
        from vllm import SamplingParams as Theirs
        from vllm.sampling_params import RequestOutputKind

        request.flat = flat = self.model.flatten(request.chunks)
        if self.failed:
            raise self.failed
        if self.stale:
            try:
                self._refresh()
            except Exception as error:
                self.failed = error  # a second try would take another minute and end in the same way
                raise
        ids, pictures = [], []
        for chunk in request.chunks:
            if isinstance(chunk, TextChunk):
                ids += chunk.tokens
            else:  # vLLM puts in as many placeholders as the picture takes
                ids.append(self.model.image_token)
                pictures.append(Image.open(io.BytesIO(chunk.data)).convert("RGB"))
        prompt = {"prompt_token_ids": ids} | ({"multi_modal_data": {"image": pictures}} if pictures else {})
        [prompt] = self.engine.renderer.render_cmpl([prompt])
        room = self.engine.model_config.max_model_len - len(flat)
        common = {"flat_logprobs": True, "ignore_eos": True, "output_kind": RequestOutputKind.FINAL_ONLY}
        for number in range(request.n):
            if request.kind == "logprobs":
                params = Theirs(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False, **common)
            else:
                p = request.params
                params = Theirs(
                    max_tokens=max(1, min(p.max_tokens, room)), temperature=p.temperature, top_p=p.top_p, top_k=max(0, p.top_k), logprobs=0,
                    seed=sample_seed(p.seed, number), stop_token_ids=list(p.stop_tokens), stop=list(p.stop_strings), detokenize=bool(p.stop_strings),
                    skip_special_tokens=False, include_stop_str_in_output=True, logit_bias=dict.fromkeys(self.model.blocked_ids, NEVER) or None, **common,
                )  # fmt: skip
            key = str(next(self.numbers))
            self.engine.add_request(key, prompt, params)
            self.under_way[key] = request, number

    def _take(self, output):
        """One of vLLM's finished sequences."""
        request, number = self.under_way.pop(output.request_id, (None, 0))
        if request is None or request.cancelled:
            return
        length, [made] = len(request.flat), output.outputs
        if len(output.prompt_token_ids) != length:
            got = f"{len(output.prompt_token_ids)} positions of vLLM, {length} of the trainer"
            return request.finish(error=ValueError(f"a prompt with pictures took {got}: their image processors disagree; use --backend local"))
        if request.kind == "logprobs":
            values = np.zeros(length, dtype=np.float32)
            values[1:] = output.prompt_logprobs.logprobs  # of the tokens alone; the first has none
            return request.finish(np.where(request.flat.key < 0, 0, values).astype(np.float32))
        logprobs = made.logprobs.logprobs[: len(made.token_ids)]
        if not math.isfinite(sum(logprobs)):
            return request.finish(error=FloatingPointError(f"vLLM's logits are not finite in sample {number}: are the model's weights still finite?"))
        ended = "length" if made.finish_reason == "length" else "stop_string" if isinstance(made.stop_reason, str) else "stop"
        request.samples[number] = Sample(list(made.token_ids), logprobs, ended)
        if len(request.samples) == request.n:
            request.finish([request.samples[i] for i in range(request.n)])


def sample_seed(seed: int, number: int) -> int:
    """63 bits: sample i of a request depends on the request's seed and on i."""
    return int(np.random.SeedSequence([seed % 2**64, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
