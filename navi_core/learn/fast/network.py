"""Perceptrons with hand-derived gradients over preallocated arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from navi_core.learn.fast.loops import times_tanh_slope

__all__ = ["ActorCritic", "Perceptron"]

Array = np.ndarray


class Perceptron:
    """tanh layers and a linear output.

    Args:
        widths: Numbers in, hidden widths, numbers out.
        params: Flat float32 weights of the layers, each a matrix (in, out) and a bias; written where they are drawn.
        grads: Flat float32 gradients, likewise.
        rows: Most rows of a call.
    """

    def __init__(self, widths: Sequence[int], params: Array, grads: Array, rows: int) -> None:
        self.weights, self.biases = _layers(widths, params)
        self.weight_grads, self.bias_grads = _layers(widths, grads)
        self._out = [np.empty((rows, width), dtype=np.float32) for width in widths[1:]]
        self._back = [np.empty((rows, width), dtype=np.float32) for width in widths[1:-1]]
        self._in: Array | None = None

    @staticmethod
    def size(widths: Sequence[int]) -> int:
        """Return the number of weights."""
        return sum((a + 1) * b for a, b in itertools.pairwise(widths))

    def draw(self, rng: np.random.Generator, output_gains: Sequence[float]) -> None:
        """Draw orthogonal weights, gain √2 in hidden layers and one gain for each output; biases are 0.

        Args:
            rng: Randomness.
            output_gains: (out,) gains of the outputs.
        """
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            last = i == len(self.weights) - 1
            gain = np.asarray(output_gains) if last else math.sqrt(2)
            weight[:] = _orthogonal(rng, *weight.shape) * gain
            bias[:] = 0.0

    def forward(self, x: Array) -> Array:
        """Return outputs (n, out) of (n, in); a view that the next call overwrites."""
        n, self._in = len(x), x
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            out = self._out[i][:n]
            np.matmul(x, weight, out=out)
            np.add(out, bias, out=out)
            if i < len(self.weights) - 1:
                np.tanh(out, out=out)
            x = out
        return x

    def hidden(self, rows: int) -> Array:
        """Return the last hidden activations (rows, w) of the last `forward`; the next call overwrites them."""
        return self._out[-2][:rows]

    def backward(self, gradient: Array) -> None:
        """Write the gradients of the weights.

        Args:
            gradient: (n, out) of the loss by the outputs of the last `forward`.
        """
        n = len(gradient)
        assert self._in is not None
        for i in reversed(range(len(self.weights))):
            below = self._out[i - 1][:n] if i else self._in
            np.matmul(below.T, gradient, out=self.weight_grads[i])
            np.add.reduce(gradient, axis=0, out=self.bias_grads[i])
            if i:
                back = self._back[i - 1][:n]
                np.matmul(gradient, self.weights[i].T, out=back)
                times_tanh_slope(back, below)
                gradient = back


class ActorCritic:
    """Logits of discrete actions and a value, from two perceptrons or from one with a common trunk.

    Args:
        observation: Numbers n of an observation.
        actions: Number A of actions.
        hidden: Hidden widths.
        shared: One trunk for both.
        rows: Most rows of a call.
        seed: Of the initial weights.

    Attributes:
        params: All weights, flat.
        grads: Their gradients, likewise.
    """

    def __init__(
        self, observation: int, actions: int, hidden: Sequence[int], *, shared: bool, rows: int, seed: int
    ) -> None:
        self.actions, self.shared, self.hidden = actions, shared, tuple(hidden)
        outputs = [actions + 1] if shared else [actions, 1]
        shapes = [(observation, *hidden, out) for out in outputs]
        sizes = [Perceptron.size(widths) for widths in shapes]
        self.params = np.zeros(sum(sizes), dtype=np.float32)
        self.grads = np.zeros_like(self.params)
        bounds = np.cumsum([0, *sizes])
        self.parts = [
            Perceptron(widths, self.params[a:b], self.grads[a:b], rows)
            for widths, a, b in zip(shapes, bounds, bounds[1:])
        ]
        rng = np.random.default_rng(seed)
        policy_gains = [0.01] * actions
        for part, gains in zip(self.parts, [[*policy_gains, 1.0]] if shared else [policy_gains, [1.0]]):
            part.draw(rng, gains)
        self._gradient = np.empty((rows, actions + 1), dtype=np.float32)

    @property
    def name(self) -> str:
        """What it is, in words."""
        widths = "x".join(map(str, self.hidden))
        return f"{widths} tanh, {'one trunk' if self.shared else 'two nets'}, {len(self.params):,} weights"

    def policy(self, obs: Array) -> Array:
        """Return logits (n, A) of observations (n, obs); the next call overwrites them."""
        return self.parts[0].forward(obs)[:, : self.actions]

    def value(self, obs: Array) -> Array:
        """Return values (n,); the next call overwrites them."""
        return self.parts[-1].forward(obs)[:, -1]

    def both(self, obs: Array) -> tuple[Array, Array]:
        """Return logits (n, A) and values (n,)."""
        if self.shared:
            out = self.parts[0].forward(obs)
            return out[:, : self.actions], out[:, -1]
        return self.policy(obs), self.value(obs)

    def gradient(self, rows: int) -> tuple[Array, Array]:
        """Return where the gradients by logits (rows, A) and values (rows,) are to be written."""
        return self._gradient[:rows, : self.actions], self._gradient[:rows, -1]

    def backward(self, rows: int) -> None:
        """Write the gradients of all weights from those that were written to `gradient`."""
        whole = self._gradient[:rows]
        if self.shared:
            self.parts[0].backward(whole)
            return
        self.parts[0].backward(np.ascontiguousarray(whole[:, : self.actions]))
        self.parts[1].backward(np.ascontiguousarray(whole[:, self.actions :]))


def _layers(widths: Sequence[int], flat: Array) -> tuple[list[Array], list[Array]]:
    weights, biases, at = [], [], 0
    for a, b in itertools.pairwise(widths):
        weights.append(flat[at : at + a * b].reshape(a, b))
        biases.append(flat[at + a * b : at + (a + 1) * b])
        at += (a + 1) * b
    return weights, biases


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Return a (rows, columns) matrix whose shorter side is orthonormal (Saxe et al. 2013)."""
    normal = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(normal)
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T
