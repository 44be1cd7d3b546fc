"""Stage 1: raw data -> datasets/<task>/, the JSONL files, pictures and arrays that every later script reads.

    python prepare_data.py --smoke                                             # synthetic spectra, seconds, no download
    python prepare_data.py all --source hub                                    # the public data sets of Spec-o3 (seed 001, section 8.2)
    python prepare_data.py bench --source files --spectra DIR --labels labels.csv    # your own spectra, graded
    python prepare_data.py bench --source files --spectra DIR --target wd            # your own spectra, vetted: no labels needed

`sft` writes whole trajectories for the cold start (<output>/<task>/sft/), `bench` writes the questions for RL, development and test
(<output>/<task>/rl/), `all` does both in that order. `bench` comes second because development objects must be new to the cold start.

A stage is written into a hidden folder and swapped in when it is complete, so an error, a full disk or Ctrl-C leaves what was there before.
Paths inside the JSONL are relative to it: the folder can be moved, mounted elsewhere or sent to another machine.
Downloads land in the Hugging Face cache (HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE are respected) and are reused.
"""

import argparse
import errno
import json
import os
import signal
import sys
from pathlib import Path

import runs

ROOT = Path(__file__).resolve().parent
SMOKE_SIZES = {"sft_size": 40, "train_size": 40, "dev_size": 20, "test_size": 20}
OF_SPECTRA = ("--source", "--picture-size", "--download-workers", "--sft-source", "--bench-source", "--base-model", "--model-revision", "--spectra",
              "--labels", "--target", "--skip-bad", "--template-noise", "--template-count")  # flags of tasks that have SOURCES
SYNTHETIC_PICTURE = [224, 96]  # small enough for a model of a few million parameters on a CPU


def picture_size(text):
    """'224x96' -> [224, 96]; 'auto' -> None, which means the size by the width of the window."""
    if text == "auto":
        return None
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and 32 <= int(part) <= 4096 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not WIDTHxHEIGHT with both from 32 to 4096 pixels, or auto")
    return [int(part) for part in parts]


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    whole, real = lambda low: runs.number(int, low), lambda low, high=None: runs.number(float, low, high)
    parser.add_argument("stage", nargs="?", default="all", choices=("sft", "bench", "all"), help="what to make (default: all)")
    parser.add_argument("--task", default="spec_o3", help="a module of tasks/ (default: spec_o3)")
    parser.add_argument(
        "--source", default="synthetic", choices=("hub", "synthetic", "files"), help="where the raw data come from (default: synthetic)"
    )
    # Output and splits
    parser.add_argument("--output", type=Path, default=Path("datasets"), help="root of the data sets (default: datasets)")
    parser.add_argument("--seed", type=whole(0), default=42, help="decides splits and everything drawn (default: 42)")
    parser.add_argument("--val-fraction", type=real(0, 1), default=0.1, help="share of the source objects held out, 0 to 1 (default: 0.1)")
    parser.add_argument("--picture-size", type=picture_size, default=False, metavar="WxH",
                        help="pixels of the pictures drawn here and by the zoom tool, or auto = by the width of the window "
                             "(default: 224x96 for synthetic, auto otherwise; the public first pictures keep their own size)")  # fmt: skip
    parser.add_argument(
        "--workers", type=whole(1), default=os.cpu_count() or 1, help="processes that convert and draw (default: one per core)"
    )
    parser.add_argument("--smoke", action="store_true", help="a few rows of everything, to try the pipeline")
    # --source hub
    parser.add_argument("--download-workers", type=whole(1), default=8, help="hub: files downloaded at once (default: 8)")
    parser.add_argument(
        "--sft-source", type=Path, metavar="DIR", help="hub: raw SFT folder that is already here (train_sharegpt.json and its images)"
    )
    parser.add_argument(
        "--bench-source",
        type=Path,
        metavar="DIR",
        help="hub: raw bench folder that is already here (data/train_*.parquet, data/test_*.parquet)",
    )
    parser.add_argument("--base-model", help="hub: also count tokens with this model's tokenizer and image processor (hub id or folder)")
    parser.add_argument("--model-revision", help="hub: revision of --base-model")
    # --source files
    parser.add_argument(
        "--spectra", type=Path, metavar="DIR", help="files: folder (or one file) of FITS, CSV or NPZ spectra, subfolders included"
    )
    parser.add_argument("--labels", type=Path, metavar="CSV", help="files: columns file or source_name, task, label [, redshift, split]")
    parser.add_argument(
        "--target", help="files: the question to ask (cv, cc, gm, ss, wd) when there are no labels, or no task column in them"
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="files: leave unreadable spectra out and count them, instead of stopping at the first"
    )
    parser.add_argument(
        "--template-noise", type=real(0.001), default=10.0, metavar="S/N", help="files: S/N per pixel given to star templates (default: 10)"
    )
    parser.add_argument("--template-count", type=whole(1), default=20, help="files: spectra made from each template class (default: 20)")
    # --source synthetic
    parser.add_argument("--sft-size", type=whole(2), default=2000, help="synthetic: demonstrations, validation included (default: 2000)")
    parser.add_argument("--train-size", type=whole(1), default=2000, help="synthetic: questions for RL (default: 2000)")
    parser.add_argument("--dev-size", type=whole(0), default=256, help="synthetic: development questions (default: 256)")
    parser.add_argument("--test-size", type=whole(0), default=512, help="synthetic: test questions (default: 512)")
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # the task decides which further flags there are
    first.add_argument("--task", default="spec_o3")
    name = first.parse_known_args(argv)[0].task
    source = ROOT / "tasks" / f"{name}.py"
    text, own = source.read_text(encoding="utf-8") if source.is_file() else "", set()
    if "\ndef flags(" in text:
        parser.conflict_handler = "resolve"  # a task may give a name its own meaning, as --labels of fund
        group = parser.add_argument_group(f"--task {name}")
        runs.load_module("tasks", name).flags(group)
        own = {option for action in group._group_actions for option in action.option_strings}
    args = parser.parse_args(argv)
    given = {token.split("=")[0] for token in (sys.argv[1:] if argv is None else argv)}
    spectra = "\nSOURCES = " in text  # of this task, or a copy of it
    for flag in () if spectra or not text else OF_SPECTRA:
        if flag in given - own and (flag != "--source" or args.source != "synthetic"):
            raise SystemExit(f"{flag}{f' {args.source}' if flag == '--source' else ''}: --task {name} has no use for it; leave it out")

    if args.smoke:
        for name, size in SMOKE_SIZES.items():
            if "--" + name.replace("_", "-") not in given:  # a size asked for by name wins over --smoke
                setattr(args, name, size)
    if args.picture_size is False:  # not given
        args.picture_size = SYNTHETIC_PICTURE if args.source == "synthetic" else None
    if args.source == "files" and args.spectra is None:
        parser.error("--source files needs --spectra DIR")
    owners = {"sft_source": "hub", "bench_source": "hub", "base_model": "hub", "spectra": "files", "labels": "files", "target": "files"}
    for flag, source in owners.items():
        if getattr(args, flag) is not None and args.source != source and spectra:
            parser.error(f"--{flag.replace('_', '-')} belongs to --source {source}, not to --source {args.source}")
    for flag in ("sft_source", "bench_source", "spectra", "labels"):
        path = getattr(args, flag)
        if flag == "labels" and isinstance(path, Path) and path.is_dir():
            parser.error(f"--labels {path} is a folder; a CSV file is expected")
        if isinstance(path, Path) and not path.exists():
            parser.error(f"--{flag.replace('_', '-')} {path} does not exist")
    return args


def main():
    args = parse_args()
    task = runs.load_module("tasks", args.task)
    if hasattr(task, "options"):
        task.options(args)  # the task's own checks of its flags
    print(json.dumps({name: value for name, value in vars(args).items() if value is not None}, default=str), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated: the stage at work was dropped, finished ones are kept"))
    stages = ("sft", "bench") if args.stage == "all" else (args.stage,)
    try:
        for stage in stages:
            prepare = getattr(task, f"prepare_{stage}", None)
            if prepare is None:
                sys.exit(f"tasks/{args.task}.py has no prepare_{stage}: leave the stage '{stage}' out")
            prepare(args)
    except KeyboardInterrupt:
        sys.exit("interrupted: the stage at work was dropped, finished ones are kept")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EEXIST):
            raise
        sys.exit(f"{error.filename or args.output}: {error.strerror}; nothing was replaced")


if __name__ == "__main__":
    main()
