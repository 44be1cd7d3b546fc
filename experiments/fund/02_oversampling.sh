#!/usr/bin/env bash
# question: Does it help to show the weak categories three times?
# varies: --oversample 1 against 3, at the same number of steps.
# prediction: No difference that the interval can tell from 0: at equal steps the weak categories get a larger share, the others a smaller one.
# seed: Worse than the baseline in everything; it blames groups without variance (section 3.1.2).
# expect: tool plain thrice < 0
# learnt: coder-0.5B: ≈ as predicted, not what the seed saw: +3 and -6 points by seed. Flat groups 85 against 82 %, so nothing for it to blame.
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
# RESULT {"model": "Qwen2.5-Coder-0.5B-Instruct (dequantized Q4)", "commit": "13414fd6de", "seeds": 2, "arms": {"plain": {"tool": {"value": 0.7878, "low": 0.7573, "high": 0.8171, "n": 820, "each": [0.7488, 0.8268]}, "tool:simple": {"value": 0.8854, "low": 0.8281, "high": 0.9323, "n": 192, "each": [0.8333, 0.9375]}, "tool:domain": {"value": 0.5208, "low": 0.4479, "high": 0.5938, "n": 96, "each": [0.3542, 0.6875]}, "tool:intraday": {"value": 0.6458, "low": 0.5312, "high": 0.7396, "n": 96, "each": [0.4792, 0.8125]}, "tool:combination": {"value": 0.9167, "low": 0.8542, "high": 0.9688, "n": 96, "each": [0.8958, 0.9375]}, "zero_std": {"value": 0.82, "low": 0.7788, "high": 0.8588, "n": 100, "each": [0.84, 0.8]}, "silent": {"value": 0.82, "low": 0.7788, "high": 0.8588, "n": 100, "each": [0.84, 0.8]}}, "thrice": {"tool": {"value": 0.772, "low": 0.7402, "high": 0.8037, "n": 820, "each": [0.778, 0.7659]}, "tool:simple": {"value": 0.8333, "low": 0.7708, "high": 0.8854, "n": 192, "each": [0.8229, 0.8438]}, "tool:domain": {"value": 0.8125, "low": 0.7083, "high": 0.9062, "n": 96, "each": [0.7708, 0.8542]}, "tool:intraday": {"value": 0.7396, "low": 0.6354, "high": 0.8333, "n": 96, "each": [0.8542, 0.625]}, "tool:combination": {"value": 0.8229, "low": 0.75, "high": 0.8857, "n": 96, "each": [0.8125, 0.8333]}, "zero_std": {"value": 0.8562, "low": 0.82, "high": 0.8912, "n": 100, "each": [0.855, 0.8575]}, "silent": {"value": 0.8562, "low": 0.82, "high": 0.8912, "n": 100, "each": [0.855, 0.8575]}}}, "difference": {"value": -0.0159, "low": -0.0488, "high": 0.0171, "n": 410}, "verdict": "≈", "when": "2026-11-29"}
