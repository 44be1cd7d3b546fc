#!/usr/bin/env bash
# Guess-number, three arms from one start: RL only, curriculum, seeded by the program teacher (seed 004, section 3.11). On a CPU.
#
# question: does bisection grow from a reward at the end alone, does an easier range first help, and what does a demonstration add?
# varies: what comes before the last RL steps: nothing, RL on the easy range, or SFT on 200 games of the program teacher
# prediction: seeded best on the training wording, curriculum above RL only; seeded turns nearest to bisection's; all arms lose on the held-out wording
# prediction: half a billion parameters, 42 steps of 128 games, N = 100: start .15; RL only .25, curriculum .3, seeded .9; after the teacher N = 1000 above .4, for the other arms below .1
# measured: Qwen2.5-Coder-0.5B-Instruct (weights from 4 bits), N = 100, 10 guesses, seed 42, d6c32ce, inline.list; 100 secrets a column x 4 at temperature 1; training wording, held-out wording, N = 1000; 95 % intervals
# measured: start (one epoch on 300 careless games) 12.2 % [9.0, 15.8], 14.8 % [11.2, 18.2], 1.5 % [0.5, 2.8]; curriculum (14 + 28 steps of 128 games at 5e-6) 29.5 % [22.0, 37.2], 28.5 % [21.8, 35.5], 3.8 % [1.0, 7.2], all rows +11.1 [+7.2, +15.2], p = .0001; pass@4 31.0 -> 33.0 %, p = .62
# measured: taught (90 SFT steps on 180 games of the teacher) 100 % of 400, 99.8 % [99.2, 100], 10.8 % [5.2, 17.0]; turns 5.80, bisection 5.80. RL only and RL after the teacher: not run (out of memory)
# measured: two CPU cores, 0.9 M parameters from nothing, N = 20, 5 guesses, seed 42, d6c32ce, STEPS=36 RATE=3e-4 QUESTIONS=16 GROUP=16, arms stopped after 210 s: start 25.0 % [20.5, 29.3], 22.5 %, 0 %; RL only (31 steps) 25.0 % [20.0, 30.2], 18.8 %, 0.2 %, all rows -1.2 [-3.8, +1.4]; curriculum (12 + 22) 3.2 % [1.5, 5.2], 2.5 %, 0 %; taught 25.8 % [20.0, 31.5], 22.2 %, 0 %; seeded (21 steps) 22.8 % [17.2, 28.2], 24.2 %, 0 %, all rows against taught -0.3 [-3.4, +3.0]
# reconciled: ✓ .3 for the curriculum, above .9 for the teacher, at once and under words not seen
# reconciled: ✗ bisection did not grow from the reward: of the curriculum's guesses 0.2 % halve (start 1.6 %). It grew a ladder: 3, 4 or 5 first, then 23, then 43, then down by one (31 % of all moves), and dropped the words (.12 thoughts a guess, 1.0 before). The seed's model of 1.5 B grew halving in 150 steps
# reconciled: ✗ N = 1000 was promised above .4 after the teacher (seed about .6): .11. It writes "between 1 and 1000" in 200 of 200 games and then guesses 50 (194 of 200), 75, 88: 180 games of one range taught numbers, not halving
# reconciled: ✗ on the CPU no arm beat its start. The teacher's 200 games are too few from nothing (first guess 10 in 195 of 200, but 17.5 % of the guesses are invalid); the curriculum fell into <think> without end at step 13 of 24: at 3e-4 with no KL nothing holds it, and a text that is cut off costs no more than a wrong guess
#
# The start stands where the seed's pretrained model stands: a tiny model that has seen games of a careless player (half of the guesses anywhere,
# nothing written down), so it can play, badly. All arms take STEPS RL updates on HIGH in all; the curriculum spends a third of them on EASY.
# With a pretrained model, on a GPU (../inline.list):
#   MODEL=Qwen/Qwen2.5-0.5B-Instruct CARELESS=300 TAG=large HIGH=100 EASY=20 GUESSES=10 STEPS=150 RATE=5e-6 SFT_RATE=1e-5 EPOCHS=2 bash experiments/guess/arms.sh
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
HIGH=${HIGH:-20} EASY=${EASY:-8} GUESSES=${GUESSES:-5} STEPS=${STEPS:-36} RATE=${RATE:-3e-4} KL=${KL:-0} QUESTIONS=${QUESTIONS:-8} GROUP=${GROUP:-8}
TAG=${TAG:-arms} WORDINGS=${WORDINGS:-4} EPOCHS=${EPOCHS:-10} SFT_BATCH=${SFT_BATCH:-32} SFT_RATE=${SFT_RATE:-2e-3} SAMPLES=${SAMPLES:-4} TEST=${TEST:-300}
data=datasets/guess-$TAG tokens=$((${TURN:-40} * GUESSES)) model=${MODEL:-models/guess-$TAG} # TURN: tokens of one guess and the reply to it
CARELESS=${CARELESS:-$([ -n "${MODEL:-}" ] && echo 0 || echo 2000)} # games of the careless player before all else; 0: MODEL as it is
episode=(--task guess --max-tokens $tokens --max-seq-len $((tokens + 300)))

rl() { # run, state, data, steps
    train train_rl.py "$1" --state-path "$2" --data "$data/guess/rl/$3.jsonl" --max-steps "$4" --epochs 99 --batch-size "$QUESTIONS" --group-size "$GROUP" \
        --learning-rate "$RATE" --kl-coef "$KL" --warmup-steps 5 --grad-clip 1 --save-every 0 "${episode[@]}"
}
sft() { # run, model, data, epochs, batch
    train train_sft.py "$1" --base-model "$2" --task guess --data-dir "$data/guess/$3" --rank 0 --epochs "$4" --batch-size "$5" \
        --learning-rate "$SFT_RATE" --schedule cosine --warmup 0.05 --grad-clip 1 --keep-last 1
}
evaluate() { # name, flags ...
    local name=$1; shift
    "$PYTHON" eval.py --output outputs/$TAG-"$name" --base-model "$model" --inject '' "$@" --data "$data/guess/rl/bench_test.jsonl" --temperature 1 \
        --samples "$SAMPLES" --pass-at "1,$SAMPLES" --concurrency 256 "${episode[@]}"
}

# Data, and the start: the model after games of the careless player, so that it can play; or MODEL as it is.
if part data; then
    if [ ! -e "$data/guess/sft-careless" ]; then
        flags=(--task guess --output "$data" --templates "$WORDINGS" --high "$HIGH" --easy-high "$EASY" --max-guesses "$GUESSES" --seed "$SEED")
        "$PYTHON" prepare_data.py sft "${flags[@]}" --player careless --sft-size $((CARELESS > 2 ? CARELESS : 2))
        mv "$data/guess/sft" "$data/guess/sft-careless"
        "$PYTHON" prepare_data.py all "${flags[@]}" --sft-size 200 --test-size "$TEST"
    fi
    [ -e "$model" ] || [ -n "${MODEL:-}" ] || "$PYTHON" make_model.py --texts "$data"/guess/sft*/sft_train.jsonl "$data"/guess/rl/*.jsonl --out "$model" --seed "$SEED"
    [ "$CARELESS" = 0 ] || sft "$TAG-start" "$model" sft-careless "${START_EPOCHS:-2}" "$SFT_BATCH"
fi
start=$model
[ "$CARELESS" = 0 ] || [ "${PART:-}" = report ] || start=$(ls -d runs/"$TAG"-start/checkpoints/*/sampler | tail -1) # an ordinary model folder

if part start; then
    evaluate start --model-path "$start"
fi
if part rl; then # arm 1: RL only
    rl "$TAG-rl" "$start" bench_rl_train "$STEPS"
    evaluate rl --model-path "runs/$TAG-rl"
fi
if part curriculum; then # arm 2: the easy range first
    rl "$TAG-easy" "$start" bench_rl_train_easy $((STEPS / 3))
    rl "$TAG-curriculum" "runs/$TAG-easy" bench_rl_train $((STEPS - STEPS / 3))
    evaluate curriculum --model-path "runs/$TAG-curriculum"
fi
if part seeded; then # arm 3: 200 games of the teacher, then RL
    sft "$TAG-taught" "$start" sft "$EPOCHS" "$SFT_BATCH"
    evaluate taught --model-path "runs/$TAG-taught"
    rl "$TAG-seeded" "runs/$TAG-taught" bench_rl_train "$STEPS"
    evaluate seeded --model-path "runs/$TAG-seeded"
fi
if part report; then
    "$PYTHON" analysis.py cross --by-task outputs/"$TAG"-{start,rl,curriculum,taught,seeded}
    "$PYTHON" analysis.py paired outputs/"$TAG"-rl outputs/"$TAG"-curriculum
    "$PYTHON" analysis.py paired outputs/"$TAG"-taught outputs/"$TAG"-seeded
    "$PYTHON" analysis.py solved outputs/"$TAG"-taught outputs/"$TAG"-seeded
fi
