#!/usr/bin/env bash
# question: Does 0.3 off for check_market_status without a market word stop its misuse?
# varies: misuse_penalty 0 against 0.3, with the rules as reward (which pay any tool that is legal).
# prediction: Tool accuracy gains a little: a wrong check_market_status is one of several confusions, and the rules pay all others in full.
# seed: +3 %; it ended 35 % of the errors (section 3.6.2).
# expect: tool off penalty > 0.01
# learnt: coder-0.5B: ≈ there was nothing to cure: SFT calls check_market_status wrongly in 1 of 410 rows, and RL drops it with and without the
# learnt: penalty (0 to 4 calls, where 42 are due). Both arms learnt what the reward says: a legal call, whichever. check_balance with an invented
# learnt: account answers 88 and 93 % of the rows (off), form 99 %, reward in training 0.99, tool 42 -> 27 %. First see that a misuse is there, then
# learnt: punish it.
. "$(dirname "$0")/common.sh"
data react --form react
start react
for seed in $SEEDS; do
    rl off=rules-full "$seed" react react --set reward_mode=rules-full
    rl penalty "$seed" react react --set reward_mode=rules-full --set misuse_penalty=0.3
done
record tool:domain tool:combination
exit # below: what its runs measured (ledger.py writes it)
# RESULT {"model": "Qwen2.5-Coder-0.5B-Instruct (dequantized Q4)", "commit": "13414fd6de", "seeds": 2, "arms": {"off": {"tool": {"value": 0.2659, "low": 0.228, "high": 0.3073, "n": 820, "each": [0.2854, 0.2463]}, "tool:domain": {"value": 0.3438, "low": 0.2188, "high": 0.4792, "n": 96, "each": [0.375, 0.3125]}, "tool:combination": {"value": 0.3542, "low": 0.2292, "high": 0.5, "n": 96, "each": [0.3333, 0.375]}, "zero_std": {"value": 0.86, "low": 0.8237, "high": 0.8925, "n": 100, "each": [0.8325, 0.8875]}, "silent": {"value": 0.86, "low": 0.8237, "high": 0.8925, "n": 100, "each": [0.8325, 0.8875]}}, "penalty": {"tool": {"value": 0.2939, "low": 0.2561, "high": 0.3305, "n": 820, "each": [0.2854, 0.3024]}, "tool:domain": {"value": 0.6146, "low": 0.5208, "high": 0.6982, "n": 96, "each": [0.4792, 0.75]}, "tool:combination": {"value": 0.3542, "low": 0.2396, "high": 0.4688, "n": 96, "each": [0.4167, 0.2917]}, "zero_std": {"value": 0.875, "low": 0.8425, "high": 0.9062, "n": 100, "each": [0.8675, 0.8825]}, "silent": {"value": 0.875, "low": 0.8425, "high": 0.9062, "n": 100, "each": [0.8675, 0.8825]}}}, "difference": {"value": 0.028, "low": -0.011, "high": 0.0622, "n": 410}, "verdict": "≈", "when": "2026-11-29"}
