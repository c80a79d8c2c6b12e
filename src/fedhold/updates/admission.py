"""Admission: which clients may take part, and why others may not. It is the same for every rule, and comes first."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Real
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhold.errors import positive, visible
from fedhold.kernels import (
    Vector,
    Weights,
    dtype_name,
    from_host,
    host,
    is_array,
    is_dask,
    is_plain,
    kind,
    largest,
    loops,
    middle,
    stacked,
    to_host,
    unscaled,
)
from fedhold.sizes import LITTLE, PART, SMALL
from fedhold.updates.counters import Counters
from fedhold.updates.files import StoredArray
from fedhold.updates.first import Centre, Columnwise, FirstLook, Wanted, first_look
from fedhold.updates.mistakes import mistake
from fedhold.updates.structure import Leaf, Signature, count, describe, flatten, form, rebuild, signature
from fedhold.updates.tiles import DOUBLE_ROOM, Source, Updates, axes_in_memory, exponents_of, read_dtype

__all__ = ["Admission", "Sent", "admit", "gather"]

FLAT = "a dict of arrays of NumPy"
AGGREGABLE, MASK = ("float", "integer"), "bool"
LEAST_SHARE = 1e-6  # of the median n_i. Less adds nothing to a mean, and can be too small to divide by.
LONGEST_REASON = 200  # characters. A client chooses the names of its arrays, which reasons quote.
FARTHEST = 1e100  # A start with larger numbers is refused, so that all of them can be squared.
MOST_STEPS = 3.0  # medians. More local steps count as so many; fewer than their inverse count as that.
FAR = 2.0**DOUBLE_ROOM  # Distances can be measured up to here, so the numbers of a start are clipped to it.


@dataclass(frozen=True, eq=False)
class Sent:
    """What clients sent, as far as forms and claims tell: no number has been read.

    updates    those of the clients whose form and claim are sound
    sound      the index in the input of each of these clients
    claimed    the n_i as given, one per client
    cap        the multiple of the median n_i at which claims are capped; None trusts all claims
    reasons    one per client: why it was rejected; '' if it was not
    counters   the sound clients' counters and masks, which are no part of `updates`
    templates  updates of which one is returned in the form of: `like`, or those of the sound clients
    dtypes     the dtypes of the arrays of each sound client; one entry where all are alike
    steps      how many local steps each client claims to have made; None where nobody was asked
    """

    updates: Updates
    sound: NDArray[np.intp]
    claimed: Vector
    cap: float | None
    reasons: tuple[str, ...]
    counters: Counters
    templates: Sequence[Any]
    dtypes: list[list[str]]
    steps: Vector | None = None

    @property
    def rejected(self) -> int:
        """How many clients were rejected."""
        return len(self.reasons) - len(self.sound)

    @property
    def samples(self) -> Vector:
        """The n_i that count, if all of the sound clients are admitted."""
        return _counted(self.claimed[self.sound], self.cap)


@dataclass(frozen=True, eq=False)
class Admission:
    """The admitted clients' updates, and what was found out about every client.

    updates   the admitted clients' updates
    look      what the first pass over them found
    admitted  the index in the input of each admitted client
    samples   the n_i used, one per admitted client
    claimed   the n_i as given, one per client
    reasons   one per client: why it was rejected, or what was changed; '' if neither
    counters  the admitted clients' counters and masks, which are no part of `updates`
    template  an update of the right structure
    dtypes    the dtypes of its arrays: those that most admitted clients sent
    factors   what each admitted client's update is multiplied by, for the steps that it made; None where they stay as they are
    """

    updates: Updates
    look: FirstLook
    admitted: NDArray[np.intp]
    samples: Vector
    claimed: Vector
    reasons: tuple[str, ...]
    counters: Counters
    template: Any
    dtypes: list[str]
    factors: Vector | None = None

    @property
    def rejected(self) -> int:
        """How many clients were rejected."""
        return len(self.reasons) - len(self.admitted)

    def shaped(self, vector: Vector, weights: Weights | None = None) -> Any:
        """A vector of d numbers, in the units in which the updates are read, as one update; counters by these weights."""
        if is_dask(self.template):
            template, name = self.template, self.dtypes[0]
            return vector.map_blocks(_piece, self.updates.base, template.dtype, name, dtype=template.dtype)  # type: ignore[attr-defined]
        if self.updates.base:
            vector = unscaled(vector, self.updates.base)
        if self.updates.has_other_order:
            shapes = [tuple(leaf.array.shape) for leaf in self._measured(flatten(self.template))]
            vector = self.updates.in_order(vector, shapes)
        return rebuild(
            self.template, vector, self.dtypes, self.counters.medians(weights) if self.counters.paths else {}
        )

    def received(self, update: object) -> Vector:
        """What the caller received as an update, in the units in which the updates are read: rounded to its dtype."""
        arrays = [host(leaf.array) for leaf in self._measured(flatten(update))]
        exact = self.updates.dtype if all(kind(array) == "float" for array in arrays) else np.float64
        return self._in_units(self.updates.vector(arrays, exact))

    def _in_units(self, vector: Vector) -> Vector:
        """The caller's numbers in the units in which the updates are read."""
        base = self.updates.base
        return np.ldexp(vector, base) if base else vector

    def _measured(self, leaves: list[Leaf]) -> list[Leaf]:
        """The arrays that `updates` consists of."""
        return [leaf for leaf in leaves if leaf.path not in self.counters.paths]

    def place(self, update: object, name: str) -> Vector:
        """An update that the caller gave as the argument `name`, in the units in which the updates are read.

        An error is raised where it does not fit them.
        """
        leaves, expected = _template(update, name), signature(flatten(self.template))
        shapes = [(path, shape) for path, shape, _ in signature(leaves)]
        if shapes != [(path, shape) for path, shape, _ in expected]:
            raise ValueError(
                f"{name} must be shaped as the updates: {describe(signature(leaves), expected)}. Pass the last model or "
                "aggregate."
            )
        flat = self.updates.vector([leaf.array for leaf in self._measured(leaves)])
        farthest = largest(flat)
        if not farthest <= FARTHEST:
            raise ValueError(
                f"{name} has numbers that are not finite, or beyond {FARTHEST:g}. Pass the last sound one."
            )
        if farthest <= FAR and not self.updates.base:
            return flat
        return np.clip(self._in_units(flat), -FAR, FAR)


def _piece(piece: Vector, base: int, dtype: Any, name: str) -> Any:
    """Some numbers of a vector on a cluster, in the caller's units and the dtype of this name."""
    return from_host(unscaled(piece, base), np.empty(len(piece), dtype), name)


def _template(update: object, name: str) -> list[Leaf]:
    """The arrays of an update that the caller gave as the argument `name`."""
    try:
        leaves = _readable(update)
    except TypeError as problem:
        raise TypeError(
            f"{name} must be an update of floats or integers: {problem}. Pass a model or an aggregate."
        ) from None
    if not sum(count(leaf.array) for leaf in leaves):
        raise ValueError(f"{name} holds no numbers. Pass a model or an aggregate.")
    return leaves


def gather(
    updates: Any,
    samples: ArrayLike | None,
    sample_cap: float | None,
    like: object | None,
    steps: ArrayLike | None = None,
) -> Sent:
    """Check the structure, dtypes and samples of every client; reject only those that fail. No number is read.

    updates     what clients sent, as for aggregate()
    samples     the n_i they claim
    sample_cap  the multiple of the median n_i at which claims are capped; None trusts all claims
    like        an update of the right structure; None: the structure that most clients share is right
    steps       the numbers of local steps that they claim; None where updates stay as they are
    """
    m, columns = _count(updates), None
    reasons, leaves = [""] * m, list[list[Leaf] | None]()
    if is_array(updates):
        leaves = [[Leaf((), updates[0])]]
    elif (columns := _columns(updates)) is not None:
        leaves = [[Leaf(leaf.path, column[0]) for leaf, column in zip(flatten(updates[0]), columns, strict=True)]]
    else:
        leaves = [_arrays_of(update, reasons, i) for i, update in enumerate(updates)]
        if not any(leaves) and (problem := mistake(updates)):
            raise problem
    alike = len(leaves) < m  # The first client stands for all.
    signatures = [None if own is None else signature(own) for own in leaves]
    expected = _expected(signatures, like)
    for i, own in enumerate(signatures):
        if own is not None and own != expected:
            reason = visible(describe(own, expected), LONGEST_REASON)
            reasons[i : m if alike else i + 1] = [reason] * (m if alike else 1)
    claimed = np.ones(m) if samples is None else _claimed(samples, m, reasons, "samples", "n_i")
    claimed_steps = None if steps is None else _claimed(steps, m, reasons, "steps", "number of local steps")
    sound = np.array([i for i, reason in enumerate(reasons) if not reason], dtype=np.intp)
    if not len(sound):
        raise _nobody(reasons, "" if like is None else " Or pass as `like` what clients were to send.")
    if sample_cap is not None and positive(sample_cap, "sample_cap", infinite=True) < 1:
        raise ValueError(
            f"sample_cap must be at least 1, got {sample_cap}: it is a multiple of the median n_i. Pass 3, or None to trust."
        )

    counters = Counters((), ())
    if is_array(updates):
        matrix = _stacked(updates, sound)
    else:
        if columns is None:
            columns = list(map(list, zip(*([leaf.array for leaf in leaves[i] or ()] for i in sound), strict=True)))
        elif len(sound) < m:
            columns = [[column[i] for i in sound] for column in columns]
        columns, counters = _apart(expected, columns)
        matrix = Updates(_sources_of(columns), len(sound))
    of = [0] if alike else sound.tolist()
    return Sent(
        updates=matrix,
        sound=sound,
        claimed=claimed,
        cap=sample_cap,
        reasons=tuple(reasons),
        counters=counters,
        templates=[like] if like is not None else [updates[i] for i in of],
        dtypes=[[dtype_name(leaf.array) for leaf in leaves[i] or ()] for i in of],
        steps=claimed_steps,
    )


def admit(sent: Sent, wanted: Wanted, *, around_zero: bool = False) -> Admission:
    """Read all numbers once, and reject the clients whose numbers cannot be used.

    wanted       what else this pass should find
    around_zero  whether the rule looks from 0, so that nothing is to be subtracted
    """
    matrix, reasons, fit = sent.updates, list(sent.reasons), np.ones(len(sent.sound), dtype=bool)
    look = first_look(matrix, wanted, around_zero=around_zero)
    if not look.usable:
        magnitudes = matrix.sum(loops.largest, join=np.maximum)
        fit = _fit(magnitudes, sent.sound, reasons)
        if not fit.any():
            raise _nobody(reasons)
        chosen = matrix if fit.all() else matrix.take(np.flatnonzero(fit))
        scaled = chosen.scaled(magnitudes[fit])
        known = look if fit.all() else look.of(fit)
        known = known if scaled is chosen and known is not None and known.is_finite else None
        matrix = scaled
        anew = _anew(wanted, everyone=bool(fit.all()))
        look = first_look(matrix, anew, around_zero=around_zero) if known is None else known
    admitted = sent.sound[fit]
    claims = sent.claimed[admitted]
    counted = _counted(claims, sent.cap)
    for i, claim, number in zip(admitted.tolist(), claims, counted, strict=True):
        if claim != number:
            reasons[i] = f"samples {claim:g} {'capped at' if claim > number else 'raised to'} {number:g}"
    factors = None if sent.steps is None else _factors(sent.steps, admitted, reasons)
    fitting = np.flatnonzero(fit).tolist()
    # Where all clients sent the same form, one of them stands for all.
    templates = [sent.templates[k] for k in fitting] if len(sent.templates) == len(fit) else sent.templates
    dtypes = [sent.dtypes[k] for k in fitting] if len(sent.dtypes) == len(fit) else sent.dtypes
    return Admission(
        updates=matrix,
        look=look,
        admitted=admitted,
        samples=counted,
        claimed=sent.claimed,
        reasons=tuple(reasons),
        counters=sent.counters if fit.all() else sent.counters.take(np.flatnonzero(fit)),
        template=_most_usual(templates) if len(templates) > 1 else templates[0],
        dtypes=_most_dtypes(dtypes) if len(dtypes) > 1 else dtypes[0],
        factors=factors,
    )


def _factors(steps: Vector, admitted: NDArray[np.intp], reasons: list[str]) -> Vector | None:
    """s / s_i, with the median s of the claims s_i, which count as s / MOST_STEPS at least and MOST_STEPS s at most.

    s has one vote per client, so that a liar cannot move it beyond what honest clients claim. A factor gives him nothing
    either: he could have sent the multiple himself.
    """
    usual = middle(steps[admitted])
    with np.errstate(over="ignore"):
        wanted = usual / steps[admitted]
    factors = np.clip(wanted, 1 / MOST_STEPS, MOST_STEPS)
    for i, factor in zip(admitted[wanted != factors].tolist(), factors[wanted != factors].tolist(), strict=True):
        told = f"steps {steps[i]:g} counted as {usual / factor:g}"
        reasons[i] = f"{reasons[i]}; {told}" if reasons[i] else told
    return None if (factors == 1).all() else factors


def _anew(wanted: Wanted, *, everyone: bool) -> Wanted:
    """What is wanted of a second pass, where the first one could not be used.

    Weights that were for all clients, or were found from a sample whose numbers cannot be squared, mean nothing any more.
    """
    sampled = isinstance(wanted, Centre) and wanted.sample is not None
    return None if sampled or (isinstance(wanted, Centre | Columnwise) and not everyone) else wanted


def _apart(expected: Signature, columns: list[Sequence[Any]]) -> tuple[list[Sequence[Any]], Counters]:
    """The arrays that a rule aggregates, and the counters. In a model without floating numbers nothing is a counter."""
    floats = [sort == "float" for _, _, sort in expected]
    if all(floats) or not _has_floats(expected):
        return columns, Counters((), ())
    counted = [k for k, is_float in enumerate(floats) if not is_float]
    counters = Counters(tuple(expected[k][0] for k in counted), tuple(columns[k] for k in counted))
    return [column for column, is_float in zip(columns, floats, strict=True) if is_float], counters


def _has_floats(arrays: Signature) -> bool:
    return any(sort == "float" and math.prod(shape) for _, shape, sort in arrays)


def _most_usual(updates: Sequence[Any]) -> Any:
    """The first of the updates that come in the form in which most of them come."""
    forms = [FLAT if _is_flat(update) else form(update) for update in updates]
    return updates[forms.index(Counter(forms).most_common(1)[0][0])]


def _fit(magnitudes: Vector, sound: NDArray[np.intp], reasons: list[str]) -> NDArray[np.bool_]:
    """Which of the sound clients have numbers to aggregate. The others get their reason.

    Clients more than 2**400 times above the median one are out of reach: float64 cannot square both. No honest client is.
    """
    fit = np.isfinite(magnitudes)
    for i in sound[~fit].tolist():
        reasons[i] = "numbers that are not finite"
    exponents, typical = exponents_of(magnitudes[fit])
    fit[fit] = exponents <= typical + DOUBLE_ROOM
    for i, magnitude in zip(sound[~fit].tolist(), magnitudes[~fit], strict=True):
        reasons[i] = reasons[i] or f"numbers of {magnitude:.0e}, beyond 1e120 times the median client's"
    return fit


def _is_flat(update: object) -> bool:
    """Whether it is a dict of arrays of NumPy. All of these have one form if they have one signature."""
    return isinstance(update, dict) and all(isinstance(part, np.ndarray) for part in update.values())


def _count(updates: Any) -> int:
    """How many clients there are; an error unless `updates` has one entry per client."""
    if is_dask(updates):
        from fedhold.updates.cluster import require_blocks

        require_blocks(updates)
    if is_array(updates):
        shape = tuple(updates.shape)
        if len(shape) < 2:
            raise ValueError(
                f"updates must have one row per client, got shape {shape}. Pass an (m, d) array; for one number per client, "
                "updates.reshape(-1, 1)."
            )
        if kind(updates) not in AGGREGABLE:
            raise TypeError(f"updates of dtype {kind(updates)} cannot be aggregated. Pass floats or integers.")
    elif not isinstance(updates, list | tuple):
        problem = mistake(updates)
        assert problem is not None
        raise problem
    if len(updates) == 0:
        raise ValueError("updates holds no clients. Keep the current model for this round.")
    return len(updates)


def _columns(clients: Sequence[Any]) -> list[Sequence[Any]] | None:
    """Each array of the model for all clients; None unless all sent arrays of one library, structure, shape and dtype.

    Most rounds are like this: an array is then looked at for all clients at once, in a fifth of the time that it takes to look
    at each client by itself.
    """
    kinds = set(map(type, clients))
    if len(kinds) > 1 or kinds & {str, bytes}:
        return None
    try:
        if kinds <= {dict, OrderedDict, list, tuple}:
            paths = [path for path, _ in flatten(clients[0])]
            if not paths or any(len(path) != 1 for path in paths) or set(map(len, clients)) != {len(paths)}:
                return None
            columns = _views([list(map(itemgetter(key), clients)) for (key,) in paths])
        else:
            columns = _views([list(clients)])
    except Exception:  # Whoever sent what cannot be read is found when each client is looked at by itself.
        return None
    sorts = [kind(column[0]) for column in columns]
    floats = any(sort == "float" and count(column[0]) for sort, column in zip(sorts, columns, strict=True))
    return None if MASK in sorts and not floats else columns  # Bools alone have no mean. Each client is then told so.


def _views(columns: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """NumPy views of arrays that are alike; an error where they are not, or are of a kind that needs a closer look."""
    views = list[Any]()
    for column, together in zip(columns, _small(columns), strict=True):
        (library,) = set(map(type, column))
        dtypes = list(map(attrgetter("dtype"), column))
        if not is_array(column[0]) or is_dask(column[0]) or dtypes.count(dtypes[0]) < len(dtypes):
            raise TypeError
        if together and library is not np.ndarray:
            views.append(stacked(column))
        else:
            views.append(column if library is np.ndarray else list(map(host, column)))
            shapes = list(map(attrgetter("shape"), column))
            if shapes.count(shapes[0]) < len(shapes):
                raise TypeError
        first = views[-1][0]
        if not is_plain(first) or kind(first) not in (*AGGREGABLE, MASK):
            raise TypeError
    return views


def _arrays_of(update: Any, reasons: list[str], client: int) -> list[Leaf] | None:
    """The arrays of a client; None, and a reason, where it sent something else."""
    try:
        leaves = _readable(update)
        if any(is_dask(leaf.array) for leaf in leaves):
            raise TypeError("a Dask array of its own; those of all clients make one, dask.array.stack(updates)")
        return leaves
    except Exception as problem:  # An object that a client sent may raise anything; it costs only that client.
        reasons[client] = visible(problem, LONGEST_REASON) or type(problem).__name__
        return None


def _readable(update: object) -> list[Leaf]:
    """The arrays of an update, as NumPy views where they are in host memory."""
    leaves = flatten(update)
    masks = False
    for leaf in leaves:
        sort = kind(leaf.array)
        masks = masks or sort == MASK
        if sort not in (*AGGREGABLE, MASK):
            raise TypeError(f"dtype {sort} is neither float nor integer")
    if masks and not _has_floats(signature(leaves)):
        raise TypeError(f"dtype {MASK} is neither float nor integer")
    return [leaf if is_plain(leaf.array) else Leaf(leaf.path, host(leaf.array)) for leaf in leaves]


def _expected(signatures: list[Signature | None], like: object | None) -> Signature:
    """The structure that every client must have: that of `like`, or the one most clients share."""
    if like is not None:
        expected = signature(_template(like, "like"))
    else:
        ranking = Counter(own for own in signatures if own is not None).most_common(2)
        if not ranking:
            return ()
        if len(ranking) > 1 and ranking[0][1] == ranking[1][1]:
            raise ValueError(
                f"updates come in structures that equally many clients share ({describe(ranking[1][0], ranking[0][0])}). "
                "Pass like=<one update>, such as the model you sent, to say which is right."
            )
        expected = ranking[0][0]
    if not any(math.prod(shape) for _, shape, _ in expected):
        raise ValueError("updates hold no numbers: every array is empty. Pass updates with at least one number.")
    return expected


def _claimed(samples: ArrayLike, m: int, reasons: list[str], name: str, one: str) -> Vector:
    """The numbers that clients claim, as the argument `name`. What is no positive number costs its client the round."""
    # Claims in a list are read one by one, so that a claim of "many" costs only the client that made it.
    if isinstance(samples, list | tuple):
        samples = [_number(claim) for claim in samples]
    claimed = np.asarray(samples)
    if claimed.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers, got dtype {claimed.dtype}. Pass one {one} per client, or None.")
    if claimed.shape != (m,):
        raise ValueError(f"{name} have shape {claimed.shape} for {m} clients. Pass {m} numbers, one {one} per client.")
    for i in np.flatnonzero(~(np.isfinite(claimed) & (claimed > 0))).tolist():
        reasons[i] = reasons[i] or f"{name} {claimed[i]:g}: not a positive number"
    return claimed.astype(np.float64)


def _number(claim: object) -> float:
    """A claim as a float; NaN where it is not a number."""
    claim = claim.item() if hasattr(claim, "item") and np.size(claim) == 1 else claim  # type: ignore[arg-type]
    if isinstance(claim, bool) or not isinstance(claim, Real):
        return np.nan
    try:
        return float(claim)
    except OverflowError:
        return np.inf


def _counted(claims: Vector, cap: float | None) -> Vector:
    """The n_i that count: at least a millionth of their median, and at most `cap` times it."""
    typical = middle(claims)
    with np.errstate(over="ignore"):
        return np.clip(claims, typical * LEAST_SHARE, np.inf if cap is None else typical * cap)


def _nobody(reasons: list[str], hint: str = "") -> ValueError:
    """The error where no client is left."""
    ((reason, often),) = Counter(reasons).most_common(1)
    return ValueError(
        f"all {len(reasons)} clients were rejected; {often} of them because: {reason}. Keep the current model.{hint}"
    )


def _stacked(updates: Any, sound: NDArray[np.intp]) -> Updates:
    """The updates of clients that are the rows of one array."""
    m, chosen = len(sound), None if len(sound) == len(updates) else sound
    if is_dask(updates):
        from fedhold.updates.cluster import ClusterUpdates, source_of  # Others do not need Dask.

        return ClusterUpdates((source_of(updates),), m, chosen)
    array = host(updates)
    size = count(array) // len(array)
    if array.ndim > 2 and isinstance(array, np.ndarray) and not array.flags.c_contiguous:
        return Updates((Source.of([array[i] for i in sound], size),), m)  # To flatten the whole array would copy it.
    return Updates((Source.of(array if array.ndim == 2 else array.reshape(len(array), size), size),), m, chosen)


def _sources_of(columns: list[Sequence[Any]]) -> tuple[Source, ...]:
    """One source per array of the model, or for neighbouring small ones, given each array for all clients."""
    sources, dtypes = list[Source](), [read_dtype(column) for column in columns]
    for (together, dtype), group in groupby(zip(_small(columns), dtypes, columns, strict=True), itemgetter(0, 1)):
        neighbours = [column for *_, column in group]
        if together:
            sources.append(_joined(neighbours, dtype))
        else:
            sources += [Source.of(list(column), count(column[0])) for column in neighbours]
    return tuple(sources)


def _small(columns: Sequence[Sequence[Any]]) -> list[bool]:
    """Which arrays are copied to one with their neighbours: passes over many small arrays would take longer than the copy.

    All of them where there are few numbers; otherwise those that stay in cache, if they are few beside the others.
    """
    m, sizes = len(columns[0]), [count(column[0]) for column in columns]
    numbers = m * sum(sizes)
    if any(isinstance(column[0], StoredArray) for column in columns):
        return [False] * len(columns)
    if numbers <= LITTLE:
        return [True] * len(columns)
    small = [m * size <= SMALL for size in sizes]
    copied = m * sum(size for size, one in zip(sizes, small, strict=True) if one)
    # A source of several arrays has no order of axes, and then none of the others may have one.
    as_they_come = all(one or axes_in_memory(column) is None for column, one in zip(columns, small, strict=True))
    return small if as_they_come and copied <= numbers // PART else [False] * len(columns)


def _joined(columns: list[Sequence[Any]], dtype: type[np.float32] | type[np.float64]) -> Source:
    """Some arrays of every client, one after the other, as one array."""
    ends = np.cumsum([count(column[0]) for column in columns]).tolist()
    matrix = np.empty((len(columns[0]), ends[-1]), dtype)
    with np.errstate(over="ignore"):  # A longdouble beyond float64 becomes infinite, and its client is rejected.
        for start, end, column in zip([0, *ends], ends, columns, strict=False):
            alike = isinstance(column, np.ndarray) or set(map(attrgetter("dtype"), column)) == {matrix.dtype}
            arrays = column if alike else [to_host(array, None) for array in column]
            matrix[:, start:end] = to_host(stacked(arrays), None).reshape(len(matrix), -1)
    return Source.of(matrix, ends[-1])


def _most_dtypes(names: list[list[str]]) -> list[str]:
    """For each array of the model, the dtype in which most clients sent it."""
    return [Counter(column).most_common(1)[0][0] for column in zip(*names, strict=True)]
