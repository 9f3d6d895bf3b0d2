"""Raw HTTP, for requests that no real client sends."""

import contextlib
import http.client
import json
import socket


class Http:
    """One connection that stays open."""

    def __init__(self, server, timeout=20):
        self.host, port = server.http.split(":")
        self.connection = http.client.HTTPConnection(self.host, int(port), timeout=timeout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def ask(self, verb, path, body=None, headers=(), chunked=False):
        """Returns status, headers, and the body's bytes."""
        self.connection.request(verb, path, body=body, headers=dict(headers), encode_chunked=chunked)
        response = self.connection.getresponse()
        return response.status, response.headers, response.read()

    def post(self, path, content, headers=()):
        """Sends JSON. Returns the status and the response's JSON."""
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        status, _, body = self.ask("POST", path, content, headers)
        return status, json.loads(body) if body else None

    def infer(self, model, content, headers=()):
        return self.post(f"/v2/models/{model}/infer", content, headers)

    def binary(self, model, header, tail, extra=()):
        """Sends an inference request with a binary tail. Returns status, JSON, tail."""
        header = header if isinstance(header, bytes) else json.dumps(header).encode()
        headers = {"Inference-Header-Content-Length": str(len(header))} | dict(extra)
        status, headers, body = self.ask("POST", f"/v2/models/{model}/infer", header + tail, headers)
        length = headers.get("Inference-Header-Content-Length")
        split = len(body) if length is None else int(length)
        return status, json.loads(body[:split]), body[split:]


def raw(server, data, shut=True, timeout=20):
    """Sends bytes on a new connection. Returns everything until the server closes it."""
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall(data)
        if shut:
            # A server that has answered and closed does not need the hint.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        parts = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except (TimeoutError, ConnectionResetError):
            pass
        return b"".join(parts)
