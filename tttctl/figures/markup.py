"""HTML as a tree, so that whatever was not built here is text: nothing is pasted into markup.

element("p", "1 < 2", element("b", name)) -> page(...) -> one document that a browser may fetch nothing for
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, cast
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from pygments.formatters.html import HtmlFormatter
from pygments.lexers.python import PythonLexer  # pyright: ignore[reportMissingTypeStubs]
from pygments.token import STANDARD_TYPES, Error

from tttctl.render import clean

LIGHT, DARK = "friendly", "github-dark"
Child = Element | str


def element(tag: str, *children: Child, **attributes: str) -> Element:
    """`class_` for class, as Python has that word."""
    made = Element(tag, {name.rstrip("_"): clean(value) for name, value in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif last is None:
            made.text = (made.text or "") + clean(child)
        else:
            last.tail = (last.tail or "") + clean(child)
    return made


def page(title: str, style: str, *body: Element) -> bytes:
    """A document that may load nothing and run nothing; only this very style is allowed in it."""
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    sheet = Element("style")
    sheet.text = style
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **{"http-equiv": "Content-Security-Policy", "content": policy}),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        sheet,
    )
    document = element("html", head, element("body", *body), lang="en")
    return b"<!doctype html>\n" + ElementTree.tostring(document, encoding="utf-8", method="html") + b"\n"


def image(svg: bytes, words: str) -> Element:
    """A figure of its own: as an image it can neither run nor load anything, whatever it holds."""
    source = "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    return element("figure", element("img", src=source, alt=words))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> Element:
    """The first `words` columns are words, the others numbers.  It scrolls where it is too wide or long."""
    kinds = ["word" if column < words else "number" for column in range(len(head))]
    top = element("tr", *(element("th", cell, class_=kind) for cell, kind in zip(head, kinds, strict=True)))
    body = [
        element("tr", *(element("td", cell, class_=kind) for cell, kind in zip(cells, kinds, strict=True)))
        for cells in rows
    ]
    made = element("table", element("thead", top), element("tbody", *body))
    return element("div", made, class_="scroll", tabindex="0")


def python(source: str) -> Element:
    """A program with its words coloured."""
    return element("pre", element("code", *_words(source)), class_="code", tabindex="0")


def python_styles() -> str:
    """Colours of a program's words, by the reader's light."""
    light, dark = (_style_of(name) for name in (LIGHT, DARK))
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _style_of(name: str) -> str:
    made = cast(Any, HtmlFormatter(style=name))
    return made.get_style_defs(".code")


def _words(source: str) -> Iterator[Child]:
    lexer = PythonLexer(stripnl=False, ensurenl=False)
    for token, text in lexer.get_tokens(source):
        kind = "" if token is Error else STANDARD_TYPES.get(token, "")  # what is no Python is text, not a fault
        yield element("span", text, class_=kind) if kind else text
