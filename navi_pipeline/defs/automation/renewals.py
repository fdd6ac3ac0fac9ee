"""Materializations of the assets that a night renews."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg

from navi_pipeline.defs.evaluation import ranked
from navi_pipeline.defs.warehouse import folded_in
from navi_pipeline.lib.evaluation.promotions import ALIAS, open_registry
from navi_pipeline.lib.records import content_key

if TYPE_CHECKING:
    from navi_pipeline.lib.nightly.night import Night


def renewed_by(stage: str, night: "Night") -> list[dg.AssetMaterialization]:
    """Return the materializations of what a stage of a night has renewed; none where it did not come to that.

    Args:
        stage: A stage that has passed.
        night: Its night.
    """
    if stage == "evaluation":
        return [_materialization("leaderboard", night, *ranked())]
    decision = night.data("promotion") if stage == "promotion" else {}
    # Without a version nobody was challenged.
    return [_promotion(night, decision)] if "version" in decision else []


def renewed_warehouse(night: "Night", warn: Callable[..., None]) -> dg.AssetMaterialization:
    """Fold in what the night has written and return the materialization."""
    return _materialization("warehouse", night, *folded_in(warn))


def _promotion(night: "Night", decision: dict[str, Any]) -> dg.AssetMaterialization:
    registry = open_registry()
    champion = registry.resolve(ALIAS).weights_hash if ALIAS in registry.aliases() else None
    metadata: dict[str, Any] = {
        "champion": decision["champion"] or "none",
        "challenger": decision["version"],
        "promoted": bool(decision["promoted"]),
        "reason": decision["reason"],
    }
    # As the asset's own: a night of a profile is one more challenge of it.
    return _materialization("promoted_model", night, metadata, content_key(champion), partition=night.config.profile)


def _materialization(
    asset: str, night: "Night", metadata: dict[str, Any], version: str, partition: str | None = None
) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset, metadata={"night": night.name, **metadata}, partition=partition, tags={"dagster/data_version": version}
    )
