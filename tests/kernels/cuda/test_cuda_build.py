"""The CUDA kernels compile without a GPU, by nvcc and by NVRTC, within their register limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from navi_core.kernels.native import cuda
from navi_core.kernels.native.cuda import KERNELS, CudaUnavailableError, build_cubin, nvcc_cubin, nvrtc_cubin

KERNEL = re.compile(r"entry function '(?:navi_)(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", re.DOTALL)


@pytest.fixture(scope="module")
def nvcc() -> str:
    found = cuda.find_nvcc()
    if found is None:
        pytest.skip("no nvcc here")
    return found


@pytest.mark.slow
def test_nvcc_compiles_without_a_warning_and_few_registers(nvcc: str, tmp_path: Path) -> None:
    target = tmp_path / "kernels.cubin"
    printed = nvcc_cubin(nvcc, "sm_90", target, ["-Werror=all-warnings"])
    assert target.stat().st_size > 0
    found = {name: (int(registers), int(spilled)) for name, spilled, registers in KERNEL.findall(printed)}
    assert set(found) == set(KERNELS)
    registers, spilled = found["cast"]
    # Eight blocks of 128 threads on a multiprocessor: half of the threads that it can hold.
    assert registers <= 64 and spilled <= 128, printed
    assert found["distance"][1] == found["within"][1] == 0, printed


@pytest.mark.slow
def test_nvrtc_compiles_the_same_source() -> None:
    if cuda.find_nvrtc() is None:
        pytest.skip("no NVRTC here; it comes with torch's CUDA builds, or: pip install nvidia-cuda-nvrtc")
    image = nvrtc_cubin("sm_90")
    assert image.startswith(b"\x7fELF") and all(f"navi_{name}".encode() in image for name in KERNELS)
    with pytest.raises(CudaUnavailableError, match=r"failed for sm_90:\n(?s:.)*no_such_type"):
        nvrtc_cubin("sm_90", ["-DNAVI_BLOCKS=no_such_type"])


@pytest.mark.slow
def test_builds_are_cached_by_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if cuda.find_nvrtc() is None and cuda.find_nvcc() is None:
        pytest.skip("neither NVRTC nor nvcc here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build_cubin("sm_90")
    monkeypatch.setattr(cuda, "nvcc_cubin", None)
    monkeypatch.setattr(cuda, "nvrtc_cubin", None)
    assert build_cubin("sm_90") == first
    with pytest.raises(TypeError):
        build_cubin("sm_90", ["-DNAVI_BLOCKS=1"])


def test_missing_compiler_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_nvrtc", lambda: None)
    monkeypatch.setattr(cuda, "find_nvcc", lambda: None)
    with pytest.raises(CudaUnavailableError, match="pip install nvidia-cuda-nvrtc"):
        build_cubin("sm_90")


def test_failed_build_quotes_the_compiler(tmp_path: Path) -> None:
    with pytest.raises(CudaUnavailableError, match="no-such-nvcc could not be run"):
        nvcc_cubin("no-such-nvcc", "sm_90", tmp_path / "kernels.cubin")
