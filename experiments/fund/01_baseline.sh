#!/usr/bin/env bash
# question: How far does plain GRPO with the rules as reward get, and where does it stay behind?
# varies: SFT alone against SFT and GRPO.
# prediction: The tool is right more often after GRPO; combinations and settlement stay the weakest categories.
# seed: 63 % score, 67 % tool; balance 89 %, settlement 18 %, intraday 23 %, combination 12 %; half of the groups flat (section 3.1.1).
# expect: tool sft plain > 0
. "$(dirname "$0")/common.sh"
# The seed tells the rule `action` in two ways: any legal tool (its table, `rules`) or the right one (its summary, `rules-tool`). Under the
# first every legal tool earns full marks and GRPO can't learn which to take; so the baseline, and all that compare with it, use the second.
data plain --form tool-only --reward-mode rules-tool
start plain
evaluate "fund-$tag-plain-sft" "fund-$tag-start-plain" plain
for seed in $SEEDS; do rl plain "$seed" plain plain --max-reward 0.6; done
outputs[sft]="outputs/fund-$tag-plain-sft"
record reward tool:simple tool:domain tool:intraday tool:combination tool:multi request
exit # below: what its runs measured (ledger.py writes it)
