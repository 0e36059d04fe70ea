"""The sandbox's allow list of system calls: against the kernel, every number, and libseccomp."""

import ctypes
import ctypes.util
import platform

import pytest

from ram_studio.evals.sandbox import is_sealed, run_program
from ram_studio.evals.sandbox.inside.syscalls import ABSENT, ALLOWED, MACHINES, filter_code


@pytest.mark.skipif(not is_sealed(), reason="no Landlock or seccomp")
def test_every_call_that_is_not_listed_is_refused_by_this_kernel():
    # With -1 for every argument: where the kernel were asked, it would mostly say EBADF or EFAULT.
    source = """
import ctypes, os, sys
call = ctypes.CDLL(None, use_errno=True).syscall
for number in NUMBERS:
    ctypes.set_errno(0)
    given = call(number, *[ctypes.c_long(-1)] * 6)
    if given != -1 or ctypes.get_errno() not in (1, 38):
        print(number, given, ctypes.get_errno())
print("all tried")
"""
    column = MACHINES[platform.machine()][0]
    listed = {numbers[column] for numbers, _ in ALLOWED.values()}
    # The kernel's own probes pass every filter and end a program that calls them itself.
    probes = {335, 336} if platform.machine() == "x86_64" else set()
    others = [number for number in range(600) if number not in listed | probes]
    assert run_program(source.replace("NUMBERS", repr(others))).output == "all tried\n"


def given_by(code, call, arguments):
    """Interpret a filter as the kernel does: what it gives for one call."""
    words = {0: call, 4: code[1][3]}
    for index, argument in enumerate(arguments):
        words |= {16 + 8 * index: argument & 0xFFFFFFFF, 20 + 8 * index: argument >> 32}
    at = value = 0
    while True:
        operation, yes, no, constant = code[at]
        at += 1
        if operation == 0x06:
            return constant
        if operation == 0x20:
            value = words[constant]
        elif operation == 0x54:
            value &= constant
        else:
            at += yes if value == constant else no


ALLOW = 0x7FFF0000
ALL_BITS = [2**64 - 1] * 6


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_lets_only_the_listed_calls_through(machine):
    code = filter_code(machine)
    listed = {numbers[MACHINES[machine][0]]: only for numbers, only in ALLOWED.values()}
    for call in [*range(1024), *range(0x40000000, 0x40000400), 2**32 - 1]:
        is_allowed = given_by(code, call, ALL_BITS) == ALLOW
        assert is_allowed == (call in listed and not listed[call]), call


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("call", "passing", "refused"), [
    # Refused last: the lower half of the pointer is 0.
    ("prlimit64", [[0, 7, 0, 2**40]], [[1, 7, 0, 2**40], [0, 7, 2**40, 0]]),
    ("clone", [[0x3D0F00]], [[0x3D0F00 | 0x10000000], [17]]),
    ("futex", [[0, 128], [0, 9 | 128 | 256]], [[0, 6]]),  # LOCK_PI names its owner by number
    ("fcntl", [[1, 3]], [[1, 8]]),  # F_SETOWN
    ("ioctl", [[1, 0x5401]], [[1, 0x5412]]),  # TIOCSTI types into a terminal
    ("clock_gettime", [[1]], [[2**32 - 8 * 77 - 6]]),
    ("socketpair", [[1, 1 | 0x80000]], [[2, 1], [1, 2]]),
    ("sendto", [[3, 2**40, 5, 0, 0, 0]], [[3, 2**40, 5, 0, 2**40, 16]]),
    ("openat", [[0, 2**40, 0o2000000]], [[0, 2**40, 0o10000000]]),
    ("sched_getaffinity", [[0]], [[1]]),
])  # fmt: skip
def test_calls_that_do_both_are_judged_by_their_arguments(machine, call, passing, refused):
    number = ALLOWED[call][0][MACHINES[machine][0]]
    for given in (*passing, *refused):
        found = given_by(filter_code(machine), number, [*given, *[0] * 6][:6])
        assert (found == ALLOW) == (given in passing), given


libseccomp = ctypes.util.find_library("seccomp")


@pytest.mark.skipif(not libseccomp, reason="libseccomp is not installed")
@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_libseccomp(machine):
    resolve = ctypes.CDLL(libseccomp).seccomp_syscall_resolve_name_arch
    column, convention = MACHINES[machine]
    named = {name: numbers for name, (numbers, _) in ALLOWED.items()}
    for name, numbers in (named | ABSENT).items():
        found = resolve(ctypes.c_uint32(convention), name.encode())
        assert (found if found >= 0 else None) == numbers[column], name
