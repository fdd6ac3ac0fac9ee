"""Checks of a promotion."""

import dagster as dg

from navi_core.errors import NaviError
from navi_pipeline.defs.partitions import profile_partitions
from navi_pipeline.defs.promotion.assets import promoted_model
from navi_pipeline.lib.evaluation.promotions import ALIAS, open_registry
from navi_pipeline.lib.orchestration.clock import worked


@dg.asset_check(
    asset=promoted_model,
    partitions_def=profile_partitions,
    description="The champion's checkpoint is whole and loads.",
)
@worked
def champion_loads() -> dg.AssetCheckResult:
    """Resolve and load the champion."""
    from navi_core.models import load_checkpoint

    try:
        champion = open_registry().resolve(ALIAS)
        checkpoint = load_checkpoint(champion.path)
    except NaviError as error:
        return dg.AssetCheckResult(passed=False, description=str(error))
    return dg.AssetCheckResult(passed=True, metadata={"version": champion.version, "step": checkpoint.step_id})
