"""The help of the command line, in plain text."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand


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
