#!/usr/bin/env bash
# question: Does it help to weigh the questions of weak categories more (GRPO-LEAD)?
# varies: --lead off against 0.3,3.
# prediction: Combinations gain a little and simple requests lose a little.
# seed: Combinations 78 -> 60 % (section 3.3.2).
# expect: tool:combination plain lead < 0
. "$(dirname "$0")/common.sh"
data react --form react
start react
for seed in $SEEDS; do
    rl plain=truth "$seed" react react
    rl lead "$seed" react react --lead 0.3,3
done
record tool:simple tool:domain tool:intraday tool:multi
exit # below: what its runs measured (ledger.py writes it)
