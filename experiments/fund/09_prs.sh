#!/usr/bin/env bash
# question: Does it help to pay for the thought first and for the action later (PRS)?
# varies: constant weights against +0.5 for the thought in the first half and +0.5 for the action in the second.
# prediction: Worse than constant weights after the same number of steps: half of them hardly pay for the tool.
# seed: Score 76 -> 71 % (section 3.3.1).
# expect: tool off prs < 0
. "$(dirname "$0")/common.sh"
data react --form react
start react
mode=(--set reward_mode=rules-full-tool)
for seed in $SEEDS; do
    rl off=rules-full-tool "$seed" react react "${mode[@]}"
    # Parts come already weighed (0.2 and 0.3 of full marks), so a factor of 3.5 makes 0.2 into 0.7.
    rl prs "$seed" react react "${mode[@]}" --phase-weights "0:thought=3.5,action=1,valid_tool=1,params=1,plan=1;0.5:thought=1,action=2.67,valid_tool=1,params=1,plan=1"
done
record reasoning tool:combination tool:multi
exit # below: what its runs measured (ledger.py writes it)
