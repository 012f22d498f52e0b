"""Many runs: sweeps over settings, and tuning, on one machine or a Ray cluster.

A run's folder is the whole state of a trial. Ray only decides where a trial runs, so a sweep that was killed goes on
from its folders. Ray is imported where it is needed: reading a sweep, listing it and writing a SLURM script do without.
"""

from __future__ import annotations

from rl_training.scale.sweep_file import Sweep, read_sweep
from rl_training.scale.trials import Trial, TrialState, trial_state

__all__ = ["Sweep", "Trial", "TrialState", "read_sweep", "trial_state"]
