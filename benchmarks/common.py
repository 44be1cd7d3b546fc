"""Shared by the benchmarks: models of a known shape with random weights (nothing is downloaded), and what is printed."""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SHAPES = {  # transformers' Qwen2Config; "tiny" is for trying a benchmark out
    "qwen2.5-0.5b": {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
                     "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": True},
    "qwen2.5-1.5b": {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
                     "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": True},
    "tiny": {"vocab_size": 640, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "max_position_embeddings": 4096, "tie_word_embeddings": True},
}  # fmt: skip


def device_name():
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def random_net(shape: str):
    """transformers' model with weights from seed 0; bfloat16 on a GPU, float32 on a CPU."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    config = transformers.Qwen2Config(**SHAPES[shape], rope_parameters=rope, pad_token_id=0, eos_token_id=None, bos_token_id=None)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(device):
        net = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    for module in net.modules():  # biases of zero would hide mistakes
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias, std=0.1)
    return net.to(device).eval()


def random_model(shape: str):
    from backends.model import Model

    net = random_net(shape)
    return Model(net, tempfile.mkdtemp(), device=net.device)  # an empty folder: there is no tokenizer


def random_trainer(shape: str, compile=False, recompute=False, micro_positions=0, fsdp=False, **engine):
    """A Trainer on such a model, all weights trained; fsdp: split over the ranks (torchrun)."""
    from backends import parallel
    from backends.engine import Engine
    from backends.gpu import planned, wrap_layers
    from backends.local import Trainer

    model, sharded = random_model(shape), None
    if compile or recompute:
        wrap_layers(model, compile, recompute)
    if fsdp:
        from backends import sharded
        from backends.model import Model

        place = model.device
        model = Model(model.net.to("cpu"), model.name)
        release()
        sharded.shard(model, place)
        engine["fused"] = False
    micro_positions = micro_positions or (8192 if model.device.type == "cpu" else planned(model, compile, recompute, parallel.world()[1] if fsdp else 1))
    return Trainer(model, Engine(model, **engine), base_model=model.name, rank=0, seed=0, micro_positions=micro_positions, sharded=sharded)


def release():
    """Between two ways: what the last one held is given back, and the peak starts anew."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float:
    import torch

    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0


def timed(function, rounds: int, warm: int = 1):
    """Seconds of each of `rounds` calls after `warm` others, and the seconds that those took."""
    import torch

    def once():
        begun = time.perf_counter()
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    warming = sum(once() for _ in range(warm))
    return [once() for _ in range(rounds)], warming


def rates(tokens: int, seconds: list) -> dict:
    found = [tokens / s for s in seconds]
    return {"tok_s": round(statistics.mean(found)), "min": round(min(found)), "max": round(max(found)), "n": len(found)}


def show(name: str, result: dict):
    print(f"{name:<44}" + "  ".join(f"{key} {value:,.4g}" if isinstance(value, float) else f"{key} {value:,}" for key, value in result.items()), flush=True)


def finish(benchmark: str, args, results: dict):
    print(json.dumps({"benchmark": benchmark, "device": device_name(), **vars(args), "results": results}), flush=True)
