"""Updates on a Dask cluster: two worker processes give what memory gives, and the data stays where it is."""

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

from cases import assert_refused, honest_updates, parameters
from fedhold import RULES, aggregate
from fedhold.updates import cluster as dasked

M, D = 23, 5000
MIXED = ["nearest_neighbour_mixing(f=4) | trimmed_mean(f=4)", "bucketing | krum(f=1)", "clipping(radius=50) | huber"]
CHUNKS = {
    "even": (-1, 1000),
    "uneven": ((M,), (1, 2000, 0, 2999)),
    "one": (-1, -1),
    "narrow": (-1, 40),
    "along clients": (5, -1),
    "both ways": (7, 700),
}


@pytest.fixture(scope="module")
def cluster():
    # Without stealing: to balance its load, Dask may move a block to an idle worker. Here we ask what we move.
    with (
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        LocalCluster(n_workers=2, processes=True, threads_per_worker=1, dashboard_address="127.0.0.1:0") as started,
        Client(started) as client,
    ):
        count_arrivals()
        client.run(count_arrivals)
        yield client


def rows_with_liars(dtype=np.float32):
    rows = honest_updates(M, D, dtype=dtype)
    rows[:4] += 7
    return rows


def assert_same(found, expected, rtol=1e-6):
    """To 1e-6 of the largest number; who was kept, with which weight, and how far off."""
    assert isinstance(found.value, da.Array)
    assert found.value.dtype == expected.value.dtype
    scale = np.abs(expected.value).max()
    np.testing.assert_allclose(found.value.compute(), expected.value, rtol=0, atol=rtol * scale)
    assert found.clients.statuses.tolist() == expected.clients.statuses.tolist()
    assert found.clients.reasons == expected.clients.reasons
    np.testing.assert_allclose(found.clients.distances, expected.clients.distances, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.clients.weights, expected.clients.weights, atol=1e-5)
    assert (found.weights is None) == (expected.weights is None)
    assert (found.converged, found.rule) == (expected.converged, expected.rule)


# What a cluster gives is what memory gives


@pytest.mark.parametrize("rule", [*RULES, *MIXED])
def test_agrees_with_memory(cluster, rule):  # noqa: ARG001
    # In float64 where a rule's own float32 rounding is more than 1e-6: eigenvectors.
    rows = rows_with_liars(np.float64 if rule.startswith("spectral_") else np.float32)
    given = parameters(rule, 4) if rule in RULES else {"rng": 0}
    assert_same(aggregate(da.from_array(rows, chunks=(-1, 1200)), rule, **given), aggregate(rows, rule, **given))


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("rule", ["huber", "krum(f=4)", "median"])
def test_however_it_is_cut(cluster, rule, chunks):  # noqa: ARG001
    rows = rows_with_liars()
    x = da.from_array(rows, chunks=(-1, -1)).rechunk(CHUNKS[chunks])
    assert_same(aggregate(x, rule), aggregate(rows, rule))


BAD = {
    "NaN": (np.nan, np.float32),
    "infinity": (-np.inf, np.float32),
    "1e30": (1e30, np.float32),
    "1e200": (1e200, np.float64),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("rule", ["huber", "trimmed_mean(f=4)", MIXED[0]])
def test_bad_numbers_cost_their_client_alone(cluster, rule, bad):  # noqa: ARG001
    value, dtype = BAD[bad]
    rows = rows_with_liars(dtype)
    rows[2, 17] = value
    assert_same(aggregate(da.from_array(rows, chunks=(-1, 1200)), rule), aggregate(rows, rule))


@pytest.mark.parametrize("size", [1e-300, 1e30])
def test_numbers_of_all_sizes(cluster, size):  # noqa: ARG001
    rows = rows_with_liars(np.float64) * size
    found, expected = (aggregate(x) for x in (da.from_array(rows, chunks=(-1, 1200)), rows))
    np.testing.assert_allclose(found.value.compute(), expected.value, rtol=1e-6)
    np.testing.assert_allclose(found.clients.distances, expected.clients.distances, rtol=1e-6)


def test_lying_samples(cluster):  # noqa: ARG001
    rows, samples = rows_with_liars(np.float64), [50.0] * M
    samples[0], samples[1], samples[2] = 1e9, -1, "many"
    x = da.from_array(rows, chunks=(-1, 1200))
    assert_same(aggregate(x, samples=samples), aggregate(rows, samples=samples))


@pytest.mark.parametrize(
    ("rule", "d"), [("huber", 1), ("huber", 7), ("geometric_median", 7), ("median", 7), ("mean", 7)]
)
def test_one_client(cluster, rule, d):  # noqa: ARG001
    row = np.arange(1.0, d + 1)[None]
    np.testing.assert_array_equal(aggregate(da.from_array(row, chunks=(1, 2)), rule).value.compute(), row[0])


def test_integers_are_rounded_as_ever(cluster):  # noqa: ARG001
    rows = np.random.default_rng(0).integers(-100, 100, (9, 40), dtype=np.int8)
    found = aggregate(da.from_array(rows, chunks=(-1, 13)), "mean").value
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found.compute(), aggregate(rows, "mean").value)


def test_start_and_certificate(cluster):  # noqa: ARG001
    rows = rows_with_liars(np.float64)
    x = da.from_array(rows, chunks=(-1, 1200))
    last, before = aggregate(x), aggregate(rows)
    assert last.certificate.radius(3) == pytest.approx(before.certificate.radius(3), rel=1e-4)
    for rule, start in (("huber", last.value), ("centered_clipping", before.value)):
        assert_same(aggregate(x, rule, start=start), aggregate(rows, rule, start=before.value))
    for rule, root in (("fl_trust", rows[3]), ("fl_trust", x[3]), ("monna(f=4)", x[3])):
        assert_same(aggregate(x, rule, root=root), aggregate(rows, rule, root=rows[3]))
    bad = da.full(D, np.nan, chunks=100)
    assert_refused(ValueError, "not finite", call=lambda: aggregate(x, start=bad))
    assert_refused(ValueError, "shaped as the updates", call=lambda: aggregate(x, start=last.value[1:]))


def test_a_rule_of_your_own(cluster):  # noqa: ARG001
    rows = rows_with_liars()

    def nearest(geometry):
        return np.eye(geometry.m)[geometry.distances(np.full(geometry.m, 1 / geometry.m)).argmin()]

    assert_same(aggregate(da.from_array(rows, chunks=(-1, 1200)), nearest), aggregate(rows, nearest))


# Nothing is gathered


def count_arrivals():
    """From now on, every byte that arrives in this process."""
    from distributed.comm import tcp

    read = tcp.from_frames

    async def counted(frames, *arguments, **options):
        tcp.arrived += sum(memoryview(frame).nbytes for frame in frames)
        return await read(frames, *arguments, **options)

    tcp.arrived, tcp.from_frames = 0, counted


def arrived():
    from distributed.comm import tcp

    return tcp.arrived


def arrivals(client, call):
    """Bytes that arrive while `call` runs: at client and scheduler, which are in this process, and at the workers."""
    here, there = arrived(), sum(client.run(arrived).values())
    call()
    return arrived() - here, sum(client.run(arrived).values()) - there


def numbers_made_there(m, widths):
    """Float32 numbers that the workers draw, so that none of them was ever here."""

    def draw(block_info):
        at = block_info[None]
        rng = np.random.default_rng(at["chunk-location"])
        return rng.normal(1, 0.3, at["chunk-shape"]).astype(np.float32)

    return da.map_blocks(draw, chunks=((m,), widths), dtype=np.float32, meta=np.empty((0, 0), np.float32))


@pytest.mark.parametrize("rule", ["huber", "krum(f=5)", "median", "bulyan(f=5)", MIXED[0]])
def test_the_data_stays_where_it_is(cluster, rule):
    """64 MB of updates: neither they nor one vector of d numbers come here, and little moves between the workers."""
    m, widths = 64, (2**14,) * 16
    x = numbers_made_there(m, widths).persist()
    wait(x)
    here, there = arrivals(cluster, lambda: aggregate(x, rule))
    assert here < 4 * x.shape[1], f"{here} bytes came here, a vector has {4 * x.shape[1]}"
    assert here + there < 0.03 * x.nbytes
    assert here + there < 2 * len(widths) * 8 * m * m + 2**20  # some partial m x m matrices, and messages


def test_gathering_would_be_seen(cluster):
    x = numbers_made_there(64, (2**14,) * 4).persist()
    wait(x)
    assert arrivals(cluster, x.compute)[0] > x.nbytes


def test_the_value_is_ready_on_the_cluster(cluster):
    x = numbers_made_there(16, (2**14,) * 4).persist()
    result = aggregate(x)
    assert not set(result.value.__dask_graph__()) & set(
        x.__dask_graph__()
    )  # made in the last pass, not lazily from the data
    here, there = arrivals(cluster, lambda: result.value.sum().compute())
    assert here + there < 2**16
    assert np.isfinite(result.value.compute()).all()


def test_blocks_are_loaded_as_seldom_as_promised():
    """Without a cluster, on threads: a pass to learn and one to verify; a few blocks more to sample some columns."""
    rows, loaded = rows_with_liars(), []

    def load(block_info):
        (_, (start, stop)) = block_info[None]["array-location"]
        loaded.append(start)
        return rows[:, start:stop]

    x = da.map_blocks(load, chunks=((M,), (50,) * 100), dtype=rows.dtype, meta=np.empty((0, 0), rows.dtype))
    for rule, passes in (("huber", 2), ("krum(f=4)", 2), ("median", 1), ("mean", 2)):
        loaded.clear()
        with dask.config.set(scheduler="threads"):
            result = aggregate(x, rule)
            assert len(loaded) <= 100 * passes + 16
            np.testing.assert_allclose(result.value.compute(), aggregate(rows, rule).value, atol=1e-5)
        assert len(loaded) <= 100 * passes + 16  # the value was there


# How blocks are cut


@pytest.mark.parametrize(
    ("m", "chunks", "widths"),
    [
        (10, ((10,), (300, 40, 200)), (300, 40, 200)),  # as it is
        (10, ((10,), (300, 0, 200)), (300, 200)),
        (10, ((10,), (5,) * 10), (20, 30)),  # narrower than their products
        (10, ((10,), (3,)), (3,)),
        (10, ((4, 6), (50, 50, 50)), (150,)),  # cut along clients: all of it moves anyway
        (2**10, ((2**10,), (2**30,)), (2**30,)),  # however large: workers read blocks in parts
        (2**10, ((2**9,) * 2, (2**15, 2**13 + 2)), (*(2**13,) * 4, 2**12 + 1, 2**12 + 1)),  # no larger than 64 MB
    ],
)
def test_cuts(m, chunks, widths):
    cut = dasked.source_of(da.zeros((m, sum(chunks[1])), chunks=chunks)).rows
    assert cut.chunks == ((m,), widths)


# A call that cannot work


def test_arrays_that_are_no_updates():
    unknown = da.zeros((6, 4), chunks=2)
    unknown = unknown[unknown.sum(axis=1) < 1]
    assert_refused(ValueError, "compute_chunk_sizes()", call=lambda: aggregate(unknown))
    assert_refused(ValueError, "(6, 4, 2)", "reshape", call=lambda: aggregate(da.zeros((6, 4, 2))))
    assert_refused(ValueError, "(6,)", "reshape(-1, 1)", call=lambda: aggregate(da.zeros(6)))
    assert_refused(ValueError, "no clients", call=lambda: aggregate(da.zeros((0, 4))))
    assert_refused(ValueError, "no numbers", call=lambda: aggregate(da.zeros((4, 0))))
    assert_refused(TypeError, "complex", call=lambda: aggregate(da.zeros((4, 3), dtype=complex)))
    assert_refused(ValueError, "dask.array.stack", call=lambda: aggregate([da.zeros(4), da.zeros(4)]))
    assert_refused(ValueError, "2f + 3", call=lambda: aggregate(da.zeros((4, 3)), "krum(f=2)"))
    everyone = da.full((4, 3), np.nan)
    assert_refused(ValueError, "all 4 clients were rejected", call=lambda: aggregate(everyone))


def test_a_lone_dask_array_among_others_costs_its_client_alone():
    result = aggregate([*np.ones((5, 4)), da.zeros(4)])
    assert result.clients.with_status("rejected") == [5]
    assert "dask.array.stack" in result.clients[5].reason


# Only `fedhold.updates` and `fedhold.kernels` touch arrays of d numbers

TOUCHING = [*RULES, *MIXED, "screen | mean"]


@pytest.mark.parametrize("scale", [1, 1e200], ids=["ordinary", "scaled"])
@pytest.mark.parametrize("rule", TOUCHING)
def test_nobody_else_touches_a_vector_of_d_numbers(rule, scale, monkeypatch):
    """On a cluster such vectors are opaque: to compute with one outside of a kernel is to bring it here, an error now."""

    def touched(*_, **__):
        raise AssertionError("a vector of d numbers was brought to this process")

    monkeypatch.setattr(da.Array, "__array__", touched)
    rows = scale * rows_with_liars(np.float64)
    given = parameters(rule, 4) if rule in RULES else {"rng": 0}
    start = {"centered_clipping": {"start": da.zeros(D)}, "fl_trust": {"root": da.ones(D)}}.get(rule, {})
    with dask.config.set(scheduler="synchronous"):
        result = aggregate(da.from_array(rows, chunks=(-1, 1200)), rule, **given, **start)
        assert result.converged
        if rule == "huber":
            assert result.certificate.radius(4) > 0
