"""Requests and their responses."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, MutableMapping

import numpy as np
import pytest

import slipring
from conftest import LONG, Child, connected

Link = tuple[slipring.Connection, slipring.Connection]


def test_calls_are_answered(name: str, child: Child) -> None:
    with slipring.listen(name) as listener:
        child("serve", name)
        with listener.accept(LONG) as link:
            answer = link.call(b"abc", meta={"user": "ann"}, timeout=LONG)
            assert (bytes(answer), answer.meta) == (b"cba", {"user": "ann"})
            assert link.call(bytes(1 << 20), timeout=LONG) == bytes(1 << 20)
            tensors = link.call_tensors({"x": np.arange(3.0)}, timeout=LONG)
            assert np.asarray(tensors["x"]).tolist() == [0, 2, 4]
            draft = link.empty((2,), "int32", zeroed=True)
            assert np.asarray(link.call_tensors([draft], timeout=LONG)[0]).tolist() == [0, 0]
            with pytest.raises(slipring.TensorGone):
                np.asarray(draft)


def test_metadata_is_a_carrier_of_trace_context(link: Link) -> None:
    # As the default setter and getter of OpenTelemetry's propagators do.
    def inject(carrier: MutableMapping[str, str], key: str, value: str) -> None:
        carrier[key] = value

    def extract(carrier: Mapping[str, object], key: str) -> list[object] | None:
        value = carrier.get(key, None)
        return None if value is None else [value]

    near, far = link
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    meta: dict[str, str] = {"user": "ann"}
    inject(meta, "traceparent", parent)
    near._submit(b"question", meta=meta)
    request = far.recv_request(LONG)
    assert isinstance(request.meta, MutableMapping)
    assert list(request.meta.keys()) == ["user", "traceparent"]
    assert extract(request.meta, "traceparent") == [parent]
    assert extract(request.meta, "tracestate") is None


def test_a_call_without_an_answer_ends_at_its_timeout(link: Link) -> None:
    near, far = link
    with pytest.raises(slipring.TimedOut):
        near.call(b"question", timeout=0.1)
    request = far.recv_request(LONG)
    assert request.message == b"question"
    # The answer comes too late, and is dropped.
    request.respond(b"answer")
    far.send(b"next")
    assert near.recv(LONG) == b"next"


def test_calls_that_timed_out_leave_nothing_behind(link: Link) -> None:
    near, far = link
    # A connection has at most 4096 calls in flight, and keeps at most 1 MiB of responses.
    for _ in range(4200):
        with pytest.raises(slipring.TimedOut):
            near.call(b"question", timeout=0)
        far.recv_request(LONG).respond(bytes(1000))


def test_calls_that_are_never_answered_end_no_later_call(link: Link) -> None:
    near, far = link
    requests = []
    for _ in range(9000):
        with pytest.raises(slipring.TimedOut):
            near.call(b"question", timeout=0)
        requests.append(far.recv_request(LONG))

    def answer() -> None:
        last = far.recv_request(LONG)
        for late in (requests[0], requests[-1]):
            late.respond(b"late")
        last.respond(b"answer")

    thread = threading.Thread(target=answer)
    thread.start()
    assert near.call(b"question", timeout=LONG) == b"answer"
    thread.join()


@pytest.mark.parametrize("waits", [False, True])
def test_a_request_of_tensors_behind_a_late_answer_is_received(link: Link, waits: bool) -> None:
    near, far = link
    near._abandon(near._submit(b"question", meta=None))
    far.recv_request(LONG).respond(b"answer")
    far._submit_tensors({"x": np.arange(3)}, meta=None)
    request = near.recv_request(LONG) if waits else near.try_recv_request()
    assert request is not None
    assert np.asarray(request.tensors["x"]).tolist() == [0, 1, 2]


def test_other_messages_wait_during_a_call(link: Link) -> None:
    near, far = link
    far.send(b"before")

    def answer() -> None:
        far.recv_request(LONG).respond(b"answer")

    thread = threading.Thread(target=answer)
    thread.start()
    assert near.call(b"question", timeout=LONG) == b"answer"
    thread.join()
    assert near.recv(LONG) == b"before"


def test_a_request_of_tensors_and_answers_of_all_kinds(link: Link) -> None:
    near, far = link
    answers = [far.empty((2,), "uint8", zeroed=True), [np.ones(2)], (np.ones(3),), {"a": np.ones(4)}]

    def answer() -> None:
        for each in answers:
            request = far.recv_request(LONG)
            assert request.message is None
            assert request.meta == {"n": 1}
            request.respond(each)

    thread = threading.Thread(target=answer)
    thread.start()
    lengths = [len(near.call_tensors([np.zeros(1)], meta={"n": 1}, timeout=LONG)[0]) for _ in answers]
    thread.join()
    assert lengths == [2, 2, 3, 4]


def test_an_answer_of_another_kind_is_told(link: Link) -> None:
    near, far = link
    thread = threading.Thread(target=lambda: far.recv_request(LONG).respond([np.zeros(1)]))
    thread.start()
    with pytest.raises(slipring.OtherKind, match="tensors"):
        near.call(b"question", timeout=LONG)
    thread.join()
    with pytest.raises(slipring.TimedOut):
        far.recv_request(0)
    near.send(b"no request")
    with pytest.raises(slipring.OtherKind, match="`recv`"):
        far.recv_request(LONG)
    assert far.recv(LONG) == b"no request"


def test_serve_raises_what_its_handler_raises(link: Link) -> None:
    near, far = link

    def handler(request: slipring.Request) -> None:
        raise RuntimeError("handler")

    def call() -> None:
        with pytest.raises(slipring.TimedOut):
            near.call(b"", timeout=0.5)

    thread = threading.Thread(target=call)
    thread.start()
    with pytest.raises(RuntimeError, match="handler"):
        far.serve(handler)
    thread.join()
    near.close()
    far.serve(handler)


def test_a_request_is_answered_once(link: Link) -> None:
    near, far = link
    pending = [near._submit(b"question", meta=None) for _ in range(2)]
    request = far.recv_request(LONG)
    with pytest.raises(TypeError):
        request.respond(None)
    request.respond(b"answer")
    for respond in (request.respond, request.try_respond):
        with pytest.raises(ValueError, match="was answered"):
            respond(b"answer")
    far.recv_request(LONG).respond([np.ones(1)])
    found, failure, has_received = near._responses(pending)
    assert (len(found), found[0], failure, has_received) == (2, (pending[0], b"answer"), None, True)
    assert isinstance(found[1][1], slipring.OtherKind)


def test_a_call_without_room_ends_at_its_timeout(name: str) -> None:
    near, far = connected(name, near=slipring.Context(ring_capacity=4096))
    sent = 0
    while near.try_send(bytes(100)):
        sent += 1
    start = time.monotonic()
    with pytest.raises(slipring.TimedOut):
        near.call(bytes(100), timeout=0.1)
    with pytest.raises(slipring.TimedOut):
        near.call_tensors([np.zeros(10)], timeout=0.1)
    assert 0.2 <= time.monotonic() - start < 10
    for _ in range(sent):
        assert far.recv(LONG) == bytes(100)
    with pytest.raises(slipring.TimedOut):
        far.recv_request(0)
