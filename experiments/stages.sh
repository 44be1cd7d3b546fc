# Sourced by the experiments' scripts: the place, the interpreter, and training runs that skip what is done and go on where they stopped.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-.venv/bin/python} SEED=${SEED:-42}
export PYTHONUNBUFFERED=1

train() { # script, run name, flags ...
    local script=$1 run=$2; shift 2
    if [ -e "runs/$run/finished" ]; then echo "runs/$run is finished"
    elif [ -e "runs/$run/config.json" ]; then "$PYTHON" "$script" --resume "runs/$run"
    else "$PYTHON" "$script" --run-name "$run" --seed "$SEED" "$@"; fi
}

need_model() { # why
    if [ -z "${MODEL:-}" ]; then
        echo "$0: give a model, as in MODEL=Qwen/Qwen2.5-1.5B bash $0 ($1)" >&2
        exit 2
    fi
}
