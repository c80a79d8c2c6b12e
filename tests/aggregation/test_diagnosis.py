"""Groups of clients, by the distances between them alone."""

import numpy as np
import pytest

from fedhold import aggregate, diagnose

M, D = 20, 80


@pytest.fixture(name="alike")
def _alike():
    return np.random.default_rng(101).standard_normal((M, D))


def minority(alike, size=5):
    alike = alike.copy()
    alike[:size] += 3
    return alike


def test_clients_that_are_alike_are_one_group(alike):
    found = diagnose(alike)
    assert (found.sizes, found.alone, found.differ) == ((M,), (), False)
    assert "one group of 20" in found.text


@pytest.mark.parametrize("size", [2, 5, 8, 9])
def test_a_minority(alike, size):
    found = diagnose(minority(alike, size))
    assert found.groups == (tuple(range(size, M)), tuple(range(size)))
    assert "no rule can know" in found.text
    assert f"{M - size} and {size}" in str(found)


def test_halves_have_no_majority(alike):
    assert "No group has a majority" in diagnose(minority(alike, 10)).text


@pytest.mark.parametrize("size", [10.0, 1e3, 1e30, 1e90])
def test_one_far_liar_stands_alone_and_hides_nobody(alike, size):
    sent = alike.copy()
    sent[11] = size
    found = diagnose(sent)
    assert (found.sizes, found.alone) == ((M - 1,), (11,))
    sent = minority(alike)
    sent[11] = size
    found = diagnose(sent)
    assert found.groups == (tuple(i for i in range(5, M) if i != 11), tuple(range(5)))
    assert found.alone == (11,)


def test_copies(alike):
    assert diagnose(np.ones((6, D))).sizes == (6,)
    assert diagnose(np.zeros((6, D))).sizes == (6,)
    alike[:4] = alike[0]
    assert diagnose(alike).sizes == (M,)
    alike[:11] = alike[0]
    assert diagnose(alike).groups == (tuple(range(11)),)


@pytest.mark.parametrize("m", [1, 2])
def test_one_or_two_clients_are_one_group(alike, m):
    found = diagnose(alike[:m])
    assert (found.sizes, found.alone) == ((m,), ())


def test_it_moves_turns_and_scales_with_the_updates(alike):
    sent, rng = minority(alike), np.random.default_rng(0)
    turned = sent @ np.linalg.qr(rng.standard_normal((D, D)))[0]
    order = rng.permutation(M)
    for other in (sent + 1e6, turned, 1e-30 * sent, -1e30 * sent, sent.astype(np.float32) * np.float32(1e-42)):
        assert diagnose(other).groups == diagnose(sent).groups
    for found, wanted in zip(diagnose(sent[order]).groups, diagnose(sent).groups, strict=True):
        assert sorted(order[list(found)].tolist()) == list(wanted)


def test_what_cannot_be_compared_is_named(alike):
    sent = [*minority(alike)]
    sent[9], sent[12] = np.full(D, np.nan), None
    found = diagnose(sent)
    assert found.rejected == (9, 12)
    assert found.sizes == (13, 5)


def test_the_result_of_the_default_has_it_on_the_way(alike):
    sent = minority(alike)
    sent[9] = np.nan
    assert aggregate(sent).diagnosis == diagnose(sent)
    assert aggregate(sent, "median").diagnosis is None


def test_too_many_clients_are_refused():
    with pytest.raises(ValueError, match="Diagnose a sample"):
        diagnose(np.zeros((4097, 1)))


def test_average_linkage_is_that_of_the_definition(alike):
    """Oracle: join the two groups with the least mean distance between their members, until one is left."""
    from fedhold.diagnosis import _joined

    distances = np.linalg.norm(alike[:, None] - alike, axis=2)
    groups, heights = [[i] for i in range(M)], []
    while len(groups) > 1:
        pairs = [(distances[np.ix_(a, b)].mean(), i, j) for i, a in enumerate(groups) for j, b in enumerate(groups[:i])]
        height, i, j = min(pairs)
        heights.append(height)
        groups[j] += groups.pop(i)
    np.testing.assert_allclose(np.sort([height for height, _, _ in _joined(distances)]), heights)
