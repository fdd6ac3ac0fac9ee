"""Benchmark of the service's round trip: environment server in a child process, actor server here, over ZeroMQ.

A round trip is the time between two decisions for the same drone: request, flight, observation, decision. Cases take
turns in one run, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from navi_core.bench.report import Column, Option, Report, Row, Size, figure, report, sizes
from navi_core.config import (
    ActorConfig,
    ContinuousTrainingConfig,
    EnvConfig,
    EnvironmentConfig,
    PolicyConfig,
    parse_config,
)
from navi_core.errors import ConfigError, ServiceError
from navi_core.kernels.rays.cuda import cuda_device
from navi_core.learn.run.process import torch_threads
from navi_core.models import export_policy, load_exported
from navi_core.models.lineage import weights_hash
from navi_core.policy import build_policy
from navi_core.record import navi_home
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene, load_gmdag
from navi_core.service.actor.server import ActorServer
from navi_core.service.environment.server import EnvironmentServer
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.policies.served_model import EagerRunner, ProgramRunner, Runner, ServedModel
from navi_core.service.timed_lock import settle
from navi_core.world import Field

_ANY = "tcp://127.0.0.1:0"
_PATIENCE = 120.0


@dataclass(frozen=True)
class ServiceCase:
    """Configuration of the round-trip benchmark: drones, alternating groups, threads of each server, training.

    With one group the servers alternate; with two groups both work at the same time.
    """

    sessions: int
    groups: int = 1
    threads: int = 1
    learns: bool = False


def service_cases(sessions: Sequence[int], threads: Sequence[int], learns: bool) -> list[ServiceCase]:
    """Build the benchmark's configurations: each number of drones with each total number of threads.

    With two or more threads each server gets half of them, and several drones form two groups, so that both servers are
    busy.
    """
    cases = [ServiceCase(n, groups=min(n, t, 2), threads=max(1, t // 2)) for t in threads for n in sessions]
    return cases + ([ServiceCase(sessions[0], learns=True)] if learns else [])


# More than 60 lines: one measurement, its arguments and its row.
def run_service(
    cases: Sequence[ServiceCase],
    scene: Scene,
    config: PolicyConfig,
    *,
    runtime: str = "onnx",
    device: str = "cpu",
    rounds: int = 10,
    decisions: int = 200,
) -> Iterator[Row]:
    """Run the round-trip benchmark, its configurations in turns; yield one row per configuration.

    Args:
        cases: Cases to measure; the first one is the reference of the others.
        scene: Scene of the environment.
        config: Network of the policy, with random weights.
        runtime: eager or onnx; a case that learns is computed eagerly.
        device: Device of an eager policy: cpu or cuda.
        rounds: Turns of each case.
        decisions: Minimum number of decisions of each turn.

    Yields:
        Rows with the keys:
        sessions: Drones.
        groups: Parts that take turns.
        threads: Threads of each server.
        learns: Whether continuous training ran in the background.
        decisions: Number of measured decisions.
        p50_ms: Median round trip [ms].
        p99_ms: 99th percentile of it [ms].
        inference_p50_ms: Median of the decision alone [ms].
        rate: Decisions a second, summed over drones.
        cpu_ms: CPU time of both processes for one decision [ms].
        times_one: `rate` over that of the first case.
        times_one_cpu: CPU time of the first case's decision over this one's.
        lock_p50_ms: Median time that the experience buffer is locked by a holder, waiting included [ms]; NaN without.
        lock_p99_ms: 99th percentile of it [ms].
        lock_max_ms: Longest [ms].
        lock_work_ms: Maximum processor time of a lock holder [ms].

    Raises:
        ServiceError: An environment does not start.
        ConfigError: A program on a GPU, or no GPU.
    """
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} is not known; allowed: cpu, cuda")
    if device == "cuda":
        if runtime != "eager":
            raise ConfigError(f"{runtime} runs on the CPU; measure device {device} with the runtime eager")
        cuda_device(torch.device(device))
    with ExitStack() as stack, torch_threads(max(case.threads for case in cases)):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scene.save(folder / "scene.gmdag")
        # The environments start together, while the programs are made.
        env = EnvConfig(azimuth_bins=config.azimuth_bins, elevation_bins=config.elevation_bins)
        environments = [
            stack.enter_context(closing(EnvironmentProcess(folder / "scene.gmdag", env, case.sessions, case.threads)))
            for case in cases
        ]
        stages = [
            stack.enter_context(closing(_Stage(case, environment, _runner(case, config, runtime, device), folder)))
            for case, environment in zip(cases, environments)
        ]
        settle()
        for stage in stages:
            stage.fly(max(20, decisions // 4))
            stage.forget()
        for _ in range(rounds):
            for stage in stages:
                stage.fly(decisions)
        rows = [stage.row() for stage in stages]
        for row in rows:
            ratios = {"times_one": row["rate"] / rows[0]["rate"], "times_one_cpu": rows[0]["cpu_ms"] / row["cpu_ms"]}
            yield row | ratios


class EnvironmentProcess:
    """Environment server in a child process, from its start to `close`.

    Args:
        scene: A `.gmdag` file.
        env: Observation, dynamics and rewards.
        sessions: Drones.
        threads: Threads of the server.
        vocabulary: Semantic ids by name.
    """

    def __init__(
        self, scene: Path, env: EnvConfig, sessions: int, threads: int, vocabulary: Mapping[str, int] | None = None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        arguments = (there, str(scene), env, sessions, threads, vocabulary)
        self._process = context.Process(target=serve_environment, args=arguments, daemon=True)
        self._process.start()

    def actor_config(self, **settings: Any) -> ActorConfig:  # noqa: ANN401 (settings of `ActorConfig`)
        """Wait for the server and return the configuration of an actor that connects to it.

        Raises:
            ServiceError: The server does not start.
        """
        if not self._pipe.poll(_PATIENCE):
            raise ServiceError(f"the environment did not start within {_PATIENCE:g} s")
        publish, answer = self._pipe.recv()
        return ActorConfig(publish=_ANY, subscribe=(publish,), step_endpoint=answer, follow=None, **settings)

    def cpu_seconds(self) -> float:
        """Request the CPU time of the server process [s]."""
        self._pipe.send("cpu")
        return float(self._pipe.recv())

    def close(self) -> None:
        """Stop the server process."""
        if self._process.is_alive():
            self._pipe.send("stop")
        self._process.join(10)


class _Stage:
    """Benchmark stage: environment server in a child process and actor server in this one, with measurements."""

    def __init__(self, case: ServiceCase, environment: EnvironmentProcess, runner: Runner, folder: Path) -> None:
        self.case, self._environment = case, environment
        model = ServedModel(runner.name, runner, None, folder)
        settings = environment.actor_config(max_sessions=case.sessions, groups=case.groups, sample=case.learns)
        outbox = folder / "outbox"
        self._learning = FlightLearning(model, ContinuousTrainingConfig(), None, outbox=outbox) if case.learns else None
        self.actor = ActorServer(model, settings, learning=self._learning)
        self.forget()

    def close(self) -> None:
        """Close the actor server."""
        self.actor.close()

    def forget(self) -> None:
        """Reset the measurements."""
        self._trips: list[float] = []
        self._inference: list[float] = []
        self._wall = self._cpu = 0.0
        self._decisions = 0

    def fly(self, decisions: int) -> None:
        """Run the actor server until `decisions` more decisions are made, and measure them."""
        actor, goal = self.actor, self.actor.decisions + decisions
        last: dict[int, float] = {}
        until = time.monotonic() + _PATIENCE
        cpu, start, begun = self._cpu_now(), time.perf_counter(), actor.decisions
        while actor.decisions < goal:
            before = actor.decisions
            actor.turn(100)
            now = time.perf_counter()
            if actor.decisions > before:
                for session in actor.sessions:
                    if session.request is not None and session.requested_at != last.get(-1 - session.env_id):
                        if session.env_id in last:
                            self._trips.append(now - last[session.env_id])
                        last[session.env_id], last[-1 - session.env_id] = now, session.requested_at
            if time.monotonic() > until:
                raise ServiceError(f"no {decisions} decisions within {_PATIENCE:g} s")
        self._wall += time.perf_counter() - start
        self._cpu += self._cpu_now() - cpu
        self._decisions += actor.decisions - begun
        self._inference = actor.metrics.recent("inference_ms")

    def row(self) -> Row:
        """Summarise the measurements as a row, without the ratios to the first case."""
        trips = np.array(self._trips) * 1e3
        lock = None if self._learning is None else self._learning.buffer.lock
        holds = np.full(1, np.nan) if lock is None else lock.holds() * 1e3
        return {
            "sessions": self.case.sessions,
            "groups": self.case.groups,
            "threads": self.case.threads,
            "learns": self.case.learns,
            "decisions": self._decisions,
            "p50_ms": float(np.quantile(trips, 0.5)),
            "p99_ms": float(np.quantile(trips, 0.99)),
            "inference_p50_ms": float(np.median(self._inference)),
            "rate": self._decisions / self._wall,
            "cpu_ms": 1e3 * self._cpu / self._decisions,
            "lock_p50_ms": float(np.quantile(holds, 0.5)),
            "lock_p99_ms": float(np.quantile(holds, 0.99)),
            "lock_max_ms": float(holds.max()),
            "lock_work_ms": float("nan") if lock is None else lock.longest_work * 1e3,
        }

    def _cpu_now(self) -> float:
        """Return the summed CPU time of both processes [s]."""
        return time.process_time() + self._environment.cpu_seconds()


def _runner(case: ServiceCase, config: PolicyConfig, runtime: str, device: str) -> Runner:
    policy = build_policy(config).eval()
    if runtime == "eager" or case.learns:
        return EagerRunner(policy, "eager", "cpu" if case.learns else device)
    rows = -(-case.sessions // case.groups)
    # Making a program and flying it beside the policy takes longer than all measurements: the next run finds it.
    file = navi_home() / "programs" / f"{weights_hash(policy.state_dict())[:16]}-{rows}-1-latent.onnx"
    if not file.is_file():
        export_policy(policy, file, kind=runtime, rows=rows)
    return ProgramRunner({rows: load_exported(file, threads=case.threads)}, runtime)


def serve_environment(
    pipe: Connection,
    scene: str,
    env: EnvConfig,
    sessions: int,
    threads: int,
    vocabulary: Mapping[str, int] | None = None,
) -> None:
    """Entry point of the child process: run an environment server until the pipe receives stop."""
    torch.set_num_threads(threads)
    config = EnvironmentConfig(publish=_ANY, answer=_ANY, sessions=sessions)
    field = Field([load_gmdag(scene)], threads=threads, vocabulary=vocabulary)
    server = EnvironmentServer(field, env, config)
    pipe.send((server.publisher.endpoint, server.answer_endpoint))

    def stopped() -> bool:
        while pipe.poll():
            if pipe.recv() != "cpu":
                return True
            pipe.send(time.process_time())
        return False

    settle()
    server.run(stopped)


def service(
    scene: Annotated[str, Option(help="Scene of the drones.", metavar="S")] = "apartment:0",
    size: Size = "256x48",
    encoder_backend: Annotated[str, Option(help="rayvit, spherical_cnn, ring_cnn or user-defined.")] = "rayvit",
    temporal_core: Annotated[str, Option(help="mamba2, gru, mingru, mambapy or user-defined.")] = "mamba2",
    runtime: Annotated[str, Option(help="onnx or eager.")] = "onnx",
    device: Annotated[str, Option(help="cpu, or cuda with the runtime eager.")] = "cpu",
    sessions: Annotated[list[int] | None, Option(help="Drones; may be repeated, the first is the peer.")] = None,
    threads: Annotated[list[int] | None, Option(help="Threads of both servers; may be repeated.")] = None,
    learn: Annotated[bool, Option(flag="--learn", help="Also measure with training in the background.")] = False,
    rounds: Annotated[int, Option(min=1, help="Turns of each case.")] = 6,
    decisions: Annotated[int, Option(min=1, help="Decisions of each turn.")] = 200,
) -> Report:
    """Benchmark round trips between actor and environment servers."""
    ((azimuth, elevation),) = sizes([size])
    network = {"encoder": encoder_backend, "core": temporal_core}
    config = parse_config(PolicyConfig, network | {"azimuth_bins": azimuth, "elevation_bins": elevation})
    (loaded,) = load_scenes([scene], 512)
    cases = service_cases(sessions or [1, 16], threads or [1, 2], learn)
    measured = run_service(cases, loaded, config, runtime=runtime, device=device, rounds=rounds, decisions=decisions)
    columns: dict[str, Column] = {
        "drones": figure("sessions"),
        "parts": figure("groups"),
        "threads each": figure("threads"),
        "learns": lambda row: "yes" if row["learns"] else "no",
        "p50 [ms]": figure("p50_ms"),
        "p99 [ms]": figure("p99_ms"),
        "inference [ms]": figure("inference_p50_ms"),
        "per s": figure("rate", ".0f"),
        "CPU [ms]": figure("cpu_ms"),
        "× one": figure("times_one"),
        "× one, CPU": figure("times_one_cpu"),
    }
    if learn:
        columns["buffer lock p50, p99, max, work [ms]"] = _lock
    title = f"{runtime} on {device}, {encoder_backend} + {temporal_core}, {size}"
    return report(title, list(measured), columns, threads=max(threads or [1, 2]))


def _lock(row: Mapping[str, Any]) -> str:
    """Format the lock times of the experience buffer; empty without training."""
    parts = (row[f"lock_{name}_ms"] for name in ("p50", "p99", "max", "work"))
    return ", ".join(f"{part:.3f}" for part in parts) if row["learns"] else ""
