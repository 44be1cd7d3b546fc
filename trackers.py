"""Mirrors of metrics.jsonl: SwanLab, Weights & Biases, Trackio, TensorBoard. None is needed, and none can end a run.

The packages are imported only when asked for. Without an account: SwanLab with --swanlab-mode local, wandb offline, Trackio and TensorBoard
as they are.
"""

import os
import re

NAMES = ("none", "swanlab", "wandb", "trackio", "tensorboard")
LOG, FINISH = 1, 2  # places in what `start` returns


def brief(error):
    """An exception as one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def start(run, args):
    """(name, log(metrics, step), finish()) of the tracker that the flags ask for, or None. One that is missing or fails says one line."""
    mode = getattr(args, "swanlab_mode", None)
    kind = getattr(args, "tracker", None) or ("swanlab" if mode in ("online", "local") else "none")
    if kind == "none" or (kind == "swanlab" and mode == "disabled"):
        return None
    tracker_id = re.sub(r"\W", "-", f"{run.name}-{run.config['started']}")[:64]  # the same when the run is resumed
    common = {"project": getattr(args, "project_name", "toolgrad"), "name": run.name, "config": run.config["flags"]}
    try:
        if kind == "swanlab":
            import swanlab

            os.environ.setdefault("SWANLAB_INTERACTIVE", "false")  # without an account: an error here, not a question that blocks the run
            swanlab.init(**common, mode=mode or "online", log_dir=str(run.folder / "swanlog"))
            return kind, lambda values, step: swanlab.log(values, step=step), swanlab.finish
        if kind == "wandb":
            import wandb

            mode = os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
            mirror = wandb.init(**common, mode=mode, dir=str(run.folder), id=tracker_id, resume="allow")
            return kind, lambda values, step: mirror.log(values, step=step), mirror.finish
        if kind == "trackio":
            import trackio

            trackio.init(**common, resume="allow")
            return kind, lambda values, step: trackio.log(values, step=step), trackio.finish
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(run.folder / "tensorboard", purge_step=run.restored["step"] + 1 if run.restored else None)
        return kind, lambda values, step: [writer.add_scalar(key, value, step) for key, value in values.items()], writer.close
    except (Exception, SystemExit) as error:
        advice = " (`swanlab login` first, or --swanlab-mode local)" if kind == "swanlab" and "API key" in str(error) else ""
        print(f"--tracker {kind} is off: {brief(error)}{advice}; metrics.jsonl has everything", flush=True)
        return None


def send(run, action, *arguments):
    """Call part LOG or FINISH of the run's tracker. One that fails says so once and is dropped."""
    try:
        return run.tracker and run.tracker[action](*arguments)
    except Exception as error:
        print(f"tracker {run.tracker[0]} stopped ({brief(error)}); the run goes on", flush=True)
        run.tracker = None
