"""AWAC from configuration to resumed run."""

from __future__ import annotations

from offline_contract import OfflineTrainerContract


class TestAWAC(OfflineTrainerContract):
    algo = "awac"
