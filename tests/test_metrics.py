"""metrics.py against brute force, hand-worked numbers and the published tables."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

import metrics

PUBLISHED = json.loads((Path(__file__).parents[1] / "tasks" / "spec_o3_published.json").read_text(encoding="utf-8"))


def test_P40_pass_at_k_equals_the_count_over_all_subsets():
    for n in range(1, 8):
        for c in range(n + 1):
            flags = [1] * c + [0] * (n - c)
            for k in range(1, n + 1):
                subsets = list(itertools.combinations(flags, k))
                assert metrics.pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets)), (n, c, k)


@pytest.mark.parametrize(
    "n,c,k,value", [(1, 0, 1, 0), (1, 1, 1, 1), (8, 0, 8, 0), (8, 1, 8, 1), (8, 3, 1, 0.375), (8, 3, 6, 1), (200, 1, 100, 0.5)]
)
def test_P40_edges(n, c, k, value):
    assert metrics.pass_at_k(n, c, k) == pytest.approx(value)


@pytest.mark.parametrize("n,c,k", [(4, 0, 5), (4, 4, 5), (0, 0, 1), (4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, -1)])
def test_P40_what_cannot_be_estimated_is_refused(n, c, k):
    with pytest.raises(ValueError):
        metrics.pass_at_k(n, c, k)


def test_P40_pass_report_skips_problems_with_too_few_samples_instead_of_counting_them():
    report = metrics.pass_report({"a": [0, 0, 0, 1], "b": [0]}, [1, 4, 5])
    assert report["1"]["value"] == pytest.approx(0.125) and report["1"]["problems"] == 2
    assert report["4"]["value"] == 1 and report["4"]["skipped"] == 1
    assert report["5"]["value"] is None and report["5"]["skipped"] == 2


def test_wilson_against_known_values_and_edges():
    low, high = metrics.wilson(5, 10)  # textbook: 0.2366 to 0.7634
    assert low == pytest.approx(0.2366, abs=1e-4) and high == pytest.approx(0.7634, abs=1e-4)
    assert metrics.wilson(0, 0) == (0, 1)
    assert metrics.wilson(0, 20)[0] == 0 and 0.1 < metrics.wilson(0, 20)[1] < 0.2
    assert metrics.wilson(20, 20)[1] == 1
    with pytest.raises(ValueError):
        metrics.wilson(3, 2)


def test_wilson_covers_the_true_share():
    rng = np.random.default_rng(1)
    draws = rng.binomial(60, 0.8, size=2000)
    covered = np.mean([low <= 0.8 <= high for low, high in (metrics.wilson(int(k), 60) for k in draws)])
    assert 0.92 < covered < 0.98


def test_f1_of_nothing_is_zero_and_never_nan():
    assert metrics.precision_recall_f1(0, 0, 0) == (0, 0, 0)
    assert metrics.precision_recall_f1(3, 1, 2) == pytest.approx((0.75, 0.6, 2 / 3))
    assert np.allclose(metrics.precision_recall_f1([3, 0], [1, 0], [2, 0])[2], [2 / 3, 0])


def test_bootstrap_is_seeded_and_resamples_problems():
    columns = np.array([[1.0], [0.0], [1.0], [1.0]])
    first, again = metrics.bootstrap_sums(columns, 50, seed=3), metrics.bootstrap_sums(columns, 50, seed=3)
    assert np.array_equal(first, again) and not np.array_equal(first, metrics.bootstrap_sums(columns, 50, seed=4))
    assert first.shape == (50, 1) and first.max() <= 4 and first.min() >= 0


def test_interval_of_several_samples_is_by_problem_not_by_sample():
    """Eight equal samples of a question tell no more than one: the interval must not shrink."""
    one = metrics.share_report({i: [i % 2] for i in range(40)})
    eight = metrics.share_report({i: [i % 2] * 8 for i in range(40)})
    assert (eight["n"], eight["samples"]) == (40, 320) and eight["value"] == one["value"] == 0.5
    assert eight["high"] - eight["low"] == pytest.approx(one["high"] - one["low"], rel=0.15)


@pytest.mark.parametrize("flag", [0, 1])
def test_samples_that_are_all_alike_have_the_interval_of_their_problems(flag):
    """Twenty wrong samples of each of ten problems once gave [0, 0]: every resample is the same. Ten of ten: 1.96**2 / (10 + 1.96**2) = 0.2775."""
    edge, one = (0, 0.2775) if flag == 0 else (0.7225, 1), metrics.share_report({i: [flag] for i in range(10)})
    several = metrics.share_report({i: [flag] * (20 - i) for i in range(10)})
    assert (several["value"], several["n"], several["samples"]) == (flag, 10, 155)
    assert (several["low"], several["high"]) == (one["low"], one["high"]) == pytest.approx(edge, abs=1e-4)
    passed = metrics.pass_report({i: [flag] * 8 for i in range(10)}, [1, 8])
    assert all((part["low"], part["high"]) == pytest.approx(edge, abs=1e-4) for part in passed.values())
    assert metrics.mean_interval([flag] * 10, share=True)[1:] == pytest.approx(edge, abs=1e-4)
    assert metrics.mean_interval([flag] * 10) == (flag, flag, flag)  # a difference or a reward may have any value
    assert metrics.mean_interval([1 - flag] + [flag] * 9, share=True) == metrics.mean_interval([1 - flag] + [flag] * 9)


def test_mcnemar_by_hand():
    assert metrics.mcnemar(0, 0) == 1
    assert metrics.mcnemar(0, 5) == pytest.approx(2 / 32)
    assert metrics.mcnemar(2, 8) == pytest.approx(2 * (1 + 10 + 45) / 1024) == metrics.mcnemar(8, 2)
    assert metrics.mcnemar(7, 7) == 1
    large = metrics.mcnemar(4900, 5100)
    assert large == pytest.approx(math.erfc((200 - 1) / math.sqrt(2 * 10000)), rel=0.02)  # the normal limit with continuity correction


def test_sign_flip_exact_for_few_and_close_for_many():
    assert metrics.sign_flip_test([0, 0]) == 1
    assert metrics.sign_flip_test([1, 1, 1, 1, 1]) == pytest.approx(2 / 32)  # the same as McNemar 0:5
    many = [1] * 5 + [-1] * 15
    assert metrics.sign_flip_test(many, draws=20000) == pytest.approx(metrics.mcnemar(5, 15), abs=0.01)
    assert metrics.sign_flip_test([1.0] * 60) > 0  # random draws never give a p of zero


def test_paired_report_uses_common_problems_only_and_the_right_test():
    first = {i: [int(i < 20)] for i in range(40)} | {"only here": [1]}
    second = {i: [int(i < 30)] for i in range(40)}
    report = metrics.paired_report(first, second)
    assert report["problems"] == 40 and report["difference"] == 0.25 and report["only_second"] == 10 and report["only_first"] == 0
    assert report["test"] == "exact McNemar" and report["p"] == pytest.approx(2 / 1024) and report["low"] > 0
    several = metrics.paired_report({i: [0, 1, 1] for i in range(9)}, {i: [0, 0, 1] for i in range(9)})
    assert (
        several["test"].startswith("sign-flip")
        and several["difference"] == pytest.approx(-1 / 3)
        and several["p"] == pytest.approx(2 / 512)
    )
    same = metrics.paired_report(second, second)
    assert same["difference"] == 0 == same["low"] == same["high"] and same["p"] == 1
    with pytest.raises(ValueError):
        metrics.paired_report({"a": [1]}, {"b": [1]})


def report(labels, predictions, groups=None, ids=None, formats=None):
    return metrics.binary_report(labels, predictions, groups or ["x"] * len(labels), formats, ids)


def test_binary_report_counts_no_answer_as_wrong_and_as_a_miss_only_when_positive():
    result = report(["YES", "YES", "NO", "NO"], ["YES", None, None, "YES"], formats=[True, False, False, True])
    part = result["tasks"]["x"]
    assert (part["tp"], part["fp"], part["fn"], part["tn"], part["no_answer"]) == (1, 1, 1, 0, 2)
    assert result["accuracy"] == 0.25 and result["correct"] == 1 and result["format_rate"] == 0.5 and part["f1"] == 0.5
    assert result["accuracy_low"] < 0.25 < result["accuracy_high"]


def test_binary_report_macro_f1_is_the_mean_of_tasks_and_has_an_interval():
    labels, groups = ["YES", "NO"] * 20, ["a"] * 20 + ["b"] * 20
    predictions = labels[:20] + ["NO"] * 20
    result = report(labels, predictions, groups)
    assert result["tasks"]["a"]["f1"] == 1 and result["tasks"]["b"]["f1"] == 0 and result["macro_f1"] == 0.5
    assert result["macro_f1_low"] <= 0.5 <= result["macro_f1_high"]


def test_group_without_a_positive_label_has_no_f1_and_is_not_averaged():
    """Else ten rows of a rare task, all NO and all answered NO, would cost a fifth of the score."""
    result = report(["YES", "NO"] * 10 + ["NO"] * 10, ["YES", "NO"] * 10 + ["NO"] * 10, ["a"] * 20 + ["b"] * 10)
    assert (
        result["macro_f1"] == 1 == result["macro_f1_low"] and result["tasks"]["b"]["f1"] is None and result["tasks"]["b"]["accuracy"] == 1
    )
    none = report(["NO"] * 4, ["NO"] * 4)
    assert none["macro_f1"] is None and none["macro_f1_low"] is None and none["accuracy"] == 1
    json.dumps(none, allow_nan=False)


def test_binary_report_without_labels_gives_no_accuracy():
    result = report([None, None], ["YES", None], formats=[True, False])
    assert result["count"] == 0 and result["unlabelled"] == 2 and "accuracy" not in result and result["predicted_positive"] == 1
    mixed = report([None, "NO"], ["YES", "NO"])
    assert mixed["count"] == 1 and mixed["accuracy"] == 1 and mixed["unlabelled"] == 1


def test_binary_report_refuses_a_strange_label():
    with pytest.raises(ValueError, match="Yes"):
        report(["Yes"], ["YES"])


def test_always_yes_on_the_published_split_beats_the_published_sft_macro_f1():
    """From the published task sizes alone: always YES earns 48.8 % and 65.6 %, more Macro F1 than two of the five rows."""
    labels, groups = [], []
    for name, part in PUBLISHED["dev"]["tasks"].items():
        labels += ["YES"] * part["positives"] + ["NO"] * (part["count"] - part["positives"])
        groups += [name] * part["count"]
    assert len(labels) == 256
    always = report(labels, ["YES"] * 256, groups)
    assert always["accuracy"] == pytest.approx(0.488, abs=5e-4) and always["macro_f1"] == pytest.approx(0.656, abs=5e-4)
    assert PUBLISHED["dev"]["always_YES"] == pytest.approx({key: always[key] for key in ("accuracy", "macro_f1")}, abs=1e-6)
    assert always["baselines"]["always_YES"]["macro_f1"] == pytest.approx(always["macro_f1"])
    beaten = [row["name"] for row in PUBLISHED["results"] if row["macro_f1"] < always["macro_f1"]]
    assert len(beaten) == 2


def test_published_rows_agree_with_themselves():
    for row in PUBLISHED["results"]:
        assert row["accuracy"] == pytest.approx(row["correct"] / row["count"], abs=1e-4), row["name"]
        assert row["format_rate"] == pytest.approx(row["format_ok"] / row["count"], abs=1e-4), row["name"]
        if row.get("f1"):
            assert row["macro_f1"] == pytest.approx(np.mean(list(row["f1"].values())), abs=1e-4), row["name"]


def test_P40_solved_sets_by_hand():
    """Four problems, two samples each. k = 2: the sets themselves. k = 1: expected sizes, 1 x 1/2 + 1/2 x 1 + 0 + 0 = 1 in both."""
    first = {"a": [1, 1], "b": [1, 0], "c": [0, 1], "d": [0, 0]}
    second = {"a": [1, 0], "b": [1, 1], "c": [0, 0], "d": [0, 0]}
    report = metrics.solved_report(first, second, [1, 2])
    sets = {k: [report[k][name] for name in ("both", "only_first", "only_second", "neither")] for k in report}
    assert sets["2"] == [2, 1, 0, 1] and sets["1"] == [1.0, 1.0, 0.5, 1.5] and sum(sets["1"]) == 4
    assert report["2"]["exact"] and report["2"]["p"] == metrics.mcnemar(1, 0) == 1.0 and report["2"]["test"] == "exact McNemar"
    assert not report["1"]["exact"] and (report["1"]["first"], report["1"]["second"], report["1"]["difference"]) == (0.5, 0.375, -0.125)
    assert (report["2"]["first"], report["2"]["second"], report["2"]["difference"]) == (0.75, 0.5, -0.25)
    surer = metrics.solved_report({n: [1] + [0] * 7 for n in range(20)}, {n: [1] * 8 for n in range(20)}, [1, 8])
    assert surer["1"]["p"] < 0.01 and surer["1"]["difference"] == 0.875 and surer["8"]["difference"] == 0 and surer["8"]["p"] == 1.0
    with pytest.raises(ValueError, match="pass@3"):
        metrics.solved_report(first, second, [3])
