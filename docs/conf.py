"""The documentation as a site: `make docs`. Pages are the Markdown files of this folder; README.md says more."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import reference  # noqa: E402

import mixmatch  # noqa: E402

project = "mixmatch"
author = "The mixmatch contributors"
project_copyright = author
version = release = mixmatch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "README.md"]
default_role = "code"  # docstrings have single backquotes, as Markdown does
highlight_language = "text"  # of blocks that name none
python_maximum_signature_line_length = 100
suppress_warnings = ["myst.header"]  # cards of methods begin their sections where it suits them

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_use_rtype = False
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = f"mixmatch {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

REPOSITORY = ""
"""Where the code can be read, as https://HOST/OWNER/mixmatch/blob/main. Without it, links to code are plain text."""


def contents(text: str) -> str:
    """The table of contents in the sidebar: the links of each section of README.md, in their order."""
    trees = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        pages = re.findall(r"\]\(([\w/-]+)\.md\)", section)
        caption = section.splitlines()[0]
        if caption == "Reference":
            pages += ["reference/python", "reference/commands"]
        if pages:
            trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]))
    return "\n\n".join(trees)


def read(app: Any, name: str, source: list[str]) -> None:
    """The first page is README.md; links that lead out of this folder point to the code, or are plain text."""
    if name == "index":
        app.env.note_dependency(str(DOCS / "README.md"))
        text = (DOCS / "README.md").read_text()
        source[0] = f"{text}\n\n{contents(text)}\n"
    here = (DOCS / name).parent

    def outside(match: re.Match[str]) -> str:
        label, target = match.groups()
        place = (here / target.partition("#")[0]).resolve()
        if place.is_relative_to(DOCS):
            return match.group()
        path = place.relative_to(DOCS.parent)
        return f"[{label}]({REPOSITORY}/{path})" if REPOSITORY else label

    source[0] = re.sub(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]*)\)", outside, source[0])
    source[0] = re.sub(r"\]\((?:\.\./)*README\.md", "](index.md", source[0])
    source[0] = source[0].replace(" ± ", "\u00a0±\u00a0")  # a mean and its deviation stay on one line


def setup(app: Any) -> None:
    reference.write(DOCS / "reference")
    app.connect("source-read", read)
