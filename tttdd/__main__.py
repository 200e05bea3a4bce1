"""tttdd [--config FILE] [--socket PATH] [--state-dir DIR]: the daemon's command line."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import msgspec

from tttdd import __version__, config, journal


def main() -> None:
    arguments = _parser().parse_args()
    path = arguments.config or config.default_path()
    try:
        settings = _overridden(config.load(path), arguments)
    except config.ConfigError as error:
        sys.exit(_refused(str(error)))
    logging.basicConfig(level=logging.INFO, handlers=[journal.handler(sys.stderr)])
    from tttdd import daemon  # costs more than telling a mistake does

    try:
        daemon.run(settings, path)
    except daemon.CannotStartYet as error:
        _refused(str(error))
        sys.exit(1)
    except daemon.CannotStart as error:
        sys.exit(_refused(str(error)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tttdd", description="The tttdd daemon.")
    parser.add_argument("--version", action="version", version=f"tttdd {__version__}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML configuration")
    parser.add_argument("--socket", metavar="PATH", help="Unix socket to serve (overrides daemon.socket)")
    parser.add_argument("--state-dir", metavar="DIR", help="where runs are kept (overrides daemon.state_dir)")
    return parser


def _overridden(settings: config.Config, arguments: argparse.Namespace) -> config.Config:
    given = {"socket": arguments.socket, "state_dir": arguments.state_dir}
    daemon = msgspec.structs.replace(settings.daemon, **{name: value for name, value in given.items() if value})
    return msgspec.structs.replace(settings, daemon=daemon)


def _refused(message: str) -> int:
    told = f"tttdd: {message}"
    sys.stderr.write((journal.marked(told, logging.ERROR) if journal.reads(sys.stderr) else told) + "\n")
    return 2


if __name__ == "__main__":
    main()
