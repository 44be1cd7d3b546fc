# Sourced by the experiments beside it: what they share, so that each holds only what it varies. Finished runs and evaluations are kept: run a
# script again and it goes on where it stopped.
#
#   bash experiments/fund/03_ngrpo.sh                                      # a third of a million parameters from nothing, two CPU cores
#   MODEL=Qwen/Qwen2.5-Coder-0.5B-Instruct bash experiments/fund/03_ngrpo.sh      # one GPU; or a local folder
#   SEEDS="1 2 3" RL_STEPS=300 MODEL=... bash experiments/fund/03_ngrpo.sh
#   DRY=1 bash experiments/fund/03_ngrpo.sh                                # only print the commands
set -euo pipefail
script=$0
short=48 # tokens of a tiny model's reply: a bare tool, or thought, action and plan
! grep -q -e "--form react" "$script" || short=160
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ -n "${DRY:-}" ] || [ -x .venv/bin/python ] || { echo "no .venv here: bash test.sh makes it" >&2; exit 1; }
python=(${NICE:+nice -n "$NICE"} .venv/bin/python)
if [ -n "${DRY:-}" ]; then python=(echo); cd "$(mktemp -d)"; fi # an empty folder: nothing is finished there
export PYTHONUNBUFFERED=1 HF_HUB_DISABLE_TELEMETRY=1
: "${MODEL:=tiny}" "${SEEDS:=1 2}"
experiment=$(basename "$script" .sh)

if [ "$MODEL" = tiny ]; then # sizes for two cores: a pair of runs in less than ten minutes; single steps in one language are what it can learn
    model=models/tiny-fund
    : "${SFT_ROWS:=1350}" "${RL_STEPS:=60}" "${BATCH:=4}" "${GROUP:=8}" "${RL_RATE:=3e-4}" "${LIMIT:=0}" "${DEV:=320}" "${TOKENS:=$short}"
    data_flags=(--languages en --single-size 800 --multi-size 0)
    sft_flags=(--rank 0 --epochs 3 --batch-size 8 --learning-rate 4e-3 --schedule cosine --warmup 0.05 --grad-clip 1 --answer-weight 10)
    rl_flags=(--temperature 1 --grad-clip 1)
else # the seed's settings (section 5), at the size of a small model
    model=$MODEL
    : "${SFT_ROWS:=100}" "${RL_STEPS:=160}" "${BATCH:=8}" "${GROUP:=8}" "${RL_RATE:=2e-5}" "${LIMIT:=0}"
    sft_flags=(--rank 16 --epochs 2 --batch-size 8 --learning-rate 1e-4)
    data_flags=()
    rl_flags=(--temperature 0.9)
fi
tag=$(basename "$model")
: "${DEV:=512}" "${TOKENS:=200}" # TOKENS: the seed's 200, 350 for requests of several steps
sizes=(--max-tokens "$TOKENS" --max-seq-len 2048)

# data NAME FLAGS...: a data set; the same seed everywhere, so that rows of the same id pair up.
data() {
    local name=$1; shift
    [ -e "datasets/fund-$tag/$name/fund/rl/bench_stats.json" ] && return
    "${python[@]}" prepare_data.py all --task fund --output "datasets/fund-$tag/$name" --sft-size "$SFT_ROWS" --dev-size "$DEV" --test-size 0 "${data_flags[@]}" "$@"
}

# train SCRIPT RUN FLAGS...
train() {
    local stage=$1 run=$2; shift 2
    if [ -e "runs/$run/finished" ]; then echo "runs/$run is finished"
    elif [ -e "runs/$run/config.json" ]; then "${python[@]}" "$stage" --resume "runs/$run"
    else "${python[@]}" "$stage" --run-name "$run" --task fund --keep-last 1 "$@"; fi
}

# start NAME: format SFT on the demonstrations of a data set.
start() {
    local name=$1; shift
    [ "$MODEL" != tiny ] || [ -e "$model/config.json" ] ||
        "${python[@]}" experiments/fund/tiny_model.py --rows "datasets/fund-$tag/$name/fund/sft/sft_train.jsonl" --out "$model"
    train train_sft.py "fund-$tag-start-$name" --base-model "$model" --data-dir "datasets/fund-$tag/$name/fund/sft" "${sft_flags[@]}" "$@"
}

# evaluate OUTPUT RUN DATA FLAGS...
evaluate() {
    local output=$1 run=$2 name=$3; shift 3
    "${python[@]}" eval.py --task fund --base-model "$model" --model-path "runs/$run" --output "outputs/$output" --limit "$LIMIT" --temperature 1 \
        --data "datasets/fund-$tag/$name/fund/rl/bench_dev.jsonl" --concurrency 64 "${sizes[@]}" "$@"
}

# rl ARM SEED DATA START FLAGS...: one run of GRPO and its evaluation. The arm `plain`, GRPO without more, is shared by the experiments.
declare -A outputs=() runs_of=()
rl() {
    local arm=$1 seed=$2 name=$3 from=$4; shift 4
    local run=fund-$tag-$experiment-$arm-$seed
    [ "$arm" != plain ] || run=fund-$tag-$name-plain-$seed
    train train_rl.py "$run" --state-path "runs/fund-$tag-start-$from" --data "datasets/fund-$tag/$name/fund/rl/bench_rl_train.jsonl" --seed "$seed" \
        --batch-size "$BATCH" --group-size "$GROUP" --learning-rate "$RL_RATE" --epochs 99 --max-steps "$RL_STEPS" --save-every 0 \
        "${rl_flags[@]}" "${sizes[@]}" "$@"
    evaluate "$run" "$run" "$name"
    outputs[$arm]+=" outputs/$run" runs_of[$arm]+=" runs/$run"
}

# record MEASURE...: fill in the block at the script's end from what was run (ledger.py).
record() {
    local flags=() arm measure
    for arm in "${!outputs[@]}"; do flags+=(--arm "$arm" ${outputs[$arm]}); done
    for arm in "${!runs_of[@]}"; do flags+=(--runs "$arm" ${runs_of[$arm]}); done
    for measure in "$@"; do flags+=(--also "$measure"); done
    "${python[@]}" ledger.py record "experiments/fund/$experiment.sh" --model "$model" "${flags[@]}"
}
