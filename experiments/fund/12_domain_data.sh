#!/usr/bin/env bash
# question: Do a hundred more rows about settlement help with settlement?
# varies: --domain-size 0 against 100, at the same number of steps.
# prediction: No difference that the interval can tell from 0: the wordings are those of the rows that are there already.
# seed: No effect; nearly all groups flat (section 3.1.3).
# expect: tool:domain plain more > 0.03
. "$(dirname "$0")/common.sh"
data plain --form tool-only --reward-mode rules-tool
data more --form tool-only --reward-mode rules-tool --domain-size 100
start plain
for seed in $SEEDS; do
    rl plain "$seed" plain plain --max-reward 0.6
    rl more "$seed" more plain --max-reward 0.6
done
record tool:simple
exit # below: what its runs measured (ledger.py writes it)
