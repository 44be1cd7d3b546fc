#!/usr/bin/env bash
# question: Do more demonstrations with reasoning make the reasoning better and the choice of tools worse?
# varies: 50 against 300 demonstrations in the SFT (the seed's 1500: SIZES="50 300 1500"); RL=1 puts GRPO behind each.
# prediction: Both rise with the rows: demonstrations whose tools are right teach tools as well.
# seed: 300 rows: reasoning +10 %, tool 81 -> 75 % (section 3.3.3).
# expect: tool sft50 sft300 < 0
. "$(dirname "$0")/common.sh"
for size in ${SIZES:-50 300}; do
    name=react-sft$size
    SFT_ROWS=$size data "$name" --form react
    [ -z "${RL:-}" ] || start "$name"
    for seed in $SEEDS; do
        if [ -n "${RL:-}" ]; then rl "sft$size" "$seed" "$name" "$name"; continue; fi
        start "$name" "$name-$seed" --seed "$seed"
        evaluate "sft$size" "fund-$tag-$name-$seed" "fund-$tag-$name-$seed" "$name"
    done
done
record reasoning tool:domain tool:combination
exit # below: what its runs measured (ledger.py writes it)
