"""Many processes at once, some of which are killed."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys

import slipring
import slipring.pickle
from conftest import LONG

PROCESSES = 64
ROUNDS = 50

PROGRAM = f"""
import sys, slipring
with slipring.connect(sys.argv[1], retry={LONG}, timeout={LONG}) as link:
    for number in range({ROUNDS}):
        link.send(number.to_bytes(4, "big"), timeout={LONG})
        assert link.recv({LONG}) == number.to_bytes(4, "big")
        tensor = link.empty(5000)
        memoryview(tensor)[:4] = number.to_bytes(4, "big")
        link.send_tensor(tensor, timeout={LONG})
"""


def test_64_processes_and_their_deaths(name: str) -> None:
    context = slipring.Context()
    chance = random.Random(7)
    with slipring.listen(name, context=context) as listener:
        children = [subprocess.Popen([sys.executable, "-c", PROGRAM, name]) for _ in range(PROCESSES)]
        links = {}
        try:
            for _ in children:
                link = listener.accept(LONG)
                assert link.peer.pid is not None
                links[link.peer.pid] = link
            doomed = {child.pid: chance.randrange(ROUNDS) for child in children[::4]}
            done: dict[int, int] = {}
            for pid, link in links.items():
                number = -1
                try:
                    for number in range(ROUNDS):
                        if doomed.get(pid) == number:
                            os.kill(pid, 9)
                        message = link.recv(LONG)
                        assert message == number.to_bytes(4, "big")
                        link.send(message, timeout=LONG)
                        tensor = link.recv_tensor(LONG)
                        assert bytes(memoryview(tensor)[:4]) == number.to_bytes(4, "big")
                        del tensor
                    done[pid] = ROUNDS
                except slipring.PeerDied:
                    done[pid] = number
            for child in children:
                child.wait(LONG)
                if child.pid in doomed:
                    assert done[child.pid] >= doomed[child.pid]
                else:
                    assert (done[child.pid], child.returncode) == (ROUNDS, 0)
            gc.collect()
            assert all(link.stats()["loans_held"] == 0 for link in links.values())
        finally:
            for child in children:
                child.kill()
                child.wait()


def test_objects_go_by_pickle_where_that_is_asked_for() -> None:
    ours, theirs = slipring.pair()
    program = f"""
import slipring, slipring.pickle
with slipring.Endpoint({theirs.fileno()}, {theirs.role!r}).open() as link:
    slipring.pickle.send(link, slipring.pickle.recv(link)[::-1])
"""
    child = subprocess.Popen([sys.executable, "-c", program], pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        with ours.open(timeout=LONG) as link:
            slipring.pickle.send(link, [1, {"a": (2.5, None)}])
            assert slipring.pickle.recv(link, LONG) == [{"a": (2.5, None)}, 1]
        assert child.wait(LONG) == 0
    finally:
        child.kill()
        child.wait()
