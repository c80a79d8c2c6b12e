"""What clients sent, as one m x d matrix that is never built.

In: arrays, lists and dicts of arrays, files, Dask arrays. Out: which clients are admitted, and one way to read their numbers.
Imports: `fedhold.kernels`, `fedhold.storage`, `fedhold.errors`.

    structure.py   one update: an array, or lists and dicts of arrays
    files.py       updates in .npy and .safetensors files, read in parts
    admission.py   which clients may take part, and why others may not
    counters.py    integers and masks beside floating numbers
    tiles.py       the matrix: Updates.read runs a loop on every tile
    first.py       the first pass: are all numbers sound, and what the rule needs first
    cluster.py     the same on a Dask cluster
"""

from fedhold.updates.admission import Admission, Sent, admit, gather
from fedhold.updates.files import (
    DamagedFileError,
    StoredArray,
    Told,
    open_update,
    open_updates,
    opened,
    part_of,
    paths_of,
    save_update,
    without_damaged,
)
from fedhold.updates.first import (
    SURPRISE,
    AllPairs,
    Centre,
    Columnwise,
    FirstLook,
    Sample,
    Wanted,
    column_row,
    first_look,
    pair_numbers,
)
from fedhold.updates.structure import Path, Rejection, filled, flatten
from fedhold.updates.tiles import Columns, Updates

__all__ = [
    "SURPRISE",
    "Admission",
    "AllPairs",
    "Centre",
    "Columns",
    "Columnwise",
    "DamagedFileError",
    "FirstLook",
    "Path",
    "Rejection",
    "Sample",
    "Sent",
    "StoredArray",
    "Told",
    "Updates",
    "Wanted",
    "admit",
    "column_row",
    "filled",
    "first_look",
    "flatten",
    "gather",
    "open_update",
    "open_updates",
    "opened",
    "pair_numbers",
    "part_of",
    "paths_of",
    "save_update",
    "without_damaged",
]
