"""The way from a field to the kernels of the GPU: what is loaded, what is launched, and with which structs.

The driver is a fake one that runs the very kernels of trace_cuda.cu on the host, block by block; so the geometry of
the launches and the layout of the structs are those of a GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from navi_core.kernels.advantages import advantages_of
from navi_core.kernels.native import cuda as native_cuda
from navi_core.kernels.native.compiler_cache import SOURCES
from navi_core.kernels.native.cuda import KERNELS, CudaKernels, CudaUnavailableError, KernelResources
from navi_core.kernels.native.library import find_compiler
from navi_core.kernels.rays import cuda
from navi_core.scenes import Scene
from navi_core.world import Field, RayHits, spherical_directions
from tests.kernels.test_native import hard_rays
from tests.world.emulated_cuda import emulated_cuda

CPU_NAMES = ("depth", "semantic", "valid")


@pytest.fixture(scope="module")
def library(compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    command = [*(find_compiler() or []), "-O2", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", f"-I{SOURCES}"]
    source = Path(__file__).with_name("fake_driver.cpp")
    subprocess.run([*command, str(source), "-o", str(target)], check=True, timeout=200)
    return target


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    load, fake = ctypes.CDLL, ctypes.CDLL(str(library))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake if name == "libcuda.so.1" else load(name))
    monkeypatch.setattr(native_cuda, "build_cubin", lambda architecture, flags: b"\x7fELF" + architecture.encode())
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return fake


def test_launches_match_the_looped_twin_bit_for_bit(driver, twin_scenes: dict[str, Scene]) -> None:
    scenes = [twin_scenes[name] for name in ("apartment", "box", "octree")]
    origins = torch.cat([hard_rays(scene, 12, i)[0][:5] for i, scene in enumerate(scenes)])
    origins[3, 1] = float("nan")
    rows = torch.tensor([0] * 5 + [1] * 4 + [-1] + [2] * 4 + [3], dtype=torch.int32)
    twin = Field(scenes, tracer="cuda")
    with emulated_cuda(CudaKernels):
        field = Field(scenes, device="cuda")
        # Fewer rays than a warp, a block that is not full, several blocks, with and without tiles.
        for azimuths, elevations in ((3, 2), (16, 8), (50, 5), (64, 16)):
            directions = spherical_directions(azimuths, elevations)
            wanted = twin.cast_rays(origins, directions, rows, 50.0)
            there = (origins.cuda(), directions.cuda(), rows.cuda())
            out = RayHits(*(torch.full_like(getattr(wanted, name), 1).cuda() for name in CPU_NAMES))
            for found in (field.cast_rays(*there, 50.0, elevations=elevations), field.cast_rays(*there, 50.0, out=out)):
                assert all(torch.equal(getattr(found, n).cpu(), getattr(wanted, n)) for n in CPU_NAMES)
        points = torch.rand(300, 3) * 4
        which = torch.arange(300, dtype=torch.int32) % 4 - 1
        assert torch.equal(field.distance(points.cuda(), which.cuda()).cpu(), twin.distance(points, which))
        assert torch.equal(field.within(points.cuda(), which.cuda(), 0.4).cpu(), twin.within(points, which, 0.4))
        assert field.cast_rays(origins[:0].cuda(), torch.eye(3).cuda(), rows[:0].cuda()).depth.shape == (0, 3)
        rollout = [*torch.randn(3, 20, 70), *(torch.rand(2, 20, 70) < 0.1)]
        found = advantages_of(*(x.cuda() for x in rollout), gamma=0.97, lam=0.9)
        assert torch.equal(found.cpu(), advantages_of(*rollout, gamma=0.97, lam=0.9))
    assert driver.fake_pushed() == 0, "a context was left on the thread"


def test_resources_are_read_of_every_kernel(driver) -> None:
    kernels = CudaKernels(torch.device("cuda", 0))
    assert kernels.resources == dict.fromkeys(KERNELS, KernelResources(40, 30, 10, 60))


def test_driver_errors_are_raised(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = CudaKernels(torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match=r"cuLaunchKernel: invalid \(CUDA error 1\)"):
        kernels.launch("within", 0, 128, [cuda.Points()] * 2, 7777)
    assert driver.fake_pushed() == 0
    monkeypatch.setattr(native_cuda, "build_cubin", lambda architecture, flags: b"of another kind")
    with pytest.raises(RuntimeError, match="cuModuleLoadData: device kernel image is invalid"):
        CudaKernels(torch.device("cuda", 0))


def test_missing_driver_error_names_it(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(CudaUnavailableError, match=r"libcuda\.so\.1: cannot open .*; see nvidia-smi"):
        CudaKernels(torch.device("cuda", 0))
