"""Specs: text such as "nearest_neighbour_mixing(f=10) | huber(threshold=by_samples(0, 2))", parsed into its stages.

A name is that of a registry, or "module:name" for a function of the user's own, which is imported.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from numbers import Integral
from typing import Any

import numpy as np

from fedhold import rules, thresholds
from fedhold.errors import listed, unknown, well_typed
from fedhold.rules import Declaration, declaration_of

__all__ = [
    "DEFAULT",
    "FROM_CALL",
    "MIXINGS",
    "RULES",
    "THRESHOLDS",
    "UNREADABLE",
    "Stage",
    "Written",
    "function_named",
    "name_of",
    "parse",
    "written",
]

Function = Callable[..., Any]

OWN = re.compile(r"""('[^']*'|"[^"]*")|([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)""")

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
        rules.minimum_diameter_averaging,
        rules.monna,
        rules.phocas,
        rules.covariance_agnostic_filter,
        rules.smea,
        rules.comparative_gradient_elimination,
        rules.sign_guard,
        rules.fl_trust,
        rules.fools_gold,
    )
}
MIXINGS: dict[str, Function] = {
    mixing.__name__: mixing
    for mixing in (
        rules.nearest_neighbour_mixing,
        rules.bucketing,
        rules.clipping,
        rules.adaptive_clipping,
        rules.screen,
    )
}
THRESHOLDS: dict[str, Function] = {
    threshold.__name__: threshold
    for threshold in (thresholds.automatic, thresholds.fixed, thresholds.by_samples, thresholds.from_theory)
}
DEFAULT = rules.spectral_huber.__name__  # the rule where nobody names one; docs/default.md says why
# What Python raises where text is no expression, or one nested too deeply.
UNREADABLE = (SyntaxError, TypeError, ValueError, RecursionError, MemoryError)
# Arguments of aggregate() that a stage receives if its function has such parameters.
FROM_CALL = ("rng", "root", "start")


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
        accepted = _parameters_of(self.function)
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values()):
            return
        own = [name for name in list(accepted)[1:] if name not in FROM_CALL]
        for name in self.parameters:
            if name not in own:
                raise TypeError(f"{self.name}: {unknown('parameter', name, own)}")
            well_typed(self.function, name, self.parameters[name])
        for name in own:
            if accepted[name].default is inspect.Parameter.empty and name not in self.parameters:
                what = "f, the number of Byzantine clients it must withstand" if name == "f" else name
                raise TypeError(f"{self.name} needs {what}. Pass {name}=..., or use {DEFAULT!r}, which needs nothing.")

    @cached_property
    def declared(self) -> Declaration:
        """What the function declares about itself."""
        return declaration_of(self.function)

    @property
    def is_ours(self) -> bool:
        """Whether the function is one of the registries': what a user's own does not declare is not known."""
        return {**RULES, **MIXINGS}.get(self.name) is self.function

    @cached_property
    def f(self) -> int | None:
        """How many liars it is to withstand: the f given, or the function's default; None where neither is a whole number."""
        known = _parameters_of(self.function).get("f")
        f = self.parameters.get("f", None if known is None else known.default)
        return int(f) if isinstance(f, Integral) and not isinstance(f, bool) else None

    def check(self, m: int) -> int:
        """Raise an error unless the parameters fit m clients; return the number of rows that a mixing makes of them."""
        declared, given = self.declared, dict(self.parameters)
        if self.f is not None:
            given["f"] = self.f
        if declared.bound is not None and "f" in given:
            declared.bound.check(self.name, m, given["f"])
        declared.check(m, **given)
        return declared.rows(m, **given)

    def among(self, rows: int, rejected: int) -> Stage:
        """The stage as it runs on so many rows, after so many clients were rejected.

        Those rejected are liars that were found: f is less by their number. It is also no more than the rows allow, because a
        mixing before this stage may have dropped clients.
        """
        f, bound = self.f, self.declared.bound
        if f is None:
            return self
        left = max(f - rejected, min(f, 0))
        left = left if bound is None else min(left, bound.most_liars(rows))
        return self if left == f else self.given(f=left)

    def given(self, **parameters: Any) -> Stage:
        """The stage with these parameters in place of its own."""
        return replace(self, parameters={**self.parameters, **parameters})

    def takes(self, name: str) -> bool:
        """Whether the function has a parameter of this name."""
        return name in _parameters_of(self.function)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={_shown(value)}" for name, value in self.parameters.items())
        return f"{self.name}({given})" if given else self.name


@lru_cache(maxsize=256)  # Looking at a signature takes as long as a small solve.
def _signature(function: Function) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _parameters_of(function: Function) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function, which may be an object that cannot be hashed."""
    try:
        return _signature(function)
    except TypeError:
        return inspect.signature(function).parameters


def parse(rule: str | Function | tuple[Stage, ...], parameters: Mapping[str, Any]) -> tuple[Stage, ...]:
    """The stages of a rule or spec; the last of them is the rule, those before it are mixings.

    rule        a name, a spec, a function of the geometry, or stages that were parsed before
    parameters  further parameters of the rule, beside those in the spec; none with stages, which have theirs

    >>> stages = parse("bucketing(size=2) | krum(f=1)", {})
    >>> [stage.name for stage in stages], parse(stages, {}) is stages
    (['bucketing', 'krum'], True)
    """
    if isinstance(rule, tuple) and rule and all(isinstance(stage, Stage) for stage in rule):
        if parameters:
            raise TypeError(f"stages have their parameters; got {listed(parameters)} beside them. Pass it to parse().")
        return rule
    if callable(rule):
        return (Stage(getattr(rule, "__name__", type(rule).__name__), rule, dict(parameters)),)
    if not isinstance(rule, str):
        raise TypeError(
            f"rule must be a name, a spec or a function, got {type(rule).__name__}. Known: {listed(sorted(RULES))}."
        )
    if rule in RULES:
        return (Stage(rule, RULES[rule], dict(parameters)),)
    *mixings, final = _calls(rule)
    stages = (_stage(call, MIXINGS, "mixing", {}) for call in mixings)
    return (*stages, _stage(final, RULES, "rule", parameters))


@lru_cache(maxsize=256)
def _calls(spec: str) -> tuple[Written, ...]:
    """The calls that a spec is made of, as they are written. They are kept, because every round has the same spec."""
    parts: list[ast.expr] = []
    tree = _tree(spec, "rule", "a name, name(f=10), or mixing(f=10) | name(f=10)")
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        parts.insert(0, tree.right)
        tree = tree.left
    return tuple(_call(part) for part in (tree, *parts))


def _stage(call: Written, known: Mapping[str, Callable[..., Any]], what: str, more: Mapping[str, Any]) -> Stage:
    if what == "rule" and call.name in MIXINGS:
        raise ValueError(unknown(what, call.name, known) + " (it is a mixing: write it before a rule)")
    function, arguments = function_named(call.name, what, known), call.parameters
    twice = [key for key in arguments if key in more]
    if twice:
        raise TypeError(f"{call.name}: {twice[0]} is given in the spec and as an argument. Pass it once.")
    return Stage(call.name, function, {**arguments, **more})


@dataclass(frozen=True)
class Written:
    """A call as it is written, such as "dirichlet(alpha=0.1)": a name, and the parameters by name, each as an expression.

    Nothing is looked up: the name may be unknown here.
    """

    name: str
    arguments: Mapping[str, ast.expr]

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters' values; an error for what is neither a literal nor a threshold."""
        return {name: _value(node) for name, node in self.arguments.items()}

    @property
    def texts(self) -> dict[str, str]:
        """The parameters as they are written."""
        return {name: ast.unparse(node) for name, node in self.arguments.items()}


def written(text: str, what: str) -> Written:
    """The call that a text is.

    text  a name, module:name, or either of them with parameters in parentheses
    what  what it stands for, for errors

    >>> call = written("dirichlet(alpha=0.1)", "partition")
    >>> call.name, call.parameters
    ('dirichlet', {'alpha': 0.1})
    >>> written("parts:votes", "rule").name
    'parts:votes'
    """
    return _call(_tree(text, what, "a name, or name(parameter=1)"))


def function_named(name: str, what: str, known: Mapping[str, Function]) -> Function:
    """The function of this name: one of a registry, or "module:name" for one that is imported.

    name   as it is written
    what   what it is, for errors
    known  the registry

    >>> function_named("statistics:fmean", "rule", RULES).__name__
    'fmean'
    """
    if name in known:
        return known[name]
    place, colon, own = name.partition(":")
    if not colon:
        raise ValueError(unknown(what, name, known) + f" One of your own is written module:{name}.")
    try:
        found: Any = importlib.import_module(place)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{place}.".startswith(f"{problem.name}."):
            raise  # The module is there, and imports another that is not.
        raise ValueError(
            f"{what} {name!r}: there is no module {problem.name!r} to import. Modules are looked for beside the configuration "
            "file and where Python looks: put it there, set PYTHONPATH to its folder, or install it."
        ) from None
    for step in own.split("."):
        if not hasattr(found, step):
            there = [word for word, value in vars(found).items() if callable(value) and not word.startswith("_")]
            raise ValueError(f"{place} has no {own!r}: {unknown(what, own, there)}")
        found = getattr(found, step)
    if not callable(found):
        raise ValueError(f"{what} {name!r} must be a function, got {type(found).__name__}. Name a function of {place}.")
    function: Function = found
    return function


def name_of(function: Function) -> str:
    """ "module:name", by which another process can import a function; an error for one that has no such name.

    function  defined at the top of a module

    >>> name_of(rules.krum)
    'fedhold.rules.selection:krum'
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    if "<" in name:
        raise ValueError(
            f"{name} has no name that worker processes could import. Define it with `def` at the top of a module."
        )
    return f"{function.__module__}:{name}"


def _tree(text: str, what: str, form: str) -> ast.expr:
    """The syntax tree. Python has no operator `:`, so that `@` stands for it, which binds tighter than `|`."""
    try:
        return ast.parse(OWN.sub(lambda m: m[1] or f"{m[2]}@{m[3]}", text.strip()), mode="eval").body
    except UNREADABLE:
        raise ValueError(
            f"cannot read the {what} {text!r:.100}. Write {form}; one of your own is module:name."
        ) from None


def _call(node: ast.expr) -> Written:
    module = ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        module, node = f"{ast.unparse(node.left)}:", node.right
    name, words = (node.func, node.keywords) if isinstance(node, ast.Call) and not node.args else (node, [])
    if isinstance(name, ast.Name) or (module and isinstance(name, ast.Attribute)):
        return Written(module + ast.unparse(name), {str(word.arg): word.value for word in words})
    raise ValueError(
        f"cannot read {ast.unparse(node)!r}. Write name(f=10): parameters go by name; one of your own is module:name."
    )


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
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.Name) and node.id in ("inf", "automatic"):
        return float("inf") if node.id == "inf" else "automatic"
    try:
        return ast.literal_eval(node)
    except UNREADABLE:
        raise ValueError(
            f"cannot read {ast.unparse(node)!r}. Write a number, a string, or one of {listed(sorted(THRESHOLDS))}."
        ) from None


def _shown(value: Any) -> str:
    """The text of a parameter, from which `parse` makes the same value again unless it is a function of the user's own."""
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
