"""The documentation site is built from what is there, its links lead somewhere, and it asks nothing of the network."""

import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import fedsm
from docs_tools import diagrams
from docs_tools.site_hooks import PAGES, site_links

ROOT = Path(__file__).parents[2]
BUILD = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # never --quiet: mkdocs then counts no warnings


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built in strict mode: a link or an anchor that leads nowhere ends the build."""
    out = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run([*BUILD, "--site-dir", str(out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.parametrize("link", ["gone.md", "#gone", "other.md#gone", "/gone.md", "../gone.py"])
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path, link):
    """With the settings of the real site, and a page with one such link."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n[a]({link}) [b](other.md#other)\n")
    (tmp_path / "docs" / "other.md").write_text("# Other\n")
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": str(tmp_path / "docs"), "hooks": [], "extra_css": []}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings | {"nav": ["index.md", "other.md"]}))
    command = [*BUILD, "--config-file", str(tmp_path / "mkdocs.yml"), "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "Aborted with 1 warning" in done.stdout + done.stderr, done.stdout + done.stderr
    assert link in done.stdout + done.stderr


class _Loaded(HTMLParser):
    """Collects what a browser fetches by itself to show a page."""

    def __init__(self):
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.addresses.append(values.get("src") or "")
        if tag == "link" and values.get("rel") != "canonical":
            self.addresses.append(values.get("href") or "")


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = _Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert not [a for a in loaded.addresses if "//" in a], page
        assert "mermaid" not in {Path(a).stem for a in loaded.addresses}
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_diagrams_are_drawings(site):
    page = (site / "explanation" / "architecture.html").read_text(encoding="utf-8")
    assert page.count('<figure class="diagram') == 2 and "sequenceDiagram" not in page


def test_every_page_of_the_repository_is_in_the_site(site):
    assert {"results.md", "security.md", "how-to/production/hospital_it.md"} <= set(PAGES)
    for page in PAGES:
        assert (site / page).with_suffix(".html").is_file() or (site / page).with_name("index.html").is_file(), page


def test_headings_go_down_one_level_at_a_time(site):
    for page in site.rglob("*.html"):
        levels = [int(level) for level in re.findall(r"<h([1-6]) id=", page.read_text(encoding="utf-8"))]
        assert not [pair for pair in zip(levels, levels[1:], strict=False) if pair[1] > pair[0] + 1], page


def test_options_and_tables_of_keys_are_marked_for_the_style_sheet(site):
    """On a phone options were broken after their hyphens, and the meanings of settings were out of sight."""
    settings = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    assert '<code><span class="option">--set</span> KEY=VALUE</code>' in settings
    assert settings.count("<table data-keys>") == settings.count("<th>key</th>") > 5
    assert "table[data-keys]" in (site / "stylesheets" / "extra.css").read_text(encoding="utf-8")


def test_links_of_the_repository_become_links_of_the_site():
    assert site_links("[a](../../RESULTS.md#x)", "how-to/experiments.md") == "[a](../results.md#x)"
    assert site_links("[a](docs/how-to/resume.md)", "contributing.md") == "[a](how-to/resume.md)"
    assert site_links("[a](gpus.md)", "how-to/production/hospital_it.md") == "[a](gpus.md)"
    assert site_links("![a](demo.png)", "index.md") == "![a](demo.png)"
    assert site_links("[a](https://example.org)", "index.md") == "[a](https://example.org)"


def test_a_link_to_a_file_without_a_page_is_its_name():
    assert site_links("[the file](project.yml)", "how-to/production/README.md") == "the file"


def test_a_link_to_nothing_stays_for_the_build_to_refuse():
    assert site_links("[a](../gone.md)", "how-to/poc.md") == "[a](../gone.md)"
    assert site_links("[a](../../gone.py)", "how-to/poc.md") == "[a](../../gone.py)"


def test_code_is_left_alone():
    text = "```markdown\n[a](../RESULTS.md)\n```\n"
    assert site_links(text, "index.md") == text


def test_a_diagram_that_was_not_drawn_again_is_refused():
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    assert "<svg" in diagrams.replace_blocks(text, "page")
    with pytest.raises(ValueError, match="'rooms' changed; draw it again"):
        diagrams.replace_blocks(text.replace("app --> flare", "app --> core"), "page")
    with pytest.raises(ValueError, match="must begin with"):
        diagrams.replace_blocks("```mermaid\nflowchart TD\n```\n", "page")


def test_the_rooms_that_are_drawn_are_those_of_the_import_contract():
    drawn = re.findall(r"^  (\w+)\[", (ROOT / "docs/explanation/architecture.md").read_text(), re.MULTILINE)
    contract = (ROOT / ".importlinter").read_text().partition("layers =")[2].partition("[")[0]
    assert {"app_fedsm" if name == "app" else f"fedsm.{name}" for name in drawn} == set(re.findall(r"[\w.]+", contract))


def test_every_workaround_of_flare_is_on_its_page():
    page = (ROOT / "docs" / "explanation" / "flare.md").read_text(encoding="utf-8")
    for module in (ROOT / "custom" / "fedsm" / "flare" / "compat").glob("[!_]*.py"):
        assert f"`compat/{module.name}`" in page, module
    for path in re.findall(r"^\*\*.*\*\* — (.*)$", page, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", path):
            below = ("", "custom/fedsm/", "custom/fedsm/flare/")
            assert any((ROOT / folder / name).exists() for folder in below), f"{name} is not there"


def test_every_workaround_of_flare_names_a_test_that_fails_without_need():
    page = (ROOT / "docs" / "explanation" / "flare.md").read_text(encoding="utf-8")
    tests, named = ROOT / "tests" / "flare" / "compat", set()
    for entry in re.findall(r"^\*\*.*\*\* — (?:.+\n)+", page, re.MULTILINE):
        line = re.search(r"^:   \*FLARE's test:\* (.*)$", entry, re.MULTILINE)
        assert line, entry
        named |= set(re.findall(r"`(test_\w+\.py)`", line[1]))
    assert named == {path.name for path in tests.glob("test_*.py")}


@pytest.mark.parametrize(
    "page",
    sorted({*(ROOT / "docs").rglob("*.md"), *(ROOT / p for p in PAGES.values())}),
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_files_that_a_page_names_are_there(page):
    """Paths of the repository in code, such as `custom/fedsm/tracks/`; patterns and placeholders are left out."""
    if page.name == "CHANGELOG.md":
        return  # it speaks of the past
    for name in re.findall(
        r"`((?:custom|app_fedsm|docs_tools|benchmarks|poc_workspace|tests)/[\w./-]*)`", page.read_text()
    ):
        assert (ROOT / name).exists(), name


def test_the_readme_can_be_read_in_three_minutes():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_one_version_everywhere():
    versions = {
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
        yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"],
        re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1],
        *re.findall(r"fedsm-([\d.]+)-py3", "".join(p.read_text() for p in (ROOT / "poc_workspace").glob("*.md"))),
    }
    assert versions == {fedsm.__version__}
