"""Embree 4 as a ray-casting peer: single rays, or coherent packets of 8 or 16 through the library that `embreex` ships.

The rays are laid out in tiles before the timing, 2 elevations high, and denormals are off. A call resets the packets,
traces them and leaves the distances in them: it is Embree's own loop, without Python.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from navi_core.bench.engine.peers import Float32, PeerRays
from navi_core.errors import ConfigError

_BATCH = 64  # packets that are reset together
_FAR, _MASK, _GEOMETRY = 8, 9, 18  # words `tfar`, `mask` and `geomID`
_COHERENT = 1 << 16
_TRIANGLES, _INDEX, _VERTEX, _UINT3, _FLOAT3 = 0, 0, 1, 0x5003, 0x9003  # enumerations of the API
_DENORMALS_OFF = 0x8040  # flush to zero, denormals are zero: bits of MXCSR
_MXCSR = 7  # its word in the `fenv_t` of x86-64 Linux


@cache
def _library() -> ctypes.CDLL:
    found = importlib.util.find_spec("embreex")
    files = sorted(Path(found.origin).parents[1].glob("embreex.libs/libembree4*")) if found and found.origin else []
    if not files:
        raise ConfigError("tracer 'embree' needs Embree 4, which embreex ships for x86-64 Linux alone")
    for dependency in files[0].parent.glob("libtbb*"):
        ctypes.CDLL(str(dependency), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(files[0]))
    pointer, integer, size = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
    for name, result, arguments in (
        ("NewDevice", pointer, [ctypes.c_char_p]),
        ("GetDeviceError", ctypes.c_int, [pointer]),
        ("NewScene", pointer, [pointer]),
        ("NewGeometry", pointer, [pointer, integer]),
        ("SetSharedGeometryBuffer", None, [pointer, integer, integer, integer, pointer, size, size, size]),
        ("CommitGeometry", None, [pointer]),
        ("AttachGeometry", integer, [pointer, pointer]),
        ("CommitScene", None, [pointer]),
        ("ReleaseGeometry", None, [pointer]),
        ("ReleaseScene", None, [pointer]),
        ("ReleaseDevice", None, [pointer]),
        ("Intersect1", None, [pointer] * 3),
        ("Intersect8", None, [pointer] * 4),
        ("Intersect16", None, [pointer] * 4),
    ):
        function = getattr(library, f"rtc{name}")
        function.restype, function.argtypes = result, arguments
    return library


def build(name: str, rays: PeerRays) -> EmbreePeer:
    """Build the peer named embree1, embree8 or embree16; an instruction set behind a colon holds Embree to it."""
    packets, _, isa = name.removeprefix("embree").partition(":")
    return EmbreePeer(rays, int(packets), isa)


class EmbreePeer:
    """Embree scene with the rays of all poses, cast on the calling thread; implements `Peer`.

    Args:
        rays: Rays and triangles.
        width: Rays of a packet: 1, 8 or 16.
        isa: Instruction set to which Embree is held, such as avx2; "" for what suits the CPU.

    Raises:
        ConfigError: `embreex` ships no Embree 4 here, or Embree refuses the scene.
    """

    def __init__(self, rays: PeerRays, width: int = 16, isa: str = "") -> None:
        triangles, directions, elevations = rays.triangles, rays.directions, rays.elevations
        self._embree = embree = _library()
        self._corners = np.ascontiguousarray(triangles.reshape(-1, 3), np.float32)
        self._corners = np.concatenate([self._corners, np.zeros((1, 3), np.float32)])  # Embree reads 16 bytes of each
        self._index = np.arange(3 * len(triangles), dtype=np.uint32)
        self._device = embree.rtcNewDevice(f"threads=1{',isa=' + isa if isa else ''}".encode())
        self._scene = embree.rtcNewScene(self._device)
        geometry = embree.rtcNewGeometry(self._device, _TRIANGLES)
        for kind, form, array, count in (
            (_VERTEX, _FLOAT3, self._corners, 3 * len(triangles)),
            (_INDEX, _UINT3, self._index, len(triangles)),
        ):
            embree.rtcSetSharedGeometryBuffer(geometry, kind, 0, form, array.ctypes.data, 0, 12, count)
        embree.rtcCommitGeometry(geometry)
        embree.rtcAttachGeometry(self._scene, geometry)
        embree.rtcReleaseGeometry(geometry)
        embree.rtcCommitScene(self._scene)
        if code := embree.rtcGetDeviceError(self._device):
            raise ConfigError(f"Embree refuses the scene: error {code}")
        self._shape = len(rays.origins), len(directions)
        # The place of each ray: azimuth by azimuth of a tile, packet after packet.
        columns, high = len(directions) // elevations, min(2, width)
        self._place = np.arange(len(directions))
        if columns % (width // high) == 0 and elevations % high == 0:
            tiles = self._place.reshape(columns * high // width, width // high, elevations // high, high)
            self._place = tiles.swapaxes(1, 2).reshape(-1)
        if self._place.size % width:
            raise ConfigError(f"{self._place.size} rays are no packets of {width}; choose another size or embree1")
        # RTCRayHit with its two instance ids has 21 words; a single one is padded to a multiple of 16 bytes.
        self._packets = _aligned(self._shape[0] * self._shape[1] // width, 24 if width == 1 else 21, width)
        words = np.zeros((*self._shape, 7), np.float32)
        words[..., :3], words[..., 4:] = rays.origins[:, None], directions[self._place]
        self._packets[:, :7] = words.reshape(-1, width, 7).swapaxes(1, 2)
        self._packets.view(np.uint32)[:, _MASK] = 0xFFFFFFFF
        self._valid = np.full(width, -1, np.int32)
        # RTCIntersectArguments: flags, features, context, filter, intersect, and what a later version may add.
        self._arguments = np.array([_COHERENT if width > 1 else 0, 0xFFFFFFFF, *[0] * 14], np.uint32)
        self._cast = partial(
            _loop(width), self._packets, self._packets.view(np.uint32), self._packets.ctypes.data,
            np.float32(rays.reach), self._valid.ctypes.data, self._scene, self._arguments.ctypes.data,
        )  # fmt: skip
        self._maths, self._usual, self._quick = ctypes.CDLL("libm.so.6"), (ctypes.c_uint * 16)(), (ctypes.c_uint * 16)()
        for state in (self._usual, self._quick):
            self._maths.fegetenv(state)
        self._quick[_MXCSR] |= _DENORMALS_OFF

    def __call__(self) -> None:
        """Cast all rays, without denormals."""
        self._maths.fesetenv(self._quick)
        try:
            self._cast()
        finally:
            self._maths.fesetenv(self._usual)

    def depth(self) -> Float32:
        """Return the (B, R) distances of the last call [m]."""
        depth = np.empty(self._shape, np.float32)
        depth[:, self._place] = self._packets[:, _FAR].reshape(self._shape)
        return depth

    def __del__(self) -> None:
        """Release scene and device."""
        if hasattr(self, "_scene"):
            self._embree.rtcReleaseScene(self._scene)
            self._embree.rtcReleaseDevice(self._device)


def _aligned(*shape: int) -> Float32:
    """Return zeros that begin at a multiple of 64 bytes, as packets have to."""
    count = int(np.prod(shape))
    buffer = np.zeros(count + 16, np.float32)
    start = -buffer.ctypes.data // 4 % 16
    return buffer[start : start + count].reshape(shape)


@cache
def _loop(width: int) -> Callable[..., Any]:
    """Compile the loop over the packets of one width."""
    one, many = _library().rtcIntersect1, getattr(_library(), f"rtcIntersect{max(width, 8)}")

    @numba.njit
    def trace(
        packets: Float32, words: npt.NDArray[np.uint32], first: int, reach: np.float32,
        valid: int, scene: int, arguments: int,
    ) -> None:  # fmt: skip
        stride = 4 * packets.shape[1] * width
        for start in range(0, len(packets), _BATCH):
            end = min(start + _BATCH, len(packets))
            # A packet written just before it is traced would wait for its own stores.
            packets[start:end, _FAR] = reach
            words[start:end, _GEOMETRY] = 0xFFFFFFFF
            for i in range(start, end):
                if width == 1:
                    one(scene, first + i * stride, arguments)
                else:
                    many(valid, scene, first + i * stride, arguments)

    compiled: Callable[..., Any] = trace
    return compiled
