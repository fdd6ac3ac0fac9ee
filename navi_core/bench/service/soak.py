"""Soak test of continuous training: memory, versions, consistent counts, and the change of the live reward.

The environment runs in a child process; actor and trainer run in this one, as in `navi serve --learn`.
"""

import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from navi_core.bench.report import Option, Progress, Report, Row, figure, report, sizes
from navi_core.bench.service.round_trip import EnvironmentProcess
from navi_core.bench.timing import resident_bytes
from navi_core.config import ActorConfig, ContinuousTrainingConfig, EnvConfig, GateConfig, PolicyConfig, parse_config
from navi_core.errors import ConfigError, ServiceError
from navi_core.policy import build_policy
from navi_core.presets import parse_sections
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene
from navi_core.service.actor.server import ActorServer
from navi_core.service.gate import RolloutGate
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.policies.served_model import EagerRunner, ServedModel, load_model, training_of
from navi_core.service.timed_lock import LONG, TimedLock, settle
from navi_core.service.wire import StepResult
from navi_core.world import Field

_PATIENCE = 120.0
_LOOKS = 200


class _Listening(FlightLearning):
    """Continuous training in flight that also records the mean live reward of each episode."""

    def __init__(self, *args: Any) -> None:  # noqa: ANN401 (arguments of `FlightLearning`)
        super().__init__(*args)
        self.rewards = array("d")
        self._lengths: Counter[int] = Counter()

    def complete(self, result: StepResult) -> None:
        self._lengths[result.env_id] += 1
        if result.done or result.truncated:
            self.rewards.append(result.episode_return / self._lengths.pop(result.env_id))
        super().complete(result)


# More than 60 lines: one measurement, its arguments and its row.
def run_soak(
    model: ServedModel,
    scene: Scene,
    *,
    decisions: int = 200_000,
    sessions: int = 16,
    env: EnvConfig | None = None,
    vocabulary: Mapping[str, int] | None = None,
    training: ContinuousTrainingConfig | None = None,
    gate: GateConfig | None = None,
    seed: int = 0,
    progress: Callable[[str, float, float], None] = lambda *_: None,
) -> Row:
    """Run the soak test: fly with a served model and train it continuously.

    Args:
        model: Served model, computed eagerly.
        scene: Scene of the environment.
        decisions: Number of decisions, summed over drones.
        sessions: Drones.
        env: Dynamics, rewards and episodes; its bins are those of the model.
        vocabulary: Semantic ids by name, those that the model knows.
        training: Settings of the trainer.
        gate: Settings of the safety gate; None sends every action.
        seed: Seed of sampled actions and minibatches.
        progress: Called as progress(version, decisions done, decisions in all).

    Returns:
        A row with the keys:
        decisions: Number of decisions flown.
        gated: Whether the decisions passed the gate.
        wait: Share that hovered because of the gate's WAIT.
        slower: Share that was flown slower than it was drawn.
        seconds: Wall time [s].
        updates: Number of model versions produced.
        errors: Number of failed updates.
        consistent: Versions, updates, samples and the buffer's counts agree with one another.
        memory_mb: Resident memory at the end [MB].
        growth_mb: Growth of memory during the second half of the decisions [MB].
        trainer_share: Processor time of the trainer's thread over wall time.
        lock_p99_ms: 99th percentile of how long the experience buffer is locked, waiting included [ms].
        lock_max_ms: Longest [ms].
        lock_work_ms: Maximum processor time of a lock holder [ms].
        lock_long: Holders, of which there are two a decision, who spent more than 1 ms.
        idle_work_ms: Most processor time of an empty loop [ms]: one follows every holder, in the actor's thread, of
            their mean work; it measures interrupts and other processes on the same cores.
        idle_long: Empty loops of more than 1 ms.
        buffer_mb: Memory of the buffer at the end [MB].
        recorded_bytes: Mean size of a recorded experience on disk; NaN if there is none.
        episodes: Number of ended episodes.
        reward_first: Mean live reward of a decision in the first fifth of the episodes; NaN with fewer than ten.
        reward_last: The same for the last fifth.
        gain: Difference of the two.
        gain_error: Half of its 95 % interval (Welch 1947); the sample is of episodes.

    Raises:
        ServiceError: The environment does not start, or the service stands still.
        ConfigError: The model cannot be trained on.
    """
    config = model.runner.config
    settings = training or ContinuousTrainingConfig()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        scene.save(folder / "scene.gmdag")
        size = {"azimuth_bins": config.azimuth_bins, "elevation_bins": config.elevation_bins}
        flown = (env or EnvConfig()).model_copy(update=size)
        environment = EnvironmentProcess(folder / "scene.gmdag", flown, sessions, 1, vocabulary)
        with closing(environment):
            actor_config = environment.actor_config(max_sessions=sessions, sample=True, seed=seed)
            judge = None
            if gate is not None:
                judge = RolloutGate(Field([scene], threads=1, vocabulary=vocabulary), flown, gate, sessions)
            learning = _Listening(model, settings, judge, seed, folder / "outbox")
            with closing(ActorServer(model, actor_config, gate=judge, learning=learning)) as actor:
                settle()
                return _fly(actor, learning, folder / "outbox", decisions, progress)


class _Idle:
    """Control measurement: empty loops as long as a lock holder's work, to measure the machine's interrupts.

    Attributes:
        longest: Maximum processor time of a loop [s].
        long: Number of loops longer than `LONG`.
    """

    def __init__(self) -> None:
        self.longest, self.long, self._followed = 0.0, 0, 0
        self._turn = min(_turned(10_000) for _ in range(20)) / 10_000

    def follow(self, lock: TimedLock) -> None:
        """Run one empty loop of the mean work for every new lock holder."""
        holders = lock.holders
        for _ in range(holders - self._followed):
            took = _turned(round(lock.work / holders / self._turn))
            self.longest = max(self.longest, took)
            self.long += took > LONG
        self._followed = holders


def _turned(turns: int) -> float:
    start = time.thread_time()
    for _ in range(turns):
        pass
    return time.thread_time() - start


def _fly(
    actor: ActorServer,
    learning: _Listening,
    outbox: Path,
    decisions: int,
    progress: Callable[[str, float, float], None],
) -> Row:
    start, half = time.perf_counter(), float("nan")
    lock, idle = learning.buffer.lock, _Idle()
    for look in range(1, _LOOKS + 1):
        goal, until = decisions * look // _LOOKS, time.monotonic() + _PATIENCE
        while actor.decisions < goal:
            actor.turn(100)
            idle.follow(lock)
            if time.monotonic() > until:
                raise ServiceError(f"the service stands still at {actor.decisions} decisions; see its log")
        if look == _LOOKS // 2:
            half = resident_bytes() / 1e6
        progress(f"version {learning.trainer.model_version}", actor.decisions, decisions)
    seconds = time.perf_counter() - start
    trainer, memory = learning.trainer, resident_bytes() / 1e6
    trainer.stop()
    learning.record.flush(now=True)
    first, last, error = _ends(np.array(learning.rewards))
    holds = lock.holds() * 1e3
    shares = {name: actor.metrics.counter(f"gate_{name}_total") / actor.decisions for name in ("wait", "slowed")}
    return {
        "decisions": actor.decisions,
        "gated": learning.gate is not None,
        "wait": shares["wait"],
        "slower": shares["slowed"],
        "seconds": seconds,
        "updates": trainer.model_version,
        "errors": trainer.metrics.errors,
        "consistent": _consistent(learning),
        "memory_mb": memory,
        "growth_mb": memory - half,
        "trainer_share": trainer.cpu_seconds / seconds,
        "lock_p99_ms": float(np.quantile(holds, 0.99)),
        "lock_max_ms": float(holds.max()),
        "lock_work_ms": lock.longest_work * 1e3,
        "lock_long": lock.long,
        "idle_work_ms": idle.longest * 1e3,
        "idle_long": idle.long,
        "buffer_mb": learning.buffer.nbytes / 1e6,
        "recorded_bytes": _recorded_bytes(outbox),
        "episodes": len(learning.rewards),
        "reward_first": first,
        "reward_last": last,
        "gain": last - first,
        "gain_error": error,
    }


def _recorded_bytes(outbox: Path) -> float:
    """Return the mean size of a row of `service_experiences` on disk [bytes], file headers included."""
    files = list(outbox.glob("*service_experiences.ndjson"))
    rows = sum(file.read_bytes().count(b"\n") - 1 for file in files)
    return sum(file.stat().st_size for file in files) / rows if rows else float("nan")


def _consistent(learning: FlightLearning) -> bool:
    """Check that versions, updates and the buffer's counts agree."""
    trainer, counts, status = learning.trainer, learning.buffer.get_stats(), learning.status()
    kept = counts["completed_count"] + counts["pending_count"] + counts["total_evicted"] + counts["total_refused"]
    kept += counts["total_unlearned"]
    return (
        trainer.model_version == trainer.metrics.total_steps == status["training"]["model_version"]
        and trainer.serving.version <= trainer.model_version
        and trainer.metrics.total_samples <= counts["total_sampled"]
        # A decision whose answer was lost is pending no more when the drone's next one comes.
        and kept <= counts["total_added"]
        and counts["completed_count"] <= counts["capacity"]
    )


def _ends(rewards: np.ndarray) -> tuple[float, float, float]:
    """Return mean rewards of the first and last fifth, and the half-width of the 95 % interval of their difference."""
    from scipy.stats import ttest_ind

    fifth = len(rewards) // 5
    if fifth < 2:
        return float("nan"), float("nan"), float("nan")
    first, last = rewards[:fifth], rewards[-fifth:]
    interval = ttest_ind(last, first, equal_var=False).confidence_interval(0.95)
    return float(first.mean()), float(last.mean()), float(interval.high - interval.low) / 2


def soak(
    scene: Annotated[str, Option(help="Scene of the drones.", metavar="S")] = "apartment:0",
    model: Annotated[str | None, Option(help="Checkpoint, version or alias; by default a drawn policy.")] = None,
    size: Annotated[str, Option(help="Azimuth and elevation bins of a drawn policy.", metavar="AZxEL")] = "64x16",
    decisions: Annotated[int, Option(min=100, help="Decisions, summed over drones.")] = 200_000,
    sessions: Annotated[int, Option(min=1, max=4096, help="Drones.")] = 16,
    gate: Annotated[bool, Option(flag="--gate", help="Fly behind the gate.")] = False,
    seed: Annotated[int, Option(help="Seed of weights, draws and samples.")] = 0,
    assign: Annotated[list[str] | None, Option(flag="--set", help="A setting, training.learning_rate=1e-4.")] = None,
    *,
    progress: Progress,
) -> Report:
    """Benchmark continuous training in flight (soak test)."""
    given = parse_sections(assign, ("training", "gate"), "training.learning_rate=1e-4")
    if "gate" in given and not gate:
        raise ConfigError("--set gate.… has no effect without a gate; add --gate")
    gate_config = parse_config(GateConfig, given.get("gate", {})) if gate else None
    torch.set_num_threads(1)
    ((azimuth, elevation),) = sizes([size])
    (loaded,) = load_scenes([scene], 512)
    if model is None:
        network = {"encoder": "ring_cnn", "core": "gru", "azimuth_bins": azimuth, "elevation_bins": elevation}
        runner = EagerRunner(build_policy(parse_config(PolicyConfig, network), seed), "drawn")
        served, env, vocabulary = ServedModel(runner.name, runner, None, Path()), EnvConfig(), None
    else:
        served = load_model(model, ActorConfig(sample=True, follow=None))
        env, vocabulary = training_of(str(served.path))
    row = run_soak(
        served, loaded, decisions=decisions, sessions=sessions, env=env, vocabulary=vocabulary,
        training=parse_config(ContinuousTrainingConfig, given.get("training", {})), gate=gate_config, seed=seed,
        progress=progress,
    )  # fmt: skip
    return report(
        f"soak, {served.name} in {scene}",
        [row],
        {
            "decisions": figure("decisions"),
            "WAIT, slower": lambda row: f"{row['wait']:.1%}, {row['slower']:.1%}" if row["gated"] else "no gate",
            "seconds": figure("seconds", ".0f"),
            "versions": figure("updates"),
            "errors": figure("errors"),
            "counts consistent": lambda row: "yes" if row["consistent"] else "no",
            "memory [MB]": figure("memory_mb", ".0f"),
            "grown in the second half [MB]": figure("growth_mb", ".1f"),
            "trainer's share of a core": figure("trainer_share", ".1%"),
            "lock held, p99 [ms]": figure("lock_p99_ms", ".3f"),
            "lock held, longest [ms]": figure("lock_max_ms", ".3f"),
            "a holder's work, longest [ms]": figure("lock_work_ms", ".3f"),
            "holders beyond 1 ms": figure("lock_long"),
            "an empty loop's work, longest [ms]": figure("idle_work_ms", ".3f"),
            "empty loops beyond 1 ms": figure("idle_long"),
            "buffer [MB]": figure("buffer_mb", ".1f"),
            "recorded [bytes]": figure("recorded_bytes", ".0f"),
            "episodes": figure("episodes"),
            "live reward, first fifth": figure("reward_first", ".4f"),
            "live reward, last fifth": figure("reward_last", ".4f"),
            "gain, 95 %": _gain,
        },
    )


def _gain(row: Mapping[str, Any]) -> str:
    """Format the reward gain of learning with its 95 % confidence interval; a dash if too few episodes ended."""
    gain, error = row["gain"], row["gain_error"]
    return f"{gain:+.4f} ± {error:.4f}" if gain == gain and error == error else "–"
