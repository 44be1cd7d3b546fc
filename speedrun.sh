#!/usr/bin/env bash
# From nothing to a trained tool-using vision agent on two CPU cores: environment, data, SFT, GRPO, evaluation, figures, report.
#
#   bash speedrun.sh              # the whole thing
#   SMOKE=1 bash speedrun.sh      # the same path in under three minutes; learns nothing
#
# Every stage can be run by hand (copy its line), skips what is done and goes on after Ctrl-C: run the script again.
set -euo pipefail
. "$(dirname "$0")/setup.sh"
started=$(date +%s)

if [ "${SMOKE:-0}" = 1 ]; then
    name=smoke data=datasets/smoke sft_size=72 train_size=16 dev_size=20
    epochs=1 sft_batch=32 rl_steps=2 rl_batch=2 group=4 limit=10
else
    name=speedrun data=datasets sft_size=2000 train_size=2000 dev_size=512
    epochs=6 sft_batch=12 rl_steps=80 rl_batch=8 group=8 limit=0
fi
model=models/tiny-vlm       # made by pretrain.py on objects that nothing below draws from
episode=(--max-turns 4 --max-tokens 80 --max-seq-len 1024)

# A training run: skip it if it is finished, resume it if it began, else begin.
train() { # script, run name, flags ...
    local script=$1 run=$2; shift 2
    if [ -e "runs/$run/finished" ]; then echo "runs/$run is finished"
    elif [ -e "runs/$run/config.json" ]; then "$PYTHON" "$script" --resume "runs/$run"
    else "$PYTHON" "$script" --run-name "$run" "$@"; fi
}

# 1. Data: scripted demonstrations for SFT; questions for RL and for the evaluation. Split by object.
"$PYTHON" prepare_data.py all --task spec_o3 --source synthetic --output "$data" \
    --sft-size $sft_size --train-size $train_size --dev-size $dev_size --test-size 0
dev=(--data "$data/spec_o3/rl/bench_dev.jsonl" --limit $limit --base-model "$model" --temperature 1 --concurrency 64 "${episode[@]}")

# 2. Cold start: the format, and what a look is good for. All weights but those of the vision tower.
train train_sft.py $name-sft --base-model "$model" --rank 0 --freeze-vision --data-dir "$data/spec_o3/sft" \
    --epochs $epochs --batch-size $sft_batch --learning-rate 1.2e-3 --answer-weight 40 --schedule cosine --warmup 0.05 --grad-clip 1

# 3. GRPO through the tool loop: which window is worth a look. Without the anchor the format drifts at this rate (--kl-coef).
train train_rl.py $name-rl --state-path runs/$name-sft --data "$data/spec_o3/rl/bench_rl_train.jsonl" "${episode[@]}" \
    --max-steps $rl_steps --batch-size $rl_batch --group-size $group --learning-rate 3e-4 --kl-coef 0.2 --warmup-steps 10 --grad-clip 1 --save-every 20

# 4. Evaluation on held-out objects: base, SFT, RL, and what RL does without looking or looking anywhere.
"$PYTHON" eval.py --output outputs/$name-base "${dev[@]}"
"$PYTHON" eval.py --output outputs/$name-sft --model-path runs/$name-sft "${dev[@]}"
"$PYTHON" eval.py --output outputs/$name-rl --model-path runs/$name-rl "${dev[@]}"
"$PYTHON" eval.py --output outputs/$name-no-tool --model-path runs/$name-rl --policy no-tool "${dev[@]}"
"$PYTHON" eval.py --output outputs/$name-random --model-path runs/$name-rl --policy random-windows "${dev[@]}"

# 5. Figures, paired test, report.
outputs=(outputs/$name-base outputs/$name-sft outputs/$name-rl outputs/$name-no-tool outputs/$name-random)
figures=outputs/$name-figures
mkdir -p $figures
"$PYTHON" analysis.py curves runs/$name-rl --save $figures/rl-curves
"$PYTHON" analysis.py compare "${outputs[@]}" --save $figures/comparison
"$PYTHON" analysis.py report outputs/$name-rl --save $figures/report.html
"$PYTHON" analysis.py table "${outputs[@]}"
"$PYTHON" analysis.py paired outputs/$name-sft outputs/$name-rl
"$PYTHON" analysis.py paired outputs/$name-no-tool outputs/$name-rl
echo "$(( ($(date +%s) - started) / 60 )) minutes. Figures: $figures/comparison.png, $figures/rl-curves.png. Every look it took: $figures/report.html"
