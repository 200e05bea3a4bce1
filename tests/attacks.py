"""Programs that attack their judge, as data; test_attacks.py runs them at every level, attack_table.py prints a table.

Each either ends with a rejection of one of its classes, or comes through with the reward of the numbers it returned and
no more.  What it tries in between it tells by `attempt`, which prints ESCAPED where something was possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from judges.verdict import Reason, Verdict

ESCAPED = "ESCAPED"
HONEST = 1 / (1e-8 + 0.5)
"""Reward of the numbers that every attack returns."""
SECRET = "{secret}"
"""In a program: stands for the path of a file that no program may read."""

ATTEMPT = """
def attempt(what, action):
    try: value = action()
    except BaseException as error: print(f'{what}: {type(error).__name__}: {error}')
    else: print('ESCAPED' if value is not None else 'harmless', what, repr(value)[:200])
"""
RETURN = "\ndef run(**k): return [0.5, 0.5], 0.5, 2\n"


class Attack(msgspec.Struct, frozen=True):
    name: str
    program: str
    reasons: tuple[Reason, ...] = ("",)
    """Classes of rejection that contain it; "" stands for a valid result with the honest reward."""
    told: str = ""
    """Part of the detail or the output, where there is something to be told."""
    quick: bool = False
    """Under a time limit of a second."""

    def contained(self, verdict: Verdict) -> bool:
        fair = math.isclose(verdict.reward, HONEST, rel_tol=1e-9) if verdict.valid else verdict.reward == 0
        said = verdict.detail + verdict.output
        return fair and verdict.reason in self.reasons and self.told in said and ESCAPED not in said


def ends(name: str, program: str, *reasons: Reason, told: str = "", quick: bool = False) -> Attack:
    """An attack that is meant to be rejected."""
    return Attack(name, program, reasons, told, quick)


def tries(name: str, *actions: str, imports: str = "ctypes, os, socket, sys") -> Attack:
    """An attack that tries things, each an expression that gives something other than None where it escapes."""
    lines = [
        f"attempt({action.partition(' ## ')[2] or name!r}, lambda: {action.partition(' ## ')[0]})" for action in actions
    ]
    return Attack(name, f"import {imports}\n{ATTEMPT}libc = ctypes.CDLL(None)\n" + "\n".join(lines) + RETURN)


def returns(name: str, value: str, *reasons: Reason, told: str = "") -> Attack:
    return Attack(name, f"import numpy as np\ndef run(**k): return {value}", reasons, told)


LOOK_IN = [
    *("/etc/passwd", "/etc/shadow", "/etc/tttdd/tttdd.toml", "/root", "/home"),
    *("/var/lib/tttdd", "/var/run", "/sys", "/dev/mem", "/dev/kmsg"),
]

TIME: Sequence[Attack] = (
    ends("spin in Python", "while True: pass", "timeout", quick=True),
    ends("spin in C", "def run(**k): return 7 ** (10**9) % 3", "timeout", quick=True),
    ends(
        "ignore signals",
        "import signal\nfor s in range(1, 65):\n try: signal.signal(s, signal.SIG_IGN)\n"
        " except (OSError, ValueError): pass\nwhile 1: 0",
        "timeout",
        quick=True,
    ),
    ends("sleep past the wall", "import time\ntime.sleep(1e6)", "timeout", quick=True),
    ends(
        "an error that never says its name",
        "class E(Exception):\n def __str__(s):\n  while 1: 0\nraise E",
        "timeout",
        quick=True,
    ),
    ends(
        "a list without end",
        "class L(list):\n def __iter__(s):\n  while 1: yield 1\ndef run(**k): return L()",
        "timeout",
        "memory",
        quick=True,
    ),
    ends(
        "a clock that stands still",
        "import time\nt = time.time()\ntime.time = time.monotonic = time.perf_counter = lambda: t\n"
        "def run(budget_s, **k):\n while time.time() - t < budget_s: pass",
        "timeout",
        quick=True,
    ),
    tries(
        "set the clock",
        "None if libc.clock_settime(0, ctypes.byref((ctypes.c_long * 2)(0, 0))) else 1",
        imports="ctypes",
    ),
)

MEMORY: Sequence[Attack] = (
    ends("10 GiB at once", "b = bytearray(10 << 30)", "memory"),
    ends("10 GiB in steps", "l = []\nwhile True: l.append(bytearray(64 << 20))", "memory"),
    ends("10 GiB in numpy", "import numpy as np\na = np.ones((10 << 30) // 8)", "memory"),
    ends("10 GiB mapped", "import mmap\nm = mmap.mmap(-1, 10 << 30)", "memory", "exception", told="Cannot allocate"),
    ends("10 GiB to stdout", "while True: print('x' * 1000000)", "output"),
    ends("10 GiB to stderr", "import sys\nwhile True: sys.stderr.write('x' * 1000000)", "output"),
    ends("10 GiB to the result", "import os\nwhile True: os.write(11, b'[' * 65536)", "output"),
    tries(
        "10 GiB to a file",
        "[open('x', 'ab').write(b'x' * (1 << 20)) for _ in range(10240)]",
        "open('y', 'wb').truncate(10 << 30)",
        "[open(f'z{i}', 'wb').write(b'x' * (1 << 20)) for i in range(10240)]",
    ),
    tries("100k files", "[open(f'f{i}', 'w').close() for i in range(100000)]"),
    tries("memory without a limit of its own", "os.memfd_create('x')", "os.open('/dev/shm/x', os.O_CREAT | os.O_RDWR)"),
)

PROCESSES: Sequence[Attack] = (
    tries("fork bomb", "[os.fork() for _ in range(1000)]"),
    tries(
        "threads by the thousand",
        "[threading.Thread(target=time.sleep, args=(99,), daemon=True).start() for _ in range(5000)]",
        imports="ctypes, os, socket, sys, threading, time",
    ),
    tries("a child that outlives", "os.fork() and 1", "os.posix_spawn('/bin/sleep', ['sleep', '99'], {})"),
    ends(
        "double fork with setsid",
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(1e5)\nos._exit(0)",
        "exception",
        told="PermissionError",
    ),
    tries(
        "a shell",
        "os.execv('/bin/sh', ['sh'])",
        "subprocess.run(['/bin/sh', '-c', 'id'])",
        imports="ctypes, os, subprocess",
    ),
    tries(
        "vfork and clone by number",
        "None if libc.syscall(58) < 0 else 1",
        "None if libc.syscall(56, 17, 0, 0, 0, 0) < 0 else 1",
    ),
    tries("signals to the judge", *[f"os.kill({pid}, 9) or 1" for pid in ("-1", "1", "os.getppid()")]),
    tries(
        "trace another",
        "None if libc.ptrace(16, os.getppid(), 0, 0) < 0 else 1",
        "None if libc.ptrace(0, 0, 0, 0) < 0 else 1",
    ),
)

OUTSIDE: Sequence[Attack] = (
    tries(
        "sockets",
        "socket.create_connection(('127.0.0.1', 22), 1)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
        "socket.socket(socket.AF_INET6)",
        "socket.socket(socket.AF_UNIX)",
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '/dev/log')",
        "socket.socket(socket.AF_UNIX).connect('\\0tttdd')",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socketpair()",
        "socket.create_connection(('example.org', 80), 1)",
    ),
    tries(
        "the engine's own socket",
        "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
        "open('/var/run/docker.sock', 'rb')",
    ),
    tries(
        "files of the host",
        *[f"os.listdir({p!r}) if os.path.isdir({p!r}) else open({p!r}, 'rb').read(1)" for p in LOOK_IN],
    ),
    tries(
        "files of its judge",
        f"open({SECRET!r}).read()",
        f"os.listdir(os.path.dirname({SECRET!r}))",
    ),
    tries(
        "other processes by /proc",
        "open('/proc/1/environ', 'rb').read()",
        "[open(f'/proc/{p}/environ', 'rb').read() for p in range(1, 1 << 15) if os.path.exists(f'/proc/{p}')]",
        "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
        "os.listdir(f'/proc/{os.getppid()}/fd')",
        "os.listdir('/proc/1/root') if os.getpid() != 1 else None",
    ),
    tries(
        "what another program left",
        "[n for n in os.listdir('/scratch')] or None",
        "[n for n in os.listdir('/tmp')] or None",
    ),
    tries(
        "its environment", "[v for n, v in os.environ.items() if 'KEY' in n or 'SECRET' in n or 'TOKEN' in n] or None"
    ),
    tries("descriptors of others", "[n for n in range(3, 4096) if n != 11 and not os.fstat(n)] or None"),
    tries(
        "rights",
        "os.setuid(0) or 1",
        "None if libc.unshare(0x10000000) else 1",
        "None if libc.unshare(0x20000) else 1",
        "None if libc.chroot(b'/') else 1",
        "None if libc.mount(b'x', b'/scratch', b'tmpfs', 0, None) else 1",
        "os.setpriority(0, 0, -5) or 1",
        "None if libc.syscall(321, 0, 0, 0) < 0 else 1",
        "None if libc.syscall(425, 1, 0) < 0 else 1",
    ),
    tries(
        "what is not its own, but for its contents",
        f"os.chmod({SECRET!r}, 0o777) or 1",
        f"os.utime({SECRET!r}) or 1",
        f"os.setxattr({SECRET!r}, 'user.x', b'x') or 1",
        "os.chmod('/scratch', 0o777) or 1",
    ),
    tries(
        "more descriptors, locks and kernel memory",
        "None if libc.syscall(436, 100, 200, 2) < 0 else 1",
        "None if libc.syscall(444, None, 0, 1) < 0 else 1",
        "None if libc.prctl(1, 0, 0, 0, 0) < 0 else 1",
    ),
    tries(
        "limits and processors",
        "os.sched_setaffinity(0, range(64)) or 1",
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1)) or 1",
        "os.getppid() and resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)) or None",
        imports="ctypes, os, resource",
    ),
    tries(
        "libraries of the next program",
        "open(os.__file__, 'a')",
        "open(sys.executable, 'ab')",
        "os.rename(os.__file__, '/x') or 1",
        "os.mkdir(os.path.dirname(os.__file__) + '/x') or 1",
    ),
    tries(
        "a library of its own, from a file",
        "open('x.so', 'wb').write(open('/lib/x86_64-linux-gnu/libc.so.6', 'rb').read()) and ctypes.CDLL('./x.so')",
        imports="ctypes, os",
    ),
)

RESULTS: Sequence[Attack] = (
    ends("os._exit before a result", "import os\ndef run(**k): os._exit(0)", "no result"),
    ends("os._exit after a claim", "import os\nos.write(11, b'R[[0.5,0.5],0.0001,2]')\nos._exit(0)", ""),
    ends(
        "a claim of its own beside the result",
        "import os\nos.write(11, b'R[[0.5,0.5],0.0001,2]')" + RETURN,
        "wrong type",
    ),
    ends(
        "a verdict in place of the result",
        'import os\nos.write(11, b\'{"valid":true,"reward":99}\')\nos._exit(0)',
        "no result",
    ),
    ends(
        "a reason of its own", 'import os\nos.write(11, b\'E{"reason":"","detail":"fine"}\')\nos._exit(0)', "no result"
    ),
    ends(
        "another in place of the result pipe",
        "import os\nos.dup2(1, 11)\nprint('R[[0.5,0.5],0.0001,2]')" + RETURN,
        "no result",
    ),
    ends("a closed result pipe", "import os\nos.close(11)" + RETURN, "crash", "no result"),
    ends(
        "a thread that goes on writing results",
        "import os, threading\ndef flood():\n while 1: os.write(11, b'[')\n"
        "threading.Thread(target=flood, daemon=True).start()" + RETURN,
        "",
        "wrong type",
        "no result",
        "output",
    ),
    Attack(
        "patched numpy, json, builtins and time",
        "import builtins, json, time, numpy as np\nlie = lambda *a, **k: 1e-9\n"
        "np.correlate = np.sum = np.array = np.asarray = builtins.sum = builtins.max = lie\n"
        "time.time = time.monotonic = time.perf_counter = lie\njson.encoder.FLOAT_REPR = lie" + RETURN,
    ),
    ends("patched json.dumps", "import json\njson.dumps = lambda *a, **k: '[[0.5,0.5],1e-9,2]'" + RETURN, ""),
    ends(
        "a patched encoder that claims",
        "import json\njson.dumps = lambda *a, **k: '{\"reward\": 1e9}'" + RETURN,
        "wrong type",
    ),
    ends("a claimed bound", "def run(**k): return [0.5, 0.5], 1e-9, 2", ""),
    returns("a huge number", "[0.5, 1e308], 0.5, 2", "constraint"),
    returns("a negative number", "[0.5, -1e308], 0.5, 2", "constraint"),
    returns("numbers near nothing", "[1e-161, 1e-161], 0.5, 2", "constraint", ""),
    returns("a subnormal number", "[5e-324, 0], 0.5, 2", "constraint"),
    returns("a complex number", "[0.5, 1j], 0.5, 2", "wrong type"),
    returns("complex numpy", "np.array([0.5, 0.5j]), 0.5, 2", "wrong type"),
    returns("NaN", "[0.5, float('nan')], 0.5, 2", "wrong type", told="NaN"),
    returns("infinity", "[0.5, 0.5], float('-inf'), 2", "wrong type", told="Infinity"),
    returns("a boolean", "[True, 0], 0.5, 2", "wrong type", told="bool"),
    returns("a string", "['0.5', 0.5], 0.5, 2", "wrong type", told="str"),
    returns("deep nesting", "(lambda f: f(f, 100000))(lambda f, n: [])", "wrong type", "wrong shape"),
    ends(
        "nesting to the limit",
        "def run(**k):\n x = []\n for _ in range(900): x = [x]\n return x",
        "wrong type",
        "wrong shape",
    ),
    ends("a list that holds itself", "def run(**k):\n x = []\n x.append(x)\n return x", "wrong type"),
    returns("a number of a million digits", "[0.5, 10 ** 999999], 0.5, 2", "wrong type"),
    ends(
        "a million digits without a limit",
        "import sys\nsys.set_int_max_str_digits(0)\ndef run(**k): return [0.5, 10 ** 999999], 0.5, 2",
        "wrong type",
        "timeout",
        "output",
        quick=True,
    ),
    returns("n_points that is no whole number", "[0.5] * 4096, 0.5, 4096.9999", "wrong shape", told="4096.9999"),
    returns("objects in an array", "np.array([0.5, object()], dtype=object), 0.5, 2", "wrong type"),
    ends(
        "an array that lies",
        "import numpy as np\nclass L(np.ndarray):\n def tolist(s): return [1e-9]\n"
        " def __array__(s, *a): return np.zeros(2)\ndef run(**k): return np.array([0.5, 0.5]).view(L), 0.5, 2",
        "wrong shape",
        "constraint",
        "",
    ),
    ends(
        "an object with a lying __array__",
        "class A:\n def __array__(s, *a, **k): raise SystemExit\ndef run(**k): return A(), 0.5, 2",
        "wrong type",
    ),
    ends(
        "a float that lies",
        "class F(float):\n def __repr__(s): return '1e-9'\n def __float__(s): return 1e-9\n"
        "def run(**k): return [F(0.5), F(0.5)], F(0.5), 2",
        "",
    ),
    ends(
        "a list that lies", "class L(list):\n def __len__(s): return 1\ndef run(**k): return L([0.5, 0.5]), 0.5, 2", ""
    ),
)

TEXT: Sequence[Attack] = (
    ends("lone surrogates", "print('\\ud800')\nraise ValueError('\\udfff' * 100)", "exception"),
    ends(
        "escape sequences", "print('\\x1b]0;owned\\x07\\x1b[2J\\u202eevil')\nraise ValueError('\\x1b[31m')", "exception"
    ),
    ends("markup", "print('[bold red]x[/] <script>')\nraise ValueError('[/]')", "exception", told="[bold red]x[/]"),
    ends("bytes that are no text", "import os\nos.write(1, bytes(range(256)) * 10)\nraise ValueError", "exception"),
    ends("no Python", "this is no Python", "syntax"),
    ends("a null byte", "x = 1\0", "syntax"),
    ends("surrogates in the source", "x = '\udc80'", "syntax"),
    ends("nested source", "(" * 100000, "syntax", "memory", "crash"),
    ends("a long chain of signs", "x = " + "-" * 100000 + "1", "syntax", "memory", "crash", "exception"),
    ends("no function", "x = 1", "no result"),
    ends("a module that is not there", "import no_such_module", "import"),
    ends("a raise of SystemExit", "raise SystemExit(0)", "no result"),
    ends("an error in its own error", "class E(Exception):\n def __str__(s): raise E\nraise E", "crash", "exception"),
    ends("deep recursion", "def run(**k): return run()", "exception", told="RecursionError"),
    ends(
        "recursion in C",
        "import sys\nsys.setrecursionlimit(10**9)\ntype('', (), {'__getattr__': lambda s, n: getattr(s, n)})().x",
        "crash",
        "exception",
        "memory",
        "timeout",
    ),
    ends("segfault", "import ctypes\nctypes.string_at(0)", "crash", told="SIGSEGV"),
    ends("abort", "import os\nos.abort()", "crash", told="SIG"),
    ends(
        "an alarm",
        "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.1)\ntime.sleep(5)",
        "crash",
        "no result",
    ),
    ends(
        "a module in place of the standard library's",
        "import sys\nsys.modules.clear()" + RETURN,
        "",
        "exception",
        "crash",
        "import",
    ),
    ends(
        "no standard streams",
        "import os, sys\nsys.stdout = sys.stderr = None\n[os.close(n) for n in (0, 1, 2)]" + RETURN,
        "",
    ),
)

ATTACKS = {attack.name: attack for attack in (*TIME, *MEMORY, *PROCESSES, *OUTSIDE, *RESULTS, *TEXT)}
