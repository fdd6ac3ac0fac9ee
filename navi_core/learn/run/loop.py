"""Training run loop: collect → shape → update → record → checkpoint.

On CPU a resumed run continues bit for bit as if it had never stopped,
because the checkpoint holds everything the next rollout depends on.
"""

import copy
import logging
from collections.abc import Callable
from pathlib import Path

import torch

from navi_core.config import REWARD_TERMS, TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.compiled_ppo import CompiledCollector, CompiledPPOLearner, runs_compiled
from navi_core.learn.algorithms.dqn import DQNLearner
from navi_core.learn.algorithms.gradient_steps import UpdateStats
from navi_core.learn.algorithms.registry import FollowsEpisodes, KeepsData, TakesVocabulary, build_learner
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.collector import COLLECTOR_METRICS, Collector, RolloutStats
from navi_core.learn.rollout.execution import check_execution, use_precision
from navi_core.learn.run.checkpoints import checkpoint_path
from navi_core.learn.run.monitor import RunWatch
from navi_core.learn.run.process import StopFlag, Threads, choose_threads
from navi_core.learn.run.records import TrainResult, run_device
from navi_core.learn.run.session import RunSession, carry_out
from navi_core.models import Checkpoint, add_scenes, corpus_of
from navi_core.policy import RewardShaper, build_policy
from navi_core.record import MetricLog, RunDirectory, StageTimer
from navi_core.record.events import EventBus, RolloutCollected
from navi_core.world import Environment, Field, NavigationEnv

_LOG = logging.getLogger("navi.learn")


# Longer than 60 lines: half of them document the arguments.
def train(
    config: TrainConfig,
    run: RunDirectory | None,
    *,
    field: Field | None = None,
    env: Environment | None = None,
    stop: Callable[[], bool] | None = None,
    events: EventBus | None = None,
    fresh: bool = False,
    initial: Path | None = None,
    log: MetricLog | None = None,
    workers: Workers = ALONE,
    watch: Callable[[Environment], Environment] | None = None,
) -> TrainResult:
    """Run training until `total_steps` or a stop, resuming from the run's last good checkpoint.

    Args:
        config: The run's configuration.
        run: The run's open directory; None in all processes but the first.
        field: Scenes to fly in; a `NavigationEnv` of this process's rows is built over them.
        env: An environment of this process's rows instead of a field (reference tasks).
        stop: Called before every decision; also SIGTERM and SIGINT stop a run in the main thread. A stopped
            run drops the rollout it is in and keeps a checkpoint of the state before it. Several processes
            ask between updates alone, where they can agree.
        events: Event bus of this process, to which the run publishes.
        fresh: Ignore the checkpoints of the run directory.
        initial: A checkpoint whose weights a new run starts from; a resumed run ignores it.
        log: Metric log; by default the run's, which writes to the outbox of `$NAVI_HOME`.
        workers: Processes that share the run's rows.
        watch: Wraps the environment, for instance to publish it to viewers.

    Raises:
        ConfigError: Neither or both of `field` and `env` are given, or the device cannot do what is asked.
        CheckpointError: A checkpoint is of another encoder, core or number of rows.
        NonFiniteError: NaN or Inf appeared; the last good checkpoint is kept.
        RecordError: Rows could not be made durable.
    """
    if (field is None) == (env is None):
        raise ConfigError("train needs either field= (a world.Field over the training scenes) or env=")
    if (run is not None) != workers.first:
        raise ConfigError("the first process of a run has its directory, the others have none")
    if config.algorithm == "bc":
        raise ConfigError(
            "algorithm bc learns from demonstrations; use `navi train bc --demos DIR`, or navi_core.learn.clone"
        )
    check_execution(config, run_device(config))
    if field is not None:
        first, count = workers.rows(config.actors)
        env = NavigationEnv(field, count, config.env, config.seed, first_row=first)
    assert env is not None
    flown = env if watch is None else watch(env)
    # After the environment: the ray kernels' first call starts their pool in the same OpenMP runtime and thereby gives
    # torch every core.
    return carry_out(
        lambda rows: _Trainer(config, run, flown, rows, workers, events),
        run,
        log,
        stop=stop,
        promise="an update under way is finished, then a checkpoint is written",
        fresh=fresh,
        initial=initial,
    )


class _Trainer(RunSession):
    """Session of a training run that collects rollouts in an environment."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory | None,
        env: Environment,
        log: MetricLog | None,
        workers: Workers,
        events: EventBus | None,
    ) -> None:
        super().__init__(config, run, log, workers, events=events)
        device = self.device
        self.policy = build_policy(config.policy, seed=config.seed, spaces=env.spaces).to(device)
        use_precision(self.policy, config)
        share = config.shaper.memory_capacity // workers.size
        shaping = config.shaper.model_copy(update={"memory_capacity": share})
        self.shaper = RewardShaper(shaping, env.num_envs, config.policy.width, config.seed, device)
        compiled = runs_compiled(config, self.policy, env, device)
        _LOG.info("learner %s, %s path", config.algorithm, "compiled" if compiled else "torch")
        collector = CompiledCollector if compiled else Collector
        self.collector = collector(env, self.policy, self.shaper, config, device=device, workers=workers)
        folder = run.path if run is not None else None
        obs, size = self.collector.obs, workers.size
        self.threads = Threads(1, 1) if compiled else choose_threads(config, self.policy, obs, folder, processes=size)
        torch.set_num_threads(self.threads.update)
        learner = CompiledPPOLearner if compiled else build_learner
        self.learner = learner(self.policy, self.shaper, config, device, workers)
        if isinstance(self.learner, DQNLearner):
            self.learner.events = self.events
        self._custom_terms = config.env.reward.weights.keys() - set(REWARD_TERMS)
        self.watch = RunWatch(config, self.events)
        # Measured after an update's rows are written, these two go with the rows of the next one.
        self.telemetry, self.callback = StageTimer(), StageTimer()
        scenes, vocabulary = ([], {}) if env.field is None else (list(env.field.scenes), env.field.vocabulary)
        self.scene_hashes, self.corpus_summary = corpus_of(scenes, vocabulary)
        if isinstance(self.learner, TakesVocabulary):
            self.learner.use_vocabulary(self.corpus_summary["semantic_vocabulary"])
            add_scenes(self.corpus_summary, self.learner.scenes_of_data())

    @property
    def steps(self) -> int:
        """Decisions so far, summed over rows."""
        return self.collector.decisions * self.collector.total_rows

    def run_until(self, stop: StopFlag) -> str:
        """Alternate rollouts and updates until the run ends; return the reason of the end."""
        rule, total = self.config.rule, self.config.total_steps
        rollout = self.collector.new_rollout(rule.rollout, rule.bptt)
        if self.watch.stopped is not None:
            return f"early_stopping: {self.watch.stopped.reason}"
        size = rollout.steps * self.collector.total_rows
        over = 0 if total is None else -max(total - self.steps, 0) % size
        end = None if total is None else total + over
        if over:
            flown = f"{end:,} decisions are flown, not {total:,}"
            _LOG.info("rollouts are whole, %s decisions each: %s", f"{size:,}", flown)
        elif total is None or self.steps < total:
            # With a large network on a CPU the first progress line is minutes away.
            _LOG.info("progress is reported after each rollout and its update, %s decisions", f"{size:,}")
        while total is None or self.steps < total:
            if self.workers.any(stop(), self.device):
                return stop.signal_name or "stopped"
            began = self.steps
            # A stop drops the rollout under way; this is the state before it.
            before = copy.deepcopy(self.collector.state_dict()) if self.workers.size == 1 else None
            with self.naming_checkpoint():
                torch.set_num_threads(self.threads.rollout)
                ask = (lambda: False) if before is None else stop
                ask = self.counted(ask, self.collector.total_rows, end, began + size)
                stats = self.collector.collect(rollout, ask)
                if stats is None:
                    assert before is not None
                    self.collector.load_state_dict(before)
                    return stop.signal_name or "stopped"
                reward = sum(stats.rewards) / len(stats.rewards)
                self.events.publish(RolloutCollected(self.events.subject, self.steps, self.steps - began, reward))
                torch.set_num_threads(self.threads.update)
                update = self.learner.update(rollout, index=self.counters.updates, steps=began)
            if not isinstance(update, UpdateStats):  # a custom learner may return anything
                kind = type(update).__name__
                raise ConfigError(f"learner {self.config.algorithm}: update returned {kind}; it returns UpdateStats")
            update.metrics |= self.watch.diagnostics(self.policy, rollout, self.counters.updates, self.workers)
            metrics = self._count(stats, update)
            decision = self.watch.after(self.steps, metrics, self.learner)
            stats.timer.take(self.telemetry)
            update.timer.take(self.callback)
            timers = {"rollout": stats.timer, "update": update.timer}
            with self.telemetry("telemetry_publication"):
                self.note(metrics, timers)
            with self.callback("progress_callback"):
                self.announce(end, metrics, timers)
            if began // self.config.checkpoint_every != self.steps // self.config.checkpoint_every:
                self.save()
            if decision is not None and decision.should_stop:
                return f"early_stopping: {decision.reason}"
        return "total_steps"

    def _count(self, stats: RolloutStats, update: UpdateStats) -> dict[str, float]:
        counters, seconds = self.counters, stats.seconds + update.seconds
        counters.add(stats.rewards, stats.episodes, seconds, self.config.rule.reward_ema_alpha)
        waited = stats.timer.totals().get("environment_step", 0.0)
        metrics = {"reward_ema": counters.reward_ema, "reward_mean": sum(stats.rewards) / len(stats.rewards)}
        metrics |= update.metrics
        last = (
            {"episode_return": stats.episode_return, "episode_length": stats.episode_length} if stats.episodes else {}
        )
        last |= {
            "episodes": float(counters.episodes),
            "beta": self.shaper.rnd_coefficient(self.steps),
            "sps": len(stats.rewards) * self.collector.total_rows / seconds,
            "env_ms": stats.timer.means().get("environment_step", 0.0),
            "ppo_update_ms": 1e3 * update.seconds,
            # Share of the rollout in which the policy was not waiting for the environment.
            "zero_wait_ratio": max(0.0, 1.0 - waited / stats.seconds),
        }
        if taken := self._custom_terms & {*metrics, *last, *COLLECTOR_METRICS}:
            raise ConfigError(f"reward term {min(taken)!r} has the name of another metric; register it under another")
        counters.last = metrics = metrics | stats.means | last
        return metrics

    def save(self) -> None:
        """Write a checkpoint with the state of all processes, and the learner's data file beside it."""
        flight = self.collector.state_dict()
        shaper, scales = flight.pop("shaper"), self.learner.state_dict()
        others = self.workers.gather({"collector": flight, "shaper": shaper, "normalisers": scales})[1:]
        self.counters.saved_at = self.steps
        if self.run is None:
            return
        path = checkpoint_path(self.run.checkpoints, self.steps)
        if isinstance(self.learner, KeepsData):
            self.learner.save_beside(path)
        extra = {"collector": flight, "other_processes": others, "watch": self.watch.state_dict()}
        self.keep(path, parent=self.parent, rnd=shaper, normalisers=scales, extra=extra)

    def restore(self, checkpoint: Checkpoint, path: Path) -> None:
        """Restore collector, learner and monitor of this process from a checkpoint."""
        extra = checkpoint.extra
        first = {
            "collector": extra["collector"],
            "shaper": checkpoint.rnd_state or {},
            "normalisers": checkpoint.normalisers,
        }
        every = [first, *extra.get("other_processes", ())]
        if len(every) != self.workers.size:
            raise ValueError(f"{len(every)} processes made it and there are {self.workers.size}")
        mine = every[self.workers.rank]
        self.learner.load_state_dict(mine["normalisers"])
        self.collector.load_state_dict(mine["collector"] | {"shaper": mine["shaper"]})
        if self.collector.env.restarts and isinstance(self.learner, FollowsEpisodes):
            self.learner.begin_episodes()
        self.watch.load_state_dict(extra["watch"])
        if isinstance(self.learner, KeepsData):
            self.learner.load_beside(path)
