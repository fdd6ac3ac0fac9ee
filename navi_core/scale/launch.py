"""Launch of an Ape-X run: scenes or task, cluster, learner loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import TrainConfig
from navi_core.config.policy import Spaces
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.run.records import Progress, TrainResult
from navi_core.models import corpus_of
from navi_core.record import MetricLog, RunDirectory
from navi_core.scale.apex import train_apex
from navi_core.scale.cluster import Cluster, LocalCluster
from navi_core.scale.ray_cluster import RayCluster
from navi_core.tasks import reference_task
from navi_core.world import Field

if TYPE_CHECKING:
    from navi_core.scenes import CompiledScene

_LOG = logging.getLogger("navi.scale")


def launch_apex(
    config: TrainConfig,
    run: RunDirectory | None,
    *,
    scenes: Sequence[CompiledScene] = (),
    workers: Workers = ALONE,
    address: str | None = None,
    processes: int | None = None,
    in_process: bool = False,
    initial: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    log: MetricLog | None = None,
    made: Callable[[Cluster], None] | None = None,
) -> TrainResult:
    """Run Ape-X.

    Args:
        config: The run's configuration, of algorithm dqn.
        run: Open run directory; None in all learners but the first.
        scenes: Compiled scenes to fly in; none for a task. Actors on Ray read their files.
        workers: The learners.
        address: Of a running Ray; None starts one here.
        processes: Actors to start on Ray; None starts the configured number, 0 leaves them to `navi actor`.
        in_process: Without Ray: actors and shards take turns here.
        initial: A checkpoint whose weights a new run starts from.
        progress: Called about every second.
        log: Metric log; by default the run's.
        made: Called with the cluster once it exists.

    Raises:
        NaviError: As `train_apex` does, and where Ray is not installed or does not answer.
    """
    spaces: Spaces | None = None
    shape: tuple[int, ...] = (3, config.env.azimuth_bins, config.env.elevation_bins)
    corpus: dict[str, Any] = {}
    if config.task is not None:
        options: dict[str, Any] = dict(config.task_options)
        spaces = reference_task(config.task, 1, config.seed, **options).spaces
        assert spaces is not None
        shape = spaces.observed
    else:
        compiled = [item.scene for item in scenes]
        hashes, summary = corpus_of(compiled, Field(compiled, device="cpu").vocabulary)
        corpus = {"scene_hashes": hashes, "corpus_summary": summary}
    run_id = run.run_id if run is not None else ""

    def place(config: TrainConfig, workers: Workers) -> Cluster:
        here: Cluster
        if in_process:
            here = LocalCluster(config, [item.scene for item in scenes], workers)
        else:
            files = [str(item.path.absolute()) for item in scenes]
            here = ray = RayCluster(config, run_id, files, workers, address=address, actors=processes)
            if workers.first:
                last = config.distributed.replay_shards - 1
                _LOG.info(
                    "Ray at %s; further actors: navi actor --shard 0 … %d --address %s --run %s",
                    ray.address, last, ray.address, run_id,
                )  # fmt: skip
        if made is not None:
            made(here)
        return here

    return train_apex(
        config, run, place, spaces=spaces, shape=shape, workers=workers, progress=progress, initial=initial, log=log,
        corpus=corpus,
    )  # fmt: skip
