"""A job with secrets as others see it: its key shows nowhere, and strangers at its ports change nothing."""

import collections
import contextlib
import os
import pathlib
import re
import resource
import signal
import socket
import time
import unittest

from recorder import Recorder
from support import ProgramTest, tensors_of

FLOOD = 96 << 20  # bytes that a stranger tries to send
MOST_GROWTH = 64 << 20  # of a process meanwhile
CONNECTIONS = 150
MOST_RECORDED = 16 << 20  # bytes of a connection
BLOCK = 16  # bytes that two frames share by chance never
PIECE_HEAD = 16  # bytes of a sealed piece before its ciphertext: session and number


def greeting(mechanism):
    """Of ZMTP 3.0."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + b"\0" + bytes(31)


def command(body):
    return b"\x06" + len(body).to_bytes(8, "big") + body


def long_frame(more, body):
    return bytes([2 | more]) + len(body).to_bytes(8, "big") + body


READY = command(b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00")
PLAIN_HELLO = command(b"\x05HELLO\x08paceline\x20" + b"0" * 32)
OPENINGS = {
    "noise": bytes(range(256)) * 16,
    "no mechanism": greeting(b"NULL") + READY,
    "a wrong token": greeting(b"PLAIN") + PLAIN_HELLO,
    "a wrong key": greeting(b"CURVE") + command(b"\x05HELLO\x01\x00" + os.urandom(192)),
}


def ports_of(pid):
    """The TCP ports at which a process listens."""
    sockets = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(entry))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


def large_frames(stream):
    """The frames of 1,000 bytes and more on the second socket, which ZeroMQ does not encrypt."""
    if not stream.startswith(b"\xff") or stream[12:17] != b"PLAIN":
        return
    at = 64
    while at + 9 <= len(stream):
        flags = stream[at]
        begin = at + (9 if flags & 2 else 2)
        size = int.from_bytes(stream[at + 1 : begin], "big")
        at = begin + size
        if not flags & 4 and size >= 1000 and at <= len(stream):
            yield stream[begin:at]


def memory_of(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) << 10


class Strangers(ProgramTest):
    def start_training(self):
        job = self.start_job(
            "dist_async", "--log_every", 10, network="mlp", epochs=2, launch=("--log-dir", "logs", *self.slow_steps()),
            environment={"PACELINE_TRANSPORT": "tcp", "PACELINE_SILENCE_DEADLINE": 300},
        )  # fmt: skip
        self.wait_for_line(job, r"\[worker \d\] epoch 1  step")
        return job

    @contextlib.contextmanager
    def workers_held(self, pids):
        """So that the job is there as long as the test looks at it."""
        workers = [pid for name, pid in pids.items() if name.startswith("worker")]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        yield
        for pid in workers:
            os.kill(pid, signal.SIGCONT)

    def processes(self):
        found = {}
        for pid, variables in self.survivors().items():  # once, for the job goes on meanwhile
            if self.is_program(pid):
                found[f"{variables['DMLC_ROLE']} {variables['DMLC_TASK_ID']}"] = pid
        self.assertEqual(sorted(found), ["scheduler 0", "server 0", "server 1", "worker 0", "worker 1"])
        return found

    @staticmethod
    def send(port, opening):
        """The bytes that went before the port hung up."""
        sent = 0
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(opening)
            part = long_frame(1, bytes(1 << 16))
            while sent < FLOOD:
                connection.sendall(part)
                sent += len(part)
        return sent

    def test_a_stranger_at_every_port_changes_nothing(self):
        job = self.start_training()
        pids = self.processes()
        with self.workers_held(pids):
            ports = {name: ports_of(pid) for name, pid in pids.items()}
            for name in ("scheduler 0", "server 0", "server 1"):
                self.assertEqual(len(ports[name]), 2, name)
            before = {name: memory_of(pid) for name, pid in pids.items()}
            for name, listening in ports.items():
                for port in listening:
                    for what, opening in OPENINGS.items():
                        self.assertLess(self.send(port, opening), FLOOD, f"{what} at {name}")
                    for _ in range(CONNECTIONS):
                        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
                            connection.sendall(greeting(b"NULL"))
            for name, pid in pids.items():
                self.assertLess(memory_of(pid) - before[name], MOST_GROWTH, name)
        ended = self.finish(job)
        self.assertEqual(ended.code, 0, ended)
        for name in ("scheduler-0", "server-0", "server-1"):
            lines = (self.folder / "logs" / f"{name}.log").read_text().count("turned away")
            self.assertGreater(lines, 0, name)
            self.assertLess(lines, 40, name)
        self.assert_nothing_survives()

    def test_who_connects_when_no_descriptor_is_left_is_turned_away(self):
        """Else ZeroMQ would try to accept the connection without end."""
        job = self.start_training()
        pids = self.processes()
        server = pids["server 0"]
        with self.workers_held(pids), contextlib.ExitStack() as stack:
            most = len(list(pathlib.Path(f"/proc/{server}/fd").iterdir())) + 20
            before = resource.prlimit(server, resource.RLIMIT_NOFILE)
            resource.prlimit(server, resource.RLIMIT_NOFILE, (most, before[1]))
            for port in ports_of(server):
                connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
                greeted = set()

                def is_turned_away(connection, greeted=greeted):
                    with contextlib.suppress(BlockingIOError):
                        while connection.recv(100, socket.MSG_DONTWAIT):
                            greeted.add(connection)
                        return connection not in greeted
                    return False

                self.wait_until(lambda those=connections: sum(map(is_turned_away, those)) > 50, "nobody is turned away")
            resource.prlimit(server, resource.RLIMIT_NOFILE, before)
        ended = self.finish(job)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("no file descriptor is left", (self.folder / "logs" / "server-0.log").read_text())

    def test_the_key_shows_nowhere(self):
        key = (self.folder / "job.key").read_text()
        job = self.start_training()
        pids = self.processes()
        with self.workers_held(pids):
            for pid in [*self.survivors(), job.pid]:
                for file in ("cmdline", "environ"):
                    self.assertNotIn(key.encode(), pathlib.Path(f"/proc/{pid}/{file}").read_bytes())
            for name, pid in pids.items():
                limits = pathlib.Path(f"/proc/{pid}/limits").read_text()
                self.assertRegex(limits, r"Max core file size +[01] ", name)
                if not name.startswith("worker"):
                    self.assertRegex(limits, r"Max open files +(\d+) +\1 ", name)
        ended = self.finish(job)
        self.assertEqual(ended.code, 0, ended)
        logs = "".join(path.read_text() for path in (self.folder / "logs").iterdir())
        self.assertNotIn(key, logs + ended.text)

    def test_no_sealed_frame_resembles_another(self):
        """Two jobs of equal data and one key. Messages are lost and sent again, links are cut, a worker is killed."""
        (self.folder / "plan").write_text(
            "seed 5\ndrop 0.03\nduplicate 0.03\ncut worker0,server1 at step 5 for 1s\nkill worker1 at step 15\n"
        )
        begins, frames = collections.Counter(), 0
        for checkpoint in ("one", "two"):
            try:
                recorder = Recorder(MOST_RECORDED)
            except OSError as error:
                self.skipTest(f"the network cannot be read here: {error}")
            try:
                job = self.start_job(
                    "dist_sync", "--checkpoint", checkpoint, network="mlp", epochs=1, workers=3,
                    launch=("--faults", "plan"), environment={"PACELINE_TRANSPORT": "tcp", "PACELINE_HEARTBEAT": 0.2},
                )  # fmt: skip
                ports = set()  # of this job: other tests have connections, too, and pass the same bytes on
                while job.poll() is None:
                    for pid in self.survivors():
                        with contextlib.suppress(OSError):
                            ports |= ports_of(pid)
                    time.sleep(0.2)
                ended = self.finish(job)
            finally:
                recorder.stop()
            self.assertEqual(ended.code, 0, ended)
            weights = tensors_of(self.folder / ended.result["checkpoint"])[0].values()
            plain = {tensor[at : at + BLOCK] for tensor in weights for at in range(0, len(tensor) - BLOCK, BLOCK)}
            plain = {block for block in plain if any(block)}
            for _, stream in recorder.all(ports):
                numbers = collections.Counter()
                for frame in large_frames(stream):
                    head, sealed = frame[:PIECE_HEAD], frame[PIECE_HEAD:]
                    numbers[head] += 1
                    blocks = [sealed[at : at + BLOCK] for at in range(0, len(sealed) - BLOCK, BLOCK)]
                    self.assertFalse(plain.intersection(blocks), "a weight can be read")
                    begins.update(blocks[:16])
                    frames += 1
                self.assertEqual([head for head, count in numbers.items() if count > 1], [], "a number came twice")
        self.assertGreater(frames, 100)
        self.assertEqual([block for block, count in begins.items() if count > 1], [])


if __name__ == "__main__":
    unittest.main()
