"""Aggregation rules: each one is a pure function of the geometry that declares what it needs.

In: a `Geometry`. Out: m weights from a geometry rule; from a column rule, the function to apply to each block of columns;
from a mixing, the matrix that makes new rows from the clients. Imports: `fedhold.geometry` and below, `fedhold.thresholds`.

    declaration.py    what a rule declares about itself, beside its definition
    m_estimators.py   geometry rules: mean, huber, geometric_median, median_of_means, centered_clipping
    selection.py      geometry rules: krum, multi_krum, bulyan, minimum_diameter_averaging, monna
    spectral.py       geometry rules: spectral_huber, spectral_filter, covariance_agnostic_filter, smea, divide_and_conquer
    directions.py     geometry rules that look from 0: comparative_gradient_elimination, sign_guard, fl_trust, fools_gold
    columns.py        column rules: median, trimmed_mean, mean_around_median, phocas; and `by_columns` for a rule of your own
    mixing.py         what may be done to the clients before a rule sees them
"""

from fedhold.rules.columns import by_columns, mean_around_median, median, phocas, trimmed_mean
from fedhold.rules.declaration import Bound, Declaration, declaration_of, declares
from fedhold.rules.directions import comparative_gradient_elimination, fl_trust, fools_gold, sign_guard
from fedhold.rules.m_estimators import centered_clipping, geometric_median, huber, mean, median_of_means
from fedhold.rules.mixing import adaptive_clipping, bucketing, clipping, nearest_neighbour_mixing, screen
from fedhold.rules.selection import bulyan, krum, minimum_diameter_averaging, monna, multi_krum
from fedhold.rules.spectral import covariance_agnostic_filter, divide_and_conquer, smea, spectral_filter, spectral_huber

__all__ = [
    "Bound",
    "Declaration",
    "adaptive_clipping",
    "bucketing",
    "bulyan",
    "by_columns",
    "centered_clipping",
    "clipping",
    "comparative_gradient_elimination",
    "covariance_agnostic_filter",
    "declaration_of",
    "declares",
    "divide_and_conquer",
    "fl_trust",
    "fools_gold",
    "geometric_median",
    "huber",
    "krum",
    "mean",
    "mean_around_median",
    "median",
    "median_of_means",
    "minimum_diameter_averaging",
    "monna",
    "multi_krum",
    "nearest_neighbour_mixing",
    "phocas",
    "screen",
    "sign_guard",
    "smea",
    "spectral_filter",
    "spectral_huber",
    "trimmed_mean",
]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)
