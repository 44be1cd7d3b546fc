#!/usr/bin/env bash
# Countdown with four numbers: program teacher, self-distillation, or neither, before the same RL (seed 004, section 3.7).
#
# question: where do new parts come from: more RL, the model's own right answers, or a program that shows how to search?
# varies: what is learnt before RL: nothing, 4,000 own right answers, 4,000 games of the program teacher
# prediction: RL +.08, self-distillation +.00 on top, teacher +.09 on top; pass@64 of Countdown-3 rises with the teacher only
# measured: not run: it needs a model of 1.5 B and a GPU, neither of which was at hand
# reconciled: not run
#
#   MODEL=runs/cd3-grpo bash experiments/countdown/teachers.sh        # MODEL: a folder with weights that solve some of the questions
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "one that solves some of Countdown-4, or every group of the RL is flat"
STEPS=${STEPS:-300}
data=datasets/countdown-teachers files=datasets/countdown-teachers/countdown
settings=(--task countdown --output $data --counts 3,4 --judge v1 --max-new 1024 --seed "$SEED")
[ -e $files/rl ] || "$PYTHON" prepare_data.py all "${settings[@]}" --sft-size 4000 --train-size 20000 --test-size 200
if [ ! -e $files/sft-own ]; then
    mv $files/sft $files/sft-teacher
    "$PYTHON" eval.py --task countdown --output outputs/teachers-own --base-model "$MODEL" --inject '' --data $files/rl/bench_rl_train.jsonl \
        --limit 4000 --samples 8 --temperature 1 --max-tokens 1024
    "$PYTHON" prepare_data.py sft "${settings[@]}" --distil outputs/teachers-own    # the first right answer to each question
    mv $files/sft $files/sft-own
fi
for arm in none own teacher; do
    start=$MODEL
    if [ $arm != none ]; then
        train train_sft.py teachers-$arm-sft --task countdown --base-model "$MODEL" --rank 0 --data-dir $files/sft-$arm --epochs 2 \
            --batch-size 32 --learning-rate 1e-5 --schedule cosine --warmup 0.05 --max-seq-len 2048
        start=runs/teachers-$arm-sft
    fi
    train train_rl.py teachers-$arm --task countdown --state-path "$start" --data $files/rl/bench_rl_train.jsonl --max-steps "$STEPS" \
        --batch-size 8 --group-size 16 --advantage mean --kl-coef 0.0005 --length-penalty 0.05 --learning-rate 5e-6 --max-tokens 1024
    "$PYTHON" eval.py --task countdown --output outputs/teachers-$arm --base-model "$MODEL" --model-path runs/teachers-$arm --inject '' \
        --data $files/rl/bench_test.jsonl --samples 64 --pass-at 1,8,64 --temperature 1 --max-tokens 1024
done
"$PYTHON" analysis.py cross --by-task outputs/teachers-{none,own,teacher}
"$PYTHON" analysis.py solved outputs/teachers-none outputs/teachers-own
"$PYTHON" analysis.py solved outputs/teachers-none outputs/teachers-teacher
