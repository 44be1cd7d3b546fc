# Sourced by the experiments beside it: what they share, so that each holds only what it varies. Finished runs and evaluations are kept: run a
# script again and it goes on where it stopped.
#
#   bash experiments/fund/03_ngrpo.sh                                      # a third of a million parameters from nothing, two CPU cores
#   MODEL=Qwen/Qwen2.5-Coder-0.5B-Instruct bash experiments/fund/03_ngrpo.sh      # one GPU; or a local folder (seen from the project's folder)
#   SEEDS="1 2 3" RL_STEPS=300 TAG=long MODEL=... bash experiments/fund/03_ngrpo.sh      # TAG names what is made: other settings, another tag
#   PYTHON=python3 MODEL=... bash experiments/fund/03_ngrpo.sh             # another interpreter than .venv/bin/python
#   DRY=1 bash experiments/fund/03_ngrpo.sh                                # only print the commands
#   RECORD=1 MODEL=... bash experiments/fund/03_ngrpo.sh                   # run nothing: write down what the evaluations that are there say
#   MODEL=... bash experiments/fund/all.sh                                 # all experiments side by side on one GPU
set -euo pipefail
script=$0
short=48 # tokens of a tiny model's reply: a bare tool, or thought, action and plan
! grep -q -e "--form react" "$script" || short=160
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${PYTHON:=.venv/bin/python}" "${MODEL:=tiny}" "${SEEDS:=1 2}"
[ -n "${DRY:-}" ] || command -v "$PYTHON" > /dev/null || { echo "no $PYTHON here: bash test.sh makes .venv, PYTHON=python3 takes another" >&2; exit 1; }
python=(${NICE:+nice -n "$NICE"} "$PYTHON")
if [ -n "${DRY:-}" ]; then python=(echo); cd "$(mktemp -d)"; fi # an empty folder: nothing is finished there
export PYTHONUNBUFFERED=1 HF_HUB_DISABLE_TELEMETRY=1
experiment=$(basename "$script" .sh)

if [ "$MODEL" = tiny ]; then # sizes for two cores: a pair of runs in less than ten minutes; single steps in one language are what it can learn
    model=models/tiny-fund
    : "${SFT_ROWS:=1350}" "${RL_STEPS:=60}" "${BATCH:=4}" "${GROUP:=8}" "${RL_RATE:=3e-4}" "${LIMIT:=0}" "${DEV:=320}" "${TOKENS:=$short}" "${AT_ONCE:=64}"
    data_flags=(--languages en --single-size 800 --multi-size 0)
    sft_flags=(--rank 0 --epochs 3 --batch-size 8 --learning-rate 4e-3 --schedule cosine --warmup 0.05 --grad-clip 1 --answer-weight 10)
    rl_flags=(--temperature 1 --grad-clip 1)
else
    # The seed trained a LoRA of rank 16 on 7 B, 4 epochs at 5e-6 (section 5). Half a billion parameters and 50 steps want more: a LoRA's rate is
    # some ten times that of all weights, and RL takes a third of SFT's. SFT is kept short (100 rows, twice): it is to teach the form, and RL
    # needs questions that are still answered wrong at times. A LoRA also keeps a checkpoint at 0.1 GB, where all weights with optimizer take 8.
    model=$MODEL
    : "${RANK:=16}"
    [ "$RANK" != 0 ] || : "${SFT_RATE:=2e-5}" "${RL_RATE:=3e-6}"
    : "${SFT_ROWS:=100}" "${SFT_RATE:=3e-4}" "${RL_STEPS:=50}" "${BATCH:=8}" "${GROUP:=8}" "${RL_RATE:=1e-4}" "${LIMIT:=0}" "${AT_ONCE:=256}"
    sft_flags=(--rank "$RANK" --epochs 2 --batch-size 8 --learning-rate "$SFT_RATE" --schedule cosine --warmup 0.1 --grad-clip 1)
    data_flags=()
    rl_flags=(--temperature 1 --grad-clip 1)
fi
tag=${TAG:-$(basename "$model")}
: "${DEV:=512}" "${TOKENS:=160}" # the seed gave a reply 200 tokens, later 350; the demonstrations need 103 at most (tokens of Qwen2.5)
sizes=(--max-tokens "$TOKENS" --max-seq-len 2048)

# data NAME FLAGS...: a data set; the same seed everywhere, so that rows of the same id pair up.
data() {
    local name=$1; shift
    [ -z "${RECORD:-}" ] && [ ! -e "datasets/fund-$tag/$name/fund/rl/bench_stats.json" ] || return 0
    "${python[@]}" prepare_data.py all --task fund --output "datasets/fund-$tag/$name" --sft-size "$SFT_ROWS" --dev-size "$DEV" --test-size 0 "${data_flags[@]}" "$@"
}

# train SCRIPT RUN FLAGS...
train() {
    local stage=$1 run=$2; shift 2
    if [ -n "${RECORD:-}" ]; then return; fi
    if [ -e "runs/$run/finished" ]; then echo "runs/$run is finished"
    elif [ -e "runs/$run/config.json" ]; then "${python[@]}" "$stage" --resume "runs/$run"
    else "${python[@]}" "$stage" --run-name "$run" --task fund --keep-last 1 "$@"; fi
}

# tiny_model NAME: made once, with a tokenizer fitted to the texts of a data set.
tiny_model() {
    [ "$MODEL" = tiny ] && [ -z "${RECORD:-}" ] && [ ! -e "$model/config.json" ] || return 0
    "${python[@]}" experiments/fund/tiny_model.py --rows "datasets/fund-$tag/$1/fund/sft/sft_train.jsonl" --out "$model"
}

# start NAME [RUN FLAGS...]: format SFT on the demonstrations of a data set; RL begins there.
start() {
    local name=$1 run=${2:-start-$1}; shift; [ $# = 0 ] || shift
    tiny_model "$name"
    train train_sft.py "fund-$tag-$run" --base-model "$model" --data-dir "datasets/fund-$tag/$name/fund/sft" "${sft_flags[@]}" "$@"
}

# evaluate ARM OUTPUT RUN DATA: on the dev rows of a data set; RUN "": the model as it was before any training. Joins the arm.
declare -A outputs=() runs_of=()
arms=() # in the order in which they come
evaluate() {
    local arm=$1 output=outputs/$2 run=$3 name=$4 path=() made=datasets/fund-$tag/$4/fund/rl/bench_dev.jsonl
    [ -z "$run" ] || path=(--model-path "runs/$run") made=runs/$run/finished
    if [ -n "${RECORD:-}" ]; then [ -e "$output/metrics.json" ] || return 0
    elif [ "$output/metrics.json" -nt "$made" ]; then echo "$output is finished"
    else
        "${python[@]}" eval.py --task fund --base-model "$model" "${path[@]}" --output "$output" --limit "$LIMIT" --temperature 1 \
            --data "datasets/fund-$tag/$name/fund/rl/bench_dev.jsonl" --concurrency "$AT_ONCE" "${sizes[@]}"
    fi
    outputs[$arm]+=" $output"
    [[ " ${arms[*]:-} " = *" $arm "* ]] || arms+=("$arm")
}

# before NAME: the arms `raw` (not with the tiny model, which knows nothing) and `sft`.
before() {
    [ "$MODEL" = tiny ] || evaluate raw "fund-$tag-$1-raw" "" "$1"
    evaluate sft "fund-$tag-$1-sft" "fund-$tag-start-$1" "$1"
}

# rl ARM[=RUN] SEED DATA START FLAGS...: one run of GRPO and its evaluation. RUN: what it is called where that isn't the arm's name, so that
# experiments which need the same run (tests/test_ledger.py looks that it is) share it.
rl() {
    local arm=${1%%=*} what=${1#*=} seed=$2 name=$3 from=$4; shift 4
    local run=fund-$tag-$name-$what-$seed
    train train_rl.py "$run" --state-path "runs/fund-$tag-start-$from" --data "datasets/fund-$tag/$name/fund/rl/bench_rl_train.jsonl" --seed "$seed" \
        --batch-size "$BATCH" --group-size "$GROUP" --learning-rate "$RL_RATE" --epochs 99 --max-steps "$RL_STEPS" --save-every 0 \
        "${rl_flags[@]}" "${sizes[@]}" "$@"
    evaluate "$arm" "$run" "$run" "$name"
    [ ! -e "runs/$run/metrics.jsonl" ] && [ -z "${DRY:-}" ] || runs_of[$arm]+=" runs/$run"
}

# record MEASURE...: fill in the block at the script's end from what was run (ledger.py). LABEL: how the model is called there.
# COMMIT: that was run, if it was run from a copy without .git.
record() {
    local flags=() arm measure
    for arm in "${arms[@]}"; do flags+=(--arm "$arm" ${outputs[$arm]}); done
    for arm in "${arms[@]}"; do [ -z "${runs_of[$arm]:-}" ] || flags+=(--runs "$arm" ${runs_of[$arm]}); done
    for measure in "$@"; do flags+=(--also "$measure"); done
    [ ${#arms[@]} -gt 0 ] || { echo "$script: nothing is evaluated yet" >&2; exit 1; }
    "${python[@]}" ledger.py record "experiments/fund/$experiment.sh" --model "${LABEL:-$model}" ${COMMIT:+--commit "$COMMIT"} "${flags[@]}"
}
