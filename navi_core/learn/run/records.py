"""Records of a run: its row, its checkpoints, its stage timings, and its device."""

import contextlib
import json
import math
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from navi_core.config import TrainConfig
from navi_core.kernels.rays.cuda import cuda_device
from navi_core.models import Checkpoint, CheckpointState
from navi_core.record import MetricLog, RunDirectory, StageTimer
from navi_core.record.durable import write_durably


class RunRecord:
    """Writes the rows `runs` and `checkpoints` of one run.

    Args:
        config: The run's configuration.
        run: Its directory.
        log: Where rows go.
        device: Device that it learns on.
        source: Training source of its checkpoints.
    """

    def __init__(
        self, config: TrainConfig, run: RunDirectory, log: MetricLog, device: torch.device, source: Literal["rl", "bc"]
    ) -> None:
        self.config, self.run, self.log, self.device, self.source = config, run, log, device, source
        self._spent = run.path / "cpu_seconds.json"
        self._before, self._began = self._spent_before(), _cpu_seconds()

    def cpu_seconds(self) -> float | None:
        """Return the processor time of all starts of the run [s], lost work included; None if one is not known.

        Of this process, and of those it has started and waited for.
        """
        return None if self._before is None else self._before + _cpu_seconds() - self._began

    def _spent_before(self) -> float | None:
        try:
            return float(json.loads(self._spent.read_text())["cpu_seconds"])
        except FileNotFoundError:
            return 0.0 if self.run.fresh else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep_spent(self) -> float | None:
        """Keep the processor time for the next start; a kill loses what was spent since."""
        spent = self.cpu_seconds()
        if spent is not None:
            with contextlib.suppress(OSError):  # no reason to end a training
                write_durably(self._spent, (json.dumps({"cpu_seconds": spent}) + "\n").encode())
        return spent

    def status(
        self, status: str, *, step: int, reward_ema: float, seconds: float, started_at: str, reason: str | None = None
    ) -> None:
        """Write the run's row.

        Args:
            status: running, finished or stopped.
            step: Decisions so far.
            reward_ema: Smoothed reward; NaN for none.
            seconds: Training time so far [s].
            started_at: When the run began.
            reason: Why it ended.
        """
        config = self.config
        self.log.row(
            "runs",
            {
                "step": step,
                "asset": self.run.asset,
                "partition": self.run.partition,
                "algorithm": config.algorithm,
                "encoder": config.policy.encoder,
                "core": config.policy.core,
                "status": status,
                "reason": reason,
                "device": str(self.device),
                "path": str(self.run.path),
                "reward_ema": _known(reward_ema),
                "wall_time_seconds": seconds,
                "cpu_seconds": self._keep_spent(),
                "started_at": started_at,
                "ended_at": None if status == "running" else now(),
                "config": config.model_dump(mode="json"),
            },
        )

    def checkpoint(self, path: Path, checkpoint: Checkpoint | CheckpointState) -> None:
        """Write the row of a checkpoint that was written, or that the run goes on from (a kill may have lost its row).

        Args:
            path: The file.
            checkpoint: Its content.
        """
        self.log.row(
            "checkpoints",
            {
                "step": checkpoint.step_id,
                "path": str(path),
                "reward_ema": _known(checkpoint.reward_ema),
                "episode_count": checkpoint.episode_count,
                "parent_checkpoint": checkpoint.parent_checkpoint,
                "training_source": self.source,
                "wall_time_hours": checkpoint.wall_time_hours,
                "cpu_seconds": self._keep_spent(),
            },
        )
        self.log.flush()

    def stages(self, step: int, timers: Mapping[str, StageTimer]) -> None:
        """Write the mean and the total time of every stage.

        Args:
            step: Decisions so far.
            timers: Stage timings by phase.
        """
        for phase, timer in timers.items():
            totals = timer.totals()
            for stage, mean in timer.means().items():
                self.log.row(
                    "stage_timings",
                    {
                        "step": step,
                        "stage": f"{phase}/{stage}",
                        "milliseconds": mean,
                        "total_milliseconds": 1e3 * totals[stage],
                    },
                )


def _cpu_seconds() -> float:
    own, waited_for = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + waited_for.ru_utime + waited_for.ru_stime


def run_device(config: TrainConfig) -> torch.device:
    """Return the device that a configuration means on this machine.

    Raises:
        ConfigError: It asks for CUDA, and there is none.
    """
    if config.device == "cuda":
        cuda_device(torch.device("cuda"))
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def now() -> str:
    """Return the time, UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _known(value: float) -> float | None:
    """Return None for what has no value yet."""
    return None if math.isnan(value) else value
