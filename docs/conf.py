"""The documentation site (``make docs``): these pages and the docstrings, built by Sphinx without network access."""

import re
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.writers.html5 import HTML5Translator

project = "flowmx"
author = "the flowmx authors"
copyright = author
release = version = version_of("flowmx")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["build", "_templates"]
html_theme = "furo"
html_title = f"flowmx {release}"
html_static_path = ["_static"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_favicon = "_static/favicon.svg"
html_css_files = ["flowmx.css"]
html_js_files = [("versions.js", {"type": "module"})]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        f"sidebar/{part}.html"
        for part in ("brand", "versions", "search", "scroll-start", "navigation", "scroll-end", "variant-selector")
    ]
}
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
suppress_warnings = ["ref.python"]  # names in annotations that several modules export
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Source", "notes_style")]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
default_role = "code"


class _Translator(HTML5Translator):
    """Writes the lines of long signatures as spans: Sphinx writes a list of definitions without terms."""

    def visit_desc_parameterlist(self, node):
        self._first_part = len(self.body)
        super().visit_desc_parameterlist(node)

    def depart_desc_parameterlist(self, node):
        super().depart_desc_parameterlist(node)
        for place in range(self._first_part, len(self.body)):
            begun = re.sub("<d[ld]", '<span class="sig-line"', self.body[place])
            self.body[place] = re.sub("</d[ld]>", "</span>", begun)


def _give_levels(app, page, template, context, doctree):
    """Set the heading level of the captions of the contents, which Sphinx omits."""
    for part in ("body", "furo_navigation_tree"):
        if isinstance(context.get(part), str):
            context[part] = context[part].replace('role="heading">', 'role="heading" aria-level="2">')


def setup(app):
    """Connect the changes to pages, after the theme, which builds the contents."""
    app.set_translator("html", _Translator)
    app.connect("html-page-context", _give_levels, priority=900)
