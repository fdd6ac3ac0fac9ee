"""Settings made to do harm: every one a short `ConfigError` that names the key, at once."""

from __future__ import annotations

import pytest

from navi_core.config import ContinuousTrainingConfig, GateConfig, TrainConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.presets import read_config_file, resolve_config


def nested(depth: int) -> str:
    """Return a list of lists that is small in text and has 10^depth elements."""
    return "&a0 [x, x]" if depth == 0 else f"&a{depth} [{nested(depth - 1)}{f', *a{depth - 1}' * 9}]"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("actors: 2\nactors: 3\n", "'actors' occurs twice"),
        ("env: {max_steps: 1, max_steps: 2}\n", "'max_steps' occurs twice"),
        (f"actors: {nested(10)}\n", "alias"),
        ("env: &a {dynamics: *a}\n", "alias"),
        ("actors: " + "[" * 20_000, "YAML"),
        ("seed: !!timestamp 2020-99-99\n", "YAML.*timestamp"),
        ("{1: a, 0x1: b}\n", "1 occurs twice"),
        ("seed: " + "9" * 5000, "YAML.*digits"),
        ("actors: !!python/object/apply:os.getpid []\n", "YAML.*python"),
        ("actors: !unknown 3\n", "YAML.*unknown"),
        ("- 1\n", "list"),
    ],
)
def test_ambiguous_or_unsafe_yaml_is_refused(tmp_path, text, reason):
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_config_file(file)
    assert "settings.yaml" in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "assignment",
    [
        "actors=true",
        "ppo.learning_rate=true",
        "ppo.learning_rate=.nan",
        "ppo.learning_rate=.inf",
        "env.max_distance=.inf",
        "env.void_starvation=.nan",
        "env.dynamics.substep=1e-300",
        "env.dynamics.radius=1.0e+30",
        "env.dynamics.max_speed=[-1, 0, 1]",
        "env.dynamics.max_speed=[1, 1, .nan]",
        "env.spawn.grid=[0, 1, 1]",
        "env.spawn.grid=[100000, 100000, 100000]",
        "env.spawn.probe=[0, 0]",
        "env.reward.weights={collision: .nan}",
        "env.reward.view_cell=1e-300",
        "env.max_steps=9999999999999999999999",
        "shaper.existential_tax=.nan",
        "policy.depth_shift=.inf",
        "policy.log_std_init=.nan",
        "corpus.families={maze: [-1]}",
        "corpus.families={maze: [99999999999]}",
        "ppo.minibatch=99999999999999999999",
        "keep_checkpoints=99999999999999999999",
        "seed=2020-99-99",
        "seed=" + "9" * 5000,
        "seed=" + "[" * 5000,
    ],
)
def test_an_impossible_value_is_refused_by_name(assignment):
    with pytest.raises(ConfigError) as caught:
        resolve_config(preset="quick", environ={}, assignments=[assignment])
    key = assignment.partition("=")[0].rpartition(".")[2]
    assert key in str(caught.value) and len(str(caught.value)) < 300


def test_unknown_key_error_names_only_the_key():
    with pytest.raises(ConfigError) as caught:
        parse_config(TrainConfig, {"actors": 2, "ppo": {"learning_rat": 1}})
    assert str(caught.value).startswith("ppo: PPOConfig has no key 'learning_rat'; did you mean 'learning_rate'?")


@pytest.mark.parametrize(
    ("config", "settings", "reported"),
    [
        (TrainConfig, {"total_steps": "x"}, "total_steps = 'x': expected a whole number"),
        (TrainConfig, {"ppo": {"learning_rate": "x"}}, "ppo.learning_rate = 'x': expected a number"),
        (TrainConfig, {"execution": "x"}, "execution = 'x': expected 'eager', 'compile' or 'graph'"),
        (TrainConfig, {"policy": {"azimuth_bins": 3}}, "policy.azimuth_bins = 3: expected at least 8"),
        (TrainConfig, {"corpus": 3}, "corpus = 3: expected a section of settings, {name: value}"),
        (TrainConfig, {"corpus": {"families": {"maze": ["x"]}}}, "families.maze.0 = 'x': expected a whole number"),
        (
            TrainConfig,
            {"env": {"dynamics": {"max_speed": [1, 2]}}},
            "max_speed.2 = [1, 2]: expected a value here, there is none",
        ),
        (ContinuousTrainingConfig, {"shadow_evaluation": "x"}, "= 'x': expected a whole number or 'off'"),
        (ContinuousTrainingConfig, {"shadow_evaluation": 0}, "= 0: expected at least 1 or 'off'"),
        (GateConfig, {"slower": "x"}, "slower = 'x': expected a list, [a, b]"),
    ],
)
def test_errors_describe_the_expected_value_in_words(config, settings, reported):
    with pytest.raises(ConfigError) as caught:
        parse_config(config, settings)
    assert str(caught.value).endswith(reported) and "literal" not in str(caught.value)


def test_unknown_network_error_lists_the_allowed_ones():
    with pytest.raises(ConfigError) as caught:
        parse_config(TrainConfig, {"policy": {"core": "x" * 1000}})
    reported = str(caught.value)
    assert reported.startswith("policy.core: no temporal core 'xxx") and len(reported) < 300
    assert "allowed: mamba2, gru, mingru, mambapy, none;" in reported and "NAVI_PLUGINS" in reported
    with pytest.raises(ConfigError, match=r"^policy\.encoder = 5: expected text$"):
        parse_config(TrainConfig, {"policy": {"encoder": 5}})


def test_errors_list_every_fault():
    with pytest.raises(ConfigError, match=r"^seed = 'x': expected a whole number; actors = 0: expected at least 1$"):
        parse_config(TrainConfig, {"actors": 0, "seed": "x"})
