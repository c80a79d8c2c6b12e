"""Heart disease by hospital: the UCI data set, the patients of each hospital as samples.

The four files are looked for in $FEDHOLD_DATA/heart-disease, and checked by their MD5. Missing values are filled in from the
hospital's own patients to train on, and the scale of every number is a constant, so that no hospital uses data of another.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np

from fedhold.kernels import Floats
from fedhold.lab.datasets import Samples, data_folder, read_original

MD5 = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"),
    "num",
)
# Centre and scale of each number: round figures for adults who are examined for chest pain.
SCALES = {
    "age": (55, 10),
    "trestbps": (130, 20),
    "chol": (240, 50),
    "thalach": (140, 25),
    "oldpeak": (1, 1),
    "ca": (1, 1),
}
FURTHEST = 4.0  # scales from the centre, where values are clipped: a typing error must not outweigh the other patients
CHOICES = {
    **{"sex": (1,), "fbs": (1,), "exang": (1,), "cp": (1, 2, 3, 4)},
    **{"restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)},
}
NEVER_ZERO = ("trestbps", "chol")  # a 0 in these columns means that nobody measured
ALWAYS_THERE = ("age", "sex", "cp")
HELD_OUT = 0.3  # the fraction of patients to test on


@dataclass(frozen=True, eq=False)
class Ward:
    """The patients of one hospital, to train and to test on; class 1 has heart disease, class 0 has not."""

    hospital: str
    train: Samples
    test: Samples


def heart_disease(rng: np.random.Generator) -> list[Ward]:
    """The patients of Cleveland, Budapest, Zurich and Basel, and Long Beach; 30 % of the healthy and of the ill to test on.

    rng  draws the patients to test on

    Raises DataError where a file is missing or damaged.  Janosi, Steinbrunn, Pfisterer, Detrano 1988.
    """
    return [_ward(hospital, rng) for hospital in MD5]


def _ward(hospital: str, rng: np.random.Generator) -> Ward:
    table = _read(hospital)
    ill = table["num"] > 0
    held_out = np.zeros(len(ill), dtype=bool)
    for group in (np.flatnonzero(ill), np.flatnonzero(~ill)):
        held_out[rng.permutation(group)[: round(HELD_OUT * len(group))]] = True
    inputs, targets = _features(table, ~held_out), ill.astype(np.int64)
    return Ward(hospital, Samples(inputs[~held_out], targets[~held_out]), Samples(inputs[held_out], targets[held_out]))


def _read(hospital: str) -> dict[str, Floats]:
    """One array per column, NaN for what is missing."""
    folder = data_folder("heart-disease", "the four processed.*.data files of the UCI Heart Disease data set")
    data = read_original(folder / f"processed.{hospital}.data", MD5[hospital])
    rows = np.genfromtxt(io.BytesIO(data), delimiter=",", missing_values="?", filling_values=np.nan)
    table: dict[str, Floats] = dict(zip(COLUMNS, rows.T, strict=True))
    for column in NEVER_ZERO:
        table[column] = np.where(table[column] == 0, np.nan, table[column])
    return table


def _features(table: dict[str, Floats], known: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    """Scaled numbers, one column per choice, and one per column that may be missing.

    A missing number becomes the median of the patients in `known`, or the centre where none of them was measured; a missing
    choice is none of the choices. In both cases a column of its own says so.
    """
    columns: list[Floats] = []
    for column, (centre, scale) in SCALES.items():
        values = table[column]
        there = values[known & ~np.isnan(values)]
        filled = np.where(np.isnan(values), np.median(there) if there.size else centre, values)
        columns.append(np.clip((filled - centre) / scale, -FURTHEST, FURTHEST))
    columns += [(table[column] == value).astype(np.float64) for column, values in CHOICES.items() for value in values]
    columns += [np.isnan(table[column]).astype(np.float64) for column in COLUMNS[:-1] if column not in ALWAYS_THERE]
    return np.stack(columns, axis=1)
