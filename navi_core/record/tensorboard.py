"""Scalars for TensorBoard, attached to a metric log as one of its observers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import RecordError
from navi_core.record.metric_log import MetricLog

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardWriter:
    """Writes every scalar of a metric log into a TensorBoard event file.

    The file is created with the first scalar; points of an earlier process of the same run from that step on are
    purged, so that a resumed run shows one curve.

    Args:
        directory: Folder of the event files, for example `<run>/tensorboard`.

    Raises:
        RecordError: TensorBoard is not installed.
    """

    def __init__(self, directory: Path | str) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise RecordError("TensorBoard is not installed; pip install tensorboard")
        self.directory = Path(directory)
        self._writer: SummaryWriter | None = None

    def attach(self, log: MetricLog) -> TensorBoardWriter:
        """Follow `log` from now on, and close with it; returns self."""
        log.observe(self.scalars, self.close)
        return self

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write one point per value at `step`."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(log_dir=str(self.directory), flush_secs=30, purge_step=int(step))
        for name, value in values.items():
            self._writer.add_scalar(name, float(value), global_step=int(step))

    def close(self) -> None:
        """Write what is buffered and close the event file."""
        if self._writer is not None:
            self._writer.close()
