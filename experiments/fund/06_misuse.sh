#!/usr/bin/env bash
# question: Does 0.3 off for check_market_status without a market word stop its misuse?
# varies: misuse_penalty 0 against 0.3, with the rules as reward (which pay any tool that is legal).
# prediction: Tool accuracy gains a little: a wrong check_market_status is one of several confusions, and the rules pay all others in full.
# seed: +3 %; it ended 35 % of the errors (section 3.6.2).
# expect: tool off penalty > 0.01
. "$(dirname "$0")/common.sh"
data react --form react
start react
for seed in $SEEDS; do
    rl off=rules-full "$seed" react react --set reward_mode=rules-full
    rl penalty "$seed" react react --set reward_mode=rules-full --set misuse_penalty=0.3
done
record tool:domain tool:combination
exit # below: what its runs measured (ledger.py writes it)
