"""GRU core: gated recurrent unit with resets inside the sequence (Cho et al. 2014, PyTorch's gate convention).

A fused GRU has no resets, and splitting a batch at every reset makes ragged pieces. Here the input projection of all
steps is one product, and one autograd function runs the recurrence with the state masked before each step. Its
hand-written backward needs one small product per step and computes the weight gradients of all steps in one large
product at the end. The cost does not depend on where or how often episodes end.
"""

import math

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from navi_core.policy.cores.base import AutogradContext, State, TemporalCore


class _GRUScan(torch.autograd.Function):
    """Autograd function of the GRU recurrence h_t = (1 − z)·n + z·h', with h' = keep_t·h_{t−1}; time-major."""

    @staticmethod
    def forward(
        ctx: AutogradContext, inputs: Tensor, h0: Tensor, keep: Tensor | None, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        steps, rows, gates = inputs.shape
        width = gates // 3
        transposed = weight.t().contiguous()
        before = inputs.new_empty(steps, rows, width)
        open_gates = inputs.new_empty(steps, rows, 2 * width)
        candidate = inputs.new_empty(steps, rows, width)
        recurrent = inputs.new_empty(steps, rows, width)
        outputs = inputs.new_empty(steps, rows, width)
        h = h0
        for t in range(steps):
            previous = before[t]
            if keep is None:
                previous.copy_(h)
            else:
                torch.mul(h, keep[t], out=previous)
            hidden = torch.addmm(bias, previous, transposed)
            gate = open_gates[t]
            torch.add(inputs[t, :, : 2 * width], hidden[:, : 2 * width], out=gate).sigmoid_()
            recurrent[t] = hidden[:, 2 * width :]
            new = candidate[t]
            torch.addcmul(inputs[t, :, 2 * width :], gate[:, :width], recurrent[t], out=new).tanh_()
            h = torch.lerp(new, previous, gate[:, width:], out=outputs[t])
        ctx.save_for_backward(before, open_gates, candidate, recurrent, weight, keep)
        return outputs, h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad_outputs: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        before, open_gates, candidate, recurrent, weight, keep = ctx.saved_tensors
        steps, rows, width = before.shape
        reset_gate, update_gate = open_gates[..., :width], open_gates[..., width:]
        # Factors that do not depend on the running gradient, for all steps at once.
        to_update = (before - candidate) * update_gate * (1 - update_gate)
        to_candidate = (1 - update_gate) * (1 - candidate * candidate)
        to_reset = recurrent * reset_gate * (1 - reset_gate)
        grad_inputs = before.new_empty(steps, rows, 3 * width)
        grad_hidden = before.new_empty(steps, rows, 3 * width)
        running = grad_last.clone()
        for t in reversed(range(steps)):
            running = running + grad_outputs[t]
            pre_candidate = torch.mul(running, to_candidate[t], out=grad_inputs[t, :, 2 * width :])
            torch.mul(pre_candidate, to_reset[t], out=grad_hidden[t, :, :width])
            torch.mul(running, to_update[t], out=grad_hidden[t, :, width : 2 * width])
            torch.mul(pre_candidate, reset_gate[t], out=grad_hidden[t, :, 2 * width :])
            running = torch.addmm(running * update_gate[t], grad_hidden[t], weight)
            if keep is not None:
                running = running * keep[t]
        grad_inputs[..., : 2 * width] = grad_hidden[..., : 2 * width]
        flat = grad_hidden.view(steps * rows, 3 * width)
        grad_weight = flat.t() @ before.view(steps * rows, width)
        return grad_inputs, running, None, grad_weight, flat.sum(0)


def gru_recurrence(
    inputs: Tensor, h: Tensor, keep: Tensor | None, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the GRU recurrence in plain PyTorch, for torch.compile; return states (T, B, D) and the last.

    The arguments are those of `gru_scan`, with `keep` (T, B, 1), the negated resets, in place of `reset`.
    """
    width, outputs = h.shape[-1], []
    for t in range(len(inputs)):
        previous = h if keep is None else h * keep[t]
        hidden = F.linear(previous, weight, bias)
        gates = torch.sigmoid(inputs[t, :, : 2 * width] + hidden[:, : 2 * width])
        new = torch.tanh(inputs[t, :, 2 * width :] + gates[:, :width] * hidden[:, 2 * width :])
        h = new + gates[:, width:] * (previous - new)
        outputs.append(h)
    return torch.stack(outputs), h


def gru_scan(inputs: Tensor, h0: Tensor, weight: Tensor, bias: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the GRU recurrence over projected inputs, with resets inside the sequence.

    Args:
        inputs: W_ih·x + b_ih of every step, (T, B, 3·D), gates in the order reset, update, candidate.
        h0: Incoming state (B, D).
        weight: W_hh (3·D, D).
        bias: b_hh (3·D,).
        reset: (T, B) bool; True zeroes the state before that step is consumed.

    Returns:
        States after every step (T, B, D) and the last of them (B, D). First derivatives only.
    """
    keep = None if reset is None else (~reset)[..., None].to(inputs.dtype)
    scan = gru_recurrence if torch.compiler.is_compiling() else _GRUScan.apply
    return scan(inputs, h0, keep, weight, bias)


class GRUBlock(TemporalCore):
    """GRU core of one layer, (B, T, D) to (B, T, D); 99,072 parameters at D 128. The state is (h (B, D),).

    Args:
        width: Input width.
        hidden: State and output width; None equals `width`.
    """

    def __init__(self, width: int = 128, hidden: int | None = None) -> None:
        super().__init__()
        hidden = width if hidden is None else hidden
        self.width, self.hidden = width, hidden
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden, width))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(3 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(3 * hidden))
        bound = 1 / math.sqrt(hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the all-zero initial recurrent state for a batch of `rows`."""
        return (torch.zeros(rows, self.hidden, device=self.bias_hh.device if device is None else device),)

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Advance the core by one input per row.

        Args:
            x: Input (B, D).
            state: State before this step; not modified.
            reset: (B,) bool; True zeroes that row's state first.

        Returns:
            Output (B, D) and the new state.
        """
        (h,) = state
        if reset is not None:
            h = h * (~reset)[:, None]
        inputs = F.linear(x, self.weight_ih, self.bias_ih)
        hidden = F.linear(h, self.weight_hh, self.bias_hh)
        split = 2 * self.hidden
        gates = torch.sigmoid(inputs[:, :split] + hidden[:, :split])
        reset_gate, update_gate = gates.chunk(2, dim=-1)
        new = torch.tanh(torch.addcmul(inputs[:, split:], reset_gate, hidden[:, split:]))
        h = torch.lerp(new, h, update_gate)
        return h, (h,)

    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Run the core over a sequence; equals `step` applied T times.

        Args:
            x: Inputs (B, T, D).
            state: State before the sequence; not modified.
            reset: (B, T) bool; True zeroes the row's state before that step is consumed.

        Returns:
            Outputs (B, T, D) and the state after the last step.
        """
        inputs = F.linear(x.transpose(0, 1), self.weight_ih, self.bias_ih)
        outputs, last = gru_scan(inputs, state[0], self.weight_hh, self.bias_hh, None if reset is None else reset.t())
        return outputs.transpose(0, 1), (last,)
