"""Groups of a model's arrays, each aggregated by itself: adapters, whose numbers have other units, and heads that stay.

    updates -> one dict of arrays per client and group -> the rule in each group -> one value, and every client's worst status

A client that cannot take part in one group takes part in none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import listed
from fedhold.kernels import is_array, kind
from fedhold.result import Aggregation, Clients
from fedhold.spec import Stage
from fedhold.updates import Path, Rejection, filled, flatten, opened

__all__ = ["ADAPTERS", "Groups", "Patterns", "check_groups", "check_scale", "in_groups", "matches"]

Patterns = str | Sequence[str]
Groups = Mapping[str, Patterns] | Callable[[str], str] | str
Cut = dict[str, dict[Path, Any]]

ADAPTERS: Mapping[str, Patterns] = {
    "lora_A": ("*lora_A*", "*lora_embedding_A*", "*lora_down*"),
    "lora_B": ("*lora_B*", "*lora_embedding_B*", "*lora_up*"),
    "magnitude": "*lora_magnitude*",
}
"""The two factors of a low-rank change and the lengths of DoRA, by the names that PEFT and diffusers give them."""

REST = "rest"


def in_groups(
    aggregate: Callable[..., Aggregation], updates: Any, groups: Groups | None, exclude: Patterns | None, **call: Any
) -> Aggregation:
    """aggregate() in each group, put together.

    aggregate  aggregates the arrays of one group
    updates    as for aggregate(): structures whose arrays have names
    groups     name -> a pattern of paths, or several; or a function from a path to a name. Arrays that no pattern matches are a
               group of their own, "rest". "adapters" stands for ADAPTERS
    exclude    patterns of the paths whose arrays stay as they are in `like`
    call       the other arguments of aggregate(); like, start and root are cut as the updates are
    """
    if is_array(updates):
        raise TypeError("groups and exclude go by the names of arrays. Pass a list with one dict of arrays per client.")
    like = call["like"]
    if exclude is not None and like is None:
        raise TypeError("exclude keeps arrays as they are in the model. Pass like=<the model you sent>, too.")
    updates, name_of = opened(updates), _naming(groups, exclude)
    clients = [_cut(update, name_of) for update in updates]
    points = {name: _cut_point(call.pop(name), name, name_of) for name in ("like", "start", "root")}
    names = _usual_names(clients) if points["like"] is None else list(points["like"])
    if not names:
        raise ValueError(f"exclude={exclude!r} leaves no array to aggregate. Exclude fewer.")
    rejected, newly = dict[int, Rejection](), {-1: Rejection("")}
    while newly:
        results = {}
        for name in names:
            own = {key: None if point is None else point.get(name) for key, point in points.items()}
            parts = [rejected.get(i) or _part(client, name) for i, client in enumerate(clients)]
            results[name] = aggregate(parts, **own, **call)
        newly = {
            i: Rejection(f"{name}: {result.clients[i].reason}" if len(names) > 1 else result.clients[i].reason)
            for name, result in results.items()
            for i in result.clients.with_status("rejected")
            if i not in rejected and len(names) > 1
        }
        rejected |= newly
    arrays = {path: array for result in results.values() for path, array in result.value.items()}
    first = next(iter(results.values()))
    if like is None:
        like = updates[int(np.flatnonzero(first.clients.statuses != "rejected")[0])]
    told = [result.f for result in results.values() if result.f is not None]
    return Aggregation(
        value=filled(like, lambda path, array: arrays.get(path, array)),
        weights=None,
        clients=_worst({name: result.clients for name, result in results.items()}),
        converged=all(result.converged for result in results.values()),
        iterations=sum(result.iterations for result in results.values()),
        rule=first.rule,
        f=min(told, default=None),
        proof=None,
        groups=results,
    )


def check_groups(keys: Sequence[str], groups: Groups | None, exclude: Patterns | None) -> None:
    """Raise an error where a pattern fits none of a model's arrays, or `exclude` fits all of them: a typing error, mostly."""
    name_of = _naming(groups, exclude)
    own = list(groups.values()) if isinstance(groups, Mapping) else []
    for patterns in [*own, *([] if exclude is None else [exclude])]:
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            if not any(fnmatchcase(key, pattern) for key in keys):
                raise ValueError(
                    f"{pattern!r} matches no array of the model. Its arrays are {listed(list(keys)[:20])}."
                )
    if all(name_of(key) is None for key in keys):
        raise ValueError(f"exclude={exclude!r} leaves no array to aggregate. Exclude fewer.")


def check_scale(final: Stage, argument: str, groups: Groups | None, exclude: Patterns | None) -> None:
    """Raise an error where an argument asks for a scale that goes on from round to round, and there is none."""
    if groups is not None or exclude is not None:
        raise TypeError(f"{argument} is about one geometry, and groups have one each. Leave one of them out.")
    if not final.takes("scale"):
        raise TypeError(f"{final.name} remembers no scale. Leave out {argument}, or use huber.")


def matches(path: str, patterns: Patterns) -> bool:
    """Whether one of the patterns fits the path of an array."""
    return any(fnmatchcase(path, pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns))


def _naming(groups: Groups | None, exclude: Patterns | None) -> Callable[[str], str | None]:
    """A function from a path to its group; to None where it is excluded."""
    if isinstance(groups, str) and groups != "adapters":
        raise ValueError(f'groups={groups!r} is unknown. Pass "adapters", or a mapping such as {{"head": "head.*"}}.')
    known = ADAPTERS if isinstance(groups, str) else groups or {}

    def name_of(path: str) -> str | None:
        if exclude is not None and matches(path, exclude):
            return None
        if callable(known):
            return str(known(path))
        return next((name for name, patterns in known.items() if matches(path, patterns)), REST)

    return name_of


def _cut(update: Any, name_of: Callable[[str], str | None]) -> Cut | Rejection:
    """The arrays of an update, by group and path; a Rejection of what is no update."""
    try:
        leaves = flatten(update)
    except TypeError as problem:
        return Rejection(str(problem))
    named = [(leaf, name_of(".".join(map(str, leaf.path)))) for leaf in leaves]
    floats = [name for leaf, name in named if name is not None and kind(leaf.array) == "float"]
    cut: Cut = {}
    for leaf, name in named:
        if name is not None:  # Counters have no distances, in whatever group they are. One of floats takes them along.
            place = floats[0] if floats and name not in floats else name
            cut.setdefault(place, {})[leaf.path] = leaf.array
    return cut


def _cut_point(update: Any, argument: str, name_of: Callable[[str], str | None]) -> Cut | None:
    """The same of an update that the caller gave."""
    cut = None if update is None else _cut(update, name_of)
    if isinstance(cut, Rejection):
        raise TypeError(f"{argument} must be shaped as the updates: {cut.reason}. Pass a model or an aggregate.")
    return cut


def _part(client: Cut | Rejection, name: str) -> dict[Path, Any] | Rejection:
    return client if isinstance(client, Rejection) else client.get(name) or Rejection("misses all arrays of the group")


def _usual_names(clients: Sequence[Cut | Rejection]) -> list[str]:
    """The groups that most clients have."""
    sets = [sorted(client) for client in clients if not isinstance(client, Rejection)]
    return max(sets, key=sets.count) if sets else [REST]


def _worst(groups: Mapping[str, Clients]) -> Clients:
    """Every client's row in the group that treats it worst: by its status, and by its share where that is the same."""
    severity = ["kept", "clipped", "dropped", "rejected"]
    codes = np.array([[severity.index(status) for status in clients.statuses] for clients in groups.values()])
    shares = np.array([np.nan_to_num(clients.shares, nan=1.0) for clients in groups.values()])
    worst = np.argmax(codes - shares / (1 + shares), axis=0)
    columns = list(groups.values())

    def picked(name: str) -> NDArray[np.float64]:
        return np.array([getattr(clients, name) for clients in columns])[worst, np.arange(len(worst))]

    return Clients(
        indices=columns[0].indices,
        reasons=tuple(columns[k].reasons[i] for i, k in enumerate(worst.tolist())),
        groups={name: clients.statuses for name, clients in groups.items()},
        statuses=picked("statuses"),  # type: ignore[arg-type]
        **{name: picked(name) for name in ("distances", "thresholds", "weights", "shares", "samples")},
    )
