"""BC from configuration to resumed run."""

from __future__ import annotations

from offline_contract import OfflineTrainerContract


class TestBC(OfflineTrainerContract):
    algo = "bc"


class TestGaussianBC(OfflineTrainerContract):
    algo = "bc"
    options = {"policy": "gaussian"}  # noqa: RUF012


class TestDiscreteBC(OfflineTrainerContract):
    algo = "bc"
    env_id = "CartPole-v1"
