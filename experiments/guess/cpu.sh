#!/usr/bin/env bash
# Guess-number from nothing on two CPU cores: a tiny model, SFT on the program teacher's games, GRPO, three columns of evaluation.
#
# question: can a model of under a million parameters, made from nothing, learn bisection from a teacher, and does RL finish what SFT began?
# varies: RL or none, after the same SFT
# prediction: SFT above .7 on the training wording with turns near bisection's; RL adds .1 there and less elsewhere; N = 1000 near its floor (no arithmetic)
# measured: two CPU cores of their own a variant, torch 2.11, seed 42, d6c32ce; 100 secrets a column x 2 at temperature 1; training wording, held-out wording, N = 1000; 95 % intervals; guesses when right (bisection on the same)
# measured: GAMES=4000 EPOCHS=3 (the settings below; SFT was stopped after 210 s at step 296 of 339): SFT 97.5 % [95.0, 99.5] in 5.79 (5.79), 97.0 % [94.0, 99.5] in 5.81 (5.77), 10.0 % [4.0, 16.0]; RL STEPS=30 RATE=1e-4 98.0 % [96.0, 99.5] in 5.86 (5.80), 90.0 % [84.5, 94.5] in 5.81 (5.76), 10.0 % [4.0, 16.0]; all 300 rows -2.2 points [-4.0, -0.5], sign-flip p = .025, held-out wording alone -7.0 [-12.0, -2.5], p = .01; solved in two samples by both 205, only SFT 4, only RL 1
# measured: seed 43, SFT to its end (339 steps; 4292ad8, shared cores, so no clock): SFT 94.5 % [91.0, 97.5], 97.5 % [95.0, 99.5], 5.5 % [2.0, 10.0]; RL 92.0 % [87.5, 96.0], 91.5 % [86.5, 96.0], 5.0 % [1.0, 10.0]; all rows -3.0 [-5.2, -1.0], p = .0068, held-out wording alone -6.0 [-11.0, -1.5], p = .029; solved in two samples by both 197, only SFT 9, only RL 0, exact p = .0039
# measured: clock: 8.6 minutes in all: data and model 19 s, SFT 212, RL 162, two evaluations 93, gold, random and reports 27
# measured: GAMES=2000 EPOCHS=2 (114 steps): SFT 46.0 % [37.5, 54.0], 34.5 % [27.5, 42.0], 4.0 % [1.5, 7.0]; RL stopped after 210 s, all rows: 2e-4 KL .05, 18 steps of 128 games -1.7 [-5.3, +2.0], p = .42; 5e-4 KL .1, 17 steps -6.5 [-10.3, -2.7], p = .0013; 3e-4 KL .05, 10 steps of 256 -3.5 [-7.3, +0.3], p = .079
# measured: before, with WORDINGS=4 GAMES=2000 STEPS=40 RATE=5e-5: SFT 78.5 %, 40.0 %, 6.5 %; RL all rows -2.8 [-5.5, -0.2], p = .049; Floors: any number 9.6 % and 1.0 %, any possible number 87.1 % and 33.8 %
# reconciled: ✓ SFT above .7 with turns near bisection's: it is bisection, 96.5 % of the guesses halve
# reconciled: ✓ ten wordings instead of four and twice the games: words not seen are played as well as words seen (97.0 and 97.5 %; before 40.0 and 78.5 %)
# reconciled: ✗ N = 1000: .10, under the floor of any possible number (.34). It writes "between 1 and 100" there too (197 of 200 games), so the demonstrated range was learnt, not the range of the task
# reconciled: ✗ RL did not add .1: in none of five settings is it above SFT, in three it is below beyond chance, in these with both seeds. At 97 % 3 of 4 groups are flat; what it moves is the wording that it does not see, where games lose their thread ("between 74 and 77662..."). At 46 % and 2,300 games the gradient of 128 games is mostly noise. STEPS and RATE below show this; for playing, take runs/guess-sft
#
#   bash experiments/guess/cpu.sh
#
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
TAG=${TAG:-guess} WORDINGS=${WORDINGS:-10} GAMES=${GAMES:-4000} EPOCHS=${EPOCHS:-3} SFT_BATCH=${SFT_BATCH:-32} SFT_RATE=${SFT_RATE:-2e-3}
STEPS=${STEPS:-30} RATE=${RATE:-1e-4} QUESTIONS=${QUESTIONS:-16} GROUP=${GROUP:-8} KL=${KL:-0} WIDTH=${WIDTH:-128} LAYERS=${LAYERS:-4}
data=datasets/$TAG-cpu model=models/$TAG-cpu files=datasets/$TAG-cpu/guess
episode=(--task guess --max-tokens 300 --max-seq-len 512)
clock() { echo "clock: $SECONDS s from the start, after $1"; }

[ -e $data ] || "$PYTHON" prepare_data.py all --task guess --output $data --templates "$WORDINGS" --sft-size "$GAMES" --seed "$SEED"
[ -e $model ] || "$PYTHON" make_model.py --texts $files/sft/sft_train.jsonl $files/rl/*.jsonl --out $model --width "$WIDTH" --layers "$LAYERS"
clock "data and model"
train train_sft.py $TAG-sft --task guess --base-model $model --rank 0 --data-dir $files/sft --epochs "$EPOCHS" --batch-size "$SFT_BATCH" \
    --learning-rate "$SFT_RATE" --schedule cosine --warmup 0.05 --grad-clip 1
clock SFT
train train_rl.py $TAG-rl --state-path runs/$TAG-sft --data $files/rl/bench_rl_train.jsonl --max-steps "$STEPS" --epochs 99 \
    --batch-size "$QUESTIONS" --group-size "$GROUP" --learning-rate "$RATE" --kl-coef "$KL" --warmup-steps 5 --grad-clip 1 --save-every 0 "${episode[@]}"
clock RL
for name in sft rl; do
    "$PYTHON" eval.py --output outputs/$TAG-$name --base-model $model --model-path runs/$TAG-$name --data $files/rl/bench_test.jsonl \
        --temperature 1 --samples 2 --pass-at 1,2 --concurrency 128 "${episode[@]}"
done
clock "the two evaluations"
"$PYTHON" eval.py --output outputs/$TAG-gold --policy gold --base-model $model --data $files/rl/bench_test.jsonl "${episode[@]}"
"$PYTHON" eval.py --output outputs/$TAG-random --policy random --base-model $model --data $files/rl/bench_test.jsonl "${episode[@]}"
"$PYTHON" analysis.py cross --by-task outputs/$TAG-sft outputs/$TAG-rl
"$PYTHON" analysis.py paired outputs/$TAG-sft outputs/$TAG-rl
"$PYTHON" analysis.py solved outputs/$TAG-sft outputs/$TAG-rl
clock everything
