"""Promotion: the champion after a challenge; asset and check."""

from typing import Any

import dagster as dg

from navi_core.errors import NaviError
from navi_pipeline.defs.corpus import OWNERS
from navi_pipeline.defs.evaluation import EvaluationSettings, policy_evaluation
from navi_pipeline.defs.learning import POLICIES
from navi_pipeline.defs.partitions import profile_partitions
from navi_pipeline.lib.evaluation.promotions import ALIAS, challenge, lineage_of, open_registry
from navi_pipeline.lib.orchestration import worked
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.reports.pages import markdown_table
from navi_pipeline.lib.training.policies import read_policy
from navi_pipeline.lib.warehouse.warehouse import Warehouse

_LEADS = {"lead_points": "mean_difference", "lead_points_low": "low", "lead_points_high": "high"}
"""Lead of the challenger in percentage points → its share in the decision."""


@dg.asset(
    group_name="promotion",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    deps=[policy_evaluation, POLICIES["ppo"]],
    partitions_def=profile_partitions,
    description="Who flies from now on? The registry's champion after this policy challenged it on the validation "
    "scenes. It changes only if the paired interval of coverage lies above 0 and collisions do not rise. Guarded by "
    "the blocking checks of policy_evaluation.",
)
@worked
def promoted_model(context: dg.AssetExecutionContext, config: EvaluationSettings) -> dg.MaterializeResult[None]:
    """Challenge the champion."""
    from navi_core.models import record_registry

    policy = read_policy(context.partition_key)
    decision = challenge(policy, config.protocol())
    models = record_registry(open_registry())
    Warehouse().ingest()
    context.log.info(decision["reason"])
    shown = ("version", "training_source", "parents", "reward_ema", "notes")
    metadata: dict[str, Any] = {
        "champion": decision["champion"] or "none",
        "challenger": policy["version"],
        "promoted": bool(decision["promoted"]),
        "reason": decision["reason"],
        "reused": decision["reused"],
        "lineage": " → ".join(lineage_of(decision["champion"])) if decision["champion"] else "none",
        **{name: 100 * float(decision[part]) for name, part in _LEADS.items() if decision.get(part) is not None},
        "versions": dg.MetadataValue.md(markdown_table([{name: row[name] for name in shown} for row in models])),
    }
    champion = next((row["weights_hash"] for row in models if row["version"] == decision["champion"]), None)
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(content_key(champion)))


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
