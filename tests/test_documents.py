"""No document, example, pyproject.toml or message asks a package index for a name that is not meant.

`holdfast`, the name this project had, is another project on PyPI, and `fedhold` has no release yet. Until it has one,
everything here installs it from a checkout or from a wheel. A request for any other name must be for a dependency that
pyproject.toml lists, so that a typo cannot bring a stranger's code onto somebody's servers.
"""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = {"fedhold", "holdfast"}  # no index has ours under the first, and under the second it has another project
MEANT = {  # not ours and not in pyproject.toml, but asked for all the same
    "distributed": "the scheduler and workers of a Dask cluster, which users of docs/cluster.md have beside the extra `dask`",
}

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "Makefile",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
SOURCES = [path for folder in ("src", "examples", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
PROJECTS = [
    ROOT / "pyproject.toml",
    *sorted((ROOT / "examples").rglob("pyproject.toml")),
    *sorted((ROOT / "tests").rglob("pyproject.toml")),
]

COMMAND = re.compile(r"\b(?:(?:pip3?|pipx|poetry|conda|mamba|uv(?: pip)?)\s+(?:install|add)|uvx|pipx run)\s+(.*)")
WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
VALUED = {
    "-r",
    "-c",
    "-e",
    "-f",
    "-i",
    "-t",
    "--requirement",
    "--constraint",
    "--editable",
    "--find-links",
    "--index-url",
}
VALUED |= {"--extra-index-url", "--target"}  # options that are followed by a value
FILE = re.compile(r"[/$<{]|^\.|\.(whl|tar\.gz)(\[.*)?$")  # a path, or something that is filled in: no name
OWN_REQUIREMENT = re.compile(rf"\b(?:{'|'.join(OWN)})\s*(?:\[[\w, -]+\]|[<>=~!]=|@\s*\w)", re.IGNORECASE)
LIST = re.compile(r"""\b(?:dependencies|requires)\s*=\s*\[((?:"[^"]*"|'[^']*'|[^\]"'])*)\]""")


def requirements(text):
    """What a text asks an index for: words after `pip install` and the like, and entries of lists of dependencies."""
    for command in COMMAND.finditer(text.replace("\\\n", " ")):
        yield from _arguments(command[1].partition("`")[0])
    for entries in LIST.findall(text):
        yield from (one or other for one, other in re.findall(r""""([^"]*)"|'([^']*)'""", entries))
    yield from OWN_REQUIREMENT.findall(text)


def _arguments(text):
    """The words after `pip install` up to the end of the command, or of the sentence; options and paths left out."""
    words = iter(WORD.findall(text))
    for word in words:
        if word.startswith(("#", "&", "|", ";", ">")):
            return
        bare = word.rstrip(",;:)")
        bare = bare if bare.startswith(".") else bare.rstrip(".")
        plain = re.sub(r"""['"]""", "", bare)
        if plain in VALUED:
            next(words, None)
        elif plain and not plain.startswith("-") and (name_of(plain) in OWN or not FILE.search(plain)):
            yield plain
        if bare != word:
            return


def name_of(requirement):
    """The name of the package in a requirement, as an index spells it."""
    found = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else requirement


def listed(project):
    """Every requirement of a pyproject.toml."""
    yield from project.get("build-system", {}).get("requires", [])
    yield from project.get("project", {}).get("dependencies", [])
    for group in ("optional-dependencies", "dependency-groups"):
        for extra in {**project.get("project", {}), **project}.get(group, {}).values():
            yield from (entry for entry in extra if isinstance(entry, str))


def strings(source):
    """The texts in a Python file, each f-string as one with {} where a value is put in."""
    inside = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


OURS = {name_of(entry) for entry in listed(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))}


def strangers(wanted):
    """The requirements that are neither in our pyproject.toml nor meant."""
    return [one for one in wanted if name_of(one) not in OURS | MEANT.keys() or name_of(one) in OWN]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_asks_for_nothing_else(path):
    assert strangers(requirements(path.read_text(encoding="utf-8"))) == []


def test_a_source_asks_for_nothing_else():
    for path in SOURCES:
        for text in strings(path.read_text(encoding="utf-8")):
            assert strangers(requirements(text)) == [], f"{path.relative_to(ROOT)}: {text}"


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_project_asks_for_nothing_else(path):
    """Its comments are read, too."""
    text = path.read_text(encoding="utf-8")
    assert strangers(listed(tomllib.loads(text))) == []
    assert strangers(requirements(text)) == []


def test_every_exception_is_needed():
    texts = [path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *PROJECTS]]
    asked = {name_of(one) for text in texts for one in requirements(text)}
    assert MEANT.keys() <= asked - OURS


# Links

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
PAGES = [*sorted((ROOT / "docs").rglob("*.md"))]


def linked(path):
    """The files that a document links to by relative paths."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [(one or other).partition("#")[0] for one, other in LINK.findall(text)]
    return [(path.parent / target).resolve() for target in targets if target and "://" not in target]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert [str(target) for target in linked(path) if not target.exists()] == []


def test_every_page_is_reached_from_the_readme():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += [target for target in linked(page) if target.suffix == ".md" and target.exists()]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


# The scanner itself


@pytest.mark.parametrize(
    "text",
    [
        "pip install fedhold",
        'pip install "fedhold[flower]"',
        "python -m pip install --quiet 'fedhold[flower,torch]>=0.1' numpy",
        "every machine needs it: `pip install 'fedhold[flower]'`.",
        "Install fedhold[flower], or an older flwr.",
        "pip install '.[flower]' holdfast",
        "pip install \\\n    holdfast",
        "pip install -r requirements.txt fedhold",
        "uv add fedhold",
        "uvx fedhold demo",
        "conda install -c conda-forge fedhold",
        'dependencies = ["numpy", "fedhold[flower]"]',
        "dependencies = ['holdfast']",
        'dependencies = [\n    "fedhold>=0.1", # ours\n]',
        "# for client_torch: fedhold[flower,torch]",
        "fedhold >= 0.1",
        "fedhold @ git+https://example.org/fedhold",
        "pip install nunba",
        "pip install numpy pandas",
    ],
)
def test_the_scanner_finds(text):
    assert strangers(requirements(text))


@pytest.mark.parametrize(
    "text",
    [
        "pip install .             # NumPy, array-api-compat, click, rich",
        "pip install '.[data]'     # and pooch",
        "From a checkout: pip install '.[flower]'. If your flwr is newer, install an older one.",
        "pip install --quiet --editable '.[dev]'",
        "pip install -e . && fedhold demo",
        "pip install /path/to/checkout[flower]",
        "pip install 'dist/fedhold-0.1.0-py3-none-any.whl[flower]'",
        "pip install fedhold-*.whl",
        "that needs matplotlib: pip install matplotlib",
        "pip install 'pooch>=1.8', or go on without.",
        "pip install {}",
        "pip install '.[dask]' distributed    # here, and fedhold on every worker",
        "fedhold demo; import fedhold; fedhold.flower",
        'publisher = "fedhold"',
        "dependencies = []",
    ],
)
def test_the_scanner_passes(text):
    assert strangers(requirements(text)) == []


@pytest.mark.parametrize(
    "message",
    [
        """f"{name} needs torch. Try: " "pip install 'fedhold[{extra}]'\"""",
        """"needs torch: pip " "install holdfast\"""",
        """f"pip install fedhold=={version}\"""",
    ],
)
def test_the_scanner_reads_messages(message):
    assert [text for text in strings(f"raise ImportError({message})") if strangers(requirements(text))]


def test_the_scanner_reads_extras():
    assert strangers(listed({"project": {"optional-dependencies": {"x": ["fedhold[flower]"]}}})) == ["fedhold[flower]"]
