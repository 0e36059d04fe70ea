"""The inside of the sandbox: a fresh interpreter gives up its rights, then runs one program.

Run as `python -I -S -B -X utf8 child.py SETTINGS PROGRAM`, SETTINGS being JSON with "memory_bytes",
"cpu_seconds", "file_bytes", "open_files" and "must_seal". It imports nothing of this package. With
PROGRAM "-" it prints which layers hold and ends.

Layers, each tried on its own; the kernel ones need no privileges:
- resource limits (address space, CPU time, file size, open files, no core dump);
- an own user, network and IPC namespace (unshare), so that there is no network interface;
- no new privileges, every capability dropped, death together with the parent;
- Landlock: only the interpreter's library and system libraries can be read, nothing can be
  written or made anywhere, no TCP, no signals to other processes;
- seccomp: no sockets, no new processes (threads are fine), no execve, no signals, no tracing, no
  mounts, no shared-memory objects, no io_uring;
- where Landlock or seccomp is missing, a Python audit hook that refuses the same from Python code
  (native code gets around it).
"""

import ctypes
import json
import os
import platform
import struct
import sys

CLONE_NEWUSER, CLONE_NEWIPC, CLONE_NEWNET = 0x10000000, 0x08000000, 0x40000000
CLONE_THREAD = 0x00010000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE = 1, 22, 38, 4
SIGKILL = 9
EPERM, ENOSYS = 1, 38

# Name: (x86-64, AArch64); None where the architecture has no such call.
DENIED = {
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "bind": (49, 200),
    "listen": (50, 201),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
CLONE, CLONE3 = (56, 220), 435
AUDIT_ARCH = (0xC000003E, 0xC00000B7)
X32_BIT = 0x40000000

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
READ_FILE, READ_DIR, WRITE_FILE = 1 << 2, 1 << 3, 1 << 1


def set_limits(settings: dict) -> None:
    """Lower the resource limits, hard ones included."""
    import resource

    for name, value in (
        ("RLIMIT_AS", settings["memory_bytes"]),
        ("RLIMIT_CPU", settings["cpu_seconds"]),
        ("RLIMIT_FSIZE", settings["file_bytes"]),
        ("RLIMIT_NOFILE", settings["open_files"]),
        ("RLIMIT_CORE", 0),
    ):
        if hasattr(resource, name):
            limit = getattr(resource, name)
            _, hard = resource.getrlimit(limit)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (value, value))


def unshare(libc: ctypes.CDLL) -> bool:
    """Leave the network; True if the kernel allowed it."""
    return libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC) == 0


def drop_privileges(libc: ctypes.CDLL) -> bool:
    """Give up all capabilities and the way to new ones; die with the parent."""
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    header = struct.pack("=Ii", 0x20080522, 0)
    libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    return True


def readable_paths() -> list[str]:
    """Return what a Python program needs to read: its library, shared libraries, time zones."""
    library = os.path.dirname(os.path.realpath(os.__file__))
    return [
        library,
        *(os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")),
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/etc/ld.so.cache",
        "/usr/share/zoneinfo",
        "/dev/null",
        "/dev/urandom",
    ]


def landlock(libc: ctypes.CDLL) -> bool:
    """Let files be read below `readable_paths` only and written nowhere; True if in force."""
    syscall = libc.syscall
    syscall.restype = ctypes.c_long
    version = syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    # Every right the kernel knows about is handled, hence refused unless a rule below grants it.
    rights = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    attributes = struct.pack("=Q", rights)
    attributes += struct.pack("=Q", 3) if version >= 4 else b""
    attributes += struct.pack("=Q", 3) if version >= 6 else b""
    rules = syscall(
        LANDLOCK_CREATE_RULESET,
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)),
        0,
    )
    if rules < 0:
        return False
    for path in readable_paths():
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = READ_FILE | READ_DIR if os.path.isdir(path) else READ_FILE
        if path == "/dev/null":
            allowed |= WRITE_FILE
        rule = struct.pack("=Qi", allowed, place)
        syscall(LANDLOCK_ADD_RULE, rules, 1, ctypes.c_char_p(rule), 0)
        os.close(place)
    done = syscall(LANDLOCK_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return done


def seccomp(libc: ctypes.CDLL) -> bool:
    """Refuse the calls in DENIED with EPERM, new processes too; True if in force."""
    machine = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    if machine is None or sys.maxsize < 2**32:
        return False
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050000
    code = [(load, 0, 0, 4), (equal, 1, 0, AUDIT_ARCH[machine]), (give, 0, 0, kill)]
    code += [(load, 0, 0, 0)]
    if machine == 0:
        code += [(at_least, 0, 1, X32_BIT), (give, 0, 0, refuse | EPERM)]
    for numbers in DENIED.values():
        if numbers[machine] is not None:
            code += [(equal, 0, 1, numbers[machine]), (give, 0, 0, refuse | EPERM)]
    # The C library falls back from clone3, whose flags a filter cannot see, to clone.
    code += [(equal, 0, 1, CLONE3), (give, 0, 0, refuse | ENOSYS)]
    code += [(equal, 0, 3, CLONE[machine]), (load, 0, 0, 16)]
    code += [(any_bit, 1, 0, CLONE_THREAD), (give, 0, 0, refuse | EPERM), (give, 0, 0, allow)]
    instructions = b"".join(struct.pack("=HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("@HxxxxxxP", len(code), ctypes.addressof(buffer))
    return libc.prctl(PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0) == 0


def audit() -> None:
    """Refuse network, processes and foreign files to Python code (native code is not seen)."""
    roots = tuple(os.path.join(path, "") for path in readable_paths())
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    closed = ("socket.", "subprocess.", "ctypes.", "shutil.", "tempfile.", "os.exec", "os.spawn")
    single = {
        *("os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.kill", "os.killpg"),
        *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link"),
        *("os.truncate", "os.chmod", "os.chown", "os.utime", "os.putenv", "pty.spawn"),
    }
    listing = {"os.listdir", "os.scandir", "os.chdir", "glob.glob"}
    normal = os.path.realpath

    def hook(event: str, arguments: tuple) -> None:
        if event in single or event.startswith(closed):
            raise PermissionError(EPERM, f"the sandbox does not allow {event}")
        if event == "open" or event in listing:
            path = arguments[0]
            if isinstance(path, int):
                return
            path = normal(os.fsdecode(path)) if path is not None else os.getcwd()
            inside = path.startswith(roots) or path in readable_paths()
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & writing
            if writes or not inside:
                raise PermissionError(EPERM, f"the sandbox does not allow {event} of {path}")

    sys.addaudithook(hook)


def seal(settings: dict) -> dict:
    """Give up every right that can be given up; return which layers hold."""
    set_limits(settings)
    held = {"namespace": False, "privileges": False, "landlock": False, "seccomp": False}
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        held["namespace"] = unshare(libc)
        held["privileges"] = drop_privileges(libc)
        held["landlock"] = held["privileges"] and landlock(libc)
        held["seccomp"] = held["privileges"] and seccomp(libc)
    if not (held["landlock"] and held["seccomp"]):
        if hasattr(os, "fork"):
            import resource

            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        audit()
    return held


def main() -> None:
    """Seal this process and run the program as `__main__`."""
    settings = json.loads(sys.argv[1])
    program = sys.argv[2]
    if program == "-":
        print(json.dumps(seal(settings)))
        return
    with open(program, encoding="utf-8") as file:
        source = file.read()
    held = seal(settings)
    if settings["must_seal"] and not (held["landlock"] and held["seccomp"]):
        sys.exit("sandbox: the kernel did not seal this process; nothing was run")
    import builtins

    builtins.exit = builtins.quit = sys.exit
    sys.argv = ["program.py"]
    main_module = type(sys)("__main__")
    main_module.__builtins__ = builtins
    sys.modules["__main__"] = main_module
    exec(compile(source, "program.py", "exec"), main_module.__dict__)


if __name__ == "__main__":
    main()
