"""GPUs of this machine, each held by one training at a time by a file lock."""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from navi_core.machine.file_lock import open_lock, try_lock

DEVICES = "NAVI_DEVICES"
"""Environment variable with the GPUs that trainings may take, as ids of CUDA separated by commas."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_POLL_SECONDS = 0.5
WAITING = "waiting for a GPU"
"""Beginning of the line that is reported while all are taken."""


def usable_devices() -> list[str]:
    """Return the ids of the GPUs that trainings may take; empty on a CPU.

    NAVI_DEVICES names them, else CUDA_VISIBLE_DEVICES, else the driver's device files. A GPU that NAVI_DEVICES names
    twice takes two trainings at once.
    """
    for variable in (DEVICES, _VISIBLE):
        if (named := os.environ.get(variable)) is not None:
            return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


@contextmanager
def hold_device(
    folder: Path, *, report: Callable[[str], None], ending: Callable[[], bool]
) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """Context manager that holds the first free GPU, and waits while all are taken.

    Args:
        folder: Folder of the lock files, one a GPU and machine.
        report: Called with a line if all are taken.
        ending: Polled twice a second while it waits; True ends the wait without a GPU.

    Yields:
        Environment variables of the child that may use the GPU, and the file descriptors that it inherits: the lock
        lasts until both processes have ended. Both are empty without a GPU.
    """
    named: Counter[str] = Counter()
    locks = []
    for device in usable_devices():
        locks.append((device, folder / f"{platform.node()}-{device.replace('/', '_')}-{named[device]}.lock"))
        named[device] += 1
        folder.mkdir(parents=True, exist_ok=True)
    waits = False
    while locks and not ending():
        for device, lock in locks:
            descriptor = open_lock(lock)
            try:
                if try_lock(descriptor):
                    # The child's own children take no second one.
                    yield {_VISIBLE: device, DEVICES: ""}, (descriptor,)
                    return
            finally:
                os.close(descriptor)
        if not waits:
            report(f"{WAITING}: all {len(locks)} are taken ({DEVICES} names them)")
        waits = True
        time.sleep(_POLL_SECONDS)
    yield {}, ()
