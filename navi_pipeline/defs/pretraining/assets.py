"""Behaviour-cloning asset, the start of reinforcement learning."""

import dagster as dg
from pydantic import Field

from navi_pipeline.defs.corpus.assets import OWNERS, corpus
from navi_pipeline.defs.demonstrations.assets import demonstrations
from navi_pipeline.defs.partitions import GPU, profile_partitions
from navi_pipeline.lib.orchestration.clock import worked
from navi_pipeline.lib.training.training_step import materialize_policy


class CloningSettings(dg.Config):
    """Settings of a cloning run; the others come from the profile's preset."""

    seed: int = Field(default=0, description="Seed of every random draw; another one is another run.")
    epochs: int | None = Field(default=None, description="Passes over the demonstrations; by default the profile's.")


@dg.asset(
    group_name="pretraining",
    kinds={"torch"},
    owners=OWNERS,
    code_version="1",
    pool=GPU,
    deps=[demonstrations, corpus],
    partitions_def=profile_partitions,
    description="The pupil imitates before it explores: behaviour cloning of the demonstrations, in a child process. "
    "The epoch that does best on held-out flights becomes a registered version, the parent of the PPO policy.",
)
@worked
def bc_policy(context: dg.AssetExecutionContext, config: CloningSettings) -> dg.MaterializeResult[None]:
    """Clone, or reuse the finished run of this configuration and these demonstrations."""
    return materialize_policy(context, "bc", seed=config.seed, epochs=config.epochs)
