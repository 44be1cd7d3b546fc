#!/usr/bin/env bash
# question: Do a hundred more rows about settlement help with settlement?
# varies: --domain-size 0 against 100, at the same number of steps.
# prediction: No difference that the interval can tell from 0: the wordings are those of the rows that are there already.
# seed: No effect; nearly all groups flat (section 3.1.3).
# expect: tool:domain plain more > 0.03
# learnt: coder-0.5B: ≈ +29 and +2 points by seed: the first is a weak run of the arm without (35 %), not a strong one with (65 and 71 %).
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
# RESULT {"model": "Qwen2.5-Coder-0.5B-Instruct (dequantized Q4)", "commit": "13414fd6de", "seeds": 2, "arms": {"plain": {"tool:domain": {"value": 0.5208, "low": 0.4479, "high": 0.5938, "n": 96, "each": [0.3542, 0.6875]}, "tool": {"value": 0.7878, "low": 0.7573, "high": 0.8171, "n": 820, "each": [0.7488, 0.8268]}, "tool:simple": {"value": 0.8854, "low": 0.8281, "high": 0.9323, "n": 192, "each": [0.8333, 0.9375]}, "zero_std": {"value": 0.82, "low": 0.7788, "high": 0.8588, "n": 100, "each": [0.84, 0.8]}, "silent": {"value": 0.82, "low": 0.7788, "high": 0.8588, "n": 100, "each": [0.84, 0.8]}}, "more": {"tool:domain": {"value": 0.6771, "low": 0.5521, "high": 0.7917, "n": 96, "each": [0.6458, 0.7083]}, "tool": {"value": 0.7585, "low": 0.7232, "high": 0.7927, "n": 820, "each": [0.7171, 0.8]}, "tool:simple": {"value": 0.8438, "low": 0.7812, "high": 0.901, "n": 192, "each": [0.7917, 0.8958]}, "zero_std": {"value": 0.85, "low": 0.8125, "high": 0.8862, "n": 100, "each": [0.8525, 0.8475]}, "silent": {"value": 0.85, "low": 0.8125, "high": 0.8862, "n": 100, "each": [0.8525, 0.8475]}}}, "difference": {"value": 0.1562, "low": 0.0521, "high": 0.2604, "n": 48}, "verdict": "≈", "when": "2026-11-29"}
