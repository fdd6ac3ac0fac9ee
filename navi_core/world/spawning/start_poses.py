"""Start poses and goals that a caller chooses instead of leaving them to the draws."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from navi_core.errors import ConfigError
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap


@dataclass(frozen=True)
class StartPoses:
    """Start poses and goals of N episodes; what is None is drawn.

    Attributes:
        scene: (N,) int64 scene within the field.
        position: (N, 3) where the drone begins, at rest [m].
        yaw: (N,) where it faces [rad].
        goal: (N, 3) where a point-goal episode is to end [m].
    """

    scene: torch.Tensor | None = None
    position: torch.Tensor | None = None
    yaw: torch.Tensor | None = None
    goal: torch.Tensor | None = None

    @property
    def drawn(self) -> bool:
        """Whether all is drawn."""
        return all(value is None for value in vars(self).values())

    def check(self, rows: int, field: Field, *, goals: bool) -> None:
        """Refuse wrong shapes, values that are not finite, unknown scenes, and goals of a task without goals.

        Raises:
            ConfigError: Names the value and what is allowed.
        """
        shapes = {"scene": (rows,), "position": (rows, 3), "yaw": (rows,), "goal": (rows, 3)}
        for name, shape in shapes.items():
            value: torch.Tensor | None = getattr(self, name)
            if value is None:
                continue
            if tuple(value.shape) != shape:
                raise ConfigError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
            if not bool((value.abs() < 1e6).all()):
                raise ConfigError(f"{name} is {str(value.tolist())[:60]}; allowed: numbers below 1e6")
        if self.scene is not None and not bool(((self.scene >= 0) & (self.scene < field.num_scenes)).all()):
            raise ConfigError(f"scene is {str(self.scene.tolist())[:60]}; allowed: 0 to {field.num_scenes - 1}")
        if self.goal is not None and not goals:
            raise ConfigError("a goal is flown to with task point_goal alone; leave it out, or set that task")

    def check_room(self, scene: torch.Tensor, field: Field, floors: Sequence[FloorMap], radius: float) -> None:
        """Refuse positions where the drone does not fit, and those and goals outside of the reachable space.

        Args:
            scene: (N,) int64 of the episodes.
            field: Geometry.
            floors: Reachable space of each scene.
            radius: Of the drone [m].

        Raises:
            ConfigError: Names the value and its scene.
        """
        room = None if self.position is None else field.distance(self.position, scene).tolist()
        for row, index in enumerate(scene.tolist()):
            for what, points in (("position", self.position), ("goal", self.goal)):
                if points is None or bool(floors[index].contains(points[row : row + 1].cpu())):
                    continue
                low, high = (bound.round(2).tolist() for bound in field.bounds(index))
                raise ConfigError(
                    f"{what} {_rounded(points[row])} is not in the reachable space of scene {index}, "
                    f"{field.scenes[index].name!r}, which lies within {low} and {high}; is another scene meant?"
                )
            if room is not None and room[row] <= radius:
                assert self.position is not None
                raise ConfigError(
                    f"position {_rounded(self.position[row])} in scene {index} is {room[row]:.2f} m off the surface; "
                    f"the drone's radius is {radius:g} m"
                )


def _rounded(point: torch.Tensor) -> list[float]:
    return [round(x, 3) for x in point.tolist()]
