"""Deep Deterministic Policy Gradient (Lillicrap et al., 2015, https://arxiv.org/abs/1509.02971).

It is TD3 without its three additions: one critic, no target noise, no delay.
"""

from __future__ import annotations

from pydantic import Field

from rl_training.algorithms.td3 import TD3, TD3Settings


class DDPGSettings(TD3Settings):
    """Settings of DDPG."""

    num_critics: int = Field(1, ge=1, le=256, description="critics in the ensemble")
    policy_delay: int = Field(1, ge=1, description="critic updates for each update of the actor and the targets")
    target_noise: float = Field(0.0, ge=0, description="std of the noise on the target's action")


class DDPG(TD3):
    """Deterministic policy gradient."""

    Settings = DDPGSettings
