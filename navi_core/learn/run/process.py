"""Process control of a run: a stop flag set by signals, and the number of torch threads.

The best number of threads is measured once and then kept. Sums round differently with another number of threads, so
measuring at every start would break bit-exact resuming. The choice is stored in the run's directory, and in the Navi
home for equal networks on the same machine: two runs of one configuration there give identical results.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.machine import usable_cores
from navi_core.policy import NavigationPolicy
from navi_core.record import hardware_profile, navi_home
from navi_core.record.durable import write_durably

_LOG = logging.getLogger("navi.learn")
_MOST = 8
_TURNS = 3
_OBSERVATIONS = 128
_GAIN = 1.1
"""Least speed-up that justifies more threads: a smaller gain on an idle machine is lost on a busy one."""


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Context manager that sets the number of torch threads and restores the former number on exit.

    The block may change the number; the caller's number is restored all the same.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Threads:
    """Numbers of torch threads in rollouts and updates.

    Attributes:
        rollout: Threads while the policy acts.
        update: Threads while it learns.
    """

    rollout: int
    update: int


def choose_threads(
    config: TrainConfig, policy: NavigationPolicy, obs: Tensor, folder: Path | None, *, processes: int = 1
) -> Threads:
    """Choose the torch threads of a run: configured, stored by an earlier start or run, or measured.

    Args:
        config: The run's configuration; `threads` above 0 is taken as it is.
        policy: The network.
        obs: (B, …) observations of the rollout's shape.
        folder: The run's directory; None stores nothing there.
        processes: Processes of the run on this machine, which share its cores.
    """
    if config.threads:
        return Threads(config.threads, config.threads)
    most = max(1, min(usable_cores() // processes, _MOST))
    if most == 1 or obs.device.type != "cpu":
        return Threads(most, most)
    own = folder / "threads.json" if folder is not None else None
    shared, key = navi_home() / "threads.json", _key(config, obs, most)
    kept = _read(own).get(key) or _read(shared).get(key)
    if kept is None:
        threads = measure_threads(policy, obs, config.rule.bptt, most)
        shared.parent.mkdir(parents=True, exist_ok=True)
        write_durably(shared, _text(_read(shared) | {key: asdict(threads)}))
    else:
        threads = Threads(int(kept["rollout"]), int(kept["update"]))
    if own is not None and key not in _read(own):
        write_durably(own, _text({key: asdict(threads)}))
    return threads


def measure_threads(policy: NavigationPolicy, obs: Tensor, bptt: int, most: int) -> Threads:
    """Benchmark acting and learning with one thread and with `most`, alternating; the fastest repetition counts.

    The policy's weights and all random states stay unchanged.

    Args:
        policy: The network.
        obs: (B, …) observations.
        bptt: Decisions of a training sequence.
        most: The other number of threads.
    """
    rows = obs.shape[0]
    aux, reset = obs.new_zeros(rows, policy.config.aux_inputs), torch.zeros(rows, dtype=torch.bool)
    state = policy.initial_state(rows)
    actions = policy.act(obs, aux, state, reset, None).action.detach()
    count = max(1, _OBSERVATIONS // bptt)
    pick = torch.arange(count) % rows

    def sequences(x: Tensor) -> Tensor:
        return x[pick][:, None].expand(-1, bptt, *x.shape[1:]).contiguous()

    batch = (sequences(obs), sequences(aux), tuple(x[pick] for x in state), sequences(reset), sequences(actions))

    def act() -> None:
        with torch.no_grad():
            policy.act(obs, aux, state, reset, None)

    def learn() -> None:
        out = policy.evaluate(*batch)
        (out.log_prob.mean() + out.value.mean()).backward()
        policy.zero_grad(set_to_none=True)

    with torch_threads(1):
        threads = Threads(_faster(act, most), _faster(learn, most))
    _LOG.info("torch threads, measured: %d in rollouts, %d in updates", threads.rollout, threads.update)
    return threads


def _faster(call: Callable[[], None], most: int) -> int:
    best = {1: float("inf"), most: float("inf")}
    for turn in range(_TURNS + 1):
        for threads in best:
            torch.set_num_threads(threads)
            start = time.perf_counter()
            call()
            if turn:  # the first turn warms up
                best[threads] = min(best[threads], time.perf_counter() - start)
    return most if best[1] > _GAIN * best[most] else 1


def _key(config: TrainConfig, obs: Tensor, most: int) -> str:
    profile = hardware_profile()
    parts = {
        "hardware": profile["hardware"],
        "torch": profile["versions"]["torch"],
        "threads": most,
        "wait": os.environ.get("OMP_WAIT_POLICY", ""),
        "policy": config.policy.model_dump(mode="json"),
        "rows": list(obs.shape),
        "bptt": config.rule.bptt,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _read(path: Path | None) -> dict[str, Any]:
    """Read the stored thread choices of a file; empty if it is missing or invalid."""
    found: Any = None
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text()) if path is not None else None
    if not isinstance(found, dict):
        return {}
    return {
        key: value
        for key, value in found.items()
        if isinstance(value, dict)
        and all(isinstance(value.get(k), int) and 1 <= value[k] <= _MOST for k in ("rollout", "update"))
    }


def _text(choices: dict[str, Any]) -> bytes:
    return (json.dumps(choices, indent=1, sort_keys=True) + "\n").encode()


class StopFlag:
    """Stop flag: true once SIGTERM, SIGINT or SIGHUP arrived, or once `also()` returns True.

    A context manager: signal handlers are installed on entry and restored on exit. Python delivers signals to
    the main thread only, so in other threads only `also` is polled. The first signal restores the former
    handlers, so a second one still interrupts a stuck process.

    Args:
        also: Further stop condition.
        promise: Message about the work done before the process ends; printed on standard error at a signal.
    """

    def __init__(self, also: Callable[[], bool] | None = None, promise: str = "") -> None:
        self._also, self._promise = also, promise
        self._earlier: dict[int, Any] = {}
        self.signal_name: str | None = None
        """Name of the received signal; None before."""
        self._set = False

    def __call__(self) -> bool:
        """Return whether the run is to stop; once True it stays True."""
        if not self._set and self._also is not None and self._also():
            self._set = True
        return self._set

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._earlier[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(number).name
        self._set = True
        self._restore()
        if self._promise:
            # Not through Python's streams: the handler may have interrupted a write of theirs.
            with contextlib.suppress(OSError):
                os.write(2, f"\n{self.signal_name}: {self._promise}; once more ends it at once\n".encode())

    def _restore(self) -> None:
        while self._earlier:
            number, handler = self._earlier.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
