"""Catalogue of the benchmarks of `navi bench`.

Each entry is a function in a module of this package. Its annotated parameters are the options of the command, and it
returns a `Report`. Modules are imported when their command runs, so this catalogue stays light.
"""

__all__ = ["BENCHMARKS"]

BENCHMARKS: dict[str, tuple[str, str]] = {
    "raycast": (
        "engine.raycast:raycast",
        "Cast the same rays with every tracer: M rays/s, the ratio to Open3D, and the error in voxels.",
    ),
    "env": ("engine.env:env", "Fly random actions: decisions per second, CPU time, tracer share and memory."),
    "device": (
        "engine.device:device",
        "Check the engine on a GPU against the CPU, and measure rays and environment steps per second.",
    ),
    "compile": (
        "engine.compile:compile_scenes",
        "Compile in fresh processes: seconds after imports, peak memory, sizes, and what sharing gains.",
    ),
    "interval": (
        "evaluation:interval",
        "Simulate worlds of known mean, and count how many of their 95 % intervals contain it.",
    ),
    "evaluation": (
        "evaluation:evaluation",
        "Time evaluations: seconds flown, summed over 16 drones, in each second of one core and of the clock.",
    ),
    "encoder": (
        "policy.encoder:encoder",
        "Time forward and backward of the encoders, count their operations and the activations they save.",
    ),
    "core": (
        "policy.core:core",
        "Time forward and backward of the temporal cores with state and resets, against the framework's GRU.",
    ),
    "serve": (
        "policy.serve:serve",
        "Time one decision with recurrent state: the policy itself, ONNX Runtime and AOTInductor.",
    ),
    "gate": (
        "service.gate:gate",
        "Time the gate, and count which of a random policy's collisions it prevents and which motions it refuses in "
        "vain.",
    ),
    "gated-flight": (
        "service.gate:gated_flight",
        "Fly a policy without the gate, behind it hovering for every WAIT, and behind it as it is served.",
    ),
    "service": (
        "service.round_trip:service",
        "Time the round trip through ZeroMQ: request, flight, observation, decision; one drone and many.",
    ),
    "soak": (
        "service.soak:soak",
        "Learn in flight for long: memory, versions and counts, and the change of the live reward, with an interval."
        "\n\nWith --model and a --scene outside its training set, this measures how the model adapts.",
    ),
    "train": (
        "learning.train:measure_train",
        "Train a few updates: decisions per second of two cores, and the time of every stage.",
    ),
    "memory": (
        "learning.memory:memory",
        "Learn tasks that need a memory, with the state carried, forgotten, or begun from zeros in updates.",
    ),
    "dpo": (
        "learning.dpo:dpo",
        "Prefer one pilot's flights to another's: held-out pairs, and coverage of unseen scenes before and after.",
    ),
    "dashboard": (
        "learning.dashboard:dashboard",
        "Train with and without an open dashboard in turns: CPU time per 1,000 decisions, and its interval.",
    ),
    "cartpole": (
        "cartpole:cartpole",
        "Learn cart-pole as `navi train ppo`: samples per CPU-second, CPU-seconds and steps until solved, memory.",
    ),
    "grpo": (
        "cartpole:grpo",
        "Learn a task by GRPO: steps and CPU-seconds until solved, final return.",
    ),
    "gae": (
        "learning.kernels:measure_gae",
        "Estimate the same advantages with every method: CPU time, ratio to a Python loop, error against float64.",
    ),
    "dqn": (
        "dqn:dqn",
        "Learn a task by Double DQN with prioritised replay: return of the last 100 episodes, steps and CPU-seconds.",
    ),
    "apex": (
        "dqn:apex",
        "Learn cart-pole by Ape-X: return of the last 100 episodes, and the rate of every stage.",
    ),
    "replay": ("learning.kernels:replay", "Draw by priority: items per second, and how exactly, beside running sums."),
    "smoothing": (
        "smoothing:smoothing",
        "Compare no smoothing, drift smoothing, and stopping early; finished cells are not run again.",
    ),
}
"""Benchmark command → module and function within this package, and the help text."""
