"""Benchmarks: short declarative lists, and the runners that measure them."""

from __future__ import annotations

from navi_core.bench.raycast import RaycastCase, RaycastRow, raycast_cases, run_raycast

__all__ = ["RaycastCase", "RaycastRow", "raycast_cases", "run_raycast"]
