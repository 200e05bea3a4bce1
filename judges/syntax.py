"""Python source as a tree, by one thread at a time.

Until 3.13 CPython counts how deep its parser is for all threads together: where one is interrupted by another that
parses, too, the first fails with a SystemError (github.com/python/cpython/issues/106905).
"""

from __future__ import annotations

import ast
import threading

_turn = threading.Lock()


def parse(source: str) -> ast.Module:
    """As ast.parse.  Raises SyntaxError, ValueError, RecursionError or MemoryError."""
    with _turn:
        return ast.parse(source)
