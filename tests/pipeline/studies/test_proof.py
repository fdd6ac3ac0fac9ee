"""A study's best settings against its preset on fresh seeds."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import TrainConfig, parse_config
from navi_core.errors import RunError
from navi_pipeline.cli import experiments
from navi_pipeline.lib.experiments.perform import perform_experiment
from navi_pipeline.lib.studies import proof
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.pipeline.studies.small_studies import analytic_trainer, complete_by, small_study


@pytest.fixture
def trained(monkeypatch):
    """List of the seeds that were trained, by an analytic trainer that a seed disturbs a little."""
    seeds = []

    def train(measurement, stage, asset, key, *command):
        config = parse_config(TrainConfig, json.loads(Path(command[command.index("--config") + 1]).read_text()))
        seeds.append(config.seed)
        noisy = config.model_copy(update={"ppo": config.ppo.model_copy(update={"learning_rate": _noisy(config)})})
        return analytic_trainer(noisy, asset=asset, partition=key, on_line=print, command=command, stop=lambda: False)

    monkeypatch.setattr(proof, "train_cell", train)
    return seeds


def _noisy(config):
    return config.ppo.learning_rate * (1 + 0.01 * config.seed)


def study(rate=9e-3, **given):
    """Carry a study to its end; its analytic reward is best at a learning rate of 1e-3."""
    config = small_study(settings={"task": "cart_pole", "total_steps": 90, "ppo": {"learning_rate": rate}}, **given)
    with TrialQueue(config) as queue:
        complete_by(queue)


def prove(seeds, **given):
    return perform_experiment(proof.proof_experiment("small", seeds), on_line=print, **given)


@pytest.mark.slow
def test_best_settings_are_better_on_fresh_seeds_and_the_comparison_is_a_row(trained):
    study()
    result = prove(5)
    (sentence,) = result.summary.sentences
    assert "trial" in sentence and "is better than the defaults in reward_ema: difference +" in sentence
    assert sorted(trained) == sorted([1, 2, 3, 4, 5] * 2), "the trials' own seed is 0"
    (row,) = Warehouse().query("select *, mean_a - mean_b as d from comparisons").to_dict("records")
    assert (row["b"], row["over"], row["better"], row["seeds"]) == ("the defaults", "seeds", True, 5)
    assert row["low"] > 0 and row["d"] == pytest.approx(row["mean_difference"])
    assert prove(5).reused and len(trained) == 10


@pytest.mark.slow
def test_metric_that_is_minimised_is_better_below_zero(trained):
    study(rate=1e-3, objectives=[{"metric": "reward_ema", "direction": "minimize"}])
    (sentence,) = prove(5).summary.sentences
    assert "is better than the defaults in reward_ema: difference -" in sentence


@pytest.mark.slow
def test_proof_that_was_interrupted_goes_on_and_gives_no_verdict_before(trained):
    study()
    result = prove(5, cells=4)
    assert result.waiting == 6 and "no verdict before all cells are measured" in result.summary.sentences[0]
    assert not len(Warehouse().query("select * from comparisons"))
    assert not prove(5).waiting and len(trained) == 10


@pytest.mark.slow
def test_two_seeds_show_nothing(trained):
    study()
    assert "not shown to be better than the defaults in reward_ema (5 seeds are needed" in prove(2).summary.sentences[0]


def test_study_without_a_complete_trial_is_refused_before_a_run_is_launched(monkeypatch):
    TrialQueue(small_study()).close()
    monkeypatch.setattr(experiments, "launch", lambda *_, **__: pytest.fail("a run was launched"))
    refused = CliRunner().invoke(build_app(), ["study", "prove", "small"]).exception
    assert isinstance(refused, RunError) and "no complete and feasible trial" in str(refused)
