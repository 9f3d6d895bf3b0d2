"""Forks, borrowed names, stopped processes, descriptors in flight."""

import array
import os
import resource
import signal
import socket
import struct
import subprocess
import time

import kernel
import wire
from stage import PATIENCE, Child, Ended, Skip, Wrong, attack
from wire import HELLO, PACKETS, SEGMENT, Refused, packet


@attack
def forked(stage):
    """Connects and forks; the parent ends, the child goes on with the inherited socket and memory."""
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        link = stage.link()
        assert link.echo()
        if os.fork():
            os._exit(0)
        # The server may end the link, as the process that greeted it is gone, or go on.
        time.sleep(0.05)
        try:
            told = b"alive" if link.echo(seconds=1) else b"stuck"
        except (Ended, OSError):
            told = b"closed"
        os.write(write, told)
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(write)
    stage.note(os.read(read, 100).decode() or "refused")


@attack
def reused_pid(stage):
    """Connects in a pid namespace, ends, and its pid is another process's at once; the socket is held."""
    if os.geteuid():
        raise Skip("a pid namespace takes root")
    read, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWPID)
        except OSError as error:
            os.write(write, f"skipped: {error.strerror}".encode())
            os._exit(0)
        if os.fork() == 0:  # pid 1 of the namespace
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            greeter = os.fork()
            if greeter == 0:
                link = stage.link()
                assert link.echo()
                ours.sendmsg([b"x"], [(1, 1, array.array("i", [link.end.fileno(), link.own.fd, link.their_fd]))])
                os._exit(0)
            theirs.recvmsg(1, socket.CMSG_SPACE(12))
            os.waitpid(greeter, 0)
            with open("/proc/sys/kernel/ns_last_pid", "w") as last:
                last.write(str(greeter - 1))
            reuser = os.fork()
            if reuser == 0:
                time.sleep(1)
                os._exit(0)
            os.write(write, b"reused" if reuser == greeter else b"not reused")
            time.sleep(0.3)
            os._exit(0)
        os.wait()
        os._exit(0)
    os.close(write)
    told = os.read(read, 100).decode()
    os.waitpid(holder, 0)
    stage.note(told or "refused")


@attack
def killed(stage):
    """Killed at full speed, in the midst of whatever it says."""
    for round in range(30 if stage.whole else 6):

        def run():
            link = stage.link()
            while True:
                link.echo(os.urandom(300))
                link.write_long(os.urandom(20000))
                link.recv()

        child = Child(run)
        time.sleep(0.02 + 0.003 * round)
        child.stop()
        stage.note("killed")


@attack
def stopped(stage):
    """Stopped in the midst of an exchange, and killed later."""

    def run():
        link = stage.link()
        while True:
            link.echo()

    child = Child(run)
    time.sleep(0.1)
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(stage.seconds(0.4, 3))
    child.stop()
    stage.note("stopped and killed")


def quiet(stage, link):
    """That the server does not compute while nobody says anything. Its processor time, of 0.5 s. Only of
    a server that serves nobody else, as SLIPRING_ALONE says."""
    if "SLIPRING_ALONE" not in os.environ:
        return
    pid, = struct.unpack_from("=i", link.end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))

    def spent():
        with open(f"/proc/{pid}/stat") as stat:
            words = stat.read().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    before = spent()
    time.sleep(0.5)
    busy = spent() - before
    stage.said["busy_of_500_ms"] = round(busy * 1e3)
    if busy > 0.25:
        raise Wrong(f"the server computes for {busy} s of 0.5 s")


def send_away(end, fds):
    return end.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))], socket.MSG_DONTWAIT)


@attack
def in_flight(stage):
    """Another process of this user has as many descriptors in flight as the kernel lets it."""
    # The kernel counts against the limit of who sends, and lets root exceed it: we must stay below ours,
    # and be above the server's.
    link = stage.link()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    fd, pairs, sent, why = os.open("/dev/null", os.O_RDONLY), [], 0, "none of ours is met"
    try:
        for _ in range(1500):
            pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            for _ in range(4):
                send_away(pairs[-1][0], [fd] * 253)
                sent += 253
            if sent > 10_000:
                break
    except OSError as error:
        why = error.strerror
    stage.said["in_flight"] = f"{sent}: {why}"
    # What needs descriptors of the server's now: new links, and its pool.
    outcomes = []
    for _ in range(20):
        try:
            other = stage.link()
            other.write(b"short")
            outcomes.append("alive" if other.recv(1) else "stuck")
            other.leave()
        except (Refused, Ended, OSError) as error:
            outcomes.append(f"{type(error).__name__} {error}")
    for outcome in set(outcomes):
        stage.note(outcome)
    quiet(stage, link)
    try:
        link.write_long(b"m" * 20000)
        stage.note("long: echoed" if link.recv(1) else "long: waits")
    except (Ended, OSError):
        stage.note("long: closed")


@attack
def thrown(stage):
    """Throws descriptors at a server that may have few: links, half-open peers, segments, frozen ones."""
    held = []
    while len(held) < 400:  # links that use up what it has, one descriptor or two each
        try:
            held.append(stage.link())
        except (Refused, Ended, OSError) as error:
            stage.note(f"links: {error}")
            break
    stage.said["links"] = len(held)
    pool, ice = wire.Segment(4096), wire.frozen(bytes(4096))
    deadline = time.monotonic() + stage.seconds(0.8, 10)
    while time.monotonic() < deadline and len(held) < 600:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.settimeout(0.3)
        try:
            end.connect("\0" + stage.name)
            if len(held) % 3 == 0:
                held.append(end)  # silent
                continue
            end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            link = stage.link(end=end)
            for number in range(20):
                fd = ice if number % 2 else pool.fd
                link.say(SEGMENT, [fd], segment=number, len=4096, flags=number % 2)
            link.write(b"", kind=PACKETS)
            held.append(link)
            stage.note("a link")
        except Refused as refusal:
            stage.note(f"refused with {refusal.code}")
        except (Ended, OSError) as error:
            stage.note(f"{type(error).__name__}")
            end.close()
            time.sleep(0.005)
    stage.said["held"] = len(held)
    first = next(one for one in held if isinstance(one, wire.Link))
    for _ in range(20):  # and some that it cannot accept
        waits = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        waits.setblocking(False)
        try:
            waits.connect("\0" + stage.name)
        except BlockingIOError:
            pass
        held.append(waits)
    quiet(stage, first)
    # Let go of, and served again.
    for one in held:
        one.close() if isinstance(one, socket.socket) else one.leave()
    again = time.monotonic()
    while True:
        try:
            assert stage.link().echo()
            break
        except (Refused, Ended, OSError):
            if time.monotonic() - again > PATIENCE:
                raise Wrong("the listener does not recover") from None
            time.sleep(0.01)
    stage.said["served_again_ms"] = round((time.monotonic() - again) * 1e3)


def listener(name):
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    end.bind("\0" + name)
    end.listen()
    end.settimeout(PATIENCE)
    return end


def client(name):
    """An honest client of the library: `echo_server NAME TEXT`."""
    program = os.environ.get("SLIPRING_ECHO") or ""
    if not os.path.exists(program):
        raise Skip("SLIPRING_ECHO names no echo_server")
    return subprocess.Popen([program, name, "hello"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def told_by(process):
    try:
        return process.communicate(timeout=20)[0].strip()
    except subprocess.TimeoutExpired:
        process.kill()
        raise Wrong("an honest client hangs") from None


@attack
def squatted(stage):
    """A name that another user took: an honest client must go, and no descriptor may arrive."""
    if os.geteuid():
        raise Skip("another user takes root")
    name = f"{stage.name}-squatted-{os.getpid()}"
    read, write = os.pipe()

    def squat():
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        end = listener(name)
        os.write(write, b"listening\n")
        taken, _ = end.accept()
        taken.settimeout(PATIENCE)
        try:
            body, found = wire.receive_packet(taken)
            os.write(write, f"{len(body)} bytes, {len(found)} descriptors\n".encode())
        except (Ended, OSError) as error:
            os.write(write, f"nothing: {type(error).__name__}\n".encode())

    child = Child(squat)
    os.read(read, 100)
    said = told_by(client(name))
    got = os.read(read, 100).decode().strip()
    child.stop()
    stage.note(f"squatter got {got}")
    stage.said["client"] = said[-200:]
    if not got.startswith("nothing") or "admit" not in said.lower() and "polic" not in said.lower():
        raise Wrong(f"the squatter got {got}, the client said {said}")


@attack
def answers(stage):
    """What an accepting side can answer to an honest client: each Hello field, Refusals, other descriptors."""
    from attacks_handshake import lies

    name = f"{stage.name}-answers-{os.getpid()}"
    end, segment = listener(name), wire.Segment(73728)
    cases = [(packet(HELLO, **{field: value}), [segment.fd]) for field, value in lies(wire.HELLO_FIELDS)]
    cases += [(packet(wire.REFUSAL, code=code), []) for code in (0, 1, 2, 3, 4, 5, (1 << 32) - 1)]
    cases += [(packet(HELLO), []), (packet(HELLO), [0]), (packet(HELLO)[:64], [segment.fd]), (b"", []), (None, [])]
    cases = cases if stage.whole else cases[::7] + cases[-5:]
    for body, fds in cases:
        process = client(name)
        taken, _ = end.accept()
        if body is not None:
            wire.send_packet(taken, body, fds)
            taken.settimeout(PATIENCE)
            try:
                wire.receive_packet(taken)
            except (Ended, OSError):
                pass
        if body == b"":
            taken.close()
        said = told_by(process)
        taken.close()
        if process.returncode != 1 or "panicked" in said:
            raise Wrong(f"the client took {body}: {said}")
        stage.note("the client refuses")
    stage.said["last"] = said
