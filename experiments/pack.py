"""The results of runs and evaluations as one archive without weights, small enough to send: for analysis on another machine.

    python experiments/pack.py outputs/results.tar.gz logs runs outputs          # unpack in the project's folder, then analysis.py as usual

Of trajectories.jsonl the ids and log-probabilities of tokens stay behind, and of each row all samples but the first --texts keep no text: what
analysis.py counts is all there. Weights, pictures and other archives stay behind.
"""

import argparse
import io
import json
import sys
import tarfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import read_jsonl

LEFT = (".safetensors", ".pt", ".bin", ".png", ".gz", ".html", ".done", ".rc")
TOKENS = ("tokens", "logprobs", "sequence")


def slim(path, texts):
    """The lines of a trajectories.jsonl without tokens, and with texts for the first `texts` samples of a row (of a step) only."""
    seen, lines = Counter(), []
    for record in read_jsonl(path, partial=True):
        key = (record["id"], record.get("step"))
        seen[key] += 1
        record["turns"] = [{key: value for key, value in turn.items() if key not in TOKENS} for turn in record.get("turns", [])] if seen[key] <= texts else []
        lines.append(json.dumps({key: value for key, value in record.items() if key not in TOKENS}, ensure_ascii=False))
    return ("\n".join(lines) + "\n").encode()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("archive", type=Path, help="the .tar.gz to write")
    parser.add_argument("folders", type=Path, nargs="+", help="what to look through; a folder that isn't there is passed over")
    parser.add_argument("--texts", type=int, default=2, help="samples of a row whose texts are kept (default: %(default)s)")
    args = parser.parse_args(argv)
    count = 0
    with tarfile.open(args.archive, "w:gz") as archive:
        for path in sorted(path for folder in args.folders for path in folder.rglob("*")):
            if not path.is_file() or path.suffix in LEFT or "checkpoints" in path.parts:
                continue
            data = slim(path, args.texts) if path.name == "trajectories.jsonl" else path.read_bytes()
            entry = tarfile.TarInfo(path.as_posix())
            entry.size, entry.mtime, count = len(data), int(path.stat().st_mtime), count + 1
            archive.addfile(entry, io.BytesIO(data))
    print(f"{args.archive}: {count} files, {args.archive.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    sys.exit(main())
