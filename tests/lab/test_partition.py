"""Every partition: each sample exactly once, no client empty, same seed same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhold.lab import PARTITIONS, balanced, by_class, dirichlet, random_cuts


@st.composite
def requests(draw):
    total = draw(st.integers(1, 120))
    m = draw(st.integers(1, total))
    seed = draw(st.integers(0, 2**32))
    labels = np.random.default_rng(seed).integers(0, draw(st.integers(1, 10)), total)
    return labels, m, seed


def parameters(name, labels, m, seed):
    if name == "dirichlet":
        return {"alpha": float(10.0 ** ((seed % 7) - 3))}
    return {"shards": 1 + seed % (len(labels) // m)} if name == "by_class" else {}


@pytest.mark.parametrize("name", PARTITIONS)
@settings(deadline=None)
@given(request_=requests())
def test_every_sample_once_and_nobody_empty(name, request_):
    labels, m, seed = request_
    options = parameters(name, labels, m, seed)
    parts = PARTITIONS[name](labels, m, np.random.default_rng(seed), **options)
    assert len(parts) == m
    assert all(part.size for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    again = PARTITIONS[name](labels, m, np.random.default_rng(seed), **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", PARTITIONS)
def test_name_is_key(name):
    assert PARTITIONS[name].__name__ == name


@settings(deadline=None)
@given(request_=requests())
def test_balanced_sizes_differ_by_at_most_one(request_):
    labels, m, seed = request_
    sizes = {part.size for part in balanced(len(labels), m, np.random.default_rng(seed))}
    assert max(sizes) - min(sizes) <= 1


def test_random_cuts_follow_the_paper():
    """The shares of 2,000 clients: mean 1/m, deviation that of Beta(1, m - 1), and cut where a literal loop cuts."""
    m, total = 2000, 200_000
    parts = random_cuts(total, m, np.random.default_rng(0))
    shares = np.array([part.size for part in parts]) / total
    assert shares.mean() == pytest.approx(1 / m)
    assert shares.std() == pytest.approx(1 / m, rel=0.1)

    rng = np.random.default_rng(5)
    shuffled = rng.permutation(30).tolist()
    b = [0, *sorted(1 + cut for cut in rng.choice(29, size=6, replace=False).tolist()), 30]
    literal = [[shuffled[j] for j in range(30) if b[i] <= j < b[i + 1]] for i in range(7)]
    assert [part.tolist() for part in random_cuts(30, 7, np.random.default_rng(5))] == literal


def test_dirichlet_goes_from_few_classes_to_all():
    labels = np.repeat(np.arange(10), 1000)

    def classes_seen(alpha):
        parts = dirichlet(labels, 20, np.random.default_rng(0), alpha=alpha)
        shares = [np.bincount(labels[part], minlength=10) / part.size for part in parts]
        return np.mean([1 / np.sum(share**2) for share in shares])

    few, some, all_ = classes_seen(0.05), classes_seen(1), classes_seen(1000)
    assert few < 3 < some < all_
    assert all_ > 9.5


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_by_class_shows_at_most_one_more_class_per_shard(shards):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    parts = by_class(labels, 10, np.random.default_rng(1), shards=shards)
    assert max(len(set(labels[part].tolist())) for part in parts) <= 2 * shards
    assert {part.size for part in parts} == {100}


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("m", [0, 4, -1])
def test_too_many_or_no_clients(name, m):
    with pytest.raises(ValueError, match=rf"{name}.* m "):
        PARTITIONS[name](np.array([0, 1, 0]), m, np.random.default_rng(0))


def test_other_errors_carry_their_remedy():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="Use fewer clients or more samples"):
        balanced(3, 4, rng)
    with pytest.raises(ValueError, match="use balanced or random_cuts"):
        dirichlet(np.array([0.5, 1.5]), 1, rng)
    with pytest.raises(ValueError, match="use balanced or random_cuts"):
        by_class(10, 2, rng)
    with pytest.raises(ValueError, match="alpha must be a number above 0"):
        dirichlet(np.array([0, 1]), 1, rng, alpha=0)
    with pytest.raises(ValueError, match="fewer shards"):
        by_class(np.array([0, 1, 2]), 2, rng, shards=2)
