"""FEMNIST: letters and digits by the person who wrote them, from the JSON files that LEAF makes of it.

    $FEDHOLD_DATA/femnist/train/*.json, test/*.json

    {"users": ["f0001_41", ...], "num_samples": [341, ...],
     "user_data": {"f0001_41": {"x": [[784 pixels], ...], "y": [7, ...]}, ...}}

Nothing is downloaded, and there are no checksums: LEAF draws its samples anew for everybody. Every number is checked instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedhold.errors import integer, require, visible
from fedhold.lab.datasets import DataError, Samples, data_folder, read_within

PIXELS, CLASSES = 28 * 28, 62  # ten digits, 26 capital and 26 small letters
LARGEST = 2**29  # bytes of a file; LEAF writes 100 writers into one, some 130 MB
CONTENTS = "the folders train and test with the JSON files of LEAF's FEMNIST (preprocess.sh -s niid -t sample)"


@dataclass(frozen=True, eq=False)
class Writer:
    """What one person wrote, to train and to test on; there may be nothing to test on."""

    name: str
    train: Samples
    test: Samples


def femnist(m: int) -> list[Writer]:
    """The first m writers of FEMNIST, in the order of the files' names and within a file in its own; 28 x 28, 62 classes.

    m  how many; no further file is read once they are found

    Raises DataError where files are missing or damaged.  Caldas et al. 2018, LEAF; Cohen et al. 2017, EMNIST.
    """
    m, folder = integer(m, "m", at_least=1), data_folder("femnist", CONTENTS)
    train: dict[str, Samples] = {}
    for path, name, samples in _written(folder / "train"):
        if name in train:
            raise DataError(f"{path}: the writer {visible(name)} is in another file, too. Remove one of the two.")
        train[name] = samples
        if len(train) == m:
            break
    remedy = "Use fewer clients, or let LEAF sample more writers."
    require(len(train) == m, "femnist", needs=f"m <= {len(train)}, the writers there are", remedy=remedy, m=m)
    test: dict[str, Samples] = {}
    for _, name, samples in _written(folder / "test"):
        if name in train:
            test[name] = samples
        if len(test) == m:
            break
    if not test:
        raise DataError(
            f"{folder / 'test'} has no samples of the writers in {folder / 'train'}. Split the samples of every writer: "
            "LEAF's preprocess.sh does it with -t sample."
        )
    nothing = Samples(np.empty((0, PIXELS), np.float32), np.empty(0, np.int64))
    return [Writer(name, samples, test.get(name, nothing)) for name, samples in train.items()]


def _written(folder: Path) -> Iterator[tuple[Path, str, Samples]]:
    """Every writer in a folder, with the file that has him."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(f"no *.json in {folder}. Put {CONTENTS} into {folder.parent}.")
    for path in paths:
        for name, samples in _read(path).items():
            yield path, name, samples


def _read(path: Path) -> dict[str, Samples]:
    """The writers of one file; a DataError that names what is wrong with it."""
    try:
        told = json.loads(read_within(path, LARGEST))
        users, counts, data = told["users"], told["num_samples"], told["user_data"]
        if sorted(users) != sorted(data) or len(users) != len(counts):
            raise ValueError("users, num_samples and user_data do not agree")
        return {user: _samples(user, data[user], count) for user, count in zip(users, counts, strict=True)}
    except KeyError as missing:
        reason = f"there is no {missing}"
    except RecursionError:
        reason = "it is nested too deeply"
    except (AttributeError, OverflowError, TypeError, ValueError) as problem:
        reason = visible(problem)
    raise DataError(f"{path} is no file of LEAF's FEMNIST: {reason}. Make it anew, or take it out of the folder.")


def _samples(user: str, told: dict[str, Any], count: object) -> Samples:
    """One writer's samples; a ValueError, TypeError or KeyError for what is none."""
    inputs, targets = np.asarray(told["x"], dtype=np.float64), np.asarray(told["y"])
    if targets.ndim != 1 or inputs.shape != (len(targets), PIXELS) or len(targets) != count or count == 0:
        shapes = f"x {inputs.shape}, y {targets.shape}, num_samples {count}"
        raise ValueError(f"{user} must have {PIXELS} pixels and one class per sample, met {shapes}")
    if not ((inputs >= 0) & (inputs <= 1)).all():
        raise ValueError(f"the pixels of {user} must be numbers from 0 to 1")
    if targets.dtype.kind not in "iu" or targets.min() < 0 or targets.max() >= CLASSES:
        raise ValueError(f"the classes of {user} must be whole numbers from 0 to {CLASSES - 1}")
    return Samples(inputs.astype(np.float32), targets.astype(np.int64))
