"""The documentation's site has the content that GitHub shows, and loads nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from scripts.docs_site import HOME, PAGES, ROOT, build, navigation, subpages

pytest.importorskip("zensical", reason="zensical is not installed")
NO_NETWORK = ["unshare", "--map-root-user", "--net"]
"""Runs a command in a network of its own, which has no way out."""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
COMPARED = {"h1", "h2", "h3", "li", "ol", "ul", "table", "tr", "pre", "img", "strong", "em", "blockquote"}


class Elements(HTMLParser):
    """Counts the elements of an article, and collects what the page loads and links to."""

    def __init__(self, html: str, *, in_article: bool = False) -> None:
        super().__init__()
        self.in_article = in_article
        self.counts: Counter[str] = Counter()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_article |= tag == "article"
        self.counts[tag] += self.in_article and tag in COMPARED
        named = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(named.get("href", ""))
        elif tag not in ("meta", "svg"):
            self.loaded += [named[name] for name in ("src", "href") if name in named]

    def handle_endtag(self, tag: str) -> None:
        self.in_article &= tag != "article"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the site, without a network where the host lets a test cut it."""
    folder = tmp_path_factory.mktemp("docs")
    cuts = shutil.which(NO_NETWORK[0]) and subprocess.run([*NO_NETWORK, "true"], check=False).returncode == 0
    command = [
        *(NO_NETWORK if cuts else []),
        sys.executable,
        str(ROOT / "scripts" / "docs_site.py"),
        str(folder),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_the_home_page_lists_every_page_once() -> None:
    listed = [page for pages in navigation().values() for page in pages.values()]
    listed += [inner for page in listed for inner in subpages(page).values()]
    written = {*PAGES} - {HOME}
    assert len(listed) == len(set(listed))
    assert set(listed) == written
    assert list(navigation()) == ["Tutorials", "How to", "Reference", "Background"]


def test_pages_have_the_content_that_github_shows(site: Path) -> None:
    markdown = MarkdownIt("commonmark").enable("table")
    pages = site.parent / "pages"
    for page in sorted([*pages.glob("*.md"), *pages.glob("spec/*.md")]):
        shown = Elements(markdown.render(page.read_text("utf-8")), in_article=True)
        built = Elements((site / page.relative_to(pages).with_suffix(".html")).read_text("utf-8"))
        assert built.counts == shown.counts, page.name


def test_nothing_is_loaded_from_elsewhere_and_every_link_leads_somewhere(site: Path) -> None:
    for page in sorted([*site.glob("*.html"), *site.glob("spec/*.html")]):
        elements = Elements(page.read_text("utf-8"))
        for target in elements.loaded:
            assert "://" not in target, f"{page.name}: {target}"
        for target in (*elements.loaded, *elements.links):
            path = target.partition("#")[0].partition("?")[0].removeprefix("/")
            if path and not re.match(r"[a-z]+:", target):
                folder = site if target.startswith("/") else page.parent
                assert (folder / path).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("target", ["nowhere.md", "running.md#nowhere"])
def test_a_broken_link_fails(site: Path, target: str, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    shutil.copytree(site.parent, folder)
    with (folder / "pages" / "running.md").open("a") as page:
        page.write(f"\n[nowhere]({target})\n")
    assert build(folder) != 0


@contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_search_finds_a_key_and_requests_stay_on_the_site(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with served(site) as address, playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        foreign: list[str] = []
        page.on("request", lambda request: foreign.append(request.url))
        page.goto(f"{address}/index.html")
        page.keyboard.press("Control+k")
        page.keyboard.type("max_staleness")
        playwright.expect(page.locator("a[href*='spec/rollout.html'] mark").first).to_be_visible(
            timeout=60_000
        )
        width = page.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert width <= 390
    assert [url for url in foreign if not url.startswith((address, "data:", "blob:"))] == []
