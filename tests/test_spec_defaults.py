"""The defaults are the specification's numbers; a changed default needs a changed table here."""

from __future__ import annotations

import pytest

from navi_core.config import (
    AdaptationConfig,
    CompileConfig,
    DistributedConfig,
    DQNConfig,
    DynamicsConfig,
    EarlyStopConfig,
    EnvConfig,
    EvalConfig,
    PolicyConfig,
    PPOConfig,
    ReplayConfig,
    RewardConfig,
    ShaperConfig,
    SmoothingConfig,
    SpawnConfig,
    TrainConfig,
    compile_resolution,
    parse_config,
)

DEFAULTS = [
    (
        EnvConfig(),
        {
            "azimuth_bins": 256,
            "elevation_bins": 48,
            "max_distance": 100.0,
            "max_steps": 1000,
            "episodes_per_scene": 16,
            "void_starvation": 0.85,
            "void_grace": 10,
            "stagger": True,
        },
    ),
    (
        DynamicsConfig(),
        {
            "max_speed": (5.0, 2.0, 3.0),
            "max_yaw_rate": 3.0,
            "smoothing": 0.85,
            "substep": 0.02,
            "steps_per_decision": 5,
            "radius": 0.15,
            "limiter_distance": 0.8,
            "limiter_floor": 0.05,
            "limiter_elevation_degrees": 30.0,
            "decision_hz": 10.0,
        },
    ),
    (RewardConfig(), {"preset": "explore", "view_radius": 3.2, "view_cell": 0.2}),
    (SpawnConfig(), {"grid": (5, 7, 5), "inset": 0.2, "probe": (48, 12), "max_starvation": 0.70}),
    (
        ShaperConfig(),
        {
            "existential_tax": -0.02,
            "velocity_weight": 0.0,
            "rnd_start": 1.0,
            "rnd_end": 0.01,
            "rnd_decay_steps": 500_000,
            "rnd_clamp": 5.0,
            "loop_coefficient": 2.0,
            "loop_threshold": 0.85,
            "loop_decay": "half_life",
            "loop_tau": 200.0,
            "memory_capacity": 100_000,
            "memory_exclusion": 50,
        },
    ),
    (
        PolicyConfig(),
        {
            "encoder": "rayvit",
            "core": "mamba2",
            "width": 128,
            "patch": 8,
            "core_layers": 1,
            "aux": "no_reward",
            "depth_shift": 0.2,
            "depth_scale": 0.1,
            "log_std_init": -0.5,
            "stop_value_gradient": False,
            "privileged_critic": False,
        },
    ),
    (
        PPOConfig(),
        {
            "learning_rate": 3e-4,
            "schedules": {},
            "order": "shuffled",
            "normalise_returns": True,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip": 0.2,
            "entropy_coefficient": 0.01,
            "value_coefficient": 0.5,
            "value_clip": None,
            "max_grad_norm": 0.5,
            "epochs": 2,
            "rollout": 256,
            "minibatch": 64,
            "bptt": 8,
            "target_kl": 0.03,
            "reward_ema_alpha": 0.01,
        },
    ),
    (
        DQNConfig(),
        {
            "gamma": 0.99,
            "polyak": 0.005,
            "target_update": "polyak",
            "max_grad_norm": 10.0,
            "exploration": "per_actor",
            "epsilon_base": 0.4,
            "epsilon_exponent": 7.0,
        },
    ),
    (
        ReplayConfig(),
        {"batch_size": 256, "prioritized_replay": True, "alpha": 0.6, "beta0": 0.4, "capacity": 100_000},
    ),
    (
        SmoothingConfig(),
        {
            "k": 16,
            "sigma_min": 1e-3,
            "sigma_max": 1.0,
            "alpha_step_init": 0.15,
            "alpha_step_schedule": "cosine",
            "alpha_step_decay_steps": 100_000,
            "dim_exponent": 0.5,
            "trust_region_tau": 0.1,
            "latent_dim": 64,
            "td_var_min": 0.0,
            "disagreement_min": 0.0,
            "iterations": 1,
            "free_energy_weight": 0.0,
        },
    ),
    (
        EarlyStopConfig(),
        {
            "eval_interval": 5000,
            "patience": 10,
            "hysteresis_pct": 0.03,
            "td_ema_beta": 0.9,
            "plateau_threshold": 0.5,
            "trend": False,
            "aggregate": "median",
        },
    ),
    (
        AdaptationConfig(),
        {
            "rate": 0.05,
            "min_dwell": 5,
            "alpha_step_bounds": (0.01, 0.5),
            "tau_bounds": (0.01, 1.0),
            "k_bounds": (4, 64),
            "learning_rate_bounds": (1e-5, 5e-3),
        },
    ),
    (
        DistributedConfig(),
        {"actors_per_gpu": 4, "learners": 1, "param_sync_interval": 1000, "replay_shards": 4},
    ),
    (TrainConfig(), {"algorithm": "ppo", "checkpoint_every": 25_000, "total_steps": None}),
    (CompileConfig(), {"resolution": 512, "padding": 1.0}),
    (
        EvalConfig(),
        {
            "starts": 10,
            "max_steps": 1000,
            "view_radius": 3.2,
            "floor_cell": 0.1,
            "visit_cell": 0.5,
            "block": 16,
            "deterministic": True,
        },
    ),
]


@pytest.mark.parametrize(("config", "wanted"), DEFAULTS, ids=lambda x: type(x).__name__)
def test_defaults_are_the_specified_numbers(config, wanted) -> None:
    assert {name: getattr(config, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("bins", "resolution"),
    [
        ((64, 16), 512),
        ((256, 48), 512),
        ((257, 48), 1024),
        ((256, 65), 1024),
        ((384, 72), 1024),
        ((512, 96), 1024),
        ((768, 144), 2048),
        ((4096, 48), 2048),
    ],
)
def test_compile_resolution_follows_the_sensor_bins(bins, resolution) -> None:
    assert compile_resolution(*bins) == resolution
    sensor = dict(zip(("azimuth_bins", "elevation_bins"), bins))
    data = {"env": sensor, "policy": sensor | {"encoder": "ring_cnn", "azimuth_bins": bins[0] // 8 * 8}}
    if bins[0] % 8:
        return
    config = parse_config(TrainConfig, data | {"compile": {"unit_scale": 0.01}})
    assert (config.compile.resolution, config.compile.unit_scale) == (resolution, 0.01)
    assert parse_config(TrainConfig, config.model_dump(mode="json")) == config
    assert parse_config(TrainConfig, data | {"compile": {"resolution": 64}}).compile.resolution == 64
