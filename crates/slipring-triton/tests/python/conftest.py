"""Fixtures: the servers and the clients."""

import pytest

from fronts import KINDS, Front
from server import Server

# In place under the guard, which is the example's default, and by copy.
MODES = {"in-place": [], "by-copy": ["--by-copy"]}


@pytest.fixture(scope="session")
def servers():
    running = {}
    try:
        for mode, options in MODES.items():
            running[mode] = Server(*options)
        yield running
    finally:
        for server in running.values():
            server.stop()


@pytest.fixture(scope="session")
def server(servers):
    return servers["in-place"]


@pytest.fixture(scope="session", params=MODES)
def either_server(request, servers):
    return servers[request.param]


@pytest.fixture(scope="session", params=KINDS)
def front(request, server):
    with Front(request.param, server) as front:
        yield front


@pytest.fixture(scope="session", params=KINDS)
def either_front(request, either_server):
    """Every client with every server."""
    with Front(request.param, either_server) as front:
        yield front


@pytest.fixture(autouse=True)
def nothing_is_left_over(request):
    """Checks that a test leaves the servers alive and without regions."""
    yield
    if "servers" in request.fixturenames:
        for mode, server in request.getfixturevalue("servers").items():
            assert server.alive(), f"the {mode} server died: {''.join(server.lines)}"
            with Front("http", server) as front:
                left = front.system_status()
                front.unregister_system_shared_memory()
            assert left == {}
