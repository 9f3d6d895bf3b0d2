"""Who the readers of a topic are.

A reader joins the topic, and then tells its rank over a socket of the writer. The kernel adds the reader's process and
user. The socket has an abstract name, so it is gone with the writer.
"""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("=3i")
_RANK = struct.Struct("=q")

# Readers that may tell their ranks before the writer listens: others of this machine may take places, too.
_BACKLOG = 4096


def tell(address: str, rank: int) -> None:
    """Tells the writer the rank of a reader of this process, which has joined its topic."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(_name(address))
        end.send(_RANK.pack(rank))


def _name(address: str) -> bytes:
    return b"\0" + address.encode() + b"-ranks"


class Ranks:
    """The readers that have joined, and the ranks that they have told, each by process and in their order."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._socket.bind(_name(address))
        self._socket.listen(_BACKLOG)
        self._readers: dict[int | None, list[int]] = {}
        self._ranks: dict[int | None, list[int]] = {}

    def joined(self, reader: int, pid: int | None) -> None:
        """Notes a reader."""
        self._readers.setdefault(pid, []).append(reader)

    def told(self) -> int:
        """Returns how many readers have told their rank: they get each message from here on."""
        while True:
            try:
                end, _ = self._socket.accept()
            except BlockingIOError:
                return sum(map(len, self._ranks.values()))
            with end:
                self._note(end)

    def _note(self, end: socket.socket) -> None:
        credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        # Another user's process tells nothing.
        if uid != os.geteuid():
            return
        # The rank follows the connection at once.
        end.settimeout(1.0)
        try:
            told = end.recv(_RANK.size)
        except OSError:
            return
        if len(told) == _RANK.size:
            self._ranks.setdefault(pid, []).append(_RANK.unpack(told)[0])

    def name(self, reader: int, pid: int | None) -> str:
        """Returns the reader's name for an error."""
        self.told()
        readers, ranks = self._readers.get(pid, []), self._ranks.get(pid, [])
        at = readers.index(reader) if reader in readers else len(ranks)
        return f"rank {ranks[at]} (process {pid})" if at < len(ranks) else f"a reader (process {pid})"
