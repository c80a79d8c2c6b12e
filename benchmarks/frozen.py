"""A table of 1,023 calls and what came of them, to compare a change of the engine with.

    python benchmarks/frozen.py compare          what differs from benchmarks/frozen.npz
    python benchmarks/frozen.py record FILE      make another table, with the library as it is

benchmarks/frozen.npz was made by the engine that had a NumPy side and a numba side, before there was one way to read.

Every rule and mixing meets every kind of input: offsets, all dtypes, numbers that cannot be squared or are not finite, ties,
copies, lines, few clients, unequal samples, dicts with counters, files, Dask.
"""

from __future__ import annotations

import argparse
import inspect
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedhold import MIXINGS, RULES, aggregate, save_update

F = 3
M = 4 * F + 6
KEPT = 64  # numbers of a value that the table keeps, spread evenly over all of them
TABLE = Path(__file__).with_suffix(".npz")


def honest(m: int = M, d: int = 60, seed: int = 0) -> np.ndarray:
    """Clients around one place, the first F of them liars who agree on another."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(1.0, 0.3, d) + 0.5 * rng.normal(size=(m, d))
    rows[:F] = rows[:F] * -2 + rng.normal(size=d)
    return rows


def dicts(rows: np.ndarray, make: Callable[[np.ndarray], Any] = np.asarray) -> list[dict[str, Any]]:
    half = rows.shape[1] // 2
    return [
        {
            "w": make(row[:half].reshape(2, -1).astype(np.float32)),
            "b": make(row[half:].astype(np.float32)),
            "n": make(np.array(100 + 7 * i)),
            "mask": make(np.arange(3) < i % 4),
        }
        for i, row in enumerate(rows)
    ]


def files(rows: np.ndarray) -> str:
    folder = tempfile.mkdtemp()
    for i, row in enumerate(rows):
        save_update(row.astype(np.float32), Path(folder) / f"{i:03}.npy")
    return folder


def with_bad(rows: np.ndarray) -> np.ndarray:
    rows = rows.copy()
    rows[1, 5], rows[4, 0] = np.nan, np.inf
    return rows


def with_liar(rows: np.ndarray, size: float) -> np.ndarray:
    rows = rows.copy()
    rows[0], rows[1] = size, -size
    return rows


def torch_of(dtype: str) -> Callable[[np.ndarray], Any]:
    def make(rows: np.ndarray) -> Any:
        import torch

        return torch.as_tensor(np.asarray(rows)).to(getattr(torch, dtype))

    return make


def dask_of(rows: np.ndarray) -> Any:
    import dask.array as da

    return da.from_array(rows, chunks=(len(rows), 40))


def scenes() -> dict[str, tuple[Callable[[], Any], dict[str, Any]]]:
    """name -> (what makes the updates, other arguments)"""
    rows, many, wide = honest(), honest(150, 300, 1), honest(M, 20_000, 2)
    unequal = np.random.default_rng(3).lognormal(4, 1, M)
    line = np.outer(np.linspace(-1, 1, M) ** 3, np.arange(1.0, 8)) + 3
    return {
        "float64": (lambda: rows, {}),
        "float32": (lambda: wide.astype(np.float32), {}),
        "float16": (lambda: rows.astype(np.float16), {}),
        "bfloat16": (lambda: torch_of("bfloat16")(rows), {}),
        "offset 1e4, float32": (lambda: (wide + 1e4).astype(np.float32), {}),
        "offset 1e12": (lambda: rows + 1e12, {}),
        "1e25, float32": (lambda: (rows * 1e25).astype(np.float32), {}),
        "1e140": (lambda: rows * 1e140, {}),
        "1e140 beside 1": (lambda: with_liar(rows, 1e140), {}),
        "liars at 1e30, float32": (lambda: with_liar(rows, 1e30).astype(np.float32), {}),
        "subnormal": (lambda: rows * 1e-315, {}),
        "subnormal, float32": (lambda: (rows * 1e-41).astype(np.float32), {}),
        "not finite": (lambda: with_bad(rows), {}),
        "integers": (lambda: (10 * rows).astype(np.int32), {}),
        "ties": (lambda: np.round(rows[:, :4]), {}),
        "copies": (lambda: np.repeat(rows[2:3], M, axis=0), {}),
        "copies and liars": (lambda: np.concatenate([rows[:F], np.repeat(rows[-1:], M - F, axis=0)]), {}),
        "a line": (lambda: line, {}),
        "one column": (lambda: rows[:, :1], {}),
        "two clients": (lambda: rows[5:7], {"f": 0}),
        "one client": (lambda: rows[5:6], {"f": 0}),
        "unequal samples": (lambda: rows, {"samples": unequal}),
        "unequal samples, uncapped": (lambda: wide.astype(np.float32), {"samples": unequal, "sample_cap": None}),
        "many clients": (lambda: many, {}),
        "many clients, unequal": (
            lambda: many.astype(np.float32),
            {"samples": np.random.default_rng(4).integers(1, 200, 150)},
        ),
        "Fortran": (lambda: np.asfortranarray(wide.astype(np.float32)), {}),
        "list": (lambda: list(wide.astype(np.float32)), {}),
        "dicts with counters": (lambda: dicts(rows), {}),
        "torch dicts with counters": (lambda: dicts(rows, torch_of_own), {}),
        "files": (lambda: files(wide), {}),
        "Dask": (lambda: dask_of(many), {}),
    }


def torch_of_own(array: np.ndarray) -> Any:
    import torch

    return torch.as_tensor(np.array(array))


def specs(f: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every rule, and every mixing before a geometry rule and a column rule; with the parameters that it must have."""
    for name, rule in RULES.items():
        yield name, {"f": f} if "f" in inspect.signature(rule).parameters else {}
    for name, mixing in MIXINGS.items():
        parameters = inspect.signature(mixing).parameters
        told = f"f={f}" if "f" in parameters else "radius=5" if "radius" in parameters else ""
        for rule in ("huber", "median"):
            yield f"{name}({told}) | {rule}", {}


def outcome(updates: Any, spec: str, known: dict[str, Any]) -> dict[str, Any]:
    """What is recorded of one call."""
    try:
        result = aggregate(updates, spec, rng=0, **known)
    except Exception as problem:
        return {"error": type(problem).__name__}
    clients = result.clients
    found = {
        "value": thinned(flat(result.value)),
        "weights": result.weights,
        "statuses": clients.statuses.tolist(),
        "distances": clients.distances,
        "thresholds": clients.thresholds,
        "converged": result.converged,
    }
    if result.certificate is not None:
        found["radii"] = np.array([result.certificate.radius(f) for f in (0, 1, 3)])
    return found


def flat(value: Any) -> np.ndarray:
    if isinstance(value, dict):
        return np.concatenate([flat(value[key]) for key in sorted(value)])
    if hasattr(value, "detach"):
        value = value.float() if "bfloat16" in str(value.dtype) else value
    return np.asarray(value, np.float64).ravel()


def thinned(numbers: np.ndarray) -> np.ndarray:
    return numbers[np.linspace(0, len(numbers) - 1, min(KEPT, len(numbers))).astype(int)]


def write(path: Path, found: dict[tuple[str, str], dict[str, Any]]) -> None:
    """The arrays of all calls, and one text for the rest."""
    arrays, rest = {}, []
    for k, ((scene, spec), one) in enumerate(found.items()):
        plain = {name: value for name, value in one.items() if not isinstance(value, np.ndarray)}
        arrays |= {f"{k} {name}": value for name, value in one.items() if isinstance(value, np.ndarray)}
        rest.append([scene, spec, plain])
    np.savez_compressed(path, rest=np.array(json.dumps(rest)), **arrays)


def read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    with np.load(path, allow_pickle=False) as stored:
        found = {}
        for k, (scene, spec, plain) in enumerate(json.loads(str(stored["rest"]))):
            mine = {name.split(" ", 1)[1]: name for name in stored.files if name.startswith(f"{k} ")}
            found[scene, spec] = plain | {name: stored[full] for name, full in mine.items()}
    return found


def table() -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for scene, (make, given) in scenes().items():
            updates, given = make(), dict(given)
            for spec, known in specs(given.pop("f", F)):
                found[scene, spec] = outcome(updates, spec, {**known, **given})
    return found


def spread(one: dict[str, Any]) -> float:
    distances = one["distances"][np.isfinite(one["distances"])]
    return max(float(np.median(distances)), 1e-12 * float(np.abs(one["value"]).max())) or 1.0


def differences(old: dict[str, Any], new: dict[str, Any], within: float) -> list[str]:
    """In what two outcomes of one call differ, by more than a part of the spread."""
    if ("error" in old) or ("error" in new):
        return [] if old.get("error") == new.get("error") else [f"{old.get('error')} -> {new.get('error')}"]
    said, unit = [], spread(old)
    for name, scale in {"value": unit, "distances": unit, "thresholds": unit, "weights": 1.0, "radii": unit}.items():
        one, other = old.get(name), new.get(name)
        if one is None or other is None:
            said += [f"{name}: {one is None} -> {other is None}"] if (one is None) != (other is None) else []
            continue
        with np.errstate(all="ignore"):
            off = np.abs(one - other)
            off = off[~((one == other) | (np.isnan(one) & np.isnan(other)))] / np.maximum(
                scale, np.abs(one)[~((one == other) | (np.isnan(one) & np.isnan(other)))]
            )
        limit = 2e-2 if name == "radii" else within
        if off.size and not off.max() <= limit:
            said.append(f"{name} off by {off.max():.1e}")
    if old["statuses"] != new["statuses"]:
        pairs = [
            f"{i}: {a} -> {b}" for i, (a, b) in enumerate(zip(old["statuses"], new["statuses"], strict=True)) if a != b
        ]
        said.append("statuses " + ", ".join(pairs[:4]))
    if old["converged"] != new["converged"]:
        said.append(f"converged {old['converged']} -> {new['converged']}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path, nargs="?", default=TABLE)
    parser.add_argument("--within", type=float, default=1e-5, help="of the spread of the clients")
    given = parser.parse_args()
    if given.what == "record":
        write(given.file, table())
        return
    old, new, differ = read(given.file), table(), 0
    for key, one in old.items():
        said = differences(one, new[key], given.within) if key in new else ["gone"]
        differ += bool(said)
        if said:
            print(f"{key[0]:30} {key[1]:45} {'; '.join(said)}")
    print(f"{len(old) - differ} of {len(old)} calls agree.")


if __name__ == "__main__":
    main()
