"""Registry of functions by name, for configurations and other processes."""

from collections.abc import Callable
from typing import Any

from navi_core.errors import ConfigError
from navi_core.learn.estimators.drift_smoother import apply_consensus_update, compute_knn_kernel
from navi_core.learn.run.early_stopping import early_stop_check


class CallableRegistry:
    """Registry of functions; a name keeps its function."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self._functions = dict(functions)

    def register(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Add a function; return it.

        Raises:
            ConfigError: The name has another function.
        """
        if self._functions.get(name, function) is not function:
            raise ConfigError(f"there is another function {name!r}")
        self._functions[name] = function
        return function

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return the function of a name.

        Raises:
            ConfigError: There is none.
        """
        if name not in self._functions:
            raise ConfigError(f"no function {name!r}; allowed: {', '.join(self.names())}")
        return self._functions[name]

    def names(self) -> tuple[str, ...]:
        """Return all names."""
        return tuple(sorted(self._functions))


CALLABLES = CallableRegistry(
    compute_knn_kernel=compute_knn_kernel,
    apply_consensus_update=apply_consensus_update,
    early_stop_check=early_stop_check,
)
"""compute_knn_kernel, apply_consensus_update, early_stop_check."""
