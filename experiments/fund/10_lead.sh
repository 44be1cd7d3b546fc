#!/usr/bin/env bash
# question: Does it help to weigh the questions of weak categories more (GRPO-LEAD)?
# varies: --lead off against 0.3,3.
# prediction: Combinations gain a little and simple requests lose a little.
# seed: Combinations 78 -> 60 % (section 3.3.2).
# expect: tool:combination plain lead < 0
# learnt: coder-0.5B: ≈ -4 and +2 points by seed: the seed's fall by 18 is not here, and no gain either.
. "$(dirname "$0")/common.sh"
data react --form react
start react
for seed in $SEEDS; do
    rl plain=truth "$seed" react react
    rl lead "$seed" react react --lead 0.3,3
done
record tool:simple tool:domain tool:intraday tool:multi
exit # below: what its runs measured (ledger.py writes it)
# RESULT {"model": "Qwen2.5-Coder-0.5B-Instruct (dequantized Q4)", "commit": "13414fd6de", "seeds": 2, "arms": {"plain": {"tool:combination": {"value": 0.5312, "low": 0.4167, "high": 0.6562, "n": 96, "each": [0.3958, 0.6667]}, "tool": {"value": 0.5646, "low": 0.5244, "high": 0.6037, "n": 820, "each": [0.4829, 0.6463]}, "tool:simple": {"value": 0.776, "low": 0.7031, "high": 0.8438, "n": 192, "each": [0.7188, 0.8333]}, "tool:domain": {"value": 0.4583, "low": 0.3333, "high": 0.5938, "n": 96, "each": [0.375, 0.5417]}, "tool:intraday": {"value": 0.6458, "low": 0.5206, "high": 0.7604, "n": 96, "each": [0.5625, 0.7292]}, "tool:multi": {"value": 0.4618, "low": 0.4, "high": 0.5206, "n": 340, "each": [0.3824, 0.5412]}, "zero_std": {"value": 0.5138, "low": 0.46, "high": 0.5687, "n": 100, "each": [0.5175, 0.51]}, "silent": {"value": 0.5138, "low": 0.46, "high": 0.5687, "n": 100, "each": [0.5175, 0.51]}}, "lead": {"tool:combination": {"value": 0.5208, "low": 0.4062, "high": 0.6354, "n": 96, "each": [0.3542, 0.6875]}, "tool": {"value": 0.5878, "low": 0.5488, "high": 0.628, "n": 820, "each": [0.5561, 0.6195]}, "tool:simple": {"value": 0.7135, "low": 0.6354, "high": 0.7917, "n": 192, "each": [0.6562, 0.7708]}, "tool:domain": {"value": 0.8021, "low": 0.7292, "high": 0.8646, "n": 96, "each": [1.0, 0.6042]}, "tool:intraday": {"value": 0.5729, "low": 0.4688, "high": 0.6667, "n": 96, "each": [0.7917, 0.3542]}, "tool:multi": {"value": 0.4794, "low": 0.4206, "high": 0.5353, "n": 340, "each": [0.3647, 0.5941]}, "zero_std": {"value": 0.4537, "low": 0.395, "high": 0.5113, "n": 100, "each": [0.5725, 0.335]}, "silent": {"value": 0.4537, "low": 0.395, "high": 0.5113, "n": 100, "each": [0.5725, 0.335]}}}, "difference": {"value": -0.0104, "low": -0.1354, "high": 0.1042, "n": 48}, "verdict": "≈", "when": "2026-11-29"}
