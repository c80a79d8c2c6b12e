"""What clients sent, as one m x d matrix that is never built.

In: arrays, lists and dicts of arrays, files, Dask arrays. Out: who is admitted, and passes over the matrix. Imports:
`fedhold.kernels`, `fedhold.storage` and `fedhold.errors`.
"""

from fedhold.updates.admission import Admission, admit
from fedhold.updates.columns import Columnwise, columns_tile, surveying
from fedhold.updates.files import DamagedFileError, Told, forgiving, open_update, open_updates, opened, paths_of
from fedhold.updates.magnitudes import DOUBLE_ROOM
from fedhold.updates.matrix import SLAB, Pass, Updates
from fedhold.updates.mixture import Mixture
from fedhold.updates.saving import save_update

__all__ = [
    "DOUBLE_ROOM",
    "SLAB",
    "Admission",
    "Columnwise",
    "DamagedFileError",
    "Mixture",
    "Pass",
    "Told",
    "Updates",
    "admit",
    "columns_tile",
    "forgiving",
    "open_update",
    "open_updates",
    "opened",
    "paths_of",
    "save_update",
    "surveying",
]
