#!/usr/bin/env bash
# question: Does a virtual full mark in the statistics of each group (NGRPO) help?
# varies: --virtual-max off against on; ARMS="plain on auto high" adds auto, and a virtual mark of 1.0 that the reward can't reach.
# prediction: Flat groups that failed alike begin to learn, so the tool is right more often; the gain is smaller than the seed's, since an
# prediction: advantage below 0 for all says only what not to do, not what to do.
# seed: Score 63 -> 76 %, tool 67 -> 81 %, flat groups 50 -> 0 % (section 3.2.3). Its virtual mark was 1.0 where right answers earned 0.8, so
# seed: right answers were pushed down as well.
# expect: tool plain on > 0
# learnt: tiny-fund: ✓ a gain of 2.5 points where the seed saw 14, as predicted. The share of flat groups is the same with and without: they
# learnt: are counted by their own rewards, and the virtual mark only lets those below it have a gradient.
. "$(dirname "$0")/common.sh"
data plain --form tool-only --reward-mode rules-tool # full marks of a bare tool under these rules: 0.6
start plain
for seed in $SEEDS; do
    for arm in ${ARMS:-plain on}; do
        case $arm in
            plain) rl plain "$seed" plain plain --max-reward 0.6 ;;
            on | auto) rl "$arm" "$seed" plain plain --virtual-max "$arm" --max-reward 0.6 ;;
            high) rl high "$seed" plain plain --virtual-max on --max-reward 1.0 ;;
        esac
    done
done
record reward tool:simple tool:domain tool:intraday tool:combination tool:multi
"${python[@]}" analysis.py curves ${runs_of[plain]:-} ${runs_of[on]:-} --keys "frac_reward_zero_std,frac_groups_silent,reward/correct,reward/mean" \
    --smooth 5 --save "outputs/fund-$tag-ngrpo-curves"
exit # below: what its runs measured (ledger.py writes it)
# RESULT {"model": "models/tiny-fund", "commit": "a572c2f", "seeds": 2, "arms": {"on": {"tool": {"value": 0.51, "low": 0.4567, "high": 0.5617, "n": 600, "each": [0.5033, 0.5167]}, "reward": {"value": 0.4387, "low": 0.4203, "high": 0.4558, "n": 600, "each": [0.4393, 0.438]}, "tool:simple": {"value": 0.4458, "low": 0.3667, "high": 0.525, "n": 240, "each": [0.4, 0.4917]}, "tool:domain": {"value": 0.8917, "low": 0.8167, "high": 0.95, "n": 120, "each": [0.9333, 0.85]}, "tool:intraday": {"value": 0.4917, "low": 0.4, "high": 0.5917, "n": 120, "each": [0.4833, 0.5]}, "tool:combination": {"value": 0.275, "low": 0.175, "high": 0.3917, "n": 120, "each": [0.3, 0.25]}, "zero_std": {"value": 0.3917, "low": 0.3458, "high": 0.4396, "n": 120, "each": [0.4167, 0.3667]}}, "plain": {"tool": {"value": 0.485, "low": 0.43, "high": 0.5383, "n": 600, "each": [0.4767, 0.4933]}, "reward": {"value": 0.4338, "low": 0.4158, "high": 0.4523, "n": 600, "each": [0.433, 0.4347]}, "tool:simple": {"value": 0.425, "low": 0.3416, "high": 0.5042, "n": 240, "each": [0.4167, 0.4333]}, "tool:domain": {"value": 0.925, "low": 0.85, "high": 0.9833, "n": 120, "each": [0.9333, 0.9167]}, "tool:intraday": {"value": 0.375, "low": 0.2667, "high": 0.4917, "n": 120, "each": [0.3167, 0.4333]}, "tool:combination": {"value": 0.275, "low": 0.175, "high": 0.375, "n": 120, "each": [0.3, 0.25]}, "zero_std": {"value": 0.3812, "low": 0.3354, "high": 0.425, "n": 120, "each": [0.3917, 0.3708]}}}, "difference": {"value": 0.025, "low": 0.0033, "high": 0.0467, "n": 300}, "verdict": "✓", "when": "2026-11-29"}
