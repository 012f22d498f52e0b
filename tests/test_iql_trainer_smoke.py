"""IQL from configuration to resumed run."""

from __future__ import annotations

from offline_contract import OfflineTrainerContract


class TestIQL(OfflineTrainerContract):
    algo = "iql"
