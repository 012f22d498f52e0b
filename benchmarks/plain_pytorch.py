"""Offline updates as single-file implementations write them: nn.Linear, one network at a time, torch's own Adam.

The yardstick for peers that are files rather than packages. Sizes and batches are those of ``offline_speed.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

GAMMA, TAU = 0.99, 0.005


def network(inputs: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    """Return two hidden layers of 256 units."""
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs), *last
    )


def step(loss: Tensor, optimizer: torch.optim.Optimizer) -> float:
    """Take one optimisation step and read the loss, as these files do for their logs."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


class Sampler:
    """All columns of a batch by one draw of rows."""

    def __init__(self, arrays: dict[str, np.ndarray], batch_size: int) -> None:
        names = ("observations", "actions", "rewards", "next_observations", "terminated")
        self.columns = [torch.from_numpy(np.asarray(arrays[name], np.float32)) for name in names]
        self.columns[2], self.columns[4] = self.columns[2][:, None], self.columns[4][:, None]
        self.batch_size = batch_size

    def __call__(self) -> list[Tensor]:
        """Return observations, actions, rewards, next observations and terminations."""
        rows = np.random.randint(0, len(self.columns[0]), size=self.batch_size)
        return [column[rows] for column in self.columns]


class TwoCritics(nn.Module):
    """Two action-value networks."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first, self.second = network(inputs, 1), network(inputs, 1)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return both values."""
        x = torch.cat([observations, actions], 1)
        return self.first(x), self.second(x)


def follow(target: nn.Module, source: nn.Module) -> None:
    """Move the target a share of the way."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1 - TAU) * old.data + TAU * new.data)


def bc(sample: Sampler, observation_dim: int, action_dim: int) -> Callable[[], object]:
    """Behavioural cloning."""
    actor = network(observation_dim, action_dim, nn.Tanh())
    optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)

    def update() -> None:
        observations, actions, *_ = sample()
        step(F.mse_loss(actor(observations), actions), optimizer)

    return update


def td3_bc(sample: Sampler, observation_dim: int, action_dim: int) -> Callable[[], object]:
    """TD3+BC; the actor and the targets move every second update."""
    actor, critic = network(observation_dim, action_dim, nn.Tanh()), TwoCritics(observation_dim + action_dim)
    target_actor, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4)
    count = 0

    def update() -> None:
        nonlocal count
        count += 1
        observations, actions, rewards, next_observations, terminated = sample()
        with torch.no_grad():
            noise = (torch.randn_like(actions) * 0.2).clamp(-0.5, 0.5)
            next_actions = (target_actor(next_observations) + noise).clamp(-1, 1)
            targets = rewards + (1 - terminated) * GAMMA * torch.min(*target_critic(next_observations, next_actions))
        first, second = critic(observations, actions)
        step(F.mse_loss(first, targets) + F.mse_loss(second, targets), critic_optimizer)
        if count % 2 == 0:
            own = actor(observations)
            values = critic.first(torch.cat([observations, own], 1))
            step(F.mse_loss(own, actions) - 2.5 / values.abs().mean().detach() * values.mean(), actor_optimizer)
            follow(target_critic, critic)
            follow(target_actor, actor)

    return update


def iql(sample: Sampler, observation_dim: int, action_dim: int) -> Callable[[], object]:
    """IQL with a Gaussian policy, whose deviation is the same in all states, and its cosine schedule."""
    actor, critic = network(observation_dim, action_dim, nn.Tanh()), TwoCritics(observation_dim + action_dim)
    value, target_critic = network(observation_dim, 1), copy.deepcopy(critic)
    log_std = nn.Parameter(torch.zeros(action_dim))
    actor_optimizer = torch.optim.Adam([*actor.parameters(), log_std], lr=3e-4)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4)
    value_optimizer = torch.optim.Adam(value.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(actor_optimizer, 1_000_000)

    def update() -> None:
        observations, actions, rewards, next_observations, terminated = sample()
        with torch.no_grad():
            next_values = value(next_observations)
            targets = torch.min(*target_critic(observations, actions))
        advantages = targets - value(observations)
        step((torch.abs(0.7 - (advantages < 0).float()) * advantages**2).mean(), value_optimizer)
        wanted = rewards + (1 - terminated) * GAMMA * next_values
        first, second = critic(observations, actions)
        step((F.mse_loss(first, wanted) + F.mse_loss(second, wanted)) / 2, critic_optimizer)
        follow(target_critic, critic)
        weights = torch.exp(3.0 * advantages.detach()).clamp(max=100)[:, 0]
        policy = torch.distributions.Normal(actor(observations), log_std.clamp(-20, 2).exp())
        step(-(weights * policy.log_prob(actions).sum(-1)).mean(), actor_optimizer)
        schedule.step()

    return update
