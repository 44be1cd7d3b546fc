"""Hand-worked numbers for every estimator, and the groups that break naive code (P17)."""

import math

import numpy as np
import pytest

from advantages import (
    character_ends,
    grpo,
    lead_weight,
    mean_only,
    phase_reward,
    read_phases,
    rloo,
    token_weights,
    virtual_switch,
)


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


def test_eight_rewards_of_08_and_a_virtual_full_mark():
    # the pool is eight 0.8 and one 1.0: mean 7.4/9 = 0.82222, squares 8 x 0.02222^2 + 0.17778^2 = 0.0355556, ddof 1: /8 = 0.0044444, std 0.0666667
    # -> (0.8 - 0.82222) / 0.0666667 = -1/3; divided by 9 instead, as the seed does, std 0.0628539 and -0.35355
    values, flat = grpo([0.8] * 8, virtual_max=1.0)
    assert not flat
    np.testing.assert_allclose(values, [-1 / 3] * 8, atol=1e-5)
    np.testing.assert_allclose((0.8 - 7.4 / 9) / np.std([0.8] * 8 + [1.0]), -0.35355, atol=1e-5)
    assert grpo([0.8] * 8)[1] and grpo([0.8] * 8, virtual_max=0.8)[1]  # full marks that can be reached leave right answers alone


# ---------------------------------------------------------------- the virtual sample's switch


def steps_until(on, share, flat):
    for step in range(1, 100):
        share = 0.9 * share + 0.1 * flat
        if virtual_switch(on, share) != on:
            return step, share
    return None


def test_auto_takes_several_flat_steps_and_goes_off_again():
    # from 0: 1 - 0.9^n > 0.3 at n = 4 (0.3439); half flat: 1 - 0.9^n > 0.6 at n = 9; from 0.3439: 0.9^n < 0.5815 at n = 6
    assert steps_until(False, 0.0, 1.0) == (4, pytest.approx(0.3439))
    assert steps_until(False, 0.0, 0.5)[0] == 9
    assert steps_until(True, 0.3439, 0.0)[0] == 6
    assert steps_until(False, 0.0, 0.29) is None and steps_until(True, 0.31, 0.25) is None, "between the borders it stays what it is"


# ---------------------------------------------------------------- PRS and LEAD


def test_phases():
    phases = read_phases("0:thought=0.5, tool=0.2;0.5:tool=1,misuse=-1")
    assert phases == [(0.0, {"thought": 0.5, "tool": 0.2}), (0.5, {"tool": 1.0, "misuse": -1.0})]
    parts = {"thought": 1.0, "tool": 0.5, "plan": 9.0}
    # 0.5 x 1 + 0.2 x 0.5 = 0.6 in the first half (the plan isn't named), 1 x 0.5 - 1 x 0 = 0.5 from the middle on
    assert [phase_reward(parts, phases, done) for done in (0.0, 0.49, 0.5, 1.0)] == pytest.approx([0.6, 0.6, 0.5, 0.5])


@pytest.mark.parametrize("text", ["", "0", "0:", "0:a", "0:a=x", "0:a=1,a=2", "0.5:a=1", "0:a=1;0:b=1", "0:a=1;1:b=1", "0:a=nan", "a=1", "0:a=1;"])
def test_phases_that_cannot_be_read(text):
    with pytest.raises(ValueError):
        read_phases(text)


def test_lead_weight_by_hand():
    # 0.3 at no errors, 3 at nothing but errors, sqrt(0.3 x 3) = 0.948683 in the middle; unknown: untouched
    np.testing.assert_allclose([lead_weight(e, 0.3, 3) for e in (0, 0.5, 1, None)], [0.3, 0.948683, 3, 1], atol=1e-6)


# ---------------------------------------------------------------- DART


def test_token_weights_by_hand():
    # "ab|cdef|gh": reasoning is c-d (2:4), tool e-g (4:7); 0.3 and 0.7 over their mean are 0.6 and 1.4
    # tokens: "ab" outside 1; "cde" crosses: (0.6 + 0.6 + 1.4) / 3; "fg" 1.4; "h" outside 1; the end token, without characters, 1
    spans = {"reasoning": [(2, 4)], "tool": [(4, 7)]}
    np.testing.assert_allclose(token_weights([2, 5, 7, 8, 8], spans, 0.3, 0.7), [1, 2.6 / 3, 1.4, 1, 1])
    np.testing.assert_allclose(token_weights([2, 5, 7, 8], spans, 0.5, 0.5), 1)
    np.testing.assert_allclose(token_weights([2, 5], {}, 0.3, 0.7), 1)
    assert len(token_weights([], {}, 0.3, 0.7)) == 0
    # a token inside a character (of several bytes) weighs as the character that it begins
    np.testing.assert_allclose(token_weights([0, 0, 1, 2], {"tool": [(0, 1)]}, 0.3, 0.7), [1.4, 1.4, 1.4, 1])


def test_character_ends_of_characters_in_several_tokens():
    decode = lambda tokens: bytes(tokens).decode("utf-8", errors="replace")
    assert character_ends(decode, list("a转b".encode())) == [1, 1, 1, 2, 3]
    assert character_ends(decode, [97, 255, 98]) == [1, 2, 3]  # bytes that are no text are one character each
    assert character_ends(decode, []) == []
