"""Faults of the sensor: their statistics, their exact replay, and what they must not touch."""

from __future__ import annotations

import pytest
import torch

from navi_core.config import EnvConfig, SensorConfig
from navi_core.world import Field, NavigationEnv
from navi_core.world.sensor.faults import SensorFaults
from navi_core.world.sensor.panorama import denormalise_depth, normalise_depth

FLIGHT = {"azimuth_bins": 32, "elevation_bins": 8, "max_steps": 12, "stagger": False}
NOISY = {"depth_relative": 0.02, "depth_additive": 0.01, "dropout": 0.1}


@pytest.fixture(scope="module")
def field(apartments) -> Field:
    return Field(apartments)


def wall(rows: int, metres: float) -> torch.Tensor:
    """Return observations of a wall at one distance all around, id 7."""
    obs = torch.ones(rows, 3, 128, 32)
    obs[:, 0] = normalise_depth(torch.tensor(metres), 100.0)
    obs[:, 1] = 7.0
    return obs


def spoil(rows: int, metres: float, seed: int = 0, **faults: float) -> torch.Tensor:
    keys = torch.arange(rows)
    sensor = SensorFaults(SensorConfig(**faults), seed, keys, 100.0)
    return sensor.apply(wall(rows, metres), torch.zeros_like(keys), torch.full_like(keys, 3))


def test_a_sensor_without_faults_returns_the_observations_themselves() -> None:
    obs, none = wall(2, 4.0), torch.zeros(2, dtype=torch.int64)
    assert SensorFaults(SensorConfig(), 0, torch.arange(2), 100.0).apply(obs, none, none) is obs


@pytest.mark.parametrize(
    ("faults", "metres", "sigma"),
    [
        ({"depth_additive": 0.05}, 4.0, 0.05),
        ({"depth_relative": 0.02}, 10.0, 0.2),
        ({"depth_quadratic": 0.002}, 8.0, 0.128),
        ({"depth_additive": 0.1, "depth_relative": 0.01, "depth_quadratic": 0.001}, 10.0, 0.3),
    ],
)
def test_depth_noise_has_mean_zero_and_the_stated_deviation(faults: dict, metres: float, sigma: float) -> None:
    error = denormalise_depth(spoil(16, metres, **faults)[:, 0], 100.0).double() - metres
    count = error.numel()
    assert abs(float(error.mean())) < 5 * sigma / count**0.5
    assert float(error.std()) == pytest.approx(sigma, rel=0.01)
    within = [float((error.abs() < k * sigma).double().mean()) for k in (1, 2, 3)]
    assert within == pytest.approx([0.6827, 0.9545, 0.9973], abs=0.005)  # a normal distribution
    pairs = torch.stack([error.flatten()[:-1], error.flatten()[1:]])
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 5 / count**0.5


def test_rays_drop_out_at_the_stated_rate_and_look_like_misses() -> None:
    obs = spoil(16, 4.0, dropout=0.25)
    lost = obs[:, 2] == 0
    assert float(lost.double().mean()) == pytest.approx(0.25, abs=0.01)
    assert bool((obs[:, 0][lost] == 1).all())
    assert bool((obs[:, 1][lost] == 0).all())
    assert torch.equal(obs[:, :2][:, :, ~lost[0]][0], wall(1, 4.0)[0, :2][:, ~lost[0]])  # the others are untouched
    assert bool((spoil(2, 4.0, dropout=1.0)[:, 2] == 0).all())


def test_depth_stays_within_the_range_and_misses_stay_misses() -> None:
    obs = spoil(4, 0.01, depth_additive=1.0)
    assert float(obs[:, 0].min()) == 0.0
    assert bool((obs[:, 2] == 1).all())
    assert float(spoil(4, 99.9, depth_additive=50.0)[:, 0].max()) == 1.0
    keys = torch.arange(1)
    miss = torch.zeros(1, 3, 8, 4)
    miss[:, 0] = 1.0
    sensor = SensorFaults(SensorConfig(**NOISY), 0, keys, 100.0)
    assert torch.equal(sensor.apply(miss, keys, keys), miss)


def test_faults_are_functions_of_seed_row_episode_and_decision() -> None:
    sensor = SensorFaults(SensorConfig(**NOISY), 3, torch.arange(4), 100.0)
    one = SensorFaults(SensorConfig(**NOISY), 3, torch.tensor([2]), 100.0)
    episode, step = torch.tensor([0, 1, 2, 3]), torch.tensor([9, 8, 7, 6])
    all_rows = sensor.apply(wall(4, 3.0), episode, step)
    assert torch.equal(all_rows[2:3], one.apply(wall(1, 3.0), episode[2:3], step[2:3]))
    assert torch.equal(all_rows, sensor.apply(wall(4, 3.0), episode, step))
    others = (sensor.apply(wall(4, 3.0), episode + 1, step), sensor.apply(wall(4, 3.0), episode, step + 1))
    assert all(not torch.equal(x[r], all_rows[r]) for x in others for r in range(4))
    assert not torch.equal(spoil(1, 3.0, seed=1, **NOISY), spoil(1, 3.0, seed=2, **NOISY))


def fly(env: NavigationEnv, steps: int, start: int = 0) -> list:
    def action(step: int) -> torch.Tensor:
        return torch.rand(16, 4, generator=torch.Generator().manual_seed(step))[: env.num_envs] * 2 - 1

    return [env.step(action(step)) for step in range(start, start + steps)]


@pytest.mark.parametrize("tensor_only", [False, True])
def test_rewards_and_dynamics_ignore_sensor_faults(field: Field, tensor_only: bool) -> None:
    clean = NavigationEnv(field, 3, EnvConfig(**FLIGHT), seed=1, tensor_only=tensor_only)
    noisy = NavigationEnv(field, 3, EnvConfig(**FLIGHT, sensor=NOISY), seed=1, tensor_only=tensor_only)
    assert not torch.equal(clean.reset(), noisy.reset())  # the spawn pool's observation is spoilt at use
    for a, b in zip(fly(clean, 30), fly(noisy, 30)):
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.truncated, b.truncated)
        assert torch.equal(a.info["position"], b.info["position"])
        for true, spoilt in ((a.obs, b.obs), (a.final_obs, b.final_obs)):
            both = spoilt[:, 2] == 1
            assert bool((true[:, 2][both] == 1).all())
            assert 0.02 < 1 - float(both.sum() / true[:, 2].sum()) < 0.2
            assert 0 < float((true[:, 0] - spoilt[:, 0])[both].abs().mean()) < 0.02
    assert torch.equal(clean.observe(), noisy.observe())


@pytest.mark.parametrize("sensor", [NOISY, {"delayed": True}, NOISY | {"delayed": True}])
def test_a_restored_environment_meets_the_same_faults(field: Field, sensor: dict) -> None:
    config = EnvConfig(**FLIGHT, sensor=sensor)
    env = NavigationEnv(field, 3, config, seed=9)
    fly(env, 8)
    saved = env.state_dict()
    expected = fly(env, 16, 8)
    other, alone = NavigationEnv(field, 3, config, seed=9), NavigationEnv(field, 1, config, seed=9)
    other.load_state_dict(saved)
    fly(alone, 8)
    for want, got, one in zip(expected, fly(other, 16, 8), fly(alone, 16, 8)):
        assert torch.equal(got.obs, want.obs)
        assert torch.equal(got.final_obs, want.final_obs)
        assert torch.equal(one.obs, want.obs[:1])


def test_delayed_sensor_lags_one_decision_within_an_episode(field: Field) -> None:
    clean = NavigationEnv(field, 2, EnvConfig(**FLIGHT), seed=5)
    late = NavigationEnv(field, 2, EnvConfig(**FLIGHT, sensor={"delayed": True}), seed=5)
    before = clean.reset()
    assert torch.equal(late.reset(), before)
    for now, seen in zip(fly(clean, 30), fly(late, 30)):
        assert torch.equal(seen.final_obs, before)
        ended = now.truncated
        assert torch.equal(seen.obs[ended], now.obs[ended])  # an episode begins with its own observation
        assert torch.equal(seen.obs[~ended], before[~ended])
        before = now.obs
