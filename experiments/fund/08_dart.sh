#!/usr/bin/env bash
# question: Does it help combinations to weigh the tokens of the call more than those of the reasoning (DART)?
# varies: --dart off against 0.3,0.7.
# prediction: No difference that the interval can tell from 0: every token of a trajectory has the same advantage, and most are reasoning.
# seed: Score 76 -> 73 %, combinations 78 -> 78 %, "more stable" (section 3.4.3).
# expect: tool:combination plain dart > 0
. "$(dirname "$0")/common.sh"
data react --form react
start react
for seed in $SEEDS; do
    rl plain=truth "$seed" react react
    rl dart "$seed" react react --dart 0.3,0.7
done
record reasoning tool:domain tool:multi
exit # below: what its runs measured (ledger.py writes it)
