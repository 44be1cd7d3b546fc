#!/usr/bin/env bash
# Countdown with four numbers: program teacher, self-distillation, or neither, before the same RL (seed 004, section 3.7).
#
# question: where do new parts come from: more RL, the model's own right answers, or a program that shows how to search?
# varies: what is learnt before RL: nothing, 4,000 own right answers, 4,000 games of the program teacher
# prediction: RL +.08, self-distillation +.00 on top, teacher +.09 on top; pass@64 of Countdown-3 rises with the teacher only
# prediction: half a billion parameters, 40 steps of 64, four numbers: teacher above the others by .1 or more, self-distillation equal to RL alone
# measured: not run: it needs a model of 1.5 B and a GPU, neither of which was at hand
# reconciled: not run
#
#   MODEL=runs/cd3-grpo bash experiments/countdown/teachers.sh        # MODEL: a folder with weights that solve some of the questions
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "one that solves some of Countdown-4, or every group of the RL is flat"
STEPS=${STEPS:-300} GAMES=${GAMES:-4000} OWN=${OWN:-4000} TRAIN=${TRAIN:-20000} TEST=${TEST:-200} SFT_RATE=${SFT_RATE:-1e-5} EPOCHS=${EPOCHS:-2}
RATE=${RATE:-5e-6} KL=${KL:-0.0005} TOKENS=${TOKENS:-1024} GROUP=${GROUP:-16} SAMPLES=${SAMPLES:-64} COUNTS=${COUNTS:-3,4} ARMS=${ARMS:-none own teacher}
data=datasets/countdown-teachers files=datasets/countdown-teachers/countdown
settings=(--task countdown --output $data --counts "$COUNTS" --judge v1 --max-new "$TOKENS" --seed "$SEED")
sizes=(--max-tokens "$TOKENS" --max-seq-len $((TOKENS + 512)))
if part data && [ ! -e $files/sft-teacher ]; then
    "$PYTHON" prepare_data.py all "${settings[@]}" --sft-size "$GAMES" --train-size "$TRAIN" --test-size "$TEST"
    mv $files/sft $files/sft-teacher
fi
if part sample && [ ! -e $files/sft-own ]; then
    "$PYTHON" eval.py --task countdown --output outputs/teachers-samples --base-model "$MODEL" --inject '' --data $files/rl/bench_rl_train.jsonl \
        --limit "$OWN" --samples 8 --temperature 1 --concurrency 256 "${sizes[@]}"
    "$PYTHON" prepare_data.py sft "${settings[@]}" --distil outputs/teachers-samples    # the first right answer to each question
    mv $files/sft $files/sft-own
fi
for arm in $ARMS; do
    part $arm || continue
    start=$MODEL
    if [ $arm != none ]; then
        train train_sft.py teachers-$arm-sft --task countdown --base-model "$MODEL" --rank 0 --data-dir $files/sft-$arm --epochs "$EPOCHS" \
            --batch-size 32 --learning-rate "$SFT_RATE" --schedule cosine --warmup 0.05 --max-seq-len 2048 --keep-last 1
        start=runs/teachers-$arm-sft
    fi
    train train_rl.py teachers-$arm --task countdown --state-path "$start" --data $files/rl/bench_rl_train.jsonl --max-steps "$STEPS" --batch-size 8 \
        --group-size "$GROUP" --advantage mean --kl-coef "$KL" --length-penalty 0.05 --learning-rate "$RATE" --save-every 0 "${sizes[@]}"
    "$PYTHON" eval.py --task countdown --output outputs/teachers-$arm --base-model "$MODEL" --model-path runs/teachers-$arm --inject '' --concurrency 256 \
        --data $files/rl/bench_test.jsonl --samples "$SAMPLES" --pass-at "$([ "$SAMPLES" = 64 ] && echo 1,8,64 || echo "1,$SAMPLES")" --temperature 1 "${sizes[@]}"
done
if part report; then
    "$PYTHON" analysis.py cross --by-task outputs/teachers-{none,own,teacher}
    "$PYTHON" analysis.py solved outputs/teachers-none outputs/teachers-own
    "$PYTHON" analysis.py solved outputs/teachers-none outputs/teachers-teacher
fi
