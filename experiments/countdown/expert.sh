#!/usr/bin/env bash
# Countdown with four numbers, a calculator and an expert who may be asked at a price and is wrong one time in five (seed 004, section 3.10).
#
# question: does a small model learn to search first, to ask only when that failed, and to check what it is told?
# varies: training wordings of the demonstrations: one, or ten; then RL on top of ten
# prediction: one wording: near .97 under it and under .1 under others; ten: .92 under others; RL +.06, all from hard questions that were not asked
# measured: not run: it needs a model of 1.5 B and a GPU, neither of which was at hand
# reconciled: not run
#
#   MODEL=runs/calculator-calc-sft bash experiments/countdown/expert.sh        # EXPERT_URL= EXPERT_MODEL= : a server instead of the program
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "one that uses the calculator, as after calculator.sh"
STEPS=${STEPS:-150}
who=(--expert program --expert-wrong 0.2)
[ -z "${EXPERT_URL:-}" ] || who=(--expert remote --expert-url "$EXPERT_URL" --expert-model "$EXPERT_MODEL")
for words in 1 10; do
    data=datasets/countdown-expert-$words
    [ -e $data ] || "$PYTHON" prepare_data.py all --task countdown --output $data --counts 4 --tool calc+ask --judge v3 --templates $words \
        --sft-size 1600 --train-size 4000 --test-size 100 --seed "$SEED" "${who[@]}"
    train train_sft.py expert-$words --task countdown --base-model "$MODEL" --rank 0 --data-dir $data/countdown/sft --epochs 2 --batch-size 32 \
        --learning-rate 1e-5 --schedule cosine --warmup 0.05 --max-seq-len 3072
done
train train_rl.py expert-rl --task countdown --state-path runs/expert-10 --data $data/countdown/rl/bench_rl_train.jsonl --max-steps "$STEPS" \
    --batch-size 4 --group-size 16 --advantage mean --kl-coef 0.02 --learning-rate 5e-6 --max-tokens 1400
for name in 1 10 rl; do
    for file in bench_test bench_test_heldout; do
        "$PYTHON" eval.py --task countdown --output outputs/expert-$name-$file --base-model "$MODEL" --model-path runs/expert-$name \
            --data $data/countdown/rl/$file.jsonl --samples 8 --pass-at 1,8 --temperature 1 --max-tokens 1400
    done
done
"$PYTHON" analysis.py cross outputs/expert-{1,10,rl}-bench_test{,_heldout}
"$PYTHON" eval.py --task countdown --output outputs/expert-rl-alone --base-model "$MODEL" --model-path runs/expert-rl --set tool=calc \
    --data $data/countdown/rl/bench_test.jsonl --samples 8 --pass-at 1,8 --temperature 1 --max-tokens 1400    # nobody answers: what it can do alone
