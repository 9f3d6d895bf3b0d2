"""A robot's pipeline: five programs on three topics, each of which may start, die and start again at any time.

    python robot.py camera           # each in a terminal of its own, in any order
    python robot.py detector
    python robot.py tracker
    python robot.py viewer
    python robot.py logger --log robot.csv

The topics and their messages are those of the crate's example ``robot``, so nodes of both languages work together.
docs/robots.md has more.
"""

from __future__ import annotations

import argparse
import datetime
import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import slipring

FRAMES, DETECTIONS, TRACKS = "camera/frames", "detections", "tracks"

# The scene: a bright disc runs along an ellipse in ROUND frames, on a dark ground.
GROUND, BRIGHT, THRESHOLD, ROUND = 16, 240, 128, 240
SMALLEST = 64
# The filter: how much of the distance between a measured and an expected position corrects position and velocity.
ALPHA, BETA = 0.8, 0.6
# Frames that the logger may be behind, plus one, and detections that the tracker may be behind.
SLOTS, NEWEST = 32, 8


def address(robot: str, topic: str) -> str:
    """Returns the abstract name of a topic. A plain slash would make it a path."""
    return "@" + f"{robot}/{topic}".replace("/", r"\x2f")


def publish(robot: str, topic: str, **options: Any) -> slipring.Publisher:
    try:
        return slipring.publish(address(robot, topic), **options)
    except slipring.AddressInUse:
        raise SystemExit(
            f"robot: another process publishes {topic} of {robot}: end it, or take another --name"
        ) from None


def subscribe(robot: str, topic: str, policy: Any) -> slipring.Subscriber:
    """Waits for a publisher of the topic."""
    return slipring.subscribe(address(robot, topic), policy, wait=math.inf)


@dataclass
class Arrival:
    """A message that came, and what was read of its tensor."""

    topic: str
    sequence: int
    stamp: datetime.datetime
    age: float
    missed: int
    restarted: bool
    content: Any = None

    @classmethod
    def of(cls, topic: str, sample: slipring.Sample) -> Arrival:
        sequence, stamp = sample.meta.get("sequence"), sample.meta.get("stamp")
        if not isinstance(sequence, int) or not isinstance(stamp, datetime.datetime):
            raise ValueError("a message without sequence or stamp")
        age = (datetime.datetime.now(datetime.UTC) - stamp).total_seconds()
        return cls(topic, sequence, stamp, age, sample.missed, sample.restarted)

    @property
    def meta(self) -> dict[str, Any]:
        """What names the frame that a message is about."""
        return {"sequence": self.sequence, "stamp": self.stamp}


@dataclass
class Hop:
    """The arrivals on a topic since the last report."""

    topic: str
    ages: list[float] = field(default_factory=list)
    missed: int = 0
    restarts: int = 0

    def take(self, arrival: Arrival) -> None:
        self.ages.append(arrival.age)
        self.missed += arrival.missed
        self.restarts += arrival.restarted

    def report(self) -> str:
        self.ages.sort()
        shown = [f"{age * 1e3:.2f} ms" for age in self.ages] or ["-"]
        line = (
            f"{self.topic}: {len(self.ages)} messages, frames {shown[len(shown) // 2]} old (p50), "
            f"{shown[-1]} (max), {self.missed} missed, {self.restarts} restarts"
        )
        self.ages, self.missed, self.restarts = [], 0, 0
        return line


class Clock:
    """Strikes once a second."""

    def __init__(self) -> None:
        self.due = time.monotonic() + 1.0

    def left(self) -> float:
        return max(0.0, self.due - time.monotonic())

    def strikes(self) -> bool:
        now = time.monotonic()
        if now < self.due:
            return False
        self.due = now + 1.0
        return True


def draw(frame: npt.NDArray[np.uint8], sequence: int) -> None:
    """Draws the frame with this number: every byte of it."""
    height, width, _ = frame.shape
    angle = math.tau * (sequence % ROUND) / ROUND
    x, y = width * (0.5 + 0.35 * math.cos(angle)), height * (0.5 + 0.35 * math.sin(angle))
    radius = max(min(height, width) // 40, 4)
    frame[:] = GROUND
    top, left = int(y) - radius, int(x) - radius
    rows, columns = np.ogrid[top : top + 2 * radius + 2, left : left + 2 * radius + 2]
    inside = (rows - y) ** 2 + (columns - x) ** 2 <= radius**2
    frame[top : top + 2 * radius + 2, left : left + 2 * radius + 2][inside] = BRIGHT


def find(frame: npt.NDArray[np.uint8]) -> tuple[float, float, int] | None:
    """Finds the disc: x, y and area. First on a coarse grid, and then around what was found there."""
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise ValueError(f"a frame of {frame.dtype} {frame.shape}, expected uint8 (h, w, 3)")
    radius = max(min(frame.shape[:2]) // 40, 4)
    step = radius // 2
    rows, columns = np.nonzero(frame[::step, ::step, 0] > THRESHOLD)
    if rows.size == 0:
        return None
    reach = radius + 2 * step
    top = max(int(rows.mean() * step) - reach, 0)
    left = max(int(columns.mean() * step) - reach, 0)
    window = frame[top : top + 2 * reach + 1, left : left + 2 * reach + 1, 0]
    rows, columns = np.nonzero(window > THRESHOLD)
    return left + float(columns.mean()), top + float(rows.mean()), int(rows.size)


@dataclass
class Track:
    """An alpha-beta filter: position in pixels, and velocity in pixels a frame."""

    sequence: int
    x: float
    y: float
    vx: float = 0.0
    vy: float = 0.0

    def at(self, sequence: int) -> tuple[float, float]:
        frames = sequence - self.sequence
        return self.x + self.vx * frames, self.y + self.vy * frames

    def update(self, sequence: int, x: float, y: float) -> Track:
        """Returns the track with a later position. One of an earlier frame, or of the same, is of another camera."""
        if sequence <= self.sequence:
            return Track(sequence, x, y)
        frames = sequence - self.sequence
        expected_x, expected_y = self.at(sequence)
        off_x, off_y = x - expected_x, y - expected_y
        vx, vy = self.vx + BETA * off_x / frames, self.vy + BETA * off_y / frames
        return Track(sequence, expected_x + ALPHA * off_x, expected_y + ALPHA * off_y, vx, vy)


def row(sample: slipring.Sample, columns: int) -> list[float] | None:
    """Returns the first row of a tensor with rows of so many numbers, if it has any."""
    rows = np.asarray(sample.tensor)
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise ValueError(f"a tensor of shape {rows.shape}, expected (n, {columns})")
    return [float(value) for value in rows[0]] if len(rows) else None


def rows_of(values: tuple[float, ...] | None, columns: int) -> npt.NDArray[np.float32]:
    return np.array([values] if values else [], np.float32).reshape(-1, columns)


def camera(options: argparse.Namespace) -> None:
    if min(options.height, options.width) < SMALLEST:
        raise SystemExit(
            f"robot: a frame of {options.height} x {options.width} pixels is too small: each side needs {SMALLEST}"
        )
    clock, told, due = Clock(), 0, time.monotonic()
    with publish(options.name, FRAMES, slots=SLOTS) as frames:
        print(f"camera publishes {FRAMES} of {options.name}", flush=True)
        while options.count == 0 or frames.sent < options.count:
            sequence, stamp = frames.sent, datetime.datetime.now(datetime.UTC)
            frame = frames.empty((options.height, options.width, 3))
            draw(np.asarray(frame), sequence)
            frames.send_tensor(frame, meta={"sequence": sequence, "stamp": stamp})
            for kind, _, pid in frames.events():
                print(f"camera: subscriber with pid {pid}: {kind}", flush=True)
            if clock.strikes():
                subscribers = len(frames.subscribers())
                print(f"camera: {frames.sent - told} frames, {subscribers} subscribers", flush=True)
                told = frames.sent
            due = max(due + (1 / options.rate if options.rate else 0), time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def stage(
    options: argparse.Namespace,
    source: str,
    policy: Any,
    target: str,
    work: Callable[[slipring.Sample, int], npt.NDArray[np.float32]],
) -> None:
    """Publishes a message about each that it receives."""
    clock, hop = Clock(), Hop(source)
    with publish(options.name, target) as publisher:
        print(f"{options.node} waits for {source} of {options.name}", flush=True)
        with subscribe(options.name, source, policy) as subscriber:
            while options.count == 0 or publisher.sent < options.count:
                try:
                    sample = subscriber.recv(clock.left())
                    arrival = Arrival.of(source, sample)
                    hop.take(arrival)
                    publisher.send_tensor(work(sample, arrival.sequence), meta=arrival.meta)
                    del sample
                except slipring.TimedOut:
                    pass
                if clock.strikes():
                    print(f"{options.node}: {hop.report()}", flush=True)


def detector(options: argparse.Namespace) -> None:
    def work(sample: slipring.Sample, _sequence: int) -> npt.NDArray[np.float32]:
        found = find(np.asarray(sample.tensor))
        time.sleep(options.slow / 1e3)
        return rows_of(found, 3)

    stage(options, FRAMES, "latest", DETECTIONS, work)


def tracker(options: argparse.Namespace) -> None:
    track: Track | None = None

    def work(sample: slipring.Sample, sequence: int) -> npt.NDArray[np.float32]:
        nonlocal track
        found = row(sample, 3)
        if found:
            x, y, _area = found
            track = track.update(sequence, x, y) if track else Track(sequence, x, y)
        return rows_of((*track.at(sequence), track.vx, track.vy) if track else None, 4)

    stage(options, DETECTIONS, NEWEST, TRACKS, work)


def listen(robot: str, topic: str, policy: Any, to: queue.Queue[Any], read: Callable[[slipring.Sample], Any]) -> None:
    """Receives on a thread of its own, which puts an Arrival for each message, and a failure last."""

    def run() -> None:
        try:
            while True:
                subscriber = subscribe(robot, topic, policy)
                try:
                    for sample in subscriber:
                        arrival = Arrival.of(topic, sample)
                        arrival.content = read(sample)
                        to.put(arrival)
                        del sample
                except slipring.Evicted as error:
                    # This process stood still for longer than the publisher waits.
                    print(f"robot: {topic}: {error}; it subscribes once more", file=sys.stderr)
        except Exception as error:
            to.put(error)

    threading.Thread(target=run, daemon=True).start()


def following(messages: queue.Queue[Any], clock: Clock) -> Arrival | None:
    """Returns the next message, or None if a report is due first."""
    try:
        arrival: Arrival | Exception = messages.get(timeout=clock.left())
    except queue.Empty:
        return None
    if isinstance(arrival, Exception):
        raise arrival
    return arrival


def viewer(options: argparse.Namespace) -> None:
    messages: queue.Queue[Any] = queue.Queue()
    listen(options.name, FRAMES, "latest", messages, lambda sample: find(np.asarray(sample.tensor)))
    listen(options.name, TRACKS, "latest", messages, lambda sample: row(sample, 4))
    print(f"viewer waits for {FRAMES} and {TRACKS} of {options.name}", flush=True)
    frames, tracks, clock, seen = Hop(FRAMES), Hop(TRACKS), Clock(), 0
    disc: tuple[int, Any] | None = None
    track: Track | None = None
    while options.count == 0 or seen < options.count:
        arrival = following(messages, clock)
        if arrival and arrival.topic == FRAMES:
            frames.take(arrival)
            disc = (arrival.sequence, arrival.content) if arrival.content else None
            seen += 1
        elif arrival:
            tracks.take(arrival)
            track = Track(arrival.sequence, *arrival.content) if arrival.content else None
        if clock.strikes():
            print(f"viewer: {frames.report()}\n        {tracks.report()}")
            if disc and track:
                sequence, (seen_x, seen_y, _area) = disc
                x, y = track.at(sequence)
                off, behind = math.hypot(x - seen_x, y - seen_y), sequence - track.sequence
                print(
                    f"        frame {sequence}: disc at {seen_x:.1f}, {seen_y:.1f}; "
                    f"track {behind} frames behind, {off:.1f} pixels off",
                    flush=True,
                )
            else:
                print("        no track", flush=True)


def logger(options: argparse.Namespace) -> None:
    messages: queue.Queue[Any] = queue.Queue()
    with open(options.log, "a", buffering=1) as log:
        if log.tell() == 0:
            log.write("topic,sequence,age_us,missed,restarted,x,y,vx,vy\n")
        listen(options.name, FRAMES, "every", messages, lambda _: [])
        listen(options.name, DETECTIONS, "every", messages, lambda sample: (row(sample, 3) or [])[:2])
        listen(options.name, TRACKS, "every", messages, lambda sample: row(sample, 4) or [])
        hops = {topic: Hop(topic) for topic in (FRAMES, DETECTIONS, TRACKS)}
        print(f"logger waits for {FRAMES}, {DETECTIONS} and {TRACKS} of {options.name}", flush=True)
        clock, count = Clock(), 0
        while options.count == 0 or count < options.count:
            arrival = following(messages, clock)
            if arrival:
                hops[arrival.topic].take(arrival)
                about = [arrival.sequence, int(arrival.age * 1e6), arrival.missed, int(arrival.restarted)]
                numbers = [*(f"{value:.3f}" for value in arrival.content), "", "", "", ""][:4]
                log.write(",".join(map(str, [arrival.topic, *about, *numbers])) + "\n")
                count += arrival.topic == TRACKS
            if clock.strikes():
                for hop in hops.values():
                    print(f"logger: {hop.report()}", flush=True)


NODES = {node.__name__: node for node in (camera, detector, tracker, viewer, logger)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="robot", description="A node of a robot's pipeline.")
    parser.add_argument("--name", default="robot", help="the robot: nodes of one name work together")
    parser.add_argument("--count", type=int, default=0, help="ends the node after so many messages; 0: never")
    nodes = parser.add_subparsers(dest="node", required=True, metavar="NODE", help=", ".join(NODES))
    commands = {name: nodes.add_parser(name) for name in NODES}
    for command in commands.values():
        command.add_argument("--name", default=argparse.SUPPRESS)
        command.add_argument("--count", type=int, default=argparse.SUPPRESS)
    commands["camera"].add_argument("--rate", type=float, default=60.0, help="frames a second; 0: as fast as possible")
    commands["camera"].add_argument("--height", type=int, default=1080)
    commands["camera"].add_argument("--width", type=int, default=1920)
    commands["detector"].add_argument("--slow", type=float, default=0.0, help="milliseconds beside the work on a frame")
    commands["logger"].add_argument("--log", default="robot.csv")
    options = parser.parse_args()
    NODES[options.node](options)


if __name__ == "__main__":
    main()
