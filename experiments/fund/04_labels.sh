#!/usr/bin/env bash
# question: How much of the jump in combinations is the right label, and how much the form with thought and plan?
# varies: three arms: wrong labels and the bare tool; right labels and the bare tool; right labels and ReAct. SFT and RL on the same labels.
# prediction: The label alone brings most of it; ReAct adds little at this size.
# seed: 12 -> 91 % on combinations for both changes at once (section 3.5); it never changed one alone.
# expect: tool:combination wrong react > 0.3
# learnt: coder-0.5B: ≈ at the bound of 30 points, and the two changes apart say what the seed could not: the label alone +47 points on combinations
# learnt: [+33, +60], ReAct after it -27 [-36, -19] (tool in all rows: +20 and -15). The label is the whole gain. The form costs: after 100
# learnt: demonstrations the thought is still a phrase ('There are 2 steps and their order matters, so first ...') and says little about the tool.
. "$(dirname "$0")/common.sh"
data wrong --form tool-only --labels wrong --reward-mode rules-tool
data plain --form tool-only --reward-mode rules-tool
data react --form react
start plain
start wrong
start react
for seed in $SEEDS; do
    rl wrong "$seed" wrong wrong --max-reward 0.6
    rl plain "$seed" plain plain --max-reward 0.6
    rl react=rules-tool "$seed" react react --set reward_mode=rules-tool --max-reward 0.8
done
record tool:simple tool:domain tool:intraday tool:multi
exit # below: what its runs measured (ledger.py writes it)
# RESULT {"model": "Qwen2.5-Coder-0.5B-Instruct (dequantized Q4)", "commit": "13414fd6de", "seeds": 2, "arms": {"wrong": {"tool:combination": {"value": 0.4479, "low": 0.3229, "high": 0.5836, "n": 96, "each": [0.5208, 0.375]}, "tool": {"value": 0.5829, "low": 0.5402, "high": 0.6244, "n": 820, "each": [0.5732, 0.5927]}, "tool:simple": {"value": 0.6562, "low": 0.5728, "high": 0.7397, "n": 192, "each": [0.6771, 0.6354]}, "tool:domain": {"value": 0.6562, "low": 0.5518, "high": 0.7607, "n": 96, "each": [0.5208, 0.7917]}, "tool:intraday": {"value": 0.6458, "low": 0.5521, "high": 0.7396, "n": 96, "each": [0.7292, 0.5625]}, "tool:multi": {"value": 0.5412, "low": 0.4794, "high": 0.6088, "n": 340, "each": [0.5, 0.5824]}, "zero_std": {"value": 0.8237, "low": 0.7863, "high": 0.86, "n": 100, "each": [0.845, 0.8025]}, "silent": {"value": 0.8237, "low": 0.7863, "high": 0.86, "n": 100, "each": [0.845, 0.8025]}}, "plain": {"tool:combination": {"value": 0.9167, "low": 0.8542, "high": 0.9688, "n": 96, "each": [0.8958, 0.9375]}, "tool": {"value": 0.7878, "low": 0.7573, "high": 0.8171, "n": 820, "each": [0.7488, 0.8268]}, "tool:simple": {"value": 0.8854, "low": 0.8281, "high": 0.9323, "n": 192, "each": [0.8333, 0.9375]}, "tool:domain": {"value": 0.5208, "low": 0.4479, "high": 0.5938, "n": 96, "each": [0.3542, 0.6875]}, "tool:intraday": {"value": 0.6458, "low": 0.5312, "high": 0.7396, "n": 96, "each": [0.4792, 0.8125]}, "tool:multi": {"value": 0.8118, "low": 0.7647, "high": 0.8588, "n": 340, "each": [0.8471, 0.7765]}, "zero_std": {"value": 0.82, "low": 0.7788, "high": 0.8588, "n": 100, "each": [0.84, 0.8]}, "silent": {"value": 0.82, "low": 0.7788, "high": 0.8588, "n": 100, "each": [0.84, 0.8]}}, "react": {"tool:combination": {"value": 0.6458, "low": 0.5312, "high": 0.7398, "n": 96, "each": [0.7708, 0.5208]}, "tool": {"value": 0.639, "low": 0.6012, "high": 0.6756, "n": 820, "each": [0.7195, 0.5585]}, "tool:simple": {"value": 0.7865, "low": 0.7188, "high": 0.849, "n": 192, "each": [0.8125, 0.7604]}, "tool:domain": {"value": 0.5, "low": 0.4167, "high": 0.5833, "n": 96, "each": [0.8125, 0.1875]}, "tool:intraday": {"value": 0.7083, "low": 0.5935, "high": 0.8229, "n": 96, "each": [0.7708, 0.6458]}, "tool:multi": {"value": 0.5735, "low": 0.5147, "high": 0.6324, "n": 340, "each": [0.6118, 0.5353]}, "zero_std": {"value": 0.4925, "low": 0.4462, "high": 0.54, "n": 100, "each": [0.455, 0.53]}, "silent": {"value": 0.4925, "low": 0.4462, "high": 0.54, "n": 100, "each": [0.455, 0.53]}}}, "difference": {"value": 0.1979, "low": 0.0729, "high": 0.3229, "n": 48}, "verdict": "≈", "when": "2026-11-29"}
