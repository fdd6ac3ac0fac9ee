"""Two processes with four rows each are one process with eight."""

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from navi_core.errors import CheckpointError, ConfigError, RunError
from navi_core.learn import train
from navi_core.learn.parallel import ALONE, Workers, joined_workers
from navi_core.learn.run import loop
from navi_core.learn.run.checkpoints import checkpoints_in
from navi_core.models import load_checkpoint
from navi_core.policy import build_policy
from navi_core.record import RunDirectory
from tests.learn.builders import small_config
from tests.learn.toy_environments import MixedEndingsEnv

ROWS, ROLLOUT = 8, 16


class SharedRowsEnv(MixedEndingsEnv):
    """Rows first … first + count − 1 of the eight: their lives are those they have in one process."""

    def __init__(self, first: int, count: int) -> None:
        super().__init__(ROWS)
        self.part = slice(first, first + count)
        self.whole, self.num_envs = ROWS, count

    def _all(self, method, *args):
        shown, self.num_envs = self.num_envs, self.whole
        try:
            return method(*args)
        finally:
            self.num_envs = shown

    def reset(self):
        return self._all(super().reset)[self.part]

    def step(self, actions):
        every = torch.zeros(ROWS, 4)
        every[self.part] = actions
        batch = self._all(super().step, every)
        for name in ("obs", "reward", "terminated", "truncated", "final_obs"):
            setattr(batch, name, getattr(batch, name)[self.part])
        terms = batch.info.pop("reward_terms")
        batch.info = {name: x[self.part] for name, x in batch.info.items()}
        batch.info["reward_terms"] = {name: x[self.part] for name, x in terms.items()}
        return batch


def configuration(order: str, steps: int = 3 * ROWS * ROLLOUT):
    return small_config(
        rows=ROWS,
        total_steps=steps,
        checkpoint_every=ROWS * ROLLOUT,
        shaper={"rnd_start": 1.0, "loop_coefficient": 0.5, "memory_exclusion": 2, "memory_capacity": 800},
        ppo={"rollout": ROLLOUT, "bptt": 8, "minibatch": 5, "order": order, "normalise_rewards": True, "epochs": 2},
    )


def fly(root: Path, order: str, workers: Workers, steps: int = 3 * ROWS * ROLLOUT):
    config = configuration(order, steps)
    env = SharedRowsEnv(*workers.rows(ROWS))
    if not workers.first:
        return train(config, None, env=env, workers=workers)
    with RunDirectory.open(root / "runs", asset="toy", partition="p", config=config) as run:
        return train(config, run, env=env, log=run.metric_log(root / "outbox"), workers=workers)


def two_processes(root: Path, order: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = f"""
from pathlib import Path
from navi_core.learn.parallel import joined_workers
from tests.learn.run.test_parallel import fly
with joined_workers() as workers:
    result = fly(Path({str(root)!r}), {order!r}, workers)
    assert result.steps == 384 and result.run_id.startswith("toy") and result.checkpoint.exists(), result
"""
    place = Path(__file__).resolve().parents[3]
    base = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    base |= {"PYTHONPATH": os.pathsep.join([str(place), *sys.path])}
    made = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | base | {"RANK": str(rank)},
            cwd=place,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in made:
        _, error = process.communicate(timeout=200)
        assert process.returncode == 0, error


def agree(one, two) -> bool:
    """Whether a run of one process and one of two made the same steps."""
    close = functools.partial(torch.allclose, rtol=0, atol=2e-5)
    rnd, other = one.rnd_state["rnd"], two.rnd_state["rnd"]
    rows = torch.cat((two.extra["collector"]["aux"], two.extra["other_processes"][0]["collector"]["aux"]))
    return (
        all(close(two.policy_state[name], weight) for name, weight in one.policy_state.items())
        and all(torch.allclose(other[name], weight, rtol=1e-4, atol=2e-5) for name, weight in rnd.items())
        and torch.allclose(rows, one.extra["collector"]["aux"], rtol=1e-3, atol=1e-4)
        and two.reward_ema == pytest.approx(one.reward_ema, abs=1e-5)
        and two.episode_count == one.episode_count
    )


def nudged(seed: int):
    """`build_policy`, whose weights are off by a rounding."""

    def build(*arguments, **kw):
        policy, draws = build_policy(*arguments, **kw), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(1 + 1e-7 * torch.randn(weight.shape, generator=draws))
        return policy

    return build


@pytest.mark.slow
@pytest.mark.parametrize("order", ["shuffled", "advantage", "sequential"])
def test_two_processes_equal_one_process(order, tmp_path, monkeypatch):
    alone = load_checkpoint(fly(tmp_path / "one", order, ALONE).checkpoint)
    two_processes(tmp_path / "two", order)
    folder = next((tmp_path / "two" / "runs").glob("toy-*")) / "checkpoints"
    two = load_checkpoint(checkpoints_in(folder)[-1])
    # Sums are rounded otherwise. Where that carries a unit over the kink of its ReLU, a run goes apart by 1e-3; then
    # two processes are one whose first weights are off by a rounding, on the same side of the kink.
    tries = 0
    while not agree(alone, two):
        tries += 1
        assert tries <= 8, "no rounding of one process makes the steps of two"
        with monkeypatch.context() as patch:
            patch.setattr(loop, "build_policy", nudged(tries))
            alone = load_checkpoint(fly(tmp_path / f"one{tries}", order, ALONE).checkpoint)
    two_processes(tmp_path / "two", order)  # the finished run is taken up by both, each with its rows
    with pytest.raises(CheckpointError, match="2 processes made it and there are 1"):
        fly(tmp_path / "two", order, ALONE)


def test_rows_are_divided_evenly():
    assert [Workers(rank, 4).rows(8) for rank in range(4)] == [(0, 2), (2, 2), (4, 2), (6, 2)]
    with pytest.raises(ConfigError, match="actors 6 cannot be shared by 4 processes"):
        Workers(0, 4).rows(6)


def test_incomplete_process_group_is_refused(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined_workers() as workers:
        assert workers is ALONE and workers.any(True) and workers.gather(3) == [3] and workers.share("x") == "x"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"RANK.*torchrun"), joined_workers():
        pass


def test_left_process_group_leaves_no_thread(tmp_path):
    """A thread that lets go of a tensor while the interpreter ends aborts the process."""
    # A thread takes its name, and leaves the kernel's list, a moment after the call that started or ended it.
    code = f"""
import time
import torch.distributed as dist
from contextlib import suppress
from pathlib import Path
from navi_core.learn.parallel import joined_workers
join = dist.init_process_group
dist.init_process_group = lambda kind: join("gloo", init_method="file://{tmp_path}/meet", rank=0, world_size=1)
def threads():
    return sum("gloo" in file.read_text() for file in Path("/proc/self/task").glob("*/comm"))
def soon(condition):
    stop = time.monotonic() + 20
    while time.monotonic() < stop:
        with suppress(OSError):  # one that ended between the listing and the reading
            if condition():
                return True
        time.sleep(0.01)
with joined_workers() as workers:
    assert soon(threads)
    import torch.distributed.nn  # as an optimiser's first step does
assert soon(lambda: not threads())
"""
    joined = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    place = Path(__file__).resolve().parents[3]
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | joined, cwd=place, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(("name", "value"), [("RANK", "first"), ("WORLD_SIZE", "0"), ("MASTER_PORT", "door")])
def test_a_group_that_cannot_be_joined_is_refused(name, value, monkeypatch):
    for key, given in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, given)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"cannot be joined .*torchrun"), joined_workers():
        pass


def test_lost_peer_process_raises_run_error(monkeypatch):
    def gone(*_, **__):
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1\nframe #0")

    for name in ("all_reduce", "all_gather", "gather_object", "broadcast_object_list"):
        monkeypatch.setattr(torch.distributed, name, gone)
    one, x = Workers(0, 2), torch.ones(2)
    for call in (lambda: one.sum(x), lambda: one.columns(x), lambda: one.gather(1), lambda: one.share(1)):
        with pytest.raises(RunError, match=r"another process .* does not answer.*closed by peer \[127.0.0.1\]:1\)$"):
            call()
