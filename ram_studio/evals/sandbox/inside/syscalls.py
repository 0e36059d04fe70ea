"""The system calls that a sealed program may make: an allow list, compiled to a seccomp filter.

It lists what CPython needs to compute: memory, its own threads, clocks, reading files that Landlock
allows, and the calls of an asyncio loop within one process. All other calls are refused with EPERM,
including those of future kernels. So a program cannot start a process or program, send a signal,
inspect another process or change its limits, priority or CPU, change a file's name, rights, times,
owner or attributes, or reach the network.

A call with allowed and refused uses has conditions on its arguments. A filter sees numbers, never
the data behind a pointer.

libseccomp (pyseccomp) is not used: it must be installed on every machine, its Python binding has
had no release since 2021, and it would replace only `filter_code`, about twenty lines. Tests check
the numbers below against libseccomp's own tables where it is installed.
"""

import ctypes
import os
import struct
import sys
from collections import namedtuple

EPERM, ENOSYS = 1, 38
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
# Machine: (column of ALLOWED, the kernel's name for the calling convention). 32-bit calls on a
# 64-bit machine have another convention and end the process; x32 calls have their own numbers.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


# Condition: (argument & mask) is one of values; compares the lower or the upper 32 bits.
Only = namedtuple("Only", "argument values mask upper", defaults=(0xFFFFFFFF, False))


def _zero(argument: int) -> tuple[Only, Only]:
    return Only(argument, (0,)), Only(argument, (0,), upper=True)


# The flags of pthread_create in glibc and musl: only a thread of this process.
_THREAD = Only(0, (0x3D0F00, 0x7D0F00))
# WAIT, WAKE and their BITSET forms, private or not. Other operations name a thread by its id.
_FUTEX = Only(1, (0, 1, 9, 10), 0xFFFFFFFF & ~0x180)
# Clocks of the machine and of this process; larger numbers are clocks of other processes.
_CLOCK = Only(0, (0,), 0xFFFFFFF0)
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC. F_SETOWN would send signals.
_FCNTL = Only(1, (0, 1, 2, 3, 1030))
# TCGETS, FIONBIO, FIONCLEX, FIOCLEX.
_IOCTL = Only(1, (0x5401, 0x5421, 0x5450, 0x5451))
_NOT_O_PATH = Only(2, (0,), 0x200000)
_SELF = Only(0, (0,))
_AF_UNIX = Only(0, (1,))

# Name: ((number on x86-64, on AArch64; None where there is none), conditions).
Calls = dict[str, tuple[tuple[int | None, int | None], tuple[Only, ...]]]
ALLOWED: Calls = {
    # Memory.
    "brk": ((12, 214), ()),
    "mmap": ((9, 222), ()),
    "munmap": ((11, 215), ()),
    "mremap": ((25, 216), ()),
    "mprotect": ((10, 226), ()),
    "madvise": ((28, 233), ()),
    # Reading files, and writing to open ones. Landlock decides which may be opened.
    "openat": ((257, 56), (_NOT_O_PATH,)),
    "close": ((3, 57), ()),
    "read": ((0, 63), ()),
    "readv": ((19, 65), ()),
    "pread64": ((17, 67), ()),
    "write": ((1, 64), ()),
    "writev": ((20, 66), ()),
    "lseek": ((8, 62), ()),
    "fstat": ((5, 80), ()),
    "newfstatat": ((262, 79), ()),
    "stat": ((4, None), ()),
    "lstat": ((6, None), ()),
    "getdents64": ((217, 61), ()),
    "getcwd": ((79, 17), ()),
    "fcntl": ((72, 25), (_FCNTL,)),
    "ioctl": ((16, 29), (_IOCTL,)),
    # Threads of this process, and its end.
    "clone": ((56, 220), (_THREAD,)),
    "futex": ((202, 98), (_FUTEX,)),
    "set_robust_list": ((273, 99), ()),
    "rseq": ((334, 293), ()),
    "sched_yield": ((24, 124), ()),
    "exit": ((60, 93), ()),
    "exit_group": ((231, 94), ()),
    # Handling of received signals.
    "rt_sigaction": ((13, 134), ()),
    "rt_sigprocmask": ((14, 135), ()),
    "rt_sigreturn": ((15, 139), ()),
    "sigaltstack": ((131, 132), ()),
    "restart_syscall": ((219, 128), ()),
    # Clocks and random numbers.
    "clock_gettime": ((228, 113), (_CLOCK,)),
    "clock_getres": ((229, 114), (_CLOCK,)),
    "clock_nanosleep": ((230, 115), (_CLOCK,)),
    "nanosleep": ((35, 101), ()),
    "gettimeofday": ((96, 169), ()),
    "time": ((201, None), ()),
    "times": ((100, 153), ()),
    "getrandom": ((318, 278), ()),
    # Information about itself and the machine.
    "getpid": ((39, 172), ()),
    "gettid": ((186, 178), ()),
    "getuid": ((102, 174), ()),
    "geteuid": ((107, 175), ()),
    "getgid": ((104, 176), ()),
    "getegid": ((108, 177), ()),
    "getrusage": ((98, 165), ()),
    "prlimit64": ((302, 261), (_SELF, *_zero(2))),  # reads its own limits, changes none
    "sched_getaffinity": ((204, 123), (_SELF,)),
    "uname": ((63, 160), ()),
    "sysinfo": ((99, 179), ()),
    # An asyncio loop: a socket pair inside the process, and waiting for it.
    "socketpair": ((53, 199), (_AF_UNIX, Only(1, (1,), 0xF))),  # a stream: no address to send to
    "sendto": ((44, 206), _zero(4)),
    "recvfrom": ((45, 207), ()),
    "epoll_create1": ((291, 20), ()),
    "epoll_ctl": ((233, 21), ()),
    "epoll_wait": ((232, None), ()),
    "epoll_pwait": ((281, 22), ()),
    "poll": ((7, None), ()),
    "ppoll": ((271, 73), ()),
    "select": ((23, None), ()),
    "pselect6": ((270, 72), ()),
}
# For a reused process: limits the computing time of each answer.
TIMER: Calls = {"setitimer": ((38, 103), ())}
# With ENOSYS the C library works without these: thread creation falls back from clone3, whose flags
# a filter cannot see, to clone.
ABSENT = {"clone3": (435, 435), "sched_getaffinity": (204, 123)}

_LOAD, _EQUAL, _AND, _GIVE = 0x20, 0x15, 0x54, 0x06
_ALLOW, _KILL_PROCESS, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
Instruction = tuple[int, int, int, int]


def filter_code(machine: str, more: Calls | None = None) -> list[Instruction]:
    """Return the filter for a machine as (operation, jump if true, jump if false, value) lines.

    more: further allowed calls.

    It reads `struct seccomp_data`: the call's number at 0, the convention at 4, argument n at
    16 + 8 n. Raises: KeyError: no such machine in MACHINES.
    """
    column, convention = MACHINES[machine]
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, convention), (_GIVE, 0, 0, _KILL_PROCESS)]
    code += [(_LOAD, 0, 0, 0)]
    for name, (numbers, conditions) in {**ALLOWED, **(more or {})}.items():
        number = numbers[column]
        if number is not None:
            refusal = (_GIVE, 0, 0, _REFUSE | (ENOSYS if name in ABSENT else EPERM))
            block: list[Instruction] = []
            for only in conditions:
                block += [(_LOAD, 0, 0, 16 + 8 * only.argument + 4 * only.upper)]
                block += [(_AND, 0, 0, only.mask)]
                # A matching value jumps over the other values and the refusal.
                for left in range(len(only.values), 0, -1):
                    block += [(_EQUAL, left, 0, only.values[-left])]
                block += [refusal]
            block += [(_GIVE, 0, 0, _ALLOW)]
            code += [(_EQUAL, 0, len(block), number), *block]
    code += [(_EQUAL, 0, 1, ABSENT["clone3"][column]), (_GIVE, 0, 0, _REFUSE | ENOSYS)]
    return [*code, (_GIVE, 0, 0, _REFUSE | EPERM)]


def restrict_calls(libc: ctypes.CDLL, more: Calls) -> bool:
    """Refuse every call not in ALLOWED or more, for good; True if the kernel enforces it."""
    machine = os.uname().machine
    if machine not in MACHINES or sys.maxsize < 2**32:
        return False
    code = filter_code(machine, more)
    instructions = b"".join(struct.pack("=HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("@HxxxxxxP", len(code), ctypes.addressof(buffer))
    return libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0) == 0
