"""System calls that Python's standard library does not have, by ctypes. x86-64."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.syscall.restype = ctypes.c_long

PUNCH_HOLE, KEEP_SIZE, ZERO_RANGE, COLLAPSE_RANGE = 2, 1, 16, 8
MADV_REMOVE = 9
MFD_CLOEXEC, MFD_ALLOW_SEALING, MFD_HUGETLB = 1, 2, 4
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE, SEAL_FUTURE_WRITE, SEAL_EXEC = 1, 2, 4, 8, 16, 32
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000


def fail(done):
    """Raises what the last call left in errno, if it failed."""
    if done in (-1, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done


def call(number, *arguments):
    """A system call, with each argument as a whole register."""
    return fail(libc.syscall(ctypes.c_long(number), *[ctypes.c_long(word) for word in arguments]))


def fallocate(fd, mode, offset, length):
    call(285, fd, mode, offset, length)


def mmap(fd, length, protection, flags=1):
    """The address of a mapping, MAP_SHARED unless told otherwise."""
    return fail(libc.mmap(None, length, protection, flags, fd, 0))


def munmap(address, length):
    call(11, address, length)


def mprotect(address, length, protection):
    call(10, address, length, protection)


def madvise(address, length, advice):
    call(28, address, length, advice)


def futex_wake(address):
    """Wakes everybody who sleeps on the word, in whatever process."""
    call(202, address, 1, 0x7FFFFFFF, 0, 0, 0)


def memfd_secret():
    return call(447, 0)


def unshare(flags):
    call(272, flags)


def dumpable():
    """After a change of ids: /proc/self is one's own again."""
    call(157, 4, 1, 0, 0, 0)


def die_with_parent():
    call(157, 1, 9, 0, 0, 0)
