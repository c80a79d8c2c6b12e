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

import holdfast
from holdfast import MIXING, RULES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "holdfast"
README = (ROOT / "README.md").read_text(encoding="utf-8")

MATHEMATICS = [  # low to high: a module imports only from those before it
    "checks",
    "stored",
    "saved",
    "arrays",
    "structure",
    "native",
    "compiled_sweeps",
    "compiled_gram",
    "compiled_mixture",
    "mixture",
    "magnitudes",
    "crew",
    "sweeps",
    "sources",
    "updates",
    "shipping",
    "dasked",
    "compiled_columns",
    "fast_columns",
    "columns",
    "gram",
    "anchor",
    "geometry",
    "newton",
    "solver",
    "convergence",
    "bounds",
    "thresholds",
    "rules",
    "selection",
    "mixing",
    "spec",
    "certificate",
    "admission",
    "aggregation",
    "survey",
    "aggregate",
]
ON_DISK = {"stored", "saved"}  # numbers in files: the mathematics stands on them as it does on array libraries
ON_CLUSTER = {"shipping", "dasked"}  # and numbers on other machines
LAYERS = [
    *MATHEMATICS,
    "__init__",
    # the federated world
    "knowledge",
    "probes",
    "attacks",
    "partition",
    "datasets",
    "compiled_sparse",
    "first_layer",
    "tasks",
    "torch_task",
    "store",
    "audit",
    "suspects",
    "clients",
    "federate",
    "rsa",
    # science
    "workers",
    "world",
    "experiment",
    "config",
    "claims",
    "figures",
    "progress",
    "paper",
    "table1",
    "theory",
    # edges
    "untrusted",
    "tables",
    "curves",
    "charts",
    "heatmap",
    "plots",
    "pages",
    "ledger",
    "audit_numbers",
    "audit_page",
    "runs",
    "report",
    "reproduce",
    "story",
    "show",
    "aggregate_files",
    "demo",
    "grid",
    "scoreboard",
    "watch",
    *("bench_machine", "bench_peers", "bench_reference", "bench_measure", "bench_scaling", "bench_round", "bench_show"),
    *("bench_docs", "bench_environment", "bench"),
    "cli",
    "__main__",
    # in other frameworks: nothing imports these
    "quarantine",
    "metrics",
    "nvflare",
    "flower_api",
    "flower_model",
    "replies",
    "flower_state",
    "flower_nodes",
    "flower_round",
    "flower_run",
    "flower",
]
NOT_IN_MATHEMATICS = {
    *("csv", "gzip", "http", "io", "json", "pathlib", "pickle", "shutil", "socket", "subprocess", "tempfile", "urllib"),
    *("random", "time", "datetime"),  # chance and time come from the caller
    *("dask", "distributed", "jax", "rich", "torch", "typer"),
}
OS_IN_MATHEMATICS = {  # about threads, and no more
    *("cpu_count", "environ", "process_cpu_count", "register_at_fork", "sched_getaffinity"),
}
RANDOM_ANYWHERE = {"Generator", "default_rng", "SeedSequence"}  # the rest of numpy.random is one global state
LONGEST = 300

SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.glob("*.py"))}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}
every_module = pytest.mark.parametrize("name", SOURCES)


def imports(tree):
    """Every import in a module, also inside functions: (top-level package, module of ours or None, line)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports from holdfast in full, not relative"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            package, _, rest = target.partition(".")
            own = rest.partition(".")[0]
            yield package, (own if own in SOURCES else "__init__") if package == "holdfast" else None, node.lineno


@every_module
def test_a_module_imports_only_from_those_below_it(name):
    assert name in LAYERS, f"put {name!r} in its place in LAYERS of tests/test_house.py: above all it imports"
    for _, own, line in imports(TREES[name]):
        if own is not None:
            assert LAYERS.index(own) < LAYERS.index(name), f"{name}.py:{line} imports {own}, which is not below it"


def test_no_module_hides_in_a_folder():
    assert not list(PACKAGE.glob("*/*.py")), "the package is flat; tests/test_house.py looks at its top level only"


@pytest.mark.parametrize("name", [name for name in MATHEMATICS if name not in ON_DISK | ON_CLUSTER])
def test_mathematics_has_no_files_and_no_screen(name):
    tree = TREES[name]
    found = {package for package, _, _ in imports(tree)} & NOT_IN_MATHEMATICS
    assert not found, f"{name}.py imports {found}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            assert node.attr in OS_IN_MATHEMATICS, f"{name}.py:{node.lineno} uses os.{node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print", "input"), f"{name}.py:{node.lineno} calls {node.func.id}"


@every_module
def test_chance_comes_from_a_generator(name):
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
            assert node.attr in RANDOM_ANYWHERE, f"{name}.py:{node.lineno} uses {ast.unparse(node)}"


def exported(name):
    """The words of a module's __all__, as written."""
    for node in TREES[name].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


@every_module
def test_all_names_the_public_names(name):
    if name == "__main__":
        return
    words, tree = exported(name), TREES[name]
    assert words is not None, f"{name}.py has no __all__"
    assert len(words) == len(set(words)), f"{name}.py names something twice in __all__"
    module = importlib.import_module("holdfast" if name == "__init__" else f"holdfast.{name}")
    assert not [word for word in words if not hasattr(module, word)], f"{name}.__all__ names what does not exist"
    if name == "__init__":
        public = {
            alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        assert set(words) == public
        return
    defined = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    missing = {word for word in defined if not word.startswith("_")} - set(words)
    assert not missing, f"{name}.py: {sorted(missing)} must be in __all__, or begin with an underscore"
    foreign = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("holdfast.")
        for alias in node.names
    }
    assert not foreign & set(words), f"{name}.py exports what is not ours"


@every_module
def test_a_file_is_read_in_a_minute_or_two(name):
    assert SOURCES[name].count("\n") <= LONGEST, f"{name}.py is past {LONGEST} lines: it is probably two files"


@every_module
def test_docstring_examples_run(name):
    if name == "__main__":
        return
    module = importlib.import_module("holdfast" if name == "__init__" else f"holdfast.{name}")
    report = io.StringIO()
    with contextlib.redirect_stdout(report):
        failed, _ = doctest.testmod(module)
    assert failed == 0, report.getvalue()


# Registries

REGISTERED = {**RULES, **MIXING}


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
    commands = re.findall(r"^holdfast (\w+)((?: --\w+ \S+)*)", shell, re.MULTILINE)
    assert commands
    for command, options in commands:
        told = subprocess.run(
            [sys.executable, "-m", "holdfast", command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert all(option in told for option in re.findall(r"--\w+", options))


def test_import_is_light():
    heavy = "{'torch', 'jax', 'typer', 'rich', 'pandas', 'scipy', 'numba', 'dask'}"
    code = f"import sys, holdfast; print(*sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert project["version"] == holdfast.__version__
    assert re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1] == holdfast.__version__
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
