"""The pipeline of `examples/robot.py`, whose nodes work together with those of the crate's example `robot`."""

from __future__ import annotations

import csv
import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import LONG

PYTHON = [sys.executable, str(Path(__file__).parent.parent / "examples" / "robot.py")]
RUST = [str(Path(os.environ.get("SLIPRING_EXAMPLES", "/nonexistent")) / "robot")]
# Each waits for the next one.
NODES = ["logger", "viewer", "tracker", "detector", "camera"]

Start = Callable[[list[str], str], "subprocess.Popen[str]"]


@pytest.fixture
def start(name: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a node of a robot. Its output goes to a file."""
    options = {
        "camera": ["--height", "240", "--width", "320", "--rate", "20"],
        "logger": ["--log", str(tmp_path / "robot.csv")],
    }
    started: list[subprocess.Popen[str]] = []

    def begin(language: list[str], node: str) -> subprocess.Popen[str]:
        command = [*language, node, "--name", name, *options.get(node, [])]
        with open(tmp_path / f"{node}.out", "a") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def rows(folder: Path, topic: str) -> list[list[str]]:
    """Returns the whole lines of the log about a topic."""
    log = folder / "robot.csv"
    whole = log.read_text().rpartition("\n")[0] if log.exists() else ""
    return [row for row in csv.reader(whole.splitlines()) if row[0] == topic]


def wait_for(done: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + LONG
    while not done():
        said = {path.name: path.read_text()[-2000:] for path in folder.glob("*.out")}
        assert time.monotonic() < end, said
        time.sleep(0.02)


def off(row: list[str]) -> tuple[float, float]:
    """Returns how far position and velocity of a track are from the disc, in pixels and pixels a frame."""
    turn, (x, y, vx, vy) = math.tau / 240, map(float, row[5:])
    sin, cos = math.sin(turn * int(row[1])), math.cos(turn * int(row[1]))
    position = math.hypot(x - 160 - 112 * cos, y - 120 - 84 * sin)
    return position, math.hypot(vx + turn * 112 * sin, vy - turn * 84 * cos)


def steady(tracks: list[list[str]]) -> list[list[str]]:
    """Returns the tracks that follow ten others of one tracker, each about the next frame or the one after it."""
    follows = [next_[4] == "0" and int(next_[1]) - int(row[1]) in (1, 2) for row, next_ in itertools.pairwise(tracks)]
    return [tracks[at + 10] for at in range(len(tracks) - 10) if all(follows[at : at + 10])]


@pytest.mark.parametrize("mix", ["Python", "Python after Rust", "Rust after Python"])
def test_a_robot_goes_on_when_any_of_its_nodes_was_killed_and_started_again(
    mix: str, start: Start, tmp_path: Path
) -> None:
    if "Rust" in mix and not Path(RUST[0]).exists():
        pytest.skip(f"{RUST[0]} is not built (SLIPRING_EXAMPLES): no node in Rust is checked")
    languages = {"Python": [PYTHON, PYTHON], "Python after Rust": [PYTHON, RUST], "Rust after Python": [RUST, PYTHON]}[
        mix
    ]
    language = {node: languages[at % 2] for at, node in enumerate(NODES)}
    nodes = {node: start(language[node], node) for node in NODES}

    def goes_on() -> None:
        before = len(rows(tmp_path, "tracks"))
        wait_for(lambda: len(rows(tmp_path, "tracks")) >= before + 15, tmp_path)

    def comparisons() -> int:
        return (tmp_path / "viewer.out").read_text().count(" pixels off")

    goes_on()
    for node in NODES:
        nodes[node].kill()
        nodes[node].wait()
        shown = comparisons()
        nodes[node] = start(language[node], node)
        goes_on()
        # It sees another tracker only if it has seen this one.
        wait_for(lambda node=node, shown=shown: node != "viewer" or comparisons() > shown, tmp_path)  # type: ignore[misc]
    wait_for(lambda: len(steady(rows(tmp_path, "tracks"))) >= 20, tmp_path)
    for node, topic in (("tracker", "detections"), ("detector", "camera/frames"), ("viewer", "tracks")):
        restarted = [topic, " 1 restarts"]
        said = tmp_path / f"{node}.out"
        wait_for(
            lambda said=said, restarted=restarted: any(  # type: ignore[misc]
                all(word in line for word in restarted) for line in said.read_text().splitlines()
            ),
            tmp_path,
        )
    assert all(process.poll() is None for process in nodes.values())
    frames = rows(tmp_path, "camera/frames")
    assert len(frames) > 50
    assert {row[3] for row in frames} == {"0"}
    for row in steady(rows(tmp_path, "tracks")):
        position, velocity = off(row)
        assert position < 0.6 and velocity < 0.6, row


def test_a_robot_says_what_is_wrong(start: Start, tmp_path: Path, name: str) -> None:
    start(PYTHON, "camera")
    wait_for(lambda: "camera publishes" in (tmp_path / "camera.out").read_text(), tmp_path)
    for arguments, text in [
        (["camera", "--name", name], f"another process publishes camera/frames of {name}"),
        (["lidar"], "invalid choice: 'lidar'"),
        ([], "the following arguments are required: NODE"),
        (["camera", "--height", "9"], "a frame of 9 x 1920 pixels is too small"),
        (["viewer", "--rate", "5"], "unrecognized arguments: --rate 5"),
    ]:
        done = subprocess.run([*PYTHON, *arguments], capture_output=True, text=True, timeout=LONG)
        assert done.returncode != 0
        assert text in done.stderr
