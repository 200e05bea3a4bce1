"""One SQLite connection: durable, versioned, every change inside a transaction.

WAL with synchronous = FULL: what a transaction returned from is on disk, and a killed writer leaves whole
transactions only.  The schema's version is `PRAGMA user_version`: an older database is copied and brought up to date,
version by version, by schema_N_to_M.sql; a newer one is refused.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tttdd.durable import ASIDE
from tttdd.failpoint import Point, reach
from tttdd.ports import StoreError, StoreUnusable

SCHEMA_VERSION = 4
"""Of schema.sql."""
BUSY_SECONDS = 1.0
"""For another process to let go of it: the event loop waits."""
NO_ROOM_BYTES = 1 << 16
RUINED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


class Database:
    """To be used from one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
        self._connection.row_factory = sqlite3.Row
        self._connection.text_factory = _text
        try:
            with self._told():
                self._prepare()
            self._file = _identity(path)
        except (StoreError, OSError):
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def one(self, query: str, *values: Any) -> sqlite3.Row | None:
        with self._told():
            return self._connection.execute(query, values).fetchone()

    def all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._told():
            return self._connection.execute(query, values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        """Rows that were changed.  Only inside `transaction`."""
        assert self._connection.in_transaction
        return self._connection.execute(statement, values).rowcount

    @contextmanager
    def transaction(self) -> Generator[None, None, None]:
        """All changes in the block, or none.  Raises OSError (ENOSPC) when the disk is full."""
        with self._told():
            self._must_be_there()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                reach(Point.TRANSACTION_FILLED)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite ends it by itself when the disk is full
                    self._connection.execute("ROLLBACK")
                raise
        reach(Point.TRANSACTION_COMMITTED)

    @contextmanager
    def _told(self) -> Generator[None, None, None]:
        """SQLite's errors as ours.  On a full disk some only say that a file could not be written."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):  # ours
            raise
        except sqlite3.DatabaseError as error:
            kind = error.sqlite_errorcode & 0xFF
            if kind == sqlite3.SQLITE_FULL or (kind == sqlite3.SQLITE_IOERR and _full(self._path)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) from error
            unusable = StoreError if kind in RUINED else StoreUnusable
            raise unusable(f"{self._path}: cannot be used as the state database: {error}") from error

    def _must_be_there(self) -> None:
        if _identity(self._path) != self._file:
            raise StoreUnusable(f"{self._path}: was removed or replaced; stop the daemon, and put it back")

    def _prepare(self) -> None:
        # secure_delete: Debian's default would write zeros over every page of a step's samples when it is committed
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = OFF"):
            self._connection.execute(f"PRAGMA {pragma}")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self._path}: written by a newer tttdd (schema {version}, this one knows {SCHEMA_VERSION}); "
                "upgrade tttdd or use another state_dir"
            )
        if version == 0:
            self._connection.executescript(_script("schema.sql"))
        elif version < SCHEMA_VERSION:
            self._keep_a_copy(version)
        for older in range(max(version, 1), SCHEMA_VERSION if version else 0):
            self._connection.executescript(_script(f"schema_{older}_to_{older + 1}.sql"))

    def _keep_a_copy(self, version: int) -> None:
        """Of a database that is about to be changed, as it was."""
        aside = self._path.with_name(f"{self._path.name}{ASIDE}")
        aside.unlink(missing_ok=True)
        with closing(sqlite3.connect(aside)) as target:
            self._connection.backup(target)
        aside.replace(self._path.with_name(f"{self._path.stem}-schema{version}{self._path.suffix}"))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_dev, told.st_ino


def _full(path: Path) -> bool:
    room = os.statvfs(path.parent)
    return room.f_bavail * room.f_frsize < NO_ROOM_BYTES or room.f_favail == 0


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def _text(data: bytes) -> str:
    """A damaged text is shown as far as it can be read."""
    return data.decode(errors="replace")
