"""Sieges of a server of HTTP or gRPC on a TCP address: NAME is HOST:PORT."""

import socket
import struct
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


class Requests:
    """A connection on which short requests follow each other without a pause, many in a packet."""

    def __init__(self, stage, reads):
        self.end, self.reads = connect(stage, room=None if reads else 4096), reads
        data = '"shape":[1,16],"datatype":"INT32","data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]'
        body = f'{{"inputs":[{{"name":"INPUT0",{data}}},{{"name":"INPUT1",{data}}}]}}'
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.all = self.rest = (head + body).encode() * 64
        self.end.setblocking(False)

    def go_on(self):
        """Sends and reads what the connection takes and gives now. Returns whether that was anything."""
        moved = False
        try:
            self.rest = self.rest[self.end.send(self.rest) :] or self.all
            moved = True
        except BlockingIOError:
            pass
        try:
            moved = self.reads and bool(self.end.recv(1 << 20)) or moved
        except BlockingIOError:
            pass
        return moved


def pipelined(stage, count, reads):
    """Sends short requests without a pause on so many connections."""
    links = [Requests(stage, reads) for _ in range(count)]
    while True:
        if not any([link.go_on() for link in links]):
            time.sleep(0.0005)
        yield


@siege
def http_pipelined_read(stage):
    """Short requests without an end on two connections, whose answers are read (D15)."""
    yield from pipelined(stage, 2, True)


@siege
def http_pipelined_unread(stage):
    """Short requests without an end on one connection, whose answers nobody reads (D15, B6)."""
    yield from pipelined(stage, 1, False)


@siege
def http_requests_that_stop(stage):
    """Bodies that end before their length, and connections that are reset (D14, D15)."""
    while True:
        end = connect(stage)
        end.send(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode() + bytes(1000))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        end.close()
        yield


# Frames of HTTP/2 (RFC 9113).
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
WINDOW = (1 << 31) - 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def text(value):
    return bytes([len(value)]) + value.encode()


def field(number, value):
    """A field of bytes of a protobuf message."""
    length = bytes([len(value)]) if len(value) < 128 else bytes([len(value) & 127 | 128, len(value) >> 7])
    return bytes([number << 3 | 2]) + length + value


def infer():
    """A ModelInferRequest of the model `simple`, behind the head of a gRPC message."""
    inputs = [field(1, name) + field(2, b"INT32") + field(3, bytes([1, 16])) for name in (b"INPUT0", b"INPUT1")]
    contents = struct.pack("<16i", *range(16))
    message = field(1, b"simple") + b"".join(field(5, each) for each in inputs) + 2 * field(7, contents)
    return struct.pack(">BI", 0, len(message)) + message


class Calls:
    """A connection of HTTP/2 that has `most` calls under way."""

    def __init__(self, stage, most):
        self.end, self.most = connect(stage), most
        self.next, self.open, self.room, self.unsent, self.unread = 1, 0, 65535, b"", b""
        fields = b"\x83\x86" + b"\x04" + text("/inference.GRPCInferenceService/ModelInfer") + b"\x01" + text("x")
        self.head = fields + b"\x0f\x10" + text("application/grpc") + b"\x00" + text("te") + text("trailers")
        self.body = infer()
        settings = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, WINDOW))
        update = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65535))
        self.end.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + update)
        self.end.setblocking(False)

    def send(self):
        """Starts calls as far as the limits allow. Returns whether bytes went."""
        while self.open < self.most and self.room > len(self.body) and len(self.unsent) < 1 << 16:
            self.unsent += frame(HEADERS, END_HEADERS, self.next, self.head)
            self.unsent += frame(DATA, END_STREAM, self.next, self.body)
            self.next, self.open, self.room = self.next + 2, self.open + 1, self.room - len(self.body)
        try:
            sent = self.end.send(self.unsent) if self.unsent else 0
        except BlockingIOError:
            sent = 0
        self.unsent = self.unsent[sent:]
        return sent > 0

    def receive(self):
        """Handles what has come. Returns whether something has."""
        try:
            arrived = self.end.recv(1 << 18)
        except BlockingIOError:
            return False
        if not arrived:
            raise ConnectionResetError
        self.unread += arrived
        at = 0
        while len(self.unread) - at >= 9:
            length = int.from_bytes(self.unread[at : at + 3], "big")
            kind, flags, stream = struct.unpack_from(">BBI", self.unread, at + 3)
            if len(self.unread) - at < 9 + length:
                break
            payload = self.unread[at + 9 : at + 9 + length]
            at += 9 + length
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                self.open -= 1
            elif kind == WINDOW_UPDATE and stream == 0:
                self.room += int.from_bytes(payload, "big")
            elif kind in (SETTINGS, PING) and not flags & ACK:
                self.unsent += frame(kind, ACK, 0, payload if kind == PING else b"")
        self.unread = self.unread[at:]
        return True


@siege
def grpc_pipelined_read(stage):
    """Short calls without an end, 512 at a time on each of two connections, whose answers are read (D15)."""
    links = [Calls(stage, 512) for _ in range(2)]
    while links[0].next < 1 << 30:
        if not any([link.send() | link.receive() for link in links]):
            time.sleep(0.0005)
        yield


@siege
def grpc_pipelined_unread(stage):
    """As many short calls as a connection may have, whose answers nobody reads, on new connections all the time (D15)."""
    while True:
        link = Calls(stage, 1000)
        for _ in range(100):
            link.send()
            yield
            time.sleep(0.001)
        link.end.close()
