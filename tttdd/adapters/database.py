"""One SQLite connection: durable, versioned, every change inside a transaction.

WAL with synchronous = FULL: what a transaction returned from is on disk, and a killed writer leaves whole
transactions only.  The schema's version is `PRAGMA user_version`; a newer database is refused.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).with_name("schema.sql")
SCHEMA_VERSION = 1


class StoreError(RuntimeError):
    """The stored state does not allow what was asked, or cannot be read."""


class Database:
    """To be used from one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=5)
        self._connection.row_factory = sqlite3.Row
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self.close()
            raise StoreError(f"{path}: cannot be used as the state database: {error}") from None
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def one(self, query: str, *values: Any) -> sqlite3.Row | None:
        return self._connection.execute(query, values).fetchone()

    def all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._connection.execute(query, values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        """Rows that were changed.  Only inside `transaction`."""
        assert self._connection.in_transaction
        return self._connection.execute(statement, values).rowcount

    @contextmanager
    def transaction(self) -> Generator[None, None, None]:
        """All changes in the block, or none.  Raises OSError (ENOSPC) when the disk is full."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:  # SQLite ends it by itself when the disk is full
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) from error
            raise

    def _prepare(self) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self._path}: written by a newer tttdd (schema {version}, this one knows {SCHEMA_VERSION}); "
                "upgrade tttdd or use another state_dir"
            )
        if version == 0:
            self._connection.executescript(SCHEMA.read_text())
