"""Reinforcement-learning assets: one for each learner, partitioned by profile."""

import dagster as dg
from pydantic import Field

from navi_pipeline.defs.corpus.assets import OWNERS, corpus
from navi_pipeline.defs.partitions import GPU, profile_partitions
from navi_pipeline.defs.pretraining.assets import bc_policy
from navi_pipeline.lib.orchestration.clock import worked_as
from navi_pipeline.lib.training.policies import ALGORITHMS, asset_name, parse_start
from navi_pipeline.lib.training.training_step import materialize_policy

_CHILD = (
    "Runs in a child process that is stopped with the step; a run that was killed resumes from its last checkpoint; "
    "a finished run of the same configuration is reused."
)
_STORIES = {
    "ppo": "The policy that challenges the champion: proximal policy optimisation on the training scenes, going on "
    "from the clone where the profile has one.",
    "grpo": "The same network without a critic: flights from one start are judged by their group (GRPO), on the same "
    "collector and reward.",
    "dqn": "The same eyes, other answers: double DQN with prioritised replay chooses among motion primitives.",
}


class TrainingSettings(dg.Config):
    """Settings of a training run; the others come from the profile's preset."""

    seed: int = Field(default=0, description="Seed of every random draw; another one is another run.")
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
        pool=GPU,
        deps=[bc_policy, corpus] if algorithm == "ppo" else [corpus],
        partitions_def=profile_partitions,
        description=f"{_STORIES[algorithm]} {_CHILD}",
    )
    def policy(context: dg.AssetExecutionContext, config: TrainingSettings) -> dg.MaterializeResult[None]:
        """Train, or reuse the finished run of this configuration."""
        with worked_as(asset_name(algorithm)):
            return materialize_policy(
                context,
                algorithm,
                seed=config.seed,
                total_steps=config.total_steps,
                start=parse_start(config.start),
                echo=config.echo,
            )

    return policy


POLICIES: dict[str, dg.AssetsDefinition] = {algorithm: _training(algorithm) for algorithm in ALGORITHMS}
"""Asset by learner."""
