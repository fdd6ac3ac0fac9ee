"""Scalars for TensorBoard, attached to a metric log as one of its observers."""

from __future__ import annotations

from pathlib import Path

from navi_core.errors import RecordError
from navi_core.record.metric_log import MetricLog

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter:
    """Writes every scalar of a metric log into a TensorBoard event file.

    Args:
        directory: Folder of the event files, for example `<run>/tensorboard`.

    Raises:
        RecordError: TensorBoard is not installed.
    """

    def __init__(self, directory: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RecordError(f"TensorBoard is not installed ({error}); pip install tensorboard") from error
        self.directory = Path(directory)
        self._writer = SummaryWriter(log_dir=str(self.directory), flush_secs=30)

    def attach(self, log: MetricLog) -> TensorBoardWriter:
        """Follow `log` from now on; returns self."""
        log.observe(self.scalars)
        return self

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write one point per value at `step`."""
        for name, value in values.items():
            self._writer.add_scalar(name, float(value), global_step=int(step))

    def close(self) -> None:
        """Write what is buffered and close the event file."""
        self._writer.close()
