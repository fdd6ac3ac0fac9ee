"""Settings of scenes: compilation and the corpus."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config
from navi_core.errors import ConfigError

# Bounds far beyond use keep a slip of the keyboard from becoming an hour of allocation.
_SceneSeed = Annotated[int, Field(ge=0, lt=2**31)]


class CompileConfig(Config):
    """How a mesh becomes a `.gmdag` scene."""

    resolution: int = Field(512, ge=16, le=2048)
    """Voxels along one edge of the scene's cube; a power of two, 16 to 2048."""
    padding: float = Field(1.0, gt=0, le=100)
    """Free margin added on each side of the mesh bounds [m]."""
    up_axis: Literal["y", "z"] = "y"
    """The mesh's up axis; `z` is rotated to +Y on reading."""
    unit_scale: float = Field(1.0, gt=0, le=1e6)
    """Metres per mesh unit (0.01 for centimetres)."""
    max_leaf_triangles: int = Field(16, ge=1, le=4096)
    """A surface cell with a longer triangle list is split while the resolution allows it."""
    decimate: float | None = Field(None, gt=0, le=1)
    """Merge triangles, moving the surface by about this much at most [voxel]; None keeps every triangle."""
    semantics: Literal["auto", "annotation", "vertex_color", "object", "material", "none"] = "auto"
    """Where a face's semantic comes from; `auto` takes the first there is of annotation, vertex colours with a
    legend, object name and material; `none` makes everything "surface"."""

    @model_validator(mode="after")
    def _power_of_two(self) -> Self:
        if self.resolution & (self.resolution - 1):
            lower = 1 << (self.resolution.bit_length() - 1)
            raise ConfigError(
                f"resolution {self.resolution} is not a power of two; nearest are {lower} and {2 * lower}"
            )
        return self


class CorpusConfig(Config):
    """Which scenes are used: an explicit scene list, a root folder, or generated scenes."""

    scenes: tuple[str, ...] = ()
    """Explicit `.gmdag` or mesh files, folders of meshes, generated scenes (apartment:0-11), or a split of the
    benchmark (rooms-v1:train); takes precedence over everything else."""
    manifest: str | None = None
    """Corpus manifest (JSON); takes precedence over root."""
    root: str | None = None
    """Folder searched for meshes."""
    families: dict[str, tuple[_SceneSeed, ...]] = Field(default_factory=lambda: {"apartment": tuple(range(12))})
    """Generated families and their seeds, used when nothing else is named."""


def compile_resolution(azimuth_bins: int, elevation_bins: int) -> int:
    """Return the default compile resolution: the next power of two ≥ max(512, 2·Az, 8·El), at most 2048."""
    return min(1 << (max(512, 2 * azimuth_bins, 8 * elevation_bins) - 1).bit_length(), 2048)
