"""Worker that holds one Weights & Biases run open: the only process that imports wandb, which starts one of its own.

    open {project, id, ...} -> next step;   tell {rows, config, summary};   adapter {release, folder};   finish {code}

The daemon's store is the source of truth; what is lost here is told again.  Offline the run's files are therefore
written anew each time (`wandb sync` of a second folder of the same run would take the place of the first); online the
server says which steps it has.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, Literal

import msgspec

from tttdd import wire

OWN = "own"
"""Folder for what wandb keeps beside a run: its cache, what it is about to upload, its service's log."""
FLUSH_SECONDS = 1.0
FINISH_SECONDS = 600.0
ROOM = 16 << 20
"""Bytes that must be free: on a full disk wandb takes rows and writes none, without an error."""
ADAPTER = ("adapter_model.safetensors", "adapter_config.json", "release.json")
AXIS = "tttd/step"


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is opened with."""

    root: str
    """Folder below which, in wandb/, everything is written."""
    mode: Literal["online", "offline"]
    project: str
    entity: str | None
    id: str
    name: str
    group: str
    tags: list[str]
    created: float
    """Unix time, seconds."""
    config: dict[str, str | int | float | bool | None]
    api_key: str | None


class Track:
    def __init__(self) -> None:
        self._run: Any = None
        self._next = 0
        self._key: str | None = None

    def answer(self, request: wire.Request) -> wire.Reply:
        handlers = {"open": self.open, "tell": self.tell, "adapter": self.adapter, "finish": self.finish}
        try:
            return wire.Reply(request.id, handlers[request.method](**request.params))
        except Exception as error:  # noqa: BLE001  whatever a tracker's library raises is told, and stops no run
            return wire.Reply(request.id, error=self._without_key(f"{type(error).__name__}: {error}"))

    def open(self, **params: Any) -> int:
        """Returns the first step that is not there yet."""
        opening = msgspec.convert(params, Opening)
        self._key = opening.api_key
        folder = Path(opening.root) / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):  # wandb would write somewhere else
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        _forget(folder, opening.id)
        _check_room(folder)
        os.environ.update({f"WANDB_{name}_DIR": str(folder / OWN) for name in ("CACHE", "CONFIG", "DATA")})
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        self._run = wandb.init(config=opening.config, settings=wandb.Settings(**_settings(opening)))
        self._run.define_metric(AXIS)
        self._run.define_metric("*", step_metric=AXIS)
        self._next = self._run.starting_step
        return self._next

    def tell(self, rows: list[tuple[int, dict[str, float]]], config: dict[str, Any], summary: dict[str, Any]) -> None:
        """Rows in the order of their steps; those that are there already are left out."""
        self._run.config.update(config, allow_val_change=True)
        for step, metrics in rows:
            if step >= self._next:
                self._run.log(metrics, step=step, commit=True)
                self._next = step + 1
        self._run.summary.update(summary)
        self._run.summary.get(AXIS)  # asks wandb's service, which takes all the rest without an answer
        self._check()

    def adapter(self, release: int, folder: str, aliases: list[str]) -> None:
        """The weights of a release, without the optimizer's state."""
        import wandb

        artifact = wandb.Artifact(f"{self._run.name}-adapter", type="model", metadata={"release": release})
        for name in ADAPTER:
            artifact.add_file(str(Path(folder) / name), skip_cache=True)
        logged = self._run.log_artifact(artifact, aliases=aliases)
        if not self._run.offline:
            logged.wait()

    def finish(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)
        with open(self._run.settings.sync_file, "rb") as written:
            os.fsync(written.fileno())
        self._check()

    def _check(self) -> None:
        """Raises OSError where wandb may not have been able to write what it took."""
        log = Path(self._run.settings.log_internal)
        _check_room(log.parent)
        if b"failed to save record" in log.read_bytes():
            raise OSError(errno.EIO, "wandb could not write; its log says why", str(log))

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "(the API key)") if self._key else text


def _settings(opening: Opening) -> dict[str, Any]:
    """Only what it is told: no console, code, git, host or machine."""
    return {
        **{name: getattr(opening, name) for name in ("mode", "project", "entity", "api_key")},
        "run_id": opening.id,
        "run_name": opening.name,
        "run_group": opening.group,
        "run_tags": opening.tags,
        "root_dir": opening.root,
        "resume": "allow" if opening.mode == "online" else None,
        "x_start_time": opening.created,
        "x_transaction_log_flush_interval": FLUSH_SECONDS,
        "finish_timeout": FINISH_SECONDS,
        "finish_timeout_raises": True,
        "stop_fn": _go_on,
        **dict.fromkeys(("host", "username", "program"), "tttdd"),
        **dict.fromkeys(("save_code", "symlink", "use_dot_wandb", "x_save_requirements"), False),
        **dict.fromkeys(("silent", "disable_git", "disable_code"), True),
        **dict.fromkeys(("x_disable_stats", "x_disable_meta", "x_disable_machine_info"), True),
        "console": "off",
    }


def _go_on() -> None:
    """A stop asked for in W&B's pages is none of the daemon's: `tttctl cancel` is."""


def _check_room(folder: Path) -> None:
    if shutil.disk_usage(folder).free < ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _forget(folder: Path, id: str) -> None:
    """What an earlier process wrote of the same run: the store holds all of it, or the server does."""
    for earlier in (*folder.glob(f"*run-*-{id}"), *folder.glob(OWN)):
        shutil.rmtree(earlier)


def main(line: wire.Line, options: dict[str, Any]) -> None:
    track = Track()
    while True:
        match line.receive():
            case wire.Request(method="cancel"):
                pass
            case wire.Request() as request:
                line.send(track.answer(request))
            case _:
                pass
