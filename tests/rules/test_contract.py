"""What every rule must keep, whatever it does: one property a test, every rule in each."""

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from cases import FROM_ZERO, RESCALING, ROBUST, parameters, takes
from fedhold import RULES, aggregate, thresholds
from fedhold.geometry import Geometry
from fedhold.kernels import between
from fedhold.rules import declaration_of
from fedhold.updates import Updates

every_rule = pytest.mark.parametrize("rule", sorted(RULES))
robust_rules = pytest.mark.parametrize("rule", sorted(ROBUST))
seeds = st.integers(0, 10**6)
examples = settings(max_examples=15, deadline=None)

# Rules that look at columns one by one, or at a random sample of them, know the axes.
COLUMNS = {rule for rule in RULES if declaration_of(RULES[rule]).view == "columns"}
BY_AXES = COLUMNS | {"bulyan", "divide_and_conquer", "sign_guard"}
ROTATES = sorted(set(RULES) - BY_AXES)
TRANSLATES = sorted(set(RULES) - set(FROM_ZERO))
# Rules that deal clients out at random depend on who stands where.
PERMUTES = sorted(set(RULES) - {"median_of_means"})


def clients(seed, m=23, d=17, f=4, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, d))
    X[rng.choice(m, f, replace=False)] += 4 * rng.standard_normal(d)
    return X.astype(dtype)


def value(X, rule, f=4, **more):
    return np.asarray(aggregate(X, rule, **parameters(rule, f), **more).value, dtype=np.float64)


def near(a, b, X, tol=3e-5):
    """Iterative rules stop at a tolerance of 1e-6; two runs may differ by a little more than that."""
    spread = np.median(np.linalg.norm(np.asarray(X, float) - np.median(X, axis=0), axis=1))
    assert np.linalg.norm(a - b) <= tol * spread


@pytest.mark.parametrize("rule", PERMUTES)
@given(seed=seeds)
@examples
def test_permutation(rule, seed):
    X = clients(seed)
    order = np.random.default_rng(seed + 1).permutation(len(X))
    plain = aggregate(X, rule, **parameters(rule, 4))
    moved = aggregate(X[order], rule, **parameters(rule, 4))
    near(moved.value, plain.value, X)
    assert [row.distance for row in moved.clients] == pytest.approx(
        [plain.clients[i].distance for i in order], rel=1e-4
    )
    assert [row.client for row in moved.clients] == list(range(len(X)))


@pytest.mark.parametrize("rule", TRANSLATES)
@given(seed=seeds, shift=st.floats(-1e3, 1e3))
@examples
def test_translation(rule, seed, shift):
    X = clients(seed)
    away = shift * np.random.default_rng(seed).standard_normal(X.shape[1])
    near(value(X + away, rule), value(X, rule) + away, X)


@pytest.mark.parametrize("rule", ROTATES)
@given(seed=seeds)
@examples
def test_rotation(rule, seed):
    X = clients(seed)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((X.shape[1], X.shape[1])))[0]
    if rule == "centered_clipping":  # its default start is found column by column; the rule itself does not care
        start = np.ones(X.shape[1])
        near(value(X @ Q, rule, start=start @ Q), value(X, rule, start=start) @ Q, X)
    else:
        near(value(X @ Q, rule), value(X, rule) @ Q, X)


@every_rule
@given(seed=seeds, exponent=st.floats(-250, 250))
@examples
def test_scale(rule, seed, exponent):
    X = clients(seed)
    factor = 10.0**exponent
    near(value(X * factor, rule) / factor, value(X, rule), X)


@every_rule
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("m", [15, 16])
def test_identical_clients_are_given_back(rule, dtype, m):
    x = np.random.default_rng(0).standard_normal(9).astype(dtype)
    result = aggregate(np.tile(x, (m, 1)), rule, **parameters(rule, 3))
    assert np.allclose(result.value, x, rtol=16 * np.finfo(dtype).eps, atol=0)
    assert result.value.dtype == dtype
    assert result.converged


@robust_rules
@given(seed=seeds, exponent=st.floats(1, 300))
@examples
def test_bounded_when_f_clients_go_to_infinity(rule, seed, exponent):
    m, d, f = 24, 17, 4
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, d))
    honest = X[f:].mean(axis=0)
    spread = np.median(np.linalg.norm(X[f:] - honest, axis=1))
    # divide_and_conquer looks along one direction around the plain mean: of liars who go different ways, one can hide there.
    apart = seed % 2 and rule != "divide_and_conquer"
    X[:f] = rng.standard_normal((f, d)) if apart else rng.standard_normal(d)
    X[:f] *= 10.0**exponent
    assert np.linalg.norm(value(X, rule, f=f) - honest) <= 3 * spread


@every_rule
@given(seed=seeds)
@examples
def test_no_mutation_and_determinism(rule, seed):
    X, n = clients(seed), np.random.default_rng(seed).integers(5, 15, 23)
    before = X.tobytes(), n.tobytes()
    first = aggregate(X, rule, samples=n, **parameters(rule, 4))
    second = aggregate(X, rule, samples=n, **parameters(rule, 4))
    assert (X.tobytes(), n.tobytes()) == before
    assert first.value.tobytes() == second.value.tobytes()
    assert first.clients == second.clients


@every_rule
@given(seed=seeds)
@examples
def test_float32_agrees_with_float64(rule, seed):
    X = clients(seed, dtype=np.float32)
    near(value(X, rule), value(X.astype(np.float64), rule), X, tol=1e-4)


@every_rule
@pytest.mark.parametrize("tile", [30, 500, 10**7])
def test_block_size_does_not_matter(rule, tile, monkeypatch):
    X = clients(3, m=30, d=1500)
    plain = value(X, rule)
    spans = Updates.spans
    monkeypatch.setattr(Updates, "spans", lambda updates, _: spans(updates, tile))
    near(value(X, rule), plain, X, tol=1e-7 if rule != "geometric_median" else 3e-5)


@every_rule
def test_weights_make_the_value(rule):
    X = clients(5)
    result = aggregate(X, rule, **parameters(rule, 4))
    if result.weights is not None:
        assert (result.weights >= 0).all()
        assert result.weights.sum() == pytest.approx(1) or rule in RESCALING
        near(result.weights @ X, result.value, X, tol=1e-12)
        assert [row.weight for row in result.clients] == result.weights.tolist()


def arrays(X):
    """The same 23 x 60 updates in every way that aggregate() takes them, and how to read one value of each."""
    yield "matrix", X, lambda v: v
    yield "fortran", np.asfortranarray(X), lambda v: v
    yield "strided", np.repeat(X, 2, axis=1)[:, ::2], lambda v: v
    yield "cube", X.reshape(-1, 3, 20), lambda v: v.ravel()
    yield "cube, columns first", np.asfortranarray(X.reshape(-1, 3, 20)), lambda v: v.ravel()
    yield "list", list(X), lambda v: v
    yield "tuple of matrices", tuple(x.reshape(6, 10) for x in X), lambda v: v.ravel()
    yield "transposed", [x.reshape(6, 10).copy(order="F") for x in X], lambda v: v.ravel()
    yield (
        "turned twice",
        [x.reshape(3, 4, 5).transpose(2, 0, 1).copy().transpose(1, 2, 0) for x in X],
        lambda v: v.ravel(),
    )
    yield (
        "one transposed",
        [x.reshape(6, 10).copy(order="F" if i == 3 else "C") for i, x in enumerate(X)],
        lambda v: v.ravel(),
    )
    yield (
        "one not transposed",
        [x.reshape(1, 6, 10).copy(order="C" if i == 3 else "F") for i, x in enumerate(X)],
        lambda v: v.ravel(),
    )
    yield "layers", [[x[:7], x[7:].reshape(53, 1)] for x in X], lambda v: np.concatenate([v[0], v[1].ravel()])
    yield (
        "dicts",
        [
            dict(reversed([("a", x[:50].reshape(5, 10)), ("b", x[50:])]))
            if i % 2
            else {"a": x[:50].reshape(5, 10), "b": x[50:]}
            for i, x in enumerate(X)
        ],
        lambda v: np.concatenate([v["a"].ravel(), v["b"]]),
    )
    yield "torch matrix", torch.tensor(X), lambda v: v.numpy()
    yield "torch list", [torch.tensor(x, requires_grad=True) for x in X], lambda v: v.numpy()
    yield "torch state dicts", [{"w": torch.tensor(x).reshape(2, 30)} for x in X], lambda v: v["w"].numpy().ravel()
    yield "jax matrix", jnp.asarray(X), np.asarray
    yield "jax dicts", [{"w": {"k": jnp.asarray(x)}} for x in X], lambda v: np.asarray(v["w"]["k"])


@every_rule
def test_every_form_of_input_gives_the_same(rule):
    X = clients(7, d=60, dtype=np.float32)
    expected = value(X, rule)
    for name, updates, read in arrays(X):
        result = aggregate(updates, rule, **parameters(rule, 4))
        found = read(result.value)
        assert found.dtype == np.float32, name
        near(found, expected, X, tol=1e-5)


@pytest.mark.parametrize("rule", [rule for rule in RULES if takes(rule, "root")])
def test_a_root_may_come_in_every_form(rule):
    X = clients(7, d=60, dtype=np.float32)
    far = int(np.linalg.norm(X - np.median(X, axis=0), axis=1).argmax())
    expected, without = value(X, rule, root=X[far]), value(X, rule)
    assert np.linalg.norm(expected - without) > 0.1  # else the root would have changed nothing
    for name, updates, read in arrays(X):
        found = read(aggregate(updates, rule, root=updates[far], **parameters(rule, 4)).value)
        assert found.dtype == np.float32, name
        near(found, expected, X, tol=1e-5)


@every_rule
@pytest.mark.parametrize("mixing", ["adaptive_clipping(f=2)", "nearest_neighbour_mixing(f=2)", "screen"])
def test_every_rule_goes_after_a_mixing(rule, mixing):
    X = clients(9, d=60)
    given = parameters(rule, 2)
    result = aggregate(X, f"{mixing} | {rule}", **given)
    assert np.isfinite(result.value).all()
    if result.weights is not None:
        near(result.weights @ X, result.value, X, tol=1e-9)


@every_rule
@pytest.mark.parametrize("empty", [(0,), (0, 3), (2, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_an_empty_layer_changes_nothing(rule, empty, dtype):
    X = clients(7, d=60, dtype=np.float32)
    expected = value(X, rule)
    for names in ("ab", "ba"):
        updates = [{names[0]: x, names[1]: np.zeros(empty, dtype)} for x in X]
        found = aggregate(updates, rule, **parameters(rule, 4)).value
        near(found[names[0]], expected, X, tol=1e-5)
        assert found[names[1]].shape == empty
        assert found[names[1]].dtype == dtype


@pytest.mark.parametrize("name", ["matrix", "cube", "cube, columns first", "list"])
def test_a_rejected_client_leaves_every_form_in_order(name):
    X = clients(7, d=60)
    n = np.ones(23)
    n[3] = -1
    X[5, 7] = np.nan
    updates, read = next((u, r) for form, u, r in arrays(X) if form == name)
    result = aggregate(updates, samples=n)
    assert result.clients.with_status("rejected") == [3, 5]
    near(read(result.value), aggregate(np.delete(X, [3, 5], axis=0)).value, np.delete(X, [3, 5], axis=0))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_start_is_read_in_the_order_of_the_updates(order):
    X, start = clients(7, d=60), np.arange(60.0).reshape(3, 4, 5)
    updates = [x.reshape(3, 4, 5).copy(order=order) for x in X]
    found = aggregate(updates, "centered_clipping", start=start.copy(order="F"), radius=1.0, iterations=1).value
    expected = aggregate(X, "centered_clipping", start=start.ravel(), radius=1.0, iterations=1).value
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-12)


@pytest.mark.parametrize("width", [1, 7, 60])
def test_parts_of_arrays_that_are_not_contiguous(width):
    for array in (
        np.arange(60).reshape(3, 4, 5).T,
        np.arange(60).reshape(1, 1, 60),
        np.arange(120).reshape(6, 20)[:, ::2],
    ):
        whole = array.reshape(-1)
        for start in range(0, 60, width):
            part = between(array, start, start + width)
            np.testing.assert_array_equal(part, whole[start : start + width])


def test_value_has_structure_library_and_dtype_of_one_update():
    def update(i):
        return {
            "half": torch.full((2, 2), 1.0 + i, dtype=torch.float16),
            "brain": torch.full((3,), 2.0 + i, dtype=torch.bfloat16),
            "single": [np.full(4, 3.0 + i, np.float32), (np.full((1, 2), 4.0 + i),)],
            "steps": torch.tensor(100 + i),
            "bytes": np.array([250], np.uint8),
            "jax": jnp.full((2,), 5.0 + i, dtype=jnp.float32),
        }

    value = aggregate([update(i) for i in range(4)], "mean").value
    assert value["half"].dtype == torch.float16
    assert value["half"].tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert value["brain"].dtype == torch.bfloat16
    assert value["single"][0].dtype == np.float32
    assert isinstance(value["single"][1], tuple)
    assert value["single"][1][0].dtype == np.float64
    assert value["single"][1][0].shape == (1, 2)
    assert value["steps"].dtype == torch.int64
    assert value["steps"].item() in (101, 102)  # 101.5, rounded
    assert value["bytes"].dtype == np.uint8
    assert value["bytes"].tolist() == [250]
    assert isinstance(value["jax"], jnp.ndarray)
    assert list(value) == list(update(0))


def test_the_threshold_may_be_given_in_every_form():
    X = clients(2)
    number = aggregate(X, "huber", threshold=1.5)
    for same in ([1.5] * 23, np.full(23, 1.5), np.float32(1.5), lambda d, n: np.full(len(n), 1.5)):  # noqa: ARG005
        assert (aggregate(X, "huber", threshold=same).value == number.value).all()
    assert (aggregate(X, "huber(threshold=1.5)").value == number.value).all()
    assert (aggregate(X, "huber(threshold=fixed(1.5))").value == number.value).all()
    for same in ("automatic", thresholds.automatic, thresholds.automatic()):
        assert (aggregate(X, "huber", threshold=same).value == aggregate(X, "huber").value).all()


def test_a_callable_is_a_rule():
    def nearest_to_the_middle(geometry, *, keep):
        order = np.argsort(geometry.distances(np.full(geometry.m, 1 / geometry.m)))[:keep]
        return np.isin(np.arange(geometry.m), order) / keep

    X = clients(1)
    result = aggregate(X, nearest_to_the_middle, keep=5)
    assert result.rule == "nearest_to_the_middle(keep=5)"
    assert len(result.clients.with_status("dropped")) == 18
    with pytest.raises(ValueError, match="must return 23 weights"):
        aggregate(X, lambda geometry: np.ones(geometry.m))
    with pytest.raises(TypeError, match="unknown parameter 'kep'"):
        aggregate(X, nearest_to_the_middle, kep=5)


def test_samples_are_capped_and_reported():
    X = clients(4)
    n = np.full(23, 100.0)
    n[:3] = 1e9
    capped = aggregate(X, "mean", samples=n)
    assert capped.clients[0].samples == 300
    assert capped.clients[0].reason == "samples 1e+09 capped at 300"
    assert capped.weights[0] == pytest.approx(3 * capped.weights[5])
    assert aggregate(X, "mean", samples=n, sample_cap=None).weights[:3].sum() == pytest.approx(1, abs=1e-5)


def test_the_report_reads_well():
    X = clients(6)
    X[2, 3] = np.nan
    result = aggregate(X)
    row = result.clients[2]
    assert (row.status, row.weight, row.reason) == ("rejected", 0.0, "numbers that are not finite")
    lines = str(result.clients).splitlines()
    assert lines[0].split() == ["client", "status", "weight", "share", "distance", "threshold", "samples", "reason"]
    assert len(lines) == 24
    assert result.clients.to_dicts()[2]["status"] == "rejected"
    assert "1 rejected" in repr(result)
    assert len(str(aggregate(np.ones((500, 2))).clients).splitlines()) == 42


def test_the_certificate_of_a_result():
    X = clients(8, m=40, d=30)
    result = aggregate(X)
    assert 0 < result.certificate.radius(2) < result.certificate.radius(8) < np.inf
    assert aggregate(X, "median").certificate is None
    single = aggregate(X.astype(np.float32)).certificate.radius(8)
    assert single == pytest.approx(result.certificate.radius(8), rel=1e-2)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_certificate_is_made_of_the_clients_own_angles(dtype, scale):
    rng = np.random.default_rng(3)
    X = (scale * (rng.standard_normal((30, 60)) + np.where(np.arange(30) < 6, 4.0, 0.0)[:, None])).astype(dtype)
    samples = rng.integers(10, 25, 30)
    result = aggregate(X, "huber", samples=samples)
    away = result.value.astype(np.float64) - X
    distances = np.linalg.norm(away, axis=1)
    pulls = samples / samples.max() * np.minimum(distances, result.clients.thresholds)
    units = away / distances[:, None]
    exact = np.linalg.eigvalsh(np.sqrt(np.outer(pulls, pulls)) * (units @ units.T))[-1]
    assert exact <= result.certificate.eigenvalue <= exact + 1e-3 * pulls.sum()
    np.testing.assert_allclose(result.certificate.distances, distances, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_liars_do_not_spoil_the_certificate(dtype):
    X = clients(8, m=40, d=30, f=0).astype(dtype)
    honest = aggregate(X, "huber").certificate.radius(8)
    X[:4], X[4:8] = 1e20, -1e30
    assert aggregate(X, "huber").certificate.radius(8) < 20 * honest


def test_the_certificate_covers_what_an_unfinished_solve_is_off():
    X = clients(8, m=40, d=30)
    T = np.linalg.norm(X - X.mean(axis=0), axis=1).mean()
    loose, exact = aggregate(X, "huber", threshold=T, max_iterations=1), aggregate(X, "huber", threshold=T, tol=1e-10)
    assert not loose.converged
    off = np.linalg.norm(loose.value - exact.value)
    assert 0 < off <= loose.certificate.radius(0) < np.inf


def test_the_certificate_notices_changed_updates(monkeypatch):
    """Where it has to read them again. Where the products of all pairs are known, it is about the updates as they were."""
    X = clients(8)
    before = aggregate(X).certificate.radius(2)
    result = aggregate(X)
    X[5] += 1
    assert result.certificate.radius(2) == before
    monkeypatch.setattr(Geometry, "known_residuals", lambda *_: None)
    result = aggregate(X)
    X[5] += 1
    with pytest.raises(RuntimeError, match="updates have changed"):
        _ = result.certificate


@pytest.mark.parametrize("rule", ["huber", "spectral_huber"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 5.0, 300.0])
def test_the_certificate_from_known_pairs_is_hardly_wider(rule, dtype, offset, monkeypatch):
    X = (clients(8, m=24, d=400) + offset).astype(dtype)
    known = aggregate(X, rule).certificate
    monkeypatch.setattr(Geometry, "known_residuals", lambda *_: None)
    read = aggregate(X, rule).certificate
    for f in (1, 4, 8):
        assert 0.995 * read.radius(f) <= known.radius(f) <= 1.04 * read.radius(f)
