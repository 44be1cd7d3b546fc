"""Run experiments beside one another on one GPU, within a time: what all.sh does, and open to any choice of scripts.

    MODEL=models/qwen python experiments/fund/side_by_side.py --jobs 5 --budget 540 01 03 05        # called again: what was left
    MODEL=models/qwen python experiments/fund/side_by_side.py --pack results                        # what is worth keeping, without weights

Decoding with a small model waits for kernel launches and leaves most of a GPU idle, so a handful of runs share it at little cost. Each script
says its commands (DRY=1); what several of them need is run once, and whatever is ready starts in the order of the scripts. Near the end nothing
is started that can't be finished, by the time that the last three of its stage took; a training run that is still under way is asked to save, and
the next call resumes it. Logs: runs/side-by-side/NAME.log.

Commands run in forks of a process that has loaded torch and transformers and has not touched the GPU: where imports take 20 seconds, sixty
commands would pay 20 minutes for them. Should a fork not be able to use the GPU, which is tried first, each gets an interpreter of its own.
"""

import argparse
import json
import os
import runpy
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[2]
HERE, LOGS = Path("experiments/fund"), Path("runs/side-by-side")
MAKES = {"prepare_data.py": "--output", "tiny_model.py": "--out", "train_sft.py": "--run-name", "train_rl.py": "--run-name", "eval.py": "--output"}
NEEDS = ("--rows", "--data-dir", "--data", "--base-model", "--state-path", "--model-path")
PART = 15 * 2**20  # bytes of one file of --pack


@dataclass
class Job:
    """A command and the folder that it fills; `needs`: paths that it reads, some of them inside what other jobs make."""

    argv: list
    makes: str
    needs: list

    @property
    def stage(self):
        return Path(self.argv[0]).name

    @property
    def name(self):
        return self.makes.replace("/", "-")


# ---------------------------------------------------------------- what there is to do


def find_script(name):
    found = sorted((ROOT / HERE).glob(f"{name}*.sh"))
    if len(found) != 1 or not name[:1].isdigit():
        raise SystemExit(f"{name}: no experiment, or several, in {HERE}: give its number, as in 03")
    return found[0]


def read_jobs(scripts):
    """The commands of the scripts in their order, each once."""
    jobs = {}
    for script in scripts:
        done = subprocess.run(["bash", script], env={**os.environ, "DRY": "1", "RECORD": ""}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{script} can't say its commands: {done.stderr.strip().splitlines()[-1]}")
        for line in done.stdout.splitlines():
            argv = line.split()
            if (key := MAKES.get(Path(argv[0]).name)) is None:
                continue  # what sums up comes at the end
            values = {flag: argv[argv.index(flag) + 1] for flag in (key, *NEEDS) if flag in argv}
            makes = f"runs/{values[key]}" if key == "--run-name" else values[key]
            if makes in jobs and jobs[makes].argv != argv:
                raise SystemExit(f"{script} makes {makes} in another way than a script before it: name the arm differently")
            jobs.setdefault(makes, Job(argv, makes, [values[flag] for flag in NEEDS if flag in values]))
    return list(jobs.values())


def is_done(job):
    folder = Path(job.makes)
    if job.stage == "eval.py":  # of weights that are not newer than it
        trained = [Path(need) / "finished" for need in job.needs if need.startswith("runs/")]
        made = folder / "metrics.json"
        return made.exists() and all(path.exists() and path.stat().st_mtime <= made.stat().st_mtime for path in trained)
    return (folder / {"prepare_data.py": "fund/rl/bench_stats.json", "tiny_model.py": "config.json"}.get(job.stage, "finished")).exists()


def command_of(job):
    """A training run that was begun goes on."""
    begun = job.stage.startswith("train") and (Path(job.makes) / "config.json").exists()
    return [job.argv[0], "--resume", job.makes] if begun else job.argv


def told(job):
    """What a finished job has to say, for the line that tells of its end."""
    folder = Path(job.makes)
    if job.stage == "eval.py":
        report = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        return ", ".join(f"{name} {100 * report[key]:.1f} %" for name, key in (("tool", "accuracy"), ("form", "format_rate")) if report.get(key) is not None)
    if job.stage == "train_rl.py":
        right = [json.loads(line).get("reward/correct", 0) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n") if line]
        return f"right in its first ten steps {100 * mean(right[:10]):.1f} %, in its last ten {100 * mean(right[-10:]):.1f} %" if right else ""
    return ""


# ---------------------------------------------------------------- processes


def load_libraries():
    """What every command imports, without touching the GPU: a driver that was started before the fork is of no use after it."""
    import peft  # noqa: F401
    import torch  # noqa: F401
    import tqdm  # noqa: F401
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    import backends.local  # noqa: F401
    import protocol  # noqa: F401
    import rollout  # noqa: F401


def fork(function, log):
    """The process id of a child that runs function(), its output in a file."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the parent, which asks each child once: a second time would end it without saving
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path, mode in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
            os.dup2(os.open(path, mode, 0o644), number)
        os.dup2(1, 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        function()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_here(argv):
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


def try_gpu():
    import torch

    if torch.cuda.is_available():
        torch.ones(1, device="cuda").sum().item()


def start(job, forks):
    argv, log = command_of(job), LOGS / f"{job.name}.log"
    if forks:
        return fork(lambda: run_here(argv), log)
    return fork(lambda: os.execv(sys.executable, [sys.executable, *argv]), log)


def wait(pids, seconds):
    """{pid: exit code} of those that have ended, after this many seconds at most."""
    until = time.monotonic() + seconds
    while True:
        ended = {pid: os.waitstatus_to_exitcode(status) for pid, status in (os.waitpid(pid, os.WNOHANG) for pid in pids) if pid}
        if ended or time.monotonic() > until:
            return ended
        time.sleep(0.1)


def stop(pids, patience=30):
    """Asks to save and end; then ends."""
    for sent, seconds in ((signal.SIGINT, patience), (signal.SIGKILL, 5)):
        for pid in pids:
            os.kill(pid, sent)
        until = time.monotonic() + seconds
        while pids and time.monotonic() < until:
            ended = wait(pids, 0.2)  # each can be waited for once
            pids = [pid for pid in pids if pid not in ended]


def run_all(jobs, count, budget, begun):
    """Up to `count` of the jobs at a time. Returns the number that failed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    load_libraries()
    probe = fork(try_gpu, LOGS / "probe.log")
    forks = wait([probe], 60).get(probe) == 0
    print(f"{len(jobs)} commands; loaded after {time.monotonic() - begun:.0f} s" + ("" if forks else "; forks can't use the GPU: an interpreter each"), flush=True)
    pending, running, took, failed = [job for job in jobs if not is_done(job)], {}, {}, []
    made = {job.makes for job in jobs}
    print(f"{len(jobs) - len(pending)} are finished", flush=True)

    def ready(job, left):
        waits = [m for m in made if any(need == m or need.startswith(m + "/") for need in job.needs)]
        if set(waits) & {other.makes for other in [*pending, *(job for job, _ in running.values()), *failed]}:
            return False
        stages = [job.stage, "eval.py"] if job.stage == "train_rl.py" else [job.stage]  # a run without its evaluation says nothing
        return sum(mean(took[stage][-3:]) for stage in stages if stage in took) < left

    def settle(ended):
        for pid, code in ended.items():
            job, started = running.pop(pid)
            seconds = time.monotonic() - started
            if code or not is_done(job):
                failed.append(job)
                print(f"FAILED ({code}) after {seconds:.0f} s: {job.makes}; see {LOGS / job.name}.log", flush=True)
                continue
            took.setdefault(job.stage, []).append(seconds)
            print(f"{time.monotonic() - begun:4.0f} s  {job.makes} ({seconds:.0f} s)  {told(job)}".rstrip(), flush=True)

    def turn():
        """One look around. False: nothing more can be begun or waited for."""
        left = budget - (time.monotonic() - begun) if budget else float("inf")
        if left <= 0:
            return False
        for job in [*pending]:
            if len(running) < count and ready(job, left):
                pending.remove(job)
                running[start(job, forks)] = (job, time.monotonic())
        if running:
            settle(wait(list(running), 1))
        return bool(running or any(ready(job, left) for job in pending))  # what is left may wait for what failed, or take too long

    try:
        while turn():
            pass
    except KeyboardInterrupt:
        print("stopping", flush=True)
    cut = [job for job, _ in running.values()]
    stop(list(running))
    for job in cut:
        print(f"cut off, the next call goes on: {job.makes}", flush=True)
    print(f"{time.monotonic() - begun:.0f} s; left for the next call: {', '.join(job.makes for job in pending) or 'nothing'}", flush=True)
    return len(failed)


# ---------------------------------------------------------------- results


def trimmed(path, steps):
    """A file of trajectories without log-probabilities and contexts, which only training needs; of a run, one step in ten."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        record = json.loads(line) if line else {}
        if record and (not steps or record["step"] % 10 in (0, 1)):
            record.pop("sequence", None)
            for turn in record["turns"]:
                turn["logprobs"] = []
            yield json.dumps(record, ensure_ascii=True)


def pack(jobs, folder):
    """FOLDER/results.tar.gz.00, .01 ...: join them with cat, unpack in the project's folder, and RECORD=1 fills in the scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "results.tar.gz"
    for old in folder.glob("results.tar.gz*"):
        old.unlink()
    with tarfile.open(whole, "w:gz") as tar:
        for path in sorted(path for job in jobs for path in kept_files(job)):
            if path.name == "trajectories.jsonl":
                small = folder / "trajectories.part"
                small.write_text("".join(line + "\n" for line in trimmed(path, path.parts[0] == "runs")), encoding="utf-8")
                os.utime(small, (path.stat().st_atime, path.stat().st_mtime))
                tar.add(small, str(path))
                small.unlink()
            else:
                tar.add(path, str(path))
        for path in sorted(LOGS.glob("*.log")):
            tar.add(path, str(path))
    data = whole.read_bytes()
    whole.unlink()
    for number, at in enumerate(range(0, len(data), PART)):
        (folder / f"results.tar.gz.{number:02d}").write_bytes(data[at : at + PART])
    print(f"{folder}/results.tar.gz.*: {len(data) / 2**20:.1f} MiB")


def kept_files(job):
    folder = Path(job.makes)
    if job.stage == "prepare_data.py":
        names = ("fund/rl/bench_dev.jsonl", "fund/rl/bench_stats.json", "fund/sft/sft_stats.json")
    else:
        names = () if job.stage == "tiny_model.py" else ("config.json", "metrics.json", "metrics.jsonl", "trajectories.jsonl", "finished")
    return [folder / name for name in names if (folder / name).exists()]


def main(argv=None):
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("experiments", nargs="*", help="numbers, in order of importance (default: all, by number)")
    parser.add_argument("--jobs", type=int, default=5, help="commands at a time (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="0 = as long as it takes (default: 0)")
    parser.add_argument("--start-only", action="store_true", help="what RL begins with: data, SFT, and the evaluations of it")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="run nothing: pack the results of these experiments")
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error("--jobs: at least 1")
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    names = args.experiments or [path.name[:2] for path in sorted(HERE.glob("[0-9]*.sh"))]
    jobs = read_jobs([find_script(name) for name in names])
    if args.start_only:
        trained = {job.makes for job in jobs if job.stage == "train_rl.py"}
        jobs = [job for job in jobs if not trained & {job.makes, *job.needs}]
    if args.pack:
        pack(jobs, args.pack)
        return 0
    # Each may plan for its part of the memory alone: all would find it free at their start
    os.environ.setdefault("TOOLGRAD_GPU_SHARE", f"{0.9 / args.jobs:.3f}")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # so that asking whether there is a GPU doesn't start its driver
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the children are asked to save
    return int(run_all(jobs, args.jobs, args.budget, begun) > 0)


if __name__ == "__main__":
    sys.exit(main())
