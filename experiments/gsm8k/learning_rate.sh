#!/usr/bin/env bash
# GRPO on grade-school problems at two learning rates, and what it does to pass@64 (seed 004, section 3.4).
#
# question: is 1e-6 too small to move a 1.5 B model, and does RL widen what it can solve or only make it surer?
# varies: the learning rate: 1e-6 or 5e-6
# prediction: 1e-6 nothing in 150 steps; 5e-6 +.15 or more at temperature 1, less than half of that greedy; pass@64 the same; #### far more often
# prediction: half a billion parameters, 40 steps of 64: 1e-6 within 3 points of the start, 5e-6 +.05 or more at temperature 1; pass@64 the same within 2 of 25 questions
# measured: Qwen2.5-Coder-0.5B-Instruct (weights from 4 bits), seed 42, d6c32ce, inline.list; 95 % intervals, over rows; 40 steps of 8 x 8, KL 0, 320 tokens; 100 questions of test[200:500], 25 of them x 64
# measured: temperature 1, x 8: start 16.5 % [12.2, 21.0]; 1e-6 23.1 % [17.2, 29.6], +6.6 [+2.9, +10.1], p = .0009; 5e-6 19.0 % [14.0, 24.5], +2.5 [-1.3, +6.4], p = .22; 1e-6 to 5e-6 -4.1 [-8.8, +0.4], p = .095
# measured: greedy: 31.0 % -> 29.0 % (p = .77) and 21.0 % (-10.0 [-20.0, -1.0], p = .076)
# measured: pass@64, n = 25: 68.0 % -> 68.0 % (only before 2, only after 2) and 84.0 % (only before 1, only after 5, exact p = .22); pass@1 there 11.2 -> 14.9 and 16.4 %
# measured: cut off at 320 tokens 33.8 -> 32.1 and 2.0 %; right of those not cut off 24.9 -> 34.1 and 19.4 %; 259 -> 257 and 135 tokens; "#### number" at the end 0.8 -> 0.0 and 0.0 %; r1 wording 2.6 -> 3.0 and 14.2 % (+11.6 [+8.0, +15.5])
# reconciled: ✗ against the seed, where 1e-6 did nothing: after 40 steps only 1e-6 had gained for sure, within the same length and the same share cut off
# reconciled: ✗ 5e-6 learnt to be brief before anything else: every third answer was cut off, so brevity paid first; it solves fewer of those it finishes. A limit of tokens is part of the reward: 400 in the list now, and the seed's 1,024 if there is room
# reconciled: ✓ greedy gains less than temperature 1 at both rates
# reconciled: ≈ pass@64 same at 1e-6; at 5e-6 net 4 of 25, more than the 2 that were promised, and not more than chance
# reconciled: ✗ #### did not spread, though the wording asks for it: nothing pays for it, and \boxed{} was there already
#
#   MODEL=Qwen/Qwen2.5-1.5B-Instruct bash experiments/gsm8k/learning_rate.sh        # GSM8K=FOLDER: gsm8k_train.jsonl, gsm8k_test.jsonl; none: the hub
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
need_model "an instruct model, as in the seed"
STEPS=${STEPS:-300} TOKENS=${TOKENS:-1024} GROUP=${GROUP:-8} KL=${KL:-0.001} RATES=${RATES:-1e-6 5e-6} LIMITED=${LIMITED:-0} CEILING=${CEILING:-50}
data=datasets/gsm8k-rate files=datasets/gsm8k-rate/gsm8k/rl # LIMITED: questions of the held-out 300, 0 = all; CEILING: those sampled 64 times
if part data && [ ! -e $data ]; then
    "$PYTHON" prepare_data.py bench --task gsm8k --output $data ${GSM8K:+--bench-source "$GSM8K"} --seed "$SEED"
fi
# bench_test is test[200:500], which nothing was chosen on. Greedy is shown for comparison only: it hides gains.
for name in base $RATES; do
    part $name || continue
    common=(--task gsm8k --base-model "$MODEL" --inject '' --max-tokens "$TOKENS" --max-turns 1 --max-seq-len $((TOKENS + 1024)) --concurrency 256)
    if [ $name != base ]; then
        train train_rl.py gsm8k-$name --task gsm8k --state-path "$MODEL" --data $files/bench_rl_train.jsonl --max-steps "$STEPS" --batch-size 8 \
            --group-size "$GROUP" --kl-coef "$KL" --learning-rate $name --max-tokens "$TOKENS" --max-turns 1 --max-seq-len $((TOKENS + 1024)) --save-every 0
        common+=(--model-path runs/gsm8k-$name)
    fi
    "$PYTHON" eval.py --output outputs/gsm8k-$name "${common[@]}" --data $files/bench_test.jsonl --limit "$LIMITED" --samples 8 --pass-at 1,8 --temperature 1
    "$PYTHON" eval.py --output outputs/gsm8k-$name-greedy "${common[@]}" --data $files/bench_test.jsonl --limit "$LIMITED" --temperature 0
    [ "$CEILING" = 0 ] || "$PYTHON" eval.py --output outputs/gsm8k-$name-64 "${common[@]}" --data $files/bench_test.jsonl --limit "$CEILING" --samples 64 \
        --pass-at 1,8,64 --temperature 1
    "$PYTHON" eval.py --output outputs/gsm8k-$name-r1 "${common[@]}" --data $files/bench_test_r1.jsonl --limit "$LIMITED" --samples 8 --temperature 1
done
if part report; then
    last=${RATES##* }
    "$PYTHON" analysis.py paired outputs/gsm8k-base outputs/gsm8k-$last
    "$PYTHON" analysis.py paired outputs/gsm8k-base-greedy outputs/gsm8k-$last-greedy
    [ "$CEILING" = 0 ] || "$PYTHON" analysis.py solved outputs/gsm8k-base-64 outputs/gsm8k-$last-64
    "$PYTHON" analysis.py cross outputs/gsm8k-{base,$last}{,-r1}
fi
