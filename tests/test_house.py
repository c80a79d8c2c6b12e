"""House rules: rooms and their doors, registries, and that every example and command in the documents runs."""

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedhold
from fedhold import MIXINGS, RULES, aggregate, bounds, open_updates, save_update, spec
from fedhold.lab import ATTACKS, PARTITIONS
from fedhold.rules import declaration_of, declares
from fedhold.spec import THRESHOLDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedhold"
README = (ROOT / "README.md").read_text(encoding="utf-8")

RANDOM_ANYWHERE = {"Generator", "default_rng", "SeedSequence"}  # the rest of numpy.random is one global state

SOURCES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.stem != "__main__"
}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}
every_module = pytest.mark.parametrize("name", SOURCES)


@every_module
def test_chance_comes_from_a_generator(name):
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
            assert node.attr in RANDOM_ANYWHERE, f"{name}.py:{node.lineno} uses {ast.unparse(node)}"


class DecoratedToo(doctest.DocTestFinder):
    """Finds the examples of functions that a decorator of another module has wrapped, such as rules."""

    def _from_module(self, module, thing):
        return super()._from_module(module, inspect.unwrap(thing) if inspect.isfunction(thing) else thing)


@every_module
def test_docstring_examples_run(name):
    module = importlib.import_module(name.removesuffix(".__init__"))
    report, runner = io.StringIO(), doctest.DocTestRunner()
    for examples in DecoratedToo().find(module):
        runner.run(examples, out=report.write)
    assert runner.failures == 0, report.getvalue()


def test_the_examples_of_rules_are_found():
    found = {examples.name for examples in DecoratedToo().find(importlib.import_module("fedhold.rules.selection"))}
    assert "fedhold.rules.selection.krum" in found


# Rooms: what may import what is `lint-imports`' affair (pyproject.toml)

PACKAGES = ["fedhold", *(found.name for found in pkgutil.walk_packages(fedhold.__path__, "fedhold.") if found.ispkg)]
every_package = pytest.mark.parametrize("name", PACKAGES)


@every_package
def test_a_package_says_what_it_is_and_what_it_offers(name):
    package = importlib.import_module(name)
    assert package.__doc__, f"{name}: say in a few lines what enters, what leaves and what it may import"
    written = [word for word in package.__all__ if word not in {**REGISTERED, **ATTACKS}]
    assert written == sorted(written, key=lambda word: (not word.isupper(), not word[0].isupper(), word))
    for word in package.__all__:
        assert hasattr(package, word), f"{name}.__all__ names {word}, which does not exist"


@every_package
def test_a_module_is_not_hidden_by_a_name(name):
    """`import fedhold.lab.x as m` gives a module, never a function of that name."""
    package = importlib.import_module(name)
    for found in pkgutil.iter_modules(package.__path__):
        thing = vars(package).get(found.name)
        assert thing is None or inspect.ismodule(thing), f"{name}.{found.name} is a module and something else"


def test_the_contract_names_every_room():
    """A new package or module at the top needs a place in the order of imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = [c for c in project["tool"]["importlinter"]["contracts"] if "between packages" in c["name"]]
    placed = {name.strip() for layer in layers["layers"] for name in layer.split("|")}
    there = {f"fedhold.{found.name}" for found in pkgutil.iter_modules(fedhold.__path__)}
    assert placed == there - {"fedhold.__main__"}


def test_nobody_but_geometry_reaches_for_the_data():
    for name, tree in TREES.items():
        if not name.startswith(("fedhold.geometry.geometry", "fedhold.updates")):
            for node in ast.walk(tree):
                assert not (isinstance(node, ast.Attribute) and node.attr == "_updates"), f"{name}:{node.lineno}"


# Registries

# A rule added by CONTRIBUTING's recipe: the function, what it declares, and its name in RULES.


def test_a_new_geometry_rule_gets_the_fast_path(tmp_path, monkeypatch):
    """It declares that it needs pairs: files are then read once, and the rows it chooses once more."""

    @declares(pairs=True)
    def closest(geometry, *, keep):
        order = np.argsort(geometry.squared_distances.sum(axis=1))[:keep]
        return np.isin(np.arange(geometry.m), order) / keep

    monkeypatch.setitem(spec.RULES, "closest", closest)
    rows = np.random.default_rng(0).standard_normal((20, 50_000)).astype(np.float32)
    for i, row in enumerate(rows):
        save_update(row, tmp_path / f"{i:02}.npy")
    read = []
    result = aggregate(open_updates(tmp_path, on_read=read.append), "closest(keep=1)")
    assert sum(read) <= 1.2 * rows.nbytes
    assert len(result.clients.with_status("kept")) == 1
    undeclared = []
    aggregate(open_updates(tmp_path, on_read=undeclared.append), lambda geometry: closest(geometry, keep=1))
    assert sum(undeclared) <= sum(read) + rows.nbytes  # It still works, by passes.


def test_a_new_column_rule_gets_the_fast_path(tmp_path, monkeypatch):
    """It declares its view: its row comes out of the one pass that looks for numbers that are not finite."""

    @declares(view="columns")
    def midrange(block):
        return (block.min(axis=0).astype(np.float64) + block.max(axis=0)) / 2

    monkeypatch.setitem(spec.RULES, "midrange", midrange)
    rows = np.random.default_rng(0).standard_normal((20, 50_000)).astype(np.float32)
    for i, row in enumerate(rows):
        save_update(row, tmp_path / f"{i:02}.npy")
    read = []
    result = aggregate(open_updates(tmp_path, on_read=read.append), "midrange")
    assert sum(read) == rows.nbytes
    np.testing.assert_allclose(result.value, (rows.min(axis=0) + rows.max(axis=0)) / 2, rtol=1e-6, atol=1e-6)


DOCUMENTED = {
    **RULES,
    **MIXINGS,
    **{f"threshold {name}": function for name, function in THRESHOLDS.items()},
    **{f"attack {name}": function for name, function in ATTACKS.items()},
    **{f"partition {name}": function for name, function in PARTITIONS.items()},
    **{
        f"fedhold.{name}": getattr(fedhold, name)
        for name in fedhold.__all__
        if inspect.isfunction(getattr(fedhold, name))
    },
    **{f"bounds.{name}": getattr(bounds, name) for name in bounds.__all__ if inspect.isfunction(getattr(bounds, name))},
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_public_function_documents_its_parameters_and_has_an_example(name):
    function = DOCUMENTED[name]
    for parameter in list(inspect.signature(function).parameters)[0 if "." in name else 1 :]:
        assert re.search(rf"\b{parameter.strip('*')}\b", function.__doc__), (
            f"{name}: the docstring does not name {parameter}"
        )
    assert ">>>" in function.__doc__, f"{name}: the docstring needs an executed example"


REGISTERED = {**RULES, **MIXINGS}


@pytest.mark.parametrize("name", REGISTERED)
def test_one_spelling(name):
    assert REGISTERED[name].__name__ == name


@pytest.mark.parametrize("name", RULES)
def test_a_rule_names_its_source(name):
    assert re.search(r"\b(19|20)\d\d\b", RULES[name].__doc__), f"{name}: the docstring needs its source, with the year"


@pytest.mark.parametrize("name", REGISTERED)
def test_a_rule_that_takes_f_states_its_bound(name):
    if "f" in inspect.signature(REGISTERED[name]).parameters:
        assert "m >=" in REGISTERED[name].__doc__, f"{name}: the docstring needs its bound, as in 'Needs m >= 2f + 3'"


@pytest.mark.parametrize("name", REGISTERED)
def test_the_declared_source_is_that_of_the_docstring(name):
    years = re.findall(r"\d{4}", declaration_of(REGISTERED[name]).source)
    assert years, f"{name}: declare its source, with the year"
    assert set(years) <= set(re.findall(r"\d{4}", REGISTERED[name].__doc__)) or name == "screen"


def test_the_tables_of_rules_are_those_that_are_declared():
    written = runpy.run_path(str(ROOT / "docs" / "tables.py"))["written"]
    assert written(README) == README, "run `python docs/tables.py`"


# The documents

FENCED = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def same(shown, printed):
    """Whether two texts agree word by word, numbers to a few parts in a thousand."""
    pairs = list(zip(shown.split(), printed.split(), strict=False))
    if len(shown.split()) != len(printed.split()):
        return False

    def alike(a, b):
        try:
            return float(a) == pytest.approx(float(b), rel=5e-3)
        except ValueError:
            return a == b

    return all(alike(a.strip(",;."), b.strip(",;.")) for a, b in pairs)


def flower_names():
    """What a ServerApp has when it comes to the lines that the documents show."""
    from flower_grid import LocalGrid, client_app, model

    return {"grid": LocalGrid(client_app(), m=6), "initial_arrays": model()}


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_BLOCKS = [path for path in DOCUMENTS if "```python" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_BLOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_in_a_document_runs(path, tmp_path, monkeypatch):
    """Python blocks run in order, in one namespace; a text block shows what the block before it printed."""
    monkeypatch.chdir(tmp_path)
    namespace, printed = {"__name__": "__main__"}, ""
    for language, body in FENCED.findall(path.read_text(encoding="utf-8")):
        if language == "python":
            if "grid" in body:
                namespace |= flower_names()
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(body, path.name, "exec"), namespace)
            printed = output.getvalue()
        elif language == "text":
            assert same(body, printed), f"{path.name} shows\n{body}\nbut its code prints\n{printed}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_has_no_code_that_is_not_run(path):
    """A block is Python, which runs; its output; a shell's commands; a configuration; or a directive of the site."""
    for language, body in FENCED.findall(path.read_text(encoding="utf-8")):
        known = language in {"python", "text", "sh", "toml", ""} or language.startswith("{")
        assert known, f"{path.name}: {language}\n{body}"
        assert language or not re.search(r"^(from|import) ", body, re.MULTILINE), f"{path.name}: name the language"


def test_documents_name_commands_that_exist():
    text = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shell = "\n".join(body for language, body in FENCED.findall(text) if language == "sh")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"^make ([\w-]+)", shell, re.MULTILINE))
    assert named
    assert named <= targets
    commands = re.findall(r"^fedhold (\w+)((?: --\w+ \S+)*)", shell, re.MULTILINE)
    assert commands
    for command, options in commands:
        told = subprocess.run(
            [sys.executable, "-m", "fedhold", command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert all(option in told for option in re.findall(r"--\w+", options))


def test_help_and_completion_show_the_public_names():
    script = (
        "import fedhold, pydoc, re; print(dir(fedhold)); text = pydoc.render_doc(fedhold, renderer=pydoc.plaintext);"
        "print(re.findall(r'^    (?:class )?([A-Za-z]\\w*)(?: = |\\()', text.split('PACKAGE CONTENTS')[1], re.M));"
        "import fedhold.lab; print('lab' in dir(fedhold), 'kernels' in dir(fedhold))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names, documented, packages = run.stdout.splitlines()
    assert ast.literal_eval(names) == sorted([*fedhold.__all__, "__version__"])
    modules = {name for name in fedhold.__all__ if inspect.ismodule(getattr(fedhold, name))}
    assert set(ast.literal_eval(documented)) == set(fedhold.__all__) - modules
    assert packages == "True False"


@pytest.mark.parametrize("name", ["audit", "bounds", "flower", "lab", "nvflare", "rules", "thresholds", "transport"])
def test_packages_show_their_public_names(name):
    package = importlib.import_module(f"fedhold.{name}")
    assert dir(package) == sorted(package.__all__)


def test_import_is_light():
    heavy = "{'torch', 'jax', 'click', 'rich', 'jinja2', 'pandas', 'scipy', 'numba', 'dask'}"
    code = f"import sys, fedhold; print(*sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert project["version"] == fedhold.__version__
    assert re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1] == fedhold.__version__
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_metadata_agree_with_the_citation():
    """The wheel has its authors and addresses from pyproject.toml; both stand in CITATION.cff."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    authors = citation[citation.index("\nauthors:") : citation.index("\nkeywords:")]
    assert re.findall(r"- name: (.+)", authors) == [author["name"] for author in project["authors"]]
    assert project["urls"] == {"Paper": f"https://doi.org/{re.search(r'doi: (.+)', citation)[1]}"}
    assert project["license"] == re.search(r"^license: (.+)$", citation, re.MULTILINE)[1]
