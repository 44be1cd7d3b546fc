#!/usr/bin/env bash
# question: Does a reward that knows the right tool bring requests of several steps forward?
# varies: the reward: rules-full (any legal tool) against ground-truth. Replies may be as long in both (after SFT none comes near the limit).
# prediction: A clear gain in rows of several steps: the rules pay every legal tool alike and can't teach which comes next.
# seed: 63 -> 97 % on requests of several steps, with longer replies and larger groups at the same time (sections 7.3 to 7.7).
# expect: tool:multi rules truth > 0.1
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
