"""Statistics of evaluations: pure functions on plain numbers, so each can be checked by hand.

Every share comes with an interval, every comparison of two runs with a paired test: on 256 rows the 95 % interval of an accuracy
is 5 to 6 points wide on each side, more than most of the differences that people report.

    wilson(175, 256)               -> (0.624, 0.737)      interval of a share
    pass_at_k(8, 3, 4)             -> 0.929               unbiased, from n samples of which c are right
    binary_report(...)             -> per-task F1, Macro F1, accuracy, format rate, trivial baselines, all with intervals
    paired_report(before, after)   -> difference, interval, exact p
    solved_report(before, after, [1, 8])   -> for each k, the problems that both, one or neither solves

The unit of resampling is always the problem (row), never the sample: eight samples of one question are not eight questions.
"""

import math

import numpy as np

RESAMPLES = 2000
Z95 = 1.959963984540054


def wilson(successes, total, z=Z95):
    """Wilson's score interval of a share of independent trials, as (low, high). No trials: (0, 1), nothing is known (Wilson 1927)."""
    if not 0 <= successes <= total:
        raise ValueError(f"{successes} successes of {total} trials")
    if total == 0:
        return 0.0, 1.0
    share, z2 = successes / total, z * z
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = z / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    # The clamp by `share` only removes rounding at the ends: no successes must give exactly 0, all must give exactly 1.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def pass_at_k(n, c, k):
    """Probability that at least one of k samples drawn without replacement from n, of which c are correct, is correct.

    1 - C(n-c, k) / C(n, k) (Chen et al. 2021, https://arxiv.org/abs/2107.03374). k > n can't be estimated and is refused.
    """
    if not 0 <= c <= n:
        raise ValueError(f"{c} correct of {n} samples")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} samples a problem and k >= 1, there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def precision_recall_f1(tp, fp, fn):
    """(precision, recall, F1) from counts (numbers or arrays); a share of nothing is 0, as in most of the published tables."""
    tp, fp, fn = (np.asarray(value, dtype=float) for value in (tp, fp, fn))
    parts = [(tp, tp + fp), (tp, tp + fn), (2 * tp, 2 * tp + fp + fn)]
    shares = [np.divide(top, below, out=np.zeros(np.broadcast(top, below).shape), where=below > 0) for top, below in parts]
    return tuple(float(share) if share.ndim == 0 else share for share in shares)


def bootstrap_sums(columns, resamples=RESAMPLES, seed=0):
    """Column sums of `columns` [problems, columns] under resampling of the problems: [resamples, columns].

    All the ratios that we report (accuracy, F1, pass@k) are functions of such sums, so one multinomial draw a resample is enough.
    """
    columns = np.asarray(columns, dtype=float)
    problems, rng, block = len(columns), np.random.default_rng(seed), 100
    if problems == 0:
        raise ValueError("no problems to resample")
    sums = []
    for start in range(0, resamples, block):  # blocks keep memory small on thousands of problems
        counts = rng.multinomial(problems, np.full(problems, 1 / problems), size=min(block, resamples - start))
        sums.append(counts @ columns)
    return np.concatenate(sums)


def interval(draws, level=0.95):
    """The central (low, high) of bootstrap draws; draws in which the statistic doesn't exist (NaN) are left out."""
    draws = np.asarray(draws, dtype=float)
    draws = draws[np.isfinite(draws)]
    return tuple(float(bound) for bound in np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])) if len(draws) else (None, None)


def unanimous(shares):
    """Wilson's (low, high) over the problems where all shares are 0 or all are 1, else None. There every resample is the same: a bootstrap would
    say [0, 0] of ten problems as of ten thousand."""
    shares = [float(share) for share in shares]
    return wilson(int(sum(shares)), len(shares)) if shares and (not any(shares) or all(share == 1 for share in shares)) else None


def mean_interval(values, resamples=RESAMPLES, seed=0, share=False):
    """(mean, low, high) of one value per problem, by bootstrap over problems. One problem only: its interval is itself.

    share: the values are shares of right samples or probabilities, from 0 to 1; see `unanimous`.
    """
    values = np.asarray(values, dtype=float)
    if share and (bounds := unanimous(values)):
        return float(values.mean()), *bounds
    low, high = interval(bootstrap_sums(values[:, None], resamples, seed)[:, 0] / len(values))
    return float(values.mean()), low, high


def share_report(flags_by_problem, seed=0):
    """{value, low, high, n} of a share, n being the number of problems; with several samples a problem also {samples}. flags_by_problem: {id: [0/1 per sample]}.

    One sample a problem: Wilson. Several: mean over samples, then bootstrap over problems, because samples of one problem go together;
    all right or all wrong: Wilson over the problems.
    """
    groups = [list(flags) for flags in flags_by_problem.values() if len(flags)]
    if not groups:
        return {"value": None, "low": None, "high": None, "n": 0}
    total = sum(len(flags) for flags in groups)
    if total == len(groups):
        right = int(sum(flags[0] for flags in groups))
        low, high = wilson(right, total)
        return {"value": right / total, "low": low, "high": high, "n": total}
    columns = np.array([[sum(flags), len(flags)] for flags in groups], dtype=float)
    sums = bootstrap_sums(columns, seed=seed)
    low, high = unanimous(columns[:, 0] / columns[:, 1]) or interval(sums[:, 0] / sums[:, 1])
    return {"value": float(columns[:, 0].sum() / total), "low": low, "high": high, "n": len(groups), "samples": total}


def pass_report(flags_by_problem, ks, seed=0):
    """{k: {value, low, high, problems, skipped}}: mean of the unbiased pass@k over the problems that have at least k samples."""
    report = {}
    for k in ks:
        values = [pass_at_k(len(flags), int(sum(flags)), k) for flags in flags_by_problem.values() if len(flags) >= k]
        skipped = sum(len(flags) < k for flags in flags_by_problem.values())
        mean, low, high = mean_interval(values, seed=seed, share=True) if values else (None, None, None)
        report[str(k)] = {"value": mean, "low": low, "high": high, "problems": len(values), "skipped": skipped}
    return report


def mcnemar(only_first, only_second):
    """Exact two-sided McNemar test: p of a split at least as uneven as this one, were each discordant row a fair coin (McNemar 1947)."""
    if only_first < 0 or only_second < 0:
        raise ValueError(f"negative counts: {only_first}, {only_second}")
    total, smaller = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, i) for i in range(smaller + 1))
    return min(1.0, 2 * tail / 2**total)  # whole numbers divide exactly, however large


def sign_flip_test(differences, draws=10000, seed=0):
    """Two-sided p that the mean of paired differences (one per problem) is zero: signs flipped at random, exactly for up to 12 of them.

    The test for several samples a row: give it the differences of row means. Random draws count the observed one, so p is never 0.
    """
    differences = np.asarray(differences, dtype=float)
    differences = differences[differences != 0]
    if len(differences) == 0:
        return 1.0
    observed = abs(differences.sum()) - 1e-12
    if len(differences) <= 12:
        bits = (np.arange(2 ** len(differences))[:, None] >> np.arange(len(differences))) & 1  # [2**n, n]
        return float(np.mean(np.abs((2 * bits - 1) @ differences) >= observed))
    rng, extreme = np.random.default_rng(seed), 0
    for start in range(0, draws, 500):
        signs = rng.choice([-1.0, 1.0], size=(min(500, draws - start), len(differences)))
        extreme += int((np.abs(signs @ differences) >= observed).sum())
    return (extreme + 1) / (draws + 1)


def paired_report(first, second, seed=0):
    """Compare two runs on the problems that both have. first, second: {id: [0/1 per sample]}.

    Returns {problems, first, second, difference, low, high, p, test, only_first, only_second}: difference = second - first. One sample a
    problem on both sides: exact McNemar. Otherwise: sign-flip test on the row means. The interval is a paired bootstrap in both cases.
    """
    common = [key for key in first if key in second and len(first[key]) and len(second[key])]
    if not common:
        raise ValueError("no common problems")
    pairs = np.array([[np.mean(first[key]), np.mean(second[key])] for key in common])  # [problems, 2]
    change = pairs[:, 1] - pairs[:, 0]
    mean, low, high = mean_interval(change, seed=seed)
    only_first, only_second = int((change < 0).sum()), int((change > 0).sum())
    single = all(len(first[key]) == 1 and len(second[key]) == 1 for key in common)
    return {
        "problems": len(common), "first": float(pairs[:, 0].mean()), "second": float(pairs[:, 1].mean()),
        "difference": mean, "low": low, "high": high,
        "p": mcnemar(only_first, only_second) if single else sign_flip_test(change, seed=seed),
        "test": "exact McNemar" if single else "sign-flip on row means",
        "only_first": only_first, "only_second": only_second,
    }


def solved_report(first, second, ks, seed=0):
    """Of two runs on the same problems, {k: {both, only_first, only_second, neither, first, second, difference, low, high, p, test, exact}}.

    first, second: {id: [0/1 per sample]} with the same ids. A problem counts as solved with its unbiased pass@k, so that the four numbers are
    the sets expected of k fresh samples a run; with k samples on both sides (`exact`) they are the sets themselves, and the test is exact.
    """
    report = {}
    for k in ks:
        pairs = np.array([[pass_at_k(len(side[key]), int(sum(side[key])), k) for side in (first, second)] for key in first])  # [problems, 2]
        before, after = pairs.T
        exact = all(len(side[key]) == k for side in (first, second) for key in first)
        change, low, high = mean_interval(after - before, seed=seed)
        only_first, only_second = float((before * (1 - after)).sum()), float((after * (1 - before)).sum())
        report[str(k)] = {
            "both": float((before * after).sum()), "only_first": only_first, "only_second": only_second,
            "neither": float(((1 - before) * (1 - after)).sum()), "first": float(before.mean()), "second": float(after.mean()),
            "difference": change, "low": low, "high": high, "exact": exact,
            "p": mcnemar(round(only_first), round(only_second)) if exact else sign_flip_test(after - before, seed=seed),
            "test": "exact McNemar" if exact else "sign-flip",
        }
    return report


def confusion_columns(ids, groups, labels, predictions, positive):
    """Counts per problem, to be summed or resampled: (ids, group names, array [problems, groups, 4] of tp, fp, fn, tn)."""
    problems, names = list(dict.fromkeys(ids)), sorted(set(groups))
    row, column = {key: i for i, key in enumerate(problems)}, {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(problems), len(names), 4))
    for key, group, label, prediction in zip(ids, groups, labels, predictions, strict=True):
        # No prediction is never right: a miss when the label is positive. With a negative label it's wrong too, but not a false positive.
        kind = (0 if prediction == positive else 2) if label == positive else (1 if prediction == positive else 3)
        if kind != 3 or prediction is not None:
            counts[row[key], column[group], kind] += 1
    return problems, names, counts


def group_f1(counts):
    """(F1 [..., groups], Macro F1 [...]) from counts [..., groups, 4]. A group without a positive label has no F1 (NaN), and the mean
    leaves it out."""
    tp, fp, fn, _ = np.moveaxis(np.asarray(counts, dtype=float), -1, 0)
    f1 = np.where(tp + fn > 0, precision_recall_f1(tp, fp, fn)[2], np.nan)
    groups = np.isfinite(f1).sum(axis=-1)
    return f1, np.divide(np.nansum(f1, axis=-1), groups, out=np.full(groups.shape, np.nan), where=groups > 0)


def binary_report(labels, predictions, groups=None, format_ok=None, ids=None, positive="YES", negative="NO", seed=0):
    """The report of a yes/no task. All lists are parallel, one entry a trajectory.

    labels: `positive`, `negative`, or None where unknown (left out and counted); predictions: the same or None for no answer, which is
    wrong; groups: sub-task of each (F1 is per group, Macro F1 their mean); format_ok: booleans; ids: row ids, needed when a row has
    several samples. Leave trajectories that failed out. Definitions as in seed 001, section 0.
    """
    groups = ["all"] * len(labels) if groups is None else groups
    formats = [False] * len(labels) if format_ok is None else format_ok
    ids = list(range(len(labels))) if ids is None else ids
    for label in labels:
        if label not in (positive, negative, None):
            raise ValueError(f"label {label!r} is neither {positive!r} nor {negative!r} nor empty")
    known = [entry for entry in zip(ids, groups, labels, predictions, formats, strict=True) if entry[2] is not None]
    format_by_id = {}
    for key, ok in zip(ids, formats):
        format_by_id.setdefault(key, []).append(int(bool(ok)))
    report = {"count": len(known), "unlabelled": len(ids) - len(known), "positive": positive,
              "predicted_positive": sum(p == positive for p in predictions), "no_answer": sum(p is None for p in predictions),
              **_flat("format_rate", share_report(format_by_id, seed))}
    if not known:
        return report
    ids, groups, labels, predictions, formats = zip(*known)
    _, names, counts = confusion_columns(ids, groups, labels, predictions, positive)
    draws, macro_draws = group_f1(bootstrap_sums(counts.reshape(len(counts), -1), seed=seed).reshape(-1, len(names), 4))
    totals = counts.sum(axis=0)  # [groups, 4]
    report["tasks"] = {name: _group_report(name, known, totals[i], draws[:, i], positive, seed) for i, name in enumerate(names)}
    report["macro_f1"], report["macro_f1_groups"] = _number(group_f1(totals)[1]), int(np.isfinite(group_f1(totals)[0]).sum())
    report["macro_f1_low"], report["macro_f1_high"] = interval(macro_draws)
    report["correct"] = sum(label == prediction for label, prediction in zip(labels, predictions))
    report |= _flat("accuracy", share_report(_right_by_id(known), seed))
    always = confusion_columns(ids, groups, labels, [positive] * len(ids), positive)[2].sum(axis=0)  # [groups, 4]
    positives = sum(label == positive for label in labels)
    report["baselines"] = {
        f"always_{positive}": {"accuracy": positives / len(labels), "macro_f1": _number(group_f1(always)[1])},
        "majority": {"accuracy": max(positives, len(labels) - positives) / len(labels)},
    }
    return report


def _right_by_id(entries):
    right = {}
    for key, _, label, prediction, _ in entries:
        right.setdefault(key, []).append(int(label == prediction))
    return right


def _number(value):
    return float(value) if np.isfinite(value) else None


def _flat(name, share):
    return {name: share["value"], f"{name}_low": share["low"], f"{name}_high": share["high"]}


def _group_report(name, entries, counts, draws, positive, seed):
    entries = [entry for entry in entries if entry[1] == name]
    tp, fp, fn, tn = (int(value) for value in counts)
    precision, recall, f1 = precision_recall_f1(tp, fp, fn)
    low, high = interval(draws)
    return {"count": len(entries), "positives": sum(entry[2] == positive for entry in entries), "tp": tp, "fp": fp, "fn": fn, "tn": tn,
            "no_answer": sum(entry[3] is None for entry in entries), "precision": precision, "recall": recall,
            "f1": f1 if tp + fn else None, "f1_low": low, "f1_high": high, **_flat("accuracy", share_report(_right_by_id(entries), seed)),
            "format_rate": sum(bool(entry[4]) for entry in entries) / len(entries)}
