#!/usr/bin/env bash
# Countdown with four numbers, with and without a calculator in the turn (seed 004, section 3.8).
#
# question: how far does the same teacher's search get when every value is exact?
# varies: who works out the values of the search: the model, or <calc>
# prediction: after SFT +.20 with the calculator; hardly a wrong value; RL under v1 afterwards adds nothing, as most groups are flat
# prediction: half a billion parameters, SFT on 3,200 searches: without the calculator .25 on four numbers, with it .5; of the values .7 right without
# measured: Qwen2.5-Coder-0.5B-Instruct (weights from 4 bits), seed 42, d6c32ce, inline.list; 95 % intervals, over rows; one epoch over 2,880 searches with <calc>, batch 16, 1e-5; 100 + 100 questions x 8 at temperature 1, 1,200 tokens
# measured: four numbers 85.9 % [79.2, 91.9], three 96.2 % [93.0, 98.9]; pass@8 of both 94.5 % [91.0, 97.5]; values right 100 %, marks true 99.3 %, 9.6 calls, 8.7 % cut off; floor "sums and differences" 83.0 %
# measured: the arm without a calculator and RL afterwards: not run (out of memory beside another process; out of time)
# reconciled: ✗ .5 was expected with the calculator, .71 in the seed (1.5 B): .86. The demonstrations are ours, not the seed's, so the two are no pair; what the tool adds is open until the other arm has run
# reconciled: ✓ no wrong value. 139 of the 143 failures are searches that hit the limit, 109 of them with four numbers
# reconciled: little is left for RL: 176 of 200 questions are right in all 8 samples and 11 in none; 13 have both
#
#   MODEL=Qwen/Qwen2.5-1.5B bash experiments/countdown/calculator.sh
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "a base model, as in the seed"
STEPS=${STEPS:-300} GAMES=${GAMES:-4000} TRAIN=${TRAIN:-20000} TEST=${TEST:-200} SFT_RATE=${SFT_RATE:-1e-5} SFT_BATCH=${SFT_BATCH:-32} EPOCHS=${EPOCHS:-2}
TOKENS=${TOKENS:-1400} GROUP=${GROUP:-16} SAMPLES=${SAMPLES:-8} TOOLS=${TOOLS:-none calc}
sizes=(--max-tokens "$TOKENS" --max-seq-len $((TOKENS + 1200)))
for tool in $TOOLS; do
    data=datasets/countdown-$tool
    [ -e $data ] || ! part data || "$PYTHON" prepare_data.py all --task countdown --output $data --counts 3,4 --tool $tool --judge v1 --sft-size "$GAMES" \
        --train-size "$TRAIN" --test-size "$TEST" --seed "$SEED"
    if part sft; then
        train train_sft.py calculator-$tool-sft --task countdown --base-model "$MODEL" --rank 0 --data-dir $data/countdown/sft --epochs "$EPOCHS" \
            --batch-size "$SFT_BATCH" --learning-rate "$SFT_RATE" --schedule cosine --warmup 0.05 --max-seq-len 3072 --keep-last 1
    fi
    if part rl; then
        train train_rl.py calculator-$tool-rl --task countdown --state-path runs/calculator-$tool-sft --data $data/countdown/rl/bench_rl_train.jsonl \
            --max-steps "$STEPS" --batch-size 8 --group-size "$GROUP" --advantage mean --kl-coef 0.0005 --learning-rate 5e-6 --save-every 0 "${sizes[@]}"
    fi
    for stage in sft rl; do
        ! part $stage || "$PYTHON" eval.py --task countdown --output outputs/calculator-$tool-$stage --base-model "$MODEL" --model-path runs/calculator-$tool-$stage \
            --data $data/countdown/rl/bench_test.jsonl --samples "$SAMPLES" --pass-at "1,$SAMPLES" --temperature 1 --concurrency 256 "${sizes[@]}"
    done
done
if part report; then
    "$PYTHON" analysis.py cross --by-task $(ls -d outputs/calculator-{none,calc}-{sft,rl} 2> /dev/null)
    "$PYTHON" analysis.py paired outputs/calculator-none-sft outputs/calculator-calc-sft
    [ ! -e outputs/calculator-calc-rl ] || "$PYTHON" analysis.py solved outputs/calculator-calc-sft outputs/calculator-calc-rl
fi
