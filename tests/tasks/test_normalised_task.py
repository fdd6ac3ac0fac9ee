"""Observations at mean 0 and deviation 1, by the moments of all observations; MuJoCo tasks if installed."""

import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.tasks import reference_task


def test_moments_cover_all_observations():
    task = reference_task("pendulum", 3, 1, normalise_observations=True)
    plain = reference_task("pendulum", 3, 1)
    seen, shown = [plain.reset()], [task.reset()]
    for t in range(20):
        action = torch.full((3, 1), (-1.0) ** t)
        a, b = plain.step(action), task.step(action)
        seen.append(a.obs)
        shown.append(b.obs)
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.info["episode_return"], b.info["episode_return"])
    every = torch.cat(seen).double()
    torch.testing.assert_close(task.mean, every.mean(0))
    torch.testing.assert_close(task.variance, every.var(0, correction=0))
    wanted = (seen[-1].double() - every.mean(0)) / (every.var(0, correction=0) + 1e-8).sqrt()
    torch.testing.assert_close(shown[-1], wanted.clamp(-10, 10).float())
    assert task.spaces.scale == ()
    assert task.count == 63


def test_restored_normalised_task_continues_equally():
    task, twin = (reference_task("acrobot", 2, 3, normalise_observations=True) for _ in range(2))
    task.reset()
    for _ in range(5):
        task.step(torch.ones(2, 1))
    twin.load_state_dict(task.state_dict())
    assert torch.equal(task.step(torch.zeros(2, 1)).obs, twin.step(torch.zeros(2, 1)).obs)


def test_mujoco_task_runs_or_names_its_extra():
    pytest.importorskip("gymnasium")
    try:
        import imageio  # noqa: F401
        import mujoco  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match=r"\[mujoco\]"):
            reference_task("gymnasium:InvertedPendulum-v5", 1, 0)
        return
    task = reference_task("gymnasium:InvertedPendulum-v5", 2, 0, normalise_observations=True)
    assert task.spaces.axes == 1
    assert task.step(torch.zeros(2, 1)).obs.shape == (2, 4)
