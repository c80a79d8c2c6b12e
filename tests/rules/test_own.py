"""A rule of one's own: what it receives, what it may return, by which name it is called, and errors that help."""

import re
import sys

import numpy as np
import pytest

from fedhold import aggregate, open_updates, save_update
from fedhold.rules import by_columns, declares, krum, median, nearest_neighbour_mixing
from fedhold.spec import name_of

PARTS = """
import numpy as np
from fedhold.rules import by_columns

def nearest_half(geometry):
    order = np.argsort(geometry.distances(geometry.start()))[: geometry.m // 2]
    return np.isin(np.arange(geometry.m), order) / len(order)

@by_columns
def trimmed(block, *, f):
    return np.sort(block, axis=0)[f : len(block) - f].mean(axis=0)

def sign_votes(geometry):
    votes = geometry.sum_over_columns(lambda block, _: (block > 0).sum(axis=1))
    agrees = abs(votes - np.median(votes)) <= geometry.d / 10
    return agrees / agrees.sum()

number = 3
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A module `parts` of the user's own, beside nothing of ours."""
    (tmp_path / "parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("parts", None)


def some_updates(dtype=np.float64):
    rows = 1 + 0.1 * np.random.default_rng(0).standard_normal((11, 3000))
    rows[:2] *= -20
    return rows.astype(dtype)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    "rule", ["parts:nearest_half", "parts:trimmed(f=2)", "parts:sign_votes", "screen | parts:sign_votes"]
)
def test_a_rule_by_its_name(rule):
    result = aggregate(some_updates(), rule)
    assert abs(result.value - 1).max() < 0.3
    assert result.rule == rule
    assert "parts:trimmed" in rule or result.clients.with_status("dropped")[:2] == [0, 1]


@pytest.mark.usefixtures("parts")
def test_an_own_column_rule_is_ours_where_it_does_the_same():
    rows = some_updates(np.float32)
    np.testing.assert_allclose(
        aggregate(rows, "parts:trimmed", f=2).value, aggregate(rows, "trimmed_mean", f=2).value, rtol=1e-5
    )


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("rule", ["parts:trimmed(f=2)", "parts:sign_votes"])
def test_from_files_and_beside_a_broken_client(tmp_path, rule):
    rows = some_updates()
    expected = aggregate(rows, rule)
    for i, row in enumerate([*rows, np.full_like(rows[0], np.nan)]):
        save_update(row, tmp_path / "updates" / f"{i:02}.npy")
    found = aggregate(
        open_updates(tmp_path / "updates"), rule.replace("f=2", "f=3")
    )  # the broken client is one of the f
    np.testing.assert_allclose(found.value, expected.value)
    assert found.clients[11].status == "rejected"


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("part:trimmed", "there is no module 'part' to import. Modules are looked for beside the configuration file"),
        ("parts:trimed", "parts has no 'trimed': unknown rule 'trimed'. Did you mean 'trimmed'?"),
        ("parts:number", "must be a function, got int"),
        ("parts:trimmed", "parts:trimmed needs f"),
        ("parts:trimmed(g=2)", "parts:trimmed: unknown parameter 'g'. Known: f."),
        ("sign_votes", "One of your own is written module:sign_votes."),
        ("parts.sign_votes", "one of your own is module:name"),
    ],
)
def test_a_name_that_is_wrong(rule, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        aggregate(some_updates(), rule)


def test_a_module_whose_own_import_fails_says_which(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import nowhere_to_be_found")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        aggregate(some_updates(), "needs_more:rule")


@pytest.mark.parametrize(
    "rule", [lambda X: X.mean(0), lambda X: np.mean(X, axis=0), lambda X: X @ X.T, lambda X: X.shape]
)
def test_who_takes_the_geometry_for_the_updates_is_told_what_it_is(rule):
    with pytest.raises((AttributeError, TypeError)) as caught:
        aggregate(some_updates(), rule)
    assert "A rule receives a fedhold.Geometry, not the updates" in str(caught.value)
    assert "by_columns" in str(caught.value)


def test_who_returns_the_aggregate_is_told_how():
    with pytest.raises(ValueError, match=r"must return 11 weights .* put @fedhold.rules.by_columns above"):
        aggregate(some_updates(), lambda geometry: np.zeros(geometry.d))


@pytest.mark.parametrize(
    "wrong", [lambda block: block.mean(axis=1), lambda _: 1.0, lambda block: block, lambda block: block[0] * np.nan]
)
def test_a_column_rule_must_return_a_row(wrong):
    wrong.__name__ = "wrong"
    with pytest.raises(ValueError, match="wrong must return one finite number per column"):
        aggregate(some_updates(), by_columns(wrong))


def test_a_measure_must_be_finite():
    with pytest.raises(ValueError, match="not finite"):
        aggregate(some_updates(), lambda geometry: geometry.sum_over_columns(lambda block, _: block[:, 0] * np.nan))


# On an array, without aggregate()


@pytest.mark.parametrize("rule", [krum, nearest_neighbour_mixing])
def test_a_rule_called_on_an_array_says_what_to_call(rule):
    with pytest.raises(TypeError, match=rf"got ndarray. Call aggregate\(updates, \"{rule.__name__}\""):
        rule(some_updates(), f=2)


def test_a_column_rule_is_a_function_of_a_block():
    rows = some_updates()
    np.testing.assert_array_equal(median(rows), np.median(rows, axis=0))


def test_the_name_that_another_process_imports():
    assert name_of(krum) == "fedhold.rules.selection:krum"

    @declares()
    def inner(geometry): ...

    for function in (lambda geometry: geometry, inner):
        with pytest.raises(ValueError, match="has no name that worker processes could import"):
            name_of(function)
