"""Peers in Rust, Python and C talk with each other, in every pair and in both roles, in every kind of message.

One side serves and the other asks, over one connection and, at its end, one topic of the serving side. In this order:

- messages: the asking side sends one of each size, and gets it back.
- in place: the same, without copies where the language has them.
- batch: 16 numbers come in one batch where the language has batches, and go back as they came.
- tensors: of every data type of one size, a set of two with names, which goes back.
- frozen: a tensor that nobody can write goes, and its sum comes back.
- calls: 8 are open at once where the language has that, and are answered from the last to the first.
- tensor calls: `x` goes, and `y` comes, twice as large.
- topic: 100 samples, each tenth a tensor, of which a subscriber that wants every one misses none.
- end: the asking side closes, and the serving side sees the end.

Each side prints a kind when it has passed. The peers in Rust and C are in `crates/slipring-capi/tests/pairs`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import LONG

HERE = Path(__file__).parent
CAPI = HERE.parent.parent / "slipring-capi"
EXAMPLES = Path(os.environ.get("SLIPRING_EXAMPLES", "/nonexistent"))
KINDS = ("messages", "in place", "batch", "tensors", "frozen", "calls", "tensor calls", "topic", "end")
LANGUAGES = ("rust", "python", "c")


@pytest.fixture(scope="session")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The peer in C, compiled against the library that cargo has built."""
    library = EXAMPLES.parent / "libslipring_capi.so"
    if not library.exists():
        return None
    program = tmp_path_factory.mktemp("pairs") / "peer"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-O1"]
    command += ["-I", str(CAPI / "include"), "-I", str(CAPI / "tests/c"), str(CAPI / "tests/pairs/peer.c")]
    command += ["-o", str(program), str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize("asking", LANGUAGES)
@pytest.mark.parametrize("serving", LANGUAGES)
def test_every_kind_of_message_passes_between(serving: str, asking: str, name: str, in_c: Path | None) -> None:
    programs = {
        "rust": [EXAMPLES / "pair_peer"],
        "python": [sys.executable, HERE / "pair_peer.py"],
        "c": [in_c or "/nonexistent"],
    }
    sides = {"serve": serving, "ask": asking}
    for language in sides.values():
        if not Path(programs[language][0]).exists():
            pytest.skip(f"the peer in {language} is not built (SLIPRING_EXAMPLES): it is not checked")
    peers = [
        subprocess.Popen([*programs[language], role, name], stdout=subprocess.PIPE, text=True)
        for role, language in sides.items()
    ]
    try:
        said = [peer.communicate(timeout=LONG)[0].splitlines() for peer in peers]
    finally:
        for peer in peers:
            peer.kill()
            peer.wait()
    assert said == [list(KINDS)] * 2
    assert [peer.returncode for peer in peers] == [0, 0]
