"""What the daemon is reached by and what it starts: its socket and group, the engine's ports, the judges' sandbox."""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import socket as sockets
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tttctl.client import Client, Failed, NoDaemon
from tttctl.verbs.checks.finding import Finding, missing, note, ok
from tttdd import __version__
from tttdd.config import Config, Judges
from tttdd.protocol import Health

SOCKET_MODE = 0o660
PORTS = range(20_000, 60_000)
"""Of which SGLang's servers get theirs (tttdd.workers.serve)."""
TCP = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MANY_PORTS = len(PORTS) // 10
SYSCTLS = {"kernel.unprivileged_userns_clone": "1", "kernel.apparmor_restrict_unprivileged_userns": "0"}
"""What lets an account make user namespaces; a kernel that lacks one has no such rule."""
MOST_NAMESPACES = "user.max_user_namespaces"


class Account(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str
    uid: int
    groups: frozenset[int]
    """As this process has them: a new membership counts from the next login."""


class Socket(msgspec.Struct, frozen=True):
    path: str
    mode: int
    uid: int
    gid: int


class Group(msgspec.Struct, frozen=True):
    name: str
    gid: int
    members: frozenset[str]


def check(client: Client, settings: Config | None) -> list[Finding]:
    judges = settings.judges if settings else Judges()
    findings = [sandbox(judges)]
    if judges.sandbox == "namespaces":
        findings.insert(0, user_namespaces(os.geteuid(), sysctls()))
    if settings and settings.engine.backend == "sglang":
        findings.append(ports(loopback_fault(), listening()))
    named = settings.daemon.group if settings else ""
    findings += reach(this_account(), at(client.path), named, group(named))
    return [*findings, daemon(client)]


def user_namespaces(uid: int, values: Mapping[str, str]) -> Finding:
    """`values`: sysctls that this kernel has."""
    if values.get(MOST_NAMESPACES) == "0":
        return note("user namespaces", f"{MOST_NAMESPACES} = 0", f"sudo sysctl -w {MOST_NAMESPACES}=15000")
    if uid == 0:
        return ok("user namespaces", "not needed: this is root")
    wrong = [f"{name}={wanted}" for name, wanted in SYSCTLS.items() if values.get(name, wanted) != wanted]
    if not wrong:
        return ok("user namespaces", "allowed")
    told = ", ".join(f"{name.partition('=')[0]} = {values[name.partition('=')[0]]}" for name in wrong)
    remedy = f"run the daemon as root, or: sudo sysctl -w {' '.join(wrong)}; until then programs are contained less"
    return note("user namespaces", told, remedy)


def sysctls() -> dict[str, str]:
    files = {name: Path("/proc/sys", *name.split(".")) for name in (*SYSCTLS, MOST_NAMESPACES)}
    return {name: file.read_text().strip() for name, file in files.items() if file.exists()}


def sandbox(judges: Judges) -> Finding:
    """The judges' own answer: the level is tried."""
    command = [sys.executable, "-m", "judges", "sandbox", judges.sandbox]
    for option, value in (("--image", judges.docker_image), ("--runtime", judges.docker_runtime)):
        command += [option, value] if value else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        words = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        return missing("sandbox", words, "no program can be judged; judges.sandbox names another level")
    found = json.loads(done.stdout)
    level, lacks = found["level"], found["missing"]
    return note("sandbox", f"{level}; not contained: {'; '.join(lacks)}") if lacks else ok("sandbox", level)


def reach(account: Account, socket: Socket | None, named: str, group: Group | None) -> list[Finding]:
    """Whether `account` may use the daemon's socket; `named`: daemon.group, `group`: what the system knows of it."""
    if named and group is None:
        told = f'sudo groupadd --system {named}, or set daemon.group = ""'
        return [missing("socket group", f"there is no group {named!r}: the daemon will not start", told)]
    if socket is None:
        return [_member(account, group)] if group else []
    found = f"{socket.path}: mode {socket.mode:o}, uid {socket.uid}, gid {socket.gid}"
    ours = account.uid in (0, socket.uid)
    if socket.mode != SOCKET_MODE:
        kind = note if ours or socket.mode & SOCKET_MODE == SOCKET_MODE else missing
        remedy = f"sudo chmod {SOCKET_MODE:o} {socket.path}"
        return [kind("socket", f"{found}; it was made with mode {SOCKET_MODE:o}", remedy)]
    if ours or socket.gid in account.groups:
        return [ok("socket", found)]
    name = group.name if group and group.gid == socket.gid else f"#{socket.gid}"
    if group and group.gid == socket.gid and account.name in group.members:
        return [
            missing("socket", f"{account.name} is in {name}, but was not at login", f"log in again, or: newgrp {name}")
        ]
    told = f"sudo usermod -aG {name} {account.name}, then log in again"
    return [missing("socket", f"{found}; {account.name} is not in its group", told)]


def ports(loopback: str, taken: frozenset[int]) -> Finding:
    """`loopback`: why it cannot be used, if so; `taken`: ports that somebody listens on."""
    if loopback:
        return missing("ports", f"127.0.0.1 cannot be used: {loopback}", "sudo ip link set lo up")
    ours = len(taken.intersection(PORTS))
    found = f"{ours} of {len(PORTS)} from {PORTS.start} to {PORTS.stop - 1} are taken"
    return ok("ports", found) if ours < MANY_PORTS else note("ports", found, "ss -ltnp shows who listens")


def daemon(client: Client) -> Finding:
    try:
        version = client.get("/v1/health", Health).version
    except NoDaemon as error:
        return note("daemon", str(error), "systemctl start tttdd, or tttctl demo for a private one")
    except Failed as error:
        return note("daemon", str(error))
    found = f"{client.path}: version {version}"
    if version == __version__:
        return ok("daemon", found)
    return note("daemon", f"{found}, and this is {__version__}", "systemctl restart tttdd")


def this_account() -> Account:
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    return Account(name, uid, frozenset([os.getegid(), *os.getgroups()]))


def at(path: str) -> Socket | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return Socket(path, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


def group(name: str) -> Group | None:
    try:
        found = grp.getgrnam(name)
    except KeyError:
        return None
    return Group(found.gr_name, found.gr_gid, frozenset(found.gr_mem))


def loopback_fault() -> str:
    try:
        with sockets.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        return error.strerror or errno.errorcode.get(error.errno or 0, str(error))
    return ""


def listening() -> frozenset[int]:
    """TCP ports, of either family."""
    tables = [
        path.read_text().splitlines()[1:] for path in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if path.exists()
    ]
    fields = [line.split() for table in tables for line in table]
    return frozenset(int(field[1].rpartition(":")[2], 16) for field in fields if field[3] == "0A")


def _member(account: Account, group: Group) -> Finding:
    if account.uid == 0 or group.gid in account.groups:
        return ok("socket group", group.name)
    told = f"sudo usermod -aG {group.name} {account.name}, then log in again"
    return note("socket group", f"{account.name} is not in {group.name}", told)
