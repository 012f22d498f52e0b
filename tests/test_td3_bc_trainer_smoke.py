"""TD3BC from configuration to resumed run."""

from __future__ import annotations

from offline_contract import OfflineTrainerContract


class TestTD3BC(OfflineTrainerContract):
    algo = "td3_bc"
