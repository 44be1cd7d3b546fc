"""Two GPUs (or two processes on a CPU) through torchrun and the real scripts, against one; a killed rank, and what goes on from it. Not collected by pytest.

    python tests/integration/ranks.py                                   # two GPUs; the widths of Qwen2.5-0.5B, random weights
    python tests/integration/ranks.py --device cpu --shape tiny         # tries it out
    python tests/integration/ranks.py --parts killed                    # one part alone: sft rl fsdp killed

Prints, for each part, how far the runs are apart. On a CPU (float32) they agree but for rounding; on a GPU arithmetic is bfloat16, and a token
drawn in another batch may differ, after which RL goes its own way: there, look at the first step and at the curve.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]


def make_inputs(folder, shape, layers):
    """A model folder with random weights from seed 0 and a vocabulary of bytes, questions and demonstrations."""
    import torch
    import transformers
    from common import SHAPES
    from helpers import LAUNCH, TOY, tiny_tokenizer

    from protocol import write_jsonl

    tokenizer = tiny_tokenizer(folder / "model")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = transformers.Qwen2Config(**SHAPES[shape] | {"vocab_size": 320, "num_hidden_layers": layers} | ends, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    ask = lambda i: [{"role": "user", "content": f"question {i}"}]
    demo = lambda i: {"id": f"s{i}", "messages": [*ask(i), {"role": "assistant", "content": f"it is {i % 10} " * (i % 7 + 1)}]}
    write_jsonl(folder / "rl.jsonl", [{"id": f"q{i}", "task": "toy", "messages": ask(i)} for i in range(64)])
    write_jsonl(folder / "sft" / "sft_train.jsonl", [demo(i) for i in range(128)])
    write_jsonl(folder / "sft" / "sft_val.jsonl", [demo(i) for i in range(200, 217)])
    for script in ("train_sft", "train_rl"):
        (folder / f"{script}.py").write_text(LAUNCH.format(root=str(ROOT), toy=TOY, script=script).replace("; ", "\n"))


def begin(args, script, ranks, *flags, gpu="0"):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    alone = {} if ranks > 1 or args.device == "cpu" else {"CUDA_VISIBLE_DEVICES": gpu}
    command = [sys.executable, *launcher, f"{script}.py", *flags, *(["--device", args.device] if "--resume" not in flags else [])]
    return subprocess.Popen(command, cwd=args.folder, env={**os.environ, **alone}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process, expected=0):
    said = process.communicate()[0]
    if (process.returncode == 0) != (expected == 0):
        raise SystemExit(f"{' '.join(process.args)}: exit status {process.returncode}\n{said[-6000:]}")
    return [line for line in said.splitlines() if line.startswith("GPU memory")]


def metrics(args, name):
    return {row["step"]: row for row in map(json.loads, (args.folder / "runs" / name / "metrics.jsonl").read_text().splitlines())}


def compare(args, one, two, *keys):
    ours, theirs = metrics(args, one), metrics(args, two)
    shared = sorted(ours.keys() & theirs.keys())
    print(f"{two} against {one}, steps {shared[0]} to {shared[-1]}" + ("" if ours.keys() == theirs.keys() else "  STEPS DIFFER"))
    for key in keys:
        pairs = [(ours[step][key], theirs[step][key]) for step in shared if key in ours[step] and key in theirs[step]]
        apart = [abs(a - b) / max(abs(a), 1e-9) for a, b in pairs]
        print(f"  {key:24} first {pairs[0][0]:.6g} {pairs[0][1]:.6g}  last {pairs[-1][0]:.6g} {pairs[-1][1]:.6g}  largest relative difference {max(apart):.2e}")


def rank_one(launcher):
    """The process id of rank 1."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == launcher and b"\0RANK=1\0" in (place / "environ").read_bytes():
                return int(place.name)
        except OSError:
            pass
    raise SystemExit("no rank 1 was found")


def killed(args, rl):
    """A rank is killed in mid-run; the run goes on with one process and with two."""
    process = begin(args, "train_rl", 2, *rl, "--run-name", "killed", "--save-every", "1")
    log = args.folder / "runs" / "killed" / "checkpoints.jsonl"
    while process.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < 2):
        time.sleep(0.02)
    begun = time.monotonic()
    os.kill(rank_one(process.pid), signal.SIGKILL)
    end(process, expected=1)
    print(f"rank 1 was killed after step {max(metrics(args, 'killed'))}; the job ended {time.monotonic() - begun:.1f} s later")
    subprocess.run(["cp", "-r", "runs/killed", "runs/killed-two"], cwd=args.folder, check=True)
    end(begin(args, "train_rl", 1, "--resume", "runs/killed"))
    end(begin(args, "train_rl", 2, "--resume", "runs/killed-two"))
    compare(args, "killed", "killed-two", "reward/mean", "loss", "grad_norm")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="qwen2.5-0.5b", help="of benchmarks/common.py (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="checkpoints of the whole shape would fill the disk (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", default=["sft", "rl", "fsdp", "killed"])
    args = parser.parse_args()
    args.folder = Path(tempfile.mkdtemp())
    make_inputs(args.folder, args.shape, args.layers)
    sft = "--base-model model --rank 0 --task toy --data-dir sft --batch-size 16 --learning-rate 1e-5 --grad-clip 1 --epochs 1".split()
    rl = "--state-path model --task toy --data rl.jsonl --batch-size 8 --group-size 8 --max-tokens 64 --learning-rate 1e-6 --grad-clip 1 --keep-last 2 --max-steps 8".split()
    alone = {"sft": ("train_sft", sft, "0"), "rl": ("train_rl", rl, "1")}  # side by side, each on a GPU of its own
    wanted = [name for name in alone if name in args.parts or name == "sft" and "fsdp" in args.parts]
    started = [begin(args, alone[name][0], 1, *alone[name][1], "--run-name", name, gpu=alone[name][2]) for name in wanted]
    for name, process in zip(wanted, started):
        print(name, "on one:", *end(process))
    for part in args.parts:
        if part == "killed":
            killed(args, rl)
            continue
        script, flags = ("train_rl", rl) if part == "rl" else ("train_sft", [*sft, *(["--fsdp"] if part == "fsdp" else [])])
        print(part, "on two:", *end(begin(args, script, 2, *flags, "--run-name", f"{part}-two")))
        keys = ("reward/mean", "reward_std", "loss", "grad_norm", "train/assistant_tokens") if part == "rl" else ("val/loss", "train/loss", "grad_norm")
        compare(args, "rl" if part == "rl" else "sft", f"{part}-two", *keys)


if __name__ == "__main__":
    main()
