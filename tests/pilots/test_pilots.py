"""Scripted pilots: observations in, actions out, independent of the batch."""

from __future__ import annotations

import math

import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.pilots import PILOTS, build_pilot
from navi_core.pilots.pilot import draw_normal, draw_uniform, level_profile

AZ, EL = 64, 16


def corridor(front: float, left: float, right: float, *, rows: int = 1) -> torch.Tensor:
    """An observation of walls: `front` ahead within 30°, `left` and `right` elsewhere [m]."""
    azimuth = torch.arange(AZ) * (2 * math.pi / AZ)
    azimuth = torch.where(azimuth > math.pi, azimuth - 2 * math.pi, azimuth)
    depth = torch.where(azimuth > 0, right, left)
    depth = torch.where(azimuth.abs() <= math.radians(30), front, depth)
    obs = torch.zeros(rows, 3, AZ, EL)
    obs[:, 0] = (torch.log1p(depth) / math.log1p(100.0))[None, :, None]
    obs[:, 1] = 1
    obs[:, 2] = 1
    return obs


def test_draws_are_uniform_and_normal():
    keys = torch.arange(20_000)
    zero = torch.zeros_like(keys)
    flat = draw_uniform(3, keys, zero, zero, lanes=range(4))
    assert flat.min() >= 0
    assert flat.max() < 1
    assert torch.allclose(flat.mean(0), torch.full((4,), 0.5), atol=0.01)
    assert torch.allclose(flat.var(0), torch.full((4,), 1 / 12), atol=0.003)
    assert torch.corrcoef(flat.T).fill_diagonal_(0).abs().max() < 0.03
    bell = draw_normal(3, keys, zero, zero, axes=4)
    assert bell.mean().abs() < 0.02
    assert (bell.std() - 1).abs() < 0.02
    assert (bell.abs() < 1).float().mean().sub(0.6827).abs() < 0.01
    assert torch.corrcoef(bell.T).fill_diagonal_(0).abs().max() < 0.03


def test_draws_depend_on_seed_key_and_counters_alone():
    keys, episode = torch.tensor([2**62 + 5, 12345678901234567, 7]), torch.tensor([0, 0, 3])
    step = torch.tensor([0, 5, 9])
    together = draw_uniform(1, keys, episode, step, lanes=range(3))
    for row in range(3):
        alone = draw_uniform(1, *(x[row : row + 1] for x in (keys, episode, step)), lanes=range(3))
        assert torch.equal(alone[0], together[row])
    assert torch.equal(draw_uniform(1, keys, episode, step, lanes=range(1, 2))[:, 0], together[:, 1])
    assert not torch.equal(draw_uniform(2, keys, episode, step, lanes=range(3)), together)
    assert not torch.equal(draw_uniform(1, keys, episode + 1, step, lanes=range(3)), together)
    assert not torch.equal(draw_uniform(1, keys, episode, step + 1, lanes=range(3)), together)


@pytest.mark.parametrize("name", sorted(set(PILOTS) - {"planner", "oracle"}))
def test_pilot_is_independent_of_batch(name):
    generator = torch.Generator().manual_seed(0)
    frames = torch.rand(30, 5, 3, AZ, EL, generator=generator)
    frames[:, :, 0] *= 0.3  # up to 3 m, so that forward-plus meets walls
    frames[:, :, 2] = 1
    keys = torch.tensor([11, 22, 33, 44, 55])
    together = build_pilot(name, seed=4)
    together.reset(torch.ones(5, dtype=torch.bool), keys)
    alone = build_pilot(name, seed=4)
    alone.reset(torch.tensor([True]), keys[3:4])
    starts = torch.zeros(30, 5, dtype=torch.bool)
    starts[0] = True
    starts[12, 3] = True
    starts[7, 1] = True
    for t in range(30):
        row = together.act(frames[t], starts[t])[3]
        assert torch.equal(alone.act(frames[t, 3:4], starts[t, 3:4])[0], row)
        assert row.abs().max() <= 1


def test_episodes_of_a_row_differ_and_a_reset_key_repeats():
    pilot = build_pilot("random", seed=1)
    obs, first = torch.zeros(1, 3, 8, 4), torch.tensor([True])
    one = pilot.act(obs, first)
    assert not torch.equal(pilot.act(obs, first), one)
    pilot.reset(first, torch.tensor([0]))
    assert torch.equal(pilot.act(obs, first), one)


def test_random_held_keeps_its_command_for_its_hold():
    pilot = build_pilot("random-held", seed=0, hold=3)
    flown = torch.stack([pilot.act(torch.zeros(2, 3, 8, 4)) for _ in range(9)])
    for block in range(3):
        assert torch.equal(flown[3 * block], flown[3 * block + 1])
        assert torch.equal(flown[3 * block], flown[3 * block + 2])
    assert not torch.equal(flown[0], flown[3])
    assert pilot.name == "random-held"


def test_forward_plus_flies_ahead_when_free():
    pilot = build_pilot("forward-plus", drift=0.0)
    action = pilot.act(corridor(5.0, 2.0, 2.0))[0]
    assert action.tolist() == [pilot.speed, 0, 0, 0]


def test_forward_plus_turns_to_the_freer_half_and_holds_until_clear():
    pilot = build_pilot("forward-plus", drift=0.0, flip=0.0, turn_rate=0.5)
    assert pilot.act(corridor(0.8, 1.0, 4.0))[0].tolist() == [0, 0, 0, -pilot.turn_rate]
    # The other side is freer now and the front only half clear: the turn goes on as it began.
    between = (pilot.threshold + pilot.clear) / 2
    assert pilot.act(corridor(between, 4.0, 1.0))[0].tolist() == [0, 0, 0, -pilot.turn_rate]
    assert pilot.act(corridor(pilot.clear + 0.1, 4.0, 1.0))[0, 0] == pytest.approx(pilot.speed)
    assert pilot.act(corridor(0.8, 4.0, 1.0))[0].tolist() == [0, 0, 0, pilot.turn_rate]


def test_forward_plus_takes_a_missing_ray_for_free_space():
    obs = corridor(0.5, 1.0, 1.0)
    obs[:, 0], obs[:, 2] = 1.0, 0.0
    assert build_pilot("forward-plus", drift=0.0).act(obs)[0, 0] > 0


def test_unknown_rays_count_only_where_an_azimuth_has_no_other():
    obs = corridor(5.0, 2.0, 2.0)
    unknown = obs.clone()
    unknown[:, 0, :, EL // 2 :], unknown[:, 2, :, EL // 2 :] = 0.0, 0.0  # a lidar that does not look down
    torch.testing.assert_close(level_profile(unknown, 10.0, 20.0), level_profile(obs, 10.0, 20.0))
    unknown[:, 0, 3], unknown[:, 2, 3] = 0.0, 0.0
    profile = level_profile(unknown, 10.0, 20.0)
    assert profile[0, 3] == 0.0 and (profile[0] == 0.0).sum() == 1


def test_forward_plus_ignores_floor_and_ceiling():
    obs = corridor(5.0, 2.0, 2.0)
    obs[:, 0, :, :4] = 0.05
    obs[:, 0, :, -4:] = 0.05
    assert build_pilot("forward-plus", drift=0.0).act(obs)[0, 0] > 0


def test_wall_following_keeps_its_side_and_its_distance():
    pilot = build_pilot("wall-following")
    sides = {}
    for key in range(8):
        pilot.reset(torch.tensor([True]), torch.tensor([key]))
        turn = float(pilot.act(corridor(9.0, 0.3, 0.3))[0, 3])
        assert turn != 0  # away from the wall that it follows
        sides[key] = turn > 0
        # Too far from the wall it turns to it.
        assert (float(pilot.act(corridor(9.0, 3.0, 3.0))[0, 3]) > 0) != sides[key]
        blocked = pilot.act(corridor(0.5, 3.0, 3.0))[0]
        assert blocked[0] == 0
        assert (float(blocked[3]) > 0) == sides[key]
    assert len(set(sides.values())) == 2


def test_farthest_ray_turns_to_the_longest_ray_and_follows_it():
    pilot = build_pilot("farthest-ray")
    assert pilot.act(corridor(0.5, 1.0, 6.0))[0, 3] < 0  # to the right
    assert pilot.act(corridor(0.5, 6.0, 1.0))[0, 3] > 0
    ahead = pilot.act(corridor(6.0, 1.0, 1.0))[0]
    assert ahead[0] == pytest.approx(pilot.speed)
    assert ahead[3] == 0
    assert pilot.act(corridor(0.1, 0.1, 0.1))[0, 0] == 0


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("forward", {}, ["forward", "forward-plus", "random"]),
        ("random", {"hold": 0}, ["hold", "0"]),
        ("random", {"speed": 1}, ["random", "speed"]),
        ("forward-plus", {"threshold": 3.0}, ["threshold", "3.0", "clear"]),
        ("forward-plus", {"speed": 1.5}, ["speed", "1.5", "[0, 1]"]),
    ],
)
def test_bad_pilot_error_names_it(name, settings, words):
    with pytest.raises(ConfigError) as caught:
        build_pilot(name, **settings)
    for word in words:
        assert word in str(caught.value)
