"""CQL from configuration to resumed run."""

from __future__ import annotations

from offline_contract import OfflineTrainerContract


class TestCQL(OfflineTrainerContract):
    algo = "cql"


class TestLagrangeCQL(OfflineTrainerContract):
    algo = "cql"
    options = {"lagrange": 1.0}  # noqa: RUF012


class TestDiscreteCQL(OfflineTrainerContract):
    algo = "discrete_cql"
    env_id = "CartPole-v1"
