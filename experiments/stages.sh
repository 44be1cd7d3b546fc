# Sourced by the experiments' scripts: the place, the interpreter, and training runs that skip what is done and go on where they stopped.
#
#   PART="data base"     only these parts of a script (default: all), so that its arms can run side by side: see side_by_side.sh
#   LIMIT=200            seconds that a training run may take; it is then stopped and saved, and what follows takes it as it is
#   SLIM=1               a finished run loses its optimizer's state, most of a checkpoint: nothing here goes on with it
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-.venv/bin/python} SEED=${SEED:-42}
export PYTHONUNBUFFERED=1

part() { # name: whether it is asked for
    [ "${PART:-all}" = all ] || [[ " $PART " == *" $1 "* ]]
}

train() { # script, run name, flags ...
    local script=$1 run=$2 command; shift 2
    if [ -e "runs/$run/finished" ]; then echo "runs/$run is finished"; return; fi
    command=("$PYTHON" "$script" --run-name "$run" --seed "$SEED" ${SLIM:+--keep-last 1} "$@")
    if [ -e "runs/$run/config.json" ]; then command=("$PYTHON" "$script" --resume "runs/$run"); fi
    if [ -z "${LIMIT:-}" ]; then "${command[@]}"; else limited "${command[@]}"; fi
    if [ -n "${SLIM:-}" ] && [ -e "runs/$run/finished" ]; then slim "runs/$run"; fi
}

limited() { # command ...: asked to stop, once, when LIMIT seconds are over; then it has all the time it needs to save
    local pid code=0
    "$@" &
    pid=$!
    (
        for ((i = 0; i < LIMIT; i++)); do sleep 1; kill -0 $pid || exit; done
        kill -INT $pid
    ) > /dev/null 2>&1 &
    wait $pid || code=$?
    [ $code = 0 ] || [ $code = 130 ]
}

slim() { # run folder
    "$PYTHON" - "$1" <<'END'
import filecmp
import os
import sys
from pathlib import Path

from records import read_jsonl, write_jsonl

folder = Path(sys.argv[1])
entries = read_jsonl(folder / "checkpoints.jsonl")
for entry in entries:
    if entry["files"]["state_path"].pop("optimizer.pt", None):
        (folder / entry["state_path"] / "optimizer.pt").unlink(missing_ok=True)
    same = [folder / entry.get(key, "") / "model.safetensors" for key in ("state_path", "sampler_path")]
    if all(path.is_file() for path in same) and filecmp.cmp(*same, shallow=False):  # the weights stand there twice: one file will do
        same[0].unlink()
        os.link(same[1], same[0])
write_jsonl(folder / "checkpoints.jsonl", entries)
END
}

need_model() { # why
    if [ -z "${MODEL:-}" ]; then
        echo "$0: give a model, as in MODEL=Qwen/Qwen2.5-1.5B bash $0 ($1)" >&2
        exit 2
    fi
    if [ -e "$MODEL/checkpoints.jsonl" ]; then MODEL=$(ls -d "$MODEL"/checkpoints/*/sampler | tail -1); fi # a run: its last weights, an ordinary model folder
}
