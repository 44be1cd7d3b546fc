#!/usr/bin/env bash
# All experiments of this folder on one GPU, side by side, the most telling first. What doesn't fit into BUDGET seconds is left for the next call.
#
#   MODEL=models/qwen2.5-coder-0.5b bash experiments/fund/all.sh
#   MODEL=... BUDGET=540 JOBS=5 SEEDS="1 2" ONLY="01 03" PACK=results bash experiments/fund/all.sh
#   RECORD=1 MODEL=... LABEL="Qwen2.5-Coder-0.5B-Instruct" bash experiments/fund/all.sh        # run nothing: write the results into the scripts
#
# PACK=FOLDER: afterwards the results without weights, in files of 15 MiB. Elsewhere: cat results.tar.gz.* | tar xz, in the project's folder, then
# RECORD=1. START_ONLY=1 leaves out RL: look at where it would begin (raw, sft, and 50 and 300 rows of SFT in 07). Where SFT chooses the right tool
# in more than 85 % or less than 40 % of the rows, RL has little to learn from: take other SFT_ROWS then, and another TAG.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${PYTHON:=.venv/bin/python}" "${MODEL:?a folder or hub id: the tiny model has the scripts one by one}" "${JOBS:=5}" "${BUDGET:=0}"
: "${ONLY:=01 03 05 04 11 08 07 06 10 09 02 12}" "${ARMS:=plain on auto}" "${OMP_NUM_THREADS:=4}"
export PYTHON MODEL ARMS OMP_NUM_THREADS PYTHONUNBUFFERED=1
if [ -n "${RECORD:-}" ]; then
    for number in $ONLY; do bash experiments/fund/"$number"_*.sh || echo "$number: not all of its arms are there yet"; done
    exit
fi
code=0
"$PYTHON" experiments/fund/side_by_side.py --jobs "$JOBS" --budget "$BUDGET" ${START_ONLY:+--start-only} $ONLY || code=$?
[ -z "${PACK:-}" ] || "$PYTHON" experiments/fund/side_by_side.py --pack "$PACK" $ONLY
exit $code
