"""Partial steps, and rows of another process, equal steps of the whole batch."""

from __future__ import annotations

import pytest
import torch

from navi_core.config import EnvConfig, SensorConfig
from navi_core.errors import ConfigError
from navi_core.world import Field, NavigationEnv

ROWS = 5
CONFIG = EnvConfig(azimuth_bins=32, elevation_bins=8, max_steps=12, stagger=False)


@pytest.fixture(scope="module")
def field(apartments) -> Field:
    return Field(apartments)


def actions(step: int) -> torch.Tensor:
    return torch.rand(ROWS, 4, generator=torch.Generator().manual_seed(step)) * 2 - 1


@pytest.mark.parametrize("faults", [SensorConfig(), SensorConfig(dropout=0.1, delayed=True)])
@pytest.mark.parametrize("tensor_only", [False, True])
def test_partial_steps_equal_whole_batch_steps(field: Field, faults: SensorConfig, tensor_only: bool) -> None:
    config = CONFIG.model_copy(update={"sensor": faults})
    whole = NavigationEnv(field, ROWS, config, seed=3, tensor_only=tensor_only)
    parts = NavigationEnv(field, ROWS, config, seed=3, tensor_only=tensor_only)
    for step in range(30):
        expected = whole.step(actions(step))
        for rows in torch.tensor([[4, 0], [2, 3]]), torch.tensor([[1]]):
            for part in rows:
                got = parts.step_rows(part, actions(step)[part])
                for name in ("obs", "reward", "truncated"):
                    assert torch.equal(getattr(got, name), getattr(expected, name)[part]), (step, name)
                assert torch.equal(got.final_obs, expected.final_obs[part])
                for name in ("position", "collision", "episode_return", "scene_index"):
                    assert torch.equal(got.info[name], expected.info[name][part]), (step, name)
    mine, theirs = parts.state_dict(), whole.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_rows_left_out_of_a_step_do_not_change(field: Field) -> None:
    env = NavigationEnv(field, ROWS, CONFIG, seed=3)
    before = env.state_dict()
    env.step_rows(torch.tensor([1]), actions(0)[1:2])
    after = env.state_dict()
    still = torch.tensor([0, 2, 3, 4])
    assert all(torch.equal(after[name][still], before[name][still]) for name in before)
    assert not torch.equal(after["position"][1], before["position"][1])


@pytest.mark.parametrize("rows", [[0, 0], [5], [-1]])
def test_rows_that_do_not_exist_or_repeat_are_refused(field: Field, rows: list[int]) -> None:
    env = NavigationEnv(field, ROWS, CONFIG, seed=3)
    with pytest.raises(ConfigError, match="at most once"):
        env.step_rows(torch.tensor(rows), torch.zeros(len(rows), 4))


@pytest.mark.parametrize("tensor_only", [False, True])
def test_first_row_offset_gives_the_rows_of_the_whole_batch(field: Field, tensor_only: bool) -> None:
    whole = NavigationEnv(field, ROWS, CONFIG, seed=3, tensor_only=tensor_only)
    other = NavigationEnv(field, 2, CONFIG, seed=3, first_row=3, tensor_only=tensor_only)
    assert torch.equal(whole.reset()[3:], other.reset())
    for step in range(30):
        expected, got = whole.step(actions(step)), other.step(actions(step)[3:])
        assert torch.equal(got.obs, expected.obs[3:])
        assert torch.equal(got.reward, expected.reward[3:])
