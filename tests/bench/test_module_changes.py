"""The script that counts modules and changes of module counts as it says."""

import importlib
import sys

from module_changes import Passage, passage

SOURCES = {
    "__init__": "",
    "outer": "import functools\nfrom little.inner import leaf, twice\n"
    "def top():\n    helper()\n    leaf()\n    return functools.reduce(twice, [1, 2, 3])\n"
    "def helper():\n    return 1\n",
    "inner": "from little.deep import deepest\ndef leaf():\n    return 1\ndef twice(a, b):\n    return deepest(a + b)\n",
    "deep": "def deepest(a):\n    return a\n",
    "unused": "def never():\n    return 1\n",
}


def test_calls_and_returns_between_modules_count(tmp_path, monkeypatch):
    package = tmp_path / "little"
    package.mkdir()
    for name, source in SOURCES.items():
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    outer = importlib.import_module("little.outer")
    # Into outer; to inner and back for `leaf`; to inner, deep and back, twice, for `twice`, through functools.
    assert passage(package, outer.top) == Passage(("deep", "inner", "outer"), 1 + 2 + 2 * 4)
    assert sys.getprofile() is None
