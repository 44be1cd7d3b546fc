"""FSDP2 with two ranks (gloo, CPU): the scripts give the run of one process, and its checkpoints load on one and on two."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from test_decode import datum
from test_engine import folders, shown  # noqa: F401 (a fixture)
from test_parallel import spawn, wait
from test_ranks import RL, SFT, at, go, lines, place, same, weights  # noqa: F401 (fixtures)

import train_rl
import train_sft
from backends import AdamParams, parallel
from backends.local import create_trainer, load_trainer
from protocol import Datum

torch.set_num_threads(1)


def test_sft_split_over_two_ranks_is_that_of_one():
    for name, size, extra in (("whole", 1, []), ("split", 2, ["--fsdp", "--recompute"])):
        assert go(train_sft, size, *SFT, "--run-name", name, "--epochs", 1, "--max-seq-len", 90, *extra) == [0] * size
    same("whole", "split", 4)
    shutil.copytree("runs/split", "runs/split-whole")
    assert go(train_sft, 1, "--resume", "runs/whole", "--epochs", 2) == [0]
    assert go(train_sft, 2, "--resume", "runs/split", "--epochs", 2) == [0, 0]
    assert go(train_sft, 1, "--resume", "runs/split-whole", "--epochs", 2, "--no-fsdp") == [0]
    same("whole", "split", 8)
    same("whole", "split-whole", 8)


def test_rl_split_over_two_ranks_is_that_of_one():
    """The sampler's copy follows the weights; the anchor is split, too; in the fourth step the second rank has no question."""
    for name, size, extra in (("rl-whole", 1, []), ("rl-split", 2, ["--fsdp"])):
        assert go(train_rl, size, *RL, "--run-name", name, "--epochs", 2, "--max-steps", 5, "--kl-coef", 0.1, *extra) == [0] * size
    same("rl-whole", "rl-split", 5)
    assert [line["sampler_version"] for line in lines("rl-split").values()] == [0, 1, 2, 3, 4]


async def train(folder, out, dtype):
    """Three steps of a vision model, the pictures all on the first rank; in the second step the other rank has nothing."""
    rank, size = parallel.world()
    trainer = await create_trainer(folder, 0, device="cpu", dtype=dtype, train_vision=False, **({"fsdp": True} if size > 1 else {}))
    losses = []
    for step in range(3):
        data = [datum(10 * step + i) for i in range(3 if step != 1 else 1)]
        pictures = shown(trainer.model, step)
        count, zeros = sum(map(len, pictures)), np.zeros
        first = data[0]
        data[0] = Datum([*pictures, *first.chunks], *(np.concatenate([zeros(count, array.dtype), array]) for array in (first.targets, first.weights)), None, None)
        tokens = sum(int((one.weights != 0).sum()) for one in data)
        for one in data:
            one.weights = (one.weights / tokens).astype("float32")
        output = await trainer.forward_backward(data[rank::size])
        stepped = await trainer.optim_step(AdamParams(1e-2, eps=1e-3, grad_clip_norm=0.5))
        losses.append((sum(await parallel.gather(output.metrics["loss_sum"])), stepped["grad_norm"]))
    await trainer.save_state(out)
    torch.save(losses, f"{out}.losses.{rank}")
    trainer.close()
    parallel.leave()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_vision_model_with_pictures_on_one_rank_only(folders, tmp_path, dtype):  # noqa: F811
    for name, size in (("one", 1), ("two", 2)):
        assert wait(spawn(lambda _, name=name: asyncio.run(train(folders("qwen3_vl"), tmp_path / name, dtype)), size)) == [0] * size
    expected, found = (torch.load(tmp_path / f"{name}.losses.0") for name in ("one", "two"))
    assert np.array(found) == pytest.approx(np.array(expected), rel=1e-4 if dtype == "float32" else 2e-2)
    one, two = (torch.load(tmp_path / name / "optimizer.pt", weights_only=True) for name in ("one", "two"))
    assert [None if saved is None else (saved.dtype, saved.shape) for saved in one["masters"]] == [None if saved is None else (saved.dtype, saved.shape) for saved in two["masters"]]
    assert one["optimizer"]["state"].keys() == two["optimizer"]["state"].keys() and two["version"] == 3
    trainer = asyncio.run(load_trainer(tmp_path / "two", device="cpu", dtype=dtype))  # whole, in one process
    difference = [(a - b).abs().max().item() for a, b in zip(trainer.masters, two["masters"]) if b is not None]
    assert trainer.model.version == 3 and (dtype == "float32" or difference and max(difference) == 0)
    trainer.close()


@pytest.mark.parametrize("flags, said", [(["--rank", 4], "--fsdp: a LoRA's base is not split"), ([], "start it with torchrun")])
def test_what_fsdp_cannot_do_is_said(flags, said):
    assert go(train_sft, 1, *SFT, "--run-name", "refused", "--fsdp", *flags) == [1]
    assert any(said in file.read_text() for file in Path(".").glob("log.*"))
