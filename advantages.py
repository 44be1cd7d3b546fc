"""Rewards of one group -> advantages -> weights of tokens. Pure functions on plain values, one per paper; tests/test_advantages.py works
them by hand.

    rewards     one number per trajectory; None = abstain (grader or tool failed): not in the statistics, advantage 0
    returns     (advantages float64 [group], flat); flat = the group says nothing (all rewards equal, or fewer than two), all zeros

    grpo        (r - mean) / (std + 1e-6), sample standard deviation (ddof 1)      DeepSeekMath, arXiv 2402.03300, section 4.1
    mean_only   r - mean                                                           Dr. GRPO, arXiv 2503.20783
    rloo        r - mean of the others                                             RLOO, arXiv 2402.14740
    grpo with virtual_max                                                          NGRPO, arXiv 2509.18851: a sample with full marks that
                nobody produced joins the statistics, so that a group in which all failed alike still learns (all below the mean)
    phase_reward     PRS: which parts of the reward count, by the share of the training that is done            (seed 003, section 3.3.1)
    lead_weight      GRPO-LEAD, arXiv 2504.09696: hard questions weigh more; here by history, as in seed 003, section 3.3.2
    token_weights    DART, arXiv 2602.00994, simplified as in seed 003, section 3.4.2: tokens weigh by the field they stand in

Departures from the papers: none of them says what to do with abstentions. The seed's worked example of NGRPO (eight rewards of 0.8 and a
virtual 1.0 give -0.35) divides by the population's standard deviation; with ddof 1 it is -1/3. GRPO-LEAD takes the group's own share of
right answers through a logistic, and DART trains one adapter for reasoning and one for tools.
"""

import math
import os

import numpy as np

EPSILON = 1e-6


def grpo(rewards, virtual_max: float | None = None) -> tuple[np.ndarray, bool]:
    """Advantages in units of the group's standard deviation. `virtual_max`: the highest reward that the task can give."""
    values, present = _split(rewards)
    pool = values[present] if virtual_max is None else np.append(values[present], virtual_max)
    if _flat(pool):
        return np.zeros(len(values)), True
    return np.where(present, (values - pool.mean()) / (pool.std(ddof=1) + EPSILON), 0.0), False


def mean_only(rewards) -> tuple[np.ndarray, bool]:
    """Advantages in units of the reward: without the division, easy and hard questions keep their own scale."""
    values, present = _split(rewards)
    if _flat(values[present]):
        return np.zeros(len(values)), True
    return np.where(present, values - values[present].mean(), 0.0), False


def rloo(rewards) -> tuple[np.ndarray, bool]:
    """Leave-one-out: each trajectory against the mean of the others, n/(n-1) times `mean_only`."""
    advantages, flat = mean_only(rewards)
    n = sum(reward is not None for reward in rewards)
    return (advantages, True) if flat else (advantages * n / (n - 1), False)


# ---------------------------------------------------------------- when a virtual sample joins, which parts count, which questions weigh more


def virtual_switch(on, share):
    """--virtual-max auto: on above 30 % of flat groups, and off again below 20 %, so that it doesn't flicker around one border."""
    return share > (0.2 if on else 0.3)


def read_phases(text):
    """"0:thought=1,tool=0.2;0.5:tool=1" -> [(0.0, {part: weight}), (0.5, {...})], the shares of training at which a phase begins ascending.
    ValueError says what is wrong."""
    phases = []
    for phase in text.split(";"):
        start, colon, weights = phase.partition(":")
        pairs = [pair.partition("=") for pair in weights.split(",")]
        try:
            phases.append((float(start), {name.strip(): float(weight) for name, _, weight in pairs}))
        except ValueError:
            raise ValueError(f"{phase!r} is not SHARE:part=weight,part=weight") from None
        if not colon or len(phases[-1][1]) != len(pairs) or not all(map(math.isfinite, phases[-1][1].values())):
            raise ValueError(f"{phase!r}: each part once, each with a finite weight")
    starts = [start for start, _ in phases]
    if starts[0] != 0 or any(low >= high for low, high in zip(starts, [*starts[1:], 1.0])):
        raise ValueError(f"the phases begin at {starts}: the first at 0, the others later one by one, all before 1")
    return phases


def phase_reward(parts, phases, done):
    """The weighted sum of the parts that the phase names; parts that it doesn't name count nothing. `done`: share of training, 0 to 1."""
    weights = [weights for start, weights in phases if start <= done][-1]
    return sum(weight * parts.get(name, 0.0) for name, weight in weights.items())


def lead_weight(error, low, high):
    """What the advantages of a question are multiplied by: `low` where nothing went wrong so far, `high` where everything did, geometric
    in between. error: the running share of wrong answers, None if unknown (weight 1)."""
    return 1.0 if error is None else low ** (1 - error) * high**error


# ---------------------------------------------------------------- weights of tokens


def character_ends(decode, tokens):
    """How many characters of decode(tokens) are complete after each token. A token inside a character of several bytes ends before it."""
    whole, ends = decode(tokens), []
    for count in range(1, len(tokens) + 1):
        ends.append(len(os.path.commonprefix([whole, decode(tokens[:count])])))
    return ends


def token_weights(ends, spans, reasoning, tool):
    """One weight a token. ends: from `character_ends`; spans: {"reasoning": [(start, end)], "tool": [...]} in characters.

    reasoning and tool are divided by their mean: tokens outside of the spans weigh 1, and 0.5, 0.5 changes nothing. A token that crosses a
    border weighs by its characters on each side; one that completes no character weighs as the character that it begins."""
    mean = (reasoning + tool) / 2
    row = np.ones(ends[-1] + 1 if ends else 1)  # [characters + 1]
    for name, value in (("reasoning", reasoning), ("tool", tool)):
        for start, end in spans.get(name, ()):
            row[start:end] = value / mean
    starts = [0, *ends[:-1]]
    return np.array([row[start:end].mean() if end > start else row[start] for start, end in zip(starts, ends)])


# ---------------------------------------------------------------- details


def _split(rewards) -> tuple[np.ndarray, np.ndarray]:
    """Values (0 where there is none) and which are present, both [group]. ValueError for a group of one and for NaN or infinite rewards."""
    if len(rewards) < 2:
        raise ValueError(f"a group of {len(rewards)} has nothing to be compared with; the group size must be 2 or more")
    present = np.array([reward is not None for reward in rewards])
    values = np.array([0.0 if reward is None else float(reward) for reward in rewards])
    bad = [reward for reward in values if not math.isfinite(reward)]
    if bad:
        raise ValueError(f"a reward is {bad[0]}; return None to abstain")
    return values, present


def _flat(pool: np.ndarray) -> bool:
    # Rewards that differ by rounding alone (0.1 + 0.2 against 0.3) would be blown up to advantages of 1 by the division.
    return len(pool) < 2 or float(np.ptp(pool)) <= 1e-9 * max(1.0, float(np.abs(pool).max()))
