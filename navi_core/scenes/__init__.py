"""Scenes: meshes, generated families, compilation, and the `.gmdag` file in both versions."""

from __future__ import annotations

from navi_core.scenes.compiler import COMPILER_VERSION, CompiledScene, compile_hash, compile_mesh, compile_to_file
from navi_core.scenes.mesh import Mesh, check_mesh, mesh_from_arrays
from navi_core.scenes.procedural import FAMILIES, generate_scene
from navi_core.scenes.reader import MESH_SUFFIXES, read_mesh
from navi_core.scenes.scene import Scene, load_gmdag
from navi_core.scenes.semantics import build_vocabulary, merge_vocabularies, remap_table

__all__ = [
    "COMPILER_VERSION",
    "FAMILIES",
    "MESH_SUFFIXES",
    "CompiledScene",
    "Mesh",
    "Scene",
    "build_vocabulary",
    "check_mesh",
    "compile_hash",
    "compile_mesh",
    "compile_to_file",
    "generate_scene",
    "load_gmdag",
    "merge_vocabularies",
    "mesh_from_arrays",
    "read_mesh",
    "remap_table",
]
