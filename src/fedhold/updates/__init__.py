"""What clients sent, as one m x d matrix that is never built.

In: arrays, lists and dicts of arrays, files, Dask arrays. Out: which clients are admitted, and passes over the matrix that
return m or m x m numbers. Imports: `fedhold.kernels`, `fedhold.storage`, `fedhold.errors`.

    structure.py   one update: an array, or lists and dicts of arrays
    files.py       updates in .npy and .safetensors files, read in parts
    admission.py   which clients may take part, and why others may not
    matrix.py      the matrix: its blocks, and how a pass runs over them
    passes.py      the passes: the first look at the data, distances, products of pairs, columns -> one row
    cluster.py     the same passes on a Dask cluster
"""

from fedhold.updates.admission import Admission, admit
from fedhold.updates.files import (
    DamagedFileError,
    Told,
    open_update,
    open_updates,
    opened,
    past_damaged_files,
    paths_of,
    save_update,
)
from fedhold.updates.matrix import Updates
from fedhold.updates.passes import (
    ALL_PAIRS,
    Centre,
    Columnwise,
    FirstLook,
    ResidualPairs,
    Sample,
    Wanted,
    centre_of,
    column_row,
    coordinates,
    first_look,
    gram_around,
    images,
    measured,
    over_pairs,
    places_on_a_line,
    product_error,
    products_with,
    residual_pairs,
    sample_of,
    sampled_gram,
    signs_of,
    squared_distances_to,
    summed,
    swept,
)

__all__ = [
    "ALL_PAIRS",
    "Admission",
    "Centre",
    "Columnwise",
    "DamagedFileError",
    "FirstLook",
    "ResidualPairs",
    "Sample",
    "Told",
    "Updates",
    "Wanted",
    "admit",
    "centre_of",
    "column_row",
    "coordinates",
    "first_look",
    "gram_around",
    "images",
    "measured",
    "open_update",
    "open_updates",
    "opened",
    "over_pairs",
    "past_damaged_files",
    "paths_of",
    "places_on_a_line",
    "product_error",
    "products_with",
    "residual_pairs",
    "sample_of",
    "sampled_gram",
    "save_update",
    "signs_of",
    "squared_distances_to",
    "summed",
    "swept",
]
