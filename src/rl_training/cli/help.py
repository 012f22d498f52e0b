"""The help of the command line, in plain text."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

ROOT_EPILOG = """\
First steps:
  rl-training train her/point_goal          a goal task, in half a minute
  rl-training presets                       what else is ready to train
  rl-training check-env my_task:MyEnv-v0    can HER use my environment?
  rl-training data inspect FILE             is my data in order?
  rl-training --install-completion          complete names with the tab key
Exit codes:
  0  done
  1  the run failed, or a bug
  2  the input is wrong; stderr says what was expected
  3  interrupted; `rl-training resume RUN` continues"""

EXAMPLES = {
    "train": (
        "rl-training train her/point_reach --seed 1",
        "rl-training train my_task.yaml --set algo_kwargs.backend=sac",
        "rl-training train iql/pendulum --seeds 0-2 --stack --json",
    ),
    "resume": ("rl-training resume RUN", "rl-training resume RUN --set total_timesteps=20000"),
    "sweep": (
        "rl-training sweep sweep.yaml --dry-run",
        "rl-training sweep sweep.yaml --workers 2",
        "rl-training sweep sweep.yaml --ray-address auto",
        "rl-training sweep sweep.yaml --slurm",
    ),
    "tune": ("rl-training tune tune.yaml --dry-run", "rl-training tune tune.yaml --workers 2"),
    "evaluate": ("rl-training evaluate RUN --episodes 100", "rl-training evaluate RUN/checkpoints/latest --video"),
    "predict": ("rl-training predict RUN --obs observations.jsonl",),
    "export": ("rl-training export RUN -o policy",),
    "verify": ("rl-training verify policy",),
    "share": ("rl-training share RUN --hub NAME/REPOSITORY --dry-run",),
    "report": ("rl-training report RUN OTHER_RUN -o comparison.html", "rl-training report --serve runs"),
    "presets": ("rl-training presets her", "rl-training presets her/point_reach", "rl-training presets her --time"),
    "settings": ("rl-training settings", "rl-training settings her"),
    "check-env": ("rl-training check-env my_task:MyEnv-v0 --set threshold=0.02",),
    "doctor": ("rl-training doctor",),
    "data inspect": ("rl-training data inspect FILE --env Pendulum-v1 --strict",),
    "data convert": ("rl-training data convert logged.hdf5 logged.npz --repair",),
    "data collect": ("rl-training data collect --policy RUN --episodes 20 --noise 0.1 -o played.npz",),
}
"""Examples of each command, by its name. ``RUN`` stands for the folder of a run."""


class PlainGroup(TyperGroup):
    """A group of commands whose epilog is printed as it is written."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the epilog line by line."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


class PlainCommand(TyperCommand):
    """A command whose help shows names as they are typed, without the types and braces that typer adds."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line."""
        return [re.sub(r"[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List arguments and options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            records = [param.get_help_record(ctx) for param in self.get_params(ctx) if param.param_type_name == kind]
            rows = [(re.sub(r" <[^>]*>$", "", record[0]), record[1]) for record in records if record is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """List the examples of the command."""
        group = ctx.parent.info_name if ctx.parent is not None and ctx.parent.parent is not None else None
        examples = EXAMPLES.get(f"{group} {ctx.info_name}" if group else ctx.info_name, ())
        if examples:
            formatter.write("\nExamples:\n" + "".join(f"  {example}\n" for example in examples))
