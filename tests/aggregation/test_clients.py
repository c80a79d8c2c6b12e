"""The rows of a result: what they say about every client."""

import numpy as np
import pytest

from fedhold import aggregate

X = np.array([[1.0], [1.2], [0.9], [1.1], [50.0], [np.nan]])
N = np.array([10.0, 20.0, 30.0, 20.0, 20.0, 10.0])


def test_1_is_an_equal_share_per_sample():
    clients = aggregate(X, "mean", samples=N).clients
    assert [row.share for row in clients] == pytest.approx([1, 1, 1, 1, 1, 0])
    held = aggregate(X, "huber", samples=N).clients
    assert (held.shares[:5] * N[:5] / 100).sum() == pytest.approx(1)
    np.testing.assert_allclose(held.shares[:5], held.weights[:5] * 100 / N[:5])
    assert held[4].share < 0.1 < 0.5 < min(row.share for row in held[:4])
    assert held[2:4].shares.tolist() == held.shares[2:4].tolist()


def test_a_rule_without_weights_has_no_shares():
    rows = aggregate(X, "median").clients
    assert [row.share for row in rows] == [None, None, None, None, None, 0]
    assert rows.to_dicts()[0]["share"] is None


def test_shares_are_in_the_printed_table():
    header, first, *_ = str(aggregate(X, "mean", samples=N).clients).splitlines()
    assert header.split() == ["client", "status", "weight", "share", "distance", "threshold", "samples", "reason"]
    assert first.split()[:4] == ["0", "kept", "0.1", "1"]


@pytest.mark.parametrize("scale", [1e-300, 5e306])
def test_shares_do_not_depend_on_the_scale_of_all_samples(scale):
    """Whose sum float64 cannot hold, at the larger one."""
    expected = aggregate(X, "huber", samples=N).clients.shares
    np.testing.assert_allclose(aggregate(X, "huber", samples=scale * N).clients.shares, expected, rtol=1e-6)
