"""Every learner takes the same steps as a plain reference written from its paper.

A reference holds copies of the learner's weights and repeats its random draws. It evaluates one network at a time with
ordinary operations, differentiates with ``backward``, steps with ``torch.optim.Adam`` and moves each target by hand. It
calls nothing of the learner. Six updates are compared, so that several phases of ``policy_delay`` and the moments of
Adam take part, and the learning rates are halved before the fourth.

The order of the draws in one update is part of what is compared, because exact resume depends on it:

1. the noise of the next action: ``randn [B, A]``
2. the critics of the target's minimum, where it is over a subset: the highest of ``rand [members]``
3. CQL: uniform actions ``rand [B, n, A]``, then the policy's at s and s': ``randn [2B, n, A]``
4. the noise of the actor's own action: ``randn [B, A]``, only in updates that move the actor
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from rl_training.algorithms import AWAC, BC, CQL, DDPG, DQN, IQL, REDQ, RLPD, SAC, TD3, TD3BC, DiscreteCQL, Learner
from rl_training.algorithms.base import soft_update
from rl_training.algorithms.table import ALGORITHMS
from rl_training.types import Batch, SpaceSpec

CONTINUOUS = SpaceSpec(observation_dim=3, action_dim=2)
IDLE = SpaceSpec(observation_dim=3, action_dim=3, idle_actions=(1,))
DISCRETE = SpaceSpec(observation_dim=3, action_dim=1, num_actions=4)
# Rewards this small bound the values so closely that new critics exceed both bounds.
GOAL = SpaceSpec(observation_dim=3, action_dim=2, goal_dim=2, reward_range=(-0.05, 0.02))
DISCRETE_GOAL = SpaceSpec(observation_dim=3, action_dim=1, goal_dim=2, num_actions=4, reward_range=(-0.05, 0.02))

UPDATES, HALVED_BEFORE = 6, 4
SIZE, PRIOR_ROWS = 24, 10
TOLERANCE, NOTICED = 1e-5, 1e-4


class Reference:
    """Weights, optimisers and random draws of its own; ``update`` is one step of the paper's algorithm."""

    defaults: ClassVar[dict[str, Any]] = {}
    schedules_only_actor = False

    def __init__(self, learner: Learner, spec: SpaceSpec, options: dict[str, Any], seen: Tensor) -> None:
        common = {"gamma": 0.99, "tau": 0.005, "learning_rate": 3e-4, "actor_lr": None, "critic_lr": None}
        common |= {"max_grad_norm": None, "normalize_observations": False, "clamp_target": True}
        common |= {"policy_delay": 1, "num_min_critics": None, "bc_weight": 0.0, "bc_q_filter": True}
        self.spec, self.o = spec, SimpleNamespace(**(common | self.defaults | options))
        self.weights = {
            name: value.clone() for name, value in learner.state_dict().items() if not name.startswith("normalizer.")
        }
        self.generator = torch.Generator()
        self.generator.set_state(learner.generator.get_state())
        self.mean, self.std = seen.mean(0), seen.std(0, correction=0)
        self.count = 0
        self.optimizers: dict[str, torch.optim.Adam] = {}

    # Networks

    def mlp(self, name: str, x: Tensor, member: int | None = None) -> Tensor:
        """Return ``[B, out]``: layers of x W + b, LayerNorm where there is one, and max(0, ·) between them."""

        def part(key: str) -> Tensor:
            value = self.weights[f"{name}.{key}"]
            return value if member is None else value[member]

        layer = 0
        while f"{name}.hidden.{layer}.weight" in self.weights:
            x = x @ part(f"hidden.{layer}.weight") + part(f"hidden.{layer}.bias")
            if f"{name}.norms.{layer}.weight" in self.weights:
                centred = x - x.mean(1, keepdim=True)
                x = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
                x = x * part(f"norms.{layer}.weight") + part(f"norms.{layer}.bias")
            x = torch.maximum(x, torch.zeros(()))
            layer += 1
        return x @ part("output.weight") + part("output.bias")

    def q(self, name: str, observations: Tensor, actions: Tensor) -> list[Tensor]:
        """Return the values ``[B]`` of each critic."""
        x = torch.cat([observations, actions], 1)
        weight = self.weights[f"model.{name}.mlp.output.weight"]
        members = [None] if weight.dim() == 2 else range(len(weight))
        return [self.mlp(f"model.{name}.mlp", x, member)[:, 0] for member in members]

    # Optimisation

    def optimizer(self, name: str, prefixes: list[str], rate: float | None) -> None:
        """Make an Adam for the weights under ``prefixes``."""
        chosen = [key for key in self.weights if any(key == p or key.startswith(f"{p}.") for p in prefixes)]
        assert chosen
        for key in chosen:
            self.weights[key].requires_grad_()
        self.optimizers[name] = torch.optim.Adam([self.weights[key] for key in chosen], rate or self.o.learning_rate)

    def halve_rates(self) -> None:
        for name, optimizer in self.optimizers.items():
            if name == "actor" or not self.schedules_only_actor:
                optimizer.param_groups[0]["lr"] /= 2

    def step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        for each in self.optimizers.values():
            each.zero_grad()
        loss.backward()
        parameters = optimizer.param_groups[0]["params"]
        if self.o.max_grad_norm is not None:
            norm = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters))
            for p in parameters:
                p.grad *= min(1.0, self.o.max_grad_norm / norm)
        optimizer.step()

    def move(self, target: str, source: str) -> None:
        """Move a target network: θ' ← (1 - τ) θ' + τ θ."""
        for key in [key for key in self.weights if key.startswith(f"{target}.")]:
            online = self.weights[source + key.removeprefix(target)].detach()
            self.weights[key] = (1 - self.o.tau) * self.weights[key] + self.o.tau * online

    # What the papers share

    def update(self, batch: Batch) -> None:
        self.count += 1
        if self.o.normalize_observations:
            batch = batch._replace(
                observations=((batch.observations - self.mean) / self.std).clamp(-10, 10),
                next_observations=((batch.next_observations - self.mean) / self.std).clamp(-10, 10),
            )
        self.learn(batch)

    def learn(self, batch: Batch) -> None:
        raise NotImplementedError

    @property
    def moves_actor(self) -> bool:
        return self.count % self.o.policy_delay == 0

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def rand(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator)

    def bounded(self, values: Tensor) -> Tensor:
        """Keep values within the discounted sums that the rewards allow; an episode may also end after one reward."""
        if self.spec.reward_range is None or not self.o.clamp_target:
            return values
        (low, high), rest = self.spec.reward_range, 1 - self.o.gamma
        return values.clamp(min(low, low / rest), max(high, high / rest))

    def target_minimum(self, observations: Tensor, actions: Tensor) -> Tensor:
        values = self.q("target_critic", observations, actions)
        if self.o.num_min_critics is not None and self.o.num_min_critics < len(values):
            chosen = self.rand(len(values)).argsort(descending=True)[: self.o.num_min_critics]
            values = [values[index] for index in chosen]
        return torch.stack(values).min(0).values

    def td_loss(self, batch: Batch, next_values: Tensor) -> Tensor:
        y = (batch.rewards + self.o.gamma * (1 - batch.terminated) * next_values).detach()
        return sum(((q - y) ** 2).mean() for q in self.q("critic", batch.observations, batch.actions))

    def cloning(self, batch: Batch, own: Tensor) -> Tensor:
        """Return the mean over demonstrations of the squared error, 0 where the critics prefer the actor's action."""
        total = torch.zeros(())
        for row in range(batch.offline_rows):
            s, a, mine = batch.observations[row : row + 1], batch.actions[row : row + 1], own[row : row + 1]
            shown, chosen = (sum(q.item() for q in self.q("critic", s, x)) for x in (a, mine.detach()))
            if shown > chosen or not self.o.bc_q_filter:
                total = total + (mine - a).square().mean()
        return total / batch.offline_rows


class TD3Reference(Reference):
    defaults: ClassVar[dict[str, Any]] = {
        "policy_delay": 2,
        "target_noise": 0.2,
        "target_noise_clip": 0.5,
        "saturation_penalty": None,
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer("actor", ["model.actor"], self.o.actor_lr)
        self.optimizer("critic", ["model.critic"], self.o.critic_lr)
        if self.o.saturation_penalty is None:
            self.o.saturation_penalty = 0.01 if self.spec.goal_dim else 0.0

    def learn(self, batch: Batch) -> None:
        o, s, s2 = self.o, batch.observations, batch.next_observations
        with torch.no_grad():
            next_actions = torch.tanh(self.mlp("model.target_actor.mlp", s2))
            if o.target_noise > 0:
                noise = (o.target_noise * self.randn(*next_actions.shape)).clamp(
                    -o.target_noise_clip, o.target_noise_clip
                )
                next_actions = (next_actions + noise).clamp(-1, 1)
            next_values = self.bounded(self.target_minimum(s2, next_actions))
        self.step("critic", self.td_loss(batch, next_values))
        if not self.moves_actor:
            return
        raw = self.mlp("model.actor.mlp", s)
        actions = torch.tanh(raw)
        loss = self.objective(self.q("critic", s, actions)[0], actions, batch)
        loss = loss + o.saturation_penalty * (raw**2).mean()
        if o.bc_weight > 0:
            loss = loss + o.bc_weight * self.cloning(batch, actions)
        self.step("actor", loss)
        self.move("model.target_critic", "model.critic")
        self.move("model.target_actor", "model.actor")

    def objective(self, values: Tensor, actions: Tensor, batch: Batch) -> Tensor:
        return -values.mean()


class DDPGReference(TD3Reference):
    defaults: ClassVar[dict[str, Any]] = TD3Reference.defaults | {"policy_delay": 1, "target_noise": 0.0}


class TD3BCReference(TD3Reference):
    defaults: ClassVar[dict[str, Any]] = TD3Reference.defaults | {"bc_alpha": 2.5}

    def objective(self, values: Tensor, actions: Tensor, batch: Batch) -> Tensor:
        scale = self.o.bc_alpha / values.abs().mean().item()
        return -scale * values.mean() + ((actions - batch.actions) ** 2).mean()


class SACReference(Reference):
    defaults: ClassVar[dict[str, Any]] = {
        "alpha": "auto",
        "initial_alpha": 1.0,
        "target_entropy": None,
        "entropy_per_action": None,
        "backup_entropy": None,
    }
    default_entropy = -1.0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        o = self.o
        self.optimizer("actor", ["model.actor"], o.actor_lr)
        self.optimizer("critic", ["model.critic"], o.critic_lr)
        if o.alpha == "auto":
            self.weights["log_alpha"] = torch.tensor(math.log(o.initial_alpha))
            self.optimizer("alpha", ["log_alpha"], o.actor_lr)
        if o.target_entropy is None:
            aims = [self.default_entropy] * self.spec.action_dim
            if o.entropy_per_action is not None:
                idle = self.spec.idle_actions
                aims = [math.log(2) if i in idle else o.entropy_per_action for i in range(self.spec.action_dim)]
            o.target_entropy = sum(aims)
        if o.backup_entropy is None:
            o.backup_entropy = not self.spec.goal_dim

    @property
    def alpha(self) -> float:
        return math.exp(self.weights["log_alpha"].item()) if self.o.alpha == "auto" else self.o.alpha

    def policy(self, s: Tensor) -> Normal:
        """Return the distribution before tanh."""
        mean, log_std = self.mlp("model.actor.mlp", s).split(self.spec.action_dim, dim=1)
        return Normal(mean, log_std.clamp(-10, 2).exp())

    def draw(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return squashed actions and log π(a|s) = log N(u) - Σ log(1 - tanh² u)."""
        policy = self.policy(s)
        u = policy.mean + policy.stddev * self.randn(*policy.mean.shape)
        return torch.tanh(u), squashed_log_prob(policy, u)

    def learn(self, batch: Batch) -> None:
        self.step("critic", self.critic_loss(batch))
        if self.moves_actor:
            loss, log_probs = self.actor_loss(batch)
            self.step("actor", loss)
            if self.o.alpha == "auto":
                error = (log_probs + self.o.target_entropy).mean().item()
                self.step("alpha", -self.weights["log_alpha"] * error)
        self.move("model.target_critic", "model.critic")

    def critic_loss(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            next_actions, log_probs = self.draw(batch.next_observations)
            next_values = self.target_minimum(batch.next_observations, next_actions)
            next_values = next_values - self.alpha * log_probs if self.o.backup_entropy else self.bounded(next_values)
        return self.td_loss(batch, next_values)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        actions, log_probs = self.draw(batch.observations)
        loss = (self.alpha * log_probs - self.policy_value(self.q("critic", batch.observations, actions))).mean()
        if self.o.bc_weight > 0:
            loss = loss + self.o.bc_weight * self.cloning(batch, torch.tanh(self.policy(batch.observations).mean))
        return loss, log_probs

    def policy_value(self, values: list[Tensor]) -> Tensor:
        return torch.stack(values).min(0).values


class REDQReference(SACReference):
    defaults: ClassVar[dict[str, Any]] = SACReference.defaults | {"num_min_critics": 2, "policy_delay": 20}
    number_of_critics, layer_norm = 10, False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if "num_critics" not in args[2]:
            assert len(self.weights["model.critic.mlp.output.weight"]) == self.number_of_critics
        if "critic_layer_norm" not in args[2]:
            assert any(".norms." in name for name in self.weights) == self.layer_norm

    def policy_value(self, values: list[Tensor]) -> Tensor:
        return sum(values) / len(values)


class RLPDReference(REDQReference):
    layer_norm = True
    default_entropy = -0.5


class CQLReference(SACReference):
    defaults: ClassVar[dict[str, Any]] = SACReference.defaults | {
        "backup_entropy": False,
        "cql_alpha": 5.0,
        "cql_actions": 10,
        "lagrange": None,
        "calibrated": False,
        "bc_updates": 0,
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.o.lagrange is not None:
            self.weights["log_cql_alpha"] = torch.tensor(math.log(self.o.cql_alpha))
            self.optimizer("cql_alpha", ["log_cql_alpha"], self.o.critic_lr)

    def critic_loss(self, batch: Batch) -> Tensor:
        o, loss = self.o, super().critic_loss(batch)
        gaps = self.gaps(batch)
        if o.lagrange is None:
            return loss + o.cql_alpha * sum(gaps)
        excess = sum(gap.item() - o.lagrange for gap in gaps)
        self.step("cql_alpha", -self.weights["log_cql_alpha"].exp() * excess)
        return loss + math.exp(self.weights["log_cql_alpha"].item()) * sum(gap - o.lagrange for gap in gaps)

    def gaps(self, batch: Batch) -> list[Tensor]:
        """Return, per critic, mean log (1/3n Σ_a exp Q(s, a) / density(a)) - mean Q(s, a_data)."""
        n, size, width = self.o.cql_actions, len(batch.observations), self.spec.action_dim
        uniform = 2 * self.rand(size, n, width) - 1
        noise = self.randn(2 * size, n, width)
        gaps = [0.0] * len(self.q("critic", batch.observations, batch.actions))
        for row in range(size):
            s = batch.observations[row : row + 1]
            sources = [(uniform[row], torch.full((n,), 0.5**width).log(), False)]
            for where, draws in ((s, noise[row]), (batch.next_observations[row : row + 1], noise[size + row])):
                with torch.no_grad():
                    policy = self.policy(where)
                    u = policy.mean + policy.stddev * draws
                    sources.append((torch.tanh(u), squashed_log_prob(policy, u), self.o.calibrated))
            logits: list[list[Tensor]] = [[] for _ in gaps]
            for actions, log_density, is_bounded in sources:
                for member, q in enumerate(self.q("critic", s.expand(n, -1), actions)):
                    value = torch.maximum(q, batch.returns[row]) if is_bounded else q
                    logits[member].append(value - log_density)
            taken = self.q("critic", s, batch.actions[row : row + 1])
            for member in range(len(gaps)):
                spread = torch.cat(logits[member]).exp().mean().log()
                gaps[member] = gaps[member] + (spread - taken[member][0]) / size
        return gaps

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.count > self.o.bc_updates:
            return super().actor_loss(batch)
        u = torch.atanh(batch.actions.clamp(-1 + 1e-5, 1 - 1e-5))
        loss = -squashed_log_prob(self.policy(batch.observations), u).mean()
        with torch.no_grad():
            _, log_probs = self.draw(batch.observations)
        return loss, log_probs


def squashed_log_prob(policy: Normal, u: Tensor) -> Tensor:
    """Return log N(u) - Σ log(1 - tanh² u), in float64 where tanh is near 1."""
    correction = torch.log1p(-torch.tanh(u.double()).square()).to(u.dtype)
    return (policy.log_prob(u) - correction).sum(-1)


class AdvantageWeightedReference(Reference):
    def policy(self, s: Tensor) -> Normal:
        mean = torch.tanh(self.mlp("model.actor.mlp", s))
        return Normal(mean, self.weights["model.actor.log_std"].clamp(-5, 2).exp().expand_as(mean))

    def draw(self, s: Tensor) -> Tensor:
        policy = self.policy(s)
        return (policy.mean + policy.stddev * self.randn(*policy.mean.shape)).clamp(-1, 1)

    def imitation(self, batch: Batch, advantages: Tensor, temperature: float) -> Tensor:
        """Return -mean min(exp(A / temperature), limit) log π(a|s)."""
        if self.o.normalize_advantages:
            advantages = advantages - advantages.mean()
            advantages = advantages / (advantages.square().mean().sqrt() + 1e-6)
        weights = torch.exp(advantages / temperature).clamp(max=self.o.max_weight).detach()
        return -(weights * self.policy(batch.observations).log_prob(batch.actions).sum(1)).mean()


class AWACReference(AdvantageWeightedReference):
    defaults: ClassVar[dict[str, Any]] = {"awac_lambda": 1.0, "max_weight": 100.0, "normalize_advantages": False}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer("actor", ["model.actor"], self.o.actor_lr)
        self.optimizer("critic", ["model.critic"], self.o.critic_lr)

    def learn(self, batch: Batch) -> None:
        s, s2 = batch.observations, batch.next_observations
        with torch.no_grad():
            next_values = self.bounded(self.target_minimum(s2, self.draw(s2)))
        self.step("critic", self.td_loss(batch, next_values))
        if self.moves_actor:
            with torch.no_grad():
                own, taken = (torch.stack(self.q("critic", s, a)).min(0).values for a in (self.draw(s), batch.actions))
            self.step("actor", self.imitation(batch, taken - own, self.o.awac_lambda))
        self.move("model.target_critic", "model.critic")


class IQLReference(AdvantageWeightedReference):
    """The advantages of the value's loss also weigh the actor's, as in the authors' order of updates."""

    defaults: ClassVar[dict[str, Any]] = {
        "expectile": 0.7,
        "temperature": 3.0,
        "max_weight": 100.0,
        "normalize_advantages": False,
    }
    schedules_only_actor = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer("actor", ["model.actor"], self.o.actor_lr)
        self.optimizer("critic", ["model.critic"], self.o.critic_lr)
        self.optimizer("value", ["model.value"], self.o.critic_lr)

    def learn(self, batch: Batch) -> None:
        with torch.no_grad():
            q = self.bounded(self.target_minimum(batch.observations, batch.actions))
        u = q - self.mlp("model.value", batch.observations)[:, 0]
        below = (u < 0).float()
        self.step("value", ((self.o.expectile - below).abs() * u**2).mean())
        with torch.no_grad():
            next_values = self.bounded(self.mlp("model.value", batch.next_observations)[:, 0])
        self.step("critic", self.td_loss(batch, next_values))
        self.move("model.target_critic", "model.critic")
        if self.moves_actor:
            self.step("actor", self.imitation(batch, u.detach(), 1 / self.o.temperature))


class DQNReference(Reference):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer("critic", ["model.critic"], None)

    def learn(self, batch: Batch) -> None:
        self.step("critic", self.loss(batch))
        self.move("model.target_critic", "model.critic")

    def loss(self, batch: Batch) -> Tensor:
        rows, s2 = torch.arange(len(batch.rewards)), batch.next_observations
        with torch.no_grad():
            best = self.mlp("model.critic", s2).argmax(1)
            next_values = self.bounded(self.mlp("model.target_critic", s2)[rows, best])
            y = batch.rewards + self.o.gamma * (1 - batch.terminated) * next_values
        error = (self.mlp("model.critic", batch.observations)[rows, batch.actions[:, 0].long()] - y).abs()
        return torch.where(error < 1, 0.5 * error**2, error - 0.5).mean()


class DiscreteCQLReference(DQNReference):
    defaults: ClassVar[dict[str, Any]] = {"cql_alpha": 1.0}

    def loss(self, batch: Batch) -> Tensor:
        values = self.mlp("model.critic", batch.observations)
        taken = values[torch.arange(len(values)), batch.actions[:, 0].long()]
        return super().loss(batch) + self.o.cql_alpha * (values.exp().sum(1).log() - taken).mean()


class BCReference(Reference):
    defaults: ClassVar[dict[str, Any]] = {"policy": "deterministic"}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer("actor", ["actor"], None)

    def learn(self, batch: Batch) -> None:
        if self.spec.is_discrete:
            logits = self.mlp("actor", batch.observations)
            chosen = logits[torch.arange(len(logits)), batch.actions[:, 0].long()]
            loss = (logits.exp().sum(1).log() - chosen).mean()
        else:
            mean = torch.tanh(self.mlp("actor.mlp", batch.observations))
            loss = ((mean - batch.actions) ** 2).mean()
            if self.o.policy == "gaussian":
                std = self.weights["actor.log_std"].clamp(-5, 2).exp()
                loss = -Normal(mean, std.expand_as(mean)).log_prob(batch.actions).sum(1).mean()
        self.step("actor", loss)


FAST = {"tau": 0.2, "gamma": 0.6, "learning_rate": 3e-3}
RATES = {"actor_lr": 2e-3, "critic_lr": 5e-3, "tau": 0.3, "gamma": 0.8}
NOISE = {"target_noise": 1.0, "target_noise_clip": 0.3}
SUBSET = {"num_critics": 5, "num_min_critics": 2}

CASES: dict[str, tuple[type[Learner], type[Reference], SpaceSpec, dict[str, Any]]] = {
    "ddpg-defaults": (DDPG, DDPGReference, CONTINUOUS, {}),
    "ddpg": (DDPG, DDPGReference, CONTINUOUS, RATES | {"max_grad_norm": 0.05}),
    "ddpg-goal": (DDPG, DDPGReference, GOAL, FAST | {"gamma": 0.5, "critic_layer_norm": False}),
    "ddpg-penalty": (DDPG, DDPGReference, CONTINUOUS, FAST | {"saturation_penalty": 0.5, "policy_delay": 2}),
    "ddpg-demonstrations": (DDPG, DDPGReference, CONTINUOUS, FAST | {"bc_weight": 2.0, "critic_layer_norm": True}),
    "td3-defaults": (TD3, TD3Reference, CONTINUOUS, {"tau": 0.2}),
    "td3-delay": (TD3, TD3Reference, CONTINUOUS, FAST | NOISE | {"policy_delay": 3}),
    "td3-wide-noise": (TD3, TD3Reference, CONTINUOUS, FAST | {"target_noise": 1.0, "target_noise_clip": 2.0}),
    "td3-subset": (TD3, TD3Reference, CONTINUOUS, FAST | NOISE | SUBSET | {"normalize_observations": True}),
    "td3-goal": (TD3, TD3Reference, GOAL, RATES | NOISE | {"gamma": 0.5, "max_grad_norm": 0.1}),
    "td3-goal-unclamped": (TD3, TD3Reference, GOAL, FAST | NOISE | {"gamma": 0.5, "clamp_target": False}),
    "td3-demonstrations": (TD3, TD3Reference, CONTINUOUS, FAST | {"bc_weight": 3.0, "bc_q_filter": False}),
    "td3_bc": (TD3BC, TD3BCReference, CONTINUOUS, FAST | NOISE | {"bc_alpha": 0.7, "normalize_observations": True}),
    "td3_bc-defaults": (TD3BC, TD3BCReference, CONTINUOUS, {"tau": 0.1}),
    "sac-defaults": (SAC, SACReference, CONTINUOUS, {}),
    "sac": (SAC, SACReference, CONTINUOUS, RATES | {"initial_alpha": 0.4, "target_entropy": 1.8}),
    "sac-idle-action": (SAC, SACReference, IDLE, FAST | {"entropy_per_action": 1.3}),
    "sac-fixed-alpha": (SAC, SACReference, CONTINUOUS, FAST | {"alpha": 0.3, "policy_delay": 2, "max_grad_norm": 0.1}),
    "sac-subset": (SAC, SACReference, CONTINUOUS, FAST | SUBSET | {"policy_delay": 3, "critic_layer_norm": True}),
    "sac-no-entropy-backup": (SAC, SACReference, CONTINUOUS, FAST | {"backup_entropy": False}),
    "sac-goal": (SAC, SACReference, GOAL, FAST | {"gamma": 0.5, "normalize_observations": True}),
    "sac-goal-unclamped": (SAC, SACReference, GOAL, FAST | {"gamma": 0.5, "clamp_target": False}),
    "sac-goal-entropy-backup": (SAC, SACReference, GOAL, FAST | {"backup_entropy": True, "alpha": 0.5}),
    "sac-demonstrations": (SAC, SACReference, CONTINUOUS, FAST | {"bc_weight": 3.0}),
    "sac-demonstrations-all": (SAC, SACReference, CONTINUOUS, FAST | {"bc_weight": 3.0, "bc_q_filter": False}),
    "redq": (REDQ, REDQReference, CONTINUOUS, RATES | {"policy_delay": 2}),
    "redq-defaults": (REDQ, REDQReference, CONTINUOUS, {}),
    "redq-subset": (
        REDQ,
        REDQReference,
        CONTINUOUS,
        FAST | {"num_critics": 6, "num_min_critics": 3, "policy_delay": 3, "critic_layer_norm": True},
    ),
    "redq-goal": (REDQ, REDQReference, GOAL, FAST | {"critic_layer_norm": False, "gamma": 0.5, "policy_delay": 1}),
    "rlpd-defaults": (RLPD, RLPDReference, CONTINUOUS, {}),
    "rlpd": (RLPD, RLPDReference, CONTINUOUS, RATES | {"policy_delay": 2}),
    "rlpd-subset": (
        RLPD,
        RLPDReference,
        CONTINUOUS,
        FAST | {"num_critics": 6, "num_min_critics": 3, "policy_delay": 3, "target_entropy": 1.7},
    ),
    "rlpd-fixed-alpha": (
        RLPD,
        RLPDReference,
        CONTINUOUS,
        FAST | {"alpha": 0.2, "policy_delay": 1, "num_critics": 4, "backup_entropy": False, "bc_weight": 1.5},
    ),
    "cql-defaults": (CQL, CQLReference, CONTINUOUS, {}),
    "cql": (CQL, CQLReference, CONTINUOUS, RATES | {"cql_alpha": 0.6, "cql_actions": 3, "max_grad_norm": 0.5}),
    "cql-entropy": (CQL, CQLReference, CONTINUOUS, FAST | {"cql_actions": 2, "backup_entropy": True, "alpha": 0.2}),
    "cql-lagrange": (
        CQL,
        CQLReference,
        CONTINUOUS,
        FAST | {"cql_alpha": 0.6, "cql_actions": 4, "lagrange": 2.5, "policy_delay": 2},
    ),
    "cal-ql": (
        CQL,
        CQLReference,
        CONTINUOUS,
        FAST | {"cql_alpha": 1.2, "cql_actions": 4, "calibrated": True, "bc_updates": 2},
    ),
    "discrete_cql-defaults": (DiscreteCQL, DiscreteCQLReference, DISCRETE, {}),
    "discrete_cql": (DiscreteCQL, DiscreteCQLReference, DISCRETE, FAST | {"cql_alpha": 0.3}),
    "awac-defaults": (AWAC, AWACReference, CONTINUOUS, {}),
    "awac": (AWAC, AWACReference, CONTINUOUS, RATES | {"awac_lambda": 0.05, "policy_delay": 2, "max_weight": 1.1}),
    "awac-normalized": (
        AWAC,
        AWACReference,
        GOAL,
        FAST | {"gamma": 0.5, "awac_lambda": 2.5, "normalize_advantages": True, "normalize_observations": True},
    ),
    "iql-defaults": (IQL, IQLReference, CONTINUOUS, {}),
    "iql": (IQL, IQLReference, CONTINUOUS, RATES | {"expectile": 0.9, "temperature": 8.0, "max_weight": 1.5}),
    "iql-normalized": (
        IQL,
        IQLReference,
        GOAL,
        FAST
        | {"gamma": 0.5, "normalize_advantages": True, "temperature": 0.5, "policy_delay": 2, "max_grad_norm": 0.2},
    ),
    "dqn-defaults": (DQN, DQNReference, DISCRETE, {}),
    "dqn": (DQN, DQNReference, DISCRETE, FAST | {"max_grad_norm": 0.1, "critic_layer_norm": True}),
    "dqn-goal": (DQN, DQNReference, DISCRETE_GOAL, FAST | {"gamma": 0.5, "normalize_observations": True}),
    "dqn-goal-unclamped": (DQN, DQNReference, DISCRETE_GOAL, FAST | {"gamma": 0.5, "clamp_target": False}),
    "bc": (BC, BCReference, CONTINUOUS, {"learning_rate": 3e-3, "normalize_observations": True}),
    "bc-gaussian": (BC, BCReference, CONTINUOUS, {"learning_rate": 3e-3, "policy": "gaussian", "max_grad_norm": 0.3}),
    "bc-discrete": (BC, BCReference, DISCRETE, {"learning_rate": 3e-3, "max_grad_norm": 0.05}),
}
STRUCTURAL = {"critic_layer_norm", "num_critics", "policy"}
"""Options that decide which weights there are."""
SETTINGS = [(case, option) for case, (*_, options) in CASES.items() for option in options if option not in STRUCTURAL]


def make_batch(spec: SpaceSpec, seed: int, outlier: bool = False) -> Batch:
    g = torch.Generator().manual_seed(seed)
    actions = torch.rand(SIZE, spec.action_dim, generator=g) * 2 - 1
    actions[3] = 1.0  # at the bounds, where a squashed density is infinite
    if spec.num_actions is not None:
        actions = torch.randint(spec.num_actions, (SIZE, 1), generator=g).float()
    observations, next_observations = (torch.randn(SIZE, spec.policy_dim, generator=g) for _ in range(2))
    if outlier:
        observations[0, 0] = next_observations[1, 0] = 60.0  # beyond what a normaliser lets pass
    returns = torch.randn(SIZE, generator=g)
    returns[PRIOR_ROWS:] = -torch.inf  # what a mixture says of rows that are not logged
    return Batch(
        observations=observations,
        actions=actions,
        rewards=-2 * torch.rand(SIZE, generator=g),
        next_observations=next_observations,
        terminated=(torch.rand(SIZE, generator=g) < 0.3).float(),
        returns=returns,
        offline_rows=PRIOR_ROWS,
    )


def largest_difference(case: str, without: str | None = None) -> float:
    """Return how far learner and reference are apart at worst; ``without`` leaves an option to its default there."""
    learner_type, reference_type, spec, options = CASES[case]
    learner = learner_type(spec, {"hidden_sizes": [8, 7]} | options, seed=5)
    with torch.no_grad():  # norms that start as the identity would hide a mistake in their use
        g = torch.Generator().manual_seed(1)
        for name, value in learner.named_parameters():
            if ".norms." in name or name.endswith("log_std"):
                value.add_(0.3 * torch.randn(value.shape, generator=g))
        for name, value in learner.named_parameters():
            # Targets that equal their networks would hide which of the two is asked. Adam follows the signs of
            # gradients more than their sizes, so the bootstrapped values must be as large as the rewards.
            if "target" in name:
                value.add_(0.4 * torch.randn(value.shape, generator=g))
    seen = 3 * torch.randn(60, spec.policy_dim, generator=g) * torch.arange(1, spec.policy_dim + 1) + 1
    for part in seen.split([10, 45, 5]):
        learner.observe(part)
    reference = reference_type(learner, spec, {k: v for k, v in options.items() if k != without}, seen)
    worst = 0.0
    for number in range(1, UPDATES + 1):
        if number == HALVED_BEFORE:
            learner.scale_learning_rates(0.5)
            reference.halve_rates()
        batch = make_batch(spec, seed=number, outlier=options.get("normalize_observations", False))
        learner.update(batch)
        reference.update(batch)
        found = {name: value for name, value in learner.state_dict().items() if not name.startswith("normalizer.")}
        assert found.keys() == reference.weights.keys()
        for name, value in found.items():
            expected = reference.weights[name].detach()
            excess = (value - expected).abs() - TOLERANCE * expected.abs()
            assert value.isfinite().all(), name
            worst = max(worst, excess.max().item())
        if without is not None and worst > NOTICED:
            return worst
    assert torch.equal(learner.generator.get_state(), reference.generator.get_state()) or without is not None
    return worst


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_the_papers(case: str) -> None:
    assert largest_difference(case) < TOLERANCE


@pytest.mark.parametrize(("case", "option"), SETTINGS)
def test_every_setting_of_a_case_matters(case: str, option: str) -> None:
    """A reference that ignores a setting disagrees, so the comparison above would notice a learner that does."""
    assert largest_difference(case, without=option) > NOTICED


def test_each_learner_is_compared_and_each_of_its_settings_is_varied() -> None:
    learners = {row.learner for row in ALGORITHMS.values()}
    assert {learner for learner, *_ in CASES.values()} == learners
    varied = {option for *_, options in CASES.values() for option in options}
    outside = {"hidden_sizes", "batch_size"}  # one of the set-up, and one of the loop
    for learner in learners:
        assert set(learner.Settings.model_fields) - varied - outside == set()


def test_a_soft_update_moves_the_target_a_share_tau() -> None:
    target, source = torch.nn.Parameter(torch.tensor([0.0])), torch.nn.Parameter(torch.tensor([1.0]))
    soft_update([target], [source], 0.1)
    assert target.item() == pytest.approx(0.1)
    assert source.item() == 1.0
