"""The documentation site: `make docs` builds it into build/docs. Warnings are errors."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from docstrings import to_rst

project = "fedhold"
author = "The fedhold authors"
version = release = version_of("fedhold")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
root_doc = "index"
exclude_patterns = ["figures"]

html_theme = "furo"
html_title = f"fedhold {release}"
html_copy_source = False
html_theme_options = {"sidebar_hide_name": False}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3  # pages link to each other's headings
# Pages are read on code hosts, too, so they link to files of the project by relative paths, which the site does not have.
suppress_warnings = ["myst.xref_missing"]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"  # the docstrings say what a parameter is, and the signature stays short
autodoc_preserve_defaults = True
add_module_names = False
default_role = "code"
nitpicky = False


def setup(app):
    """Docstrings are plain text with a table of parameters; see `docstrings`."""
    app.connect("autodoc-process-docstring", lambda *event: event[-1].__setitem__(slice(None), to_rst(event[-1])))
