"""Programs that try to get out of the sandbox, and ordinary ones that must not notice it.

What an answer does about its own verdict is in test_sandbox_verdict.py, where code may run at all
in test_sandbox_switch.py.
"""

import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ram_studio.evals.sandbox import run_program, switch

sealed = pytest.mark.skipif(
    not switch.protection().is_sealed, reason="this kernel has no Landlock or no seccomp"
)


@pytest.fixture
def victim():
    """A process of ours that waits; it must wait still when the test is over."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        assert process.poll() is None
        process.communicate(b"\n")
    assert process.returncode == 0


def test_an_ordinary_program_reads_its_input_and_prints():
    result = run_program("name = input()\nprint('hello', name, __name__)", "wörld\n")
    assert (result.outcome, result.output) == ("done", "hello wörld __main__\n")


def test_threads_classes_and_the_standard_library_work():
    source = """
import collections, dataclasses, decimal, fractions, heapq, itertools, json, math, random, re
import statistics, string, threading, typing
@dataclasses.dataclass
class P:
    x: int
worker = threading.Thread(target=lambda: print(P(3)))
worker.start(); worker.join()
exit(0)
"""
    assert run_program(source).output == "P(x=3)\n"


def test_an_asyncio_loop_works_with_helper_threads():
    source = "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n"
    source += "    return await asyncio.to_thread(lambda: 7)\nprint(asyncio.run(main()))"
    assert run_program(source).output == "7\n"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", ""),
        ("import numpy", "ModuleNotFoundError"),
        ("\x00", "SyntaxError"),
    ],
)
def test_a_program_that_fails_says_why(source, error):
    result = run_program(source)
    assert result.outcome == "failed"
    assert error in result.last_line


def test_the_environment_and_the_folder_are_empty(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    result = run_program("import os; print([k for k in os.environ if k != 'LC_CTYPE'])")
    assert result.output == "[]\n"


def test_sleeping_and_spinning_end_at_the_limit():
    for source in ("import time; time.sleep(200)", "while True: pass"):
        start = time.monotonic()
        assert run_program(source, seconds=0.5).outcome == "timeout"
        assert time.monotonic() - start < 100


def test_ignoring_signals_does_not_help():
    source = (
        "import signal, time\nfor s in range(1, 30):\n    try: signal.signal(s, signal.SIG_IGN)"
    )
    source += "\n    except (OSError, ValueError): pass\ntime.sleep(60)"
    assert run_program(source, seconds=0.5).outcome == "timeout"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_cut(stream):
    source = f"import sys\nwhile True: sys.{stream}.write('x' * 1000)"
    result = run_program(source, output_bytes=10_000)
    assert result.outcome == "too much output"
    assert len(result.output) + len(result.errors) <= 20_000


def test_a_memory_bomb_dies_alone():
    result = run_program("x = []\nwhile True: x.append(bytearray(2**24))", seconds=20)
    assert result.outcome in ("failed", "killed")
    assert "MemoryError" in result.errors or result.outcome == "killed"


@sealed
def test_a_memory_bomb_cannot_hide_in_shared_memory():
    source = "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 2**26))"
    assert run_program(source).outcome == "failed"
    assert run_program("import os; os.memfd_create('x')").last_line.startswith("PermissionError")


@sealed
@pytest.mark.parametrize(
    "source",
    [
        "import os\nwhile True: os.fork()",
        "import os; os.posix_spawn('/bin/true', ['true'], {})",
        "import os; os.execv('/bin/true', ['true'])",
        "import subprocess; subprocess.run(['/bin/true'])",
        "import os; assert os.system('true') == 0",
        "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
        # A daemon: fork, new session, fork again.
        "import os, time\nif os.fork() == 0: os.setsid() or os.fork()\ntime.sleep(60)",
        "import ctypes; assert ctypes.CDLL(None).fork() >= 0",
    ],
)
def test_no_program_gets_a_second_process(source):
    assert run_program(source, seconds=20).outcome == "failed"


@sealed
def test_thread_bombs_end_with_the_process():
    source = (
        "import threading as t, time\nwhile True: t.Thread(target=time.sleep, args=(60,)).start()"
    )
    assert run_program(source, seconds=2).outcome in ("failed", "timeout", "killed")


@sealed
@pytest.mark.parametrize("place", ["home", "relative", "symlink", "proc", "native"])
def test_files_outside_cannot_be_read(place, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    native = f"import ctypes; c = ctypes.CDLL(None); f = c.open({str(secret).encode()!r}, 0); "
    source = {
        "home": f"print(open({str(secret)!r}).read())",
        "relative": f"print(open('../' * 40 + {str(secret)!r}).read())",
        "symlink": f"import os; os.symlink({str(secret)!r}, 'link'); print(open('link').read())",
        "proc": f"print(open('/proc/self/root' + {str(secret)!r}).read())",
        "native": native + "b = ctypes.create_string_buffer(99); c.read(f, b, 99); print(b.value)",
    }[place]
    result = run_program(source)
    assert "the secret" not in result.output + result.errors


@sealed
@pytest.mark.parametrize(
    "source",
    [
        "import os; print(os.listdir(os.path.expanduser('~')))",
        "import os; print(os.listdir('/'))",
        "print(open('/etc/passwd').read())",
        "import os; print(os.listdir('/proc'))",
        "import os; print(open(f'/proc/{os.getppid()}/environ', 'rb').read())",
    ],
)
def test_home_system_and_other_processes_cannot_be_looked_at(source):
    result = run_program(source)
    assert result.outcome == "failed"
    assert result.output == ""
    assert "Error" in result.last_line


@sealed
def test_nothing_can_be_written_anywhere(tmp_path):
    target = tmp_path / "made"
    for source in (
        f"open({str(target)!r}, 'w')",
        f"import os; os.mkdir({str(target)!r})",
        f"import os; os.symlink('/', {str(target)!r})",
        "open('here.txt', 'w').write('x' * 10**9)",
        "open('/dev/shm/x', 'w')",
        "import tempfile; tempfile.TemporaryFile()",
    ):
        assert run_program(source).outcome == "failed"
    assert not target.exists()


@sealed
def test_a_file_of_ours_cannot_be_changed(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    for call in ("remove", "truncate", "rename"):
        more = {"truncate": ", 0", "rename": ", 'x'"}.get(call, "")
        assert run_program(f"import os; os.{call}({str(kept)!r}{more})").outcome == "failed"
    assert kept.read_text() == "as it was"


@sealed
@pytest.mark.parametrize(
    "call",
    [
        "socket.create_connection(('127.0.0.1', PORT), 2)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
        "socket.socket(socket.AF_UNIX).connect('/tmp/x')",
        "socket.socketpair()[0].connect(('127.0.0.1', PORT))",
        "__import__('urllib.request').request.urlopen('http://127.0.0.1:PORT', timeout=2)",
    ],
)
def test_no_socket_leads_out(call):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        call = call.replace("PORT", str(server.getsockname()[1]))
        result = run_program(f"import socket; {call}")
        assert result.outcome == "failed"
        with pytest.raises(TimeoutError):
            server.accept()


REFUSED = """import ctypes, fcntl, os, resource, signal, time
def refused(): raise PermissionError
"""
REACHING = {
    "a signal": "os.kill(PID, 9)",
    "a signal to a thread": "ctypes.CDLL(None).tgkill(PID, PID, 9) and refused()",
    "a signal through a descriptor": "signal.pidfd_send_signal(os.pidfd_open(PID), 9)",
    "a signal when a descriptor is ready": "fcntl.fcntl(1, fcntl.F_SETOWN, PID)",
    "limits of processor time": "resource.prlimit(PID, resource.RLIMIT_CPU, (1, 1))",
    "limits of files": "resource.prlimit(PID, resource.RLIMIT_NOFILE, (3, 3))",
    "reading limits": "resource.prlimit(PID, resource.RLIMIT_NOFILE)",
    "priority": "os.setpriority(os.PRIO_PROCESS, PID, 19)",
    "priority for input and output": "ctypes.CDLL(None).syscall(251, 1, PID, 24576) and refused()",
    "place": "os.sched_setaffinity(PID, [0])",
    "scheduler": "os.sched_setscheduler(PID, os.SCHED_IDLE, os.sched_param(0))",
    "memory": "open(f'/proc/{PID}/mem', 'r+b')",
    "memory by call": "ctypes.CDLL(None).process_vm_readv(PID, 0, 0, 0, 0, 0) and refused()",
    "tracing": "ctypes.CDLL(None).ptrace(16, PID, 0, 0) and refused()",
    "its descriptors": "ctypes.CDLL(None).syscall(438, 3, 0, 0) and refused()",
    "its clock": "time.clock_gettime((~PID << 3) | 2)",
    "its group": "os.setpgid(PID, PID)",
}


@sealed
@pytest.mark.parametrize("call", REACHING.values(), ids=REACHING)
def test_no_call_reaches_another_process(call, victim):
    def state():
        limits = [resource.prlimit(victim.pid, kind) for kind in range(10)]
        return limits, os.sched_getaffinity(victim.pid), os.getpriority(0, victim.pid)

    before = state()
    source = (
        "import ctypes, fcntl, os, resource, signal, time\ndef refused(): raise PermissionError\n"
    )
    result = run_program(source + call.replace("PID", str(victim.pid)))
    assert (result.outcome, result.last_line[:15]) == ("failed", "PermissionError")
    assert state() == before


METADATA = (
    "chmod(PATH, 0o777)",
    "chown(PATH, 65534, 65534)",
    "lchown(PATH, 65534, 65534)",
    "utime(PATH, (0, 0))",
    "setxattr(PATH, 'user.x', b'x')",
    "listxattr(PATH)",
    "truncate(PATH, 0)",
    "rename(PATH, PATH + '2')",
    "link(PATH, PATH + '2')",
    "remove(PATH)",
    "readlink('/proc/self/exe')",
    "statvfs(PATH)",
    "open(PATH, 0o10000000)",
    "mkfifo(PATH + '2')",
)


@sealed
@pytest.mark.parametrize("call", METADATA)
def test_no_call_changes_a_file_or_what_is_said_of_it(call, tmp_path):
    tmp_path.chmod(0o777)
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    kept.chmod(0o666)
    before = kept.stat()
    assert run_program(f"import os; os.{call.replace('PATH', repr(str(kept)))}").outcome == "failed"
    after = kept.stat()
    assert (before[:7], before.st_mtime_ns) == (after[:7], after.st_mtime_ns)
    assert (kept.read_text(), list(tmp_path.iterdir())) == ("as it was", [kept])


@sealed
@pytest.mark.parametrize(
    "source",
    [
        "os.setuid(0)",
        "os.setresuid(0, 0, 0)",
        "os.setgroups([0])",
        "os.setsid()",
        "os.chroot('/')",
        "ctypes.CDLL(None).unshare(0) and refused()",
        "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) and refused()",
        "os.eventfd(0)",
        "os.memfd_create('x')",
        "__import__('multiprocessing.shared_memory').shared_memory.SharedMemory('x', True, 9)",
        "ctypes.CDLL(None).syscall(425, 8, 0) and refused()",  # io_uring
        "ctypes.CDLL(None).prlimit(0, 7, bytes([3, *[0] * 7] * 2), 0) and refused()",
        "fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)",
        "fcntl.flock(1, fcntl.LOCK_EX)",
        "__import__('signal').raise_signal(9)",
    ],
)
def test_no_call_gets_new_rights_or_means(source):
    assert run_program(REFUSED + source).last_line.startswith("PermissionError")


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
    package = Path(os.__file__).parent / "site-packages"
    installed = next((path for path in package.rglob("*") if path.is_file()), None)
    assert installed, "this Python has nothing installed; look at another one"
    result = run_program(f"print(open({str(installed)!r}, 'rb').read())")
    assert (result.output, result.last_line[:15]) == ("", "PermissionError")


@sealed
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give up")
def test_root_becomes_another_user():
    assert run_program("import os; print(os.getuid(), os.geteuid(), os.getgid())").output == (
        "65534 65534 65534\n"
    )


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_program("import time; time.sleep(9)", seconds=0.2)
    run_program("print(1)")
    assert list(tmp_path.iterdir()) == []
