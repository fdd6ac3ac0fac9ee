"""Given settings that a run does not read: one warning that names the part, `--strict`, suggestions, early stopping."""

from __future__ import annotations

import warnings

import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import TrainConfig, parse_config
from navi_core.config.base import setting_paths
from navi_core.config.readers import RULES, Not, rules_of, unread
from navi_core.errors import ConfigError
from navi_core.presets import resolve_config

NAMES = {".".join(path) for path in setting_paths(TrainConfig)}
AGM = """
replay: {batch_size: 256, prioritized_replay: true, alpha: 0.6, beta0: 0.4}
kernel_smoothing: {enabled: true, k: 16, sigma_min: 1e-3, sigma_max: 1.0, alpha_step_init: 0.15,
  alpha_step_schedule: cosine, alpha_step_decay_steps: 100000, dim_exponent: 0.5, trust_region_tau: 0.1, latent_dim: 64,
  gate_by_td_variance: true, td_var_min: 0.0, disagreement_min: 0.0, scale_preservation: false, noise_std: 0.0}
early_stopping: {eval_interval: 5000, patience: 10, hysteresis_pct: 0.03, td_ema_beta: 0.9, plateau_threshold: 0.5}
distributed: {actors_per_gpu: 4, learners: 1, param_sync_interval: 1000, replay_shards: 4}
"""
"""The sections of an AGM configuration file."""


def reported(command: str = "train", **sources) -> list[str]:
    """Return the warnings of a resolved configuration."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resolve_config(environ=sources.pop("environ", {}), command=command, **sources)
    return [str(each.message) for each in caught]


def test_the_table_names_settings_and_allowed_values():
    for names, where in RULES:
        for name in names.split():
            section = name.removesuffix(".*")
            assert name in NAMES or any(each.startswith(f"{section}.") for each in NAMES), name
        for alternative in where if isinstance(where, tuple) else (where,):
            for path, condition in alternative.items():
                known = path in ("command", "device", "grpo.schedules.ref_kl_coef") or path.startswith("$")
                assert known or path in NAMES, path
                assert isinstance(condition, str | Not) or condition


def test_every_section_of_a_learner_has_a_rule():
    alone = {"ppo", "grpo", "dpo", "bc", "dqn", "replay", "kernel_smoothing", "adaptation", "distributed"}
    assert all(rules_of(name) for name in NAMES if name.split(".")[0] in alone)


@pytest.mark.parametrize(
    ("algorithm", "given", "part"),
    [
        ("ppo", ["kernel_smoothing.enabled=true"], "algorithm dqn, not ppo"),
        ("ppo", ["policy.dueling=true"], "algorithm dqn"),
        ("ppo", ["policy.q_hidden=32"], "algorithm dqn"),
        ("ppo", ["distributed.actors_per_gpu=2"], "the command navi learner, not navi train"),
        ("ppo", ["profile=true"], "device cuda, not cpu"),
        ("ppo", ["grpo.clip=0.1"], "algorithm grpo"),
        ("grpo", ["kernel_smoothing.enabled=true"], "algorithm dqn, not grpo"),
        ("grpo", ["policy.separate_value=true", "policy.privileged_critic=true"], "algorithm ppo or bc"),
        (
            "ppo",
            ["policy.encoder=ring_cnn", "policy.area_attention=true"],
            "policy.encoder rayvit, not ring",
        ),
        ("ppo", ["policy.encoder=ring_cnn", "policy.patch=4"], "policy.encoder rayvit"),
        ("ppo", ["policy.separable_refinement=true"], "policy.encoder spherical_cnn, not rayvit"),
        ("dqn", ["policy.core=none", "dqn.burn_in=16"], "policy.core other than none"),
        ("ppo", ["policy.distribution=beta", "policy.log_std_init=-1"], "policy.distribution gaussian"),
        ("ppo", ["ppo.advantage_exponent=0.5"], "ppo.order advantage, not shuffled"),
        ("ppo", ["env.goal.success_radius=1"], "env.task point_goal, not explore"),
        ("ppo", ["task=cart_pole", "env.sensor.dropout=0.5"], "no task, not cart_pole"),
        ("bc", ["early_stopping.enabled=true"], "algorithm other than bc"),
        ("ppo", ["adaptation.enabled=true"], "algorithm dqn"),
        ("ppo", ["task=gymnasium:PongNoFrameskip-v4", "policy.log_std_init=-1"], "task other than cart_pole"),
        ("dqn", ["dqn.epsilon_end=0.1"], "dqn.exploration shared, not per_actor"),
        ("ppo", ["shaper.loop_coefficient=0", "shaper.loop_tau=9"], "shaper.loop_coefficient set, not 0"),
    ],
)
def test_a_setting_of_another_part_is_warned_of(algorithm, given, part):
    found = reported(flags={"algorithm": algorithm, "device": "cpu"}, assignments=given)
    assert len(found) == 1 and part in found[0] and given[-1].partition("=")[0] in found[0]
    with pytest.raises(ConfigError, match=r"has no effect in this run.*run without --strict"):
        resolve_config(
            environ={}, flags={"algorithm": algorithm, "device": "cpu"}, assignments=given, command="train", strict=True
        )


def test_settings_of_one_part_share_a_warning():
    found = reported(assignments=["grpo.clip=0.1", "grpo.gamma=0.9", "dpo.beta=0.2"])
    assert [text.split(" has no effect in this run")[0] for text in found] == ["grpo.gamma, grpo.clip", "dpo.beta"]


def test_files_and_the_environment_are_warned_of_but_not_presets_and_stored_runs(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("grpo: {clip: 0.1}\n")
    stored = tmp_path / "config.json"
    stored.write_text(TrainConfig().model_dump_json())
    assert len(reported(file=own)) == len(reported(environ={"NAVI_GRPO__CLIP": "0.1"})) == 1
    assert not reported(preset="demo") and not reported(preset=str(own)) and not reported(file=stored)
    assert not reported(preset="quick", defaults={"policy": {"patch": 4}})


def test_a_given_setting_that_is_read_is_not_warned_of():
    read = ["ppo.clip=0.1", "env.max_steps=9", "policy.patch=4", "threads=1"]
    assert not reported(assignments=read)
    assert not unread(TrainConfig(), [name.partition("=")[0] for name in read], "train")


def test_the_command_warns_on_standard_error_and_refuses_with_strict(tmp_path):
    words = ["train", "ppo", "--task", "cart_pole", "--steps", "64", "--actors", "4", "--temporal-core", "none"]
    words += ["--set", "ppo.rollout=16", "--set", "policy.aux=off", "--set", "threads=1", "--run-root", str(tmp_path)]
    words += ["--set", "grpo.clip=0.1"]
    with pytest.warns(
        UserWarning, match=r"grpo\.clip has no effect in this run: needs algorithm grpo, not ppo"
    ) as seen:
        assert CliRunner().invoke(build_app(), words, catch_exceptions=False).exit_code == 0
    assert len(seen) == 1
    with pytest.raises(ConfigError, match=r"grpo\.clip has no effect in this run"):
        CliRunner().invoke(build_app(), [*words, "--strict"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("training.algorithm=grpo", "TrainConfig has no key 'training'; did you mean 'algorithm'"),
        ("ppo.lr=3", "'learning_rate'"),
        ("lr=3", "'ppo.learning_rate'"),
        ("ppo.clip_range=0.1", "'clip'"),
        ("ppo.ent_coef=0.1", "'entropy_coefficient'"),
        ("grpo.entropy_coef=0.1", "'ent_coef'"),
        ("ppo.update_epochs=3", "'epochs'"),
        ("grpo.n_epochs=3", "'update_epochs'"),
        ("replay.buffer_size=9", "'capacity'"),
        ("dqn.tau=0.1", "'polyak'"),
        ("num_envs=3", "'actors'"),
        ("total_timesteps=3", "'total_steps'"),
        ("dqn.learning_rat=1", "'learning_rate'"),
    ],
)
def test_keys_of_other_systems_are_suggested_by_name(text, meant):
    with pytest.raises(ConfigError, match=meant):
        resolve_config(environ={}, assignments=[text])


def test_environment_variables_of_other_systems_are_suggested_by_name():
    with pytest.raises(ConfigError, match="did you mean NAVI_PPO__LEARNING_RATE"):
        resolve_config(environ={"NAVI_PPO__LR": "1"})


def test_an_agm_file_switches_early_stopping_on(tmp_path):
    file = tmp_path / "agm.yaml"
    file.write_text(AGM)
    flags = {"algorithm": "dqn", "task": "cart_pole", "policy": {"core": "none"}}
    found = reported(file=file, flags=flags)
    assert "early stopping is on" in found[0] and "distributed.actors_per_gpu" in found[1] and len(found) == 2
    config = resolve_config(file=file, environ={}, flags=flags)
    assert config.early_stopping.enabled and config.early_stopping.patience == 10
    off = resolve_config(file=file, environ={}, flags=flags, assignments=["early_stopping.enabled=false"])
    assert not off.early_stopping.enabled


def test_early_stopping_stays_off_where_nothing_asks_for_it():
    assert not resolve_config(environ={}).early_stopping.enabled
    adapted = ["algorithm=dqn", "adaptation.enabled=true", "early_stopping.eval_interval=64"]
    assert not resolve_config(environ={}, assignments=adapted).early_stopping.enabled
    plain = parse_config(TrainConfig, {"early_stopping": {"eval_interval": 64}})
    assert not plain.early_stopping.enabled
