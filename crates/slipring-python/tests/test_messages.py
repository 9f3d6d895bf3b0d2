"""Messages: what goes in comes out, and what cannot go in is refused."""

from __future__ import annotations

import datetime
import multiprocessing
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slipring
from conftest import LONG, Child, connected

Link = tuple[slipring.Connection, slipring.Connection]


@pytest.mark.parametrize("length", [0, 1, 8, 4096, 5000, 70_000, 3 << 20])
def test_a_message_arrives_as_it_was_sent(name: str, child: Child, length: int) -> None:
    body = bytes(range(256)) * (length // 256) + bytes(length % 256)
    with slipring.listen(name) as listener:
        child("echo", name)
        with listener.accept(LONG) as link:
            for data in (body, bytearray(body), memoryview(body)):
                link.send(data, meta={"length": length})
                message = link.recv(LONG)
                assert message == body
                assert bytes(message) == body
                assert memoryview(message) == body
                assert len(message) == length
                assert message.meta == {"length": length}


def test_metadata_keeps_its_types(link: Link) -> None:
    near, far = link
    stamp = datetime.datetime(2026, 11, 25, 12, 0, 0, 123456, tzinfo=datetime.UTC)
    meta = {"i": -7, "f": 0.5, "s": "left", "yes": True, "no": False, "t": stamp}
    near.send(b"", meta=meta)
    got = far.recv(LONG).meta
    assert got == meta
    assert [type(value) for value in got.values()] == [
        int,
        float,
        str,
        bool,
        bool,
        datetime.datetime,
    ]


@pytest.mark.parametrize(
    ("meta", "error"),
    [
        ({"a": None}, TypeError),
        ({1: 2}, TypeError),
        ({"a": b"bytes"}, TypeError),
        ({"a": 1 << 64}, OverflowError),
        ({"": 1}, slipring.InvalidTensor),
        ({"a": "x" * 300}, slipring.InvalidTensor),
        ({"a": datetime.datetime(2026, 1, 1)}, TypeError),
        ({str(i): "x" * 200 for i in range(5)}, slipring.InvalidTensor),
    ],
)
def test_impossible_metadata_is_refused_and_nothing_is_sent(link: Link, meta: Any, error: type[Exception]) -> None:
    near, far = link
    with pytest.raises(error):
        near.send(b"lost", meta=meta)
    near.send(b"next")
    assert far.recv(LONG) == b"next"


@pytest.mark.parametrize("data", ["text", 3, None, [1, 2], object()])
def test_what_is_not_bytes_like_is_refused(link: Link, data: Any) -> None:
    near, far = link
    with pytest.raises(TypeError, match="bytes-like"):
        near.send(data)
    assert far.try_recv() is None


def test_a_strided_buffer_is_sent_as_its_elements(link: Link) -> None:
    near, far = link
    near.send(memoryview(bytes(range(10)))[::3])
    assert far.recv(LONG) == bytes([0, 3, 6, 9])


def test_iteration_ends_when_the_peer_has_closed(link: Link) -> None:
    near, far = link
    for number in range(100):
        near.send(bytes([number]))
    near.close()
    assert [bytes(message)[0] for message in far] == list(range(100))
    with pytest.raises(slipring.PeerClosed):
        far.recv()
    with pytest.raises(EOFError):
        far.try_recv()


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan")])
def test_a_negative_timeout_is_refused(link: Link, timeout: float) -> None:
    near, far = link
    for call in (far.recv, far.recv_tensor, far.recv_tensors):
        with pytest.raises(ValueError, match="timeout is"):
            call(timeout)
    with pytest.raises(ValueError, match="timeout is"):
        near.send(b"", timeout=timeout)
    near.send(b"here")
    with pytest.raises(ValueError, match="timeout is"):
        far.recv(timeout)
    assert far.recv(0) == b"here"


def test_a_wait_ends_at_its_timeout(link: Link) -> None:
    _, far = link
    start = time.monotonic()
    with pytest.raises(slipring.TimedOut, match="timed out after 1") as raised:
        far.recv(0.1)
    assert time.monotonic() - start >= 0.1
    assert isinstance(raised.value, TimeoutError)
    with pytest.raises(slipring.TimedOut):
        far.recv(0)


def test_a_send_without_room_ends_at_its_timeout_and_sends_nothing(name: str) -> None:
    near, far = connected(name, near=slipring.Context(ring_capacity=4096))
    sent = 0
    with pytest.raises(slipring.TimedOut, match="makes no room"):
        for number in range(1000):
            near.send(number.to_bytes(100, "little"), timeout=0.05)
            sent += 1
    assert 0 < sent < 1000
    assert [int.from_bytes(bytes(far.recv(LONG)), "little") for _ in range(sent)] == list(range(sent))
    assert far.try_recv() is None
    near.send(b"room again")
    assert far.recv(LONG) == b"room again"


def test_a_message_that_is_too_long_is_refused(name: str) -> None:
    near, far = connected(name, near=slipring.Context(max_message=10_000))
    with pytest.raises(slipring.TooLarge, match="10001 bytes, the link takes 10000"):
        near.send(bytes(10_001))
    near.send(bytes(10_000))
    assert len(far.recv(LONG)) == 10_000


def test_a_message_of_another_kind_stays_the_next_one(link: Link) -> None:
    near, far = link
    near.send(b"bytes")
    near.send_tensor(memoryview(b"tensor"))
    for receive in (far.recv_tensor, far.recv_tensors, far.try_recv_tensor, far.try_recv_tensors):
        with pytest.raises(slipring.OtherKind, match="receive it with `recv`"):
            receive()
    assert far.recv(LONG) == b"bytes"
    for receive in (far.recv, far.try_recv):
        with pytest.raises(slipring.OtherKind, match="recv_tensor"):
            receive()
    assert bytes(far.recv_tensor(LONG)) == b"tensor"


def test_a_closed_connection_says_so(link: Link) -> None:
    near, far = link
    assert not near.closed
    near.close()
    near.close()
    assert near.closed
    for call in (lambda: near.send(b""), near.recv, near.try_recv, near.stats, near.fileno):
        with pytest.raises(slipring.Closed, match="this side closed"):
            call()
    with pytest.raises(slipring.PeerClosed):
        far.recv(LONG)
    # A peer may be told late, and the send before that is lost.
    with pytest.raises(slipring.PeerClosed):
        for _ in range(1000):
            far.send(b"")
            time.sleep(0.001)


def test_a_close_ends_the_wait_of_another_thread(link: Link) -> None:
    _, far = link
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            far.recv()
        except slipring.Error as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    far.close()
    thread.join(LONG)
    assert [type(error) for error in raised] == [slipring.Closed]


def test_one_thread_sends_while_another_receives(link: Link) -> None:
    near, far = link
    count = 20_000
    thread = threading.Thread(target=lambda: [near.send(i.to_bytes(4, "big")) for i in range(count)])
    other = threading.Thread(target=lambda: [far.send(i.to_bytes(4, "big")) for i in range(count)])
    got: list[int] = []
    third = threading.Thread(
        target=lambda: got.extend(int.from_bytes(bytes(near.recv(LONG)), "big") for _ in range(count))
    )
    for each in (thread, other, third):
        each.start()
    assert [int.from_bytes(bytes(far.recv(LONG)), "big") for _ in range(count)] == list(range(count))
    for each in (thread, other, third):
        each.join(LONG)
    assert got == list(range(count))


def test_a_peer_that_dies_is_told_after_its_last_message(name: str, child: Child) -> None:
    with slipring.listen(name) as listener:
        process = child("die", name)
        link = listener.accept(LONG)
        assert link.peer.pid == process.pid
        link.send(b"die")
        assert link.recv(LONG) == b"last"
        tensor = link.recv_tensor(LONG)
        with pytest.raises(slipring.PeerDied, match="the peer died") as raised:
            link.recv(LONG)
        assert isinstance(raised.value, ConnectionError)
        # What was lent stays readable.
        assert memoryview(tensor)[999] == 999


@pytest.mark.parametrize("what", ["accept", "recv", "recv_tensor", "send"])
def test_ctrl_c_ends_a_wait(name: str, child: Child, what: str) -> None:
    process = child("interrupted", name, what)
    link = None if what == "accept" else slipring.connect(name, retry=LONG)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    time.sleep(0.2)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    waited = time.monotonic() - start
    assert process.wait(LONG) == 0
    # 40 ms, and what a busy machine adds.
    assert waited < 10, waited
    del link


def test_an_end_of_a_pair_goes_to_a_program(child: Child) -> None:
    ours, theirs = slipring.pair()
    process = child("descriptor", theirs.fileno(), theirs.role, pass_fds=[theirs.fileno()])
    theirs.close()
    with ours.open(timeout=LONG) as link:
        assert link.peer.pid == process.pid
        link.send(b"hello")
        assert link.recv(LONG) == b"hello"
    assert process.wait(LONG) == 0
    for endpoint in (ours, theirs):
        with pytest.raises(slipring.Closed):
            endpoint.fileno()


def child_of_multiprocessing(end: slipring.Endpoint) -> None:
    with end.open(timeout=LONG) as link:
        link.send(link.recv(LONG))


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_end_of_a_pair_goes_to_a_child(method: str) -> None:
    ours, theirs = slipring.pair()
    context = multiprocessing.get_context(method)
    process = context.Process(target=child_of_multiprocessing, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    with ours.open(timeout=LONG) as link:
        link.send(b"hello")
        assert link.recv(LONG) == b"hello"
        assert link.peer.pid == process.pid
    process.join(LONG)
    assert process.exitcode == 0


def test_what_stays_in_its_process_says_what_to_pass(name: str) -> None:
    ours, theirs = slipring.pair()
    with pytest.raises(RuntimeError, match="as it starts"):
        pickle.dumps(ours)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(theirs.open)
        with ours.open(timeout=LONG) as link, opening.result(LONG):
            with pytest.raises(TypeError, match=r"an end of pair\(\)"):
                pickle.dumps(link)
            with pytest.raises(slipring.Closed, match="opened or closed"):
                multiprocessing.get_context("spawn").Process(target=child_of_multiprocessing, args=(ours,)).start()
    with slipring.listen(name) as listener, pytest.raises(TypeError, match="its address"):
        pickle.dumps(listener)
    with slipring.publish(name) as publisher, pytest.raises(TypeError, match="its address"):
        pickle.dumps(publisher)


def child_of_addresses(link_address: str, topic_address: str) -> None:
    with slipring.subscribe(topic_address, "every") as subscriber, slipring.connect(link_address) as link:
        link.send(subscriber.recv(LONG).message)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_addresses_of_a_listener_and_a_publisher_go_to_a_child(name: str, method: str, tmp_path: Path) -> None:
    odd = f"{name} \N{GREEK SMALL LETTER OMEGA}"
    with slipring.listen(str(tmp_path / "socket")) as listener, slipring.publish(odd, history=1) as publisher:
        publisher.send(b"kept")
        arguments = (listener.address, publisher.address)
        context = multiprocessing.get_context(method)
        process = context.Process(target=child_of_addresses, args=arguments, daemon=True)
        process.start()
        with listener.accept(LONG) as link:
            assert link.recv(LONG) == b"kept"
        process.join(LONG)
        assert process.exitcode == 0


def test_an_end_whose_other_end_is_not_opened() -> None:
    ours, theirs = slipring.pair()
    with pytest.raises(slipring.TimedOut, match="nobody opens"):
        ours.open(timeout=0.05)
    with pytest.raises(slipring.PeerDied, match="has ended"):
        theirs.open(timeout=LONG)
    ours, theirs = slipring.pair()
    with pytest.raises(ValueError, match="timeout is"):
        ours.open(timeout=-1)
    theirs.close()
    with pytest.raises(slipring.PeerDied):
        ours.open()
    with pytest.raises(ValueError, match="role"):
        slipring.Endpoint(0, "other")  # type: ignore[arg-type]


def test_errors_of_addresses(name: str) -> None:
    with pytest.raises(slipring.NobodyListens, match=f"nobody listens on @{name}") as absent:
        slipring.connect(name)
    assert isinstance(absent.value, ConnectionRefusedError)
    with slipring.listen(name) as listener:
        assert listener.address == f"@{name}"
        with pytest.raises(slipring.AddressInUse, match="in use") as used:
            slipring.listen(name)
        assert isinstance(used.value, OSError)
        with pytest.raises(slipring.TimedOut):
            slipring.connect(name, timeout=0.05)
        with pytest.raises(slipring.TimedOut):
            listener.accept(0.05)
        assert listener.try_accept() is None
    with pytest.raises(slipring.Closed):
        listener.accept()
    for address in ("", "a" * 200, "nul\0"):
        with pytest.raises(slipring.InvalidAddress):
            slipring.listen(address)


def test_options_are_checked() -> None:
    with pytest.raises(slipring.InvalidOption, match="ring_capacity is 17"):
        slipring.Context(ring_capacity=17)
    with pytest.raises(ValueError, match="spin is"):
        slipring.Context(spin="wildly")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="peers is"):
        slipring.Context(peers="me")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        slipring.Context(color="red")  # type: ignore[call-arg]


def test_a_forked_child_gets_a_clear_exception(name: str) -> None:
    # In a process of its own: pytest has threads.
    program = f"""
import os, threading, slipring
with slipring.listen({name!r}) as listener:
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept()))
    thread.start()
    near = slipring.connect({name!r})
    thread.join()
    far = accepted[0]
    tensor = near.empty((3,))
    child = os.fork()
    if child == 0:
        calls = [lambda: near.send(b"x"), far.recv, far.try_recv, listener.accept, near.stats,
                 tensor.share, lambda: memoryview(tensor), lambda: near.send_tensor(tensor), near.close]
        for call in calls:
            try:
                call()
            except slipring.Forked as error:
                assert "forked child" in str(error), error
            else:
                os._exit(2)
        # A child may use slipring on its own.
        mine = slipring.listen({name!r} + "-child")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    near.send(b"parent")
    assert far.recv(60) == b"parent"
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=LONG)
    assert done.returncode == 0


def test_python_objects_are_no_message(link: Link) -> None:
    near, far = link
    for send in (near.send, near.try_send, near.call):
        with pytest.raises(TypeError, match="Python objects"):
            send(np.array([None, "a"]))
    with pytest.raises(OverflowError, match='meta\\["big"\\]'):
        near.send(b"", meta={"big": 1 << 64})
    assert far.try_recv() is None
