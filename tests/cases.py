"""What the tests of every rule share: the parameters a rule needs, its smallest m, honest clients, and how far off is far."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedhold
from fedhold import MIXINGS, RULES, Aggregation
from fedhold.errors import InfeasibleError
from fedhold.rules import declaration_of

FRAGILE = [rule for rule in RULES if not declaration_of(RULES[rule]).robust]
ROBUST = [rule for rule in RULES if rule not in FRAGILE]

# An offset that all clients share changes what these do.
FROM_ZERO = [rule for rule in RULES if declaration_of(RULES[rule]).from_zero]

# These make updates shorter or longer before they average them, so that the weights need not sum to 1.
RESCALING = [rule for rule in RULES if "Rescaled" in inspect.signature(RULES[rule]).return_annotation]

# Admission is the same for every rule, and comes first. These go the different ways through the data that follow it: weights
# from distances, from pairs and from directions, rows of columns, both, updates rescaled, a rule that draws.
BY_EVERY_WAY = ("spectral_huber", "krum", "median", "bulyan", "fl_trust", "divide_and_conquer")

# 17 % liars. Bulyan, the most demanding rule, needs m >= 4f + 3 = 19, and has that still when F of the M are rejected.
M, F = 23, 4

# Honest updates are about one spread from their mean and Krum returns one of them, so less than 1 is not to be had; a rule
# that clips lets each liar pull like one honest client, which for a sixth of the clients is well below a spread. What has
# been captured is off by many powers of ten.
SMALL = 3.0

BOUNDS = {
    name: tuple(map(int, found.groups()))
    for name, function in {**RULES, **MIXINGS}.items()
    if (found := re.search(r"Needs m >= (\d)f \+ (\d)", function.__doc__))
}
"""rule -> (a, b): its docstring says that it needs m >= a f + b. Rules that are not here need one client."""


def parameters(rule: str, f: int) -> dict[str, int]:
    """What `rule` must be told to withstand f liars, and to draw the same in every call."""
    return {name: value for name, value in {"f": f, "rng": 0}.items() if takes(rule, name)}


def takes(rule: str, name: str) -> bool:
    """Whether `rule` has this parameter."""
    return name in inspect.signature(RULES[rule]).parameters


def smallest(rule: str, f: int) -> int:
    """The fewest clients with which `rule` withstands f liars."""
    a, b = BOUNDS.get(rule, (0, 1))
    return a * f + b


def honest_updates(m: int = M - F, d: int = 40, *, seed: int = 0, dtype: type = np.float64) -> np.ndarray:
    """m x d: a direction the clients agree on, and noise."""
    rng = np.random.default_rng(seed)
    return (rng.normal(1.0, 0.3, d) + 0.5 * rng.normal(size=(m, d))).astype(dtype)


def with_liars(lies: np.ndarray, honest: np.ndarray) -> np.ndarray:
    """The lies in front of the honest updates: where a rule breaks ties to the lower index, it meets a liar there."""
    return np.concatenate([np.asarray(lies, dtype=honest.dtype), honest])


def error(value: np.ndarray, honest: np.ndarray) -> float:
    """How far `value` is from the honest mean, in honest spreads: the median distance of the honest to their mean.

    In extended precision, whose exponents reach far beyond float64: the squares of 1e300 and 1e-310 are numbers there.
    """
    wide = np.asarray(honest, dtype=np.longdouble)
    centre = wide.mean(axis=0)
    spread = np.median(np.sqrt(((wide - centre) ** 2).sum(axis=1)))
    return float(np.sqrt(((np.asarray(value, dtype=np.longdouble) - centre) ** 2).sum()) / spread)


def assert_accounted(result: Aggregation) -> None:
    """Whatever came in: the solve has ended, the rows and weights are numbers, and a rejection has its reason."""
    assert result.converged
    for row in result.clients:
        if row.status == "rejected":
            assert row.reason
            assert row.distance is None
            assert row.weight == 0
        else:
            assert row.distance is not None
            assert np.isfinite(row.distance)
            assert row.samples > 0
    if result.weights is not None:
        assert (result.weights >= 0).all()
        assert np.isclose(result.weights.sum(), 1) or result.rule in RESCALING
        assert [row.weight for row in result.clients] == result.weights.tolist()
    assert str(result.clients)
    assert repr(result)


def assert_held(result: Aggregation, honest: np.ndarray) -> None:
    """The aggregate of clients of whom all but the last len(honest) lied is a sound one, and near the honest mean."""
    assert_accounted(result)
    value = np.asarray(result.value)
    assert value.dtype == honest.dtype
    assert value.shape == honest.shape[1:]
    assert np.isfinite(value).all()
    liars = len(result.clients) - len(honest)
    assert "rejected" not in [row.status for row in result.clients[liars:]]
    alone = len(result.clients.with_status("rejected")) == liars
    if result.rule not in FRAGILE or (result.rule == "mean" and alone):
        assert error(value, honest) <= SMALL


REMEDY = re.compile(r"\b(Pass|Lower|Keep|Leave|Write|Use|Known|Did you mean)\b")


def assert_refused(kind: type[Exception], *words: str, call: Callable[[], object]) -> None:
    """An error of ours: of this kind, raised by our code, with these words and a remedy in its message."""
    with pytest.raises(kind) as problem:
        call()
    assert type(problem.value) in ((ValueError, InfeasibleError) if kind is ValueError else (kind,))
    assert Path(problem.traceback[-1].path).is_relative_to(Path(fedhold.__file__).parent)
    message = str(problem.value)
    for word in words:
        assert word in message
    assert REMEDY.search(message), message
