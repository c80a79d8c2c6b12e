"""Specs: text such as "nearest_neighbour_mixing(f=10) | huber(threshold=by_samples(0, 2))", parsed into its stages."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedhold import rules, thresholds
from fedhold.errors import listed, unknown
from fedhold.rules import Declaration, declaration_of

__all__ = ["DEFAULT", "FROM_CALL", "MIXINGS", "RULES", "THRESHOLDS", "Stage", "parse"]

Function = Callable[..., Any]

RULES: dict[str, Function] = {
    rule.__name__: rule
    for rule in (
        rules.mean,
        rules.spectral_huber,
        rules.huber,
        rules.geometric_median,
        rules.median_of_means,
        rules.krum,
        rules.multi_krum,
        rules.bulyan,
        rules.median,
        rules.trimmed_mean,
        rules.mean_around_median,
        rules.centered_clipping,
        rules.spectral_filter,
        rules.divide_and_conquer,
    )
}
MIXINGS: dict[str, Function] = {
    mixing.__name__: mixing
    for mixing in (rules.nearest_neighbour_mixing, rules.bucketing, rules.clipping, rules.screen)
}
THRESHOLDS: dict[str, Function] = {
    threshold.__name__: threshold
    for threshold in (thresholds.automatic, thresholds.fixed, thresholds.by_samples, thresholds.from_theory)
}
DEFAULT = rules.spectral_huber.__name__  # the rule where nobody names one; docs/default.md says why
FROM_CALL = ("rng", "start")  # arguments of aggregate() that a stage receives if its function has such parameters


@dataclass(frozen=True)
class Stage:
    """A rule or a mixing, with its parameters.

    name        as in `RULES` or `MIXINGS`, or the name of a user's function
    function    takes the geometry first, then the parameters by name
    parameters  those given in the spec or in the call
    """

    name: str
    function: Callable[..., Any]
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        accepted = inspect.signature(self.function).parameters
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values()):
            return
        own = [name for name in list(accepted)[1:] if name not in FROM_CALL]
        for name in self.parameters:
            if name not in own:
                raise TypeError(f"{self.name}: {unknown('parameter', name, own)}")
        for name in own:
            if accepted[name].default is inspect.Parameter.empty and name not in self.parameters:
                what = "f, the number of Byzantine clients it must withstand" if name == "f" else name
                raise TypeError(f"{self.name} needs {what}. Pass {name}=..., or use {DEFAULT!r}, which needs nothing.")

    @property
    def declared(self) -> Declaration:
        """What the function declares about itself."""
        return declaration_of(self.function)

    def takes(self, name: str) -> bool:
        """Whether the function has a parameter of this name."""
        return name in inspect.signature(self.function).parameters

    def __str__(self) -> str:
        given = ", ".join(f"{name}={_shown(value)}" for name, value in self.parameters.items())
        return f"{self.name}({given})" if given else self.name


def parse(rule: str | Callable[..., Any], parameters: Mapping[str, Any]) -> list[Stage]:
    """The stages of a rule or spec; the last of them is the rule, those before it are mixings.

    rule        a name, a spec, or a function of the geometry
    parameters  further parameters of the rule, beside those in the spec
    """
    if callable(rule):
        return [Stage(getattr(rule, "__name__", type(rule).__name__), rule, dict(parameters))]
    if not isinstance(rule, str):
        raise TypeError(
            f"rule must be a name, a spec or a function, got {type(rule).__name__}. Known: {listed(sorted(RULES))}."
        )
    try:
        tree = ast.parse(rule.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise ValueError(
            f"cannot read the rule {rule!r}. Write a name, name(f=10), or mixing(f=10) | name(f=10)."
        ) from None
    parts: list[ast.expr] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        parts.insert(0, tree.right)
        tree = tree.left
    parts.insert(0, tree)
    stages = [_stage(part, MIXINGS, "mixing", {}) for part in parts[:-1]]
    return [*stages, _stage(parts[-1], RULES, "rule", parameters)]


def _stage(node: ast.expr, known: Mapping[str, Callable[..., Any]], what: str, more: Mapping[str, Any]) -> Stage:
    name, arguments = _call(node)
    if name not in known:
        other = " (it is a mixing: write it before a rule)" if what == "rule" and name in MIXINGS else ""
        raise ValueError(unknown(what, name, known) + other)
    twice = [key for key in arguments if key in more]
    if twice:
        raise TypeError(f"{name}: {twice[0]} is given in the spec and as an argument. Pass it once.")
    return Stage(name, known[name], {**arguments, **more})


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if isinstance(node, ast.Name):
        return node.id, {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        return node.func.id, {str(word.arg): _value(word.value) for word in node.keywords}
    raise ValueError(f"cannot read {ast.unparse(node)!r}. Write a name, or name(f=10): parameters go by name.")


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in THRESHOLDS:
        words = {str(word.arg): _value(word.value) for word in node.keywords}
        given = [_value(argument) for argument in node.args]
        try:
            inspect.signature(THRESHOLDS[node.func.id]).bind(*given, **words)
        except TypeError as problem:
            raise TypeError(
                f"cannot read {ast.unparse(node)!r}: {problem}. Write it as fedhold.thresholds has it."
            ) from None
        return THRESHOLDS[node.func.id](*given, **words)
    if isinstance(node, ast.Name) and node.id in ("inf", "automatic"):
        return float("inf") if node.id == "inf" else "automatic"
    try:
        return ast.literal_eval(node)
    except (TypeError, ValueError):
        raise ValueError(
            f"cannot read {ast.unparse(node)!r}. Write a number, a string, or one of {listed(sorted(THRESHOLDS))}."
        ) from None


def _shown(value: Any) -> str:
    return value.__qualname__.partition(".")[0] if callable(value) else repr(value)
