"""Updates of another shape, dtype, library or structure than the others': that client is rejected, the round goes on."""

import signal
from collections import OrderedDict
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from cases import BY_EVERY_WAY, SMALL, F, M, assert_accounted, error, honest_updates, parameters
from fedhold import aggregate
from fedhold.updates import admission
from fedhold.updates.structure import flatten

by_every_way = pytest.mark.parametrize("rule", BY_EVERY_WAY)
ROWS, COLUMNS = 5, 7
D = ROWS * COLUMNS + ROWS


def as_layers(vector):
    return [vector[: ROWS * COLUMNS].reshape(ROWS, COLUMNS), vector[ROWS * COLUMNS :]]


def as_state(vector):
    return dict(zip(("weight", "bias"), as_layers(vector), strict=True))


def flat(update):
    """One update as a vector, whatever its form."""
    parts = [update["weight"], update["bias"]] if isinstance(update, dict) else update
    return np.asarray(update) if hasattr(update, "dtype") else np.concatenate([np.ravel(part) for part in parts])


def itself(vector):
    return vector


def containing_itself(_):
    ring = []
    ring.append(ring)
    return ring


def nested(depth):
    def lie(vector):
        nest = vector
        for _ in range(depth):
            nest = [nest]
        return nest

    return lie


class Unprintable:
    def __str__(self):
        raise RuntimeError("no name")


def dtyped(dtype):
    return lambda vector: vector.astype(dtype)


# form -> what a liar sends in place of its vector, and a word of the reason
LIES = {
    "longer": (itself, lambda v: np.append(v, 1.0), "shape (41,), expected (40,)"),
    "shorter": (itself, lambda v: v[1:], "shape (39,)"),
    "a column": (itself, lambda v: v[:, None], "shape (40, 1)"),
    "a row": (itself, lambda v: v[None], "shape (1, 40)"),
    "a number": (itself, lambda v: v[0], "float64"),
    "a 0-d array": (itself, lambda v: np.array(v[0]), "shape ()"),
    "nothing": (itself, lambda v: v[:0], "shape (0,)"),
    "strings": (itself, dtyped(str), "dtype <U32"),
    "bytes": (itself, dtyped("S"), "dtype |S"),
    "objects": (itself, dtyped(object), "dtype object"),
    "NaN objects": (itself, lambda v: np.array([None] * len(v)), "dtype object"),
    "bools": (itself, dtyped(bool), "dtype bool"),
    "complex": (itself, dtyped(complex), "dtype complex128"),
    "integers": (itself, dtyped(np.int64), "kind integer, expected float"),
    "dates": (itself, dtyped("datetime64[s]"), "dtype datetime64"),
    "records": (itself, lambda v: np.zeros(len(v), dtype=[("a", "f8")]), "dtype"),
    "layers for an array": (itself, as_layers, "misses the array itself"),
    "a dict for an array": (itself, as_state, "misses the array itself"),
    "None": (itself, lambda _: None, "NoneType"),
    "text": (itself, lambda _: "nan", "str is not an array"),
    "floats in a list": (itself, lambda v: v.tolist(), "float at [0] is not an array"),
    "a generator": (itself, lambda v: (x for x in v), "generator is not an array"),
    "a set": (itself, lambda v: set(v.tolist()), "set is not an array"),
    "a function": (itself, lambda _: np.zeros, "not an array"),
    "a class": (itself, lambda _: np.ndarray, "not an array"),
    "a list in itself": (itself, containing_itself, "nested deeper"),
    "a very deep list": (itself, nested(10_000), "nested deeper"),
    "beyond float64": (itself, lambda v: v.astype(np.longdouble) * np.longdouble("1e4000"), "not finite"),
    "a sparse tensor": (itself, lambda v: torch.from_numpy(v).to_sparse(), ""),
    "a tensor without data": (itself, lambda v: torch.from_numpy(v).to("meta"), ""),
    "an 8-bit tensor": (itself, lambda v: torch.from_numpy(v * np.nan).to(torch.float8_e4m3fn), ""),
    "a complex tensor": (itself, lambda v: torch.from_numpy(v).to(torch.complex64).conj(), "dtype complex64"),
    "a layer missing": (as_layers, lambda v: as_layers(v)[:1], "misses [1]"),
    "a layer too many": (as_layers, lambda v: [*as_layers(v), v], "extra [2]"),
    "layers swapped": (as_layers, lambda v: as_layers(v)[::-1], "shape (5,) at [0], expected (5, 7)"),
    "no layers": (as_layers, lambda _: [], "misses [0]"),
    "layers one level down": (as_layers, lambda v: [as_layers(v)], "misses [0]"),
    "an array for layers": (as_layers, itself, "misses [0]"),
    "None for a layer": (as_layers, lambda v: [as_layers(v)[0], None], "NoneType at [1]"),
    "a layer of bools": (as_layers, lambda v: [as_layers(v)[0], v[-ROWS:] > 0], "dtype of kind bool"),
    "a layer in itself": (as_layers, lambda v: [as_layers(v)[0], containing_itself(v)], "nested deeper"),
    "a key missing": (as_state, lambda v: {"weight": as_layers(v)[0]}, "misses ['bias']"),
    "a key too many": (as_state, lambda v: as_state(v) | {"more": v}, "extra ['more']"),
    "a key misspelt": (as_state, lambda v: dict(zip(("weight", "Bias"), as_layers(v), strict=True)), "misses ['bias']"),
    "layers for a dict": (as_state, as_layers, "misses"),
    "an empty dict": (as_state, lambda _: {}, "misses"),
    "keys in bytes": (as_state, lambda v: {key.encode(): part for key, part in as_state(v).items()}, "misses"),
    "keys of all kinds": (as_state, lambda v: as_state(v) | {None: v, 1: v, (2, "x"): v, np.nan: v}, "extra"),
    "a key without a name": (as_state, lambda v: as_state(v) | {Unprintable(): v}, ""),
    "a value in itself": (as_state, lambda v: as_state(v) | {"bias": containing_itself(v)}, "nested deeper"),
}


@contextmanager
def within(seconds):
    """Fail, rather than wait, when the body takes longer."""

    def late(*_):
        raise TimeoutError

    in_time = True
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except TimeoutError:
        in_time = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # Outside the `except`: to show the frames of what never ends, pytest would have to compare what is in them.
    assert in_time, f"still busy after {seconds} s"


@by_every_way
@pytest.mark.parametrize("liars", [1, F])
@pytest.mark.parametrize("lie", LIES)
def test_who_sends_something_else_is_rejected_and_told_why(rule, liars, lie):
    form, lies, word = LIES[lie]
    honest = honest_updates(M - liars, D)
    updates = [lies(vector) for vector in honest_updates(liars, D, seed=1)] + [form(vector) for vector in honest]
    with within(5):
        result = aggregate(updates, rule, **parameters(rule, F))
    assert_accounted(result)
    assert result.clients.with_status("rejected") == list(range(liars))
    for row in result.clients[:liars]:
        assert word in row.reason
        assert len(row.reason) < 300
    assert type(result.value) is type(form(honest[0]))
    assert error(flat(result.value), honest) <= SMALL


@by_every_way
def test_a_list_that_explodes_when_followed_does_not_hang(rule):
    """Fifteen short lists, each ten times in the next: none is deep, and nobody has the time to visit them all."""
    nest = []
    for _ in range(15):
        nest = [nest] * 10
    with within(2):
        result = aggregate([nest, *honest_updates(M - 1)], rule, **parameters(rule, F))
    assert result.clients[0].status == "rejected"
    assert result.clients[0].reason


# What a client sends may differ in form and still be the same update; the value follows the many, not the first.
SAME = {
    "another order of keys": (as_state, lambda v: dict(reversed(as_state(v).items()))),
    "another kind of dict": (as_state, lambda v: OrderedDict(as_state(v))),
    "a tuple for a list": (as_layers, lambda v: tuple(as_layers(v))),
    "numbered keys for a list": (as_layers, lambda v: dict(enumerate(as_layers(v)))),
    "a tensor": (itself, torch.from_numpy),
    "a tensor that wants gradients": (itself, lambda v: torch.nn.Parameter(torch.from_numpy(v))),
    "a float32 tensor": (itself, lambda v: torch.from_numpy(v).float()),
    "float32": (itself, dtyped(np.float32)),
    "float16": (itself, dtyped(np.float16)),
    "extended precision": (itself, dtyped(np.longdouble)),
    "the other byte order": (itself, dtyped(">f8")),
    "read-only": (itself, lambda v: np.frombuffer(v.tobytes())),
    "strided": (itself, lambda v: np.repeat(v, 2)[::2]),
    "masked": (itself, np.ma.masked_array),
}


@by_every_way
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("change", SAME)
def test_one_client_with_its_own_form_does_not_decide_the_form_of_the_value(rule, change, place):
    form, changed = SAME[change]
    honest = honest_updates(M, D)
    updates = [form(vector) for vector in honest]
    updates[place] = changed(honest[place])
    result = aggregate(updates, rule, **parameters(rule, F))
    assert_accounted(result)
    assert type(result.value) is type(updates[2])
    assert flat(result.value).dtype == honest.dtype
    assert error(flat(result.value), honest) <= SMALL


@pytest.mark.parametrize("place", [0, 1, -1])
def test_one_array_among_tensors_does_not_decide_the_form_of_the_value(place):
    honest = honest_updates(M, D, dtype=np.float32)
    updates = [torch.from_numpy(vector) for vector in honest]
    updates[place] = honest[place]
    result = aggregate(updates)
    assert isinstance(result.value, torch.Tensor)
    assert result.value.dtype == torch.float32
    assert error(result.value.numpy(), honest) <= SMALL


@pytest.mark.parametrize("like", [np.zeros(D), torch.zeros(D), np.zeros(D, np.float16)], ids=["numpy", "torch", "half"])
@pytest.mark.parametrize("form", [itself, torch.from_numpy], ids=["arrays", "tensors"])
def test_the_value_has_the_form_of_like(like, form):
    honest = honest_updates(M, D)
    result = aggregate([form(vector) for vector in honest], like=like)
    assert type(result.value) is type(like)
    assert error(np.asarray(result.value), honest) <= SMALL


def test_like_decides_where_clients_are_split():
    honest = honest_updates(4, D)
    updates = [*honest, *(vector[1:] for vector in honest)]
    with pytest.raises(ValueError, match=r"updates come in structures that equally many.*Pass like="):
        aggregate(updates)
    result = aggregate(updates, like=honest[0])
    assert result.clients.with_status("rejected") == [4, 5, 6, 7]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
@by_every_way
def test_integer_buffers_stay_in_their_range(rule, dtype):
    """A batch counter beside the weights; liars send the ends of its range."""
    limits, honest = np.iinfo(dtype), honest_updates(M - F, D)
    lies = 3 + honest_updates(F, D, seed=1)
    updates = [{"x": lie, "n": np.array([limits.max, limits.min], dtype)} for lie in lies]
    updates += [{"x": vector, "n": np.array([7, 9], dtype)} for vector in honest]
    result = aggregate(updates, rule, **parameters(rule, F))
    assert_accounted(result)
    assert result.value["n"].dtype == dtype
    if rule != "mean":
        assert result.value["n"].tolist() == [7, 9]
        assert error(result.value["x"], honest) <= SMALL


def repr_of(part):
    return f"{type(part).__name__}{getattr(part, 'shape', '')}" if not isinstance(part, type) else None


@pytest.mark.parametrize(
    ("updates", "kind", "words"),
    [
        ([], ValueError, ["updates", "no clients", "Keep the current model"]),
        ((), ValueError, ["updates", "no clients", "Keep the current model"]),
        (np.empty((0, 5)), ValueError, ["updates", "no clients", "Keep the current model"]),
        (np.empty((5, 0)), ValueError, ["updates", "no numbers", "Pass"]),
        ([np.empty(0)] * 3, ValueError, ["updates", "no numbers", "Pass"]),
        ([[], [], []], ValueError, ["updates", "no numbers", "Pass"]),
        ([{}, {}], ValueError, ["updates", "no numbers", "Pass"]),
        (np.zeros(5), ValueError, ["updates", "(5,)", "Pass", "reshape"]),
        (np.float64(1), TypeError, ["updates", "float64", "Pass"]),
        (np.zeros((5, 3), bool), TypeError, ["updates", "bool", "Pass"]),
        (np.zeros((5, 3), complex), TypeError, ["updates", "complex128", "Pass"]),
        (np.zeros((5, 3), object), TypeError, ["updates", "object", "Pass"]),
        (np.array([["a"] * 3] * 5), TypeError, ["updates", "U1", "Pass"]),
        (torch.zeros(5, 3, dtype=torch.bool), TypeError, ["updates", "bool", "Pass"]),
        (None, TypeError, ["updates", "NoneType", "Pass"]),
        ("abc", FileNotFoundError, ["updates", "no directory 'abc'", "Pass"]),
        (3.0, TypeError, ["updates", "float", "Pass"]),
        ((np.zeros(3) for _ in range(5)), TypeError, ["updates", "generator", "Pass"]),
        ({"a": np.zeros(3)}, TypeError, ["updates", "Pass", "values()"]),
        ([None, None], ValueError, ["all 2 clients", "NoneType", "Keep the current model"]),
        ([[1.0, 2.0], [3.0, 4.0]], TypeError, ["updates", "numpy.array(updates)", "Pass"]),
    ],
    ids=repr_of,
)
@pytest.mark.parametrize("rule", ["mean", "huber", "median"])
def test_updates_that_are_none(rule, updates, kind, words):
    with pytest.raises(kind) as problem:
        aggregate(updates, rule)
    for word in words:
        assert word in str(problem.value)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4", "<f4", "=f8"])
def test_every_byte_order_of_a_dtype_is_that_dtype(dtype):
    updates = (10 * honest_updates(5, 3)).astype(dtype)
    result = aggregate(updates, "median")
    np.testing.assert_allclose(result.value, np.median(updates, axis=0), rtol=1e-6, atol=0.5 if "i" in dtype else 0)


def test_an_array_whose_rows_have_another_shape_than_like_has_nobody_left():
    with pytest.raises(ValueError, match=r"all 6 clients were rejected; 6 of them because: .*shape"):
        aggregate(np.ones((6, 4)), like=np.ones(5))


def sent_alike():
    """Three clients in every form that can be looked at as a whole, and what one of them may do instead."""
    w, b = np.arange(4.0, dtype=np.float32).reshape(2, 2), np.ones(3, np.float32)
    makers = {
        "arrays": lambda i: w + i,
        "dicts": lambda i: {"b": b * i, "a": w + i},
        "lists": lambda i: [w + i, b * i],
        "tuples": lambda i: (w + i, b * i),
    }
    for name, make in makers.items():
        sent = [make(i) for i in range(5)]
        others = {"alike": sent[3], "another dtype": w > 0, "too many": [w, b, b], "a tensor": torch.ones(2, 2)}
        others |= {
            "a wider dtype": {"b": b.astype(np.float64), "a": w},
            "nested": {"a": {"a": w}, "b": b},
            "none": None,
        }
        yield from ((name, what, [*sent[:3], other, sent[4]]) for what, other in others.items())


@pytest.mark.parametrize(("what", "sent"), [pytest.param(*case[1:], id=" ".join(case[:2])) for case in sent_alike()])
def test_clients_looked_at_as_a_whole_are_those_looked_at_one_by_one(what, sent, monkeypatch):
    assert (admission._columns(sent) is not None) == (what == "alike")
    found = aggregate(sent, "huber")
    monkeypatch.setattr(admission, "_columns", lambda _: None)
    expected = aggregate(sent, "huber")
    assert found.clients == expected.clients
    assert type(found.value) is type(expected.value)
    mine, theirs = (flatten(result.value) for result in (found, expected))
    for one, other in zip(mine, theirs, strict=True):
        assert one.path == other.path
        assert one.array.dtype == other.array.dtype
        np.testing.assert_array_equal(one.array, other.array)
