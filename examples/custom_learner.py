"""A learner of your own, outside the package: soft Q-learning (Haarnoja et al., 2017) on CartPole.

y = r + γ (1 - terminated) · α logsumexp(Q'(s', ·) / α),   π(a|s) = softmax(Q(s, ·) / α)
"""

import numpy as np
import torch
from pydantic import Field

from rl_training.algorithms.base import CriticSettings, Learner, soft_update
from rl_training.data import ReplayBuffer
from rl_training.envs import make_env, space_spec
from rl_training.models import MLPDQNModel


class SoftQSettings(CriticSettings):
    """Settings of every learner of values, and a temperature."""

    alpha: float = Field(0.5, gt=0, description="temperature of the policy")


class SoftQ(Learner):
    """Three methods make a learner. Device, checkpoints and `predict` come from the base class."""

    Settings, actions = SoftQSettings, "discrete"

    def _build(self, generator):
        self.model = MLPDQNModel(self.spec, self.settings.hidden_sizes, generator).to(self.device)
        self.optimizer = self._optimizer("critic", self.model.critic.parameters(), self.settings.learning_rate)

    def _update(self, batch):
        alpha, model = self.settings.alpha, self.model
        with torch.no_grad():
            next_values = alpha * torch.logsumexp(model.target_critic(batch.next_observations) / alpha, dim=1)  # [B]
            targets = batch.rewards + self.settings.gamma * (1 - batch.terminated) * next_values
        values = model.critic(batch.observations).gather(1, batch.actions.long()).squeeze(1)  # [B]
        self._minimize((values - targets).square().mean(), self.optimizer)
        soft_update(model.target_critic.parameters(), model.critic.parameters(), self.settings.tau)
        return {"train/q_mean": values.detach().mean()}

    def _act(self, observations, deterministic):
        policy = (self.model.critic(observations) / self.settings.alpha).softmax(dim=1)  # [B, num_actions]
        return (policy.argmax(1, True) if deterministic else policy.multinomial(1, generator=self.generator)).float()


env = make_env("CartPole-v1")
spec, observation, ends = space_spec(env), env.reset(seed=0)[0], [0]
learner = SoftQ(spec, {"hidden_sizes": [64, 64], "learning_rate": 1e-3, "tau": 0.01})
buffer = ReplayBuffer(spec, 50_000)
for step in range(4_000):
    action = learner.act(torch.as_tensor(observation)[None], deterministic=False).numpy()  # [1, 1]
    following, *outcome, _ = env.step(spec.to_env(action[0]))
    reward, terminated, truncated = (np.array([value]) for value in outcome)  # one row for each environment
    buffer.add(observation[None], action, reward, following[None], terminated, truncated)
    observation = env.reset()[0] if terminated or truncated else following
    ends += [step] if terminated or truncated else []
    if step >= 500:
        learner.update(buffer.sample(64))
print("mean length of the first and the last 10 episodes:", np.diff(ends)[:10].mean(), np.diff(ends)[-10:].mean())
