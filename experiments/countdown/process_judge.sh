#!/usr/bin/env bash
# Countdown with four numbers under judges that look at the process (seed 004, section 3.7): a cautionary tale.
#
# question: can a reward for tidy steps teach the steps?
# varies: the judge: v1 (result), v2 (process, strict patterns), v2.1 (process, holes closed)
# prediction: v2: all four penalties near zero within 150 steps with no answer more right, as marks vanish; v2.1: tidier, and less right than v1
# prediction: half a billion parameters, 40 steps of 64: under v2 the fines halve and no more is right than under v1
# measured: not run with a model: out of time; the ways to game v1, v2 and v2.1 that we know are tests (tests/test_countdown.py)
# reconciled: not run
#
#   MODEL=runs/teachers-teacher-sft bash experiments/countdown/process_judge.sh
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "one that writes steps with marks, as after teachers.sh"
STEPS=${STEPS:-150} TRAIN=${TRAIN:-20000} RATE=${RATE:-5e-6} KL=${KL:-0.0005} TOKENS=${TOKENS:-1024} GROUP=${GROUP:-16} SAMPLES=${SAMPLES:-8} TEST=${TEST:-200}
data=datasets/countdown-process sizes=(--max-tokens "$TOKENS" --max-seq-len $((TOKENS + 512)))
if part data && [ ! -e $data ]; then
    "$PYTHON" prepare_data.py bench --task countdown --output $data --counts 3,4 --max-new "$TOKENS" --train-size "$TRAIN" --test-size "$TEST" --seed "$SEED"
fi
for judge in v1 v2 v2.1; do
    part $judge || continue
    train train_rl.py process-$judge --task countdown --state-path "$MODEL" --data $data/countdown/rl/bench_rl_train.jsonl --set judge=$judge \
        --max-steps "$STEPS" --batch-size 8 --group-size "$GROUP" --advantage mean --kl-coef "$KL" --learning-rate "$RATE" --save-every 0 "${sizes[@]}"
    "$PYTHON" eval.py --task countdown --output outputs/process-$judge --base-model "$MODEL" --model-path runs/process-$judge --set judge=$judge \
        --data $data/countdown/rl/bench_test.jsonl --samples "$SAMPLES" --pass-at "1,$SAMPLES" --temperature 1 --concurrency 256 "${sizes[@]}"
done
if part report; then
    "$PYTHON" analysis.py curves $(ls -d runs/process-{v1,v2,v2.1} 2> /dev/null) --keys 'reward/correct,reward/false_claim,reward/wrong_steps,reward/repeats'
    "$PYTHON" analysis.py cross --by-task $(ls -d outputs/process-{v1,v2,v2.1} 2> /dev/null)
fi
