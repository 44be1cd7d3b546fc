"""Is an RL run learning, or only running? The signs of seed 003, section 4.6, with its thresholds; `train_rl.py` asks while it runs and at the end.

    python health.py runs/rl          # the table of a run, finished or not
    measures(trajectories)            # a step's metrics, of which these signs are made

| sign | healthy | danger | what to do |
|---|---|---|---|
| frac_reward_zero_std: groups of equal rewards | < 30 % | > 50 % | --virtual-max auto, harder questions, --refill |
| highest reward seen, against full marks | reached | < 80 % | make full marks reachable: until then the best and the good look alike |
| grad_norm | above 0, and moving | 0 all the time | see the two signs above: there is nothing to learn from |
| reward_std: within groups | > 0.05 | 0 | as frac_reward_zero_std |
| distinct: different texts in a group (0 = all the same, 1 = all different) | > 0.3 | < 0.05 | raise --temperature |

The seed names no numbers for the last sign; these are ours. Its sixth row is about SFT before RL and can't be seen here: try 50 injected rows first
and follow reasoning and tool accuracy apart; at 300 rows its tool accuracy fell.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

WINDOW = 10  # steps that a warning looks back on


def spread(groups, rewards):
    """{reward/max, reward_std, distinct} of a step; the last two are means over its groups. rewards: of each group, None where it failed."""
    stds, shares, known = [], [], [reward for group in rewards for reward in group if reward is not None]
    for group, earned in zip(groups, rewards):
        alive = [(t, reward) for t, reward in zip(group, earned) if reward is not None]
        if len(alive) > 1:
            stds.append(float(np.std([reward for _, reward in alive], ddof=1)))
            texts = {tuple(turn.text for turn in t.turns) for t, _ in alive}
            shares.append((len(texts) - 1) / (len(alive) - 1))
    values = {"reward/max": max(known)} if known else {}
    return values | ({"reward_std": float(np.mean(stds)), "distinct": float(np.mean(shares))} if stds else {})


def measures(trajectories):
    """What tells a healthy run from a dead one, over all trajectories of a step."""
    alive = [t for t in trajectories if t.reward is not None] or trajectories
    calls = [turn for t in alive for turn in t.turns if turn.action is not None and turn.action.kind == "tool"]
    ends = Counter(t.finish_reason for t in trajectories)
    values = {
        "reward/mean": np.mean([t.reward or 0.0 for t in alive]),
        "reward/std": np.std([t.reward or 0.0 for t in alive]),
        "format_rate": np.mean([t.format_ok for t in alive]),
        "turns_mean": np.mean([len(t.turns) for t in alive]),
        "tool_calls_mean": (len(calls) + sum(len(turn.inline) for t in alive for turn in t.turns)) / len(alive),
        "tool_errors": sum(turn.observation is not None and not turn.observation.ok for turn in calls),
        "completions/mean_length": np.mean([sum(t.sampled) for t in alive]),
        "clipped_ratio": sum(ends[name] for name in ("length", "max_seq_len")) / len(trajectories),
        "time/tool": sum(t.seconds.get("tool", 0.0) for t in trajectories),
    }
    for name in sorted({name for t in alive for name in t.parts}):
        values[f"reward/{name}"] = np.mean([t.parts.get(name, 0.0) for t in alive])
    return {**{name: float(value) for name, value in values.items()}, **{f"finish/{name}": count for name, count in ends.items()}}


def hopeless(values, trajectories, has_tools, strict):
    """Step 1: say loudly what cannot learn, and why. SystemExit where nothing ever can: no prompt left room for a token."""
    if all(t.finish_reason == "max_seq_len" for t in trajectories) and not values["completions/mean_length"]:
        raise SystemExit("--max-seq-len: no prompt of step 1 leaves room for a reply; give it more positions")
    reasons = []
    if values["clipped_ratio"] > 0.5:
        reasons.append(f"{values['clipped_ratio']:.0%} of the generations were cut off: raise --max-tokens or --max-seq-len")
    if values["frac_groups_silent"] == 1:
        reasons.append("the rewards of every group are equal: the questions are all too easy, all too hard, or the format is not learnt yet (run SFT first)")
    failed = [t for t in trajectories if t.reward is None]
    if len(failed) > len(trajectories) / 4:
        reasons.append(f"{len(failed)} of {len(trajectories)} trajectories failed, the first: {failed[0].error or 'no reward'}")
    if has_tools and values["tool_calls_mean"] == 0:
        reasons.append("no tool was called: is the template that of SFT?")
    for reason in reasons:
        print(f"WARNING: {reason}", flush=True)
    if reasons and strict:
        raise SystemExit("stopped at step 1 (--strict)")


def signs(records, full):
    """[(name, value, "healthy" | "watch" | "danger", how it is shown)] of metrics of some steps. Signs that can't be seen are left out."""
    pick = lambda key: [record[key] for record in records if isinstance(record.get(key), int | float)]
    mean = lambda key: float(np.mean(pick(key))) if pick(key) else None
    zero, std, distinct = mean("frac_reward_zero_std"), mean("reward_std"), mean("distinct")
    best, norms = max(pick("reward/max"), default=None), pick("grad_norm")
    judge = lambda good, bad: "healthy" if good else "danger" if bad else "watch"
    found = []
    if zero is not None:
        found.append(("frac_reward_zero_std", zero, judge(zero < 0.3, zero > 0.5), f"{zero:.1%}"))
    if best is not None:
        found.append(("highest reward", best, judge(best >= full - 1e-6, best < 0.8 * full), f"{best:.3g} of {full:g}"))
    if zero is not None:  # steps without an update have no norm
        moving = sum(norm > 0 for norm in norms)
        found.append(("grad_norm", moving / len(records), judge(moving > 0.7 * len(records) and len({*norms}) > 1, not moving),
                      f"above 0 in {moving} of {len(records)} steps" + (f", {min(norms):.2g} to {max(norms):.2g}" if norms else "")))  # fmt: skip
    if std is not None:
        found.append(("reward_std", std, judge(std > 0.05, std < 1e-6), f"{std:.3f}"))
    if distinct is not None:
        found.append(("distinct", distinct, judge(distinct > 0.3, distinct < 0.05), f"{distinct:.2f}"))
    return found


def warn(recent, said):
    """Print what is in danger over the last steps (once WINDOW of them are there) and was not said; returns what stays said."""
    if len(recent) < WINDOW:
        return said
    bad = {name: shown for name, _, state, shown in signs(list(recent), -np.inf) if state == "danger"}
    for name in bad.keys() - said:
        print(f"WARNING: {name} {bad[name]} over the last {len(recent)} steps, see health.py", flush=True)
    return set(bad)


def table(folder, full):
    """The table of a run folder: all its steps, and the last quarter of them."""
    from records import read_jsonl

    path = Path(folder) / "metrics.jsonl"
    if not path.is_file():
        raise SystemExit(f"{path}: not there; is {folder} a run of train_rl.py?")
    records = [record for record in read_jsonl(path, partial=True) if "frac_reward_zero_std" in record]
    if not records:
        return f"{path}: no step of RL in it"
    late = {name: f"{shown}  {state}" for name, _, state, shown in signs(records[-max(1, len(records) // 4) :], full)}
    lines = [f"{'health':22}{f'all {len(records)} steps':62}the last quarter"]
    lines += [f"{name:22}{f'{shown}  {state}':62}{late.get(name, '-')}" for name, _, state, shown in signs(records, full)]
    return "\n".join(lines)


def main():
    import argparse
    import json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("folder", type=Path, metavar="RUN")
    folder = parser.parse_args().folder
    try:
        full = json.loads((folder / "config.json").read_text(encoding="utf-8"))["flags"]["max_reward"]
    except (OSError, ValueError, KeyError):
        raise SystemExit(f"{folder}: no config.json of train_rl.py in it") from None
    print(table(folder, full))


if __name__ == "__main__":
    sys.exit(main())
