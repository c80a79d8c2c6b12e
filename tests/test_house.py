"""House rules: layer order, public names, registries, and that every example and command in the documents runs."""

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedhold
from fedhold import MIXINGS, RULES

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


@every_module
def test_docstring_examples_run(name):
    module = importlib.import_module(name.removesuffix(".__init__"))
    report = io.StringIO()
    with contextlib.redirect_stdout(report):
        failed, _ = doctest.testmod(module)
    assert failed == 0, report.getvalue()


# Registries

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
def test_readme_has_a_row_with_the_same_bound_and_source(name):
    rows = [line.split("|")[1:-1] for line in README.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"README.md needs one row for {name}, has {len(rows)}"
    (_, _, needs, source), doc = rows[0], REGISTERED[name].__doc__
    for bound in re.findall(r"m >= \d?f \+ \d", needs):
        assert bound in doc
    if "f" in inspect.signature(REGISTERED[name]).parameters:
        assert "m >=" in needs
    for year in re.findall(r"\d{4}", source):
        assert year in doc or name == "screen", f"README.md gives {name} the year {year}, its docstring does not"


# The documents

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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


def test_readme_runs():
    """Python blocks run in order, in one namespace; a text block shows what the block before it printed."""
    namespace, printed, ran = {}, "", 0
    for language, body in FENCED.findall(README):
        if language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(body, "README.md", "exec"), namespace)
            printed, ran = output.getvalue(), ran + 1
        elif language == "text":
            assert same(body, printed), f"README.md shows\n{body}\nbut its code prints\n{printed}"
    assert ran > 0


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


def test_import_is_light():
    heavy = "{'torch', 'jax', 'typer', 'rich', 'pandas', 'scipy', 'numba', 'dask'}"
    code = f"import sys, fedhold; print(*sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert project["version"] == fedhold.__version__
    assert re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1] == fedhold.__version__
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
