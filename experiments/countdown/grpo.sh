#!/usr/bin/env bash
# Countdown with three numbers, GRPO from a base model (seed 004, section 3.5), and what it does to grade-school problems under two wordings.
#
# question: does reasoning grow or shrink when the task is easy, and is what RL teaches bound to the wording it was taught in?
# varies: RL or none; read on two tasks and two wordings
# prediction: right .02 -> above .5 on Countdown-3, texts at most half as long; GSM8K falls far more under the r1 wording than under the neutral one
# prediction: half a billion parameters, 60 steps of 8 x 16, 256 tokens: right .01 -> .3 or more, mostly by one sum or difference; texts at most half as long; pass@64 moves by less than pass@1
# measured: Qwen2.5-Coder-0.5B-Instruct (weights from 4 bits), seed 42, d6c32ce, inline.list; 95 % intervals, over rows; 60 steps of 8 x 16 at 5e-6, KL 0; 100 held-out questions x 64 at temperature 1
# measured: pass@1 0.2 % [0.1, 0.3] -> 16.0 % [9.0, 23.9]; pass@8 1.2 -> 16.0 %; pass@64 9.0 [4.0, 15.0] -> 16.0 % [9.0, 24.0], +7.0 [+1.0, +13.0]: solved by both 7, only before 2, only after 9, exact McNemar p = .065
# measured: 276 -> 16 tokens, 15.4 -> 0 % cut off; with * or / 20.3 -> 0.0 %; the floor "add everything" has 16.0 %, "sums and differences" 86.0 %
# measured: GSM8K, 200 questions, greedy: neutral wording 26.5 % [20.9, 33.0] -> 1.5 % [0.5, 4.3], 288 -> 48 tokens; r1 wording 0.5 % [0.1, 2.8] -> 2.0 % [0.8, 5.0], 232 -> 13 tokens
# reconciled: ✗ .3 was promised: RL ended in one formula. 6,343 of 6,400 answers are N + N + N, no word before it; right are just the 16 questions whose numbers add up. pass@1 = pass@64: nothing is left to sample
# reconciled: ✗ why: right was 0.2 % a sample, the v1 ladder (.05 + .05 + .15 for form and numbers) was climbed by step 8 and from there 96 % of the groups were flat. Where right is too rare to be sampled, a ladder teaches its lower rungs and ends the search; the seed began at 2 %, ten times that
# reconciled: how it got there: by step 8 all 16 samples of a logged group were (N + N) / N, the form of the prompt's example; then (N + N) * N from step 12, N + N * N from 31, N + N + N from 40. One formula at a time, each found by a rare slip that was right
# reconciled: ✓ texts at most half as long (6 %)
# reconciled: ✗ pass@64 moved, from formulas that had never been written whole (the instruct model copied the prompt's example, (1 + 2) / 3, in 50 of 200 texts); it is the floor's 16, not new search
# reconciled: ✗ against the seed (-.36 under r1, -.13 under neutral): here the neutral wording lost 25.0 points [19.0, 32.0] with its words (48 tokens of 288); r1 had nothing to lose. "Answer at once" was not bound to the wording
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
