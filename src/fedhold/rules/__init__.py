"""Aggregation rules: each one is a pure function of the geometry that declares what it needs.

In: a `Geometry`. Out: m weights from a geometry rule; from a column rule, the function to apply to each block of columns;
from a mixing, the matrix that makes new rows from the clients. Imports: `fedhold.geometry` and below, `fedhold.thresholds`.

    declaration.py    what a rule declares about itself, beside its definition
    m_estimators.py   geometry rules: mean, huber, geometric_median, median_of_means, centered_clipping
    selection.py      geometry rules: krum, multi_krum, bulyan
    spectral.py       geometry rules: spectral_huber, spectral_filter, divide_and_conquer
    columns.py        column rules: median, trimmed_mean, mean_around_median
    mixing.py         what may be done to the clients before a rule sees them
"""

from fedhold.rules.columns import mean_around_median, median, trimmed_mean
from fedhold.rules.declaration import Declaration, declaration_of, declares
from fedhold.rules.m_estimators import centered_clipping, geometric_median, huber, mean, median_of_means
from fedhold.rules.mixing import bucketing, clipping, nearest_neighbour_mixing, screen
from fedhold.rules.selection import bulyan, krum, multi_krum
from fedhold.rules.spectral import divide_and_conquer, spectral_filter, spectral_huber

__all__ = [
    "Declaration",
    "bucketing",
    "bulyan",
    "centered_clipping",
    "clipping",
    "declaration_of",
    "declares",
    "divide_and_conquer",
    "geometric_median",
    "huber",
    "krum",
    "mean",
    "mean_around_median",
    "median",
    "median_of_means",
    "multi_krum",
    "nearest_neighbour_mixing",
    "screen",
    "spectral_filter",
    "spectral_huber",
    "trimmed_mean",
]
