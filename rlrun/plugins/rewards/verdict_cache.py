"""A file of a judge's answers, which all reward processes and later launches share.

model, messages, sampling, vote ─▶ SHA-256 ─▶ the judge's answer
"""

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

_WAIT_SECONDS = 30.0
"""How long a process waits while another one writes."""


class VerdictCache:
    """Answers by what was asked, in SQLite. Each call opens the file, so that processes may share it."""

    def __init__(self, path: str) -> None:
        """Creates the file. Raises ValueError if it cannot be, or holds something else."""
        self._path = Path(path)
        self._has_failed = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._open()) as file, file:
                file.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, answer TEXT)")
                file.execute("SELECT key, answer FROM verdicts LIMIT 1")
        except (OSError, sqlite3.Error) as error:
            raise ValueError(f"cache: {path} cannot be used ({error}): name another file") from error

    def find(self, asked: Mapping[str, Any]) -> str | None:
        """Returns the answer to the same question; None if it was not asked, or cannot be read."""
        try:
            with closing(self._open()) as file:
                row = file.execute("SELECT answer FROM verdicts WHERE key = ?", (_key(asked),)).fetchone()
        except sqlite3.Error as error:
            self._report("read", error)
            return None
        return None if row is None else str(row[0])

    def keep(self, asked: Mapping[str, Any], answer: str) -> None:
        """Stores an answer, if that is possible: a verdict counts also where it cannot be kept."""
        try:
            with closing(self._open()) as file, file:
                file.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (_key(asked), answer))
        except (sqlite3.Error, UnicodeError) as error:  # half of a surrogate pair has no bytes
            self._report("written", error)

    def _report(self, what: str, error: Exception) -> None:
        """Prints the first failure to the reward's log."""
        if not self._has_failed:
            print(f"cache: {self._path} cannot be {what} ({error}), so the judge is asked again", flush=True)
        self._has_failed = True

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_WAIT_SECONDS)


def _key(asked: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
