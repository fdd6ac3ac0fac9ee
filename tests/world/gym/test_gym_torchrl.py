"""TorchRL's wrapper over the vector environment: its own check, and rollouts that reset single rows."""

from __future__ import annotations

import pytest

gymnasium = pytest.importorskip("gymnasium")
envs = pytest.importorskip("torchrl.envs", reason="needs TorchRL: pip install torchrl")

import navi_core.world.gym_adapter as adapter  # noqa: E402


@pytest.mark.parametrize(("name", "keys"), [(adapter.ENV_ID, {"observation"}), (adapter.GOAL_ENV_ID, {"view", "goal"})])
def test_torchrl_checks_the_batch_and_resets_its_rows(apartments, name, keys) -> None:
    config = {"azimuth_bins": 16, "elevation_bins": 6, "max_steps": 5, "stagger": True}
    batch = gymnasium.make_vec(name, num_envs=3, scenes=apartments, config=config, autoreset_mode="Disabled", seed=3)
    env = envs.GymWrapper(batch)
    envs.check_env_specs(env)
    flown = env.rollout(12, break_when_any_done=False)
    ends = flown["next", "truncated"].squeeze(-1)
    assert flown.batch_size == (3, 12) and keys <= set(flown.keys())
    assert (ends.sum(1) >= 2).all() and not ends.all(0).any(), "rows end at steps of their own"
    for key in keys:  # after an end, the next episode's first observation, and not the ended one's last
        last, begins = flown["next", key][:, :-1][ends[:, :-1]], flown[key][:, 1:][ends[:, :-1]]
        assert (last != begins).flatten(1).any(1).all()
