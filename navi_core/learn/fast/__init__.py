"""PPO, GRPO and Double DQN for small networks on a CPU, without a framework between the arithmetic and the machine.

A memoryless network of a few thousand weights spends its time in the overhead of calls. Here every array is
allocated once, the gradient is derived by hand, matrix products are those of numpy's BLAS, and what lies between
them are compiled loops. The run loop of `navi_core.learn` serves everything else: recurrent policies, panoramas,
checkpoints.
"""

from navi_core.learn.fast.grpo import FastGRPO
from navi_core.learn.fast.network import ActorCritic, Perceptron
from navi_core.learn.fast.ppo import FastPPO, FastResult
from navi_core.learn.fast.rows import NativeRows, TaskRows, open_rows

__all__ = [
    "ActorCritic",
    "FastGRPO",
    "FastPPO",
    "FastResult",
    "NativeRows",
    "Perceptron",
    "TaskRows",
    "open_rows",
]
