"""Aggregation rules, each one a pure function of the geometry that declares what it needs.

In: a `Geometry`. Out: m weights, or what is to be done with each column.
Imports: `fedhold.geometry` and below, `fedhold.thresholds`.
"""

from fedhold.rules.declaration import Declaration, declaration_of, declares
from fedhold.rules.m_estimators import (
    centered_clipping,
    geometric_median,
    huber,
    mean,
    mean_around_median,
    median,
    median_of_means,
    trimmed_mean,
)
from fedhold.rules.mixing import bucketing, clipping, nearest_neighbour_mixing, screen
from fedhold.rules.selection import bulyan, divide_and_conquer, krum, multi_krum, spectral_filter

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
    "trimmed_mean",
]
