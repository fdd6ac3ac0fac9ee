"""Learning assets: behaviour cloning, then one asset for each reinforcement learner, partitioned by profile."""

import math
from typing import Any

import dagster as dg
from pydantic import Field

from navi_core.errors import ConfigError
from navi_pipeline.defs.corpus import OWNERS, corpus
from navi_pipeline.defs.demonstrations import demonstrations
from navi_pipeline.defs.partitions import policy_of, policy_partitions
from navi_pipeline.lib.orchestration import POOL, worked, worked_as
from navi_pipeline.lib.training.policies import (
    ALGORITHMS,
    asset_name,
    cloning_curve_of,
    curve_of,
    metric_counts,
    read_policy,
)
from navi_pipeline.lib.training.training_step import materialize_policy


class CloningSettings(dg.Config):
    """Run config of a behaviour-cloning run; the other settings come from the profile's preset."""

    seed: int | None = Field(default=None, description="The seed of the partition; another one is refused.")
    epochs: int | None = Field(default=None, description="Passes over the demonstrations; by default the profile's.")


def _policy(context: dg.AssetExecutionContext, seed: int | None) -> tuple[str, int]:
    """Return profile and seed of the partition; a setting of another seed would make another partition's policy."""
    profile, named = policy_of(context)
    if seed not in (None, named):
        raise ConfigError(f"seed {seed} in partition {context.partition_key}; allowed: {named}, or another partition")
    return profile, named


def _trained(context: dg.AssetCheckExecutionContext, algorithm: str) -> dict[str, Any]:
    profile, seed = policy_of(context)
    return read_policy(profile, algorithm, seed=seed)


@dg.asset(
    group_name="pretraining",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    pool=POOL,
    deps=[demonstrations, corpus],
    required_resource_keys={"trainer"},
    partitions_def=policy_partitions,
    description="Behaviour cloning of the demonstrations, in a child process. The best epoch on held-out flights "
    "becomes a registered version, the parent of the PPO policy.",
)
@worked
def bc_policy(context: dg.AssetExecutionContext, config: CloningSettings) -> dg.MaterializeResult[None]:
    """Train a behaviour-cloning policy, or reuse the finished run of the same configuration and demonstrations."""
    return materialize_policy(context, "bc", *_policy(context, config.seed), epochs=config.epochs)


@dg.asset_check(
    asset=bc_policy,
    required_resource_keys={"home"},
    partitions_def=policy_partitions,
    blocking=True,
    description="The held-out loss is finite (or nothing goes on from the clone), and falls after the first epoch.",
)
@worked
def clone_has_learned(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Check that the held-out loss is finite and falls after the first epoch."""
    losses = cloning_curve_of(_trained(context, "bc")["run_id"])["validation_nll"]
    first, best = float(losses.iloc[0]), float(losses.min())
    finite = bool(all(math.isfinite(loss) for loss in losses))
    return dg.AssetCheckResult(
        passed=finite and best < first,
        severity=dg.AssetCheckSeverity.WARN if finite else dg.AssetCheckSeverity.ERROR,
        metadata={"first": first, "best": best, "epochs": len(losses)},
    )


_CHILD = (
    "Runs in a child process that is stopped with the step; a run that was killed resumes from its last checkpoint; "
    "a finished run of the same configuration is reused."
)
_STORIES = {
    "ppo": "Proximal policy optimisation (PPO) on the training scenes, from the clone if the profile has one. Its "
    "policy challenges the champion.",
    "grpo": "Group-relative policy optimisation (GRPO): flights are compared within their group, without a critic, on "
    "PPO's collector and reward.",
    "dqn": "Double DQN with prioritised replay, which chooses among motion primitives.",
    "dpo": "Direct preference optimisation of pairs of flights: makes the better segment of each pair likelier, or "
    "learns "
    "from the profile's file of pairs.",
    "apex": "Double DQN with several actors, sharded replay and a learner (Ape-X): in one process, or on the cluster "
    "of NAVI_TRAINER=ray.",
}


class TrainingSettings(dg.Config):
    """Run config of a training run; the other settings come from the profile's preset."""

    seed: int | None = Field(default=None, description="The seed of the partition; another one is refused.")
    total_steps: int | None = Field(
        default=None, description="Decisions, summed over drones; by default the profile's."
    )
    start: str = Field(
        default="profile",
        description="profile: as the profile sets; clone: from bc_policy (PPO alone); new: from new weights.",
    )
    echo: bool = Field(default=False, description="Let the trainer's lines through to the terminal, too.")


def _training(algorithm: str) -> dg.AssetsDefinition:
    @dg.asset(
        name=asset_name(algorithm),
        group_name="training",
        kinds={"torch"},
        owners=OWNERS,
        code_version="2",
        pool=POOL,
        deps=[bc_policy, corpus] if algorithm == "ppo" else [corpus],
        required_resource_keys={"trainer"},
        partitions_def=policy_partitions,
        description=f"{_STORIES[algorithm]} {_CHILD}",
    )
    @worked_as(asset_name(algorithm))
    def policy(context: dg.AssetExecutionContext, config: TrainingSettings) -> dg.MaterializeResult[None]:
        """Train the policy in a child process, or reuse the finished run of the same configuration."""
        return materialize_policy(
            context,
            algorithm,
            *_policy(context, config.seed),
            total_steps=config.total_steps,
            start=config.start,
            echo=config.echo,
        )

    return policy


def _checks(algorithm: str, asset: dg.AssetsDefinition) -> list[dg.AssetChecksDefinition]:
    @dg.asset_check(
        asset=asset,
        partitions_def=policy_partitions,
        required_resource_keys={"home"},
        blocking=True,
        description="No metric of the run is NaN or infinite, and no two rows share step and name.",
    )
    @worked
    def metrics_are_finite(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Check that the run's metrics are finite and unique by step and name."""
        counts = metric_counts(_trained(context, algorithm)["run_id"])
        passed = counts["rows"] > 0 and counts["not_finite"] == counts["doubled"] == 0
        return dg.AssetCheckResult(passed=passed, metadata=counts)

    @dg.asset_check(
        asset=asset,
        partitions_def=policy_partitions,
        required_resource_keys={"home"},
        description="The episodes of the run's last tenth have a higher mean return than those of its first.",
    )
    @worked
    def reward_rises(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Check that the mean return of the last tenth of the run exceeds that of the first.

        Rewards by step would mislead: in the first rollouts all episodes are young, and new floor is near.
        """
        curves = curve_of(_trained(context, algorithm)["run_id"])
        curve = curves["episode_return"].dropna()
        if curve.empty:  # no episode has ended
            curve = curves["reward_ema"]
        tenth = max(1, len(curve) // 10)
        first, last = (float(part.mean()) for part in (curve.iloc[:tenth], curve.iloc[-tenth:]))
        return dg.AssetCheckResult(
            passed=last > first,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"first_tenth": first, "last_tenth": last},
        )

    return [metrics_are_finite, reward_rises]


POLICIES: dict[str, dg.AssetsDefinition] = {algorithm: _training(algorithm) for algorithm in ALGORITHMS}
"""Learner name → training asset."""
TRAINING = [*POLICIES.values(), *(check for name, asset in POLICIES.items() for check in _checks(name, asset))]
"""Training assets and checks as a list: Dagster's module loader finds lists, but no dictionaries."""
