"""What all learners share: settings, device, generator, optimisation steps, acting, and their complete state."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from rl_training.algorithms.optimizer import FusedAdam, small_parts
from rl_training.config import Settings, parse_settings
from rl_training.errors import ConfigError
from rl_training.member_axis import all_members, has_member_axis, outside_members
from rl_training.models.actors import load_actor
from rl_training.models.cpu_products import fast_products
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.seeding import Stream, stream_seed
from rl_training.types import Batch, Metrics, Observation, SpaceSpec, flatten_goal_observation


class LearnerSettings(Settings):
    """Settings of every learner."""

    hidden_sizes: tuple[int, ...] = Field(
        (256, 256), min_length=1, max_length=64, description="units of each hidden layer"
    )
    batch_size: int = Field(256, ge=1, le=2**24, description="transitions of one update")
    learning_rate: float = Field(3e-4, gt=0, description="learning rate of every optimiser without a separate setting")
    max_grad_norm: float | None = Field(None, gt=0, description="clip each optimiser's gradient to this norm")
    normalize_observations: bool = Field(False, description="scale observations by their running mean and std")

    @model_validator(mode="after")
    def _sensible_sizes(self) -> LearnerSettings:
        if not all(1 <= size <= 2**20 for size in self.hidden_sizes):
            raise ValueError(f"hidden_sizes = {list(self.hidden_sizes)}: expected sizes from 1 to {2**20:,}")
        return self


class CriticSettings(LearnerSettings):
    """Settings of learners with critics."""

    gamma: float = Field(0.99, ge=0, lt=1, description="discount")
    tau: float = Field(
        0.005, gt=0, le=1, description="share by which target networks move towards the networks at each update"
    )
    critic_layer_norm: bool | None = Field(None, description="LayerNorm in the critics; unset: only in goal tasks")
    clamp_target: bool = Field(True, description="clamp bootstrapped values to what the reward allows, if known")


class Learner(nn.Module):
    """Improves a policy from batches. It does not use environments, files or budgets.

    Every network, target, statistic and temperature is a parameter or buffer of this module, and every optimiser is
    made by ``_optimizer``. ``training_state`` is derived from these, so it is always complete.
    """

    Settings: ClassVar[type[LearnerSettings]] = LearnerSettings
    settings: LearnerSettings
    actions: ClassVar[Literal["continuous", "discrete", "any"]] = "continuous"
    run_defaults: ClassVar[Mapping[str, float]] = {}
    """Defaults of settings outside the learner, such as exploration, that this learner replaces."""
    one_actor_update_per_step: ClassVar[bool] = False
    """Whether an unset ``policy_delay`` equals the number of updates per environment step."""
    scheduled_optimizers: ClassVar[tuple[str, ...] | None] = None
    """The optimisers whose learning rate follows a schedule; None: all of them."""
    policy_prefix: ClassVar[str | None] = None
    """The prefix of the policy network's names in ``state_dict()``; None for a learner without one."""
    temperatures: ClassVar[Mapping[str, str]] = {}
    """Scalar parameters that are learned only on request, each with the name of its optimiser."""
    computes_in_bfloat16: bool = False
    """Whether networks compute in bfloat16 during updates; weights and optimisers stay in float32."""
    fuses_kernels: bool = False
    """Whether updates are compiled: on CUDA their kernels, see ``fusing``; on a CPU see ``compiled_updates``."""

    def __init__(
        self,
        spec: SpaceSpec,
        settings: LearnerSettings | Mapping[str, Any] | None = None,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if not self.supports(spec):
            found = "discrete" if spec.is_discrete else "continuous"
            raise ConfigError(f"{name} needs {self.actions} actions, but the task has {found} ones")
        if not isinstance(settings, LearnerSettings):
            settings = parse_settings(self.Settings, settings or {}, where=name)
        self.spec, self.settings = spec, settings
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(stream_seed(seed, Stream.POLICY_NOISE))
        self.update_count = 0
        self.normalizer = ObservationNormalizer(spec.policy_dim) if settings.normalize_observations else None
        self._optimizers: dict[str, FusedAdam] = {}
        self._learning_rates: dict[str, float | Tensor] = {}
        # Weights are drawn on the CPU, so that a seed means the same networks on every device.
        self._build(torch.Generator().manual_seed(stream_seed(seed, Stream.WEIGHTS)))
        self.to(self.device)

    @classmethod
    def supports(cls, spec: SpaceSpec) -> bool:
        """Return whether this learner supports the actions of a task."""
        return cls.actions in ("discrete" if spec.is_discrete else "continuous", "any")

    @property
    def update_kind(self) -> Hashable:
        """The kind of the next update. Updates of equal kind run the same operations on different numbers."""
        return None

    @property
    def needs_returns(self) -> bool:
        """Whether batches of offline data should contain returns."""
        return False

    def set_reward_range(self, reward_range: tuple[float, float] | None) -> None:
        """Set the range of the rewards, or None if it is unknown. Only learners with critics use it."""

    def _build(self, generator: torch.Generator) -> None:
        """Make the networks, on ``self.device``, and their optimisers."""
        raise NotImplementedError

    def _update(self, batch: Batch) -> Metrics:
        """Do one optimisation step."""
        raise NotImplementedError

    def _act(self, observations: Tensor, deterministic: bool, noise: Tensor | None = None) -> Tensor:
        """Return actions ``[B, action_dim]`` for normalised observations ``[B, policy_dim]``."""
        raise NotImplementedError

    def update(self, batch: Batch) -> Metrics:
        """Learn from one minibatch. Nothing here waits for the device."""
        self.update_count += 1
        with fast_products(self.device):
            batch = self.normalized(batch)
            if not self.computes_in_bfloat16:
                return self._update(batch)
            with torch.autocast(self.device.type, torch.bfloat16):
                return self._update(batch)

    def normalized(self, batch: Batch) -> Batch:
        """Return the batch with normalised observations, if there is a normaliser; the losses expect such a batch."""
        if self.normalizer is None:
            return batch
        return batch._replace(
            observations=self.normalizer(batch.observations),
            next_observations=self.normalizer(batch.next_observations),
        )

    @torch.no_grad()
    def act(self, observations: Tensor, deterministic: bool = True, noise: Tensor | None = None) -> Tensor:
        """Return ``[B, action_dim]`` actions in [-1, 1] (discrete: indices) for ``[B, policy_dim]`` observations.

        ``noise`` ``[B, action_dim]`` is the standard normal noise of a stochastic policy; None: the learner draws it.
        """
        if self.normalizer is not None:
            observations = self.normalizer(observations)
        if noise is None:
            return self._act(observations, deterministic)
        return self._act(observations, deterministic, noise)

    def predict(self, observation: Observation, deterministic: bool = True) -> NDArray[Any]:
        """Return what to pass to the environment's ``step``, for one observation or a batch of them."""
        flat = flatten_goal_observation(observation) if isinstance(observation, dict) else observation
        flat = np.atleast_2d(np.asarray(flat, dtype=np.float32))
        if flat.shape[-1] != self.spec.policy_dim:
            raise ConfigError(f"the observation has {flat.shape[-1]} numbers: expected {self.spec.policy_dim}")
        actions = self.act(torch.from_numpy(flat).to(self.device), deterministic).cpu().numpy()
        single = np.ndim(observation["observation"] if isinstance(observation, dict) else observation) == 1
        return self.spec.to_env(actions[0] if single else actions)

    @torch.no_grad()
    def observe(self, observations: Tensor) -> None:
        """Add observations ``[B, policy_dim]`` to the normaliser's statistics, if there is a normaliser."""
        if self.normalizer is not None:
            self.normalizer.observe(observations)

    @property
    def learning_rates(self) -> dict[str, float]:
        """The current learning rate of each optimiser. Reading them waits for the device."""
        return {name: float(optimizer.param_groups[0]["lr"]) for name, optimizer in self._optimizers.items()}

    def scale_learning_rates(self, factor: float) -> None:
        """Set the learning rates that follow a schedule to ``factor`` times their configured values."""
        for name in self.scheduled_optimizers or self._optimizers:
            for group in self._optimizers[name].param_groups:
                rate = self._learning_rates[name] * factor
                if not isinstance(group["lr"], Tensor):
                    group["lr"] = rate
                elif isinstance(rate, Tensor):  # one for each member of a stack
                    group["lr"].copy_(rate)
                else:
                    group["lr"].fill_(rate)  # a copy from the host would wait for the device

    def training_state(self) -> dict[str, Any]:
        """Return everything that later updates depend on."""
        return {
            "module": self.state_dict(),
            "optimizers": {name: optimizer.moments() for name, optimizer in self._optimizers.items()},
            "generator": self.generator.get_state(),
            "update_count": self.update_count,
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore what ``training_state`` returned."""
        self.load_state_dict(state["module"])
        self.load_optimizers(state["optimizers"])
        self.generator.set_state(state["generator"].cpu())
        self.update_count = int(state["update_count"])

    def load_optimizers(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the moments of every optimiser by name; one that is not listed starts without moments."""
        for name, optimizer in self._optimizers.items():
            optimizer.load_moments(states.get(name, {}))

    def load_policy(self, module: Mapping[str, Tensor], prefix: str | None) -> None:
        """Load another learner's policy from its ``state_dict``; ``prefix`` is its ``policy_prefix``.

        Raises:
            ValueError: the other policy's networks or normalisation differ from this one's.
        """
        if prefix is None or self.policy_prefix is None or f"{prefix}mlp.output.weight" not in module:
            raise ValueError("the other learner or this one has no policy network: expected one in both")
        load_actor(self.get_submodule(self.policy_prefix.rstrip(".")), _below(module, prefix))
        statistics = _below(module, "normalizer.")
        if bool(statistics) != (self.normalizer is not None):
            raise ValueError(f"normalize_observations is {bool(statistics)} in the other run: expected the same here")
        if self.normalizer is not None:
            self.normalizer.load_state_dict(statistics)

    def _optimizer(self, name: str, parameters: Iterable[nn.Parameter], learning_rate: float) -> FusedAdam:
        """Make the Adam optimiser of one group of parameters."""
        # CUDA graphs replay with fixed constants, so a rate that changes must be a tensor.
        recorded = self.device.type == "cuda"
        rate = torch.tensor(learning_rate, device=self.device) if recorded else learning_rate
        optimizer = FusedAdam(list(parameters), rate, capturable=recorded)
        self._optimizers[name], self._learning_rates[name] = optimizer, learning_rate
        return optimizer

    def _minimize(self, loss: Tensor, optimizer: FusedAdam) -> None:
        """Take one step on the optimiser's own parameters; no other gradients are computed.

        In a stack of learners the losses of all members are added up here. Each loss depends on the parameters of its
        own member only, so the gradient of the sum holds the gradient of each member.
        """
        parameters, limit = optimizer.param_groups[0]["params"], self.settings.max_grad_norm
        stacked = has_member_axis(loss)
        with outside_members() if stacked else contextlib.nullcontext():
            gradients = torch.autograd.grad(all_members(loss).sum() if stacked else loss, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.contiguous()  # the fused Adam needs contiguous memory
            if limit is not None and stacked:
                clip_member_gradients(parameters, all_members(limit) if isinstance(limit, Tensor) else limit)
            elif limit is not None:
                nn.utils.clip_grad_norm_(parameters, limit)
            optimizer.step()


class CriticLearner(Learner):
    """A learner with critics. It clamps bootstrapped values to what the reward allows, if that range is known."""

    Settings = CriticSettings
    settings: CriticSettings
    value_bounds: tuple[float, float] | None = None
    """The smallest and largest value any policy can have; None if unknown, or if ``clamp_target`` is off."""

    def _build(self, generator: torch.Generator) -> None:
        self.set_reward_range(self.spec.reward_range)

    @property
    def update_kind(self) -> Hashable:
        """The kind of the next update. It includes the bounds, which are constants in a recorded update."""
        return self.value_bounds

    @property
    def critic_layer_norm(self) -> bool:
        """Whether the critics have LayerNorm: as set, or by default only in goal tasks."""
        setting = self.settings.critic_layer_norm
        return self.spec.goal_dim > 0 if setting is None else setting

    def set_reward_range(self, reward_range: tuple[float, float] | None) -> None:
        """Set the bounds of all values: min(r, r/(1-γ)) of the smallest reward, max(r, r/(1-γ)) of the largest."""
        self.value_bounds = None
        if reward_range is not None and self.settings.clamp_target:
            (low, high), horizon = reward_range, 1.0 / (1.0 - self.settings.gamma)
            self.value_bounds = min(low, low * horizon), max(high, high * horizon)

    def _clamp_value(self, values: Tensor) -> Tensor:
        """Clamp bootstrapped values ``[B]`` to the bounds."""
        return values if self.value_bounds is None else values.clamp(*self.value_bounds)


def soft_update(targets: Iterable[nn.Parameter], sources: Iterable[nn.Parameter], tau: float | Tensor) -> None:
    """Move each target parameter a share ``tau`` of the way to its source."""
    moved, goals = list[Tensor](targets), list[Tensor](sources)
    stacked = has_member_axis(moved[0])
    with torch.no_grad(), outside_members() if stacked else contextlib.nullcontext():
        if stacked:
            moved, goals = [all_members(x) for x in moved], [all_members(x) for x in goals]
        if isinstance(tau, Tensor):  # one share for each member
            for target, source in zip(moved, goals, strict=True):
                target.lerp_(source, _along_members(all_members(tau), target))
        else:
            torch._foreach_lerp_(small_parts(moved), small_parts(goals), tau)


def clip_member_gradients(parameters: Iterable[nn.Parameter], limit: float | Tensor) -> None:
    """Scale the gradients of each member, ``[members, ...]``, to a norm of at most ``limit``."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = torch.stack([gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (limit / (norms + 1e-6)).clamp(max=1.0)  # [members]
    for gradient in gradients:
        gradient.mul_(_along_members(factors, gradient))


def _along_members(values: Tensor, tensor: Tensor) -> Tensor:
    """Return ``[members]`` values in a shape that multiplies a tensor ``[members, ...]`` member by member."""
    return values.view(-1, *[1] * (tensor.dim() - 1))


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries whose names start with ``prefix``, under their names without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
