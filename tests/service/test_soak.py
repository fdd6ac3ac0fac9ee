"""Long learning in flight keeps memory, versions and counts in order."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from navi_core.bench.service.soak import run_soak
from navi_core.cli.main import build_app
from navi_core.config import ContinuousTrainingConfig, EnvConfig, GateConfig
from navi_core.errors import ConfigError
from tests.service.conftest import tiny_model


@pytest.mark.slow
@pytest.mark.parametrize("gate", [None, GateConfig()])
def test_versions_and_counts_agree_after_a_long_flight(apartments, gate) -> None:
    reported: list[tuple[float, float]] = []
    settings = ContinuousTrainingConfig(
        training_interval=0.05, batch_size=32, min_batch_size=8, buffer_capacity=500, state_interval=32
    )
    row = run_soak(
        tiny_model(), apartments[0], decisions=1500, sessions=4, env=EnvConfig(max_steps=40), training=settings,
        gate=gate, progress=lambda label, done, total: reported.append((done, total)),
    )  # fmt: skip
    assert row["consistent"] and row["errors"] == 0 and row["updates"] > 5 and row["decisions"] >= 1500
    assert row["episodes"] >= 36 and reported[-1][0] >= 1500
    assert 0 < row["idle_work_ms"] < 1000 and 0 <= row["idle_long"] < 30 and row["lock_long"] < 30
    assert row["gated"] == (gate is not None) == (row["slower"] > 0)
    assert row["growth_mb"] < 100 and np.isfinite([row["gain"], row["gain_error"]]).all()
    assert 300 < row["recorded_bytes"] < 1500


@pytest.mark.parametrize(
    ("setting", "message"), [("actor.seed=1", "only training"), ("gate.threshold=0", "without a gate; add --gate")]
)
def test_unknown_soak_setting_is_refused(setting: str, message: str) -> None:
    command = ["bench", "soak", "--set", setting]
    done = CliRunner().invoke(build_app(groups=("bench",), plugins=False), command)
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)
