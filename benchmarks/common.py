"""Shared by the benchmarks: a model folder (--model), or random weights of a known shape (--shape; nothing is downloaded); what is printed."""

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

QUESTIONS = """Why does bread rise, and what happens if the yeast is left out?
Write a Python function that returns the second largest number of a list.
How long does light take from the Sun to Neptune?
Name three ways to store a graph in memory, with what each is good for.
A train leaves at 9:40 and arrives at 13:05. How long was the journey?
Explain to a child what a shadow is.
Which is larger, 7/12 or 5/9? Show the steps.
Write an SQL query for the ten customers with the most orders last year.
What does it mean that a star is a white dwarf?
Turn this into a haiku: the bus was late again and it rained.
List the steps for changing a bicycle tube.
What is wrong with `for i in range(len(x)): x.remove(x[i])`?
Describe a kitchen of the year 1850 in five sentences.
How would you find out whether a coin is fair?
Compare merge sort and quicksort for data that does not fit in memory.
Suggest a name for a cat that sleeps on books, and say why.""".splitlines()


def chat_prompts(folder: str, count: int) -> list:
    """Token ids of the questions, as the folder's chat template renders them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = [[{"role": "user", "content": question}] for question in QUESTIONS]
    lines = [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in asked]
    return [tokenizer(lines[i % len(lines)], add_special_tokens=False).input_ids for i in range(count)]


def device_name():
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def make_net(shape: str, folder=None):
    """transformers' model of a folder, or with weights from seed 0; bfloat16 on a GPU, float32 on a CPU."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if folder:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).eval()
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    config = transformers.Qwen2Config(**SHAPES[shape], rope_parameters=rope, pad_token_id=0, eos_token_id=None, bos_token_id=None)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(device):
        net = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    for module in net.modules():  # biases of zero would hide mistakes
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias, std=0.1)
    return net.to(device).eval()


def make_model(shape: str, folder=None):
    from backends.model import Model

    net = make_net(shape, folder)
    return Model(net, folder or tempfile.mkdtemp(), device=net.device)  # an empty folder: there is no tokenizer


def make_trainer(shape: str, folder=None, compile=False, recompute=False, micro_positions=0, fsdp=False, make=None, **engine):
    """A Trainer on such a model, all weights trained. fsdp: split over the ranks (torchrun). make: another sampler than Engine, made of the model and
    `engine`."""
    from backends import parallel
    from backends.engine import Engine
    from backends.gpu import planned, wrap_layers
    from backends.local import Trainer

    model, sharded = make_model(shape, folder), None
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
    ranks = parallel.world()[1] if fsdp else 1
    micro_positions = micro_positions or (8192 if model.device.type == "cpu" else planned(model, compile, recompute, ranks=ranks))
    sampler = (make or Engine)(model, **engine)
    return Trainer(model, sampler, base_model=model.name, rank=0, seed=0, micro_positions=micro_positions, sharded=sharded)


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


def attempt(results: dict, name: str, function):
    """function() -> {name: result}, into `results`. A way that fails is told and leaves the others alone."""
    import traceback

    release()
    try:
        found = function()
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        found = {name: {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}}
    for kind, result in found.items():
        results[kind] = result
        show(kind, result)


def show(name: str, result: dict):
    if "failed" in result:
        return print(f"{name:<44}failed: {result['failed']}", flush=True)
    print(f"{name:<44}" + "  ".join(f"{key} {value:,.4g}" if isinstance(value, float) else f"{key} {value:,}" for key, value in result.items()), flush=True)


def finish(benchmark: str, args, results: dict):
    print(json.dumps({"benchmark": benchmark, "device": device_name(), **vars(args), "results": results}), flush=True)
