#!/usr/bin/env bash
# Countdown with four numbers under judges that look at the process (seed 004, section 3.7): a cautionary tale.
#
# question: can a reward for tidy steps teach the steps?
# varies: the judge: v1 (result), v2 (process, strict patterns), v2.1 (process, holes closed)
# prediction: v2: all four penalties near zero within 150 steps with no answer more right, as marks vanish; v2.1: tidier, and less right than v1
# measured: not run with a model; the ways to game v1, v2 and v2.1 that we know are tests (tests/test_countdown.py)
# reconciled: not run
#
#   MODEL=runs/teachers-teacher-sft bash experiments/countdown/process_judge.sh
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "one that writes steps with marks, as after teachers.sh"
STEPS=${STEPS:-150} data=datasets/countdown-process
[ -e $data ] || "$PYTHON" prepare_data.py bench --task countdown --output $data --counts 3,4 --max-new 1024 --train-size 20000 --seed "$SEED"
for judge in v1 v2 v2.1; do
    train train_rl.py process-$judge --task countdown --state-path "$MODEL" --data $data/countdown/rl/bench_rl_train.jsonl --set judge=$judge \
        --max-steps "$STEPS" --batch-size 8 --group-size 16 --advantage mean --kl-coef 0.0005 --learning-rate 5e-6 --max-tokens 1024
    "$PYTHON" eval.py --task countdown --output outputs/process-$judge --base-model "$MODEL" --model-path runs/process-$judge --set judge=$judge \
        --data $data/countdown/rl/bench_test.jsonl --samples 8 --pass-at 1,8 --temperature 1 --max-tokens 1024
done
"$PYTHON" analysis.py curves runs/process-{v1,v2,v2.1} --keys 'reward/correct,reward/false_claim,reward/wrong_steps,reward/repeats'
"$PYTHON" analysis.py cross --by-task outputs/process-{v1,v2,v2.1}
