#!/usr/bin/env bash
# GRPO on grade-school problems at two learning rates, and what it does to pass@64 (seed 004, section 3.4).
#
# question: is 1e-6 too small to move a 1.5 B model, and does RL widen what it can solve or only make it surer?
# varies: the learning rate: 1e-6 or 5e-6
# prediction: 1e-6 nothing in 150 steps; 5e-6 +.15 or more at temperature 1, less than half of that greedy; pass@64 the same; #### far more often
# measured: not run: it needs a model of 1.5 B and a GPU, neither of which was at hand
# reconciled: not run
#
#   MODEL=Qwen/Qwen2.5-1.5B-Instruct bash experiments/gsm8k/learning_rate.sh        # GSM8K=FOLDER: gsm8k_train.jsonl, gsm8k_test.jsonl; none: the hub
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "an instruct model, as in the seed"
STEPS=${STEPS:-300} data=datasets/gsm8k-rate
[ -e $data ] || "$PYTHON" prepare_data.py bench --task gsm8k --output $data ${GSM8K:+--bench-source "$GSM8K"} --seed "$SEED"
files=$data/gsm8k/rl
for rate in 1e-6 5e-6; do
    train train_rl.py gsm8k-$rate --task gsm8k --state-path "$MODEL" --data $files/bench_rl_train.jsonl --max-steps "$STEPS" --batch-size 8 \
        --group-size 8 --kl-coef 0.001 --learning-rate $rate --max-tokens 1024 --max-turns 1 --max-seq-len 2048
done
# bench_test is test[200:500], which nothing was chosen on. Greedy is shown for comparison only: it hides gains.
for name in base 1e-6 5e-6; do
    weights=(); [ $name = base ] || weights=(--model-path runs/gsm8k-$name)
    common=(--task gsm8k --base-model "$MODEL" "${weights[@]}" --max-tokens 1024 --max-turns 1)
    "$PYTHON" eval.py --output outputs/gsm8k-$name "${common[@]}" --data $files/bench_test.jsonl --samples 8 --pass-at 1,8 --temperature 1
    "$PYTHON" eval.py --output outputs/gsm8k-$name-greedy "${common[@]}" --data $files/bench_test.jsonl --temperature 0
    "$PYTHON" eval.py --output outputs/gsm8k-$name-64 "${common[@]}" --data $files/bench_test.jsonl --limit 50 --samples 64 --pass-at 1,8,64 --temperature 1
    "$PYTHON" eval.py --output outputs/gsm8k-$name-r1 "${common[@]}" --data $files/bench_test_r1.jsonl --samples 8 --temperature 1
done
"$PYTHON" analysis.py paired outputs/gsm8k-base-greedy outputs/gsm8k-5e-6-greedy
"$PYTHON" analysis.py solved outputs/gsm8k-base-64 outputs/gsm8k-5e-6-64
"$PYTHON" analysis.py cross outputs/gsm8k-{base,5e-6}{,-r1}
