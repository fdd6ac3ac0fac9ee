"""`Navi/Explore-v0` for gymnasium: its checks, its autoreset, its info."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

import torch  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode  # noqa: E402

import navi_core.world.gym_adapter as adapter  # noqa: E402
from navi_core.errors import ConfigError, NonFiniteError, SceneError  # noqa: E402
from navi_core.world import Field, NavigationEnv  # noqa: E402

SMALL = {"azimuth_bins": 16, "elevation_bins": 6, "max_steps": 5, "stagger": False}


def batch(apartments, rows: int = 3, **arguments):
    return gymnasium.make_vec(adapter.ENV_ID, num_envs=rows, scenes=apartments, config=SMALL, **arguments)


def test_single_drone_passes_gymnasium_checks(apartments) -> None:
    env = gymnasium.make(adapter.ENV_ID, scenes=apartments[:1], config=SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    assert env.unwrapped.observation_space.contains(env.reset(seed=1)[0])


def test_batch_is_made_by_name_with_same_step_autoreset(apartments) -> None:
    envs = batch(apartments)
    assert envs.autoreset_mode is envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.num_envs == 3
    assert envs.single_observation_space.shape == (3, 16, 6)
    assert envs.single_action_space == gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    obs, info = envs.reset(seed=3)
    assert envs.observation_space.contains(obs)
    assert info["_position"].all()
    envs.action_space.seed(0)
    for _ in range(12):
        obs, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(obs)
        assert reward.shape == terminated.shape == truncated.shape == (3,)
        assert terminated.dtype == truncated.dtype == bool
        assert reward.dtype == np.float64


def test_batch_steps_equal_those_of_the_environment(apartments) -> None:
    envs = batch(apartments)
    plain = NavigationEnv(Field(apartments), 3, envs.unwrapped.env.config, seed=8)
    obs, _ = envs.reset(seed=8)
    assert np.array_equal(obs, plain.reset().numpy())
    rng = np.random.default_rng(0)
    for _ in range(7):
        action = rng.uniform(-1, 1, (3, 4)).astype(np.float32)
        obs, reward, _, truncated, _ = envs.step(action)
        want = plain.step(torch.from_numpy(action))
        assert np.array_equal(obs, want.obs.numpy())
        assert np.array_equal(reward, want.reward.numpy())
        assert np.array_equal(truncated, want.truncated.numpy())


def test_ended_episode_is_reported_in_final_obs_and_info(apartments) -> None:
    envs = batch(apartments)
    plain = NavigationEnv(Field(apartments), 3, envs.unwrapped.env.config, seed=1)
    envs.reset(seed=1)
    for step in range(5):
        obs, _, _, truncated, info = envs.step(np.zeros((3, 4), np.float32))
        want = plain.step(torch.zeros(3, 4))
        assert ("final_obs" in info) == (step == 4)
        assert info["_speed"].all() == (step < 4)
    assert truncated.all()
    assert info["_final_obs"].all()
    assert info["_final_info"].all()
    assert np.array_equal(np.stack(list(info["final_obs"])), want.final_obs.numpy())
    assert info["final_info"]["episode_length"].tolist() == [5, 5, 5]
    assert info["final_info"]["_reward_terms"].all()
    assert not np.array_equal(info["final_info"]["position"], info["position"])
    assert np.array_equal(obs, want.obs.numpy())


def test_gymnasium_wrappers_count_episodes_in_the_batch(apartments) -> None:
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(batch(apartments))
    envs.reset(seed=0)
    for _ in range(11):
        envs.step(np.zeros((3, 4), np.float32))
    assert list(envs.length_queue) == [5] * 6


def test_seeded_resets_repeat_and_unseeded_advance(apartments) -> None:
    envs = batch(apartments)
    first, second = envs.reset(seed=5)[0], envs.reset()[0]
    assert not np.array_equal(first, second)
    assert np.array_equal(envs.reset(seed=5)[0], first)
    assert np.array_equal(envs.reset()[0], second)
    assert not np.array_equal(envs.reset(seed=6)[0], first)


def test_single_drone_rotates_through_scenes(apartments) -> None:
    env = gymnasium.make(adapter.ENV_ID, scenes=apartments, config=SMALL | {"episodes_per_scene": 2}).unwrapped
    scenes = [env.reset(seed=0 if i == 0 else None)[1]["scene_index"] for i in range(5)]
    assert scenes == [0, 0, 1, 1, 0]


def test_a_panorama_is_drawn_forward_in_the_middle(apartments) -> None:
    envs = batch(apartments, render_mode="rgb_array")
    with pytest.raises(ConfigError, match="before reset"):
        envs.unwrapped.render()
    envs.reset(seed=0)
    frames = envs.render()
    assert len(frames) == 3
    assert frames[0].shape == (6 * 32, 512, 3)
    assert frames[0].dtype == np.uint8
    from navi_core.world.sensor.panorama import panorama_image

    image = np.ones((3, 8, 4), np.float32)
    image[2] = 0.0
    image[:, 0, 0] = [0.0, 1.0, 1.0]  # one near surface, straight ahead and up
    drawn = panorama_image(image)
    assert drawn[0, 4 * 64].tolist() == [255, 250, 220]
    assert int((drawn.sum(axis=2) > 0).sum()) == 64 * 64


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"family": "apartment", "corpus": {"root": "."}}, ConfigError),
        ({"family": "castle"}, ConfigError),
        ({"scenes": "no/such/file.glb"}, SceneError),
        ({"render_mode": "ansi", "seeds": [0]}, ConfigError),
        ({"config": {"azimuth": 3}}, ConfigError),
        ({"resolution": 100}, ConfigError),
    ],
)
def test_invalid_constructor_arguments_are_refused(arguments: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        adapter.ExploreVectorEnv(2, **({"resolution": 64} | arguments))


def test_impossible_actions_and_options_are_refused(apartments) -> None:
    envs = batch(apartments)
    with pytest.raises(ConfigError, match="reset has no option 'pose'; allowed: scene, position, yaw, reset_mask"):
        envs.reset(options={"pose": 1})
    envs.reset()
    with pytest.raises(ConfigError, match="expected \\(3, 4\\)"):
        envs.step(np.zeros((3, 3), np.float32))
    with pytest.raises(NonFiniteError):
        envs.step(np.full((3, 4), np.nan, np.float32))


def test_scenes_come_from_files_and_families(apartments, tmp_path) -> None:
    path = tmp_path / "home.gmdag"
    apartments[0].save(path)
    by_file = adapter.ExploreVectorEnv(1, scenes=path, config=SMALL)
    by_family = adapter.ExploreVectorEnv(1, family="apartment", seeds=[0], resolution=256, config=SMALL)
    assert np.array_equal(by_file.reset(seed=2)[0], by_family.reset(seed=2)[0])


def test_module_qualified_name_registers_itself() -> None:
    code = """
import gymnasium
name = "navi_core.world.gym_adapter:Navi/Explore-v0"
env = gymnasium.make(name, family="apartment", resolution=64, config={"azimuth_bins": 16, "elevation_bins": 6})
print(env.reset(seed=0)[0].shape, env.spec.id)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(3, 16, 6) Navi/Explore-v0", done.stderr


def test_empty_scene_list_is_refused():
    with pytest.raises(ConfigError, match="scenes is an empty list"):
        adapter.ExploreVectorEnv(scenes=[])


def test_unseeded_environments_get_different_seeds(apartments) -> None:
    """With equal default seeds, the rows of an external vector environment would all see the same episodes."""
    rows = gymnasium.make_vec(
        adapter.ENV_ID, num_envs=2, vectorization_mode="sync", scenes=apartments[:1], config=SMALL
    )
    obs, _ = rows.reset()
    # Seeds are compared, not places: of few spawns two may draw the same one.
    assert len({env.unwrapped.np_random_seed for env in rows.envs}) == 2
    again = adapter.ExploreEnv(scenes=apartments[:1], config=SMALL, seed=rows.envs[0].unwrapped.np_random_seed % 2**63)
    assert np.array_equal(again.reset()[0], obs[0])
    assert batch(apartments, 1).env.seed != batch(apartments, 1).env.seed
