"""Changing, shrinking and opening memory that was handed over."""

import errno
import fcntl
import mmap
import os

import kernel
import wire
from stage import Wrong, attack

WRITE, READ_WRITE = 2, 3


def ways(fd, length):
    """Every way to change a segment: what, and how."""

    def reopened(flags, then):
        def run():
            again = os.open(f"/proc/self/fd/{fd}", flags)
            try:
                then(again)
            finally:
                os.close(again)

        return run

    def mapped(protection, then):
        def run():
            address = kernel.mmap(fd, length, protection)
            try:
                then(address)
            finally:
                kernel.munmap(address, length)

        return run

    punch = kernel.PUNCH_HOLE | kernel.KEEP_SIZE
    yield "truncate", lambda: os.ftruncate(fd, 0)
    yield "grow", lambda: os.ftruncate(fd, length + wire.PAGE)
    yield "punch", lambda: kernel.fallocate(fd, punch, 0, wire.PAGE)
    yield "zero", lambda: kernel.fallocate(fd, kernel.ZERO_RANGE, 0, wire.PAGE)
    yield "collapse", lambda: kernel.fallocate(fd, kernel.COLLAPSE_RANGE, 0, wire.PAGE)
    yield "write", lambda: os.write(fd, b"lie")
    yield "pwrite", lambda: os.pwrite(fd, b"lie", 64)
    yield "map writable", mapped(READ_WRITE, lambda address: None)
    yield "mprotect", mapped(1, lambda address: kernel.mprotect(address, length, READ_WRITE))
    yield "remove", mapped(1, lambda address: kernel.madvise(address, length, kernel.MADV_REMOVE))
    yield "add a seal", lambda: fcntl.fcntl(fd, kernel.F_ADD_SEALS, kernel.SEAL_WRITE)
    yield "reopen, pwrite", reopened(os.O_RDWR, lambda again: os.pwrite(again, b"lie", 64))
    yield "reopen, write", reopened(os.O_WRONLY, lambda again: os.write(again, b"lie"))
    yield "reopen, append", reopened(os.O_RDWR | os.O_APPEND, lambda again: os.write(again, b"lie"))
    yield "reopen, cut", reopened(os.O_RDWR | os.O_TRUNC, lambda again: None)
    yield "reopen, truncate", reopened(os.O_RDWR, lambda again: os.ftruncate(again, 0))
    yield "reopen, punch", reopened(os.O_RDWR, lambda again: kernel.fallocate(again, punch, 0, length))
    yield "reopen, map", reopened(os.O_RDWR, lambda again: kernel.mmap(again, length, READ_WRITE))
    yield "truncate by path", lambda: os.truncate(f"/proc/self/fd/{fd}", 0)


def attempt(stage, whose, fd, length):
    for what, how in ways(fd, length):
        try:
            how()
        except OSError as error:
            stage.note(f"kernel: {errno.errorcode[error.errno]}")
        else:
            raise Wrong(f"the kernel allows {what} on {whose}")


@attack
def memory_theirs(stage):
    """The segment and the pool segment that the server gave us."""
    link = stage.link()
    message = b"m" * 20000
    link.write_long(message)
    if link.recv(give_back=False) != message:
        raise Wrong("an echo differs")
    pool_fd, pool = link.pools[link.loan[0]]
    attempt(stage, "the server's ring", link.their_fd, len(link.theirs))
    attempt(stage, "the server's pool", pool_fd, len(pool))
    if not link.echo():
        raise Wrong("the link is no longer alive")


@attack
def memory_ours(stage):
    """Our own segments, sealed and handed over; the writable mapping stays ours."""
    link = stage.link()
    link.write_long(b"m" * 20000)
    for segment in (link.own, link.pool):
        attempt(stage, "our own segment", segment.fd, segment.length)
        try:
            kernel.madvise(segment.address, segment.length, kernel.MADV_REMOVE)
            raise Wrong("the kernel removes pages of a sealed segment")
        except OSError as error:
            stage.note(f"kernel: {errno.errorcode[error.errno]}")
        # Dropping our own mapping's pages changes nothing for the other side.
        segment.bytes.madvise(mmap.MADV_DONTNEED)
    if link.recv() != b"m" * 20000 or not link.echo():
        raise Wrong("the link is no longer alive")
