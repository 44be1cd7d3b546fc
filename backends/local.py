"""The local backend: a trainer in this process (torch, CPU or one GPU), checkpoints, and the sampler of engine.py on the same weights.

    trainer = await create_trainer("models/tiny-vlm", rank=0, seed=0)      # rank 0: all weights; rank > 0: LoRA (peft)
    output = await trainer.forward_backward(data, "ppo", {"temperature": 1.0})      # adds to the gradients; nothing is normalised
    metrics = await trainer.optim_step(AdamParams(learning_rate=1e-4))
    samples = await trainer.sampler().sample(chunks, 8, SamplingParams(max_tokens=64))      # on-policy: the weights as they are now
    await trainer.save_state("runs/a/checkpoints/step-10")
    trainer = await load_trainer("runs/a/checkpoints/step-10", with_optimizer=True)         # goes on exactly

A checkpoint is an ordinary Hugging Face folder (rank 0) or PEFT adapter folder (rank > 0), and for `save_state` also `optimizer.pt`. It is
written beside its place and moved there in one step, so a kill or a full disk never leaves half of one.

Losses, each a sum over tokens of weight x (old = `Datum.logprobs`, r = exp(logp - old), A = `Datum.advantages`):
    cross_entropy        -logp
    importance_sampling  -r A
    ppo                  -min(r A, clip(r, low, high) A)                                                    arXiv:1707.06347
    cispo                -clip(r, low, high) A logp, no gradient through the clipped ratio                  arXiv:2506.13585
    gspo                 as ppo, with the sequence's ratio exp(mean of logp - old) in place of r            arXiv:2507.18071
    a function           (logp, old, advantages, sequence, config) -> (loss [N], clipped [N]); `sequence` numbers the datum of a token
`config`: temperature (divides the logits: use the sampler's), clip_low_threshold, clip_high_threshold (bounds of the ratio).

On a GPU weights and arithmetic are bfloat16, with float32 master weights, gradient sums and optimizer state (on a CPU all is float32).

Several processes (torchrun) train one model if each brings its own part of a batch: see parallel.py; sharded.py
splits the weights over them, too.

Not here: dropout (the model stays in eval mode).
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

import numpy as np
import torch

from backends import AdamParams, Output, parallel
from backends.engine import Engine
from backends.gpu import planned, wrap_layers
from backends.lora import adapter_config, add_adapter, load_adapter
from backends.model import Model, check_device, load_model
from backends.packing import send
from protocol import TextChunk

CLIP = {"ppo": (0.8, 1.2), "cispo": (0.8, 1.2), "gspo": (1 - 3e-4, 1 + 4e-4)}  # bounds unless config says otherwise
LOSSES = ("cross_entropy", "importance_sampling", *CLIP)
STATE = "optimizer.pt"


# ---------------------------------------------------------------------------------------------------------------------
# losses


def token_losses(loss, logp, old, advantages, sequence, config: dict):
    """Loss of each token, float32 [N], and whether clipping stopped or capped it, bool [N]. All inputs [N]; see the top of this file."""
    if callable(loss):
        return loss(logp, old, advantages, sequence, config)
    never = torch.zeros_like(logp, dtype=torch.bool)
    if loss == "cross_entropy":
        return -logp, never
    difference = logp - old
    if loss == "importance_sampling":
        return -difference.exp() * advantages, never
    low, high = (config.get(name, default) for name, default in zip(("clip_low_threshold", "clip_high_threshold"), CLIP[loss]))
    if loss == "cispo":
        ratio = difference.detach().exp()
        return -ratio.clamp(low, high) * advantages * logp, (ratio < low) | (ratio > high)
    if loss == "gspo":
        count = torch.bincount(sequence).clamp(min=1)  # tokens a sequence
        total = torch.zeros(len(count), device=logp.device).index_add(0, sequence, difference)
        difference = (total / count)[sequence]
    ratio = difference.exp()
    clipped = torch.where(advantages > 0, ratio > high, ratio < low) & (advantages != 0)
    return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages), clipped


def check(data: list, loss, config: dict, ranks: int = 1):
    """ValueError naming the datum and what is wrong with it: better than a shape error, or silence, three calls later."""
    if not data and ranks == 1:
        raise ValueError("an empty batch: nothing to train on")
    if not callable(loss) and loss not in LOSSES:
        raise ValueError(f"unknown loss {loss!r}; there are {', '.join(LOSSES)}")
    unknown = sorted(set(config) - {"temperature", "clip_low_threshold", "clip_high_threshold"})
    if unknown and not callable(loss):
        raise ValueError(f"unknown loss config {', '.join(unknown)}: there are temperature, clip_low_threshold, clip_high_threshold")
    if config.get("temperature", 1.0) <= 0:
        raise ValueError("config temperature must be above 0: greedy samples have no gradient")
    for i, datum in enumerate(data):
        length = sum(map(len, datum.chunks))
        arrays = {name: getattr(datum, name) for name in ("targets", "weights", "logprobs", "advantages")}
        if loss != "cross_entropy" and (arrays["logprobs"] is None or arrays["advantages"] is None) and not callable(loss):
            raise ValueError(f"datum {i}: loss {loss!r} needs logprobs and advantages")
        for name, array in arrays.items():
            if array is not None and len(array) != length:
                raise ValueError(f"datum {i}: {len(array)} {name} for {length} positions")
            if array is not None and not np.isfinite(array).all():
                raise ValueError(f"datum {i}: its {name} are not all finite")


# ---------------------------------------------------------------------------------------------------------------------
# the trainer


class Trainer:
    """See the top of this file. `base_model`: where the weights came from; `skipped`: optimizer steps left out for non-finite gradients;
    `sharded`: the module of that name, if weights are split over the ranks."""

    def __init__(self, model: Model, engine: Engine, *, base_model: str, rank: int, seed: int, peft=None, micro_positions=8192, sharded=None):
        self.model, self.engine, self.peft, self.sharded = model, engine, peft, sharded
        self.base_model, self.rank, self.seed, self.micro_positions = base_model, rank, seed, micro_positions
        self.skipped, self.pending, self.failed = 0, False, False
        self.ranks = parallel.start(model.device)[1]
        self.companions = {} if peft else read_companions(model.name)
        self.weights = [p for p in model.net.parameters() if p.requires_grad]
        # Small steps vanish in bfloat16, so such weights are rounded copies of these
        self.masters = [p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float()) for p in self.weights]
        groups = [{"params": [p for p in self.masters if p.ndim >= 2]}, {"params": [p for p in self.masters if p.ndim < 2]}]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], fused=model.device.type in ("cpu", "cuda"))

    def sampler(self) -> Engine:
        """An on-policy sampler: the weights as they are when a request starts. `.version` counts optimizer steps."""
        if self.sharded and self.engine.model is self.model:
            raise SystemExit("sharded weights can't be sampled from: make the trainer with sampling=True, which keeps a whole copy for it")
        return self.engine

    async def forward(self, data: list, loss="cross_entropy", config: dict | None = None, everywhere: bool = False) -> Output:
        """Log-probabilities and metrics, no gradients. `everywhere`: also where weight and advantage are 0 (not at pictures)."""
        return await self.engine.run(lambda: self._pass(data, loss, config or {}, False, everywhere))

    async def forward_backward(self, data: list, loss="cross_entropy", config: dict | None = None) -> Output:
        """Adds the gradient of the summed loss to what earlier calls left. Metrics: see `_pass`."""
        return await self.engine.run(lambda: self._pass(data, loss, config or {}, True))

    async def optim_step(self, adam: AdamParams) -> dict:
        """One AdamW step on the gradients gathered. Not finite: the step is left out and counted. Metrics: grad_norm, skipped, version."""
        return await self.engine.run(lambda: self._step(adam))

    async def save_weights_for_sampler(self, path) -> str:
        """A folder that transformers (rank 0) or peft (rank > 0) can load. An existing one is replaced in one step."""
        return await self.engine.run(lambda: self._save(path, self._write_weights))

    async def save_state(self, path) -> str:
        """As `save_weights_for_sampler`, with what `load_trainer` needs to go on exactly. Gradients not yet used are not kept."""
        return await self.engine.run(lambda: self._save(path, self._write_weights, self._write_state))

    def close(self):
        self.engine.close()
        if self.model.device.type == "cuda":
            print(f"GPU memory, peak: {torch.cuda.max_memory_allocated(self.model.device) / 2**30:.1f} GiB", flush=True)

    # ------------------------------------------------------------------ in the engine's thread

    def _pass(self, data, loss, config, grad, everywhere=False) -> Output:
        """Metrics: loss_sum and token_count (tokens of nonzero weight); their means entropy and, where the sampler's log-probabilities are
        known, ratio_mean, clip_fraction, kl (of the sampler's policy to this one, estimator k3) and logp_gap (mean |logp - old|).
        One of several ranks may have no data."""
        failed, self.failed = self.failed, self.failed or grad  # the latter if this doesn't come to its end
        check(data, loss, config, self.ranks)
        flats = [self.model.flatten(datum.chunks) for datum in data]
        logprobs = [np.zeros(len(flat), dtype=np.float32) for flat in flats]
        goals = [self._wanted(i, data[i], flats[i], everywhere) for i in range(len(data))]
        groups = self.model.batches([len(flat) for flat in flats], self.micro_positions)
        groups = [group for group in groups if any(goals[i][1].any() for i in group)]
        most = parallel.most(len(groups), self.model.device) if self.sharded else len(groups)
        sums, scored = {"loss_sum": torch.zeros(()), "token_count": torch.zeros(())}, []
        try:
            for group in groups:
                targets, wanted = zip(*(goals[i] for i in group))
                batch = [[items[i] for i in group] for items in (data, flats)]
                scored.append((group, wanted, self._micro_batch(*batch, targets, wanted, loss, config, grad, sums)))
            for _ in range(most - len(groups)):
                self._empty_micro_batch(grad)
        except BaseException:
            if grad:
                self._forget_gradients()  # half a batch is no gradient
            raise
        self.failed, self.pending = failed, self.pending or grad
        for group, wanted, values in scored:  # only now, since each look at a GPU waits for it
            values = values.cpu().numpy()
            for i, want in zip(group, wanted):
                logprobs[i][want], values = values[: want.sum()], values[want.sum() :]
        sums = dict(zip(sums, torch.stack(list(sums.values())).tolist()))
        count = max(1, sums["token_count"])
        return Output(logprobs, {name: value if name in ("loss_sum", "token_count") else value / count for name, value in sums.items()})

    def _wanted(self, i, datum, flat, everywhere):
        """Targets, and where they are wanted, [T] each. `Datum.targets` is 0 where the weight is: `everywhere` reads the next ids."""
        used = datum.weights != 0
        if datum.advantages is not None:
            used = used | (datum.advantages != 0)
        trained = datum.targets[used]
        unknown = (trained < 0) | (trained >= self.model.vocab_size) | np.isin(trained, self.model.blocked_ids)
        if unknown.any():
            raise ValueError(f"datum {i}: a target of nonzero weight is a picture placeholder, or not a token of {self.model.name!r}")
        if not everywhere:
            return datum.targets, used
        following = np.append(flat.ids[1:], datum.targets[-1])
        text = np.append(flat.key[1:] >= 0, used[-1])
        return np.where(used, datum.targets, following), used | text

    def _micro_batch(self, data, flats, targets, wanted, loss, config, grad, sums):
        """Log-probabilities float32 [N] where wanted."""
        logp, entropy = self.model.score(flats, targets, wanted, config.get("temperature", 1.0), grad)  # [N], [N]

        def gather(name, kind=torch.float32):
            arrays = [getattr(datum, name) for datum in data]
            if any(array is None for array in arrays):
                return None
            return send(torch.as_tensor(np.concatenate([array[want] for array, want in zip(arrays, wanted)]), dtype=kind), logp.device)

        weights, old, advantages = gather("weights"), gather("logprobs"), gather("advantages")  # [N] each
        sequence = send(torch.as_tensor(np.repeat(np.arange(len(data)), [want.sum() for want in wanted])), logp.device)  # [N]
        losses, clipped = token_losses(loss, logp, old, advantages, sequence, config)
        total = (losses * weights).sum()
        if grad:
            total.backward()
            self._gather_gradients()
        with torch.no_grad():
            counted = weights != 0  # no indexing with it: a GPU would be waited for
            found = {"loss_sum": total, "token_count": counted.sum(), "entropy": torch.where(counted, entropy, 0).sum()}
            if old is not None:
                difference = torch.where(counted, logp - old, 0)
                ratio = difference.exp()
                found |= {"ratio_mean": torch.where(counted, ratio, 0).sum(), "clip_fraction": torch.where(counted, clipped, 0).sum()}
                found |= {"kl": (ratio - 1 - difference).sum(), "logp_gap": difference.abs().sum()}
            for name, value in found.items():
                sums[name] = sums.get(name, 0) + value.double()
            return logp.detach().float()

    def _empty_micro_batch(self, grad):
        """Shards of the weights come and go in calls that all ranks make together, also the one whose rows are done."""
        flat = self.model.flatten([TextChunk((self.model.pad,))])
        logp, _ = self.model.score([flat], [np.zeros(1, dtype=np.int64)], [np.ones(1, dtype=bool)], grad=grad)
        if grad:
            (0 * logp).sum().backward()

    def _gather_gradients(self):
        for weight, master in zip(self.weights, self.masters):
            if master is not weight and weight.grad is not None:
                master.grad = weight.grad.float() if master.grad is None else master.grad.add_(weight.grad)
                weight.grad = None

    def _weights_changed(self):
        if self.engine.model is not self.model:
            self.sharded.follow(self.engine.model, self.model)
            self.model.weights_changed()
        self.engine.weights_changed()

    def _forget_gradients(self):
        for parameter in (*self.weights, *self.masters):
            parameter.grad = None
        self.pending = False

    def _step(self, adam: AdamParams) -> dict:
        passed = parallel.total(float("nan") if self.failed else self.pending, self.model.device)
        if np.isnan(passed) and self.ranks > 1:
            raise SystemExit("a forward_backward failed on one of the ranks: no step was taken, its own lines say why")
        if not self.pending and not (self.ranks > 1 and passed):
            raise ValueError("optim_step without gradients: call forward_backward before")
        if self.ranks > 1 and not self.sharded:  # there, each backward pass has summed
            parallel.sum_gradients(self.masters)
        limit = adam.grad_clip_norm if adam.grad_clip_norm > 0 else float("inf")
        norm = torch.nn.utils.clip_grad_norm_([p for p in self.masters if p.grad is not None], limit)
        norm = (norm.full_tensor() if self.sharded else norm).item()
        skipped = not np.isfinite(norm)
        if skipped:
            self.skipped += 1
            advice = "lower the learning rate or look at the batch"
            print(f"optim_step left out: the gradient norm is {norm} ({self.skipped} so far); {advice}", flush=True)
        else:
            for group in self.optimizer.param_groups:
                group |= {"lr": adam.learning_rate, "betas": (adam.beta1, adam.beta2), "eps": adam.eps}
                group["weight_decay"] = adam.weight_decay if group["params"][0].ndim >= 2 else 0.0
            self.optimizer.step()
            rounded = [pair for pair in zip(self.weights, self.masters) if pair[0] is not pair[1]]
            if rounded:
                with torch.no_grad():
                    torch._foreach_copy_(*map(list, zip(*rounded)))
            self._weights_changed()
        self._forget_gradients()
        return {"grad_norm": norm, "skipped": int(skipped), "skipped_total": self.skipped, "version": self.model.version}

    # ------------------------------------------------------------------ checkpoints

    def _save(self, path, *writers) -> str:
        """Rank 0 writes the weights, which all ranks have, or have parts of."""
        self.whole = self.sharded.gather(self) if self.sharded else None
        path = str(path) if parallel.world()[0] else write_folder(path, *writers)
        self.whole = None
        return path

    def _write_weights(self, folder: Path):
        if self.peft is None:
            self.model.net.save_pretrained(folder, state_dict=self.whole["weights"] if self.whole else None)
            for name, data in self.companions.items():
                if not (folder / name).exists():
                    (folder / name).write_bytes(data)
            return
        base = os.path.abspath(self.base_model) if os.path.isdir(self.base_model) else self.base_model
        self.peft.peft_config["default"].base_model_name_or_path = base
        self.peft.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # an empty form

    def _write_state(self, folder: Path):
        state = {name: getattr(self, name) for name in ("base_model", "rank", "seed", "skipped")}
        state |= {"version": self.model.version, "train_vision": bool(self.model.pictures) and not self.model.pictures.frozen}
        state |= {"optimizer": self.optimizer.state_dict(), "random": torch.get_rng_state()}
        state["masters"] = [None if master is weight else master.detach() for weight, master in zip(self.weights, self.masters)]
        if self.whole:
            state |= {name: self.whole[name] for name in ("optimizer", "masters")}
        torch.save(state, folder / STATE)

    def _read_state(self, state: dict):
        state = self.sharded.scatter(self, state) if self.sharded else state
        self.optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            for master, saved in zip(self.masters, state["masters"], strict=True):
                if saved is not None:
                    master.copy_(saved)
        self.skipped, self.model.version = state["skipped"], state["version"]
        torch.set_rng_state(state["random"])
        if self.engine.model is not self.model:
            self.sharded.follow(self.engine.model, self.model)
            self.engine.model.version = self.model.version


def write_folder(path, *writers) -> str:
    """Fills `<path>.tmp` and moves it to `path`. OSError with one line if that fails; what was at `path` is then still there."""
    path = Path(path)
    new, old = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".old")
    try:
        shutil.rmtree(new, ignore_errors=True)  # of a run that was killed
        new.mkdir(parents=True)
        for write in writers:
            write(new)
        if path.exists():  # a folder can't be replaced in one step; between these two lines `find_folder` takes the old one
            shutil.rmtree(old, ignore_errors=True)
            os.replace(path, old)
        os.replace(new, path)
    except Exception as error:
        shutil.rmtree(new, ignore_errors=True)
        raise OSError(f"checkpoint {path} could not be written ({error}); the one before it is untouched") from error
    shutil.rmtree(old, ignore_errors=True)
    return str(path)


def find_folder(path) -> str:
    """`path`, or what a kill in the middle of replacing it left beside it."""
    old = Path(path).with_name(Path(path).name + ".old")
    return str(old if old.is_dir() and not Path(path).exists() else path)


def read_companions(name: str) -> dict:
    """{file name: bytes} of the tokenizer, chat template and processor files that go along with the weights. Read when the trainer is made:
    the folder it came from may be a checkpoint of its own run, which --keep-last removes in time."""
    if not os.path.isdir(name):
        from huggingface_hub import snapshot_download

        name = snapshot_download(name, allow_patterns=["*.json", "*.jinja", "*.txt", "*.model"])
    ours = lambda file: file.name in ("config.json", "generation_config.json") or file.name.endswith(".index.json") or file.name.startswith("adapter_")
    return {file.name: file.read_bytes() for file in Path(name).iterdir() if file.suffix in (".json", ".jinja", ".txt", ".model") and not ours(file)}


# ---------------------------------------------------------------------------------------------------------------------
# making trainers and samplers


async def create_trainer(base_model, rank: int = 0, seed: int = 0, **options) -> Trainer:
    """A trainer on a Hugging Face folder or hub id: rank 0 trains all weights, > 0 a LoRA on every linear layer of the language model.

    SystemExit with one line if the model can't be loaded. For `options` see `_make_trainer`.
    """
    return _make_trainer(str(base_model), rank, seed, **options)


def _make_trainer(base_model, rank, seed, *, train_vision: bool | None = None, lora_alpha: int = 32, device="auto", dtype="auto",
                  revision=None, micro_positions: int = 0, adapter=None, compile=False, recompute=False, fsdp=False, sampling=False,
                  make=None, reserved=0, **engine) -> Trainer:
    """train_vision: whether the vision tower is trained, too (None: with rank 0 only; frozen, each picture passes it once).

    device, dtype, revision: see `load_model`. micro_positions: padded size of what is trained at once (0: 8192, on a GPU what fits, up to
    16384). compile, recompute: see gpu.py. fsdp: see sharded.py; sampling: with fsdp, keep a whole copy to sample from. engine: options of
    `Engine`. make: another sampler, made of the model and these options, for which `reserved` bytes of the GPU are left alone.
    """
    if rank < 0:
        raise SystemExit(f"rank {rank}: use 0 for all weights, or the rank of a LoRA")
    if rank and train_vision:
        raise SystemExit("train_vision needs rank 0: a LoRA is put on the language model only")
    if (Path(base_model) / "adapter_config.json").is_file():
        raise SystemExit(f"model {base_model!r} is an adapter folder: load it with load_trainer (--load), or name its base model")
    train_vision = rank == 0 if train_vision is None else train_vision
    if fsdp and (parallel.world()[1] == 1 or rank):
        raise SystemExit("--fsdp: " + ("a LoRA's base is not split; use --rank 0, or leave --fsdp out" if rank else "start it with torchrun: one process has nobody to share with"))
    place = check_device(device)
    dtype = ("float32" if place.type == "cpu" else "bfloat16") if dtype == "auto" else dtype
    load = functools.partial(load_model, base_model, dtype=dtype, train_vision=train_vision, revision=revision)
    model = load(device="cpu" if fsdp else device)
    if fsdp and model.pictures and train_vision:
        raise SystemExit("--fsdp: a vision tower that is trained is not split; use train_sft.py --freeze-vision, or begin from such a run")
    peft = None
    if rank == 0:
        for module in model.vision_modules():
            module.requires_grad_(train_vision)
    else:
        peft = load_adapter(model, adapter, trainable=True) if adapter else add_adapter(model, rank, lora_alpha, seed)
    if compile or recompute:
        wrap_layers(model, compile, recompute)
    sharded = None
    if fsdp:
        from backends import sharded  # torch's module for this takes long to load

        parallel.start(place)
        sharded.shard(model, place)
    copy = load(device=device) if fsdp and sampling else model
    micro_positions = micro_positions or (8192 if model.device.type == "cpu" else planned(model, compile, recompute, reserved, parallel.world()[1] if fsdp else 1))
    engine = (make or make_engine)(copy, **engine, **({"fused": False} if fsdp and not sampling else {}))
    return Trainer(model, engine, base_model=base_model, rank=rank, seed=seed, peft=peft, micro_positions=micro_positions, sharded=sharded)


async def load_trainer(state_path, with_optimizer: bool = True, *, base_model=None, **options) -> Trainer:
    """The trainer that `save_state` saved. Without optimizer: its weights, everything else new; any weights folder will do then.

    base_model: where a LoRA's base is now, if it has moved. `options`: see `_make_trainer`.
    """
    path = find_folder(state_path)
    file, adapter = Path(path) / STATE, adapter_config(path)
    if with_optimizer and not file.is_file():
        raise SystemExit(f"checkpoint {str(state_path)!r} has no {STATE}: only what save_state wrote goes on; or load without optimizer")
    try:
        state = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else {"seed": 0}
    except Exception as error:
        raise SystemExit(f"checkpoint {str(file)!r} can't be read: {str(error).splitlines()[0]}") from error
    if adapter:
        base_model = str(base_model or adapter["base_model_name_or_path"])
        trainer = _make_trainer(base_model, adapter["r"], state["seed"], adapter=path, **options)
    else:
        trainer = _make_trainer(path, 0, state["seed"], **{"train_vision": state.get("train_vision"), **options})
        trainer.base_model = state.get("base_model", path)
    if with_optimizer:
        await trainer.engine.run(lambda: trainer._read_state(state))
    return trainer


async def create_sampler(base_model, sampler_path=None, *, device="auto", dtype="auto", revision=None, make=None, **engine) -> Engine:
    """A sampler on a Hugging Face folder, hub id or adapter folder; `sampler_path`: what save_weights_for_sampler (or save_state) wrote."""
    make, path = make or make_engine, find_folder(sampler_path or base_model)
    adapter = adapter_config(path)
    if not adapter:
        return make(load_model(path, device=device, dtype=dtype, revision=revision), **engine)
    model = load_model(base_model if sampler_path else adapter["base_model_name_or_path"], device=device, dtype=dtype, revision=revision)
    load_adapter(model, path, trainable=False)
    return make(model, **engine)


def make_engine(model: Model, **options) -> Engine:
    from transformers import AutoTokenizer

    return Engine(model, AutoTokenizer.from_pretrained(model.name), **options)
