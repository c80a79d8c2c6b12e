"""float16 and bfloat16: every number there is; and what aggregate makes of them in every form."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from fedhold import aggregate
from fedhold.kernels import BFLOAT16, dtype_name, host, narrowed, to_host, widened
from fedhold.updates.admission import _readable

EVERY = np.arange(2**16, dtype=np.uint16).reshape(
    64, -1
)  # zeros, the least numbers, infinity and NaN of both signs included
KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_there_is(kind):
    """The same bits as by the casts of NumPy and ml_dtypes; for parts and other layouts, too."""
    dtype, expected = (BFLOAT16 if kind == "bfloat16" else np.float16), EVERY.view(KINDS[kind])
    expected = expected.astype(np.float32).view(np.uint32)
    forms = {
        "whole": EVERY,
        "part": np.concatenate([EVERY, EVERY], axis=1)[:, : EVERY.shape[1]],
        "columns": np.asfortranarray(EVERY),
    }
    for form, bits in forms.items():
        found = widened(bits.view(dtype) if form != "columns" else bits.T.view(dtype).T)
        np.testing.assert_array_equal(found.view(np.uint32), expected, err_msg=form)
    assert widened(EVERY[:, :0].view(dtype)).shape == (64, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_number_there_is(kind):
    """The same bits as by the casts of NumPy and ml_dtypes: for every number there is, halfway between two, and beside that."""
    narrow, most = KINDS[kind], float(ml_dtypes.finfo(KINDS[kind]).max)
    exact = EVERY.reshape(-1).view(narrow).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    halfway = exact[:-1] / 2 + exact[1:] / 2
    beside = [np.nextafter(halfway, np.float32(way)) for way in (-np.inf, np.inf)]
    beyond = np.array([1.5 * 65504, -1e30, 3.4e38, -3.4e38], np.float32)
    numbers = np.concatenate([exact, halfway, *beside, beyond, np.array([-0.0, 1e-45], np.float32)])
    found = narrowed(numbers, BFLOAT16 if kind == "bfloat16" else np.dtype(np.float16))
    expected = np.clip(numbers, -most, most).astype(narrow)
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))


def test_bfloat16_of_every_library_is_a_view_of_its_bits():
    array = np.array([[1.5, -2.0], [0.25, np.inf]], ml_dtypes.bfloat16)
    for given in (array, torch.tensor(array.astype(np.float32)).to(torch.bfloat16), jnp.asarray(array)):
        view = host(given)
        assert dtype_name(view) == "bfloat16"
        np.testing.assert_array_equal(to_host(view, None), array.astype(np.float32))
        np.testing.assert_array_equal(to_host(view.T, np.float64), array.T.astype(np.float64))
    assert np.shares_memory(host(array), array)
    assert _readable({"w": array})[0].array.dtype == BFLOAT16


def forms(X, kind):
    """The same numbers in everything that can hold them."""
    narrow, tensor = X.astype(KINDS[kind]), torch.tensor(X).to(getattr(torch, kind))
    layers = [{"a": row[:50].reshape(5, 10), "b": row[50:]} for row in tensor]
    return {
        "matrix": narrow,
        "list": list(narrow),
        "Fortran order": np.asfortranarray(narrow),
        "backwards": list(np.ascontiguousarray(narrow[:, ::-1])[:, ::-1]),
        "torch": tensor,
        "torch list": list(tensor),
        "torch dicts": layers,
        "jax list": [jnp.asarray(row) for row in narrow],
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["huber", "median", "krum(f=2)", "bucketing | trimmed_mean(f=1)"])
def test_every_form_gives_what_float32_gives(rule, kind):
    X = np.random.default_rng(0).standard_normal((20, 3000)).astype(np.float32)
    X[:3] += 2
    X = X.astype(KINDS[kind]).astype(np.float32)
    X[-1, 7] = np.nan
    expected = aggregate(X, rule, rng=0)
    digits = 2.0 ** (-10 if kind == "float16" else -7)
    for form, updates in forms(X, kind).items():
        result = aggregate(updates, rule, rng=0)
        value = result.value
        value = torch.cat([value["a"].reshape(-1), value["b"]]) if form == "torch dicts" else value
        assert dtype_name(value) == kind, form
        numbers = to_host(host(value), np.float32)
        np.testing.assert_allclose(numbers, expected.value, rtol=digits, atol=1e-6, err_msg=form)
        np.testing.assert_allclose(result.clients.distances, expected.clients.distances, rtol=1e-5, err_msg=form)
        assert result.clients[-1].reason == "numbers that are not finite"


def test_what_a_bfloat16_cannot_hold_becomes_its_largest_number():
    largest = np.array([3.3895e38], ml_dtypes.bfloat16)
    result = aggregate([largest] * 3 + [np.array([3.402e38], np.float32)] * 2, "mean")
    assert result.value.dtype == ml_dtypes.bfloat16
    assert np.isfinite(result.value.astype(np.float32)).all()
