"""The operators `navi::…` are well-behaved torch operators, also in compiled programs."""

from __future__ import annotations

import pytest
import torch

from navi_core.errors import SceneError
from navi_core.kernels.rays import op
from navi_core.world import Field, RayHits, spherical_directions

TRACERS = ["auto", "cuda"]
ORIGINS = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.5, -1.0]])
ROWS = torch.zeros(2, dtype=torch.int32)
DIRECTIONS = spherical_directions(8, 4)


def spare(rows: int = 2) -> RayHits:
    return RayHits(torch.zeros(rows, 32), torch.zeros(rows, 32, dtype=torch.int32), torch.zeros(rows, 32) > 0)


@pytest.mark.parametrize("tracer", TRACERS)
def test_opcheck_is_clean(box_scene, tracer: str) -> None:
    number = (field := Field([box_scene], tracer=tracer)).number
    hits = spare()
    for directions in (DIRECTIONS, DIRECTIONS.expand(2, -1, -1)):
        out = (hits.depth, hits.semantic, hits.valid)
        torch.library.opcheck(op.cast_rays_out, (ORIGINS, directions, ROWS, number, 20.0, 4, *out))
    torch.library.opcheck(op.distance, (ORIGINS, ROWS, field.number))
    torch.library.opcheck(op.within, (ORIGINS, ROWS, field.number, 0.5))


@pytest.mark.parametrize("tracer", TRACERS)
def test_compiled_queries_equal_eager_queries(box_scene, tracer: str) -> None:
    field = Field([box_scene], tracer=tracer)

    def look(at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hits = field.cast_rays(at, DIRECTIONS, ROWS, 20.0, elevations=4)
        near = field.within(at, ROWS, 0.6)
        return torch.where(near, 0.0, hits.depth.amin(dim=1)), hits.semantic, field.distance(at, ROWS)

    compiled = torch.compile(look, backend="aot_eager", fullgraph=True)
    for expected, found in zip(look(ORIGINS), compiled(ORIGINS), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("tracer", TRACERS)
def test_compiled_casts_write_into_given_outputs(box_scene, tracer: str) -> None:
    field = Field([box_scene], tracer=tracer)
    out, fresh = spare(), field.cast_rays(ORIGINS, DIRECTIONS, ROWS, 20.0)

    def look(at: torch.Tensor, out: RayHits) -> torch.Tensor:
        return field.cast_rays(at, DIRECTIONS, ROWS, 20.0, out=out).depth.amin(dim=1)

    compiled = torch.compile(look, backend="aot_eager", fullgraph=True)
    address = out.depth.data_ptr()
    assert torch.equal(compiled(ORIGINS, out), fresh.depth.amin(dim=1))
    assert out.depth.data_ptr() == address
    assert torch.equal(out.depth, fresh.depth) and torch.equal(out.semantic, fresh.semantic)
    assert torch.equal(out.valid, fresh.valid)


def test_deleted_field_error_names_it(box_scene) -> None:
    number = Field([box_scene]).number
    with pytest.raises(SceneError, match=f"field {number} no longer exists; keep a reference"):
        op.distance(ORIGINS, ROWS, number)
