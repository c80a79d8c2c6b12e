"""The patients of one hospital, from the file to the numbers a model can use.

Nothing here uses data of other hospitals. Missing values are filled in from the hospital's own training patients, and the
scale of every number is a constant that all hospitals agreed on beforehand, so no statistic of the patients is shared.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"),
    "num",
)
# Centre and scale of each number, agreed on: round figures for adults who are examined for chest pain.
SCALES = {
    "age": (55, 10),
    "trestbps": (130, 20),  # mm Hg
    "chol": (240, 50),  # mg/dl
    "thalach": (140, 25),  # beats per minute
    "oldpeak": (1, 1),  # mm
    "ca": (1, 1),  # vessels, 0 to 3
}
FURTHEST = (
    4.0  # scales from the centre, where values are clipped: one typing error must not outweigh the other patients
)
CHOICES = {
    "sex": (1,),
    "fbs": (1,),
    "exang": (1,),
    "cp": (1, 2, 3, 4),
    "restecg": (0, 1, 2),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}
NEVER_ZERO = ("trestbps", "chol")  # a 0 in these columns means that nobody measured
ALWAYS_THERE = ("age", "sex", "cp")
FEATURES = (
    *SCALES,
    *(f"{column}={value}" for column, values in CHOICES.items() for value in values),
    *(f"{column} missing" for column in COLUMNS[:-1] if column not in ALWAYS_THERE),
    "intercept",
)
HELD_OUT = 0.3  # the fraction of patients to evaluate on


@dataclass(frozen=True)
class Patients:
    """Rows of FEATURES, and whether the patient has heart disease (1) or not (0)."""

    inputs: Floats
    targets: Floats


def load(hospital: str, seed: int) -> tuple[Patients, Patients]:
    """The patients to train on, and those to evaluate on: 30 % of the healthy and 30 % of the ill."""
    table = _read(hospital)
    ill = table["num"] > 0
    rng = np.random.default_rng([seed, HOSPITALS.index(hospital)])
    held_out = np.zeros(len(ill), dtype=bool)
    for group in (np.flatnonzero(ill), np.flatnonzero(~ill)):
        held_out[rng.permutation(group)[: round(HELD_OUT * len(group))]] = True
    medians = {column: _median(table[column][~held_out]) for column in SCALES}
    inputs, targets = _features(table, medians), ill.astype(np.float64)
    return Patients(inputs[~held_out], targets[~held_out]), Patients(inputs[held_out], targets[held_out])


def _read(hospital: str) -> dict[str, Floats]:
    """One array per column, NaN for what is missing."""
    folder = os.environ.get("FEDHOLD_DATA")
    path = Path(folder or ".") / "heart-disease" / f"processed.{hospital}.data"
    if not folder or not path.is_file():
        raise FileNotFoundError(
            f"No {path.name} in {path.parent if folder else '$FEDHOLD_DATA, which is not set'}. Put the four processed.*.data "
            "files of the UCI Heart Disease data set into a folder named heart-disease, and set the environment variable "
            "FEDHOLD_DATA of every SuperNode to the folder above it."
        )
    rows = np.genfromtxt(path, delimiter=",", missing_values="?", filling_values=np.nan)
    if rows.ndim != 2 or rows.shape[1] != len(COLUMNS):
        raise ValueError(
            f"{path} has shape {rows.shape}, not (patients, {len(COLUMNS)}). Put the original in its place."
        )
    table: dict[str, Any] = dict(zip(COLUMNS, rows.T, strict=True))
    for column in NEVER_ZERO:
        table[column] = np.where(table[column] == 0, np.nan, table[column])
    return table


def _median(values: Floats) -> float | None:
    """The median; None where no patient was measured, as with cholesterol in Switzerland."""
    there = values[~np.isnan(values)]
    return float(np.median(there)) if there.size else None


def _features(table: dict[str, Floats], medians: dict[str, float | None]) -> Floats:
    """The columns of FEATURES: scaled numbers, one column per choice, one per column that may be missing, and 1.

    A missing number becomes the hospital's own median, or the agreed centre where it has none; a missing choice is none of
    the choices. In both cases a column of its own says so, and the model can learn what not being examined means.
    """
    columns: list[Floats] = []
    for column, (centre, scale) in SCALES.items():
        median = medians[column]
        filled = np.where(np.isnan(table[column]), centre if median is None else median, table[column])
        columns.append(np.clip((filled - centre) / scale, -FURTHEST, FURTHEST))
    columns += [(table[column] == value).astype(np.float64) for column, values in CHOICES.items() for value in values]
    columns += [np.isnan(table[column]).astype(np.float64) for column in COLUMNS[:-1] if column not in ALWAYS_THERE]
    columns.append(np.ones(len(table["num"])))
    return np.stack(columns, axis=1)
