"""The structs that Python passes to C++ have one declaration, and a build proves that both sides agree."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.kernels.native.compiler_cache import SOURCES
from navi_core.kernels.native.library import (
    LIBRARY,
    NativeUnavailableError,
    Step,
    compile_library,
    data_pointer,
    find_compiler,
)


def test_step_has_the_fields_of_its_header() -> None:
    names = [field[0] for field in Step._fields_]
    assert names[:3] == ["scenes", "rows", "drone"]
    assert names[-3:] == ["truncated", "void", "collided"]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("header", "one", "other"),
    [
        ("step/steps.h", "    uint8_t* void_;", "    uint8_t* collided;"),
        ("step/dynamics.h", "    float* position;", "    float* velocity;"),
        ("rays/views.h", "    float* depth;", "    int32_t* label;"),
        ("cuda/jobs.h", "    float* distance;", "    uint8_t* within;"),
    ],
)
def test_two_swapped_pointers_are_refused_by_the_build(tmp_path: Path, header: str, one: str, other: str) -> None:
    copy = tmp_path / "csrc"
    shutil.copytree(SOURCES, copy)
    text = (copy / header).read_text()
    assert text.count(one) == text.count(other) == 1
    swapped = text.replace(one, "@").replace(other, one).replace("@", other)
    (copy / header).write_text(swapped)
    with pytest.raises(NativeUnavailableError, match=f"static.assert.*{one.split()[-1].rstrip(';')}"):
        compile_library(find_compiler() or [], tmp_path / LIBRARY, sources=copy)


def test_tensors_unreadable_by_kernels_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"contiguous torch.float32 on the CPU, not torch.float64"):
        data_pointer(torch.zeros(2, dtype=torch.float64), torch.float32)
