#!/usr/bin/env bash
# question: How much of the jump in combinations is the right label, and how much the form with thought and plan?
# varies: three arms: wrong labels and the bare tool; right labels and the bare tool; right labels and ReAct. SFT and RL on the same labels.
# prediction: The label alone brings most of it; ReAct adds little at this size.
# seed: 12 -> 91 % on combinations for both changes at once (section 3.5); it never changed one alone.
# expect: tool:combination wrong react > 0.3
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
