"""Benchmarks of learning off policy: cells that go on, paired comparisons by hand, exact replay."""

import json

import pytest
from typer.testing import CliRunner

from navi_core.bench import smoothing
from navi_core.bench.dqn import run_dqn
from navi_core.bench.learning.kernels import run_replay
from navi_core.bench.task_runs import DQN_TARGETS, task_config
from navi_core.cli.main import build_app
from navi_core.config import EarlyStopConfig
from navi_core.errors import ConfigError

SHORT = {"total_steps": 3072, "early_stopping": {"eval_interval": 1024}}


def curve(returns, variance=1.0, interval=25_000, structure=0.0):
    count = len(returns)
    return {"steps": [interval * (i + 1) for i in range(count)], "returns": returns, "td_variance": [variance] * count,
            "td_mean": [0.0] * count, "local_structure": [structure] * count,
            "total_steps": interval * count, "smoothed_share": 0.0, "mean_step": 0.0, "clipped_share": 0.0}  # fmt: skip


@pytest.mark.slow
def test_finished_cell_is_not_run_again(tmp_path, monkeypatch):
    cells = smoothing.smoothing_cells(["cart_pole"], [0])
    assert [c.variant for c in cells] == ["baseline", "smoothing"] * 2
    first = repr(smoothing.run_cells(cells[:1], tmp_path, changes=SHORT))  # as text: a NaN is not equal to itself
    assert repr(smoothing.run_cells(cells, tmp_path, minutes=0, changes=SHORT)) == first
    monkeypatch.setattr(smoothing, "run_task", lambda *_, **__: pytest.fail("it is done"))
    assert repr(smoothing.run_cells(cells[:1], tmp_path, changes=SHORT)) == first
    next(tmp_path.iterdir()).write_text("{")
    assert smoothing.run_cells(cells[:1], tmp_path, minutes=0, changes=SHORT) == {}


def test_cells_differ_only_in_the_compared_setting():
    base, smoothed = (smoothing.cell_config(c) for c in smoothing.smoothing_cells(["acrobot"], [3])[2:])
    assert base.seed == smoothed.seed == 3
    changed = {k for k, v in base.model_dump().items() if smoothed.model_dump()[k] != v}
    assert changed == {"kernel_smoothing"} and smoothed.kernel_smoothing.enabled
    ablation = smoothing.ablation_cells("cart_pole", [0])
    assert len({c.variant for c in ablation}) == len(ablation) == 13
    assert all(smoothing.cell_config(c).policy.q_hidden == c.latent_dim for c in ablation)
    unbound = smoothing.cell_config(ablation[-1]).kernel_smoothing
    assert unbound.alpha_step_init * unbound.latent_dim**-unbound.dim_exponent == 0.5


def test_measures_and_stops_by_hand():
    got = smoothing.measures(curve([0.0, 480.0, 400.0, 500.0]), "cart_pole")
    assert got["time_to_target"] == 50_000 and got["auc"] == got["final"] == 345.0 and got["oscillation"] == 0.0
    never = smoothing.measures(curve([1.0, 2.0]), "cart_pole")
    assert never["time_to_target"] == 50_000
    run = curve([22.0, 102.0, 122.0, 122.0, 122.0, 122.0])
    assert smoothing._stop(run, "cart_pole", 100_000) == (pytest.approx(1 / 3), pytest.approx(0.7))
    assert smoothing._stop(run, "cart_pole", None) == (0.0, 1.0)


def test_stopped_run_holds_its_last_value():
    run = curve([100.0, 100.0, 300.0, 300.0, 500.0, 500.0])
    cut = smoothing.measures(run, "cart_pole", stop=100_000)
    assert cut["final"] == 200.0 and cut["auc"] == (800.0 + 2 * 200.0) / 6
    assert cut["time_to_target"] == 150_000, "the target came after the stop"
    assert smoothing.measures(run, "cart_pole", stop=150_000) == smoothing.measures(run, "cart_pole")


def test_stop_step_is_computed_from_the_finished_curve():
    asked = EarlyStopConfig(patience=3)
    flat = curve([100.0] * 8, structure=1.0)
    assert smoothing.stop_step(flat, asked) == flat["steps"][3], "the first evaluation has no window yet"
    assert smoothing.stop_step(curve([10.0 * 2**i for i in range(8)]), asked) is None


def test_verdict_needs_five_pairs_and_an_interval_without_zero():
    def table(offsets):
        curves = {}
        for seed, off in enumerate(offsets):
            for variant, alpha, shift in (("baseline", 0.0, 0.0), ("smoothing", 0.15, off)):
                cell = smoothing.SmoothingCell("cart_pole", False, variant, seed, alpha)
                curves[cell] = curve([100.0 + 7 * seed, 100.0 + shift + 7 * seed])
        return {row["variant"]: row for row in smoothing.smoothing_table(curves)}

    clear = table([10.0, 11.0, 9.0, 10.5, 9.5])["smoothing"]
    mean, low, high = clear["paired"]["auc"]
    assert mean == pytest.approx(5.0) and 0 < low < 5 < high
    assert "auc better" in smoothing.verdict(clear) and "final better" in smoothing.verdict(clear)
    assert smoothing.verdict(table([10.0, -11.0, 9.0, -10.5, 2.0])["smoothing"]) == "no difference shown"
    assert "no claim" in smoothing.verdict(table([10.0, 10.0])["smoothing"])
    assert smoothing.verdict(table([1.0])["baseline"]) == ""


@pytest.mark.slow
def test_dqn_is_measured_seed_by_seed():
    rows = list(run_dqn("cart_pole", [0, 1], changes=SHORT))
    assert [r["seed"] for r in rows] == [0, 1] and all(r["steps"] == 3072 and r["gradient_steps"] > 0 for r in rows)
    assert set(DQN_TARGETS) == {"cart_pole", "acrobot", "snake", "lunar_lander"}
    assert task_config("dqn", "snake").actors == 64
    with pytest.raises(ConfigError, match="allowed: sb3"):
        next(run_dqn("cart_pole", [0], against=["rllib"]))


def test_replay_is_measured_and_exact():
    tree, sums = run_replay([2000], 64, 3)
    assert tree["name"] == "sum tree" and tree["error"] < 4 and min(tree["add"], tree["sample"], tree["update"]) > 0
    assert sums["sample"] > 0 and sums["add"] != sums["add"]


def test_commands_print_the_finished_cells(tmp_path):
    app = build_app(groups=("bench",), plugins=False)
    run = CliRunner().invoke(app, ["bench", "smoothing", "--minutes", "0", "--out", str(tmp_path), "--json"])
    assert run.exit_code == 0 and json.loads(run.stdout)["done"] == "0 of 60 cells"
    table = CliRunner().invoke(app, ["bench", "smoothing", "--minutes", "0", "--out", str(tmp_path), "--ablation"])
    assert table.exit_code == 0 and "0 of 65 cells" in table.stdout
    with pytest.raises(ConfigError, match="acrobot"):
        CliRunner().invoke(app, ["bench", "smoothing", "--task", "pong"], catch_exceptions=False)
