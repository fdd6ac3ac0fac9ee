"""Records of experiences and versions: rows of the outbox, written by the trainer's thread.

Between two writes a journal holds the completed experiences, so that a kill loses none.
"""

import logging
import random
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any

from navi_core.errors import RecordError
from navi_core.record import MetricLog, outbox_path, row_context
from navi_core.service.learning.experience import Experience
from navi_core.service.learning.experience_journal import ExperienceJournal, recover_journals

_LOG = logging.getLogger("navi.service")

_FLUSH_SECONDS, _MAX_FLUSH_SECONDS = 5.0, 300.0
_ROWS_PER_FLUSH = 20_000
_MAX_WAITING = 200_000
"""Rows that wait for a full disk; about 600 MB."""


class ServiceRecord:
    """Writes rows of `service_experiences` and `service_versions`.

    Args:
        model: First model of the service.
        seed: Of the service.
        config_hash: Of its settings.
        outbox: Folder of segments; None: that of the Navi home.
        share: Of the experiences that are recorded, drawn at random; the others are only counted.

    Raises:
        RecordError: The outbox or the journal cannot be made.

    Attributes:
        run_id: Name of this service process.
        lost: Experiences dropped because the disk was full for too long.
    """

    def __init__(self, model: str, seed: int, config_hash: str, outbox: Path | None = None, share: float = 1.0) -> None:
        self.run_id = f"service-{model}-{uuid.uuid4().hex[:12]}"
        context = {"seed": seed, "config_hash": config_hash} | row_context()
        self._log = MetricLog(outbox if outbox is not None else outbox_path(), self.run_id, context)
        journals = self._log.outbox / "journals"
        recover_journals(journals, self._log.outbox)
        self._journal = ExperienceJournal(journals, self.run_id, context)
        self._completed: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)
        self._share, self._draw = share, random.Random(seed)
        self._number = self.lost = self._reported = 0
        self._wait = _FLUSH_SECONDS
        self._next = 0.0

    def experience(self, experience: Experience) -> None:
        """Record one completed experience without latents, states and observations; waits for no disk."""
        self._number += 1
        # Random: drones complete in turns, so every second experience would be of the same drones.
        if self._share < 1.0 and self._draw.random() >= self._share:
            return
        x, y, z = experience.position.tolist()
        values: dict[str, Any] = {"number": self._number, "session_id": experience.session_id}
        values |= {"model_version": experience.model_version, "x": x, "y": y, "z": z, "yaw": experience.yaw}
        values |= {"action": experience.action.tolist(), "log_prob": experience.log_prob, "value": experience.value}
        values |= {"gate_send": experience.gate_send, "expected_reward": experience.expected_reward}
        values |= {"components": dict(experience.components), "actual_reward": experience.actual_reward}
        values |= {"effective_reward": experience.effective_reward, "step": self._number}
        # In this order: a row that a new journal misses is among the completed ones already.
        self.lost += len(self._completed) == _MAX_WAITING
        self._completed.append(values)
        self._journal.append(values)

    def version(self, number: int, fate: str, **numbers: float) -> None:
        """Record the fate of a version: trained, admitted, held or rolled_back."""
        self._log.row("service_versions", {"model_version": number, "fate": fate, "step": number, **numbers})

    def flush(self, *, now: bool = False) -> None:
        """Make rows durable, every five seconds at most unless `now`, less often after failures.

        Raises:
            RecordError: The outbox cannot be written; the rows wait for the next time, the last 200,000 of them.
        """
        if now or time.monotonic() >= self._next:
            try:
                self._write()
            except RecordError:
                self._wait = min(2 * self._wait, _MAX_FLUSH_SECONDS)
                raise
            else:
                self._wait = _FLUSH_SECONDS
            finally:
                self._next = time.monotonic() + self._wait

    def close(self) -> None:
        """Make the last rows durable; on a full disk the journal keeps them for the next service."""
        try:
            self._write()
        except RecordError as error:
            _LOG.warning("the last experiences stay in the journal: %s", error)
            self._journal.close(keep=True)
        else:
            self._journal.close()

    def _write(self) -> None:
        self._journal.rotate()
        # Rows of a failed write go first and alone: the log writes all of its rows at every try.
        self._log.flush()
        if self.lost > self._reported:
            self._reported = self.lost
            _LOG.warning("the disk was full for too long: %d experiences are not recorded", self.lost)
        while self._completed:
            # In parts: rows that the log cannot write wait there.
            for _ in range(min(len(self._completed), _ROWS_PER_FLUSH)):
                self._log.row("service_experiences", self._completed.popleft())
            self._log.flush()
        self._journal.drop_rotated()
