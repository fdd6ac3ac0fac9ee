"""Benchmarks: short declarative lists, and the runners that measure them."""

from __future__ import annotations

from navi_core.bench.compile import CompileCase, CompileRow, compile_cases, run_compile
from navi_core.bench.core import CoreCase, CoreRow, core_cases, run_core
from navi_core.bench.encoder import EncoderCase, EncoderRow, encoder_cases, run_encoder
from navi_core.bench.env import EnvCase, EnvRow, Soak, env_cases, run_env, run_soak
from navi_core.bench.raycast import RaycastCase, RaycastRow, raycast_cases, run_raycast
from navi_core.bench.serve import ServeCase, ServeRow, run_serve, serve_cases

__all__ = [
    "CompileCase",
    "CompileRow",
    "CoreCase",
    "CoreRow",
    "EncoderCase",
    "EncoderRow",
    "EnvCase",
    "EnvRow",
    "RaycastCase",
    "RaycastRow",
    "ServeCase",
    "ServeRow",
    "Soak",
    "compile_cases",
    "core_cases",
    "encoder_cases",
    "env_cases",
    "raycast_cases",
    "run_compile",
    "run_core",
    "run_encoder",
    "run_env",
    "run_raycast",
    "run_serve",
    "run_soak",
    "serve_cases",
]
