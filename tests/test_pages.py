"""The documentation can be followed: its commands run as they stand, and its site is built without a broken link."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml
from click import Context
from typer.main import get_command

from rtk.cli.main import app
from rtk.schemas.documents import shipped_schema

from .pages import BLOCK, ROOT, commands, run_page

pytestmark = pytest.mark.checkout

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if BLOCK.search(page.read_text()))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
# The notebooks' cells and the site's pages need more than planning does.
built = pytest.mark.skipif(find_spec("material") is None, reason="needs the extra `docs`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_as_they_stand(page: Path, tmp_path: Path) -> None:
    """Every command marked to run ends with 0, one after the other, in a folder with the examples."""
    for command, done in run_page(page, tmp_path):
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_commands_are_cut_as_a_shell_reads_them(tmp_path: Path) -> None:
    """Continuation lines and here-documents belong to their command; remarks, and blocks without a mark, are none."""
    page = tmp_path / "page.md"
    runs = "# a remark\na b \\\n  c\ncat > f <<'END'\nx\n\ny\nEND\n\nd   # why\n"
    page.write_text(f"<!-- runs -->\n```sh\n{runs}```\n\n```sh\nnot this\n```\n")
    assert commands(page) == ["a b \\\n  c", "cat > f <<'END'\nx\n\ny\nEND", "d   # why"]


def test_a_command_that_fails_ends_a_page(tmp_path: Path) -> None:
    """What follows a command that fails is not run."""
    page = tmp_path / "page.md"
    page.write_text("<!-- runs -->\n```sh\nrtk verify none.json\ntouch after\n```\n")
    ((command, done),) = run_page(page, tmp_path / "folder")
    assert (command, done.returncode) == ("rtk verify none.json", 2)
    assert not (tmp_path / "folder" / "after").exists()


class _Loads(HTMLParser):
    """What a browser fetches by itself when it opens a page: scripts, styles, pictures, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "embed", "video", "audio"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect", "dns-prefetch"):
            self.found.append(given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a broken link, a missing anchor or a notebook's cell that fails is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
    done = subprocess.run([*command, "--site-dir", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@built
def test_pages_of_the_site_load_nothing_from_the_network(site: Path) -> None:
    """Every script, style and picture is a file of the site: it can be read offline, from a folder."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 35
    for page in pages:
        if page.name == "404.html":  # a server's page, for any address
            continue
        parser = _Loads()
        parser.feed(page.read_text())
        for address in parser.found:
            if address.startswith("data:") or not address:
                continue
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
            assert (page.parent / address.partition("?")[0].partition("#")[0]).exists(), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text()), style.name


@built
@pytest.mark.skipif(which("chromium") is None, reason="needs chromium")
def test_the_search_finds_pages_in_a_folder(site: Path) -> None:
    """Opened from a folder without a network, the site finds a word and asks for nothing that is not there."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.fill("[data-md-component=search-query]", "Kubernetes")
        page.wait_for_selector(".md-search-result__item", state="attached", timeout=30_000)
        assert "resilience.html" in page.inner_html(".md-search-result__list")
        assert [url for url in asked if url.startswith("http")] == []
        browser.close()


@built
def test_notebooks_are_shown_with_what_their_cells_give(site: Path) -> None:
    """Each notebook has a page with a picture and with text that a cell printed."""
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        page = (site / "notebooks" / f"{notebook.stem}.html").read_text()
        pictures = re.findall(rf'<img[^>]* src="({notebook.stem}[^"]*\.svg)"', page)
        assert pictures and all((site / "notebooks" / picture).exists() for picture in pictures)
    assert "checkpoint-restart" in (site / "notebooks" / "replay.html").read_text()


def test_notebooks_are_kept_without_output() -> None:
    """What cells give is made when the site is built, so none of it can be out of date."""
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        for cell in json.loads(notebook.read_text())["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None


@built
def test_every_option_has_an_address(site: Path) -> None:
    """`cli.html#rtk-run--checkpoint` leads to that option, and so for each that the help names."""
    shown = (site / "cli.html").read_text()
    wanted = set(_options(get_command(app), "rtk"))
    assert {"rtk-run--checkpoint", "rtk-plan-slipstream--failed", "rtk--version", "rtk-replay--output"} <= wanted
    assert [anchor for anchor in sorted(wanted) if f'id="{anchor}"' not in shown] == []


def _options(command: Any, name: str) -> Iterator[str]:
    """The addresses of the options of a command and of its commands."""
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            yield from (f"{name}{one}" for one in parameter.opts if one.startswith("--"))
    if hasattr(command, "list_commands"):
        context = Context(command)
        for verb in command.list_commands(context):
            yield from _options(command.get_command(context, verb), f"{name}-{verb}")


@built
def test_the_reference_has_every_name_and_every_format(site: Path) -> None:
    """Each public name of `rtk`, and each key of each file format, is on a generated page."""
    rtk = __import__("rtk")
    python = (site / "reference" / "python.html").read_text()
    assert [name for name in rtk._PLACES if f'id="{name}"' not in python] == []
    formats = (site / "reference" / "formats.html").read_text()
    schemas = sorted((ROOT / "schemas").glob("*.schema.json"))
    for schema in schemas:
        name = schema.name.partition(".")[0]
        assert f'id="{name}"' in formats, name
        keys = json.loads(shipped_schema(name)).get("properties", {})
        assert [key for key in keys if f"<code>{key}</code>" not in formats] == []


def test_every_page_has_a_place_in_the_navigation() -> None:
    """A page that no menu names is a page that nobody finds; pages that are generated are named as well."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = set(re.findall(r"[\w/-]+\.md", json.dumps(config["nav"]) + config.get("not_in_nav", "")))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert there <= {name.lstrip("/") for name in named}


def test_pages_for_users_speak_plainly() -> None:
    """Words that only we understand stand in the pages for contributors, and in those that programs write."""
    ours = re.compile(r"heeds?\b|\bmade up\b|slips? of the pen|beside ours|told anew|who sits|to be mailed|the house\b")
    for page in (ROOT / "docs").rglob("*.md"):
        if page.stem not in ("house", "developing", "benchmarks", "reproductions", "cli"):
            assert ours.findall(page.read_text()) == [], page.name


def test_the_version_is_one_everywhere() -> None:
    """The package, the citation and the change log name the same version."""
    version = __import__("rtk").__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda form: form.stem
)
def test_issue_forms_are_valid(form: Path) -> None:
    """A form has a name, a description and fields with ids and labels, as GitHub wants them."""
    content = yaml.safe_load(form.read_text())
    if form.stem == "config":
        assert content == {"blank_issues_enabled": True}
        return
    assert content["name"] and content["description"]
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
