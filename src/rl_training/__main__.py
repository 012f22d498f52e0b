"""``python -m rl_training``, and the console script ``rl-training``."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Signals are answered from the first moment, before anything slow is imported."""
    with contextlib.suppress(OSError):  # the current folder may be gone
        if sys.path[:1] in ([""], [os.getcwd()]):
            del sys.path[0]  # python -m puts the current folder first, where a torch.py must not be imported
    from rl_training.interrupts import Interrupted, answer_signals, ignore_signals

    try:
        with answer_signals():
            from rl_training.cli import main as run

            run()
    except Interrupted as request:
        print(f"error: interrupted by {request}", file=sys.stderr)
        sys.exit(3)
    finally:
        ignore_signals()  # the exit code is decided


if __name__ == "__main__":
    main()
