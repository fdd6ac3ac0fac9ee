"""Progress monitor of a trainer, by its printed lines: time, step, speed, stall."""

import re
import time
from dataclasses import dataclass, field
from typing import Any

_STEP = re.compile(r"\bstep ([\d,]+)")
_SPEED = re.compile(r"steps/s ([\d,.]+)")


@dataclass
class Monitor:
    """Watches a trainer by its lines, reports its progress, and decides when it has to end.

    Attributes:
        report: Called with a line every `interval`.
        seconds: Time from the first update on after which the trainer is stopped [s].
        stall_seconds: Time without progress after which it is stopped [s].
        interval: Seconds between lines [s].
        until_step: Step at which it is stopped; None: none.
    """

    report: Any
    seconds: float
    stall_seconds: float
    interval: float
    until_step: int | None = None
    step: int | None = None
    stalled: bool = False
    speeds: list[float] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _moved: float = field(default_factory=time.monotonic)
    _reported: float = field(default_factory=time.monotonic)

    def line(self, text: str) -> None:
        """Take a line of the trainer."""
        found = _STEP.search(text)
        if found is None or "resumes from" in text:
            self.report(f"  {text}")
            return
        step = int(found[1].replace(",", ""))
        if step != self.step:
            if self.step is None:
                self._began = time.monotonic()
            self.step, self._moved = step, time.monotonic()
        if speed := _SPEED.search(text):
            self.speeds.append(float(speed[1].replace(",", "")))

    def __call__(self) -> bool:
        """Whether the trainer has to end; asked twice a second."""
        now = time.monotonic()
        if now - self._reported >= self.interval:
            self._reported = now
            speed = f"{self.speeds[-1]:,.0f} steps/s" if self.speeds else "no update yet"
            self.report(f"  monitor: step {self.step or 0:,}, {speed}, {(now - self._began) / 60:.1f} min")
        if now - self._moved > self.stall_seconds:
            self.stalled = True
        done = self.until_step is not None and self.step is not None and self.step >= self.until_step
        over = self.step is not None and now - self._began > self.seconds
        return self.stalled or done or over
