"""The reward terms by hand."""

from __future__ import annotations

import pytest
import torch

from navi_core.config import REWARD_TERMS, CompileConfig, EnvConfig, RewardConfig
from navi_core.scenes import compile_mesh
from navi_core.world import Field, NavigationEnv
from navi_core.world.field import RayHits
from navi_core.world.rewards import HEADING_SECTORS, MOST_VISITS, STAMPS, RewardTerms, structure_fractions
from tests.conftest import box_triangles, mesh_of


def seen(starvation: float = 0.0, near: float = 0.0, band: float = 0.0, forward: float = 0.0) -> torch.Tensor:
    return torch.tensor([[starvation, near, band, forward]])


@pytest.fixture
def terms(box_scene):
    rewards = RewardTerms(Field([box_scene]), 1, RewardConfig(preset="navi9"), 5.0)

    def compute(**change) -> dict[str, float]:
        arguments = {
            "position": torch.tensor([[0.0, 1.25, 0.0]]),
            "moved": torch.zeros(1),
            "yaw": torch.zeros(1),
            "scene_index": torch.zeros(1, dtype=torch.int64),
            "stamp": torch.ones(1, dtype=torch.int64),
            "clearance": torch.ones(1),
            "clearance_before": torch.ones(1),
            "now": seen(),
            "before": seen(),
            "collided": torch.zeros(1, dtype=torch.bool),
            "attempted_speed": torch.zeros(1),
            "view_gain": torch.zeros(1),
        } | change
        return dict(zip(REWARD_TERMS, rewards.compute(**arguments)[0].tolist()))

    compute.rewards = rewards
    return compute


@pytest.mark.parametrize(("s", "value"), [(0.5, -0.1575), (0.9, -0.5175), (1.0, -0.72), (0.2, 0.0)])
def test_starvation(terms, s: float, value: float) -> None:
    assert terms(now=seen(starvation=s))["starvation"] == pytest.approx(value, abs=1e-6)


def test_exploration_counts_visits_headings_and_neighbours(terms) -> None:
    first = terms()["exploration"]
    assert first == pytest.approx(0.3 + 0.05 + 0.1)
    assert terms()["exploration"] == pytest.approx(0.15 + 0.1)  # second visit, the heading is known
    assert terms(yaw=torch.tensor([1.0]))["exploration"] == pytest.approx(0.1 + 0.05 + 0.1)
    assert terms(clearance=torch.tensor([0.5]))["exploration"] == pytest.approx(0.5 * (0.075 + 0.1))
    for stamp, step in enumerate(torch.cat((torch.eye(3), -torch.eye(3))), 2):
        here, middle = {"stamp": torch.tensor([stamp])}, torch.tensor([[0.0, 1.25, 0.0]])
        terms(position=middle, **here)
        aside = terms(position=middle + step, **here)["exploration"]
        assert aside == pytest.approx(0.3 + 0.05 + 0.1 * 5 / 6)  # one of six neighbours has been visited


def test_visits_are_forgotten_between_episodes(terms) -> None:
    terms()
    assert terms(stamp=torch.tensor([2]))["exploration"] == pytest.approx(0.45)
    assert terms(stamp=torch.tensor([2]))["exploration"] == pytest.approx(0.25)


def test_visits_stay_at_the_largest_count(terms) -> None:
    terms()
    terms.rewards.visits |= MOST_VISITS << HEADING_SECTORS
    for _ in range(2):
        assert terms()["exploration"] == pytest.approx(0.1, abs=1e-6)


def test_progress_proximity_and_structure(terms) -> None:
    value = terms(moved=torch.tensor([0.5]), now=seen(near=0.25, band=0.4, forward=0.5))
    assert value["progress"] == pytest.approx(0.8 * 0.5 * 0.75)
    assert value["proximity"] == pytest.approx(-0.2)
    assert value["structure_band"] == pytest.approx(0.14)
    assert value["forward_structure"] == pytest.approx(0.1)


def test_clearance_change_counts_only_near_a_surface(terms) -> None:
    near = terms(clearance=torch.tensor([2.0]), clearance_before=torch.tensor([1.0]))
    assert near["clearance"] == pytest.approx(0.2)
    far = terms(clearance=torch.tensor([6.0]), clearance_before=torch.tensor([5.0]))
    assert far["clearance"] == 0.0
    jump = terms(clearance=torch.tensor([0.0]), clearance_before=torch.tensor([9.0]))
    assert jump["clearance"] == pytest.approx(-0.6)


def test_inspection(terms) -> None:
    assert terms(now=seen(band=0.3, forward=0.2), before=seen(band=0.1))["inspection"] == pytest.approx(0.25 * 0.3)
    assert terms(now=seen(band=0.04, forward=0.04))["inspection"] == 0.0
    # A change of all the panorama is 1.5 and counts as 1.
    assert terms(now=seen(band=1.0, forward=1.0))["inspection"] == pytest.approx(0.25)
    assert terms(now=seen(band=0.05), before=seen(band=1.0, forward=1.0))["inspection"] == pytest.approx(-0.25)


def test_collision_uses_the_attempted_speed(terms, box_scene) -> None:
    hit = terms(collided=torch.tensor([True]), attempted_speed=torch.tensor([2.5]))
    assert hit["collision"] == pytest.approx(-3.0)
    assert terms(attempted_speed=torch.tensor([2.5]))["collision"] == 0.0
    env = NavigationEnv(Field([box_scene]), 1, EnvConfig(azimuth_bins=16, elevation_bins=4))
    assert env.rewards.for_kernels().max_speed == env.config.dynamics.max_speed[0] != env.config.dynamics.max_speed[1]


def test_presets_weigh_the_terms() -> None:
    assert RewardConfig(preset="navi9").resolved() == {n: 1.0 for n in REWARD_TERMS[:9]} | {"view_gain": 0.0}
    explore = RewardConfig().resolved()
    assert {n for n, w in explore.items() if w} == {"collision", "view_gain"}
    assert RewardConfig(weights={"progress": 0.5}).resolved()["progress"] == 0.5


def test_fractions_by_counting() -> None:
    depth = torch.full((1, 12 * 2), 50.0)
    valid = torch.ones(1, 24, dtype=torch.bool)
    depth[0, :2] = 2.0  # the first azimuth: near, in the band, ahead; two on each side are
    valid[0, 20:] = False  # the last two azimuths miss
    found = structure_fractions(RayHits(depth, torch.ones(1, 24, dtype=torch.int32), valid), 12, torch.tensor([3.0]))
    assert found[0].tolist() == pytest.approx([4 / 24, 2 / 24, 2 / 24, 2 / 8])


def test_totals_weigh_and_add(box_scene) -> None:
    terms = torch.arange(1.0, 11.0)[None]
    total = {
        p: RewardTerms(Field([box_scene]), 1, RewardConfig(preset=p), 5.0).total(terms) for p in ("navi9", "explore")
    }
    assert float(total["navi9"]) == 45.0  # the nine
    assert float(total["explore"]) == 9.0 + 10.0  # collision and view_gain


def test_lengths_follow_the_volume_of_the_surface(box_scene) -> None:
    """V = 4 · 2.5 · 4 m³, of the box and not of its padded cube."""
    rewards = RewardTerms(Field([box_scene]), 1, RewardConfig(), 5.0)
    assert float(rewards.band(torch.zeros(1, dtype=torch.int64))) == 2.5  # 0.6 · 40^⅓ = 2.05 is less
    assert float(rewards._edge[0]) == 1.0  # 40^⅓ / 10 is less than a metre


@pytest.mark.parametrize(
    ("size", "band", "edge"),
    [((40, 10, 20), 0.6 * 20, 2.0), ((100, 80, 125), 50.0, 4.0)],  # V = 20³ and 100³, whose 60 and 10 m are cut
)
def test_band_and_cell_of_a_hall(size, band, edge) -> None:
    hall = compile_mesh(mesh_of(box_triangles((0, 0, 0), size), "hall"), CompileConfig(resolution=64))
    rewards = RewardTerms(Field([hall]), 1, RewardConfig(), 5.0)
    assert float(rewards.band(torch.zeros(1, dtype=torch.int64))) == pytest.approx(band)
    assert float(rewards._edge[0]) == pytest.approx(edge)
    one, no = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    first, again, beyond = (
        float(rewards.explore(torch.tensor([[x, 5.0, 10.1]]), torch.zeros(1), no, one)) for x in (20.2, 21.8, 24.2)
    )
    assert (first, again) == pytest.approx((0.45, 0.25)) and beyond > 0.4, "the second lies in the cell of the first"


def test_visits_kernels_count_as_tensors_across_the_last_stamp(box_scene) -> None:
    config = EnvConfig(azimuth_bins=16, elevation_bins=4, max_steps=4)
    envs = [NavigationEnv(Field([box_scene]), 16, config, tensor_only=tensors) for tensors in (False, True)]
    for env in envs:
        env.reset(episode=STAMPS - 3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(24):
        action = torch.rand(16, 4, generator=generator) * 2 - 1
        terms = [env.step(action).info["reward_terms"]["exploration"] for env in envs]
        assert torch.equal(*terms)
        assert torch.equal(envs[0].rewards.visits, envs[1].rewards.visits)
