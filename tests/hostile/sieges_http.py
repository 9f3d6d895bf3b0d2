"""Sieges of a server of HTTP on a TCP address: NAME is HOST:PORT."""

import socket
import time

from stage import siege

INFER = "/v2/models/simple/infer"


def connect(stage, blocking=True, room=None):
    host, port = stage.name.rsplit(":", 1)
    end = socket.socket()
    if room:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    end.setblocking(blocking)
    try:
        end.connect((host, int(port)))
    except BlockingIOError:
        pass
    return end


@siege
def http_connects(stage):
    """Connects and leaves, at full speed (D19)."""
    while True:
        for _ in range(32):
            connect(stage).close()
        yield


@siege
def http_silence(stage):
    """Connections that say nothing, or stop within a head (B10)."""
    held = []
    while True:
        end = connect(stage)
        if len(held) % 2:
            end.send(b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Le")
        held.append(end)
        if len(held) > 300:
            held.pop(0).close()
            time.sleep(0.001)
            yield


@siege
def http_long_bodies(stage):
    """Bodies of 128 MiB (B8c, B9, D21, D23)."""
    piece = bytes(1 << 20)
    while True:
        end = connect(stage)
        end.settimeout(5)
        length = 128 << 20
        end.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        yield
        try:
            for _ in range(128):
                end.sendall(piece)
                yield
        finally:
            end.close()


@siege
def http_unread_answers(stage):
    """Requests of 100 kB without an end on eight connections, whose answers of the same length nobody reads (B6)."""
    ends = [connect(stage, room=4096) for _ in range(8)]
    for end in ends:
        end.setblocking(False)
    floats = 25_000
    tensor = f'"shape":[1,{floats}],"datatype":"FP32","parameters":{{"binary_data_size":{4 * floats}}}'
    head = f'{{"inputs":[{{"name":"INPUT0",{tensor}}}],"parameters":{{"binary_data_output":true}}}}'
    lengths = f"Content-Length: {len(head) + 4 * floats}\r\nInference-Header-Content-Length: {len(head)}\r\n"
    request = f"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\n{lengths}\r\n{head}".encode()
    request += bytes(4 * floats)
    taken, rest = time.monotonic(), dict.fromkeys(ends, request)
    while True:
        for end in ends:
            try:
                rest[end] = rest[end][end.send(rest[end]) :] or request
                taken = time.monotonic()
            except BlockingIOError:
                pass
        time.sleep(0.001)
        # The server has no room for further answers, and so it reads no further requests.
        if time.monotonic() - taken > 0.2:
            yield


@siege
def http_requests_that_stop(stage):
    """Bodies that end before their length, and connections that are reset (D14, D15)."""
    while True:
        end = connect(stage)
        end.send(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode() + bytes(1000))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        end.close()
        yield
