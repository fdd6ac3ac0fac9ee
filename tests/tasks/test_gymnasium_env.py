"""Gymnasium environments as tasks: equal numbers, both kinds of endings, rows independent of the batch."""

import numpy as np
import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.tasks import reference_task
from navi_core.world.counter_random import Purpose, words

gymnasium = pytest.importorskip("gymnasium")
CART = "gymnasium:CartPole-v1"


def test_row_equals_a_single_gymnasium_environment():
    task, peer = reference_task(CART, 3, 5), gymnasium.make("CartPole-v1")

    def begin(episode: int):
        bits = int(words(5, Purpose.TASK, torch.tensor([1]), torch.tensor(episode))[0])
        return peer.reset(seed=bits & (2**31 - 1))[0]

    rng, episode, total = np.random.default_rng(0), 0, 0.0
    seen = begin(0)
    assert np.array_equal(task.reset()[1].numpy(), seen)
    for _ in range(120):
        action = rng.integers(0, 2, (3, 1))
        batch = task.step(torch.from_numpy(action).float())
        seen, reward, terminated, truncated, _ = peer.step(int(action[1, 0]))
        total += reward
        assert np.array_equal(batch.final_obs[1].numpy(), seen)
        assert float(batch.reward[1]) == reward
        assert bool(batch.terminated[1]) == terminated
        assert float(batch.info["episode_return"][1]) == total
        if terminated or truncated:
            episode, total = episode + 1, 0.0
            seen = begin(episode)
        assert np.array_equal(batch.obs[1].numpy(), seen)
    assert episode > 2


def test_time_limit_truncates_and_actions_fill_their_range():
    task = reference_task("gymnasium:Pendulum-v1", 2, 0)
    assert task.spaces.axes == 1
    assert not task.spaces.choices
    twin = reference_task("gymnasium:Pendulum-v1", 2, 0)
    for t in range(200):
        batch, other = task.step(torch.full((2, 1), 7.0)), twin.step(torch.full((2, 1), 1.0))
        assert torch.equal(batch.reward, other.reward), "beyond the range is its edge"
        assert bool(batch.truncated.all()) == (t == 199)
        assert not batch.terminated.any()
    assert batch.info["episode_length"].tolist() == [200, 200]
    assert not torch.equal(batch.obs, batch.final_obs)


def test_restored_rows_begin_their_next_episode():
    task, twin = reference_task(CART, 2, 0), reference_task(CART, 2, 0)
    task.step(torch.ones(2, 1))
    twin.load_state_dict(task.state_dict())
    assert not torch.equal(twin.observe(), task.observe())
    again = reference_task(CART, 2, 0)
    again.load_state_dict(task.state_dict())
    assert torch.equal(again.observe(), twin.observe())


def test_discrete_observations_become_one_hot_vectors():
    task, peer = reference_task("gymnasium:Blackjack-v1", 4, 0), gymnasium.make("Blackjack-v1")
    counts = [int(space.n) for space in peer.observation_space]
    assert task.spaces.observation == sum(counts)
    batch = task.step(torch.zeros(4, 1))
    for part in batch.obs.split(counts, dim=1):
        assert part.sum(dim=1).tolist() == [1.0] * 4
    assert set(batch.obs.unique().tolist()) == {0.0, 1.0}


class Pictures(gymnasium.Env):
    """Environment with pictures, which no vector encoder takes."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2, 2))
    action_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize(
    ("name", "options", "words_"),
    [
        ("gymnasium:NoSuch-v0", {}, "cannot make NoSuch-v0"),
        ("gymnasium:CartPole-v1", {"poles": 2}, "poles"),
        ("gymnasium:Pictures-v0", {}, "Box of one dimension"),
        ("gymnasium:popgym:NoSuch-v0", {}, r"popgym\]"),
    ],
)
def test_unsupported_gymnasium_task_is_refused(name, options, words_, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Pictures-v0", gymnasium.envs.registration.EnvSpec("Pictures-v0", Pictures))
    with pytest.raises(ConfigError, match=words_):
        reference_task(name, 1, 0, **options)
