"""Reference curves: the first 10,000 decisions of Double DQN on cart-pole lie in the bands of the recorded runs."""

import pytest

from navi_core.bench.smoothing import SmoothingCell, cell_config, curve_of
from navi_core.bench.task_runs import run_task

BANDS = {
    "steps": [(2560, 2560), (5120, 5120), (7552, 7552), (10112, 10112)],
    "returns": [(40, 500), (120, 500), (180, 500), (180, 500)],
    "td_variance": [(8.0, 16.0), (17.0, 32.0), (36.0, 70.0), (54.0, 108.0)],
    "local_structure": [(0.5, 0.65), (0.6, 0.8), (0.65, 0.82), (0.65, 0.84)],
}
"""By evaluation, wider than 11 runs with and without smoothing (seeds 0 to 2 and 10 to 12) were apart."""
SOLVED = (8_000, 30_000)
"""Decisions at which the last 100 training episodes reach 100: they took 11,264 to 25,472."""


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "alpha"), [("baseline", 0.0), ("smoothing", 0.15)])
def test_a_seeded_run_stays_within_the_bands_of_the_reference_curves(variant, alpha):
    run = run_task(
        cell_config(SmoothingCell("cart_pole", False, variant, 10, alpha)),
        target=100.0, until_solved=True, curve=True, episodes=20,
    )  # fmt: skip
    curve = curve_of(run)
    for name, bands in BANDS.items():
        for step, value, (low, high) in zip(curve["steps"], curve[name], bands, strict=False):
            assert low <= value <= high, f"{name} is {value} after {step} decisions, not in {low} … {high}"
    assert SOLVED[0] <= run.solved_at <= SOLVED[1]
    assert curve["smoothed_share"] == (1.0 if alpha else 0.0)
    if alpha:
        assert 0.04 < curve["mean_step"] < 0.09 and 0.2 < curve["clipped_share"] < 0.5
