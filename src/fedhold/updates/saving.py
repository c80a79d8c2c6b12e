"""Writing updates: .npy and .safetensors files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import listed
from fedhold.storage import whole_file
from fedhold.updates.files import CODES

__all__ = ["save_update"]

CHUNK = 2**20  # numbers written at once
NAMES = {code: name for name, code in CODES.items()}


def save_update(value: Any, path: str | os.PathLike[str]) -> None:
    """Write one update, such as `result.value`: an array to a .npy file, a dict of arrays to a .safetensors file.

    The file appears whole or not at all, whatever interrupts this.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    arrays = value if isinstance(value, dict) else {"": value}
    if suffix != (".safetensors" if isinstance(value, dict) else ".npy"):
        raise ValueError(f"{path} must end in .npy for an array, or in .safetensors for a dict of arrays. Rename it.")
    parts = {name: np.asarray(array) for name, array in arrays.items()}
    for name, part in parts.items():
        if not isinstance(name, str) or _code(part) not in NAMES:
            raise TypeError(
                f"dtype {part.dtype} at [{name!r}] cannot be saved. Pass an array, or a dict of arrays by name, of floats "
                f"or integers: {listed(NAMES[code] for code in NAMES)}."
            )
    with whole_file(path, sync=True) as file:
        if suffix == ".npy":
            header = {"descr": _code(parts[""]), "fortran_order": False, "shape": parts[""].shape}
            np.lib.format.write_array_header_1_0(file, header)
            _write(file, parts[""])
            return
        # The widest numbers first, as the format's own writer has it: then all of them are aligned.
        ordered = sorted(parts, key=lambda name: (-parts[name].itemsize, name))
        file.write(_safetensors_header(ordered, parts))
        for name in ordered:
            _write(file, parts[name])


def _code(array: NDArray[Any]) -> str:
    return array.dtype.newbyteorder("<").str


def _safetensors_header(ordered: list[str], parts: dict[str, NDArray[Any]]) -> bytes:
    entries, end = {}, 0
    for name in ordered:
        part = parts[name]
        span = [end, end + part.nbytes]
        entries[name] = {"dtype": NAMES[_code(part)], "shape": part.shape, "data_offsets": span}
        end = span[1]
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write(file: BinaryIO, array: NDArray[Any]) -> None:
    for start in range(0, array.size, CHUNK):
        file.write(array.flat[start : start + CHUNK].astype(_code(array), copy=False).data)
