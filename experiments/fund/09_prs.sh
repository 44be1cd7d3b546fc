#!/usr/bin/env bash
# question: Does it help to pay for the thought first and for the action later (PRS)?
# varies: constant weights against +0.5 for the thought in the first half and +0.5 for the action in the second.
# prediction: Worse than constant weights after the same number of steps: half of them hardly pay for the tool.
# seed: Score 76 -> 71 % (section 3.3.1).
# expect: tool off prs < 0
# learnt: coder-0.5B: ✓ worse in both seeds, as predicted and as in the seed. Seed 1 shows how: a thought that only has to be there pays 0.7, and
# learnt: the run ends with 'Hey there.' as its thought, the greeting of the request; a reasoned thought in 20 % of the rows against 99 %.
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
# RESULT {"model": "Qwen2.5-Coder-0.5B-Instruct (dequantized Q4)", "commit": "13414fd6de", "seeds": 2, "arms": {"off": {"tool": {"value": 0.7232, "low": 0.689, "high": 0.7598, "n": 820, "each": [0.739, 0.7073]}, "reasoning": {"value": 0.9732, "low": 0.9622, "high": 0.9841, "n": 820, "each": [0.9585, 0.9878]}, "tool:combination": {"value": 0.8229, "low": 0.7292, "high": 0.9062, "n": 96, "each": [0.8542, 0.7917]}, "tool:multi": {"value": 0.6882, "low": 0.6353, "high": 0.7412, "n": 340, "each": [0.7235, 0.6529]}, "zero_std": {"value": 0.4963, "low": 0.4475, "high": 0.5463, "n": 100, "each": [0.495, 0.4975]}, "silent": {"value": 0.4963, "low": 0.4475, "high": 0.5463, "n": 100, "each": [0.495, 0.4975]}}, "prs": {"tool": {"value": 0.6207, "low": 0.5841, "high": 0.6549, "n": 820, "each": [0.5927, 0.6488]}, "reasoning": {"value": 0.5817, "low": 0.561, "high": 0.6024, "n": 820, "each": [0.2, 0.9634]}, "tool:combination": {"value": 0.5312, "low": 0.4375, "high": 0.625, "n": 96, "each": [0.3542, 0.7083]}, "tool:multi": {"value": 0.5676, "low": 0.5118, "high": 0.6236, "n": 340, "each": [0.5235, 0.6118]}, "zero_std": {"value": 0.57, "low": 0.5175, "high": 0.62, "n": 100, "each": [0.55, 0.59]}, "silent": {"value": 0.57, "low": 0.5175, "high": 0.62, "n": 100, "each": [0.55, 0.59]}}}, "difference": {"value": -0.1024, "low": -0.1415, "high": -0.0658, "n": 410}, "verdict": "✓", "when": "2026-11-29"}
