"""`navi::cast_rays` is a well-behaved torch operator, also in compiled programs."""

from __future__ import annotations

import torch

from navi_core.kernels.op import cast_rays
from navi_core.world import Field, spherical_directions


def test_opcheck_is_clean(box_scene) -> None:
    field = Field([box_scene])
    origins = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.5, -1.0]])
    rows = torch.zeros(2, dtype=torch.int32)
    directions = spherical_directions(8, 4)
    torch.library.opcheck(cast_rays, (origins, directions, rows, field.number, 20.0))
    torch.library.opcheck(cast_rays, (origins, directions.expand(2, -1, -1), rows, field.number, 20.0))


def test_compiled_programs_cast_the_same_rays(box_scene) -> None:
    field = Field([box_scene])
    directions = spherical_directions(8, 4)
    origins, rows = torch.tensor([[0.0, 1.0, 0.0]]), torch.zeros(1, dtype=torch.int32)

    def nearest(at: torch.Tensor) -> torch.Tensor:
        return field.cast_rays(at, directions, rows, 20.0).depth.amin(dim=1)

    compiled = torch.compile(nearest, backend="eager", fullgraph=True)
    assert torch.equal(compiled(origins), nearest(origins))
