#!/usr/bin/env bash
# question: Does it help combinations to weigh the tokens of the call more than those of the reasoning (DART)?
# varies: --dart off against 0.3,0.7.
# prediction: No difference that the interval can tell from 0: every token of a trajectory has the same advantage, and most are reasoning.
# seed: Score 76 -> 73 %, combinations 78 -> 78 %, "more stable" (section 3.4.3).
# expect: tool:combination plain dart > 0
# learnt: coder-0.5B: ≈ +27 and -19 points by seed: no difference that can be told, as predicted.
. "$(dirname "$0")/common.sh"
data react --form react
start react
for seed in $SEEDS; do
    rl plain=truth "$seed" react react
    rl dart "$seed" react react --dart 0.3,0.7
done
record reasoning tool:domain tool:multi
exit # below: what its runs measured (ledger.py writes it)
# RESULT {"model": "Qwen2.5-Coder-0.5B-Instruct (dequantized Q4)", "commit": "13414fd6de", "seeds": 2, "arms": {"plain": {"tool:combination": {"value": 0.5312, "low": 0.4167, "high": 0.6562, "n": 96, "each": [0.3958, 0.6667]}, "tool": {"value": 0.5646, "low": 0.5244, "high": 0.6037, "n": 820, "each": [0.4829, 0.6463]}, "reasoning": {"value": 0.9805, "low": 0.9695, "high": 0.9902, "n": 820, "each": [0.9927, 0.9683]}, "tool:domain": {"value": 0.4583, "low": 0.3333, "high": 0.5938, "n": 96, "each": [0.375, 0.5417]}, "tool:multi": {"value": 0.4618, "low": 0.4, "high": 0.5206, "n": 340, "each": [0.3824, 0.5412]}, "zero_std": {"value": 0.5138, "low": 0.46, "high": 0.5687, "n": 100, "each": [0.5175, 0.51]}, "silent": {"value": 0.5138, "low": 0.46, "high": 0.5687, "n": 100, "each": [0.5175, 0.51]}}, "dart": {"tool:combination": {"value": 0.5729, "low": 0.4792, "high": 0.6667, "n": 96, "each": [0.6667, 0.4792]}, "tool": {"value": 0.6098, "low": 0.5756, "high": 0.6451, "n": 820, "each": [0.6634, 0.5561]}, "reasoning": {"value": 0.9988, "low": 0.9963, "high": 1.0, "n": 820, "each": [0.9976, 1.0]}, "tool:domain": {"value": 0.5208, "low": 0.4583, "high": 0.5833, "n": 96, "each": [0.9375, 0.1042]}, "tool:multi": {"value": 0.5765, "low": 0.5176, "high": 0.6353, "n": 340, "each": [0.6471, 0.5059]}, "zero_std": {"value": 0.4713, "low": 0.42, "high": 0.5238, "n": 100, "each": [0.4025, 0.54]}, "silent": {"value": 0.4713, "low": 0.42, "high": 0.5238, "n": 100, "each": [0.4025, 0.54]}}}, "difference": {"value": 0.0417, "low": -0.0729, "high": 0.1357, "n": 48}, "verdict": "≈", "when": "2026-11-29"}
