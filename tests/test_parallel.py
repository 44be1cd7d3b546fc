"""Two ranks on the CPU (gloo): their update is that of one process; a rank that dies ends the other."""

import asyncio
import multiprocessing
import os
import socket
import time

import pytest
import torch
from test_decode import datum
from test_engine import folders  # noqa: F401 (a fixture)

from backends import AdamParams, parallel
from backends.local import create_trainer

torch.set_num_threads(1)


async def train(folder, out, lora, dying):
    rank, size = parallel.world()
    trainer = await create_trainer(folder, lora, device="cpu")
    for step in range(3):
        mine = [datum(10 * step + i) for i in range(3 if step != 1 else 1)][rank::size]  # the second step: nothing for rank 1
        tokens = sum(int((one.weights != 0).sum()) for one in mine)
        tokens = await trainer.engine.run(lambda tokens=tokens: parallel.total(tokens))
        for one in mine:
            one.weights = (one.weights / tokens).astype("float32")
        if mine:
            await trainer.forward_backward(mine)
        if dying and rank == 1 and step == 1:
            os._exit(3)
        # eps: else Adam makes whole steps of gradients that are nothing but rounding
        await trainer.optim_step(AdamParams(1e-2, eps=1e-3, grad_clip_norm=0.5))
    torch.save({name: p.detach() for name, p in trainer.model.net.named_parameters()}, f"{out}.{rank}")
    trainer.close()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def rank_main(rank, size, port, function, arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    function(rank, *arguments)


def spawn(function, size, *arguments):
    """`function(rank, *arguments)` in `size` processes. Forked: importing torch again takes longer than the test."""
    context, port = multiprocessing.get_context("fork"), free_port()
    made = [context.Process(target=rank_main, args=(rank, size, port, function, arguments)) for rank in range(size)]
    for process in made:
        process.start()
    return made


def start(folder, out, size, lora=0, dying=False):
    return spawn(lambda _: asyncio.run(train(folder, out, lora, dying)), size)


def wait(processes, seconds=60):
    for process in processes:
        process.join(seconds)
        process.kill() if process.exitcode is None else None
    return [process.exitcode for process in processes]


@pytest.mark.parametrize("lora", [0, 4])
def test_two_ranks_are_one_process(folders, tmp_path, lora):  # noqa: F811
    """Three steps with uneven parts (2 rows and 1; 1 row and none), a token mean over both ranks, clipped gradients."""
    processes = start(folders("qwen3"), tmp_path / "one", 1, lora) + start(folders("qwen3"), tmp_path / "two", 2, lora)
    assert wait(processes) == [0, 0, 0]
    expected, *found = (torch.load(tmp_path / name) for name in ("one.0", "two.0", "two.1"))
    for weights in found:
        assert weights.keys() == expected.keys()
        assert max((weights[name] - expected[name]).abs().max().item() for name in expected) < 1e-5
    assert all(torch.equal(found[0][name], found[1][name]) for name in expected)  # without ever being sent


def test_a_rank_that_dies_ends_the_other(folders, tmp_path):  # noqa: F811
    living, dead = start(folders("qwen3"), tmp_path / "two", 2, dying=True)
    assert wait([dead]) == [3]
    begun = time.monotonic()
    assert wait([living]) == [1] and time.monotonic() - begun < 30  # an error, long before the time limit
