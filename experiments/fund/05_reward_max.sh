#!/usr/bin/env bash
# question: Does it matter that full marks are 0.8 and not 1.0?
# varies: the reward rules-tool (at most 0.8) against rules-full-tool, the same and 0.2 for a plan (at most 1.0).
# prediction: No difference in the tool: advantages are divided by the group's deviation, so a constant 0.2 cancels; only the plan is learnt.
# seed: +6 % at once (section 3.6.1).
# expect: tool low high > 0.03
# learnt: coder-0.5B: ≈ +2 and +15 points by seed, where the second is a run of the low arm that fell back after step 20 (70 -> 52 % right). What
# learnt: both teach besides: `params` pays whatever fits the schema, so the account is left out of check_balance in 165 of the 264 calls whose tool
# learnt: is right.
. "$(dirname "$0")/common.sh"
data react --form react
start react
for seed in $SEEDS; do
    rl low=rules-tool "$seed" react react --set reward_mode=rules-tool --max-reward 0.8
    rl high=rules-full-tool "$seed" react react --set reward_mode=rules-full-tool
done
record tool:combination tool:multi reasoning
exit # below: what its runs measured (ledger.py writes it)
# RESULT {"model": "Qwen2.5-Coder-0.5B-Instruct (dequantized Q4)", "commit": "13414fd6de", "seeds": 2, "arms": {"low": {"tool": {"value": 0.639, "low": 0.6012, "high": 0.6756, "n": 820, "each": [0.7195, 0.5585]}, "tool:combination": {"value": 0.6458, "low": 0.5312, "high": 0.7398, "n": 96, "each": [0.7708, 0.5208]}, "tool:multi": {"value": 0.5735, "low": 0.5147, "high": 0.6324, "n": 340, "each": [0.6118, 0.5353]}, "reasoning": {"value": 0.7329, "low": 0.7, "high": 0.7622, "n": 820, "each": [0.7366, 0.7293]}, "zero_std": {"value": 0.4925, "low": 0.4462, "high": 0.54, "n": 100, "each": [0.455, 0.53]}, "silent": {"value": 0.4925, "low": 0.4462, "high": 0.54, "n": 100, "each": [0.455, 0.53]}}, "high": {"tool": {"value": 0.7232, "low": 0.689, "high": 0.7598, "n": 820, "each": [0.739, 0.7073]}, "tool:combination": {"value": 0.8229, "low": 0.7292, "high": 0.9062, "n": 96, "each": [0.8542, 0.7917]}, "tool:multi": {"value": 0.6882, "low": 0.6353, "high": 0.7412, "n": 340, "each": [0.7235, 0.6529]}, "reasoning": {"value": 0.9732, "low": 0.9622, "high": 0.9841, "n": 820, "each": [0.9585, 0.9878]}, "zero_std": {"value": 0.4963, "low": 0.4475, "high": 0.5463, "n": 100, "each": [0.495, 0.4975]}, "silent": {"value": 0.4963, "low": 0.4475, "high": 0.5463, "n": 100, "each": [0.495, 0.4975]}}}, "difference": {"value": 0.0841, "low": 0.0476, "high": 0.1207, "n": 410}, "verdict": "≈", "when": "2026-11-29"}
