"""CUDA ray tracer over torch tensors: asynchronous, allocation-free, usable in a CUDA graph.

The tracer also works on CPU tensors, where it runs the very jobs of the CUDA kernels in plain loops
(csrc/cuda/jobs.h): slow, but to the same bits, so that everything above it can be checked without a GPU.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from navi_core.errors import SceneError, UnavailableError
from navi_core.kernels.native.cuda import CudaKernels, KernelResources
from navi_core.kernels.native.library import Cast, Hierarchies, Points, Rays, Surface, load_library
from navi_core.kernels.rays.packed import PackedField, cell_words

THREADS = 128
"""Most threads of a CUDA block; csrc/cuda/trace_cuda.cu is built for no more."""
_WARP = 32
TILES = ((8, 4), (4, 8), (16, 2), (2, 16))
"""Ray tiles of a warp (azimuths, elevations), squarest in angle first; the first that divides a panorama is used."""
_MOST_BLOCKS = 2**31 - 1


def cuda_device(device: torch.device) -> torch.device:
    """Validate a CUDA device and return it with its index.

    Raises:
        UnavailableError: torch sees no such device; the message names what is missing.
    """
    build = f"torch {torch.__version__}" + ("" if torch.version.cuda else ", a build without CUDA")
    if not torch.cuda.is_available():
        remedy = "check the driver with nvidia-smi" if torch.version.cuda else "install a CUDA build of torch"
        raise UnavailableError(f"device {str(device)!r}: no GPU that {build} can use; {remedy}, or take device 'cpu'")
    index = torch.cuda.current_device() if device.index is None else device.index
    last = torch.cuda.device_count() - 1
    if index > last:
        raise UnavailableError(f"device {str(device)!r} does not exist; allowed: cuda:0..cuda:{last}")
    return torch.device("cuda", index)


class _Loops:
    """CPU emulation of the CUDA kernels: the same jobs in plain loops over the host's memory."""

    def __init__(self) -> None:
        self._library = load_library()
        self.resources: dict[str, KernelResources] = {}

    def launch(
        self, name: str, _blocks: int, _threads: int, parameters: Sequence[ctypes.Structure], _stream: int
    ) -> None:
        getattr(self._library, f"navi_jobs_{name}")(*(ctypes.addressof(struct) for struct in parameters))


class CudaTracer:
    """CUDA implementation of `Tracer`: kernels over tensors of one device, launched on its current stream.

    Nothing here waits for the device or looks at a value. A row whose scene does not exist, or that holds a
    number that is not finite, meets nothing: a miss, an infinite distance, not within.

    Args:
        packed: The field's arrays; copied to the device once.
        device: A CUDA device, or the CPU for the twin.
        flags: Further flags of the kernels' build.

    Raises:
        ConfigError: The kernels cannot be built or loaded there.
    """

    name = "cuda"

    def __init__(self, packed: PackedField, device: torch.device, flags: Sequence[str] = ()) -> None:
        self.device = device
        self._tensors: list[torch.Tensor] = []
        grid, cubes, records, items, planes, semantic, bases = packed.surface
        words = cell_words(grid, cubes, records, bases, packed.cells)
        arrays = (words, records, items, planes, semantic, bases, packed.frame, packed.cells)
        self._surface = Surface(*map(self._upload, arrays))
        self._hierarchies = Hierarchies(*map(self._upload, packed.hierarchy))
        self._scenes = len(packed.frame)
        self.tiles: Sequence[tuple[int, int]] = TILES
        """Shapes of tiles to choose from."""
        self._on_cuda = device.type == "cuda"
        self._kernels = CudaKernels(device, flags) if self._on_cuda else _Loops()

    @property
    def nbytes(self) -> int:
        """Device memory that the scenes take [bytes]."""
        return sum(tensor.nbytes for tensor in self._tensors)

    @property
    def resources(self) -> dict[str, KernelResources]:
        """GPU resources (registers, memory) of each kernel by name; empty on the CPU."""
        return self._kernels.resources

    def cast(
        self,
        origins: torch.Tensor,
        directions: torch.Tensor,
        scene: torch.Tensor,
        max_distance: float,
        elevations: int,
        depth: torch.Tensor,
        semantic: torch.Tensor,
        valid: torch.Tensor,
    ) -> None:
        """Cast R rays from each of B origins; all tensors are contiguous and on the device.

        Args:
            origins: (B, 3) float32 [m].
            directions: (B or 1, R, 3) float32 unit vectors.
            scene: (B,) int32.
            max_distance: Range [m].
            elevations: Elevations of a panorama whose rays lie azimuth by azimuth, so that neighbouring threads
                look in neighbouring directions; 0 where the rays have no order.
            depth: (B, R) float32 out [m].
            semantic: (B, R) int32 out.
            valid: (B, R) bool out.

        Raises:
            SceneError: More rays than one launch can take.
        """
        rows, rays = depth.shape
        if not rows * rays:
            return
        threads = min(THREADS, -(-rays // _WARP) * _WARP)
        blocks = rows * -(-rays // threads)
        if blocks > _MOST_BLOCKS or rays > _MOST_BLOCKS - THREADS:
            raise SceneError(f"{rows} rows of {rays} rays are too many for one cast; split the rows")
        ask = Rays.of(origins, directions, scene, max_distance, depth, semantic, valid)
        cast = Cast(ask, self._scenes, *tile_of(rays, elevations, self.tiles))
        self._launch("cast", blocks, threads, self._surface, cast)

    def distance(self, points: torch.Tensor, scene: torch.Tensor, out: torch.Tensor) -> None:
        """Write the (Q,) float32 distance of each of the (Q, 3) points to the surface of its scene [m]."""
        self._ask(
            "distance",
            Points(self._scenes, points.data_ptr(), scene.data_ptr(), len(points), 0.0, out.data_ptr(), None),
        )

    def within(self, points: torch.Tensor, scene: torch.Tensor, radius: float, out: torch.Tensor) -> None:
        """Collision query: write a (Q,) bool mask, is the surface nearer than `radius` [m]?"""
        self._ask(
            "within",
            Points(self._scenes, points.data_ptr(), scene.data_ptr(), len(points), radius, None, out.data_ptr()),
        )

    def _ask(self, name: str, points: Points) -> None:
        if points.count:
            self._launch(name, -(-points.count // THREADS), THREADS, self._hierarchies, points)

    def _launch(self, name: str, blocks: int, threads: int, *parameters: ctypes.Structure) -> None:
        stream = torch.cuda.current_stream(self.device).cuda_stream if self._on_cuda else 0
        self._kernels.launch(name, blocks, threads, parameters, stream)

    def _upload(self, array: npt.NDArray[Any]) -> int:
        """Copy an array to the device, keep it alive, and return its address."""
        # A copy, which torch aligns for 16-byte loads; its bytes are what matters, not its type.
        tensor = torch.empty(array.nbytes, dtype=torch.uint8, device=self.device)
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
        self._tensors.append(tensor)
        return tensor.data_ptr()


def tile_of(rays: int, elevations: int, tiles: Sequence[tuple[int, int]] = TILES) -> tuple[int, int, int]:
    """Choose the ray tile of a warp: (elevations of a row of rays, tile azimuths, tile elevations); (0, 1, 1): none."""
    if elevations > 0 and rays % elevations == 0:
        for wide, high in tiles:
            if rays // elevations % wide == 0 and elevations % high == 0:
                return elevations, wide, high
    return 0, 1, 1
