"""Rewards of one group -> advantages. Pure functions on plain numbers, one per paper; tests/test_advantages.py works them by hand.

    rewards     one number per trajectory; None = abstain (grader or tool failed): not in the statistics, advantage 0
    returns     (advantages float64 [group], flat); flat = the group says nothing (all rewards equal, or fewer than two), all zeros

    grpo        (r - mean) / (std + 1e-6), sample standard deviation (ddof 1)      DeepSeekMath, arXiv 2402.03300, section 4.1
    mean_only   r - mean                                                           Dr. GRPO, arXiv 2503.20783
    rloo        r - mean of the others                                             RLOO, arXiv 2402.14740
    grpo with virtual_max                                                          NGRPO, arXiv 2509.18851: a sample with full marks that
                nobody produced joins the statistics, so that a group in which all failed alike still learns (all below the mean)

Departure from the papers: none of them says what to do with abstentions.
"""

import math

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
