"""Scenes: meshes, generated families, compilation, and the `.gmdag` file in both versions."""

from __future__ import annotations

from navi_core.scenes.mesh import Mesh, check_mesh, mesh_from_arrays
from navi_core.scenes.procedural import FAMILIES, generate_scene

__all__ = ["FAMILIES", "Mesh", "check_mesh", "generate_scene", "mesh_from_arrays"]
