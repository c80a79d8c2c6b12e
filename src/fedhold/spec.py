"""Specs: text such as "nearest_neighbour_mixing(f=10) | huber(threshold=by_samples(0, 2))", parsed into its stages.

Rules, mixings, attacks, data, partitions and models are written alike, as a `Part`. Its name is that of a registry, or
"module:name" for a function of the user's own, which is imported.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from numbers import Integral
from typing import Any

import numpy as np

from fedhold import thresholds
from fedhold.errors import listed, unknown, well_typed
from fedhold.rules import MIXINGS, RULES, Declaration, declaration_of, spectral_huber

__all__ = [
    "DEFAULT",
    "FROM_CALL",
    "MIXINGS",
    "RULES",
    "THRESHOLDS",
    "Part",
    "Stage",
    "function_named",
    "name_of",
    "parse",
    "unknown_part",
]

Function = Callable[..., Any]

OWN = re.compile(r"""('[^']*'|"[^"]*")|([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)""")

THRESHOLDS: dict[str, Function] = {
    threshold.__name__: threshold
    for threshold in (thresholds.automatic, thresholds.fixed, thresholds.by_samples, thresholds.from_theory)
}
DEFAULT = spectral_huber.__name__  # the rule where nobody names one; docs/default.md says why
# What Python raises where text is no expression, or one nested too deeply.
UNREADABLE = (SyntaxError, TypeError, ValueError, RecursionError, MemoryError)
# Words of other libraries, and what stands for them here.
ELSEWHERE = {
    **dict.fromkeys(["weights", "num_examples", "num_samples", "n"], "The n_i of the clients are samples=."),
    **dict.fromkeys(["seed", "random_state", "generator"], "Chance enters by rng=, a seed or a generator."),
    **dict.fromkeys(
        ["f", "num_byzantine", "n_byzantine", "byzantine"], "This rule is not told how many lie; leave it out."
    ),
}
# Arguments of aggregate() that a stage receives if its function has such parameters.
FROM_CALL = ("rng", "root", "start", "scale")


@dataclass(frozen=True)
class Part:
    """A rule, a mixing, an attack, data, a partition or a model, as it is written: "dirichlet(alpha=0.1)".

    name        that of a registry, or "module:name"; it is not looked up, and may be unknown
    parameters  by name
    """

    name: str
    parameters: Mapping[str, Any]

    @classmethod
    def read(cls, text: str, what: str) -> Part:
        """The part that a text is.

        text  a name, module:name, or either of them with parameters in parentheses: numbers, strings, lists of them, and
              thresholds such as by_samples(0, 20)
        what  what it stands for, for errors

        >>> Part.read("dirichlet(alpha=0.1)", "partition")
        Part(name='dirichlet', parameters={'alpha': 0.1})
        >>> Part.read("parts:votes", "rule").name
        'parts:votes'
        """
        return _part(_tree(text, what, "a name, or name(parameter=1)"))

    def __str__(self) -> str:
        given = ", ".join(f"{name}={_shown(value)}" for name, value in self.parameters.items())
        return f"{self.name}({given})" if given else self.name


@dataclass(frozen=True)
class Stage(Part):
    """A rule or a mixing, with the function that it names.

    name        as in `RULES` or `MIXINGS`, or the name of a user's function
    parameters  those given in the spec or in the call
    function    takes the geometry first, then the parameters by name
    """

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        accepted = self.accepted
        if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            return
        own = [name for name in list(accepted)[1:] if name not in FROM_CALL]
        for name in self.parameters:
            if name not in own:
                hint = f" {ELSEWHERE[name]}" if name in ELSEWHERE else ""
                raise TypeError(f"{self.name}: {unknown('parameter', name, own)}{hint}")
            well_typed(self.function, name, self.parameters[name])
        for name in own:
            if accepted[name].default is accepted[name].empty and name not in self.parameters:
                what = "f, the number of Byzantine clients it must withstand" if name == "f" else name
                raise TypeError(f"{self.name} needs {what}. Pass {name}=..., or use {DEFAULT!r}, which needs nothing.")

    @cached_property
    def accepted(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of the function."""
        return inspect.signature(self.function).parameters

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
        f = self.parameters.get("f", self.accepted["f"].default if self.takes("f") else None)
        return int(f) if isinstance(f, Integral) and not isinstance(f, bool) else None

    def check(self, m: int) -> int:
        """Raise an error unless the parameters fit m clients; return the number of rows that a mixing makes of them."""
        declared, given = self.declared, dict(self.parameters)
        if self.f is not None:
            given["f"] = self.f
        if declared.bound is not None and "f" in given:
            declared.bound.check(self.name, m, given["f"])
        if declared.check is not None:
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
        return name in self.accepted


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
        return (Stage(getattr(rule, "__name__", type(rule).__name__), dict(parameters), rule),)
    if not isinstance(rule, str):
        raise TypeError(
            f"rule must be a name, a spec or a function, got {type(rule).__name__}. Known: {listed(sorted(RULES))}."
        )
    *mixings, final = _parts(rule)
    stages = [Stage(part.name, part.parameters, function_named(part.name, "mixing", MIXINGS)) for part in mixings]
    twice = [name for name in final.parameters if name in parameters]
    if twice:
        raise TypeError(f"{final.name}: {twice[0]} is given in the spec and as an argument. Pass it once.")
    function = function_named(final.name, "rule", RULES)
    return (*stages, Stage(final.name, {**final.parameters, **parameters}, function))


@lru_cache(maxsize=256)
def _parts(spec: str) -> tuple[Part, ...]:
    """The parts of a spec. They are kept, because every round has the same spec."""
    nodes: list[ast.expr] = []
    tree = _tree(spec, "rule", "a name, name(f=10), or mixing(f=10) | name(f=10)")
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        nodes.insert(0, tree.right)
        tree = tree.left
    return tuple(_part(node) for node in (tree, *nodes))


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
        raise ValueError(unknown_part(what, name, known) + f" One of your own is written module:{name}.")
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


def unknown_part(what: str, name: str, known: Mapping[str, Function]) -> str:
    """The message for an unknown name of a registry: it suggests what papers call so, and otherwise the nearest name.

    Letters alone never lead to a rule that is not robust. A name of a mixing in place of a rule is told apart, and vice versa.

    what   what it is, as for `function_named`
    name   as it is written
    known  the registry

    >>> unknown_part("rule", "trmean", RULES)[:51]
    "unknown rule 'trmean'. Did you mean 'trimmed_mean'?"
    """
    stages = known is RULES or known is MIXINGS
    named = {**RULES, **MIXINGS} if stages else known
    robust = [word for word, function in named.items() if declaration_of(function).robust]
    meant = _called(name, named) or next(iter(difflib.get_close_matches(name, robust, n=1)), "")
    message = unknown(what, name, known, "" if meant == name else meant)
    if not stages or not meant or meant in known:
        return message
    place = "a mixing: write it before a rule" if meant in MIXINGS else "a rule: write it last"
    return f"{message} ({'it' if meant == name else meant} is {place})"


def _called(name: str, known: Mapping[str, Function]) -> str:
    """What papers and other libraries call so, whatever they write between its letters; "" where there is nothing."""

    def letters(word: str) -> str:
        return re.sub(r"[\W_]", "", word).lower()

    names = {word: (word, *declaration_of(function).also_known_as) for word, function in known.items()}
    return next((word for word in known if letters(name) in map(letters, names[word])), "")


def name_of(function: Function) -> str:
    """ "module:name", by which another process can import a function; an error for one that has no such name.

    function  defined at the top of a module

    >>> name_of(RULES["krum"])
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
        tree = ast.parse(OWN.sub(lambda m: m[1] or f"{m[2]}@{m[3]}", text.strip()), mode="eval").body
        ast.unparse(tree)  # Errors show parts of it, which fails where it is nested too deeply.
        return tree
    except UNREADABLE:
        raise ValueError(
            f"cannot read the {what} {text!r:.100}.{_hint(text)} Write {form}; one of your own is module:name."
        ) from None


def _hint(text: str) -> str:
    """The rule or mixing that is written with another sign between its words, as in multi-krum."""
    name = text.partition("(")[0].strip()
    word = _called(name, {**RULES, **MIXINGS})
    return f" Did you mean {word!r}?" if word not in ("", name) else ""


def _part(node: ast.expr) -> Part:
    """The part that a node is."""
    module = ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        module, node = f"{ast.unparse(node.left)}:", node.right
    name, words = (node.func, node.keywords) if isinstance(node, ast.Call) and not node.args else (node, [])
    parameters = {word.arg: word.value for word in words if word.arg is not None}
    named = isinstance(name, ast.Name) or (module and isinstance(name, ast.Attribute))
    if named and len(parameters) == len(words):
        return Part(module + ast.unparse(name), {key: _value(given) for key, given in parameters.items()})
    raise ValueError(
        f"cannot read {ast.unparse(node)!r}.{_hint(ast.unparse(node))} Write name(f=10): parameters go by name, each once; "
        "one of your own is module:name."
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
