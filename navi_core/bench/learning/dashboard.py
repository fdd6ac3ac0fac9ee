"""Benchmark of the dashboard's overhead: CPU time of training updates with and without an open page, in turns.

One policy learns continuously; a pair is one update without and one with a page, in alternating order. The dashboard
and its page run in another process, as in use, whose CPU time is counted separately.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import torch

from navi_core.bench.report import Assignments, Option, Progress, Report, Row, Scenes, Table, machine
from navi_core.config import TrainConfig
from navi_core.evaluate.statistics import student_interval
from navi_core.learn.algorithms.registry import build_learner
from navi_core.learn.rollout.collector import Collector
from navi_core.learn.run.records import run_device
from navi_core.policy import RewardShaper, build_policy
from navi_core.presets import resolve_config
from navi_core.record.home import load_scenes
from navi_core.service.viewing.broadcast import TrainingBroadcast, WatchedEnv
from navi_core.world import EnvironmentWrapper, Field, NavigationEnv

_PATIENCE_SECONDS = 60.0


# More than 60 lines: one measurement, its arguments and its row.
def run_dashboard(
    config: TrainConfig,
    field: Field,
    *,
    pairs: int = 10,
    rounds: int = 4,
    progress: Callable[[int], None] = lambda _: None,
) -> Row:
    """Measure the dashboard's overhead in pairs of training updates, without and with an open page.

    Args:
        config: Training configuration.
        field: Scenes to fly in.
        pairs: Number of pairs, at least two.
        rounds: Updates of each kind in a pair, in turns; an even number, so that each comes first as often.
        progress: Called with the number of updates made.

    Returns:
        A row with the keys:
        steps: Decisions of one update, summed over rows.
        without: Processor time per 1,000 decisions without a page, of each pair [s].
        watched: With an open page [s].
        overhead: Mean of watched over without, minus 1, of the pairs.
        low: Lower end of its 95 % interval (Student).
        high: Upper end.
        direct_share: Processor time of building and sending what viewers see, over that of watched updates.
        observations: Observations published while a page was open.
        unwatched_observations: Observations published without an open page.
        observations_per_second: Observations per second of wall time, during rollouts with an open page.
        page_cpu_share: Processor time of the dashboard's own process over the wall time of watched updates.
    """
    env = NavigationEnv(field, config.actors, config.env, config.seed)
    torch.set_num_threads(max(1, config.threads))
    device = run_device(config)
    policy = build_policy(config.policy, seed=config.seed).to(device)
    shaper = RewardShaper(config.shaper, config.actors, config.policy.width, config.seed, device)
    learner = build_learner(policy, shaper, config, device)
    turns = EnvironmentWrapper(env)
    collector = Collector(turns, policy, shaper, config, device=device)
    rollout = collector.new_rollout(config.ppo.rollout, config.ppo.bptt)
    steps = config.ppo.rollout * config.actors
    made = shown = unseen = 0
    flying = page_seconds = page_wall = direct = 0.0
    taken: dict[bool, list[float]] = {False: [], True: []}
    with TrainingBroadcast("bench", config.algorithm) as broadcast, _page(broadcast.endpoint) as page:
        watched = broadcast.watch(env)
        assert isinstance(watched, WatchedEnv)
        for pair in range(-1, pairs):
            spent = {False: 0.0, True: 0.0}
            # Without, with, with, without, …: what drifts meets both alike.
            for turn in range(2 * rounds):
                with_page = turn % 4 in (1, 2)
                turns.env = watched if with_page else env
                page("open" if with_page else "close")
                _await_watched(broadcast, with_page)
                shown_before, page_before, direct_before = watched.shown, page("time"), watched.seconds
                wall, cpu = time.perf_counter(), time.process_time()
                stats = collector.collect(rollout)
                learner.update(rollout, index=made, steps=made * steps)
                spent[with_page] += time.process_time() - cpu
                wall, made = time.perf_counter() - wall, made + 1
                progress(made)
                # The first pair warms up.
                if pair < 0 or stats is None:
                    continue
                if with_page:
                    shown += watched.shown - shown_before
                    direct += watched.seconds - direct_before
                    flying += stats.seconds
                    page_seconds += page("time") - page_before
                    page_wall += wall
                else:
                    unseen += watched.shown - shown_before
            if pair >= 0:
                for with_page, seconds in spent.items():
                    taken[with_page].append(1000.0 * seconds / (rounds * steps))
    ratios = [on / off - 1.0 for off, on in zip(taken[False], taken[True], strict=True)]
    interval = student_interval({"": ratios})
    return {
        "steps": steps,
        "without": tuple(taken[False]),
        "watched": tuple(taken[True]),
        "overhead": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "direct_share": direct / (sum(taken[True]) * rounds * steps / 1000.0),
        "observations": shown,
        "unwatched_observations": unseen,
        "observations_per_second": shown / flying,
        "page_cpu_share": page_seconds / page_wall,
    }


def _await_watched(broadcast: TrainingBroadcast, wanted: bool) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while broadcast.watched != wanted:
        if time.monotonic() > deadline:
            raise TimeoutError("the dashboard's page did not open or close within a minute")
        time.sleep(0.05)


@contextmanager
def _page(endpoint: str) -> Iterator[Callable[[str], float]]:
    """Context manager that runs the dashboard and its page in a child process.

    Yields:
        A function that sends it a word, `open` or `close` for a page or `time`, and returns its processor time [s].
    """
    command = [sys.executable, "-m", "navi_core.bench.learning.dashboard", endpoint]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def request(word: str) -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    try:
        yield request
    finally:
        process.kill()
        process.wait()


def _serve(endpoint: str) -> None:
    """Entry point of the child process: serve the dashboard, and open or close a browser connection on request."""
    import threading

    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import ClientConnection, connect

    from navi_core.service.web.app import served_page
    from navi_core.service.web.live import LiveShow

    def drain(connection: ClientConnection) -> None:
        try:
            for _ in connection:
                pass
        except ConnectionClosed:
            pass

    with served_page(LiveShow([endpoint], discover=False)) as address:
        opened: ClientConnection | None = None
        for line in sys.stdin:
            if line.strip() == "open" and opened is None:
                opened = connect(address.replace("http", "ws") + "/ws", max_size=2**26)
                threading.Thread(target=drain, args=(opened,), daemon=True).start()
            elif line.strip() == "close" and opened is not None:
                opened.close()
                opened = None
            sys.stdout.write(f"{time.process_time()}\n")
            sys.stdout.flush()


def dashboard(
    preset: Annotated[str, Option(help="Preset: demo, quick, standard.")] = "quick",
    assign: Assignments = None,
    scene: Scenes = None,
    pairs: Annotated[int, Option(min=2, help="Pairs of measurements with and without an open page.")] = 10,
    rounds: Annotated[int, Option(min=2, help="Updates of each kind in a pair, in turns.")] = 4,
    *,
    progress: Progress,
) -> Report:
    """Benchmark a training with and without an open dashboard."""
    config = resolve_config(preset=preset, flags={"threads": 1}, assignments=assign or ())
    field = Field(load_scenes(scene or ["apartment:0-3"], config.compile.resolution), threads=config.threads)
    total = 2 * rounds * (pairs + 1)
    result = run_dashboard(config, field, pairs=pairs, rounds=rounds, progress=lambda made: progress("", made, total))
    cells = [
        (str(number), f"{off:.4f}", f"{on:.4f}", f"{on / off - 1:+.2%}")
        for number, (off, on) in enumerate(zip(result["without"], result["watched"]), 1)
    ]
    caption = (
        f"overhead {result['overhead']:+.2%} [{result['low']:+.2%}, {result['high']:+.2%}], of which showing takes "
        f"{result['direct_share']:.2%}; {result['observations_per_second']:.1f} observations/s while flying, "
        f"{result['unwatched_observations']} while nobody watched; the dashboard itself takes "
        f"{result['page_cpu_share']:.0%} of a core"
    )
    title = f"CPU-seconds per 1,000 decisions, updates of {result['steps']:,}, on {machine()['hardware']}"
    return Report(result, [Table(title, ("pair", "without", "with", "more"), cells, 1, caption)])


if __name__ == "__main__":
    _serve(sys.argv[1])
