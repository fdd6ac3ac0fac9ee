"""PPO training of one profile, in a supervised child process."""

from typing import Any

import dagster as dg

from navi_pipeline.defs.corpus.assets import OWNERS, corpus
from navi_pipeline.defs.training.partitions import profile_partitions

__all__ = ["TrainingSettings", "ppo_policy"]


class TrainingSettings(dg.Config):
    """What a training run may be told from outside; everything else is the profile's preset."""

    seed: int = 0
    total_steps: int | None = None
    echo: bool = False


@dg.asset(
    group_name="training",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    deps=[corpus],
    partitions_def=profile_partitions,
    description="A policy trained by PPO on the training scenes with the profile's preset. Runs in a child process "
    "that is stopped with the step; a run that was killed resumes from its last checkpoint; a finished run of the "
    "same configuration is reused.",
)
def ppo_policy(context: dg.AssetExecutionContext, config: TrainingSettings) -> dg.MaterializeResult:
    """Train, or reuse the finished run of this configuration."""
    from navi_pipeline.lib.pictures import embedded_picture, reward_curves
    from navi_pipeline.lib.policies import curve_of, train_policy

    def say(line: str) -> None:
        context.log.info(line)
        if config.echo:
            import sys

            print(line, file=sys.stderr, flush=True)  # noqa: T201

    profile = context.partition_key
    policy = train_policy(profile, seed=config.seed, total_steps=config.total_steps, on_line=say)
    metadata: dict[str, Any] = {
        "run_id": policy["run_id"],
        "steps": policy["steps"],
        "reward_ema": policy["reward_ema"],
        "wall_time_minutes": 60.0 * policy["wall_time_hours"],
        "seed": policy["seed"],
        "train_scenes": policy["train_scenes"],
        "reused": policy["reused"],
        "checkpoint": dg.MetadataValue.path(policy["checkpoint"]),
    }
    curve = curve_of(policy["run_id"])
    if len(curve):
        metadata["steps_per_second"] = float(curve["sps"].median())
        metadata["curves"] = dg.MetadataValue.md(embedded_picture(reward_curves(curve, policy["run_id"]), "curves"))
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(policy["weights_hash"][:16]))
