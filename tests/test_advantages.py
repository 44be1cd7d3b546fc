"""Hand-worked numbers for every estimator, and the groups that break naive code (P17)."""

import math

import numpy as np
import pytest

from advantages import grpo, mean_only, rloo


def test_grpo_by_hand():
    # rewards 1 0 0 1: mean 1/2, squared deviations sum 1, ddof 1 -> variance 1/3, std 0.57735
    values, flat = grpo([1, 0, 0, 1])
    assert not flat
    np.testing.assert_allclose(values, np.array([0.5, -0.5, -0.5, 0.5]) / (math.sqrt(1 / 3) + 1e-6), rtol=1e-12)


def test_grpo_of_the_four_rewards_of_spectra_vetting():
    # 1.0 0.8 0.0 -0.2: mean 0.4, deviations 0.6 0.4 -0.4 -0.6, squares sum 1.04, /3 = 0.346667, std 0.588784
    values, _ = grpo([1.0, 0.8, 0.0, -0.2])
    np.testing.assert_allclose(values, [1.019047, 0.679365, -0.679365, -1.019047], atol=1e-5)


def test_mean_only_by_hand():
    np.testing.assert_allclose(mean_only([3, 0, 0])[0], [2, -1, -1])


def test_rloo_by_hand():
    # others of the 3: mean 0 -> 3; others of a 0: mean 1.5 -> -1.5
    np.testing.assert_allclose(rloo([3, 0, 0])[0], [3, -1.5, -1.5])


def test_virtual_full_mark_by_hand():
    # all failed; the pool is 0 0 0 1: mean 1/4, squares 3/16 + 9/16 = 3/4, /3 = 1/4, std 1/2 -> -1/2 each
    values, flat = grpo([0, 0, 0], virtual_max=1.0)
    assert not flat
    np.testing.assert_allclose(values, [-0.5, -0.5, -0.5], atol=1e-5)
    values, flat = grpo([1, 1, 1], virtual_max=1.0)  # all right: nothing to learn from
    assert flat and not values.any()


@pytest.mark.parametrize("estimate", [grpo, mean_only, rloo])
def test_P17_equal_rewards_are_flat_zeros_without_nan(estimate):
    for rewards in ([0.3] * 8, [0, 0], [0.1 + 0.2, 0.3], [1e9, 1e9 + 1e-3], [None, None, None], [1.0, None]):
        values, flat = estimate(rewards)
        assert flat and len(values) == len(rewards) and not values.any() and np.isfinite(values).all(), rewards


@pytest.mark.parametrize("estimate", [grpo, mean_only, rloo])
def test_abstaining_trajectories_are_outside_the_statistics(estimate):
    values, flat = estimate([1, None, 0, None, 0])
    assert not flat and values[1] == values[3] == 0
    np.testing.assert_allclose(values[[0, 2, 4]], estimate([1, 0, 0])[0])


@pytest.mark.parametrize("estimate", [grpo, mean_only, rloo])
def test_P17_group_of_one_is_refused(estimate):
    for rewards in ([1.0], []):
        with pytest.raises(ValueError, match="group size must be 2"):
            estimate(rewards)


@pytest.mark.parametrize("estimate", [grpo, mean_only, rloo])
def test_nan_reward_is_refused_not_spread(estimate):
    with pytest.raises(ValueError, match="return None to abstain"):
        estimate([1.0, float("nan")])
    with pytest.raises(ValueError, match="return None to abstain"):
        estimate([1.0, float("inf"), 0.0])


@pytest.mark.parametrize("estimate", [grpo, mean_only, rloo])
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order(estimate):
    rewards = np.random.default_rng(0).normal(size=9)
    values, _ = estimate(list(rewards))
    assert abs(values.sum()) < 1e-9 and (np.argsort(values) == np.argsort(rewards)).all()
