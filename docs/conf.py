"""The site's configuration: `make docs`."""

import pathlib
import re

import epf_jax

ROOT = pathlib.Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/epf-jax/epf_jax/blob/main/"

project = "epf_jax"
author = "The epf_jax developers"
copyright = author
version = release = epf_jax.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design", "sphinx_copybutton"]
exclude_patterns = ["_build", "*.py"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # make_gallery.py has executed the notebooks
nb_merge_streams = True

default_role = "code"
suppress_warnings = ["ref.python"]  # a field of that name is in several classes
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say what arguments are
napoleon_use_rtype = False
napoleon_attr_annotations = False
add_module_names = False

html_theme = "furo"
html_title = "epf_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": "https://github.com/epf-jax/epf_jax/",
    "source_branch": "main",
    "source_directory": "docs/",
}


def _links(app, name, source):
    """Links as the repository has them lead on: to pages of the site, or to files in the repository."""
    text = source[0].replace("<!-- README -->", (ROOT / "README.md").read_text().split("\n", 1)[1])
    text = text.replace("https://raw.githubusercontent.com/epf-jax/epf_jax/main/docs/", "")
    text = re.sub(rf"\]\({REPOSITORY}docs/", "](", text)
    source[0] = re.sub(r"(?<!!)\]\(\.\./", f"]({REPOSITORY}", text)


def _as_written(app, what, name, thing, options, lines):
    """A star in a docstring is a star, as in the shape [N, *x]; an indented block after a colon is code."""
    lines[:] = [re.sub(r"(?<![*`])\*(?=\w)", r"\*", line) for line in lines]
    for i, line in enumerate(lines[:-2]):
        indent = len(line) - len(line.lstrip())
        is_prose = line.endswith(":") and not line.lstrip().startswith((":", "..", "*"))
        if is_prose and not lines[i + 1] and lines[i + 2].startswith(" " * (indent + 4)):
            lines[i] += ":"


def _fields_once(app, what, name, thing, skip, options):
    """Fields of a NamedTuple stand under Attributes already."""
    return skip or type(thing).__name__ == "_tuplegetter"


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _as_written, priority=1000)
    app.connect("autodoc-skip-member", _fields_once)
    app.connect("source-read", _links)
