"""A task's promised helpers: one file of Python, run in every program's namespace and shown in the instruction.

    helpers.py --source--> Entry.helpers   the program calls them
               --ast-----> {helpers}       the instruction shows their signatures and docstrings
               --beside--> judge.py        the judge computes with the same formula

A program may shadow them or break them: its own copy is all that it breaks.
"""

from __future__ import annotations

import ast
import functools
import textwrap
import types
from pathlib import Path

from judges.syntax import parse


def beside(judge: str, name: str = "helpers.py") -> types.ModuleType:
    """The helpers that lie beside a judge: `beside(__file__)`.  Edited ones are loaded again."""
    file = Path(judge).with_name(name)
    return _module(str(file), file.read_bytes())


def promises(source: str) -> dict[str, str]:
    """What is promised, by name: signature and docstring of every public function, annotation and docstring of every
    public variable.  Raises SyntaxError."""
    body = parse(source).body
    following: list[ast.stmt | None] = [*body[1:], None]
    found = [_promise(node, after) for node, after in zip(body, following, strict=False)]
    return {name: text for name, text in found if name and not name.startswith("_")}


def shown(source: str) -> str:
    """All promises as Markdown code, for the instruction."""
    return textwrap.indent("\n\n".join(promises(source).values()), "    ")


def _promise(node: ast.stmt, after: ast.stmt | None) -> tuple[str, str]:
    """Name and text; no name where the statement promises nothing."""
    match node:
        case ast.FunctionDef():
            words = ast.get_docstring(node)
            signature = f"def {node.name}({ast.unparse(node.args)})"
            signature += f" -> {ast.unparse(node.returns)}:" if node.returns else ":"
            return node.name, signature + (textwrap.indent(f'\n"""{words}"""', "    ") if words else "")
        case ast.AnnAssign(target=ast.Name(name), annotation=annotation):
            text = f"{name}: {ast.unparse(annotation)}"
            match after:
                case ast.Expr(ast.Constant(str(words))):
                    return name, f'{text}\n"""{words}"""'
                case _:
                    return name, text
        case _:
            return "", ""


@functools.lru_cache
def _module(file: str, source: bytes) -> types.ModuleType:
    module = types.ModuleType("helpers")
    module.__file__ = file
    exec(compile(source, file, "exec"), module.__dict__)
    return module
