#!/usr/bin/env bash
# Countdown with three numbers, GRPO from a base model (seed 004, section 3.5), and what it does to grade-school problems under two wordings.
#
# question: does reasoning grow or shrink when the task is easy, and is what RL teaches bound to the wording it was taught in?
# varies: RL or none; read on two tasks and two wordings
# prediction: right .02 -> above .5 on Countdown-3, texts at most half as long; GSM8K falls far more under the r1 wording than under the neutral one
# prediction: half a billion parameters, 60 steps of 8 x 16, 256 tokens: right .01 -> .3 or more, mostly by one sum or difference; texts at most half as long; pass@64 moves by less than pass@1
# measured: not run: it needs a model of 1.5 B and a GPU, neither of which was at hand
# reconciled: not run
#
#   MODEL=Qwen/Qwen2.5-1.5B bash experiments/countdown/grpo.sh        # STEPS=300: the seed's budget, 94 minutes on four 4090
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "a base model, as in the seed"
STEPS=${STEPS:-300} RATE=${RATE:-5e-6} KL=${KL:-0.0005} TOKENS=${TOKENS:-512} GROUP=${GROUP:-16} JUDGE=${JUDGE:-v1} TRAIN=${TRAIN:-20000}
SAMPLES=${SAMPLES:-64} ROOM=${ROOM:-$TOKENS} OTHER=${OTHER:-200} GSM8K=${GSM8K:-../shared/data}        # ROOM: tokens in evaluation; OTHER: questions of the other task, 0: without
data=datasets/countdown-grpo sizes=(--max-tokens "$TOKENS" --max-seq-len $((TOKENS + 512)))

if part data; then
    [ -e $data/countdown ] || "$PYTHON" prepare_data.py bench --task countdown --output $data --counts 3 --judge "$JUDGE" --max-new "$TOKENS" \
        --train-size "$TRAIN" --test-size "${TEST:-100}" --seed "$SEED"
    [ "$OTHER" = 0 ] || [ -e $data/gsm8k ] || "$PYTHON" prepare_data.py bench --task gsm8k --output $data --bench-source "$GSM8K" --prompt r1
fi
if part rl; then
    train train_rl.py cd3-grpo --task countdown --state-path "$MODEL" --data $data/countdown/rl/bench_rl_train.jsonl --max-steps "$STEPS" \
        --batch-size 8 --group-size "$GROUP" --advantage mean --kl-coef "$KL" --learning-rate "$RATE" --save-every 0 "${sizes[@]}"
fi
# Reliability and ceiling on the held-out questions. --inject '' : the prompt as it is.
for name in base rl; do
    part $name || continue
    weights=(--base-model "$MODEL" --inject '' --concurrency 256); [ $name = base ] || weights+=(--model-path runs/cd3-grpo)
    "$PYTHON" eval.py --task countdown --output outputs/cd3-grpo-$name "${weights[@]}" --data $data/countdown/rl/bench_test.jsonl \
        --samples "$SAMPLES" --pass-at "$([ "$SAMPLES" = 64 ] && echo 1,8,64 || echo "1,$SAMPLES")" --temperature 1 \
        --max-tokens "$ROOM" --max-seq-len $((ROOM + 512))
done
# Greedy on the other task, under both wordings
for name in base rl; do
    part other && [ "$OTHER" != 0 ] || continue
    weights=(--base-model "$MODEL" --inject '' --concurrency 256); [ $name = base ] || weights+=(--model-path runs/cd3-grpo)
    for wording in bench_dev bench_dev_neutral; do
        "$PYTHON" eval.py --task gsm8k --output outputs/cd3-grpo-$name-$wording "${weights[@]}" --data $data/gsm8k/rl/$wording.jsonl \
            --limit "$OTHER" --temperature 0 --max-tokens 512 --max-seq-len 1536
    done
done
if part report; then
    "$PYTHON" analysis.py solved outputs/cd3-grpo-base outputs/cd3-grpo-rl                             # does pass@64 move?
    "$PYTHON" analysis.py paired outputs/cd3-grpo-base outputs/cd3-grpo-rl
    [ "$OTHER" = 0 ] || "$PYTHON" analysis.py cross outputs/cd3-grpo-{base,rl}{,-bench_dev,-bench_dev_neutral} # forgetting, or a habit bound to a wording?
fi
