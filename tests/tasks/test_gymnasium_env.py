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


@pytest.mark.parametrize(
    ("name", "options", "words_"),
    [
        ("gymnasium:NoSuch-v0", {}, "cannot make NoSuch-v0"),
        ("gymnasium:CartPole-v1", {"poles": 2}, "poles"),
        ("gymnasium:FrozenLake-v1", {}, "Box of one dimension"),
    ],
)
def test_unsupported_gymnasium_task_is_refused(name, options, words_):
    with pytest.raises(ConfigError, match=words_):
        reference_task(name, 1, 0, **options)
