"""What the tests of whole programs share: drawn digits as record files, jobs under observation, survivors."""

import atexit
import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

SOURCE_DIR = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get("PACELINE_PROGRAMS", SOURCE_DIR / "build" / "cpu" / "bin"))
LAUNCHER = [sys.executable, str(SOURCE_DIR / "tools" / "launch.py")]
PATIENCE = 150  # seconds after which something is taken to hang; nothing takes nearly as long
RESULT_KEYS = {
    "mode", "network", "workers", "servers", "epochs", "test_accuracy", "test_loss", "train_seconds",
    "images_per_second", "delay_mean", "delay_p50", "delay_p99", "checkpoint",
}  # fmt: skip


def program(name):
    return str(PROGRAMS / name)


_data = None


def data_folder():
    """A folder with train.manifest (6,000 digits, 4 shards) and test.manifest (1,000), made once per test program."""
    global _data
    if _data is None:
        _data = pathlib.Path(tempfile.mkdtemp(prefix="programs-data-"))
        atexit.register(shutil.rmtree, _data, ignore_errors=True)

        def run(*command):
            subprocess.run(command, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        run(program("draw_digits"), "--train", "6000", "--test", "1000", "--seed", "7", "--out", str(_data / "idx"))
        for name, source in (("train", "train"), ("test", "t10k")):
            images = str(_data / "idx" / f"{source}-images-idx3-ubyte.gz")
            # Records of one size, so that a test can name a place in them.
            run(program("im2rec"), "--encoding", "raw", "--shards", "4", str(_data / name), images)
    return _data


class Ended:
    """A program that has ended: its exit code and what it printed."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def text(self):
        return self.out + self.err

    @property
    def result(self):
        return json.loads(self.out.splitlines()[-1])

    def __str__(self):
        return f"exit code {self.code} after {self.seconds:.1f} s\n--- out\n{self.out}\n--- err\n{self.err}"


class ProgramTest(unittest.TestCase):
    """A folder of its own, an environment whose token marks every process that a test starts."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="programs-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = uuid.uuid4().hex
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("DMLC_", "PACELINE_"))}  # fmt: skip
        self.environment["PROGRAM_TEST"] = self.token
        self.environment["PACELINE_KEY_FILE"] = str(self.folder / "job.key")
        descriptor = os.open(self.folder / "job.key", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, secrets.token_hex(32).encode())
        os.close(descriptor)
        self.started = []
        self.addCleanup(self.kill_survivors)

    def start(self, *command, **environment):
        files = [self.folder / f"{name}-{len(self.started)}" for name in ("out", "err")]
        streams = [path.open("wb") for path in files]
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=self.folder,
            env={**self.environment, **{key: str(value) for key, value in environment.items()}},
            stdin=subprocess.DEVNULL,
            # Files, not pipes: a test looks at them while the program runs.
            stdout=streams[0],
            stderr=streams[1],
        )
        for stream in streams:
            stream.close()
        process.files = files
        process.began = time.monotonic()
        self.started.append(process)
        return process

    def output(self, process):
        return "".join(path.read_text(errors="replace") for path in process.files)

    def finish(self, process, patience=PATIENCE):
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.fail(f"{process.args} hangs; it printed:\n{self.output(process)}")
        seconds = time.monotonic() - process.began
        return Ended(process.returncode, *(path.read_text(errors="replace") for path in process.files), seconds)

    def run_program(self, *command, patience=PATIENCE, **environment):
        return self.finish(self.start(*command, **environment), patience)

    def start_job(self, mode, *arguments, workers=2, servers=2, launch=(), network="lenet", epochs=3, environment=()):
        """Trains on the drawn digits under the launcher."""
        data = data_folder()
        return self.start(
            *LAUNCHER, "-n", workers, "-s", servers, *launch, program("mnist"), "--kvstore", mode, "--network", network,
            "--train", data / "train.manifest", "--test", data / "test.manifest", "--epochs", epochs, *arguments,
            **dict(environment),
        )  # fmt: skip

    def slow_steps(self):
        """For `launch`: each step waits for the network, so that a job lasts without keeping the cores busy.

        47 steps of an epoch take about 8 s with two workers. The scheduler answers for 5 s behind the end, as under
        every fault plan.
        """
        (self.folder / "slow_steps").write_text("delay 50ms worker*->server* of push_pull\n")
        return ("--faults", "slow_steps")

    def run_job(self, mode, *arguments, **options):
        return self.finish(self.start_job(mode, *arguments, **options))

    def evaluate(self, checkpoint, network="lenet"):
        """The accuracy of a checkpoint in a fresh process."""
        ended = self.run_program(program("mnist"), "--evaluate", checkpoint, "--network", network,
                                 "--test", data_folder() / "test.manifest")  # fmt: skip
        self.assertEqual(ended.code, 0, ended)
        return ended.result["test_accuracy"]

    def wait_until(self, condition, what, process=None):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"waited {PATIENCE} s in vain: {what}\n" + (self.output(process) if process else ""))
            if process is not None and process.poll() is not None:
                self.assertTrue(condition(), f"{what}: ended with {process.returncode}\n{self.output(process)}")
                return
            time.sleep(0.02)

    def wait_for_line(self, process, expression):
        """Until the program has printed a line that matches; returns the match."""
        self.wait_until(lambda: re.search(expression, self.output(process)), f"no line {expression}", process)
        return re.search(expression, self.output(process))

    def survivors(self):
        """The living processes that carry the test's token, with the roles of a job in them."""
        found = {}
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                entries = path.read_bytes().split(b"\0")
                if b"PROGRAM_TEST=" + self.token.encode() in entries:
                    variables = dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)
                    found[int(path.parent.name)] = variables
        return found

    def kill_survivors(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid in self.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def assert_nothing_survives(self):
        self.wait_until(lambda: not self.survivors(), "processes are still there")

    def process_of(self, role, task):
        """The program, not the shell around it, that plays a part in the job that runs."""
        for pid, variables in self.survivors().items():
            if variables.get("DMLC_ROLE") == role and variables.get("DMLC_TASK_ID") == str(task):
                if self.is_program(pid):
                    return pid
        return None

    @staticmethod
    def is_program(pid):
        """One of ours, not a shell."""
        with contextlib.suppress(OSError):
            return os.path.realpath(f"/proc/{pid}/exe").startswith(os.path.realpath(PROGRAMS))
        return False

    def kill(self, role, task):
        self.wait_until(lambda: self.process_of(role, task), f"no {role} {task}")
        os.kill(self.process_of(role, task), signal.SIGKILL)

    def assert_one_clear_sentence(self, ended, *words, code=None):
        """Refused, without an abort, a hang or a trace, with a message that holds the words."""
        self.assertGreater(ended.code, 0, f"not refused, or ended by a signal: {ended}")
        if code is not None:
            self.assertEqual(ended.code, code, ended)
        for word in words:
            self.assertIn(str(word), ended.err, ended)
        for ugly in ("Traceback", "terminate called", "Check failed", "core dumped", "*** "):
            self.assertNotIn(ugly, ended.text, ended)


def tensors_of(checkpoint):
    """Name -> bytes of a safetensors file, and its metadata."""
    raw = pathlib.Path(checkpoint).read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    body = raw[8 + size :]
    # The store counts the examples that each key was trained on.
    metadata["examples"] = [int(metadata[name]) for name in metadata if name.startswith("counter:examples:")]
    return {name: body[slice(*entry["data_offsets"])] for name, entry in header.items()}, metadata
