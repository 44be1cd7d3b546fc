#!/usr/bin/env bash
# question: Does it help to show the weak categories three times?
# varies: --oversample 1 against 3, at the same number of steps.
# prediction: No difference that the interval can tell from 0: at equal steps the weak categories get a larger share, the others a smaller one.
# seed: Worse than the baseline in everything; it blames groups without variance (section 3.1.2).
# expect: tool plain thrice < 0
. "$(dirname "$0")/common.sh"
data plain --form tool-only --reward-mode rules-tool
data thrice --form tool-only --reward-mode rules-tool --oversample 3
start plain
for seed in $SEEDS; do
    rl plain "$seed" plain plain --max-reward 0.6
    rl thrice "$seed" thrice plain --max-reward 0.6
done
record tool:simple tool:domain tool:intraday tool:combination
exit # below: what its runs measured (ledger.py writes it)
