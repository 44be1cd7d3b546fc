#!/usr/bin/env bash
# question: Does it matter that full marks are 0.8 and not 1.0?
# varies: the reward rules-tool (at most 0.8) against rules-full-tool, the same and 0.2 for a plan (at most 1.0).
# prediction: No difference in the tool: advantages are divided by the group's deviation, so a constant 0.2 cancels; only the plan is learnt.
# seed: +6 % at once (section 3.6.1).
# expect: tool low high > 0.03
. "$(dirname "$0")/common.sh"
data react --form react
start react
for seed in $SEEDS; do
    rl low=rules-tool "$seed" react react --set reward_mode=rules-tool --max-reward 0.8
    rl high=rules-full-tool "$seed" react react --set reward_mode=rules-full-tool
done
record tool:combination tool:multi reasoning
exit # below: what its runs measured (ledger.py writes it)
