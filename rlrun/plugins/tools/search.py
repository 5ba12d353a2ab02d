"""Searches the passages of a corpus on this machine."""

import asyncio
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field

from rlrun.models.json_files import parse_json
from rlrun.plugins.tools.schema import function_schema
from rlrun.specs.paths import SpecPath
from rlrun.specs.sections.section import Section

_WORD = re.compile(r"\w+")
_BEST = "SELECT title, text FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid LIMIT ?"


class SearchParams(Section):
    """The corpus, its index, and the size of a result."""

    path: SpecPath
    """The corpus: `.jsonl` with one passage per line, or text whose passages are separated by empty lines."""
    text_key: str = "text"
    """Key of a passage's text, in `.jsonl`."""
    title_key: str | None = "title"
    """Key of a passage's title, which may be missing. None: passages have no titles."""
    results: int = Field(default=3, ge=1)
    """Largest number of passages in a result."""
    index: str | None = None
    """File in which the index is kept for later jobs. It is rebuilt when the corpus changes. None: the index
    is kept in memory."""
    about: str = "Searches a collection of texts by words and returns the passages that fit best."
    """The description of the tool that the policy reads."""


class SearchArguments(Section):
    """The arguments of a call."""

    query: str
    """Words to search for."""


class Search:
    """Returns the passages that match a query best by BM25 (Robertson and Zaragoza, 2009), using SQLite's
    FTS5.
    """

    Params = SearchParams
    api_version = 1

    def __init__(self, params: SearchParams) -> None:
        """Reads the corpus, unless its index is up to date.

        Raises ValueError if the corpus is empty or has a broken line.
        """
        self.schema = function_schema("search", params.about, SearchArguments)
        self._results = params.results
        self._index = _index(params)
        self._free = asyncio.Lock()

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Returns the passages, numbered. Raises ValueError for arguments that do not fit."""
        query = SearchArguments.model_validate(arguments).query
        words = _WORD.findall(query.lower())
        if not words:
            raise ValueError("the query has no words")
        async with self._free:
            passages = await self._find(" OR ".join(f'"{word}"' for word in dict.fromkeys(words)))
        if not passages:
            return "Nothing found."
        return "\n\n".join(
            f"[{number}] {_format_passage(*passage)}" for number, passage in enumerate(passages, 1)
        )

    async def _find(self, query: str) -> list[tuple[str, str]]:
        def select() -> list[tuple[str, str]]:
            return self._index.execute(_BEST, (query, self._results)).fetchall()

        selection = asyncio.create_task(asyncio.to_thread(select))
        try:
            return await asyncio.shield(selection)
        except asyncio.CancelledError:
            # The thread still uses the connection: stop its query before another call takes the lock.
            self._index.interrupt()
            with suppress(sqlite3.OperationalError):
                await selection
            raise

    async def close(self) -> None:
        """Closes the index."""
        self._index.close()


def _index(params: SearchParams) -> sqlite3.Connection:
    """Opens the index, and builds it if it is missing or the corpus has changed since.

    Raises ValueError if the file of the index is damaged, or something else.
    """
    try:
        return _open_index(params)
    except sqlite3.DatabaseError as error:
        if params.index is None:
            raise
        raise ValueError(f"the index {params.index} cannot be used ({error}): delete it") from error


def _open_index(params: SearchParams) -> sqlite3.Connection:
    corpus = Path(params.path)
    index = sqlite3.connect(params.index or ":memory:", check_same_thread=False)
    stat = corpus.stat()
    state = json.dumps([str(corpus), stat.st_size, stat.st_mtime_ns, params.text_key, params.title_key])
    index.execute("CREATE TABLE IF NOT EXISTS made_of (state TEXT)")
    if index.execute("SELECT state FROM made_of").fetchone() == (state,):
        return index
    with index:
        index.execute("DELETE FROM made_of")
        index.execute("DROP TABLE IF EXISTS passages")
        index.execute("CREATE VIRTUAL TABLE passages USING fts5(title, text, tokenize='porter unicode61')")
        index.executemany("INSERT INTO passages VALUES (?, ?)", _passages(corpus, params))
        index.execute("INSERT INTO made_of VALUES (?)", (state,))
    if index.execute("SELECT count(*) FROM passages").fetchone() == (0,):
        raise ValueError(f"{corpus} has no passages")
    return index


def _passages(corpus: Path, params: SearchParams) -> Iterator[tuple[str, str]]:
    """Yields the title and the text of each passage; the title may be empty."""
    if corpus.suffix != ".jsonl":
        passages = re.split(r"\n\s*\n", corpus.read_text("utf-8"))
        yield from (("", passage.strip()) for passage in passages if passage.strip())
        return
    with corpus.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _passage(line, f"{corpus}:{number}", params)


def _passage(line: str, where: str, params: SearchParams) -> tuple[str, str]:
    try:
        values = parse_json(line)
        text = values[params.text_key]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{where}: no passage with a {params.text_key!r} ({type(error).__name__}: {error})"
        ) from None
    title = values.get(params.title_key) if params.title_key is not None else None
    return str(title or ""), str(text)


def _format_passage(title: str, text: str) -> str:
    return f"{title}\n{text}" if title else text
