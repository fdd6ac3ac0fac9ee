"""A trained policy against two scripted pilots, on scenes it never trained on."""

from typing import Any

import dagster as dg

from navi_pipeline.defs.corpus.assets import OWNERS, corpus
from navi_pipeline.defs.training.assets import ppo_policy
from navi_pipeline.defs.training.partitions import profile_partitions

__all__ = ["EvaluationSettings", "policy_evaluation"]


class EvaluationSettings(dg.Config):
    """The protocol's size; everything else is the engine's default."""

    starts: int = 3
    max_steps: int = 200
    seed: int = 0


@dg.asset(
    group_name="evaluation",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    deps=[ppo_policy, corpus],
    partitions_def=profile_partitions,
    description="Coverage, collisions and path length of the policy, of random flight and of forward-plus from the "
    "same frozen starts of the test scenes; scenes of $NAVI_SCENES apart. Nothing is learned.",
)
def policy_evaluation(context: dg.AssetExecutionContext, config: EvaluationSettings) -> dg.MaterializeResult:
    """Fly, compare, record."""
    from navi_core.config import EvalConfig
    from navi_pipeline.lib.documents import content_key
    from navi_pipeline.lib.pictures import markdown_table
    from navi_pipeline.lib.policies import read_policy
    from navi_pipeline.lib.scoring import PILOTS, score_policy, summary_rows
    from navi_pipeline.lib.verdicts import write_verdict
    from navi_pipeline.lib.warehouse import Warehouse

    profile = context.partition_key
    policy = read_policy(profile)
    protocol = EvalConfig(starts=config.starts, max_steps=config.max_steps, seed=config.seed)
    test = score_policy(policy, "test", protocol)
    if test is None:
        raise dg.Failure("the corpus has no test scene; materialize scene_sources with test above 0")
    external = score_policy(policy, "external", protocol)
    write_verdict(profile, policy, test, external, protocol)
    Warehouse().ingest()
    ours = next(iter(test.results.values())).summary
    metadata: dict[str, Any] = {
        "c_vis_auc_percent": float(ours["c_vis_auc"]),
        "c_visit_percent": float(ours["c_visit"]),
        "collisions_per_minute": float(ours["collisions_per_minute"]),
        "path_length_m": float(ours["path_length"]),
        "scenes": int(ours["scenes"]),
        "episodes": int(ours["episodes"]),
        "reused": test.reused,
        "table": dg.MetadataValue.md(markdown_table(summary_rows(test))),
        "verdict": dg.MetadataValue.md("\n\n".join(test.comparisons[pilot]["c_vis_auc"].sentence for pilot in PILOTS)),
    }
    if test.maps:
        metadata["maps"] = dg.MetadataValue.md("\n\n".join(test.maps))
    if external is not None:
        metadata["external_table"] = dg.MetadataValue.md(markdown_table(summary_rows(external)))
        if external.maps:
            metadata["external_maps"] = dg.MetadataValue.md("\n\n".join(external.maps))
    ids = [result.evaluation_id for score in (test, external) if score for result in score.results.values()]
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(content_key(ids)))
