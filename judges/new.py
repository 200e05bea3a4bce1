"""A new task's folder: a copy of judges/template, a small problem that works and whose comments teach."""

from __future__ import annotations

import re
from pathlib import Path

from judges.task import TaskError

TEMPLATE = Path(__file__).parent / "template"


def create(name: str, place: Path) -> Path:
    """Write the folder `name` in the directory `place`.  Raises TaskError, and then has written nothing."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise TaskError(f"a task's name is of small letters, digits and _, and begins with a letter, unlike {name!r}")
    folder = place / name
    try:
        folder.mkdir(parents=True)
        for file in sorted(TEMPLATE.glob("*.*")):
            text = file.read_text()
            (folder / file.name).write_text(text.replace(f'name = "{TEMPLATE.name}"', f'name = "{name}"'))
    except FileExistsError:
        raise TaskError(f"{folder} exists already; choose another name or --dir") from None
    except OSError as error:
        raise TaskError(f"cannot write {folder}: {error.strerror}") from None
    return folder
