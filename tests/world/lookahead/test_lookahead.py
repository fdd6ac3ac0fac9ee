"""Lookahead terms of held actions: the C++ kernel against the tensor program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.errors import ConfigError
from navi_core.scenes import load_gmdag
from navi_core.world import Field, NavigationEnv
from navi_core.world.dynamics import limiter_bins
from navi_core.world.lookahead import FlightOutlook, Start, depth_ahead, sampled
from navi_core.world.sensor.panorama import denormalise_depth
from tests.world.conftest import native_field

ROWS = 24
CONFIG = EnvConfig(azimuth_bins=64, elevation_bins=16, stagger=False)


@pytest.fixture(scope="module")
def scenes(apartments, box_scene, tmp_path_factory) -> list:
    """Among them a version 1 scene."""
    path = Path(tmp_path_factory.mktemp("v1")) / "box.gmdag"
    box_scene.save(path, version=1)
    return [*apartments, load_gmdag(path)]


def start_of(env: NavigationEnv, obs: torch.Tensor) -> Start:
    life = env.state_dict()
    return Start(life["position"], life["yaw"].squeeze(1), life["velocity"], env.poses()["scene_index"], obs)


@pytest.mark.parametrize(("threads", "substeps"), [(1, 12), (2, 25)])
def test_kernel_lookahead_terms_match_tensors(scenes: list, threads: int, substeps: int) -> None:
    """Whole flights, so that the remembered state is compared too; some drones are queried in another order."""
    field = native_field(scenes, threads=threads)
    outlooks = [FlightOutlook(field, CONFIG, CONFIG.dynamics, substeps, kernels=kernels) for kernels in (True, False)]
    # The drones are every other one of those that are remembered.
    pasts, rows, some = (
        [outlook.past(2 * ROWS) for outlook in outlooks],
        2 * torch.arange(ROWS),
        torch.tensor([9, 2, 7]),
    )
    env, generator = NavigationEnv(field, ROWS, CONFIG, seed=11), torch.Generator().manual_seed(5)
    obs, hits, gains = env.reset(), 0, 0
    for _ in range(20):
        action, start, reported = torch.rand(ROWS, 4, generator=generator) * 2 - 1, start_of(env, obs), []
        few = Start(start.position[some], start.yaw[some], start.velocity[some], start.scene[some], obs, some)
        for outlook, past in zip(outlooks, pasts):
            outlook.remember(past, rows, start)
            foreseen, terms = outlook.fly(past, rows, start, action)
            assert torch.equal(outlook.foresee(start, action).position, foreseen.position)
            reported.append((foreseen, terms, outlook.fly(past, rows[some], few, action[some])[1]))
        (foreseen, terms, fewer), (other, twin, fewer_twin) = reported
        assert torch.equal(foreseen.collided, other.collided)
        assert torch.allclose(foreseen.velocity, other.velocity, atol=1e-5)
        assert torch.allclose(terms, twin, atol=2e-5)
        assert torch.equal(fewer, terms[some])
        assert torch.equal(fewer_twin, twin[some])
        for name in ("visits", "seen", "shares"):
            assert torch.equal(getattr(pasts[0], name), getattr(pasts[1], name)), name
        hits, gains = hits + int(foreseen.collided.sum()), gains + int((terms[:, 9] > 0).sum())
        obs = env.step(action).obs
    assert hits > 10
    assert gains > 100
    assert pasts[0].visits[rows].any(dim=1).all()
    assert not pasts[0].visits[rows + 1].any()
    pasts[0].forget(rows)
    assert not any(getattr(pasts[0], name).any() for name in ("visits", "seen", "shares"))


@pytest.mark.parametrize("kernels", [True, False])
def test_coarse_observation_matches_panorama_of_its_bins(scenes: list, kernels: bool) -> None:
    field = Field(scenes)
    env, outlook = (
        NavigationEnv(field, ROWS, CONFIG, seed=2),
        FlightOutlook(field, CONFIG, CONFIG.dynamics, 5, kernels=kernels),
    )
    env.reset()
    pose, past = env.poses(), outlook.past(ROWS)
    panorama = outlook.look(pose["position"], pose["yaw"], pose["scene_index"])
    assert torch.equal(sampled(panorama.obs), panorama.obs)
    start = Start(pose["position"], pose["yaw"], torch.zeros(ROWS, 4), pose["scene_index"], panorama.obs)
    outlook.remember(past, torch.arange(ROWS), start)
    assert torch.allclose(past.shares, panorama.fractions, atol=1e-6)
    reach = outlook._sight(panorama.obs, pose["scene_index"])[1]
    assert torch.allclose(reach, panorama.reach, rtol=1e-4)
    ahead = depth_ahead(panorama.obs, CONFIG.dynamics.limiter_elevation_degrees)[:, 0]
    front = torch.where(ahead > 1.0, torch.inf, denormalise_depth(ahead, CONFIG.max_distance))
    assert limiter_bins(*panorama.obs.shape[2:], CONFIG.dynamics.limiter_elevation_degrees)[0] > 0
    assert torch.allclose(front, panorama.front, rtol=1e-4)


@pytest.mark.parametrize("bins", [(16, 8), (64, 16), (128, 24), (256, 48), (384, 72)])
def test_coarse_bins_are_nearest_in_angle(bins: tuple[int, int]) -> None:
    azimuths, elevations = bins
    obs = torch.zeros(1, 3, *bins)
    obs[0, 0] = (torch.arange(azimuths) * 360.0 / azimuths)[:, None]
    obs[0, 1] = torch.linspace(90.0, -90.0, elevations)
    around, height, _ = sampled(obs)[0]
    turned = (around - torch.arange(0.0, 360.0, 15.0)[:, None] + 180.0) % 360.0 - 180.0
    assert turned.abs().max() <= 180.0 / azimuths + 1e-3
    assert (height - torch.linspace(90.0, -90.0, 6)).abs().max() <= 90.0 / (elevations - 1) + 1e-3


@pytest.mark.parametrize("decisions", [1, 4])
def test_empty_room_lookahead_terms_by_hand(box_scene, decisions: int) -> None:
    """A drone flies ahead from the middle, unlimited and without collision; progress is that of one decision."""
    field = Field([box_scene])
    drone = CONFIG.dynamics.model_copy(update={"smoothing": 1.0, "limiter_distance": 1e-6})
    outlook = FlightOutlook(field, CONFIG, drone, decisions * drone.steps_per_decision)
    middle, yaw, scene = torch.tensor([[0.0, 1.2, 0.0]]), torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    obs, past = outlook.look(middle, yaw, scene).obs, outlook.past(1)
    start = Start(middle, yaw, torch.zeros(1, 4), scene, obs)
    outlook.remember(past, scene, start)
    foreseen, terms = outlook.fly(past, scene, start, torch.tensor([[0.2, 0.0, 0.0, 0.0]]))
    way = 0.2 * drone.max_speed[0] * drone.substep * drone.steps_per_decision
    assert torch.allclose(foreseen.position, torch.tensor([[0.0, 1.2, -way * decisions]]), atol=1e-5)
    near = outlook.look(foreseen.position, yaw, scene).fractions[0, 1]
    before, after = field.distance(middle, scene), field.distance(foreseen.position, scene)
    assert terms[0, 1] == pytest.approx(0.8 * way * float(1 - near), abs=1e-5)
    assert terms[0, 2] == pytest.approx(0.2 * float(after - before), abs=1e-5)
    assert terms[0, 8] == 0.0
    assert not foreseen.collided


def test_places_beyond_the_observations_are_refused(box_scene) -> None:
    field = native_field([box_scene])
    env = NavigationEnv(field, 2, CONFIG, seed=1)
    start = replace(start_of(env, env.reset()), place=torch.tensor([0, 2]))
    outlook = FlightOutlook(field, CONFIG, CONFIG.dynamics, 2, kernels=True)
    with pytest.raises(ConfigError, match="places 0 to 2 of 2 observations"):
        outlook.fly(outlook.past(2), torch.arange(2), start, torch.zeros(2, 4))
