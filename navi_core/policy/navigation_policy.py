"""Policy network: observation → encoder → temporal (recurrent) core → heads for action and value.

Acting (`act`, one step with a carried state) and learning (`evaluate`, a sequence from the state stored at its start)
compute the same function, including resets inside the sequence, so the importance ratio is one before the first update.
"""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.flop_counter import FlopCounterMode

from navi_core.config import PolicyConfig
from navi_core.config.policy import ANTICIPATED, OCCUPANCY_INPUTS, Spaces
from navi_core.errors import ConfigError
from navi_core.policy.cores import CORES, TemporalCore, build_core
from navi_core.policy.cores.base import State
from navi_core.policy.encoders import ENCODERS, build_encoder
from navi_core.policy.encoders.cnn import PictureEncoder, VectorEncoder
from navi_core.policy.heads import PRIVILEGED, ActorCritic, QHead

AUX_INPUTS = 3
"""Number of auxiliary inputs of the previous step: shaped reward, loop similarity, intrinsic reward. Those of an
occupancy memory and of a goal follow."""

_PLACE_HIDDEN = 96


class Trunk(nn.Module):
    """Network trunk: encoder, embedding of auxiliary inputs, and temporal (recurrent) core.

    Args:
        config: Network configuration; kept as `config`.
        spaces: Observation and action spaces of a reference task (vectors or images); None for flight.

    Raises:
        ConfigError: The observation size does not fit the encoder, or the width the core.
    """

    def __init__(self, config: PolicyConfig, spaces: Spaces | None = None) -> None:
        super().__init__()
        self.config = config
        self.half_encoder = False
        """Whether the encoder runs in bfloat16 (autocast); later layers stay float32."""
        self.encoder = _encoder(config, spaces)
        own = config.aux_inputs - OCCUPANCY_INPUTS * config.place_memory
        self.aux = None if config.aux == "off" else nn.Linear(own, config.width)
        self.places = None
        if config.place_memory:
            self.places = nn.Sequential(
                nn.Linear(OCCUPANCY_INPUTS, _PLACE_HIDDEN), nn.ReLU(), nn.Linear(_PLACE_HIDDEN, config.width)
            )
        self.core: TemporalCore = build_core(config.core, config.width, config.core_layers)

    def step(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """Run one step: return embedding (B, D), features (B, D) and the new state; `reset` None means no reset."""
        embedding = self._embed(obs)
        features, state = self.core.step(self.joined(embedding, aux, reset), state, reset)
        return embedding, features, state

    def sequence(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor) -> tuple[Tensor, Tensor, State]:
        """Run sequences (B, T, …): return embeddings, features (B, T, D) and the last state; equals `step` T times."""
        embedding = self._embed(obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        features, state = self.core(self.joined(embedding, aux, reset), state, reset)
        return embedding, features, state

    def _embed(self, obs: Tensor) -> Tensor:
        """Encode observations to float32 embeddings (B, D), under bfloat16 autocast if configured."""
        if not self.half_encoder:
            whole: Tensor = self.encoder(obs)
            return whole
        # The encoder scales the raw channels in float32 first; only its products are cast.
        with torch.autocast(obs.device.type, torch.bfloat16):
            out: Tensor = self.encoder(obs).float()
            return out

    @torch.no_grad()
    def forget_aux(self) -> None:
        """Zero the weights of the auxiliary input, so it has no effect until it is trained."""
        if self.aux is not None:
            self.aux.weight.zero_()

    def joined(self, embedding: Tensor, aux: Tensor, reset: Tensor | None) -> Tensor:
        """Add the projected auxiliary input to embeddings (…, D)."""
        if self.aux is None:
            return embedding
        wanted = (*embedding.shape[:-1], self.config.aux_inputs)
        if aux.shape != wanted:
            parts = [f"{AUX_INPUTS} of the step before", *([f"{OCCUPANCY_INPUTS} of the map"] if self.places else [])]
            raise ConfigError(
                f"aux shape {tuple(aux.shape)} must be {wanted}: {', '.join(parts)}{', the goal' * self.config.goal}; "
                "navi_core.evaluate.Autopilot makes it"
            )
        step, goal = aux[..., :AUX_INPUTS], aux[..., AUX_INPUTS:]
        if self.places is not None:
            places, goal = goal[..., :OCCUPANCY_INPUTS], goal[..., OCCUPANCY_INPUTS:]
            embedding = embedding + self.places(places)
        if reset is not None:
            # A new episode has no previous step; its goal and occupancy features are known.
            step = step * (~reset)[..., None]
        if self.config.aux == "no_reward":
            # The shaped reward is privileged: its entry is zero in training and evaluation alike.
            step = torch.cat((torch.zeros_like(step[..., :1]), step[..., 1:]), dim=-1)
        out: Tensor = embedding + self.aux(torch.cat((step, goal), dim=-1) if self.config.goal else step)
        return out


def _encoder(config: PolicyConfig, spaces: Spaces | None) -> nn.Module:
    if spaces is not None and spaces.shape:
        return PictureEncoder(spaces.shape, config.width, config.picture_channels)
    if spaces is not None:
        return VectorEncoder(spaces.observation, config.width, spaces.scale)
    options: dict[str, Any] = {
        "width": config.width,
        "depth_shift": config.depth_shift,
        "depth_scale": config.depth_scale,
    }
    if config.known_channel:
        options["known_channel"] = True
    if config.encoder == "rayvit":
        options |= {"patch": config.patch_edge, "area_attention": config.area_attention}
    elif config.encoder == "spherical_cnn":
        options |= {"separable_refinement": config.separable_refinement}
    return build_encoder(config.encoder, config.azimuth_bins, config.elevation_bins, **options)


# torch draws initial weights from one global generator: two threads that build at once would reseed it for each other,
# and the weights would depend on timing.
_GENERATOR = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context manager that seeds torch's CPU generator for weight initialisation and restores it; one thread at a time.

    Args:
        seed: Seed of the weights.
    """
    with _GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True)
class ActOutput:
    """Output of `NavigationPolicy.act`: actions, log densities, values and state of one decision of B rows."""

    action: Tensor
    """Unclamped actions (B, 4); the environment clamps."""
    log_prob: Tensor
    """Log density of the actions (B,) [nat]."""
    value: Tensor
    """State values (B,)."""
    state: State
    """Recurrent state after this step."""
    embedding: Tensor
    """Encoder output (B, D), before the auxiliary input."""


@dataclass(frozen=True)
class EvaluateOutput:
    """Output of `NavigationPolicy.evaluate`: log densities, values and entropies of sequences under current weights."""

    log_prob: Tensor
    """Log density of the given actions (B, T) [nat]."""
    value: Tensor
    """State values (B, T)."""
    entropy: Tensor
    """Entropy of the action distribution (B, T) [nat]."""
    embedding: Tensor
    """Encoder output (B, T, D), before the auxiliary input."""
    state: State
    """Recurrent state after the sequences."""
    anticipation_loss: Tensor | None = None
    """Cross entropy (B, T) of the predicted unseen floor [nat]; None without `policy.anticipation`."""


class NavigationPolicy(Trunk):
    """Policy network: trunk with actor-critic heads or a Q head; with `separate_value` the critic has its own trunk.

    The recurrent state is the core's, followed by that of the critic's core if it has one.

    Args:
        config: Network configuration; kept as `config`.
        spaces: A reference task's observations and actions; None for flight.

    Raises:
        ConfigError: The observation size does not fit the encoder, or the width the core.
    """

    def __init__(self, config: PolicyConfig, spaces: Spaces | None = None) -> None:
        super().__init__(config, spaces)
        self.heads: ActorCritic | QHead
        if config.distribution == "q":
            self.heads = QHead(config.width, config.q_hidden, dueling=config.dueling, spaces=spaces)
        else:
            self.heads = ActorCritic(
                config.width,
                distribution=config.distribution,
                log_std_init=config.log_std_init,
                stop_value_gradient=config.stop_value_gradient,
                privileged=config.privileged_critic,
                spaces=spaces,
            )
        self.critic_trunk = Trunk(config, spaces) if config.separate_value else None
        self.anticipation = nn.Linear(config.width, ANTICIPATED) if config.anticipation else None

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the all-zero initial recurrent state for a batch of `rows`."""
        state = self.core.initial_state(rows, device)
        return state if self.critic_trunk is None else state + self.critic_trunk.core.initial_state(rows, device)

    def act(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor, noise: Tensor | None) -> ActOutput:
        """Select an action for every row: one policy step, sampled or deterministic.

        Args:
            obs: Raw observations (B, 3, Az, El).
            aux: Auxiliary inputs (B, `config.aux_inputs`): the previous step's shaped reward, loop similarity and
                curiosity, taken as zero where `reset`; with an occupancy memory its 105 features;
                with goals the 4 of `relative_goal`. In training those of a privileged critic follow, 3 more.
            state: State before this step; not modified.
            reset: (B,) bool; True where a new episode starts with this observation.
            noise: Standard normal draws (B, 4); None selects the deterministic action.

        Returns:
            The decision; `log_prob` is that of the unclamped action.
        """
        mine, critics = self._split(state)
        aux, privileged = self._parted(aux)
        embedding, features, mine = self.step(obs, aux, mine, reset)
        distribution = self.heads.distribution(features)
        seen = features
        if self.critic_trunk is not None:
            _, seen, critics = self.critic_trunk.step(obs, aux, critics, reset)
        action = distribution.typical() if noise is None else distribution.sample(noise)
        log_prob = distribution.log_prob(action)
        return ActOutput(action, log_prob, self.heads.value(seen, privileged), mine + critics, embedding)

    def value(self, obs: Tensor, aux: Tensor, state: State) -> Tensor:
        """Compute the critic's values (B,) of observations (B, 3, Az, El) given `state`, without a reset.

        The caller's state is neither advanced nor modified. Used to bootstrap from the last observation of a
        truncated episode, before its reset.
        """
        mine, critics = self._split(state)
        aux, privileged = self._parted(aux)
        trunk, own = (self, mine) if self.critic_trunk is None else (self.critic_trunk, critics)
        return self.heads.value(trunk.step(obs, aux, own, None)[1], privileged)

    def evaluate(self, obs: Tensor, aux: Tensor, state0: State, reset: Tensor, actions: Tensor) -> EvaluateOutput:
        """Compute log-probabilities, values and entropies of given actions along sequences.

        Args:
            obs: Raw observations (B, T, 3, Az, El).
            aux: Auxiliary inputs (B, T, 3), or (B, T, 6) as in `act`; taken as zero where `reset`.
            state0: State before each sequence.
            reset: (B, T) bool; True where a new episode starts.
            actions: Unclamped actions (B, T, 4).

        Returns:
            Log-probabilities, values, entropies, embeddings and last states under the current weights.
        """
        mine, critics = self._split(state0)
        has_target = self.anticipation is not None and aux.shape[-1] > self.config.aux_inputs
        unseen = aux[..., -ANTICIPATED:] if has_target else None
        aux, privileged = self._parted(aux)
        embedding, features, mine = self.sequence(obs, aux, mine, reset)
        seen = features
        if self.critic_trunk is not None:
            _, seen, critics = self.critic_trunk.sequence(obs, aux, critics, reset)
        distribution = self.heads.distribution(features)
        log_prob, entropy = distribution.log_prob(actions), distribution.entropy()
        value, error = self.heads.value(seen, privileged), None
        if self.anticipation is not None and unseen is not None:
            guess = self.anticipation(features)
            error = binary_cross_entropy_with_logits(guess, unseen, reduction="none").mean(dim=-1)
        return EvaluateOutput(log_prob, value, entropy, embedding, mine + critics, error)

    def _parted(self, aux: Tensor) -> tuple[Tensor, Tensor | None]:
        """Split an auxiliary input into the policy's part and the critic's privileged inputs (or None)."""
        public, behind = self.config.aux_inputs, ANTICIPATED if self.anticipation is not None else 0
        if self.heads.privileged and aux.shape[-1] == public + PRIVILEGED + behind:
            return aux[..., :public], aux[..., public : public + PRIVILEGED]
        return aux, None

    def forget_aux(self) -> None:
        """Zero the weights of the auxiliary input, those of the critic's trunk included."""
        super().forget_aux()
        if self.critic_trunk is not None:
            self.critic_trunk.forget_aux()

    def _split(self, state: State) -> tuple[State, State]:
        """Split a recurrent state into the actor core's and the critic core's (empty without a critic trunk)."""
        if self.critic_trunk is None:
            return state, ()
        return state[: len(state) // 2], state[len(state) // 2 :]


def build_policy(config: PolicyConfig, seed: int = 0, spaces: Spaces | None = None) -> NavigationPolicy:
    """Build a policy with initial weights that are a function of configuration and seed alone.

    The global random state is neither used nor changed.

    Args:
        config: Network configuration.
        seed: Seed of the initial weights.
        spaces: A reference task's observations and actions; None for flight.

    Raises:
        ConfigError: The observation size does not fit the encoder, or the width the core.
    """
    with seeded(seed):
        return NavigationPolicy(config, spaces)


def parameter_counts(policy: NavigationPolicy) -> dict[str, int]:
    """Count the parameters of encoder, aux, core, heads and the other parts, and their total.

    The keys are encoder, aux, core, heads, places (with `place_memory`), critic_trunk (with `separate_value`),
    anticipation (with `anticipation`) and total.
    """
    parts = {
        name: getattr(policy, name)
        for name in ("encoder", "aux", "core", "heads", "places", "critic_trunk", "anticipation")
    }
    counts = {
        name: 0 if part is None else sum(p.numel() for p in part.parameters())
        for name, part in parts.items()
        if part is not None or name == "aux"
    }
    return counts | {"total": sum(counts.values())}


def custom_networks(encoder: str, core: str) -> str | None:
    """Return the source digests of a custom encoder and core; None if both are built in.

    With the weights and the code of Navi they determine the policy's outputs.

    Raises:
        ConfigError: A part is neither built in nor registered.
    """
    parts = {"encoder": (encoder, ENCODERS.source(encoder)), "core": (core, CORES.source(core))}
    digests = [f"{kind} {name} {source}" for kind, (name, source) in parts.items() if source is not None]
    return ", ".join(digests) or None


def count_macs(call: Callable[[], Any]) -> int:
    """Count the multiply-accumulate operations (MACs) of the matrix products and convolutions of a call.

    Elementwise operations are not counted. Attention runs unfused meanwhile, because fused kernels hide their
    products from the counter.

    Args:
        call: Function to measure; it runs once, without gradients.
    """
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    out: int = counter.get_total_flops() // 2
    return out


def policy_macs(policy: NavigationPolicy) -> dict[str, int]:
    """Measure the multiply-accumulate operations (MACs) of one decision of one row, by part and in total.

    The parts are those of `parameter_counts`. A copy of the policy runs on the CPU.
    """
    policy = copy.deepcopy(policy).cpu()
    config = policy.config
    obs = torch.zeros(1, 3, config.azimuth_bins, config.elevation_bins)
    aux, reset = torch.zeros(1, policy.config.aux_inputs), torch.zeros(1, dtype=torch.bool)
    features, state = torch.zeros(1, config.width), policy.core.initial_state(1)
    counts = {
        "encoder": count_macs(lambda: policy.encoder(obs)),
        # Without the occupancy features, which go through `places`.
        "aux": 0 if policy.aux is None else count_macs(partial(policy.aux, torch.zeros(1, policy.aux.in_features))),
        "core": count_macs(lambda: policy.core.step(features, state, reset)),
        "heads": count_macs(lambda: policy.heads(features)),
    }
    if policy.places is not None:
        counts["places"] = count_macs(partial(policy.places, torch.zeros(1, OCCUPANCY_INPUTS)))
    if policy.critic_trunk is not None:
        counts["critic_trunk"] = count_macs(partial(policy.critic_trunk.step, obs, aux, state, reset))
    return counts | {"total": sum(counts.values())}
