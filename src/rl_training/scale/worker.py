"""What a Ray worker does: it trains one trial, in a process that is new and ends with it.

Nothing heavy is imported before the threads are set, so that every library sees them.
"""

from __future__ import annotations

import os
import time
from typing import Any

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_PATIENCE = 150.0
"""Seconds to wait for a process that still trains the run: that of a driver which was just killed, or the lock of a run
at a URL whose machine is gone."""


def train_trials(configs: list[dict[str, Any]], run_dirs: list[str], working_folder: str) -> str:
    """Train or continue the run in a folder or at a URL, or a stack of runs, and return why it failed, or nothing.

    For one run it does what ``rl-training train CONFIG --run-dir RUN_DIR`` does. The folder tells how the run ended.
    """
    enter(configs[0], working_folder)
    from rl_training.config import parse_config
    from rl_training.errors import RLTrainingError, RunLockedError
    from rl_training.experiment.run_folder import train_in_folder, train_stack_in_folders
    from rl_training.runtime.remote.local_copy import is_uploaded, not_uploaded, url_of
    from rl_training.urls import last_name, to_location

    folders, started = [to_location(run_dir) for run_dir in run_dirs], time.monotonic()
    while True:
        try:
            if len(folders) > 1:
                results = train_stack_in_folders([parse_config(config) for config in configs], folders)
            else:
                results = [train_in_folder(parse_config(configs[0]), folders[0], name=last_name(folders[0]))]
            left = [result.run_dir for result in results if not is_uploaded(result.run_dir)]
            return f"{url_of(left[0])}: {not_uploaded(str(url_of(left[0])), left[0])}" if left else ""
        except RunLockedError as error:
            if time.monotonic() - started > _PATIENCE:
                return str(error)
            time.sleep(0.2)
        except RLTrainingError as error:
            return str(error)
        except MemoryError as error:
            return f"not enough memory: {error}"


def enter(config: dict[str, Any], working_folder: str) -> None:
    """Set the threads of this process, and go to the folder that relative paths and modules count from."""
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(config.get("num_threads", 1))
    if os.path.isdir(working_folder):  # a node of a cluster may not have it
        os.chdir(working_folder)
