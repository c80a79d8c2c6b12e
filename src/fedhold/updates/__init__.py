"""What clients sent, as one m x d matrix that is never built.

In: arrays, lists and dicts of arrays, files, Dask arrays. Out: who is admitted, and passes over the matrix. Imports:
`fedhold.kernels`, `fedhold.storage` and `fedhold.errors`.
"""

from fedhold.updates.files import DamagedFileError, Told, open_update, open_updates, paths_of
from fedhold.updates.saving import save_update

__all__ = ["DamagedFileError", "Told", "open_update", "open_updates", "paths_of", "save_update"]
