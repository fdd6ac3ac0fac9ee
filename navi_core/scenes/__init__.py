"""Scenes package: mesh readers, procedural generators, the scene compiler and the `.gmdag` file (both versions)."""

from navi_core.scenes.compiler import (
    COMPILER_VERSION,
    CompiledScene,
    compile_hash,
    compile_mesh,
    compile_to_file,
    store_verdict,
)
from navi_core.scenes.corpus.corpus import (
    CompileReport,
    SceneSource,
    compile_corpus,
    compile_source,
    estimate_source,
    generated_sources,
    tell_apart,
)
from navi_core.scenes.corpus.discovery import (
    BENCHMARK,
    FROZEN_HASHES,
    SPLITS,
    benchmark_sources,
    discover,
    discover_root,
    environment_root,
    parse_seeds,
    require_frozen,
    scenes_named,
)
from navi_core.scenes.gmdag.file import load_gmdag
from navi_core.scenes.gmdag.scene import Scene
from navi_core.scenes.manifest import Manifest, ManifestRow, read_manifest
from navi_core.scenes.mesh import Mesh, check_mesh, mesh_from_arrays
from navi_core.scenes.naming import build_vocabulary, merge_vocabularies
from navi_core.scenes.procedural import FAMILIES, generate_scene
from navi_core.scenes.readers.mesh_file import MESH_SUFFIXES, read_mesh

__all__ = [
    "BENCHMARK",
    "COMPILER_VERSION",
    "FAMILIES",
    "FROZEN_HASHES",
    "MESH_SUFFIXES",
    "SPLITS",
    "CompileReport",
    "CompiledScene",
    "Manifest",
    "ManifestRow",
    "Mesh",
    "Scene",
    "SceneSource",
    "benchmark_sources",
    "build_vocabulary",
    "check_mesh",
    "compile_corpus",
    "compile_hash",
    "compile_mesh",
    "compile_source",
    "compile_to_file",
    "discover",
    "discover_root",
    "environment_root",
    "estimate_source",
    "generate_scene",
    "generated_sources",
    "load_gmdag",
    "merge_vocabularies",
    "mesh_from_arrays",
    "parse_seeds",
    "read_manifest",
    "read_mesh",
    "require_frozen",
    "scenes_named",
    "store_verdict",
    "tell_apart",
]
