"""Fixtures and helpers of the world tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from navi_core.scenes import Scene
from navi_core.world import Field


def native_field(scenes: Sequence[Scene], **options: int) -> Field:
    """Return a field whose C++ kernels are in use; where there are none the test is skipped."""
    field = Field(scenes, **options)
    if field.native is None:
        pytest.skip("the C++ kernels are not in use here")
    return field
