"""Endurance run: a learning, gated service beside a row of nights; growth of memory, descriptors, threads and files.

FOLDER/samples.jsonl    samples, a line each; the run goes on where it was interrupted, as another piece
FOLDER/service          Navi home of the environment server and the policy server
FOLDER/nights           Navi home of the nights, one process, whose clock the shim advances by a day a night
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from navi_core.errors import RunError, ServiceError
from navi_pipeline.bench.shim import Shim

Row = dict[str, Any]
_SAMPLE_SECONDS, _TURN_SECONDS = 10.0, 0.25
_WARM = {"decisions": 100_000, "nights": 15}
"""Warm-up of a piece, whose samples do not count: the buffer of experiences is full, every import was made."""
_PER = {"decisions": 100_000, "nights": 50}
"""Work that growth is stated for."""
_BLOCKS = 10
_DRONES = 8
_DAY = 86_400.0
_LEARNING = ("--learn", "--gate", "--scene", "apartment:0", "--set", "training.training_interval=2")


def run_endurance(
    folder: Path,
    *,
    decisions: int,
    nights: int,
    hours: float,
    progress: Callable[[str, float, float], None] = lambda *_: None,
) -> list[Row]:
    """Run a service and nights for a time, sample both, and return the growth of each process.

    Args:
        folder: Folder of homes and samples; samples of an interrupted run count.
        decisions: Decisions of the service, spread over the time.
        nights: Nights, spread likewise.
        hours: Wall time of the whole (h).
        progress: Called as progress(label, done, total) with seconds.

    Raises:
        RunError: A process ended by itself, a night failed, or the training of the first policy did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples = read_samples(folder)
    piece = 1 + max((sample["piece"] for sample in samples), default=0)
    _prepared(folder)
    before = {unit: max((sample["total"] for sample in samples if sample["unit"] == unit), default=0) for unit in _PER}
    seconds = 3600.0 * hours
    period = seconds / max(nights, 1)
    with closing(_Processes(folder, nights, period)) as processes, (folder / "samples.jsonl").open("a") as stream:
        began = time.monotonic()
        sampled = 0.0
        while (elapsed := time.monotonic() - began) < seconds or processes.nights_left():
            flown = processes.pace(decisions * elapsed / seconds)
            if elapsed - sampled >= _SAMPLE_SECONDS:
                sampled = elapsed
                counts = {"decisions": flown, "nights": processes.nights_done()}
                for sample in processes.samples(counts):
                    total = before[sample["unit"]] + sample["done"]
                    stream.write(json.dumps({"piece": piece, "at": round(elapsed, 1), **sample, "total": total}) + "\n")
                stream.flush()
                progress(f"{flown:,} decisions, {counts['nights']} nights", min(elapsed, seconds), seconds)
            time.sleep(_TURN_SECONDS)
    return growth(read_samples(folder))


def read_samples(folder: Path) -> list[Row]:
    """Load the samples of a folder; the last line of a killed run may be half."""
    rows = []
    with suppress(FileNotFoundError):
        for line in (folder / "samples.jsonl").read_text().splitlines():
            with suppress(ValueError):
                rows.append(json.loads(line))
    return rows


def growth(samples: Sequence[Row]) -> list[Row]:
    """Compute the growth of each process from its samples after the warm-up.

    The samples of a process are averaged in blocks of equal work, which are nearly independent; a line through the
    blocks of all pieces, each with a level of its own, gives the slope and its one-sided 95 % bound (Student's t).

    Returns:
        A row per process: process, unit, done, samples, memory_mb, growth (share of memory per `_PER` of its unit),
        upper (its bound), and the ranges of descriptors, threads and files.
    """
    rows = []
    for name in dict.fromkeys(sample["process"] for sample in samples):
        mine = [sample for sample in samples if sample["process"] == name]
        unit = mine[0]["unit"]
        warm = [sample for sample in mine if sample["done"] >= _WARM[unit]]
        row: Row = {
            "process": name,
            "unit": unit,
            "done": max(sample["total"] for sample in mine),
            "samples": len(warm),
        }
        fitted = _slope(warm) if len(warm) >= 4 * _BLOCKS else None
        if fitted is None:
            rows.append(
                row | {key: None for key in ("memory_mb", "growth", "upper", "descriptors", "threads", "files")}
            )
            continue
        level = float(np.mean([sample["memory_mb"] for sample in warm]))
        slope, upper = fitted
        spans = {key: _span([sample[key] for sample in warm]) for key in ("descriptors", "threads", "files")}
        rows.append(row | {"memory_mb": level, "growth": slope / level, "upper": upper / level, **spans})
    return rows


def _span(values: Sequence[int]) -> str:
    """Format the median of the first and of the last tenth of a series, and its largest value."""
    tenth = max(len(values) // 10, 1)
    return f"{np.median(values[:tenth]):.0f} → {np.median(values[-tenth:]):.0f}, at most {max(values)}"


def _slope(samples: Sequence[Row]) -> tuple[float, float] | None:
    """Return slope and upper 95 % bound of memory over work (MB per `_PER`); None with too few samples a piece."""
    from scipy.stats import t

    work, memory, levels = [], [], 0
    for piece in dict.fromkeys(sample["piece"] for sample in samples):
        mine = [sample for sample in samples if sample["piece"] == piece]
        blocks = min(_BLOCKS, len(mine) // 4)
        if blocks < 2:
            continue
        levels += 1
        for block in np.array_split(np.arange(len(mine)), blocks):
            work.append((levels, np.mean([mine[i]["done"] for i in block]) / _PER[mine[0]["unit"]]))
            memory.append((levels, np.mean([mine[i]["memory_mb"] for i in block])))
    x, y = (np.array([value for _, value in pairs]) for pairs in (work, memory))
    group = np.array([level for level, _ in work])
    for level in set(group.tolist()):
        x[group == level] -= x[group == level].mean()
        y[group == level] -= y[group == level].mean()
    freedom = len(x) - levels - 1
    if freedom < 1:
        return None
    slope = float(x @ y / (x @ x))
    error = float(np.sqrt(((y - slope * x) ** 2).sum() / freedom / (x @ x)))
    return slope, slope + float(t.ppf(0.95, freedom)) * error


def _prepared(folder: Path) -> None:
    """Train the policy that both homes begin with, in some seconds."""
    for home in ("service", "nights"):
        if not (folder / home / "models" / "registry.json").exists():
            command = [*_navi(), "train", "ppo", "--preset", "quick", "--scene", "apartment:0", "--steps", "256"]
            done = subprocess.run(command, env=_environment(folder / home), capture_output=True, text=True, check=False)
            if done.returncode:
                raise RunError(f"the training of the first policy ended with {done.returncode}: {done.stderr[-500:]}")


def _navi() -> list[str]:
    return [sys.executable, "-m", "navi_core.cli.main"]


def _environment(home: Path) -> dict[str, str]:
    return os.environ | {"NAVI_HOME": str(home)}


class _Processes:
    """Both servers and the process of the nights.

    Args:
        folder: As of `run_endurance`.
        nights: Number of nights in all.
        period: Seconds between two nights [s].
    """

    def __init__(self, folder: Path, nights: int, period: float) -> None:
        self._folder, self._nights, self._flown = folder, nights, 0
        self._running: dict[str, subprocess.Popen[Any]] = {}
        try:
            self._start(period)
        except BaseException:
            self.close()
            raise

    def _start(self, period: float) -> None:
        folder, nights = self._folder, self._nights
        home, free = folder / "service", "tcp://127.0.0.1:0"
        drones = ("environment", "--scene", "apartment:0", "--like", "v001", "--sessions", str(_DRONES))
        facts = self._server("environment", home, *drones, "--pub", free, "--rep", free)
        wired = ("--sub", facts["observations"], "--step-endpoint", facts["step requests"], "--pub", free)
        self._page = self._server("serve", home, "serve", "v001", *wired, *_LEARNING)["pages"]
        self._flying = True
        worker = [sys.executable, "-m", "navi_pipeline.bench.endurance", str(folder), str(nights), str(period)]
        self._first = self._counted()
        with (folder / "nights.log").open("a") as log:
            self._running["nights"] = subprocess.Popen(
                worker, env=_environment(folder / "nights"), stdout=log, stderr=log
            )

    def _server(self, name: str, home: Path, *words: str) -> dict[str, str]:
        with (self._folder / f"{name}.log").open("a") as log:
            process = self._running[name] = subprocess.Popen(
                [*_navi(), *words, "--http", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, stderr=log, text=True,
                env=_environment(home),
            )  # fmt: skip
        text = ""
        for line in process.stdout or ():
            text += line
            if line.startswith("}"):
                facts: dict[str, str] = json.loads(text)
                return facts
        raise ServiceError(f"{name} did not start; see {self._folder / name}.log")

    def pace(self, wanted: float) -> int:
        """Let the environment fly or stand still, so that `wanted` decisions are flown by now; return the number."""
        for name, process in self._running.items():
            if process.poll() is not None and not (name == "nights" and process.returncode == 0):
                raise RunError(f"{name} ended with exit code {process.returncode}; see {self._folder}/{name}.log")
        self._flown = self._decisions()
        if (flying := self._flown < wanted) != self._flying:
            self._running["environment"].send_signal(signal.SIGCONT if flying else signal.SIGSTOP)
            self._flying = flying
        return self._flown

    def _decisions(self) -> int:
        try:
            with urlopen(f"{self._page}/status", timeout=10) as answer:
                return int(json.load(answer)["metrics"].get("decisions_total", 0))
        except OSError:
            return self._flown

    def nights_done(self) -> int:
        """Return the number of nights of this piece."""
        return self._counted() - self._first

    def _counted(self) -> int:
        return len(list((self._folder / "nights" / "reports").glob("night-*.md")))

    def nights_left(self) -> bool:
        """Return whether the process of the nights still has some to do."""
        return self._running["nights"].poll() is None

    def samples(self, counts: dict[str, int]) -> Iterator[Row]:
        """Yield one sample of each process that runs."""
        for name, process in self._running.items():
            unit = "nights" if name == "nights" else "decisions"
            home = self._folder / ("nights" if name == "nights" else "service")
            with suppress(OSError, IndexError):
                place = Path(f"/proc/{process.pid}")
                status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
                yield {
                    "process": name, "unit": unit, "done": counts[unit],
                    "memory_mb": int(status["VmRSS"].split()[0]) / 1024,
                    "descriptors": len(os.listdir(place / "fd")),
                    "threads": int(status["Threads"]),
                    "files": sum(len(files) for _, _, files in os.walk(home)),
                }  # fmt: skip

    def close(self) -> None:
        """End all processes in order, the environment last."""
        for name in ("nights", "serve", "environment"):
            if (process := self._running.get(name)) is None:
                continue
            if name == "environment":
                process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def fly_nights(folder: Path, nights: int, period: float) -> None:
    """Do nights with made-up training, one a period; the clock of this process is a day later each time.

    All but the training is a night's own work: preflight, evaluation, benchmarks, promotion, summary, compaction.
    """
    from navi_pipeline.lib.nightly.night import Night, nightly_config
    from navi_pipeline.lib.nightly.preflight import preflight
    from navi_pipeline.lib.nightly.stages import benchmarks, evaluation, promotion, write_summary

    shim = Shim(folder / "clock.page", folder / "none")
    if "SHIM_PAGE" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **shim.variables})
    began = time.monotonic()
    small = ["bench_steps=2", "bench_repeats=1", "bench_scenes=[apartment]", "compact_segments=200", "eval_steps=20"]
    done = len(list((folder / "nights" / "reports").glob("night-*.md")))
    for number in range(done, nights):
        time.sleep(max(began + (number - done) * period - time.monotonic(), 0))
        shim.shift_clock((number + 1) * _DAY)
        name = f"{datetime.now(UTC):%Y-%m-%d}-training"
        night = Night(nightly_config(minutes=1, assignments=small), name, report=lambda _: None)
        stages = {"preflight": preflight, "training": made_up_training, "evaluation": evaluation,
                  "benchmarks": benchmarks, "promotion": promotion}  # fmt: skip
        for stage, work in stages.items():
            night.run(stage, work)
        write_summary(night)
        print(f"{name}: {night.verdict}", *(f"{g.name}: {g.detail}" for g in night.failed), sep="; ", flush=True)  # noqa: T201
        if night.verdict == "failed":
            raise RunError(f"night {name} failed")


def made_up_training(night: Any) -> tuple[list[Any], dict[str, Any]]:  # noqa: ANN401 (a `Night`, imported in its process)
    """Write the results of a training that did not run: other weights, a version, rows of 20 updates."""
    from navi_core.models import Registry, load_checkpoint, record_registry, save_checkpoint
    from navi_core.models.lineage import weights_hash
    from navi_core.record import MetricLog, navi_home, outbox_path, row_context
    from navi_core.record.metric_log import utc_time
    from navi_pipeline.lib.warehouse.warehouse import Warehouse

    registry, run_id = Registry(navi_home() / "models"), f"nightly-{night.name}-madeup"
    start = night.data("preflight").get("start", "v001")
    entry = registry.resolve("latest" if start == "none" else start)
    before = load_checkpoint(entry.path)
    random = np.random.default_rng(before.step_id)
    state = {name: tensor.clone() for name, tensor in before.policy_state.items()}
    for tensor in state.values():
        if tensor.is_floating_point():
            tensor += 1e-3 * random.standard_normal()
    steps = before.step_id + 20 * 1024
    made = replace(
        before, policy_state=state, run_id=run_id, step_id=steps, weights_hash=weights_hash(state),
        created_at=utc_time(), parent_checkpoint=str(entry.path),
    )  # fmt: skip
    file = save_checkpoint(navi_home() / "runs" / run_id / "checkpoints" / f"step-{steps:012d}.pt", made)
    with MetricLog(outbox_path(), run_id, row_context() | {"seed": 0, "config_hash": "made-up"}) as log:
        log.row("runs", {"started_at": utc_time(), "algorithm": "ppo"})
        for step in range(before.step_id + 1024, steps + 1, 1024):
            log.scalars(step, {f"metric_{i}": float(random.standard_normal()) for i in range(40)} | {"reward_ema": 0.1})
            log.flush()
    version = registry.register(file, parents=[entry.version], metrics={"made_up": 1.0})
    record_registry(registry)
    Warehouse().ingest()
    result = {"run_id": run_id, "checkpoint": str(file), "version": version, "steps": steps}
    return [], result | {"steps_per_second": 1000.0, "settings": {}}


if __name__ == "__main__":
    fly_nights(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
