"""Benchmarks: short declarative lists, and the runners that measure them."""

from __future__ import annotations

from navi_core.bench.env import EnvCase, EnvRow, Soak, env_cases, run_env, run_soak
from navi_core.bench.raycast import RaycastCase, RaycastRow, raycast_cases, run_raycast

__all__ = [
    "EnvCase",
    "EnvRow",
    "RaycastCase",
    "RaycastRow",
    "Soak",
    "env_cases",
    "raycast_cases",
    "run_env",
    "run_raycast",
    "run_soak",
]
