"""Jobs of the graph; a run has one partition, so scenes and profiles have jobs of their own."""

from __future__ import annotations

import dagster as dg

__all__ = ["compile_job", "corpus_job", "main_job", "sources_job"]

sources_job = dg.define_asset_job(
    "sources_job", dg.AssetSelection.assets("scene_sources"), description="Plan the scenes."
)
compile_job = dg.define_asset_job(
    "compile_job",
    dg.AssetSelection.assets("compiled_scene"),
    description="Compile one scene.",
)
corpus_job = dg.define_asset_job("corpus_job", dg.AssetSelection.assets("corpus"), description="Gather the corpus.")
main_job = dg.define_asset_job(
    "main_job",
    dg.AssetSelection.assets("ppo_policy", "policy_evaluation", "promoted_model"),
    description="Train a profile, evaluate it on held-out scenes, and let it challenge the champion.",
)
