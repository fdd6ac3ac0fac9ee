"""Checkpoints of a distributed run: the learner's state, with each shard's items beside it.

Every learner saves its own shards; rank 0 writes the checkpoint. A resumed run first takes the gradient steps that are
due for counted decisions. Unfinished rollouts are collected again with new restart numbers.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig
from navi_core.errors import CheckpointError
from navi_core.learn.algorithms.dqn import DQNLearner
from navi_core.learn.parallel import Workers
from navi_core.learn.run.checkpoints import checkpoint_path, keep_checkpoint, take_up
from navi_core.learn.run.monitor import RunWatch
from navi_core.learn.run.records import Counters, RunRecord
from navi_core.models import CheckpointState, add_scenes_of, load_checkpoint
from navi_core.record import RunDirectory
from navi_core.scale.counters import RunCounters
from navi_core.scale.sharded_replay import ShardedReplay

_LOG = logging.getLogger("navi.scale")


@dataclass
class ApexState:
    """Progress of a run.

    Attributes:
        counters: Counters of the run.
        steps: Decisions trained on.
        version: Published versions of the weights.
        start: Number of resumptions.
        parent: Last checkpoint.
        initial: Checkpoint of the initial weights.
    """

    counters: Counters
    steps: int = 0
    version: int = 0
    start: int = 0
    parent: str | None = None
    initial: str | None = None


class ApexCheckpoints:
    """Saver and loader of one learner's part of a run.

    Args:
        config: The run's configuration.
        run: Run directory; None in all learners but the first.
        record: Record of the run; likewise.
        workers: The learners.
        learner: This learner.
        totals: Counters, used by rank 0.
        watch: Early stopping.
        replay: This learner's shards.
        corpus: `scene_hashes` and `corpus_summary` of the checkpoints.
        at: Progress of the run; changed by `restore`.
    """

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory | None,
        record: RunRecord | None,
        workers: Workers,
        learner: DQNLearner,
        totals: RunCounters,
        watch: RunWatch,
        replay: ShardedReplay,
        corpus: dict[str, Any],
        at: ApexState,
    ) -> None:
        self.config, self.run, self.record, self.workers = config, run, record, workers
        self.learner, self.totals, self.watch, self.replay = learner, totals, watch, replay
        self.corpus, self.at = {"scene_hashes": {}, "corpus_summary": {}} | corpus, at
        self._names: dict[str, str] = {"expect_encoder": config.policy.encoder, "expect_core": config.policy.core}

    def save(self) -> None:
        """Save the run."""
        at, mine = self.at, None
        if self.run is not None:
            mine = str(checkpoint_path(self.run.checkpoints, at.steps))
        shared = self.workers.share(mine)
        assert shared is not None
        path = Path(shared)
        kept = self.workers.gather({port.number: self.replay.save(port, path) for port in self.replay.ports})
        at.counters.saved_at = at.steps
        if self.run is None or self.record is None:
            return
        at.counters.episodes = self.totals.episodes
        state = CheckpointState(
            policy=self.learner.policy,
            optimizer=self.learner.optimizer,
            config=self.config,
            run_id=self.run.run_id,
            parent_checkpoint=at.parent,
            rnd=self.learner.shaper.state_dict(),
            normalisers=self.learner.state_dict(),
            scene_hashes=self.corpus["scene_hashes"],
            corpus_summary=self.corpus["corpus_summary"],
            extra={
                "apex": {
                    "version": at.version,
                    "start": at.start,
                    "shards": {number: added for part in kept for number, added in part.items()},
                },
                "ledger": self.totals.state_dict(),
                "initial": at.initial,
                "watch": self.watch.state_dict(),
                "counters": at.counters.extra(),
            },
            **at.counters.fields(at.steps),
        )
        keep_checkpoint(path, state, run=self.run, record=self.record)
        at.parent = str(path)

    def restore(self, *, fresh: bool) -> bool:
        """Restore the last good checkpoint; return whether there is one.

        Args:
            fresh: Delete all checkpoints instead.

        Raises:
            CheckpointError: The checkpoint does not fit this run.
        """
        mine = None if self.run is None else take_up(self.run.checkpoints, fresh=fresh, **self._names)
        path: Path | None = self.workers.share(mine)
        if path is None:
            return False
        at = self.at
        checkpoint = load_checkpoint(path, **self._names)
        if checkpoint.scene_hashes != self.corpus["scene_hashes"]:
            raise CheckpointError(
                f"the scenes have changed since step {checkpoint.step_id}; start again with --fresh, or go on from its "
                "weights in a new run (another --partition)"
            )
        try:
            extra = checkpoint.extra
            apex = extra["apex"]
            self.learner.policy.load_state_dict(checkpoint.policy_state)
            self.learner.optimizer.load_state_dict(checkpoint.optimizer_state or {})
            self.learner.load_state_dict(checkpoint.normalisers)
            self.learner.shaper.load_state_dict(checkpoint.rnd_state or {})
            self.watch.load_state_dict(extra["watch"])
            self.totals.load_state_dict(extra["ledger"])
            at.version, at.start = int(apex["version"]), int(apex["start"]) + 1
            at.initial, at.parent, at.steps = extra["initial"], str(path), checkpoint.step_id
            added = {int(number): int(count) for number, count in apex["shards"].items()}
            at.counters = Counters.of(checkpoint)
            add_scenes_of(self.corpus["corpus_summary"], checkpoint)
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint at step {checkpoint.step_id} does not fit this run ({error}); start with --fresh"
            ) from error
        for port in self.replay.ports:
            port.load(str(path.parent), path.name, added.get(port.number, 0))
        if self.record is not None:
            self.record.checkpoint(path, checkpoint)
        _LOG.info("the run resumes from step %d", at.steps)
        return True

    def take_weights(self, initial: Path) -> None:
        """Load the weights of a checkpoint.

        Raises:
            CheckpointError: The checkpoint holds another network.
        """
        try:
            checkpoint = load_checkpoint(initial, **self._names)
            self.learner.policy.load_state_dict(checkpoint.policy_state)
        except (CheckpointError, RuntimeError) as error:
            raise CheckpointError(f"the run cannot start from {initial}: {error}; begin with --init none") from None
        add_scenes_of(self.corpus["corpus_summary"], checkpoint)
        self.at.parent = self.at.initial = str(initial)
