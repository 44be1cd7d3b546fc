#!/usr/bin/env bash
# The spectra agent on a real language model that is given eyes here: pretrain.py (tower), SFT, GRPO through the zoom tool, evaluation.
#
# question: does GRPO through the tool loop raise a 0.5 B agent's accuracy over its cold start, and does it do so by looking where it matters?
# varies: SFT against SFT and GRPO; then the same weights without looking, and looking anywhere
# prediction: +5 points or more on synthetic spectra, looks at deciding windows from a half to three quarters; less on templates of real stars
# measured: not run yet
# reconciled: not run yet
#
#   LANGUAGE=Qwen/Qwen2.5-Coder-0.5B-Instruct bash experiments/spec_o3/graft.sh         # one GPU; or a local folder
#   SPECTRA=DIR bash experiments/spec_o3/graft.sh      # also learns and is tested on noisy draws from star templates (Redrock's FITS files)
#   PART="data pretrain" bash experiments/spec_o3/graft.sh      # some of: data pretrain sft rl eval report
#
# Every stage skips what is finished and goes on where it was stopped.
set -euo pipefail
. "$(dirname "$0")/../stages.sh"
LANGUAGE=${LANGUAGE:-Qwen/Qwen2.5-Coder-0.5B-Instruct} SPECTRA=${SPECTRA:-}
NAME=${NAME:-graft} MODEL=${MODEL:-models/graft-vlm} DEVICE=${DEVICE:-cuda} WORKERS=${WORKERS:-16}
data=datasets/$NAME stars=datasets/$NAME-stars
episode=(--max-turns 4 --max-tokens ${TOKENS:-96} --max-seq-len 1536)

if part data; then # 336 x 168 pixels are 72 positions a picture
    "$PYTHON" prepare_data.py all --output "$data" --picture-size 336x168 --workers "$WORKERS" --seed "$SEED" \
        --sft-size ${SFT_SIZE:-2000} --train-size ${TRAIN_SIZE:-2000} --dev-size ${DEV_SIZE:-512} --test-size 0
    cp "$data/spec_o3/rl/bench_rl_train.jsonl" "$data/spec_o3/rl/mixed.jsonl"
    if [ -n "$SPECTRA" ]; then # both kinds in one file: paths in it are relative, and no two files have the same name
        "$PYTHON" prepare_data.py bench --source files --spectra "$SPECTRA" --output "$stars" --picture-size 336x168 --workers "$WORKERS" \
            --template-noise 12 --template-count ${TEMPLATE_COUNT:-60} --val-fraction 0.2 --seed "$SEED"
        cp -n "$stars"/spec_o3/rl/images/* "$data/spec_o3/rl/images/"
        cp -n "$stars"/spec_o3/rl/spectra/* "$data/spec_o3/rl/spectra/"
        cat "$stars/spec_o3/rl/bench_rl_train.jsonl" >> "$data/spec_o3/rl/mixed.jsonl"
    fi
fi

if part pretrain && [ ! -e "$MODEL/pretraining.json" ]; then
    "$PYTHON" pretrain.py graft-vlm --language "$LANGUAGE" --device "$DEVICE" --workers "$WORKERS" --out "$MODEL" ${PRETRAIN:-}
fi

if part sft; then # all weights but the tower's: each picture passes it once
    train train_sft.py $NAME-sft --base-model "$MODEL" --rank 0 --freeze-vision --data-dir "$data/spec_o3/sft" --max-seq-len 1536 \
        --epochs 2 --batch-size 16 --learning-rate ${SFT_RATE:-2e-5} --schedule cosine --warmup 0.05 --grad-clip 1 ${SFT:-}
fi

if part rl; then
    train train_rl.py ${RL_NAME:-$NAME-rl} --state-path "runs/$NAME-sft" --data "$data/spec_o3/rl/mixed.jsonl" "${episode[@]}" --tool-workers 8 \
        --max-steps ${RL_STEPS:-80} --batch-size ${BATCH:-16} --group-size 8 --learning-rate ${RL_RATE:-5e-6} --warmup-steps 5 --grad-clip 1 \
        --kl-coef ${KL:-0.02} --save-every 40 --keep-last 1 ${RL:-}
fi

if part eval; then # side by side: a GPU has room for several
    for kind in dev ${SPECTRA:+stars}; do
        file=$data/spec_o3/rl/bench_dev.jsonl
        [ $kind = dev ] || file=$stars/spec_o3/rl/bench_dev.jsonl
        flags=(--data "$file" --base-model "$MODEL" --temperature 1 --concurrency 128 --limit ${ROWS:-0} --seed "$SEED" "${episode[@]}")
        pids=() rl=(--model-path "runs/${RL_NAME:-$NAME-rl}")
        "$PYTHON" eval.py --output outputs/$NAME-$kind-base "${flags[@]}" & pids+=($!)
        "$PYTHON" eval.py --output outputs/$NAME-$kind-sft --model-path "runs/$NAME-sft" "${flags[@]}" & pids+=($!)
        "$PYTHON" eval.py --output outputs/$NAME-$kind-rl "${rl[@]}" "${flags[@]}" & pids+=($!)
        "$PYTHON" eval.py --output outputs/$NAME-$kind-no-tool "${rl[@]}" --policy no-tool "${flags[@]}" & pids+=($!)
        "$PYTHON" eval.py --output outputs/$NAME-$kind-random "${rl[@]}" --policy random-windows "${flags[@]}" & pids+=($!)
        for pid in "${pids[@]}"; do wait "$pid"; done # a bare `wait` would say nothing of one that failed
    done
fi

if part report; then
    for kind in dev ${SPECTRA:+stars}; do
        outputs=(outputs/$NAME-$kind-{base,sft,rl,no-tool,random})
        "$PYTHON" analysis.py table "${outputs[@]}"
        "$PYTHON" analysis.py paired outputs/$NAME-$kind-sft outputs/$NAME-$kind-rl
        "$PYTHON" analysis.py paired outputs/$NAME-$kind-no-tool outputs/$NAME-$kind-rl
        "$PYTHON" analysis.py compare "${outputs[@]}" --save outputs/$NAME-$kind-comparison
    done
    "$PYTHON" analysis.py curves "runs/${RL_NAME:-$NAME-rl}" --save outputs/$NAME-curves
    "$PYTHON" analysis.py report outputs/$NAME-dev-rl --save outputs/$NAME-report.html
fi
