"""The command line: the table of commands, and how a failure becomes one message and an exit code."""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, cast

import typer

from rl_training.cli.data import data_app
from rl_training.cli.help import ROOT_EPILOG, PlainCommand, PlainGroup
from rl_training.cli.lookup import check_env, doctor, presets, show_settings
from rl_training.cli.policy import evaluate, export, predict, verify
from rl_training.cli.report import report
from rl_training.cli.share import share
from rl_training.cli.streams import lossy_streams, print_error, print_failure, printable
from rl_training.cli.sweep import sweep
from rl_training.cli.train import resume, train
from rl_training.cli.tune import tune
from rl_training.errors import ConfigError, RLTrainingError, shown
from rl_training.interrupts import Interrupted, answer_signals

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Policies from sparse rewards and logged data.",
    epilog=ROOT_EPILOG,
    cls=PlainGroup,
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "resume": resume,
    "sweep": sweep,
    "tune": tune,
    "evaluate": evaluate,
    "predict": predict,
    "export": export,
    "verify": verify,
    "share": share,
    "report": report,
    "presets": presets,
    "settings": show_settings,
    "check-env": check_env,
    "doctor": doctor,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, cls=PlainCommand)(_command)
app.add_typer(data_app, name="data")

_TOO_LARGE = ("can't allocate memory", "Overflow when unpacking", "Storage size calculation overflowed")
"""What PyTorch says about sizes that no memory holds."""


def main() -> NoReturn:
    """Run the command line."""
    warnings.showwarning = cast(Any, _print_warning)
    threading.excepthook = _thread_failed
    with answer_signals(), lossy_streams() as streams:
        try:
            code = _run()
        except Interrupted as request:
            print_error(f"interrupted by {request}")
            code = 3
        code = streams.exit_code(code)
    sys.exit(code)


def _run() -> int:
    """Run a command, print one message if it fails, and return the exit code."""
    try:
        for argument in sys.argv[1:]:
            if any("\ud800" <= char <= "\udfff" for char in argument):
                raise ConfigError(f"argument {shown(argument)}: expected UTF-8")
        app()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except RLTrainingError as error:
        print_error(error)
        return error.exit_code
    except MemoryError as error:
        print_error(f"not enough memory: {error}" if str(error) else "not enough memory")
        return 2
    except OSError as error:
        print_error(f"{error.filename}: {error.strerror}" if error.filename is not None else error)
        return 2 if error.filename is not None else 1
    except Exception as error:
        if any(words in str(error) for words in _TOO_LARGE):
            print_error(f"a size, such as hidden_sizes or a capacity, is too large: {str(error).splitlines()[0]}")
            return 2
        print_failure(error)  # a bug
        return 1
    return 0


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # quicker than what the doctor prints, which imports torch

        print(version("rl-training"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None: ...


def _print_warning(message: Warning | str, *_details: object) -> None:
    """Show a warning as a line for the user, without the place in the code it came from."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(message))  # Gymnasium colours its own
    print(f"warning: {printable(plain)}", file=sys.stderr)


def _thread_failed(details: threading.ExceptHookArgs) -> None:
    """Print nothing for a full disk: the main thread gets the same error from the TensorBoard writer."""
    if not issubclass(details.exc_type, OSError):
        threading.__excepthook__(details)
