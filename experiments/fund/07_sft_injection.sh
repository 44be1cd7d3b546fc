#!/usr/bin/env bash
# question: Do more demonstrations with reasoning make the reasoning better and the choice of tools worse?
# varies: 50 against 300 demonstrations in the SFT before RL (the seed's 1500: SIZES="50 300 1500").
# prediction: Both rise with the rows: demonstrations whose tools are right teach tools as well.
# seed: 300 rows: reasoning +10 %, tool 81 -> 75 % (section 3.3.3).
# expect: tool sft50 sft300 < 0
. "$(dirname "$0")/common.sh"
for size in ${SIZES:-50 300}; do
    SFT_ROWS=$size data "react-sft$size" --form react
    start "react-sft$size"
    for seed in $SEEDS; do rl "sft$size" "$seed" "react-sft$size" "react-sft$size"; done
done
record reasoning tool:domain tool:combination
exit # below: what its runs measured (ledger.py writes it)
