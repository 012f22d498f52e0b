"""The command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done; 1 a run failed, or a bug; 2 the input is wrong; 3 interrupted, with a checkpoint saved if training.
"""

from rl_training.cli.entry import main

__all__ = ["main"]
