#!/usr/bin/env bash
# Countdown with three numbers, GRPO from a base model (seed 004, section 3.5), and what it does to grade-school problems under two wordings.
#
# question: does reasoning grow or shrink when the task is easy, and is what RL teaches bound to the wording it was taught in?
# varies: RL or none; read on two tasks and two wordings
# prediction: right .02 -> above .5 on Countdown-3, texts at most half as long; GSM8K falls far more under the r1 wording than under the neutral one
# measured: not run: it needs a model of 1.5 B and a GPU, neither of which was at hand
# reconciled: not run
#
#   MODEL=Qwen/Qwen2.5-1.5B bash experiments/countdown/grpo.sh        # STEPS=300: the seed's budget, 94 minutes on four 4090
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "a base model, as in the seed"
STEPS=${STEPS:-300} GSM8K=${GSM8K:-../shared/data}
data=datasets/countdown-grpo
[ -e $data/countdown ] || "$PYTHON" prepare_data.py bench --task countdown --output $data --counts 3 --judge v1 --max-new 512 --train-size 20000 --seed "$SEED"
[ -e $data/gsm8k ] || "$PYTHON" prepare_data.py bench --task gsm8k --output $data --bench-source "$GSM8K" --prompt r1

train train_rl.py cd3-grpo --task countdown --state-path "$MODEL" --data $data/countdown/rl/bench_rl_train.jsonl --max-steps "$STEPS" \
    --batch-size 8 --group-size 16 --advantage mean --kl-coef 0.0005 --learning-rate 5e-6 --max-tokens 512 --max-seq-len 1024

# Reliability and ceiling on the held-out questions; greedy on the other task, under both wordings. --inject '' : the prompt as it is.
for name in base rl; do
    weights=(); [ $name = rl ] && weights=(--model-path runs/cd3-grpo)
    "$PYTHON" eval.py --task countdown --output outputs/cd3-grpo-$name --base-model "$MODEL" "${weights[@]}" --inject '' \
        --data $data/countdown/rl/bench_test.jsonl --samples 64 --pass-at 1,8,64 --temperature 1 --max-tokens 512
    for wording in bench_dev bench_dev_neutral; do
        "$PYTHON" eval.py --task gsm8k --output outputs/cd3-grpo-$name-$wording --base-model "$MODEL" "${weights[@]}" --inject '' \
            --data $data/gsm8k/rl/$wording.jsonl --temperature 0 --max-tokens 512
    done
done
"$PYTHON" analysis.py solved outputs/cd3-grpo-base outputs/cd3-grpo-rl                             # does pass@64 move?
"$PYTHON" analysis.py cross outputs/cd3-grpo-{base,rl}{,-bench_dev,-bench_dev_neutral}             # forgetting, or a habit bound to a wording?
