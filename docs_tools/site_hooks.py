"""Hooks of mkdocs: what the site holds beside the files of `docs/`.

1. Pages that live elsewhere in the repository (`PAGES`) become pages of the site.
2. Links in every page are those of the repository, so that they also work where the files are read as they are. Here
   they become links of the site. A link to a file that is there but has no page becomes its name; one to a file that is
   not there stays and fails the build.
3. `<!-- generated: NAME -->` is replaced by a generated reference.
4. A `mermaid` block is replaced by its drawing (`docs_tools/diagrams.py`).
5. Marks for the style sheet: options in the text, which a browser would break after their hyphens, and tables of keys.
"""

from __future__ import annotations

import posixpath
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # mkdocs loads a hook by its path, not as a part of the package
    sys.path.insert(0, str(ROOT))

with warnings.catch_warnings():  # of packages that are imported on the way; `mkdocs` would print each with its stack
    warnings.simplefilter("ignore")
    from docs_tools import commands_reference, diagrams, json_reference, settings_reference
    from docs_tools.described_reference import table
    from fedsm.evaluation.audit_file import AuditFile
    from fedsm.evaluation.evaluation_file import EvaluationFile
    from fedsm.server.results_file import ResultsFile

PRODUCTION = "how-to/production"
# Page of the site -> file of the repository.
PAGES = {
    "results.md": "RESULTS.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    **{f"{PRODUCTION}/{path.name}": f"poc_workspace/{path.name}" for path in (ROOT / "poc_workspace").glob("*.md")},
    f"{PRODUCTION}/docker/README.md": "poc_workspace/docker/README.md",
}
_SITE_PAGE = {source: page for page, source in PAGES.items()}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_GENERATED = re.compile(r"<!-- generated: (\w+) -->")
_CODE = re.compile(r"<code>[^<]*</code>")
_OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
_KEYS = re.compile(r"<table>(?=\s*<thead>\s*<tr>\s*<th>key</th>)")


GENERATED: dict[str, Callable[[], str]] = {
    "audit": lambda: table(AuditFile),
    "commands": commands_reference.render,
    "evaluation": lambda: table(EvaluationFile, absent=True),
    "json": json_reference.render,
    "results": lambda: table(ResultsFile, absent=True),
    "settings": settings_reference.render_all,
    "site_file": settings_reference.render_site,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that live outside of `docs/`, and the schema of `--format json`."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, json_reference.SCHEMA, content=json_reference.render_schema()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Generated references, diagrams and links of one page."""
    uri = page.file.src_uri
    with warnings.catch_warnings():  # of packages that are imported on the way
        warnings.simplefilter("ignore")
        markdown = _GENERATED.sub(lambda found: GENERATED[found[1]](), markdown)
    try:
        markdown = diagrams.replace_blocks(markdown, uri)
    except ValueError as e:
        raise PluginError(str(e)) from e
    return site_links(markdown, uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Marks options and tables of keys for the style sheet."""
    html = _CODE.sub(lambda found: _OPTION.sub(r'<span class="option">\g<0></span>', found[0]), html)
    return _KEYS.sub("<table data-keys>", html)


def site_links(markdown: str, uri: str) -> str:
    """Turns a page's repository links into links of the site; code blocks stay as they are."""
    kept: list[str] = []

    def keep(found: re.Match) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    markdown = _LINK.sub(lambda found: _site_link(found, uri), _FENCE.sub(keep, markdown))
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], markdown)


def _site_link(found: re.Match, uri: str) -> str:
    if ":" in found["target"]:  # an address
        return found[0]
    source = PAGES.get(uri, f"docs/{uri}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["target"]))
    if target in _SITE_PAGE:
        page = _SITE_PAGE[target]
    elif target.startswith("docs/"):
        page = target.removeprefix("docs/")
    elif (ROOT / target).exists():
        return found["text"]
    else:
        return found[0]
    relative = posixpath.relpath(page, posixpath.dirname(uri) or ".")
    return f"{found['image']}[{found['text']}]({relative}{found['anchor'] or ''})"
