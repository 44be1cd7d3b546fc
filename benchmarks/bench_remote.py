"""Do requests to a service overlap? Groups are sampled through the real PyTRIO SDK from a loopback service that takes a set time to answer.

    python benchmarks/bench_remote.py                                   # a table and a JSON line; about three minutes; needs the extra `remote`
    python benchmarks/bench_remote.py --latency 0.5 --concurrency 16

Overlap factor = (requests x set latency) / wall time, with the wall time of a whole round as train_rl.py plays it: prompts encoded, three turns a
trajectory, a picture drawn after each of the first two, everything that the SDK does. A service that is never left waiting gives the factor
--concurrency; 0.8 of it is asked for. The service is a process of its own on the same machine. At most --questions requests open a round, and
they are answered before anything else can be asked: with few questions that alone keeps the factor down.
Training: (events x latency) / wall time of steps as the trainers send them, forward_backward and optim_step together. The service works on
the events of a run one after the other, so 1 is the most there is.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
MODEL = str(ROOT / "models" / "tiny-vlm")


def picture_task():
    """Three turns: after each of the first two a spectrum is drawn, in the tool's thread."""
    from tasks.spec_o3_synthetic import informative_window, make_spectrum
    from tools import Observation, render_spectrum

    rng = np.random.default_rng(0)
    spectra = [make_spectrum("wd", True, rng) for _ in range(8)]
    windows = [informative_window("wd", rng)[0] for _ in spectra]

    def start(row, folder):
        turn = 0

        def step(action):
            nonlocal turn
            turn += 1
            if turn == 3:
                return Observation(done=True)
            spectrum = spectra[(row["number"] + turn) % 8]
            return Observation("redrawn", [render_spectrum(spectrum["wavelength"], spectrum["flux"], *windows[(row["number"] + turn) % 8], size=(224, 96))])

        return SimpleNamespace(messages=row["messages"], tools=None, step=step, step_answers=True)

    return SimpleNamespace(start=start, reward=lambda row, trajectory: (0.5, {}), ANSWER=re.compile(r"(go on)"))


def serve(folder, latency: float, answer: list, requests, address):
    """A process: the stub of tests/, which takes `latency` seconds for an event or a request and computes nothing.

    `answer`: the tokens it samples; `requests`: a shared number, what was answered so far; `address`: a pipe that is told the URL.
    """
    import stub_pytrio

    class Slow(stub_pytrio.Stub):
        def control(self, method, path, query, body):
            if path.endswith("sampling-runs") and method == "POST":
                return 200, {"sampling_run_cuid": "sampling", "sampler": self.limits, **self._binding()}
            return super().control(method, path, query, body)

        async def sample(self, name, body):
            with requests.get_lock():
                requests.value += 1
            await asyncio.sleep(latency)
            row = {"tokens": answer, "logprobs": [-0.5] * len(answer), "stop_reason": "stop"}
            return 200, {"request_id": body["request_id"], "sequences": [row] * body["num_samples"], "prompt_logprobs": None}

    async def execute(run, kind, payload):
        if kind in ("forward_backward", "optimize_step"):
            with requests.get_lock():
                requests.value += 1
            time.sleep(latency)
        if kind != "forward_backward":
            return {"metrics": {}} if kind == "optimize_step" else {}
        outputs = [{"logprobs": stub_pytrio.tensor(np.full(len(datum["target_ids"]), -0.5))} for datum in payload["data"]]
        return {"loss_fn_outputs": outputs, "metrics": {"loss_sum": 0.0, "loss_mean": 0.0, "token_count": 1}}

    stub_pytrio.Run._execute = execute
    with Slow(folder, MODEL, {"max_seq_len": 4096, "max_tokens_per_request": 40000}) as stub:
        address.send(stub.url)
        address.poll(None)  # until the other end is closed


@contextmanager
def slow_service(folder, latency: float, answer: list):
    """(URL, shared number of requests) of `serve` in a process of its own, so that it takes nothing from the client but CPU time."""
    context = multiprocessing.get_context("spawn")
    requests, (here, there) = context.Value("i", 0), context.Pipe()
    process = context.Process(target=serve, args=(folder, latency, answer, requests, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here.recv(), requests
    finally:
        here.close()
        process.join()


async def sampling(requests, chat, questions: int, group: int) -> tuple:
    """(requests, wall seconds, CPU seconds of this process, trajectories that failed) of one round."""
    from backends import pytrio as adapter
    from protocol import SamplingParams
    from rollout import rollout_group

    sampler, task, tools = await adapter.create_sampler(MODEL), picture_task(), ThreadPoolExecutor(4)
    rows = [{"id": str(i), "number": i, "messages": [{"role": "user", "content": f"question {i}"}]} for i in range(questions)]
    params = SamplingParams(16)
    play = lambda row: rollout_group(task, row, chat, sampler, params, group_size=group, max_turns=3, max_seq_len=2048, executor=tools)
    await play(rows[0])  # imports, fonts, connections
    before, begun, used = requests.value, time.monotonic(), time.process_time()
    groups = await asyncio.gather(*map(play, rows))
    seconds = time.monotonic() - begun
    tools.shutdown()
    return requests.value - before, seconds, time.process_time() - used, sum(t.finish_reason != "answer" for group in groups for t in group)


async def training(requests, steps: int) -> tuple:
    """(events, wall seconds) of steps of eight sequences, two events, and an optimizer step each."""
    from backends import AdamParams
    from backends import pytrio as adapter
    from protocol import Datum, TextChunk

    trainer = await adapter.create_trainer(MODEL, rank=8)
    data = [Datum([TextChunk(tuple(range(100, 600)))], np.arange(101, 601), np.ones(500, dtype=np.float32)) for _ in range(8)]
    for i in range(steps + 1):  # the first opens the run
        if i == 1:
            before, begun = requests.value, time.monotonic()
        forward = asyncio.ensure_future(trainer.forward_backward(data, "cross_entropy"))
        update = asyncio.ensure_future(trainer.optim_step(AdamParams(1e-4)))
        await forward, await update
    return requests.value - before, time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds an answer takes (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[8, 16, 32], help="(default: 8 16 32)")
    parser.add_argument("--questions", type=int, default=32, help="a round (default: %(default)s)")
    parser.add_argument("--group-size", type=int, default=8, help="(default: %(default)s)")
    args = parser.parse_args()
    import pytrio

    from backends import remote
    from protocol import encode_text, load_chat

    chat = load_chat(MODEL)
    answer = [*encode_text(chat, "</think>\n\ngo on" if chat.open_think else "go on").tokens, chat.end_token]
    results = []
    with tempfile.TemporaryDirectory() as folder, slow_service(folder, args.latency, answer) as (url, counter):
        pytrio.configure(base_url=url, api_key="any", home=folder, log_level="ERROR")
        print(f"{'concurrency':>11} {'requests':>9} {'wall s':>8} {'factor':>8} {'of the most':>12} {'client CPU ms a request':>24}")
        for concurrency in args.concurrency:
            remote.CONCURRENCY = concurrency
            requests, seconds, cpu, failed = asyncio.run(sampling(counter, chat, args.questions, args.group_size))
            if failed:
                raise SystemExit(f"{failed} trajectories did not end as written: nothing was measured")
            factor = requests * args.latency / seconds
            results.append({"concurrency": concurrency, "requests": requests, "seconds": round(seconds, 2), "factor": round(factor, 2), "cpu_ms": round(1000 * cpu / requests, 1)})
            print(f"{concurrency:>11} {requests:>9} {seconds:>8.1f} {factor:>8.2f} {factor / concurrency:>11.0%} {1000 * cpu / requests:>24.1f}", flush=True)
        events, seconds = asyncio.run(training(counter, 5))
        busy = events * args.latency / seconds
        print(f"{'training':>11} {events:>9} {seconds:>8.1f} {busy:>8.2f} {busy:>11.0%}")
    print(json.dumps({"benchmark": "remote", "latency": args.latency, "questions": args.questions, "group_size": args.group_size, "sampling": results, "training_busy": round(busy, 3)}))


if __name__ == "__main__":
    main()
