"""Diagrams: mermaid blocks of the pages, drawn once to SVG, because mermaid itself would come from a web server.

    npm install --prefix /tmp/mermaid mermaid
    python -m docs_tools.diagrams /tmp/mermaid/node_modules/mermaid/dist/mermaid.min.js     (needs chromium)

A block begins with `%% NAME`; its drawing is `docs_tools/diagrams/NAME.svg`, which holds a digest of the block. The
build puts it into the page in the block's place, where the page's style sheet gives it the colours of the light or the
dark theme. A block without a drawing, or with one of another text, fails the build.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs_tools" / "diagrams"
_BLOCK = re.compile(
    r"^```mermaid\n%% (?P<name>[\w-]+): (?P<title>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_WIDE = 600  # pixels
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
    "--virtual-time-budget=20000", "--dump-dom",
)  # fmt: skip
_PAGE = """<!doctype html><meta charset="utf-8"><body><pre id="drawing">{text}</pre>
<script src="{library}"></script><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", fontFamily: "Arial, sans-serif", htmlLabels: false,
  flowchart: {{htmlLabels: false, useMaxWidth: true, padding: 14, wrappingWidth: 300}},
  sequence: {{useMaxWidth: true, mirrorActors: false}}}});
const element = document.getElementById("drawing");
mermaid.render("{name}", element.textContent).then(({{svg}}) => {{ element.outerHTML = svg; }})
  .catch((e) => {{ element.textContent = "failed: " + e; }});
</script></body>"""


def digest(text: str) -> str:
    """What a drawing says about the text it was made of."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


def replace_blocks(markdown: str, page: str) -> str:
    """Puts the drawings into a page.

    Raises:
        ValueError: a drawing is missing or of another text.
    """

    def drawing(found: re.Match) -> str:
        file = FOLDER / f"{found['name']}.svg"
        svg = file.read_text(encoding="utf-8") if file.is_file() else ""
        if f'data-digest="{digest(found["text"])}"' not in svg:
            raise ValueError(f"{page}: diagram {found['name']!r} changed; draw it again (docs_tools/diagrams.py)")
        title, width = escape(found["title"]), float(re.search(r'viewBox="\S+ \S+ (\S+)', svg)[1])
        shape = "diagram wide" if width > _WIDE else "diagram"  # a wide one scrolls where the screen is narrow
        return f'<figure class="{shape}" role="img" aria-label="{title}">{svg}<figcaption>{title}</figcaption></figure>'

    replaced = _BLOCK.sub(drawing, markdown)
    if "```mermaid" in replaced:
        raise ValueError(f"{page}: a mermaid block must begin with a line `%% NAME: TITLE`")
    return replaced


def draw(name: str, text: str, library: Path) -> str:
    """One drawing as SVG, in one line.

    Raises:
        RuntimeError: mermaid or Chromium failed.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise RuntimeError("no Chromium on this machine: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        page.write_text(
            _PAGE.format(text=escape(text), library=library.resolve().as_uri(), name=f"diagram-{name}"),
            encoding="utf-8",
        )
        command = [browser, *_FLAGS, f"--user-data-dir={scratch}/profile", page.as_uri()]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r"<svg.*?</svg>", dom, re.DOTALL)
    if not found:
        raise RuntimeError(f"{name}: {re.sub('<[^>]+>', ' ', dom)[:500]}")
    svg = re.sub(r"\s*\n\s*", " ", found[0])
    return svg.replace("<svg ", f'<svg data-digest="{digest(text)}" ', 1)


def main(library: str) -> int:
    """Draws all blocks of all pages."""
    FOLDER.mkdir(exist_ok=True)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
            file = FOLDER / f"{found['name']}.svg"
            file.write_text(draw(found["name"], found["text"], Path(library)) + "\n", encoding="utf-8")
            print(file.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
