"""Evaluation assets and checks: policies and pilots on held-out scenes, leaderboard, promotion gates, promotion."""

from itertools import pairwise
from typing import Any

import dagster as dg
from pydantic import Field

from navi_core.config import BASELINES, EvalConfig, parse_config
from navi_core.errors import NaviError
from navi_pipeline.defs.corpus import OWNERS, corpus
from navi_pipeline.defs.learning import POLICIES, bc_policy
from navi_pipeline.defs.partitions import DAILY, WHEN_SETTLED, policy_of, policy_partitions
from navi_pipeline.defs.resources import RegistryResource, WarehouseResource
from navi_pipeline.lib.evaluation.promotions import ALIAS, challenge, lineage_of
from navi_pipeline.lib.evaluation.scoring import (
    PILOTS,
    SplitScenes,
    flown_policy,
    fly_baselines,
    headline,
    ranking,
    read_baselines,
    read_verdict,
    read_verdicts,
    result_row,
    score_policy,
    summary_rows,
    worth_drawing,
    write_verdict,
)
from navi_pipeline.lib.orchestration import materialized, worked
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.reports.pages import embedded_charts, interval_chart, markdown_table, scatter_chart
from navi_pipeline.lib.training.policies import known_policies, policy_name, read_policy


class EvaluationSettings(dg.Config):
    """Run config of the evaluation protocol's size; all other settings are the engine's defaults."""

    starts: int = Field(default=3, description="Frozen starts in each scene.")
    max_steps: int = Field(default=200, description="Length of a flight [decisions].")
    seed: int = Field(default=0, description="Seed of the starts.")

    def protocol(self) -> EvalConfig:
        """Return the validated evaluation configuration (protocol)."""
        return parse_config(EvalConfig, self.model_dump(include=set(EvaluationSettings.model_fields)))


class BaselineSettings(EvaluationSettings):
    """Run config of the scripted pilots' evaluation."""

    pilots: list[str] = Field(default=list(BASELINES), description="Scripted pilots that fly; by default all.")


@dg.asset(
    group_name="evaluation",
    kinds={"torch"},
    owners=OWNERS,
    code_version="3",
    deps=[*POLICIES.values(), bc_policy, corpus],
    partitions_def=policy_partitions,
    description="Evaluation in unseen scenes: coverage, collisions and path length of the PPO policy, of "
    "random flight, forward-plus, frontier and compass from the same frozen starts of the test scenes; the profile's "
    "other policies beside them; scenes of $NAVI_SCENES apart. Nothing is learned.",
)
@worked
def policy_evaluation(
    context: dg.AssetExecutionContext, config: EvaluationSettings, warehouse: WarehouseResource
) -> dg.MaterializeResult[None]:
    """Evaluate the profile's policies on held-out scenes and compare the PPO policy with the scripted pilots."""
    profile, seed = policy_of(context)
    policy = read_policy(profile, seed=seed)
    protocol = config.protocol()
    scenes, own_scenes = SplitScenes("test"), SplitScenes("external", optional=True)
    test = score_policy(policy, scenes, protocol)
    external = score_policy(policy, own_scenes, protocol) if own_scenes.names else None
    others = {
        policy_name(other): flown_policy(other, scenes, protocol)
        for other in known_policies(profile, seed)
        if other["algorithm"] != policy["algorithm"]
    }
    write_verdict(profile, policy, test, external, protocol)
    warehouse.open().ingest()
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
        "other_policies": _table([result_row(name, result) for name, result in others.items()]),
        "maps": _pictures(test.maps),
        "external_table": _table(summary_rows(external) if external else []),
        "external_maps": _pictures(external.maps if external else []),
    }
    results = [*test.results.values(), *(external.results.values() if external else ()), *others.values()]
    return materialized(metadata, content_key([result.evaluation_id for result in results]))


def _table(rows: list[dict[str, Any]]) -> dg.MarkdownMetadataValue | None:
    return dg.MetadataValue.md(markdown_table(rows)) if rows else None


def _pictures(maps: list[str]) -> dg.MarkdownMetadataValue | None:
    return dg.MetadataValue.md("\n\n".join(maps)) if maps else None


@dg.asset(
    group_name="evaluation",
    kinds={"numpy"},
    owners=OWNERS,
    code_version="1",
    deps=[corpus],
    description="Evaluation of all scripted pilots from the frozen starts of the test scenes, from random flight to "
    "the planner that knows the map. Policies are compared with them.",
)
@worked
def baseline_evaluation(
    context: dg.AssetExecutionContext, config: BaselineSettings, warehouse: WarehouseResource
) -> dg.MaterializeResult[None]:
    """Evaluate scripted pilots on the test scenes, or reuse the results of the same protocol."""
    protocol = config.protocol()
    made = fly_baselines(protocol, pilots=config.pilots, on_line=context.log.info)
    warehouse.open().ingest()
    keys = ("c_vis_auc", "c_vis_auc_low", "c_vis_auc_high")
    bars = [(name, *(result.summary[key] for key in keys)) for name, result in made.results.items()]
    chart = interval_chart(bars, label="C_vis AUC [%], 95 % interval over scenes and starts")
    metadata = {
        "pilots": len(made.results),
        "reused": made.reused,
        "table": dg.MetadataValue.md(markdown_table([result_row(*item) for item in made.results.items()])),
        "picture": dg.MetadataValue.md(embedded_charts([chart], "pilots")),
        "maps": _pictures(made.maps),
    }
    return materialized(metadata, content_key([result.evaluation_id for result in made.results.values()]))


@dg.asset(
    group_name="evaluation",
    kinds={"duckdb"},
    owners=OWNERS,
    code_version="1",
    freshness_policy=DAILY,
    automation_condition=WHEN_SETTLED,
    deps=[policy_evaluation, baseline_evaluation],
    required_resource_keys={"home"},
    description="Ranking of policies and pilots on the champion's course, with intervals, and coverage against "
    "collisions.",
)
@worked
def leaderboard() -> dg.MaterializeResult[None]:
    """Query the warehouse's ranking of policies and pilots."""
    return materialized(*ranked())


def ranked() -> tuple[dict[str, Any], str]:
    """Return the leaderboard's metadata and its data version."""
    rows = ranking()
    drawn_rows = worth_drawing(rows)
    bars = [(row["subject"], headline(row), row["low"], row["high"]) for row in drawn_rows]
    points = {row["subject"]: [(row["collisions_per_minute"], headline(row))] for row in drawn_rows}
    drawn = scatter_chart(points, x="collisions per minute", y="C_vis AUC [%]")
    metadata = {
        "subjects": len(rows),
        "drawn": len(drawn_rows),
        "first": rows[0]["subject"] if rows else "nobody",
        "table": dg.MetadataValue.md(markdown_table(rows)),
        "ranking": dg.MetadataValue.md(embedded_charts([interval_chart(bars, label="C_vis AUC [%]")], "ranking")),
        "safety": dg.MetadataValue.md(embedded_charts([drawn], "coverage and collisions")),
    }
    return metadata, content_key([[row["subject"], headline(row)] for row in rows])


def _gate(name: str, pilot: str, metric: str, description: str, *, blocking: bool = False) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=policy_evaluation,
        name=name,
        partitions_def=policy_partitions,
        blocking=blocking,
        required_resource_keys={"home"},
        description=description,
    )
    @worked
    def gate(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Asset check: read the policy's paired comparison with a pilot on one metric."""
        row = read_verdict(*policy_of(context))["test"]["comparisons"][pilot][metric]
        return dg.AssetCheckResult(
            passed=row["better"] if metric == "c_vis_auc" else row["difference"] < 0,
            severity=dg.AssetCheckSeverity.ERROR if blocking else dg.AssetCheckSeverity.WARN,
            description=row["sentence"],
            metadata={name: row[name] for name in ("policy", "pilot", "difference", "low", "high")},
        )

    return gate


GATES = [
    _gate(
        "beats_random", "random", "c_vis_auc", blocking=True,
        description="Gate of the promotion: more area seen than random flight, with the paired interval above 0.",
    ),
    _gate(
        "beats_forward_plus", "forward-plus", "c_vis_auc",
        description="More area seen than forward-plus, with the paired interval above 0.",
    ),
    _gate(
        "collides_less_than_random", "random", "collisions_per_minute", blocking=True,
        description="Gate of the promotion: fewer collisions per minute than random flight.",
    ),
]  # fmt: skip
"""Asset checks that compare the policy with scripted pilots; the blocking ones are gates of the promotion."""


_VERDICT_SEEDS = 5


@dg.asset_check(
    asset=policy_evaluation,
    partitions_def=policy_partitions,
    required_resource_keys={"home"},
    description="Five seeds agree: each sees more than forward-plus, or none does. With fewer seeds it passes, for "
    "there is no verdict yet.",
)
@worked
def five_seeds_agree(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Check that all evaluated seeds of a profile have the same verdict against forward-plus, from five seeds on."""
    return agreement(policy_of(context)[0])


def agreement(profile: str) -> dg.AssetCheckResult:
    """Return the outcome of `five_seeds_agree` for a profile."""
    rows = {s: v["test"]["comparisons"]["forward-plus"]["c_vis_auc"] for s, v in read_verdicts(profile).items()}
    better = sorted(seed for seed, row in rows.items() if row["better"])
    enough = len(rows) >= _VERDICT_SEEDS
    return dg.AssetCheckResult(
        passed=not enough or len(better) in (0, len(rows)),
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{len(better)} of {len(rows)} seeds of {profile} see more than forward-plus"
        + ("" if enough else f"; {_VERDICT_SEEDS} are needed for a verdict"),
        metadata={"seeds": len(rows), "mean_difference": sum(row["difference"] for row in rows.values()) / len(rows)},
    )


@dg.asset_check(
    asset=baseline_evaluation,
    required_resource_keys={"home"},
    description="Baselines are in order: random below forward-plus, below frontier, below the planner.",
)
@worked
def baselines_keep_their_order() -> dg.AssetCheckResult:
    """Check that coverage rises from random over forward-plus and frontier to planner, of those that have flown."""
    coverage = read_baselines()
    order = [coverage[name] for name in ("random", "forward-plus", "frontier", "planner") if name in coverage]
    return dg.AssetCheckResult(
        passed=all(low < high for low, high in pairwise(order)),
        severity=dg.AssetCheckSeverity.WARN,
        metadata=coverage,
    )


@dg.asset_check(
    asset=leaderboard,
    required_resource_keys={"home"},
    description="Policies and the pilots that have flown stand in one ranking.",
)
@worked
def everybody_is_ranked() -> dg.AssetCheckResult:
    """Check that the ranking holds policies and every pilot that has flown."""
    rows = ranking()
    missing = sorted(set(read_baselines()) - {row["subject"] for row in rows})
    policies = sum(row["kind"] != "pilot" for row in rows)
    return dg.AssetCheckResult(
        passed=not missing and policies > 0,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"missing: {', '.join(missing)}" if missing else f"{policies} policies, and every pilot",
        metadata={"pilots": len(rows) - policies, "policies": policies},
    )


_LEADS = {"lead_points": "mean_difference", "lead_points_low": "low", "lead_points_high": "high"}
"""Name in the metadata [percentage points] → field of the promotion decision: the challenger's lead and its bounds."""


@dg.asset(
    group_name="promotion",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    deps=[policy_evaluation, POLICIES["ppo"]],
    partitions_def=policy_partitions,
    description="Champion of the registry after this policy challenged it on the validation scenes. It changes only "
    "if the paired interval of coverage lies above 0 and collisions do not rise. Guarded by "
    "the blocking checks of policy_evaluation.",
)
@worked
def promoted_model(
    context: dg.AssetExecutionContext,
    config: EvaluationSettings,
    registry: RegistryResource,
    warehouse: WarehouseResource,
) -> dg.MaterializeResult[None]:
    """Evaluate the policy against the champion on validation scenes and promote it if it wins."""
    from navi_core.models import record_registry

    profile, seed = policy_of(context)
    policy = read_policy(profile, seed=seed)
    decision = challenge(policy, config.protocol())
    models = record_registry(registry.open())
    warehouse.open().ingest()
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
    partitions_def=policy_partitions,
    description="The champion's checkpoint is whole and loads.",
)
@worked
def champion_loads(registry: RegistryResource) -> dg.AssetCheckResult:
    """Check that the champion's checkpoint resolves and loads."""
    from navi_core.models import load_checkpoint

    try:
        champion = registry.open().resolve(ALIAS)
        checkpoint = load_checkpoint(champion.path)
    except NaviError as error:
        return dg.AssetCheckResult(passed=False, description=str(error))
    return dg.AssetCheckResult(passed=True, metadata={"version": champion.version, "step": checkpoint.step_id})
