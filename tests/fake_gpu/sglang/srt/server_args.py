"""SGLang's arguments, as far as the fake server reads them; it has many more."""

from typing import Any


class ServerArgs:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
