"""Products with samples that are mostly zeros, compiled by numba: what is not zero times LANES numbers held in registers.

Written as a loop over the lanes, numba would store every sum and load it again for fear that arrays overlap. So the lanes are a
type here: one vector of the compiler's, cut into as many registers as the machine needs for it.
"""

# ruff: noqa: ARG001  # numba calls with more arguments than are asked for here

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from fedhold.kernels.compiled_sweeps import compiled

__all__ = ["LANES", "backward", "by_client", "by_sample", "forward"]

LANES = 32
TILE = 16  # rows and columns to turn at once: a power of two, and a divisor of LANES
VECTOR = ir.VectorType(ir.FloatType(), LANES)


class _Lanes(types.Type):
    """LANES floats."""


_lanes = _Lanes("Lanes")


@register_model(_Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, VECTOR)


@intrinsic
def _zeros(typing):
    def code(context, builder, signature, arguments):
        return ir.Constant(VECTOR, [0.0] * LANES)

    return _lanes(), code


@intrinsic
def _plus(typing, sums, array, place, factor):
    """sums + factor * array[place : place + LANES]; the array is contiguous."""

    def code(context, builder, signature, arguments):
        sums, array, place, factor = arguments
        lanes = builder.load(_pointer(context, builder, signature.args[1], array, place), align=4)
        one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), factor, ir.Constant(ir.IntType(32), 0))
        factors = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))
        return builder.fadd(builder.fmul(lanes, factors, flags=["contract"]), sums, flags=["contract"])

    return _lanes(_lanes, array, types.intp, types.float32), code


@intrinsic
def _store(typing, array, place, one, other):
    """array[place : place + LANES] = one + other; the array is contiguous."""

    def code(context, builder, signature, arguments):
        array, place, one, other = arguments
        builder.store(builder.fadd(one, other), _pointer(context, builder, signature.args[0], array, place), align=4)
        return context.get_dummy_value()

    return types.none(array, types.intp, _lanes, _lanes), code


@intrinsic
def _turn(typing, source, place, apart, target, start, distance):
    """target[start + j * distance + i] = source[place + i * apart + j] for i, j < TILE; both are contiguous."""

    def code(context, builder, signature, arguments):
        source, place, apart, target, start, distance = arguments
        kind = ir.VectorType(ir.FloatType(), TILE)
        rows = []
        for _ in range(TILE):
            rows.append(builder.load(_pointer(context, builder, signature.args[0], source, place, kind), align=4))
            place = builder.add(place, apart)
        halves = [
            ir.Constant(ir.VectorType(ir.IntType(32), TILE), [i // 2 + TILE * (i % 2) for i in range(*half)])
            for half in ((0, TILE), (TILE, 2 * TILE))
        ]
        for _ in range(TILE.bit_length() - 1):  # each step brings one bit of a number's row in its column's place
            pairs = zip(rows[: TILE // 2], rows[TILE // 2 :], strict=True)
            rows = [builder.shuffle_vector(one, other, half) for one, other in pairs for half in halves]
        for row in rows:
            builder.store(row, _pointer(context, builder, signature.args[3], target, start, kind), align=4)
            start = builder.add(start, distance)
        return context.get_dummy_value()

    return types.none(source, types.intp, types.intp, target, types.intp, types.intp), code


def _pointer(context, builder, kind, array, place, vector=VECTOR):
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place]), vector.as_pointer())


# The loop over what is not zero is written twice: as a function it took twice the time, and inlined by numba up to 1.5 times.


@compiled
def forward(starts, places, values, first, weights, out):
    """out = X W for the samples from `first` on: (n, hidden) from W, (columns, hidden)."""
    n, width = out.shape
    for column in range(0, width, LANES):
        for i in range(n):
            k, end = starts[first + i], starts[first + i + 1]
            even, odd = _zeros(), _zeros()
            while k + 1 < end:
                even = _plus(even, weights, np.intp(places[k]) * width + column, np.float32(values[k]))
                odd = _plus(odd, weights, np.intp(places[k + 1]) * width + column, np.float32(values[k + 1]))
                k += 2
            if k < end:
                even = _plus(even, weights, np.intp(places[k]) * width + column, np.float32(values[k]))
            _store(out, i * width + column, even, odd)


@compiled
def backward(starts, places, values, first, offsets, back, out):
    """back_i^T X_i for the clients from `first` on, row after row in the first columns of out[i]."""
    columns, width = starts.shape[1] - 1, back.shape[1]
    turned = np.empty((columns, LANES), np.float32)
    whole = columns - columns % TILE
    for i in range(len(offsets) - 1):
        for column in range(0, width, LANES):
            here = offsets[i] * width + column
            for p in range(columns):
                k, end = starts[first + i, p], starts[first + i, p + 1]
                even, odd = _zeros(), _zeros()
                while k + 1 < end:
                    even = _plus(even, back, np.intp(places[k]) * width + here, np.float32(values[k]))
                    odd = _plus(odd, back, np.intp(places[k + 1]) * width + here, np.float32(values[k + 1]))
                    k += 2
                if k < end:
                    even = _plus(even, back, np.intp(places[k]) * width + here, np.float32(values[k]))
                _store(turned, p * LANES, even, odd)
            target = i * out.shape[1] + column * columns
            for j in range(0, LANES, TILE):
                for p in range(0, whole, TILE):
                    _turn(turned, p * LANES + j, LANES, out, target + j * columns + p, columns)
            for j in range(LANES):
                for p in range(whole, columns):
                    out[i, (column + j) * columns + p] = turned[p, j]


@compiled
def by_sample(inputs, starts, places, values):
    """What is not zero, sample by sample: its column and its value; one place more is needed than there are of these."""
    k = 0
    for i in range(inputs.shape[0]):
        starts[i] = k
        for p in range(inputs.shape[1]):
            places[k], values[k] = p, inputs[i, p]
            k += inputs[i, p] != 0
    starts[-1] = k


@compiled
def by_client(inputs, offsets, starts, places, values):
    """The same client by client and column by column: which of the client's samples, and its value."""
    k = 0
    for client in range(len(offsets) - 1):
        own = inputs[offsets[client] : offsets[client + 1]]
        for p in range(inputs.shape[1]):
            starts[client, p] = k
            for i in range(len(own)):
                places[k], values[k] = i, own[i, p]
                k += own[i, p] != 0
        starts[client, -1] = k
