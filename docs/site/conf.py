"""Sphinx's settings; `tests/site_pages.py` lays out the pages that it reads."""

import os
import re

from docstring_text import rst

project = "parl_like"
author = "the authors of parl_like"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
pygments_dark_style = "github-dark"
smartquotes = False  # the prime of a formula is none
html_show_sphinx = False
html_show_copyright = False
# The stage says where these are; a page has headings that GitHub links to, down to the last level.
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


NDARRAY = re.compile(r"ndarray\[~?(builtins\.)?tuple\[~?(typing\.)?Any, \.\.\.\], ~?(numpy\.)?dtype\[~?(typing\.)?Any\]\]")


def as_written(app, what, name, obj, options, lines):
    """Shows a docstring as it is written, but for wrapped lines: its formulas and lists are no markup."""
    if any(line.strip() for line in lines):
        lines[:] = rst("\n".join(lines)).splitlines()


def short(app, what, name, obj, options, signature, returns):
    """Shows arrays of any type and shape by the name that the code has for them."""
    return signature and NDARRAY.sub("ndarray", signature), returns and NDARRAY.sub("ndarray", returns)


def setup(app):
    app.connect("autodoc-process-docstring", as_written)
    app.connect("autodoc-process-signature", short)
