"""Reference curves: the first 10,000 decisions of Double DQN on cart-pole lie in the bands of the recorded runs."""

import pytest

from navi_core.bench.smoothing import SmoothingCell, cell_config
from navi_core.learn.fast.dqn import FastDQN

BANDS = {
    "steps": [(2560, 2560), (5120, 5120), (7552, 7552), (10112, 10112)],
    "returns": [(40, 500), (120, 500), (130, 500), (130, 500)],
    "td_variance": [(12.5, 20.0), (18.0, 38.0), (37.0, 70.0), (58.0, 103.0)],
    "local_structure": [(0.53, 0.70), (0.60, 0.82), (0.65, 0.82), (0.65, 0.84)],
}
"""By evaluation, a little wider than 15 runs with and without smoothing (seeds 0–2 and 10–14) were apart."""
SOLVED = (8_000, 27_000)
"""Decisions at which the last 100 training episodes reach 100: they took 10,000–22,528."""


@pytest.mark.parametrize(("variant", "alpha"), [("baseline", 0.0), ("smoothing", 0.15)])
def test_a_seeded_run_stays_within_the_bands_of_the_reference_curves(variant, alpha):
    agent = FastDQN(cell_config(SmoothingCell("cart_pole", False, variant, 10, alpha)))
    curve = agent.train(target=100.0, until_solved=True)
    for name, bands in BANDS.items():
        for step, value, (low, high) in zip(curve.steps, getattr(curve, name), bands, strict=False):
            assert low <= value <= high, f"{name} is {value} after {step} decisions, not in {low} … {high}"
    assert SOLVED[0] <= curve.solved_step <= SOLVED[1]
    assert curve.smoothed_share == (1.0 if alpha else 0.0)
    if alpha:
        assert 0.02 < curve.mean_step < 0.07 and 0.1 < curve.clipped_share < 0.45
