"""The tables of rules in the README, from what the rules declare. `python docs/tables.py` writes them again."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path

from fedhold import MIXINGS, RULES
from fedhold.rules import declaration_of

README = Path(__file__).parents[1] / "README.md"


def table(kind: str, functions: Mapping[str, object]) -> str:
    """A row for every function, in the order of the registry."""
    rows = [f"| {kind} | what it does | is told | needs | source |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *(row(name, function) for name, function in functions.items())])


def row(name, function) -> str:
    """What a rule or mixing does, what it is told, what it needs, and where it comes from."""
    declared, parameters = declaration_of(function), inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name != "rng"]
    told = dict.fromkeys([*required, *(p.name for p in parameters if p.name in ("f", "root"))])
    bound = f"`{declared.bound}`" if declared.bound else ""
    needs = [bound, declared.needs, "updates, not models" if declared.from_zero else ""]
    summary = inspect.getdoc(function).partition("\n")[0].rstrip(".").replace("|", "\\|")
    cells = [
        f"`{name}`",
        summary,
        ", ".join(f"`{word}`" for word in told),
        "; ".join(filter(None, needs)),
        declared.source,
    ]
    return f"| {' | '.join(cells)} |"


def written(text: str) -> str:
    """The text with its tables as they should be: each stands between two comments with its name."""
    for kind, functions in {"rule": RULES, "mixing": MIXINGS}.items():
        begin, end = f"<!-- {kind}s, by docs/tables.py -->\n\n", f"\n\n<!-- end of {kind}s -->"
        between = re.compile(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", re.DOTALL)
        made = table(kind, functions)
        text, count = between.subn(lambda _, made=made: made, text)
        assert count == 1, f"README.md needs one place for {kind}s, has {count}"
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
