"""Nothing that aggregate() is given is modified, nor handed back for the caller to modify by accident."""

import numpy as np
import pytest
import torch

from cases import F, M, honest_updates, parameters, takes, with_liars
from fedhold import RULES, aggregate


def frozen(array):
    copy = array.copy()
    copy.setflags(write=False)
    return copy


FORMS = {
    "stacked": lambda X: X.copy(),
    "read-only": frozen,
    "list": lambda X: list(X.copy()),
    "read-only list": lambda X: [frozen(x) for x in X],
    "layers": lambda X: [[x[:30].reshape(5, 6).copy(), x[30:].copy()] for x in X],
    "state": lambda X: [{"w": x[:30].reshape(5, 6).copy(), "b": x[30:].copy()} for x in X],
    "tensor": lambda X: torch.from_numpy(X.copy()),
    "tensors": lambda X: [torch.from_numpy(x.copy()) for x in X],
    "parameters": lambda X: [{"w": torch.nn.Parameter(torch.from_numpy(x.copy()))} for x in X],
}


def contents(thing):
    """Every byte of it, and where it stands."""
    if isinstance(thing, dict):
        return {key: contents(part) for key, part in thing.items()}
    if isinstance(thing, list):
        return [contents(part) for part in thing]
    array = thing.detach().numpy() if isinstance(thing, torch.Tensor) else thing
    return array.tobytes(), array.dtype.str, array.shape, array.strides


def arrays(thing):
    if isinstance(thing, dict | list):
        return [array for part in (thing.values() if isinstance(thing, dict) else thing) for array in arrays(part)]
    return [thing.detach().numpy() if isinstance(thing, torch.Tensor) else thing]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", FORMS)
def test_nothing_passed_is_modified_or_handed_back(rule, form):
    lies = np.ones((F, 40))
    lies[0, 0], lies[1], lies[2] = np.nan, 1e30, 1e-40
    updates = FORMS[form](with_liars(lies, honest_updates(dtype=np.float32)))
    samples = np.r_[-1.0, 1e9, [10.0] * (M - 2)]
    place = FORMS[form](np.ones((1, 40), np.float32))[0]
    places = {name: place for name in ("start", "root") if takes(rule, name)}
    given = [updates, samples, *places.values()]
    before = contents(given)
    result = aggregate(updates, rule, samples=samples, **places, **parameters(rule, F))
    assert result.certificate is None or result.certificate.radius(1) >= 0
    assert contents(given) == before
    for value in arrays(result.value):
        value += 1  # the caller's own to change
    assert contents(given) == before
