"""Programs that try to get out of the sandbox, and ordinary ones that must not notice it.

What an answer does about its own verdict is in test_sandbox_verdict.py, where code may run at all
in test_sandbox_switch.py.
"""

import os
import resource
import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from ram_studio.evals.sandbox import Limits, is_sealed, run_program

sealed = pytest.mark.skipif(not is_sealed(), reason="this kernel has no Landlock or no seccomp")


TRYING = """import ctypes, fcntl, os, resource, signal, socket, time
def refused(): raise PermissionError
for attempt in ATTEMPTS:
    try: exec(attempt)
    except ERROR: continue
    print("not refused:", attempt)
print("all tried")
"""


def not_refused(attempts, error=OSError):
    """Return what one program, which makes each attempt in turn, says of those not refused.

    An attempt that goes wrong in another way ends the program, and that it tried all is not said.
    """
    source = TRYING.replace("ATTEMPTS", repr(list(attempts))).replace("ERROR", error.__name__)
    result = run_program(source, limits=Limits(seconds=20))
    return result.output.removesuffix("all tried\n") if "all tried" in result.output else result


def test_what_is_not_refused_is_told():
    assert not_refused(["open('/no/file')", "1 + 1"]) == "not refused: 1 + 1\n"
    assert not_refused(["1 / 0"]).outcome == "failed"


LIBRARY = """
import collections, dataclasses, decimal, fractions, heapq, itertools, json, math, random, re
import statistics, string, threading, typing
@dataclasses.dataclass
class P:
    x: int
worker = threading.Thread(target=lambda: print(P(3)))
worker.start(); worker.join()
exit(0)
"""
HELPERS = """import asyncio
async def main():
    await asyncio.sleep(0.01)
    return await asyncio.to_thread(lambda: 7)
print(asyncio.run(main()))"""


@pytest.mark.parametrize(("source", "output"), [
    ("name = input()\nprint('hello', name, __name__)", "hello wörld __main__\n"),
    (LIBRARY, "P(x=3)\n"), (HELPERS, "7\n"),
    ("import os; print([k for k in os.environ if k != 'LC_CTYPE'])", "[]\n"),
])  # fmt: skip
def test_an_ordinary_program_sees_only_an_empty_environment(source, output, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    result = run_program(source, "wörld\n")
    assert (result.outcome, result.output) == ("done", output)


@pytest.mark.parametrize(("source", "error"), [
    ("1 / 0", "ZeroDivisionError: division by zero"),
    ("def f(:", "SyntaxError"), ("\x00", "SyntaxError"),
    ("raise SystemExit(3)", ""), ("import numpy", "ModuleNotFoundError"),
])  # fmt: skip
def test_a_program_that_fails_says_why(source, error):
    result = run_program(source)
    assert result.outcome == "failed"
    assert error in result.last_line


IGNORING = """import signal, time
for s in range(1, 30):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
time.sleep(200)
"""


QUICK, LITTLE = Limits(seconds=0.3), Limits(output_bytes=10_000)
BOMB = "x = []\nwhile True: x.append({})"
ENDLESS = "import sys\nwhile True: sys.{}.write('x' * 1000)"
THREADS = "import threading as t, time\nwhile True: t.Thread(target=time.sleep, args=(60,)).start()"


@pytest.mark.parametrize(("source", "limits", "outcomes"), [
    *((source, QUICK, "timeout") for source in (
        "import time; time.sleep(200)", "while True: pass", IGNORING)),
    *((ENDLESS.format(stream), LITTLE, "too much output") for stream in ("stdout", "stderr")),
    (BOMB.format("bytearray(2**24)"), Limits(20, memory_bytes=2**28), "failed, killed"),
    pytest.param("import mmap\n" + BOMB.format("mmap.mmap(-1, 2**26)"), Limits(), "failed",
                 marks=sealed),
    pytest.param(THREADS, Limits(seconds=0.8), "failed, timeout, killed", marks=sealed),
])  # fmt: skip
def test_what_has_no_end_is_ended_at_the_limit_and_dies_alone(source, limits, outcomes):
    result = run_program(source, limits=limits)
    assert result.outcome in outcomes.split(", ")
    assert len(result.output) + len(result.errors) <= 2 * limits.output_bytes
    if "bytearray" in source:
        assert "MemoryError" in result.errors or result.outcome == "killed"


def test_the_usual_limits_hold_and_cannot_be_raised():
    limits = {"AS": 2**29, "CPU": 6, "FSIZE": 2**16, "NOFILE": 32, "CORE": 0}
    source = "import resource as r\nfor n in NAMES: print(r.getrlimit(getattr(r, 'RLIMIT_' + n)))"
    source = source.replace("NAMES", repr(list(limits)))
    assert run_program(source).output.splitlines() == [f"({n}, {n})" for n in limits.values()]


ATTEMPTS = {
    "a second process": (
        "while True: os.fork()", "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])", "import subprocess; subprocess.run(['/bin/true'])",
        "os.system('true') and refused()", "ctypes.CDLL(None).fork() < 0 and refused()",
        "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
        # A daemon: fork, new session, fork again.
        "if os.fork() == 0: os.setsid() or os.fork()\ntime.sleep(60)",
    ),
    "reading outside": (
        "print(open(SECRET).read())", "print(open('../' * 40 + SECRET).read())",
        "os.symlink(SECRET, 'link'); print(open('link').read())",
        "print(open('/proc/self/root' + SECRET).read())", "print(open('/etc/passwd').read())",
        "ctypes.CDLL(None).open(SECRET.encode(), 0) < 0 and refused()",
        "print(os.listdir(os.path.expanduser('~')))", "print(os.listdir('/'))",
        "print(os.listdir('/proc'))",
        "print(open(f'/proc/{os.getppid()}/environ', 'rb').read())",
    ),
    "writing anywhere": (
        "open(TARGET, 'w')", "os.mkdir(TARGET)", "os.symlink('/', TARGET)",
        "open('here.txt', 'w').write('x' * 10**9)", "open('/dev/shm/x', 'w')",
        "import tempfile; tempfile.TemporaryFile()",
    ),
}  # fmt: skip


@sealed
@pytest.mark.parametrize("attempts", ATTEMPTS.values(), ids=ATTEMPTS)
def test_nobody_gets_a_second_process_or_a_file(attempts, tmp_path):
    secret, target = tmp_path / "secret.txt", tmp_path / "made"
    secret.write_text("the secret")
    given = {"SECRET": repr(str(secret)), "TARGET": repr(str(target))}
    for word, path in given.items():
        attempts = [attempt.replace(word, path) for attempt in attempts]
    assert not not_refused(attempts)
    assert not target.exists()


@sealed
def test_no_socket_leads_out():
    attempts = [
        "socket.create_connection(('127.0.0.1', PORT), 2)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
        "socket.socket(socket.AF_UNIX).connect('/tmp/x')",
        "socket.socketpair()[0].connect('/tmp/x')",
        "__import__('urllib.request').request.urlopen('http://127.0.0.1:PORT', timeout=2)",
    ]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        port = str(server.getsockname()[1])
        assert not not_refused(attempt.replace("PORT", port) for attempt in attempts)
        with pytest.raises(TimeoutError):
            server.accept()


REACHING = (
    "os.kill(PID, 9)", "ctypes.CDLL(None).tgkill(PID, PID, 9) and refused()",
    "signal.pidfd_send_signal(os.pidfd_open(PID), 9)", "fcntl.fcntl(1, fcntl.F_SETOWN, PID)",
    "resource.prlimit(PID, resource.RLIMIT_CPU, (1, 1))",
    "resource.prlimit(PID, resource.RLIMIT_NOFILE, (3, 3))",
    "resource.prlimit(PID, resource.RLIMIT_NOFILE)", "os.setpriority(os.PRIO_PROCESS, PID, 19)",
    "ctypes.CDLL(None).syscall(251, 1, PID, 24576) and refused()", "os.setpgid(PID, PID)",
    "os.sched_setaffinity(PID, [0])", "open(f'/proc/{PID}/mem', 'r+b')",
    "os.sched_setscheduler(PID, os.SCHED_IDLE, os.sched_param(0))",
    "ctypes.CDLL(None).process_vm_readv(PID, 0, 0, 0, 0, 0) and refused()",
    "ctypes.CDLL(None).ptrace(16, PID, 0, 0) and refused()",
    "ctypes.CDLL(None).syscall(438, 3, 0, 0) and refused()", "time.clock_gettime((~PID << 3) | 2)",
)  # fmt: skip


@sealed
def test_no_call_reaches_another_process():
    def state():
        limits = [resource.prlimit(victim.pid, kind) for kind in range(10)]
        return limits, os.sched_getaffinity(victim.pid), os.getpriority(0, victim.pid)

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        before = state()
        calls = (call.replace("PID", str(victim.pid)) for call in REACHING)
        assert not not_refused(calls, PermissionError)
        assert (state(), victim.poll()) == (before, None)
        victim.communicate(b"\n")
    assert victim.returncode == 0


METADATA = (
    "chmod(PATH, 0o777)", "chown(PATH, 65534, 65534)", "lchown(PATH, 65534, 65534)",
    "utime(PATH, (0, 0))", "setxattr(PATH, 'user.x', b'x')", "listxattr(PATH)",
    "truncate(PATH, 0)", "rename(PATH, PATH + '2')", "link(PATH, PATH + '2')", "remove(PATH)",
    "readlink('/proc/self/exe')", "statvfs(PATH)", "open(PATH, 0o10000000)", "mkfifo(PATH + '2')",
)  # fmt: skip


@sealed
def test_no_call_changes_a_file_or_what_is_said_of_it(tmp_path):
    tmp_path.chmod(0o777)
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    kept.chmod(0o666)
    before = kept.stat()
    assert not not_refused(f"os.{call.replace('PATH', repr(str(kept)))}" for call in METADATA)
    after = kept.stat()
    assert (before[:7], before.st_mtime_ns) == (after[:7], after.st_mtime_ns)
    assert (kept.read_text(), list(tmp_path.iterdir())) == ("as it was", [kept])


@sealed
def test_no_call_gets_new_rights_or_means():
    calls = [
        *("os.setuid(0)", "os.setresuid(0, 0, 0)", "os.setgroups([0])", "os.setsid()"),
        *("os.chroot('/')", "os.eventfd(0)", "os.memfd_create('x')", "signal.raise_signal(9)"),
        "ctypes.CDLL(None).unshare(0) and refused()",
        "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) and refused()",
        "__import__('multiprocessing.shared_memory').shared_memory.SharedMemory('x', True, 9)",
        "ctypes.CDLL(None).syscall(425, 8, 0) and refused()",  # io_uring
        "ctypes.CDLL(None).prlimit(0, 7, bytes([3, *[0] * 7] * 2), 0) and refused()",
        "fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)",
        "fcntl.flock(1, fcntl.LOCK_EX)",
    ]
    assert not not_refused(calls, PermissionError)


@sealed
def test_nothing_of_ours_is_open_in_it(tmp_path):
    with open(tmp_path / "secret", "w") as file, socket.create_server(("127.0.0.1", 0)) as server:
        os.set_inheritable(file.fileno(), True)
        os.set_inheritable(server.fileno(), True)
        source = (
            "import os\nfor n in range(99):\n  try: os.fstat(n); print(n)\n  except OSError: pass"
        )
        assert run_program(source).output.split() == ["0", "1", "2"]


@sealed
def test_packages_beside_the_library_cannot_be_read():
    # Where this package may lie, with the answers to its own questions.
    installed = [Path(pytest.__file__)]
    # Inside the library's own folder, where Python's packages are not Debian's.
    inside = (Path(os.__file__).parent / "site-packages").rglob("*")
    installed += islice((path for path in inside if path.is_file()), 1)
    for path in installed:
        result = run_program(f"print(open({str(path)!r}, 'rb').read())")
        assert (result.output, result.last_line[:15]) == ("", "PermissionError")


@sealed
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give up")
def test_root_becomes_another_user():
    assert run_program("import os; print(os.getuid(), os.geteuid(), os.getgid())").output == (
        "65534 65534 65534\n"
    )


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_program("import time; time.sleep(9)", limits=Limits(seconds=0.2))
    run_program("print(1)")
    assert list(tmp_path.iterdir()) == []
