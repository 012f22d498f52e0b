"""The same sweep as a SLURM array: a script with one command for each trial."""

from __future__ import annotations

import os
import shlex

import yaml

from rl_training.errors import ConfigError
from rl_training.json_output import to_json
from rl_training.scale.resources import gpus_of, threads_of
from rl_training.scale.sweep_file import Sweep, overrides
from rl_training.scale.trials import Trial

_BASE = '"$base"'


def train_command(sweep: Sweep, trial: Trial) -> str:
    """Return the command that trains a trial, or continues it, as a shell would take it."""
    source = _BASE if sweep.source.command is None else shlex.quote(sweep.source.command)
    changes = overrides({**sweep.settings.changes, **trial.changes})
    words = [word for change in changes for word in ("--set", change)]
    words += ["--seed", str(trial.config.seed), "--run-dir", str(trial.location), "--quiet"]
    return f"rl-training train {source} {shlex.join(words)}"


def slurm_script(sweep: Sweep) -> str:
    """Return a bash script for ``sbatch``: the array has one task for each trial, and each runs one command.

    A task that is started again continues its run, and a trial that is finished ends at once.
    """
    if any(len(group) > 1 for group in sweep.groups):
        raise ConfigError(f"{sweep.path}: stack = true: --slurm has a command for each seed; expected stack: false")
    threads = threads_of(sweep.trials)
    gpus = gpus_of(sweep)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={shlex.quote(sweep.folder.name)}",
        f"#SBATCH --array=0-{len(sweep.trials) - 1}",
        f"#SBATCH --cpus-per-task={threads}",
        *([f"#SBATCH --gpus-per-task={max(1, round(gpus))}"] if gpus else []),
        "#SBATCH --requeue",
        "#SBATCH --signal=B:TERM@60",
        "set -eu",
        f"cd {shlex.quote(os.getcwd())}",
        f"export OMP_NUM_THREADS={threads}",
    ]
    if sweep.source.command is None:
        text = yaml.safe_dump(_plain(sweep.settings.base), sort_keys=False)
        lines += ["base=$(mktemp --suffix=.yaml)", f"cat > {_BASE} <<'END_OF_BASE'", f"{text}END_OF_BASE"]
    lines.append('case "$SLURM_ARRAY_TASK_ID" in')
    lines += [f"{number}) exec {train_command(sweep, trial)} ;;" for number, trial in enumerate(sweep.trials)]
    lines += ['*) echo "no trial $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;', "esac", ""]
    return "\n".join(lines)


def _plain(value: object) -> object:
    return yaml.safe_load(to_json(value))
