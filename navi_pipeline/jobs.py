"""Jobs of the graph; a run has one partition, so scenes and profiles have jobs of their own.

`whole_graph` runs them all in order: one click from an empty folder to a champion.
"""

import dagster as dg

__all__ = ["compile_job", "corpus_job", "main_job", "sources_job", "whole_graph"]

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


class FlowSettings(dg.Config):
    """What the whole graph is materialized with."""

    profile: str = "demo"
    seed: int = 0


@dg.op(description="Run the graph's jobs in order; each is a run of its own, seen on the assets' pages.")
def materialize_everything(context: dg.OpExecutionContext, config: FlowSettings) -> None:
    """Scenes, training, evaluation, promotion."""
    from navi_pipeline.lib.flow import Flow

    flow = Flow(context.instance, profile=config.profile, seed=config.seed, say=context.log.info)
    flow.materialize_scenes()
    failed = flow.materialize_policy()
    if failed:
        raise dg.Failure(f"the policy did not pass: {'; '.join(failed)}")


@dg.job(description="The whole graph with one click: scenes, training, evaluation, promotion.")
def whole_graph() -> None:
    """Materialize every asset; what has not changed is reused."""
    materialize_everything()
