"""Bootstrap intervals over scenes and starts: known answers, and how often they cover the truth."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.bench.evaluation import simulate_starts
from navi_core.errors import EvaluationError
from navi_core.evaluate.statistics import (
    FEW_SCENES,
    binomial_bounds,
    bootstrap_interval,
    interquartile_mean,
    interval_over_scenes,
    mean_of_scenes,
    percentage_interval,
    student_interval,
)


def test_scenes_weigh_equally_with_unequal_starts():
    assert mean_of_scenes({"a": [1.0, 1.0, 1.0, 1.0], "b": [3.0]}) == pytest.approx(2.0)
    assert bootstrap_interval({"a": [1.0, 1.0, 1.0, 1.0], "b": [3.0]}).mean == pytest.approx(2.0)


def test_binomial_bounds_have_the_tails_of_the_exact_distribution():
    from scipy.stats import binom

    low, high = binomial_bounds(85, 100)
    assert binom.sf(84, 100, low) == pytest.approx(0.05) and binom.cdf(85, 100, high) == pytest.approx(0.05)
    assert binomial_bounds(0, 36) == (0.0, pytest.approx(1 - 0.05 ** (1 / 36)))
    assert binomial_bounds(36, 36) == (pytest.approx(0.05 ** (1 / 36)), 1.0)


def test_interquartile_mean_by_hand():
    assert interquartile_mean([0, 1, 2, 3, 4, 5, 6, 100]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean([n**2 for n in range(12)]) == pytest.approx((9 + 16 + 25 + 36 + 49 + 64) / 6)
    assert interquartile_mean([5.0]) == 5.0
    assert interquartile_mean([1, 2, 3]) == pytest.approx(2.0)
    assert interquartile_mean([9, 1, 2, 3, 100]) == pytest.approx((2 + 3 + 9) / 3)


def test_a_constant_difference_has_an_interval_of_no_width():
    interval = bootstrap_interval({"a": [2.0] * 3, "b": [2.0] * 3})
    assert (interval.mean, interval.low, interval.high) == (2.0, 2.0, 2.0)
    assert interval.low > 0 and interval.scenes == 2 and interval.episodes == 6


def test_two_scenes_resample_to_the_binomial_by_hand():
    """Scenes of 0 and 1: a resample's mean is 0, ½ or 1 with probability ¼, ½, ¼; the 95 % interval is [0, 1]."""
    interval = bootstrap_interval({"a": [0.0, 0.0], "b": [1.0, 1.0]})
    assert (interval.low, interval.high) == (0.0, 1.0)
    inner = bootstrap_interval({"a": [0.0, 0.0], "b": [1.0, 1.0]}, confidence=0.4)
    assert (inner.low, inner.high) == (0.5, 0.5)


def test_one_scene_resamples_its_starts():
    interval = bootstrap_interval({"a": list(range(100))})
    standard_error = np.std(np.arange(100)) / 10
    assert interval.low == pytest.approx(49.5 - 1.96 * standard_error, abs=0.4)
    assert interval.high == pytest.approx(49.5 + 1.96 * standard_error, abs=0.4)


def test_the_same_seed_gives_the_same_interval_in_any_order_of_scenes():
    values = {"a": [1.0, 2.0, 5.0], "b": [0.0, 3.0], "c": [4.0]}
    turned = dict(reversed(list(values.items())))
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(turned, seed=3)
    other = bootstrap_interval(values, seed=4, resamples=57)
    assert bootstrap_interval(values, seed=3, resamples=57) != other


def test_resampling_never_draws_padding():
    interval = bootstrap_interval({"a": [1.0] * 7, "b": [1.0]})
    assert (interval.low, interval.high) == (1.0, 1.0)


def test_scene_resampling_covers_better_than_episode_resampling():
    """Values = scene effect + start effect: the interval of 12 scenes × 4 starts covers 0 in ≥ 85 % of 200 worlds."""
    generator = np.random.default_rng(0)
    covered = naive_covered = 0
    for world in range(200):
        values = generator.normal(size=(12, 1)) + 0.5 * generator.normal(size=(12, 4))
        ours = bootstrap_interval({str(i): list(row) for i, row in enumerate(values)}, seed=world, resamples=400)
        naive = bootstrap_interval({"all": list(values.ravel())}, seed=world, resamples=400)
        covered += ours.low <= 0 <= ours.high
        naive_covered += naive.low <= 0 <= naive.high
    assert covered >= 170
    assert naive_covered <= 150


def test_few_scenes_use_the_t_interval_of_their_means():
    """Means 1, 2, 3: standard error 1/√3, and t of two degrees of freedom is 4.302653."""
    interval = interval_over_scenes({"a": [0.0, 2.0], "b": [2.0], "c": [3.0, 3.0]})
    assert interval == student_interval({"a": [0.0, 2.0], "b": [2.0], "c": [3.0, 3.0]})
    assert (interval.mean, interval.scenes, interval.episodes) == (2.0, 3, 5)
    assert interval.high - 2.0 == pytest.approx(2.0 - interval.low) == pytest.approx(4.3026527 / 3**0.5, abs=1e-6)


def test_one_scene_uses_the_t_interval_of_its_starts():
    interval = interval_over_scenes({"a": [1.0, 2.0, 3.0]})
    assert interval.high - 2.0 == pytest.approx(4.3026527 / 3**0.5, abs=1e-6) and interval.scenes == 1
    alone = interval_over_scenes({"a": [7.0]})
    assert alone.mean == 7.0 and np.isnan([alone.low, alone.high]).all()


def test_many_scenes_use_the_bootstrap():
    values = {str(n): [float(n), n + 1.0] for n in range(FEW_SCENES)}
    assert interval_over_scenes(values, seed=4, resamples=50) == bootstrap_interval(values, seed=4, resamples=50)


@pytest.mark.parametrize(
    ("scenes", "starts"),
    [(2, 3), (4, 3), pytest.param(8, 3, marks=pytest.mark.slow), pytest.param(12, 3, marks=pytest.mark.slow)],
)
def test_interval_has_nominal_coverage_with_few_scenes(scenes, starts):
    """1,500 worlds estimate the share to ±1.1 points."""
    for row in simulate_starts([(scenes, starts)], shapes=("normal",), worlds=1500):
        assert 0.93 <= row["covered"] <= 0.98, row


def test_bootstrap_of_few_scenes_undercovers():
    row = simulate_starts([(4, 3)], spreads=(1.0,), shapes=("normal",), worlds=1500)[0]
    assert row["bootstrap_covered"] < 0.91 < row["covered"]


def test_large_tables_are_resampled_in_bounded_memory():
    values = {str(i): list(np.full(50, float(i))) for i in range(40)}
    interval = bootstrap_interval(values)
    assert interval.low < 19.5 < interval.high


@pytest.mark.parametrize(
    ("values", "word"),
    [({}, "no scene"), ({"a": []}, "a: no values"), ({"a": [1.0, float("nan")]}, "not finite")],
)
def test_bad_values_are_refused(values, word):
    with pytest.raises(EvaluationError, match=word):
        bootstrap_interval(values)


def test_impossible_bootstrap_settings_are_refused():
    for setting in ({"resamples": 0}, {"confidence": 0.0}, {"confidence": 1.0}):
        with pytest.raises(EvaluationError, match="must be ≥ 1 and confidence"):
            bootstrap_interval({"a": [3.0]}, **setting)
    assert bootstrap_interval({"a": [3.0]}, resamples=1).low == 3.0


def test_percentage_interval_stays_within_bounds_and_covers_the_truth():
    """Student's interval of few scenes near 100 leaves the range, and covers less."""
    generator = np.random.default_rng(0)
    covered = beyond = 0
    for _ in range(300):
        scenes = generator.beta(19, 1, size=6)
        values = {str(i): list(100 * generator.beta(20 * p + 0.01, 20 * (1 - p) + 0.01, size=3))
                  for i, p in enumerate(scenes)}  # fmt: skip
        ours = percentage_interval(values)
        assert 0 <= ours.low <= ours.mean <= ours.high <= 100
        covered += ours.low <= 95 <= ours.high
        beyond += student_interval(values).high > 100
    assert beyond > 50 and covered / 300 > 0.92


def test_percentage_interval_of_few_scenes_by_hand():
    """Student's ±4.3026527·10/√3 about 50 %, divided by 50·(100 − 50)/100, is ±0.99364 on the logit scale."""
    found = percentage_interval({"a": [40.0, 40.0], "b": [50.0, 50.0], "c": [60.0, 60.0]})
    assert (found.low, found.mean, found.high) == pytest.approx((27.0189, 50.0, 72.9811), abs=1e-3)


def test_percentage_interval_needs_six_episodes_and_bootstraps_many_scenes():
    few = percentage_interval({"a": [10.0, 20.0, 30.0], "b": [40.0, 50.0]})
    assert few.mean == 32.5 and np.isnan([few.low, few.high]).all()
    values = {str(i): [float(i), 2.0 * i] for i in range(FEW_SCENES)}
    assert percentage_interval(values, seed=4) == bootstrap_interval(values, seed=4)
    assert percentage_interval({"a": [0.0] * 6}).high == 0.0


def test_scenes_of_one_building_count_once():
    values = {"a@1": [1.0, 3.0], "a@2": [2.0, 2.0], "b": [8.0, 10.0], "c": [5.0, 5.0]}
    joined = {"a": [1.0, 3.0, 2.0, 2.0], "b": [8.0, 10.0], "c": [5.0, 5.0]}
    found = interval_over_scenes(values)
    assert found == interval_over_scenes(joined) and found.scenes == 3
    assert found.mean == mean_of_scenes(values) == pytest.approx(16 / 3)
