"""Spawn pools of all scenes as tensors: where episodes may begin, and everything that is known there.

An entry holds the pose, the readings of its panorama and the observation itself, so that an episode begins by
a lookup and nothing is cast again.
"""

from dataclasses import dataclass

import torch

from navi_core.config import EnvConfig
from navi_core.errors import SceneError
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap, FloorView
from navi_core.world.rewards import RewardTerms
from navi_core.world.sensor.panorama import PanoramaReader
from navi_core.world.sensor.spherical import SphericalSensor
from navi_core.world.spawning.spawn_pool import SPAWN_CELL, Verdict, scattered_spawns, spawn_pool

POOL_SIZE = 32
"""Best-scored spawn poses kept per scene; each keeps its observation in memory, as the scattered ones do."""

BODY = {"position": 3, "yaw": 1, "velocity": 4, "front": 1, "clearance": 1, "seen": 4, "return": 1}
"""Numbers of a drone's state and their widths, in the order of `SpawnPools.body` and of the environment's
body: position [m], yaw [rad], velocity [m/s, rad/s], front distance [m], clearance [m], the four fractions of
the panorama, and the episode's return so far."""


@dataclass(frozen=True)
class SpawnPools:
    """Pools of S scenes with up to P entries each.

    Attributes:
        count: (S,) int64 entries of each scene.
        body: (S, P, 15) float32, by `BODY`.
        obs: (S, P, 3, Az, El) float32 without sensor faults.
        floor: (S, P, C/8) uint8 footprints, see `FloorView.footprint`.
        verdicts: Of the scenes.
    """

    count: torch.Tensor
    body: torch.Tensor
    obs: torch.Tensor
    floor: torch.Tensor
    verdicts: list[Verdict]

    def draw(
        self, seed: int, rows: torch.Tensor, episode: torch.Tensor, episodes_per_scene: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scene index and the slot (B,) of the episodes (B,) of rows (B,)."""
        scene = (rows + episode // episodes_per_scene) % len(self.count)
        return scene, self.draw_slot(seed, rows, episode, scene)

    def draw_slot(self, seed: int, rows: torch.Tensor, episode: torch.Tensor, scene: torch.Tensor) -> torch.Tensor:
        """Return the slot of each row's episode in the pool of a scene (B,)."""
        return (uniform(seed, Purpose.SPAWN, rows, episode) * self.count[scene]).to(torch.int64)


def build_pools(
    sensor: SphericalSensor, reader: PanoramaReader, rewards: RewardTerms, view: FloorView, config: EnvConfig
) -> SpawnPools:
    """Probe every scene and keep its best spawn poses with what they see.

    Raises:
        SceneError: A scene without a viable spawn, named with its verdict.
    """
    field = sensor.field
    found = [_probe(field, i, config) for i in range(field.num_scenes)]
    size = max(len(position) for position, _, _ in found)
    scenes, device = field.num_scenes, field.device
    body = torch.zeros(scenes, size, sum(BODY.values()), device=device)
    obs = torch.zeros(scenes, size, 3, config.azimuth_bins, config.elevation_bins, device=device)
    floor = torch.zeros(scenes, size, view.seen.shape[1] // 8, dtype=torch.uint8, device=device)
    for i, (position, yaw, _) in enumerate(found):
        n = len(position)
        scene = torch.full((n,), i, device=device)
        body[i, :n], obs[i, :n], floor[i, :n] = initial_state(sensor, reader, rewards, view, position, yaw, scene)
    count = torch.tensor([len(position) for position, _, _ in found], device=device)
    return SpawnPools(count, body, obs, floor, [verdict for _, _, verdict in found])


def drone_state(body: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return views (B, width) of a body (B, 15) by `BODY`."""
    return dict(zip(BODY, body.split(list(BODY.values()), dim=1)))


def initial_state(
    sensor: SphericalSensor,
    reader: PanoramaReader,
    rewards: RewardTerms,
    view: FloorView,
    position: torch.Tensor,
    yaw: torch.Tensor,
    scene: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what is known of drones at rest at (n, 3) [m], facing (n,) [rad], in scenes (n,): entries of a pool."""
    n, device = len(position), position.device
    seen = reader.read(sensor.cast(position, yaw, scene), rewards.band(scene))
    state = {
        "position": position,
        "yaw": yaw,
        "velocity": torch.zeros(n, 4, device=device),
        "front": seen.front,
        "clearance": sensor.field.distance(position, scene),
        "seen": seen.fractions,
        "return": torch.zeros(n, device=device),
    }
    body = torch.cat([state[name].view(n, width) for name, width in BODY.items()], dim=1)
    return body, seen.obs, view.footprint(position, yaw, seen.reach, scene)


def _probe(field: Field, index: int, config: EnvConfig) -> tuple[torch.Tensor, torch.Tensor, Verdict]:
    """Return position (n, 3) [m] and yaw (n,) [rad] of a scene's spawns, and its verdict."""
    clearance = config.floor_clearance
    floor = FloorMap(field, index, SPAWN_CELL, clearance)
    pool = spawn_pool(field, index, config.spawn, clearance, floor=floor)
    if pool.verdict.verdict == "FAIL":
        raise SceneError(
            f"scene {field.scenes[index].name!r} has no viable spawn (verdict FAIL, {pool.verdict.candidates} free "
            f"candidates, best starvation {pool.verdict.best_starvation:.2f}); leave it out or see "
            "`navi scenes qualify`"
        )
    position, yaw = pool.position[:POOL_SIZE].to(field.device), pool.yaw[:POOL_SIZE].to(field.device)
    if config.spawn.scattered:
        more = scattered_spawns(field, index, config.spawn, clearance, floor=floor)
        position, yaw = torch.cat([position, more[0]]), torch.cat([yaw, more[1]])
    return position, yaw, pool.verdict
