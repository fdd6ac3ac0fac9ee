"""`navi settings`: every setting by name, value, source, bounds and meaning."""

import json

import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import TrainConfig, parse_config
from navi_core.config.base import settings_of
from navi_core.config.service import ServeConfig
from navi_core.errors import ConfigError
from navi_core.presets import merge, parse_assignments, preset_names, resolve_config, setting_sources
from navi_pipeline.settings import NightlyConfig


def ask(*words):
    done = CliRunner().invoke(build_app(), ["settings", *words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def rows(*words):
    return {row["name"]: row for row in json.loads(ask(*words, "--json"))["settings"]}


@pytest.mark.parametrize("cls", [TrainConfig, ServeConfig, NightlyConfig])
def test_every_setting_has_a_meaning_and_allowed_values(cls):
    found = settings_of(cls())
    assert len({each.name for each in found}) == len(found) > 20
    for each in found:
        assert each.meaning and "None" not in each.meaning.split(), each.name
        assert each.allowed and "anything" not in each.allowed, each.name
        assert not each.changed


@pytest.mark.parametrize("preset", preset_names())
def test_listed_values_can_be_assigned_back(preset):
    config = resolve_config(preset=preset, environ={})
    texts = [f"{each.name}={each.text}" for each in settings_of(config)]
    assert parse_config(TrainConfig, parse_assignments(texts)) == config


def test_bounds_are_described_in_words():
    found = {each.name: each for each in settings_of(TrainConfig())}
    assert found["ppo.clip"].allowed == "a number > 0, ≤ 1"
    assert found["total_steps"].allowed == "a whole number ≥ 1, ≤ 2^40 or null"
    assert found["policy.width"].allowed == "a whole number ≥ 8, ≤ 1024, a multiple of 4"
    assert found["policy.patch"].allowed == "a whole number ≥ 2, ≤ 64 or auto"
    assert found["policy.core"].allowed == "mamba2, gru, mingru, mambapy, none"
    assert found["env.stagger"].allowed == "true or false" and found["corpus.root"].allowed == "text or null"
    assert found["compile.unit_scale"].allowed == "a number > 0, ≤ 1000000"


def test_jointly_checked_bounds_are_listed_separately():
    found = {each.name: each.allowed for each in settings_of(ServeConfig())}
    assert found["training.batch_size"] == "a whole number > 0" and found["training.trace"] == "a number ≥ 0, ≤ 1"
    assert found["training.entropy_coefficient"] == "a number ≥ 0"


def test_the_strongest_source_is_named(tmp_path, monkeypatch):
    file = tmp_path / "mine.yaml"
    file.write_text("ppo: {clip: 0.3, gamma: 0.97}\n")
    monkeypatch.setenv("NAVI_PPO__GAMMA", "0.96")
    found = rows("--preset", "quick", "--config", str(file), "--set", "ppo.epochs=5")
    assert (found["ppo.clip"]["value"], found["ppo.clip"]["from"]) == (0.3, str(file))
    assert (found["ppo.gamma"]["value"], found["ppo.gamma"]["from"]) == (0.96, "NAVI_*")
    assert (found["ppo.epochs"]["value"], found["ppo.epochs"]["from"]) == (5, "--set")
    assert (found["env.azimuth_bins"]["value"], found["env.azimuth_bins"]["from"]) == (64, "preset quick")
    assert (found["policy.azimuth_bins"]["value"], found["policy.azimuth_bins"]["from"]) == (64, "follows from others")
    assert found["ppo.gae_lambda"]["from"] == "default"
    assert set(rows("--set", "ppo.epochs=5", "--set", "ppo.gamma=0.96", "--changed")) == {"ppo.epochs", "ppo.gamma"}


def test_sources_make_the_configuration():
    given = {"preset": "demo", "environ": {"NAVI_SEED": "3"}, "flags": {"actors": 5}, "assignments": ["seed=4"]}
    values = {}
    for _, part in setting_sources(**given):
        values = merge(values, part)
    assert parse_config(TrainConfig, values) == resolve_config(**given)


def test_settings_are_found_by_section_name_or_word():
    assert {name.split(".")[0] for name in rows("ppo")} == {"ppo"} and "ppo.clip" in rows("ppo")
    assert list(rows("env.goal.per_scene")) == ["env.goal.per_scene"]
    assert {"ppo.clip", "ppo.value_clip", "grpo.clip"} <= set(rows("CLIP"))
    assert "shaper.rnd_lr" in rows("RND predictor")
    assert set(rows("--of", "serve", "gate")) >= {"gate.substeps", "gate.margin"}
    assert "ppo.…" in ask() and "Proximal policy optimisation" in ask()
    assert "none differs" in ask("--changed")


def test_unknown_search_words_and_options_are_refused():
    for words, reported in (
        (["learnin_rate"], "did you mean 'learning_rate'"),
        (["--of", "evaluate"], "allowed: train, serve, nightly"),
        (["--of", "serve", "--preset", "quick"], "Leave it out"),
        (["--of", "serve", "--config", "x.yaml"], "navi serve takes --set alone"),
        (["--set", "ppo.clip=7"], "ppo.clip = 7: expected at most 1"),
    ):
        with pytest.raises(ConfigError, match=reported):
            ask(*words)


def test_unsupported_setting_of_a_learner_allows_only_null():
    """DPO and DQN inherit the field from rollout settings shared with PPO and GRPO, and ignore it."""
    allowed = {each.name: each.allowed for each in settings_of(TrainConfig())}
    for learner in ("dpo", "dqn"):
        assert allowed[f"{learner}.microbatch"] == "null"
        with pytest.raises(ConfigError, match=f"{learner}.microbatch = 4: expected null"):
            parse_config(TrainConfig, {learner: {"microbatch": 4}})
    assert parse_config(TrainConfig, {"ppo": {"microbatch": 4}, "dpo": {"microbatch": None}}).ppo.microbatch == 4
