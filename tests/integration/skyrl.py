"""Our `tinker` adapter against a real engine that speaks Tinker's API: SkyRL 0.4.0's server, JAX on the CPU. Not part of test.sh: it is heavy.

    python tests/integration/skyrl.py                               # makes build/skyrl (6 GB, once), then about five minutes on two cores
    python tests/integration/skyrl.py --env ~/skyrl-env             # an environment that is there already

Run it with an environment that has the extra `remote` (PyTRIO's SDK plays its part too). The server gets an environment of its own: Python
3.12 or newer (uv finds or fetches one; else pyenv's, else python3.12 on PATH), skyrl[tinker,jax]==0.4.0, aiohttp, which it needs and doesn't
declare, and tinker==0.25.0, the one SDK that can train and sample there. Everything is on loopback, and stopped by its process id at the end.

What is checked, each a line of the table:
    SFT         train_sft.py --backend tinker: the loss falls; resumed from its second epoch the numbers are the same (optimizer restored)
    RL          train_rl.py --backend tinker: the reward rises; resumed in the middle the numbers are the same
    logprobs    of a sampled answer: the server's sampler, the server's trainer and backends/local.py on the same weights
    pictures    refused by sampler and trainer (this engine drops them without a word)
    script      a policy that has five episodes by heart plays them through local, PyTRIO's SDK on the loopback stub, and SkyRL:
                the same tokens, observations and finish reasons
"""

import argparse
import asyncio
import importlib.util
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "integration")]
PACKAGES = ("skyrl[tinker,jax]==0.4.0", "aiohttp", "tinker==0.25.0", "tqdm", "pillow")
# skyrl starts its engine by re-running `uv run`; this starts it with the same Python. It replaces a private function, hence the pin above.
LAUNCH = """
import argparse, sys, uvicorn
import skyrl.tinker.api as api
from skyrl.tinker.config import EngineConfig, add_model, config_to_argv
api._build_uv_run_cmd_engine = lambda parent, config: [sys.executable, "-m", "skyrl.tinker.engine", *config_to_argv(config)]
parser = argparse.ArgumentParser(); add_model(parser, EngineConfig); parser.add_argument("--port", type=int)
args = parser.parse_args()
api.app.state.engine_config = EngineConfig.model_validate({k: v for k, v in vars(args).items() if k in EngineConfig.model_fields})
uvicorn.run(api.app, host="127.0.0.1", port=args.port, log_level="warning")
"""
KEYS = {"TINKER_API_KEY": "tml-any", "HF_HUB_OFFLINE": "1"}  # a server of one's own takes any key
SAME = 1e-4  # nats a token between engines, float32
EXACT = 1e-5  # a resumed run against the one that was left alone


# ---------------------------------------------------------------- environment and server


def make_env(folder: Path) -> Path:
    """The server's Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder}: {' '.join(PACKAGES)}", flush=True)
        if uv := shutil.which("uv"):
            subprocess.run([uv, "venv", "--quiet", "-p", ">=3.12,<3.15", folder], check=True)
            subprocess.run([uv, "pip", "install", "--quiet", "-p", python, *PACKAGES], check=True)
        else:
            pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
            found = [*sorted(pyenv.glob("3.1[234].*/bin/python")), *filter(None, map(shutil.which, ("python3.12", "python3.13", "python3.14")))]
            if not found:
                raise SystemExit("SkyRL 0.4.0 needs Python 3.12 to 3.14: pyenv install 3.12, or pip install uv")
            subprocess.run([found[0], "-m", "venv", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    return python


def start_server(python: Path, folder: Path, model: Path):
    """(process, address) of a server that answers; its engine may still be loading, requests then wait in line."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {"max_lora_adapters": 24, "max_lora_rank": 8, "sample_max_num_sequences": 16, "train_micro_batch_size": 8}  # fixed: few compilations
    command = [python, "-c", LAUNCH, "--port", str(port), "--base-model", model, "--backend", "jax", "--backend-config", json.dumps(config),
               "--checkpoints-base", folder / "checkpoints", "--database-url", f"sqlite:///{folder / 'server.db'}"]  # fmt: skip
    log = open(folder / "server.log", "wb")
    quiet = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env={**os.environ, **quiet}, start_new_session=True)
    until = time.monotonic() + 600  # it imports for half a minute, and for minutes on a busy machine
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}"
        time.sleep(0.5)
    stop(process)
    raise SystemExit(f"the server did not start: {(folder / 'server.log').read_text()[-2000:]}")


def stop(process):
    """API and engine: the process group that was started here."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


# ---------------------------------------------------------------- the model


async def learn_by_heart(folder: Path):
    """A tiny text model whose weights are the script of doors.py: trained here until it writes nothing else."""
    import doors
    import torch
    import transformers
    from helpers import tiny_folder

    from backends import AdamParams, local
    from protocol import load_chat, sft_datum

    tiny_folder(folder, "qwen3")
    model, tokenizer = (kind.from_pretrained(folder) for kind in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer))
    model.resize_token_embeddings(len(tokenizer))
    torch.manual_seed(0)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.1)  # at the usual 0.02, tied to the output, hardly anything is learnt
    model.save_pretrained(folder)
    chat = load_chat(str(folder))
    data = [sft_datum(chat, row["messages"], None, ".", 1000) for row in doors.demonstrations()]
    trainer = await local.create_trainer(str(folder), rank=0, seed=0, device="cpu")
    steps = 0
    while True:
        output = await trainer.forward_backward(data, "cross_entropy")
        worst = min(float(logprobs[datum.weights != 0].min()) for logprobs, datum in zip(output.logprobs, data))
        if worst > -0.02 or steps == 400:
            break
        steps += 1
        await trainer.optim_step(AdamParams(3e-3, grad_clip_norm=1.0))
    await trainer.save_weights_for_sampler(folder / "learnt")
    trainer.close()
    for file in (folder / "learnt").iterdir():
        shutil.copy(file, folder / file.name)
    print(f"the scripted policy: {steps} steps, its least certain token has p = {2.718281828 ** worst:.3f}", flush=True)


# ---------------------------------------------------------------- what runs on every engine


async def play(model: str, sampler) -> list:
    """The script's five episodes, greedy: what was sampled, seen, and how each ended."""
    import doors

    from protocol import SamplingParams, load_chat
    from rollout import rollout

    chat = load_chat(model)
    params = SamplingParams(doors.LIMITS["max_tokens"], 0.0, stop_tokens=chat.stop_tokens)
    played = []
    for row in doors.rows():
        t = await rollout(doors, row, chat, sampler, params, max_turns=doors.LIMITS["max_turns"], max_seq_len=doors.LIMITS["max_seq_len"])
        turns = [{"tokens": turn.tokens, "text": turn.text, "saw": turn.observation and turn.observation.text, "stop": turn.stop_reason} for turn in t.turns]
        played.append({"id": row["id"], "finish_reason": t.finish_reason, "error": t.error, "turns": turns})
    return played


async def inside(model: str, url: str) -> dict:
    """In the server's environment, through the adapter itself."""
    import numpy as np

    from backends import tinker
    from protocol import Datum, ImageChunk, SamplingParams, TextChunk

    sampler = await tinker.create_sampler(model, base_url=url)
    found = {"script": await play(model, sampler)}
    prompt = [TextChunk(tuple(range(40, 60)))]
    sample = (await sampler.sample(prompt, 4, SamplingParams(12, seed=3)))[0]
    whole = [*prompt, TextChunk(tuple(sample.tokens))]
    trainer = await tinker.create_trainer(model, rank=8, seed=1, base_url=url)
    ids = [*prompt[0].tokens, *sample.tokens]
    weights = np.zeros(len(ids) - 1, dtype=np.float32)
    weights[len(prompt[0].tokens) - 1 :] = 1
    scored = await trainer.forward([Datum([TextChunk(tuple(ids[:-1]))], np.array(ids[1:], dtype=np.int64), weights)])
    found["logprobs"] = {"ids": ids, "sampled": list(sample.logprobs), "prompt": [float(x) for x in (await sampler.logprobs(whole))[-len(sample.tokens) :]],
                         "trainer": [float(x) for x in scored.logprobs[0][weights != 0]]}  # fmt: skip
    picture = [TextChunk((1, 2, 3)), ImageChunk(b"\x89PNG", 2), TextChunk((4, 5))]
    found["pictures"] = []
    for call in (sampler.sample(picture, 1, SamplingParams(4)), trainer.forward([Datum(picture, np.ones(7, np.int64), np.ones(7, np.float32))])):
        try:
            await call
            found["pictures"].append("NOT REFUSED")
        except SystemExit as refusal:
            found["pictures"].append(str(refusal))
    trainer.close()
    return found


async def local_and_stub(model: str, folder: Path, ids: list, count: int) -> dict:
    """The same through backends/local.py and through PyTRIO's SDK on the loopback stub; and local log-probabilities of the last `count` ids."""
    import pytrio
    from stub_pytrio import Stub

    from backends import local
    from backends import pytrio as adapter
    from protocol import TextChunk

    sampler = await local.create_sampler(model, device="cpu")
    found = {"local": await play(model, sampler), "logprobs": [float(x) for x in (await sampler.logprobs([TextChunk(tuple(ids))]))[-count:]]}
    sampler.close()
    with Stub(folder / "stub", model) as stub:
        pytrio.configure(home=str(folder), api_key="any", log_level="ERROR")
        found["stub"] = await play(model, await adapter.create_sampler(model, base_url=stub.url))
    return found


# ---------------------------------------------------------------- the scripts, as their users run them


def script(python, name: str, folder: Path, *flags):
    """train_sft.py or train_rl.py in the server's environment, with doors.py as tasks.doors. SystemExit if it fails."""
    command = [python, __file__, "--script", name, *flags]
    done = subprocess.run(list(map(str, command)), cwd=folder, env={**os.environ, **KEYS}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    (folder / f"{name}.log").open("a").write(done.stdout)
    if done.returncode:
        raise SystemExit(f"{name}.py {' '.join(map(str, flags))}: exit {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def steps_of(folder: Path, run: str) -> list:
    return [json.loads(line) for line in (folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]


def resumed(python, name: str, folder: Path, run: str, step: int, key: str) -> float:
    """Largest difference of `key` between a run and its copy that goes on from `step`, as if it had been killed after that checkpoint."""
    there, copy = folder / "runs" / run, folder / "runs" / f"{run}-again"
    copy.mkdir()
    for file in ("config.json", "metrics.jsonl"):
        shutil.copy(there / file, copy / file)
    lines = (there / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    (copy / "checkpoints.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= step))
    said = script(python, name, folder, "--resume", f"runs/{run}-again")
    assert f"going on after step {step}" in said, said
    one, two = ({row["step"]: row[key] for row in steps_of(folder, which) if row.get(key) is not None} for which in (run, f"{run}-again"))
    assert one.keys() == two.keys() and max(one) > step, (one, two)
    return max(abs(one[step] - two[step]) for step in one)


def write(path: Path, rows: list):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(python, folder: Path, model: Path, url: str, line):
    """SFT and RL by the scripts, each resumed in the middle."""
    ask = lambda i: [{"role": "user", "content": f"door {i}"}]
    demo = lambda i: {"id": f"s{i}", "messages": [*ask(i // 2), {"role": "assistant", "content": f"say {'odd' if i % 2 else 'even'}"}]}
    write(folder / "sft" / "sft_train.jsonl", [demo(i) for i in range(16)])
    write(folder / "sft" / "sft_val.jsonl", [demo(i) for i in range(16, 20)])
    write(folder / "rl" / "rl.jsonl", [{"id": f"q{i}", "task": "doors", "messages": ask(i), "behind": "x"} for i in range(8)])
    common = ["--backend", "tinker", "--base-url", url, "--task", "doors", "--keep-last", 0]
    script(python, "train_sft", folder, *common, "--run-name", "sft", "--base-model", model, "--data-dir", folder / "sft", "--rank", 8,
           "--batch-size", 8, "--epochs", 10, "--learning-rate", 5e-3, "--save-every", 10)  # fmt: skip
    losses = [row["val/loss"] for row in steps_of(folder, "sft") if row.get("val/loss") is not None]
    gap = resumed(python, "train_sft", folder, "sft", 10, "train/loss")
    text = f"validation loss {losses[0]:.3f} -> {losses[-1]:.3f} in 20 steps; resumed at step 10: largest difference {gap:.1e}"
    line("SFT", losses[-1] < 0.5 * losses[0] and gap < EXACT, text)
    script(python, "train_rl", folder, *common, "--run-name", "rl", "--state-path", "runs/sft", "--data", folder / "rl" / "rl.jsonl", "--batch-size", 2,
           "--group-size", 8, "--max-steps", 12, "--epochs", 4, "--max-tokens", 10, "--max-turns", 1, "--learning-rate", 3e-3, "--save-every", 6)  # fmt: skip
    rewards = [row["reward/mean"] for row in steps_of(folder, "rl")]
    gap = resumed(python, "train_rl", folder, "rl", 6, "reward/mean")
    first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    text = f"mean reward {first:.3f} in the first three steps of 16 trajectories, {last:.3f} in the last three of 12; resumed at step 6: largest difference {gap:.1e}"
    line("RL", last > first + 0.1 and gap < EXACT, text)


def compare(there: dict, here: dict, line):
    """What SkyRL gave (`inside`) beside what the local backend and the stub gave, for the same weights."""
    import doors

    sampled = there["logprobs"]["sampled"]
    others = {"its prompt log-probabilities": there["logprobs"]["prompt"], "its trainer": there["logprobs"]["trainer"], "backends/local.py": here["logprobs"]}
    gaps = {name: max(abs(a - b) for a, b in zip(sampled, other, strict=True)) for name, other in others.items()}
    line("logprobs", max(gaps.values()) < SAME, f"of {len(sampled)} sampled tokens, SkyRL's sampler against " + ", ".join(f"{name}: {gap:.1e}" for name, gap in gaps.items()))
    line("pictures", all("drops pictures" in text for text in there["pictures"]), there["pictures"][0])
    wanted = {word: reason for word, (_, _, reason) in doors.SCRIPT.items()}
    same = here["local"] == here["stub"] == there["script"]
    ends = {t["id"]: t["finish_reason"] for t in here["local"]}
    line("script", same and ends == wanted, f"local, stub and SkyRL play alike: {same}; " + ", ".join(f"{word} {reason}" for word, reason in ends.items()))
    if not same:
        for name, played in (("local", here["local"]), ("stub", here["stub"]), ("SkyRL", there["script"])):
            print(name, json.dumps(played))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, default=ROOT / "build" / "skyrl", help="the server's environment, made if it isn't there (default: build/skyrl)")
    parser.add_argument("--part", choices=["all", "training", "engines"], default="all", help="SFT and RL, or the other three lines (default: %(default)s)")
    args = parser.parse_args()
    for module in ("torch", "pytrio"):
        if not importlib.util.find_spec(module):
            raise SystemExit(f"{module} is missing here: uv sync --extra remote, then uv run python tests/integration/skyrl.py")
    python, begun, table = make_env(args.env.absolute()), time.monotonic(), []

    def line(name, good, text):
        table.append(bool(good))
        print(f"{'ok  ' if good else 'FAIL'} {name:<10} {text}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="skyrl-"))
    model, result = folder / "model", folder / "inside.json"
    asyncio.run(learn_by_heart(model))
    process, url = start_server(python, folder, model)
    try:
        if args.part != "training":
            command = [python, __file__, "--inside", model, url, result]
            subprocess.run(list(map(str, command)), check=True, env={**os.environ, **KEYS})
        if args.part != "engines":
            train(python, folder, model, url, line)
    finally:
        stop(process)
    if args.part != "training":
        there = json.loads(result.read_text())
        compare(there, asyncio.run(local_and_stub(str(model), folder, there["logprobs"]["ids"], len(there["logprobs"]["sampled"]))), line)
    print(f"{sum(table)} of {len(table)} good in {time.monotonic() - begun:.0f} s; logs in {folder}", flush=True)
    return 0 if all(table) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--script"]:  # within the server's environment
        module = types.ModuleType("tasks.doors")
        exec((Path(__file__).parent / "doors.py").read_text(), module.__dict__)
        sys.modules["tasks.doors"] = module
        sys.argv = [f"{sys.argv[2]}.py", *sys.argv[3:]]
        runpy.run_path(str(ROOT / sys.argv[0]), run_name="__main__")
    elif sys.argv[1:2] == ["--inside"]:
        Path(sys.argv[4]).write_text(json.dumps(asyncio.run(inside(*sys.argv[2:4]))))
    else:
        raise SystemExit(main())
