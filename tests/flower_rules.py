"""Every rule as a spec that ten nodes are enough for."""

import inspect

from fedhold import RULES

GIVEN = {"f": 2, "radius": 1.0}
FEWER = {"bulyan": {"f": 1}}


def spec(name):
    """The spec of a rule with the parameters it needs."""
    given = {
        key: value
        for key, value in {**GIVEN, **FEWER.get(name, {})}.items()
        if key in inspect.signature(RULES[name]).parameters
    }
    return f"{name}({', '.join(f'{key}={value}' for key, value in given.items())})"


EVERY_RULE = [spec(name) for name in RULES]
