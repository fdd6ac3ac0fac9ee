"""Checkpoints of older code: read with the meaning that their training had, or refused with the way out."""

import copy

import pytest
import torch

from navi_core.config import parse_config
from navi_core.config.learn import TrainConfig, upgrade_train_config
from navi_core.errors import CheckpointError, CheckpointVersionError
from navi_core.learn.run.checkpoints import last_good_checkpoint
from navi_core.models import load_checkpoint


def _written(path, **changes):
    """Write a checkpoint again with other content, as other code would have written it."""
    content = torch.load(path, weights_only=True)
    torch.save(content | changes, path)
    return path


def _settings(config, **changes):
    reported = copy.deepcopy(config.model_dump(mode="json"))
    for place, value in changes.items():
        section, name = place.split("__")
        reported[section][name] = value
    return reported


def test_current_settings_pass_the_upgrade_unchanged(config):
    reported = config.model_dump(mode="json")
    assert upgrade_train_config(reported) == reported


def test_missing_return_normalisation_is_read_as_off(make_checkpoint, config):
    reported = _settings(config)
    del reported["ppo"]["normalise_returns"]
    found = load_checkpoint(_written(make_checkpoint(), config=reported)).train_config()
    assert not found.ppo.normalise_returns


def test_a_final_learning_rate_is_the_end_of_a_schedule(make_checkpoint, config):
    path = make_checkpoint()
    _written(path, config=_settings(config, ppo__final_learning_rate=None))
    assert load_checkpoint(path).train_config() == config
    _written(path, config=_settings(config, ppo__final_learning_rate=1e-4))
    schedule = load_checkpoint(path).train_config().ppo.schedules["learning_rate"]
    assert (schedule.shape, schedule.end) == ("cosine", 1e-4)


def test_unused_adaptation_is_dropped_from_old_settings(make_checkpoint, config):
    path = _written(make_checkpoint(), config=_settings(config, adaptation__enabled=True))
    assert load_checkpoint(path).train_config() == config
    dqn = parse_config(TrainConfig, {"algorithm": "dqn", "adaptation": {"enabled": True}}).model_dump(mode="json")
    assert upgrade_train_config(dqn)["adaptation"]["enabled"]


def test_unused_microbatch_is_dropped_from_old_settings(make_checkpoint, config):
    path = _written(make_checkpoint(), config=_settings(config, dpo__microbatch=4, dqn__microbatch=4))
    assert load_checkpoint(path).train_config() == config
    path = _written(path, config=_settings(config, ppo__microbatch=4, grpo__microbatch=2))
    found = load_checkpoint(path).train_config()
    assert (found.ppo.microbatch, found.grpo.microbatch) == (4, 2)


def test_setting_of_newer_code_error_names_run_and_remedy(make_checkpoint, config):
    path = _written(make_checkpoint(), config=_settings(config, ppo__warp=1), code_revision="abc1234")
    with pytest.raises(CheckpointError, match=r"no key 'warp'.*revision abc1234.*update this one") as caught:
        load_checkpoint(path).train_config()
    assert "ppo-demo-0123" in str(caught.value)


def test_another_format_is_not_set_aside_as_broken(make_checkpoint, tmp_path):
    make_checkpoint("step-000000000064.pt")
    newer = _written(make_checkpoint("step-000000000128.pt"), version=4)
    with pytest.raises(CheckpointVersionError, match="update Navi; or begin this run anew with --fresh"):
        last_good_checkpoint(tmp_path, expect_encoder="ring_cnn", expect_core="gru")
    assert newer.exists() and not list(tmp_path.glob("*.broken"))
