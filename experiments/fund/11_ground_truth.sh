#!/usr/bin/env bash
# question: Does a reward that knows the right tool bring requests of several steps forward?
# varies: the reward: rules-full (any legal tool) against ground-truth. Replies may be as long in both (after SFT none comes near the limit).
# prediction: A clear gain in rows of several steps: the rules pay every legal tool alike and can't teach which comes next.
# seed: 63 -> 97 % on requests of several steps, with longer replies and larger groups at the same time (sections 7.3 to 7.7).
# expect: tool:multi rules truth > 0.1
# learnt: coder-0.5B: ≈ at the bound of 10 points: +8 and +24 by seed. The rules are the seed's mistake in full: see 06. The truth has a gap of its
# learnt: own: a plan earns its part without being compared with what must follow. Three of the six runs with this reward (here, 08, 10) name one
# learnt: step only in every row where more must follow, which ends a request after its first turn: whole requests 0 %. And thoughts become a phrase
# learnt: that passes for reasoning ('There are 2 steps and only 1 action, therefore first do that.').
. "$(dirname "$0")/common.sh"
data react --form react
start react
before react
for seed in $SEEDS; do
    rl rules=rules-full "$seed" react react --set reward_mode=rules-full
    rl truth "$seed" react react
done
record tool:combination request reasoning
exit # below: what its runs measured (ledger.py writes it)
# RESULT {"model": "Qwen2.5-Coder-0.5B-Instruct (dequantized Q4)", "commit": "13414fd6de", "seeds": 2, "arms": {"raw": {"tool:multi": {"value": 0.0765, "low": 0.0412, "high": 0.1235, "n": 170, "each": [0.0765]}, "tool": {"value": 0.078, "low": 0.0537, "high": 0.1049, "n": 410, "each": [0.078]}, "tool:combination": {"value": 0.0625, "low": 0.0, "high": 0.125, "n": 48, "each": [0.0625]}, "request": {"value": 0.0, "low": 0.0, "high": 0.0, "n": 86, "each": [0.0]}, "reasoning": {"value": 0.2854, "low": 0.2439, "high": 0.3293, "n": 410, "each": [0.2854]}}, "sft": {"tool:multi": {"value": 0.3941, "low": 0.3235, "high": 0.4706, "n": 170, "each": [0.3941]}, "tool": {"value": 0.422, "low": 0.3756, "high": 0.4732, "n": 410, "each": [0.422]}, "tool:combination": {"value": 0.2292, "low": 0.1042, "high": 0.3542, "n": 48, "each": [0.2292]}, "request": {"value": 0.0233, "low": 0.0, "high": 0.0581, "n": 86, "each": [0.0233]}, "reasoning": {"value": 0.939, "low": 0.9146, "high": 0.961, "n": 410, "each": [0.939]}}, "rules": {"tool:multi": {"value": 0.3059, "low": 0.2441, "high": 0.3706, "n": 340, "each": [0.3059, 0.3059]}, "tool": {"value": 0.2659, "low": 0.228, "high": 0.3073, "n": 820, "each": [0.2854, 0.2463]}, "tool:combination": {"value": 0.3542, "low": 0.2292, "high": 0.5, "n": 96, "each": [0.3333, 0.375]}, "request": {"value": 0.0, "low": 0.0, "high": 0.0, "n": 172, "each": [0.0, 0.0]}, "reasoning": {"value": 0.9829, "low": 0.9732, "high": 0.9915, "n": 820, "each": [0.9707, 0.9951]}, "zero_std": {"value": 0.86, "low": 0.8237, "high": 0.8925, "n": 100, "each": [0.8325, 0.8875]}, "silent": {"value": 0.86, "low": 0.8237, "high": 0.8925, "n": 100, "each": [0.8325, 0.8875]}}, "truth": {"tool:multi": {"value": 0.4618, "low": 0.4, "high": 0.5206, "n": 340, "each": [0.3824, 0.5412]}, "tool": {"value": 0.5646, "low": 0.5244, "high": 0.6037, "n": 820, "each": [0.4829, 0.6463]}, "tool:combination": {"value": 0.5312, "low": 0.4167, "high": 0.6562, "n": 96, "each": [0.3958, 0.6667]}, "request": {"value": 0.0756, "low": 0.0407, "high": 0.1163, "n": 172, "each": [0.0, 0.1512]}, "reasoning": {"value": 0.9805, "low": 0.9695, "high": 0.9902, "n": 820, "each": [0.9927, 0.9683]}, "zero_std": {"value": 0.5138, "low": 0.46, "high": 0.5687, "n": 100, "each": [0.5175, 0.51]}, "silent": {"value": 0.5138, "low": 0.46, "high": 0.5687, "n": 100, "each": [0.5175, 0.51]}}}, "difference": {"value": 0.1559, "low": 0.0588, "high": 0.2529, "n": 170}, "verdict": "≈", "when": "2026-11-29"}
