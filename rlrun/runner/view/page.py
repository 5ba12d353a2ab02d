"""Builds the page: one HTML file with all of its scripts and styles, and, for `--html`, with the data.

    page/src/*.js ─ `make page` ─▶ assets/page.js ┐
    assets/style.css, uPlot                       ┴─▶ index.html ─▶ page ─▶ server, or a file

The page loads nothing else: its Content-Security-Policy names its own scripts and styles by their hashes.
"""

import base64
import gzip
import hashlib
import html
import json
import math
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

_ASSETS = files("rlrun.runner.view") / "assets"


@dataclass(frozen=True, slots=True)
class Page:
    """The page, and the Content-Security-Policy that it needs."""

    html: bytes
    policy: str


def make_page(title: str, data: Any = None) -> Page:
    """Returns the page. `data`: what a page without a server shows; None: it asks its server."""
    scripts = [_read("vendor/uPlot.iife.min.js"), _read("page.js")]
    styles = [_read("vendor/uPlot.min.css"), _read("style.css")]
    assert not any("</script" in text or "</style" in text for text in (*scripts, *styles)), (
        "ends its element"
    )
    connect = "'self'" if data is None else "'none'"
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(_source, scripts))}",
            f"style-src {' '.join(map(_source, styles))}",
            "img-src data: blob:",
            f"connect-src {connect}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(title),
        "styles": "".join(f"<style>{style}</style>" for style in styles),
        "data": "" if data is None else f'<script type="text/plain" id="data">{_packed(data)}</script>',
        "scripts": "".join(f"<script>{script}</script>" for script in scripts),
    }
    return Page(Template(_read("index.html")).substitute(parts).encode(), policy)


def _read(name: str) -> str:
    return _ASSETS.joinpath(*name.split("/")).read_text(encoding="utf-8")


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _packed(data: Any) -> str:
    """Returns data as base64 of gzip of JSON, in which no text can end the element that holds it."""
    return base64.b64encode(gzip.compress(to_json(data), 9, mtime=0)).decode()


def to_json(value: Any) -> bytes:
    """Returns a value as UTF-8; numbers that are not finite become null.

    Raises ValueError for a value that is nested too deeply or contains a number that is too long.
    """
    try:
        return _dumps(value)
    except ValueError:
        return _dumps(_finite(value))
    except RecursionError:
        raise ValueError("the value is nested too deeply to be shown") from None


def _dumps(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str, separators=(",", ":"))
    return text.encode(errors="replace")  # lone surrogates


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
