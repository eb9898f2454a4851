"""A stranger at every port of a job: messages, handshakes, held connections and replayed traffic, drawn by seed.

    python3 tests/programs/stranger_campaign.py --seed 1 [--insecure] [--mode ring]

The job must end with exit code 0 and with the weights of a job that nobody disturbed. The memory of each process may
grow by 64 MB, and each log by 200 lines, all of which the program prints. With secrets a stranger may read no more than
the first bytes of a handshake. The stranger reads the traffic of the loopback interface, so it needs CAP_NET_RAW; in a
job without secrets it then knows the numbers of the job and of its members, and speaks with them.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import re
import resource
import selectors
import signal
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from recorder import Recorder  # noqa: E402
from support import SOURCE_DIR, ProgramTest, tensors_of  # noqa: E402
from test_secrets import (  # noqa: E402
    FLOOD,
    MOST_GROWTH,
    OPENINGS,
    READY,
    greeting,
    long_frame,
    memory_of,
    ports_of,
)

WORKERS, SERVERS, EPOCHS = 2, 2, 30
MOST_LINES = 200  # that strangers add to the log of a process
MOST_KEPT = 1 << 18  # bytes of a recorded connection
MOST_READ = 1000  # bytes that a port with secrets says on one connection: a greeting, and what refuses
IN_ONE = 50  # messages on one connection; eight malformed ones end it
MAGIC = b"PCL\x01\x02"
HEAD = struct.Struct("<4sBBHQQQQIIQ16s")
KINDS = [int(number) for number in re.findall(r"^  k\w+ = (\d+),", (SOURCE_DIR / "kvstore/net/message.h").read_text(),
                                              re.MULTILINE)]  # fmt: skip
PROBE = 8
PROVISIONAL = 1 << 63
PATIENCE = 20  # seconds for what is said on one connection


class Words:
    """Messages drawn by seed. In a job without secrets they carry what the stranger has read."""

    def __init__(self, rng, recorded):
        self.rng, self.jobs, self.incarnations, self.bodies = rng, [0], [0], [b""]
        for stream in recorded:
            for found in re.finditer(re.escape(MAGIC), stream):
                head = stream[found.start() : found.start() + HEAD.size]
                if len(head) == HEAD.size:
                    fields = HEAD.unpack(head)
                    self.jobs.append(fields[4])
                    self.incarnations.append(fields[5])
                    if fields[8] < 4096:
                        begin = found.start() + HEAD.size
                        self.bodies.append(stream[begin : begin + fields[8]])
        self.jobs = sorted(set(self.jobs))
        self.incarnations = sorted(set(self.incarnations))
        self.bodies = sorted(set(self.bodies))[:5000]

    def body(self):
        rng = self.rng
        body = bytearray(rng.choice(self.bodies))
        what = rng.random()
        if what < 0.2:
            return rng.randbytes(rng.randrange(60))
        if what < 0.7 and body:
            for _ in range(rng.randrange(1, 4)):
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        return bytes(body)

    def message(self):
        """One message as frames of ZMTP."""
        rng = self.rng
        body = self.body()
        payload = [rng.randbytes(rng.choice((0, 4, 64, 256))) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        incarnation = rng.choice(
            (rng.choice(self.incarnations), rng.getrandbits(63), PROVISIONAL | rng.getrandbits(62))
        )
        job = rng.choice(self.jobs) if rng.random() < 0.9 else rng.getrandbits(64)
        request = rng.choice((0, rng.randrange(1, 2000), rng.getrandbits(64)))
        frames = self.encode(rng.choice(KINDS), job, incarnation, request, rng.randrange(12), body, payload)
        if rng.random() < 0.003:
            frames = bytearray(frames)
            frames[9 + rng.randrange(HEAD.size)] ^= 1 << rng.randrange(8)
        return bytes(frames)

    @staticmethod
    def encode(kind, job, incarnation, request, epoch, body, payload):
        head = HEAD.pack(MAGIC[:4], MAGIC[4], kind, 0, job, incarnation, request, epoch, len(body), len(payload),
                         sum(map(len, payload)), b"")  # fmt: skip
        frames = [head + body, *payload]
        return b"".join(long_frame(i + 1 < len(frames), frame) for i, frame in enumerate(frames))


class Stranger:
    """Speaks to one port. Counts what it said and heard."""

    def __init__(self, port, rng, words):
        self.port, self.rng, self.words = port, rng, words
        self.messages = self.handshakes = self.replayed = self.flood = self.most_read = self.asked = self.answered = (
            self.links
        ) = 0

    def connect(self, shakes_hands=False):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        if shakes_hands:
            connection.sendall(greeting(b"NULL") + READY)
            heard = b""
            while b"READY" not in heard:  # ZeroMQ takes no message before it has said that itself
                got = connection.recv(1 << 10)
                heard += got
                if not got:
                    connection.close()
                    raise ConnectionError("the port hung up")
        return connection

    def say(self, data, last=b"", patience=PATIENCE, shakes_hands=False):
        """Over a connection of its own. True: all was sent and `last` came back in time."""
        heard, read, whole = b"", 0, False
        with (
            contextlib.suppress(OSError),
            self.connect(shakes_hands) as connection,
            selectors.DefaultSelector() as ready,
        ):
            connection.setblocking(False)
            ready.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
            view, give_up = memoryview(data), time.monotonic() + patience
            while not whole and time.monotonic() < give_up:
                for _, events in ready.select(timeout=min(1, patience)):
                    if events & selectors.EVENT_READ:
                        got = connection.recv(1 << 16)
                        read += len(got)
                        self.most_read = max(self.most_read, read)
                        if not got:
                            return False
                        heard = heard[-len(last) :] + got
                    if events & selectors.EVENT_WRITE:
                        view = view[connection.send(view[: 1 << 16]) :]
                        if len(view) == 0:
                            ready.modify(connection, selectors.EVENT_READ)
                whole = len(view) == 0 and last in heard
        return whole

    def listen(self, data):
        """To whatever is answered."""
        self.say(data, b"nothing that is ever said", 0.2)

    def opening(self):
        """A handshake, whole, cut or damaged, and what may follow."""
        rng = self.rng
        data = bytearray(rng.choice(list(OPENINGS.values())))
        what = rng.random()
        if what < 0.3:
            del data[rng.randrange(len(data)) :]
        elif what < 0.6:
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.2:
            data += bytes([2]) + (1 << rng.choice((40, 62, 63))).to_bytes(8, "big") + b"x" * 100
        return bytes(data)

    def shake_hands(self, number):
        for _ in range(number):
            opening = self.opening()
            if self.rng.random() < 0.1:
                self.listen(opening)
            else:
                self.say(opening)
            self.handshakes += 1

    def talk(self, number):
        """Some connections hear the answers, the others never read."""
        silent = collections.deque(maxlen=50)
        while self.messages < number:
            count = min(IN_ONE, number - self.messages)
            data = b"".join(self.words.message() for _ in range(count))
            self.messages += count
            if self.rng.random() < 0.8:
                request = self.rng.getrandbits(64)
                probe = self.words.encode(PROBE, self.words.jobs[-1], PROVISIONAL | 5, request, 0, b"1", [])
                self.asked += 1
                self.answered += self.say(data + probe, struct.pack("<Q", request), shakes_hands=True)
            else:
                with contextlib.suppress(OSError):
                    connection = self.connect(shakes_hands=True)
                    silent.append(connection)
                    connection.settimeout(1)
                    connection.sendall(data)

    def connect_and_go(self, number):
        """More connections than a process keeps the links of, with a message each."""
        for _ in range(number):
            with contextlib.suppress(OSError), self.connect(shakes_hands=True) as connection:
                connection.sendall(self.words.message())
                self.links += 1

    def replay(self, streams, disguised):
        """`disguised`: under a name of its own. Without secrets, who shows a name that it has read takes its place."""
        for stream in streams:
            if disguised:
                stream = re.sub(
                    rb"(Identity\0\0\0\x11P).{16}", lambda m: m[1] + self.rng.randbytes(16), stream, flags=re.DOTALL
                )
            for cut in (len(stream), self.rng.randrange(len(stream) + 1)):
                self.listen(stream[:cut])
            self.replayed += 1

    def never_end(self):
        """One message of more and more frames; the bytes that went."""
        with contextlib.suppress(OSError), self.connect() as connection:
            connection.sendall(greeting(b"NULL") + READY)
            time.sleep(0.1)
            part = long_frame(1, bytes(1 << 16))
            while self.flood < FLOOD:
                connection.sendall(part)
                self.flood += len(part)

    @contextlib.contextmanager
    def held(self, number):
        """Connections that say little and stay."""
        with contextlib.ExitStack() as stack:
            for i in range(number):
                with contextlib.suppress(OSError):
                    connection = stack.enter_context(self.connect())
                    connection.sendall((b"", greeting(b"NULL"), greeting(b"NULL") + READY)[i % 3])
            yield


class Campaign(ProgramTest):
    def runTest(self):
        pass

    def start_training(self, given):
        environment = {"PACELINE_TRANSPORT": "tcp", "PACELINE_SILENCE_DEADLINE": 3600, "PACELINE_NUM_THREADS": 1}
        if given.insecure:
            environment["PACELINE_INSECURE"] = 1
        servers = 0 if given.mode == "ring" else SERVERS
        job = self.start_job(given.mode, "--log_every", 10, "--checkpoint", "ck", network="mlp", epochs=given.epochs,
                             workers=WORKERS, servers=servers, launch=("--log-dir", "logs"),
                             environment=environment)  # fmt: skip
        self.wait_for_line(job, r"\[worker \d\] epoch 1  step")
        parts = [("scheduler", 0), *(("server", i) for i in range(servers)), *(("worker", i) for i in range(WORKERS))]
        return job, {f"{role}-{task}": self.process_of(role, task) for role, task in parts}

    def weights(self, job):
        ended = self.finish(job, patience=1200)
        self.assertEqual(ended.code, 0, ended)
        return tensors_of(self.folder / ended.result["checkpoint"])[0]

    def lines(self, name):
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace").splitlines()

    @contextlib.contextmanager
    def held_before_its_end(self, job, pids, epochs):
        """The workers stop in the last epoch, so that the job is there as long as strangers speak. Yields a function
        that lets the process go on whose port is attacked, and stops the other workers."""
        workers = {pid for name, pid in pids.items() if name.startswith("worker")}
        leave, lock, held, attacked = threading.Event(), threading.Lock(), False, None

        def stop_others():
            for pid in workers - {attacked}:
                os.kill(pid, signal.SIGSTOP)
            if attacked in workers:
                os.kill(attacked, signal.SIGCONT)

        def let_go_on(pid):
            nonlocal attacked
            with lock:
                attacked = pid
                if held:
                    stop_others()

        def watch():
            nonlocal held
            while not leave.wait(0.1):
                if re.search(rf"\[worker \d\] epoch {epochs}  step", self.output(job)):
                    with lock:
                        held = True
                        stop_others()
                    print("the job waits in its last epoch", flush=True)
                    leave.wait()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield let_go_on
        finally:
            leave.set()
            watcher.join()
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def roles_streams(recorder, pids):
    """What was recorded, by the role whose port it went to."""
    streams = collections.defaultdict(list)
    for name, pid in pids.items():
        for port in ports_of(pid):
            streams[name].extend(recorder.to(port))
    return streams


def attack(campaign, given, recorder, older, job, pids, let_go_on):
    ports = [(name, port) for name, pid in pids.items() for port in sorted(ports_of(pid))]
    before = {name: memory_of(pid) for name, pid in pids.items()}
    own = roles_streams(recorder, pids)
    known = [stream for streams in own.values() for stream in streams] if given.insecure else []
    recorder.stop()
    for number, (name, port) in enumerate(ports):
        rng, begin = random.Random(given.seed * 1000 + number), time.monotonic()
        let_go_on(pids[name])
        stranger = Stranger(port, rng, Words(rng, known))
        with stranger.held(given.connections):
            stranger.shake_hands(given.handshakes)
            stranger.talk(given.messages)
            if given.insecure:
                stranger.connect_and_go(given.links)
            stranger.replay([*own[name], *older[name]], disguised=given.insecure)
            if not given.insecure:
                stranger.never_end()
        print(f"{name}, port {number}: {stranger.messages} messages (the last of {stranger.answered} of "
              f"{stranger.asked} connections was answered), {stranger.links} links, {stranger.handshakes} handshakes, "
              f"{given.connections} held, {stranger.replayed} connections replayed, at most {stranger.most_read} "
              f"bytes read on one, {time.monotonic() - begin:.0f} s", flush=True)  # fmt: skip
        gone = [name for name, pid in pids.items() if not pathlib.Path(f"/proc/{pid}/exe").exists()]
        if gone:
            campaign.fail(f"{', '.join(gone)} ended: {campaign.finish(job)}")
        campaign.assertLess(stranger.flood, FLOOD, "a message that never ends was taken")
        if given.insecure:
            campaign.assertGreater(stranger.answered, stranger.asked / 2, f"{name} did not hear the stranger out")
        else:
            campaign.assertEqual(stranger.answered, 0, f"{name} answered")
            campaign.assertLess(stranger.most_read, MOST_READ, f"read at {name}")
    for name, pid in pids.items():
        grown = memory_of(pid) - before[name]
        print(f"{name}: memory {before[name] >> 20} MB, grown by {grown / (1 << 20):.1f} MB", flush=True)
        campaign.assertLess(grown, MOST_GROWTH, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", type=int, default=1_000_000, help="at each port (default: 10^6)")
    parser.add_argument("--handshakes", type=int, default=10_000, help="at each port (default: 10^4)")
    parser.add_argument("--connections", type=int, default=1000, help="held at each port (default: 1000)")
    parser.add_argument("--links", type=int, default=70_000, help="made at each port without secrets (default: 70000)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of the job (default: {EPOCHS})")
    parser.add_argument("--mode", choices=("dist_sync", "ring"), default="dist_sync")
    parser.add_argument("--insecure", action="store_true", help="a job without secrets")
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    campaign, recorder = Campaign(), Recorder(MOST_KEPT)
    try:
        campaign.setUp()
        job, pids = campaign.start_training(given)
        older = roles_streams(recorder, pids)
        undisturbed = campaign.weights(job)
        quiet = {name: len(campaign.lines(name)) for name in pids}
        campaign.doCleanups()

        campaign.setUp()
        job, pids = campaign.start_training(given)
        with campaign.held_before_its_end(job, pids, given.epochs) as let_go_on:
            attack(campaign, given, recorder, older, job, pids, let_go_on)
        campaign.assertTrue(campaign.weights(job) == undisturbed, "other weights than undisturbed")
        for name in pids:
            lines = campaign.lines(name)
            if not name.startswith("worker"):
                campaign.assertRegex("\n".join(lines), "turned away somebody", name)
            more = len(lines) - quiet[name]
            print(f"{name}: {more} lines more in its log, as: "
                  f"{next((line for line in lines if 'turned away' in line or 'dropped' in line), 'none')}",
                  flush=True)  # fmt: skip
            campaign.assertLess(more, MOST_LINES, name)
        campaign.assert_nothing_survives()
    except AssertionError as failure:
        print(f"FAILED: {failure}", flush=True)
        return 1
    finally:
        campaign.doCleanups()
        recorder.stop()
    print("the stranger changed nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
