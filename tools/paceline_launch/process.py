"""One process of the job, started through the bootstrap script here or on another host, and what it prints."""

import collections
import contextlib
import errno
import fcntl
import os
import queue
import secrets
import select
import signal
import subprocess
import threading
import time

from . import UsageError

_READ_SIZE = 1 << 16
_LONGEST_LINE = 1 << 20  # a longer one is passed on in pieces
_LINES_KEPT = 20
_LOST_CONNECTION = 255  # what ssh exits with when it fails itself


class Console:
    """Passes lines on. A reader that falls behind holds back the processes that print; one that left is forgotten."""

    def __init__(self, log_dir):
        self.log_dir = log_dir
        self.output_lost = False  # standard output could not be written, and not because its reader has left
        self._locks = {1: threading.Lock(), 2: threading.Lock()}
        self._lost = set()
        self._full = False
        self._log = self._own_log()
        self._said = queue.SimpleQueue()
        self._speaker = threading.Thread(target=self._speak, daemon=True)
        self._speaker.start()

    def _own_log(self):
        """The launcher's own log. A lock on it keeps other jobs out of the folder."""
        log = self.open_log("launch", "ab")
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = f"another job writes to the folder {self.log_dir}; choose another with --log-dir"
            raise UsageError(reason) from None
        except OSError:
            pass  # some network file systems have no locks
        log.truncate(0)
        return log

    def open_log(self, name, how="wb"):
        """Open as long as the launcher lives."""
        path = os.path.join(self.log_dir, f"{name}.log")
        try:
            return open(path, how, buffering=0)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}; choose a folder with --log-dir") from error

    def keep(self, log, line):
        """A log that cannot be written (the disk is full) is a pity, and no reason to end the job."""
        try:
            log.write(line + b"\n")
        except OSError as error:
            if not self._full:
                self._full = True
                self.say(
                    f"{log.name} cannot be written ({error.strerror}); the job goes on, its output is incomplete there"
                )

    def write(self, stream, line):
        """`stream` is 1 or 2. Without a buffer in between, so that nothing is left to be flushed at the end."""
        with self._locks[stream]:
            rest = memoryview(line + b"\n")
            while rest and stream not in self._lost:
                try:
                    rest = rest[os.write(stream, rest) :]
                except BlockingIOError:
                    select.select([], [stream], [])
                except OSError as error:
                    self._lost.add(stream)  # the log folder still gets everything
                    if stream == 1 and error.errno not in (errno.EPIPE, errno.EIO):  # the reader or terminal has left
                        self.output_lost = True
                        self.say(f"cannot write to standard output: {error.strerror}; the rest is in {self.log_dir}")

    def say(self, text):
        """Never blocks: nobody may be reading standard error, and the launcher must go on."""
        try:
            line = os.fsencode(text)
        except UnicodeEncodeError:  # a character that the locale does not have
            line = text.encode("utf-8", "surrogateescape")
        self.keep(self._log, line)
        self._said.put(line)

    def _speak(self):
        while (line := self._said.get()) is not None:
            self.write(2, b"[launch] " + line)

    def close(self, patience, give_up):
        """Waits until all is said, for at most `patience` seconds and while give_up() is false."""
        self._said.put(None)
        deadline = time.monotonic() + patience
        while self._speaker.is_alive() and time.monotonic() < deadline and not give_up():
            self._speaker.join(0.1)


class Process:
    """Puts itself into `events` when it has started and when it has ended; see `started` and `status`."""

    def __init__(self, role, task, host, console, events):
        self.role = role
        self.task = task
        self.host = host  # None: this machine
        self.mark = secrets.token_hex(8)
        self.started = False
        self.ended = False
        self.status = None  # exit code, 128 + number for a signal
        self.never_left = False  # the scheduler counts it as lost, though it ended well
        self.memory_exhausted = False  # the kernel killed it, or another process of its control group, for memory
        self.last_lines = collections.deque(maxlen=_LINES_KEPT)
        self.last_output = b""  # the last line on standard output
        self._console = console
        self._events = events
        self._popen = None
        self._control_lock = threading.Lock()
        self._script_sent = False
        self._untold = b""
        self._status_reported = False
        self._log = None

    @property
    def name(self):
        return f"{self.role} {self.task}"

    @property
    def place(self):
        return f"{self.name} on {self.host.login if self.host else 'this machine'}"

    @property
    def running(self):
        return self._popen is not None and not self.ended

    @property
    def failed(self):
        """It ended by a fault of its own: not well, and neither SIGTERM nor SIGKILL nor the loss of its host did it."""
        from_outside = self.status in (128 + signal.SIGTERM, 128 + signal.SIGKILL) and not self.memory_exhausted
        well = self.status == 0 and not self.never_left
        return self.ended and not well and not from_outside and not self.connection_lost

    @property
    def connection_lost(self):
        """ssh failed, not the process."""
        return self.ended and self.host is not None and not self._status_reported

    def start(self, argv, script):
        """`argv` runs a `/bin/sh -s` somewhere; `script` is what it shall do."""
        self._log = self._console.open_log(f"{self.role}-{self.task}")
        # A session of its own keeps the terminal's Ctrl-C away: it is the launcher who ends processes, in order.
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            # That of a job that this launcher is a process of; see bootstrap.py.
            env={name: value for name, value in os.environ.items() if name != "PACELINE_PROCESS_ID"},
        )
        readers = [
            threading.Thread(target=self._read, args=(number, stream), daemon=True)
            for number, stream in ((1, self._popen.stdout), (2, self._popen.stderr))
        ]
        try:
            for thread in (*readers, threading.Thread(target=self._supervise, args=(script, readers), daemon=True)):
                thread.start()
        except RuntimeError:  # no further thread
            self._popen.kill()
            self._popen.wait()
            self._popen = None
            raise

    def tell(self, word):
        """Sends a word of the control connection; see bootstrap.py. Never blocks.

        Words wait until the process has started: a shell that still reads the script would take them as part of it.
        The empty one, a sign of life, does not matter then, but the limit on silence counts from the script on.
        """
        with self._control_lock:
            if not word:
                if self._script_sent:
                    self._write(b"\n")
                return
            self._untold += word.encode() + b"\n"
            if self.started:
                self._send_untold()

    def _send_untold(self):
        self._write(self._untold)
        self._untold = b""

    def _write(self, words):
        if self._popen and not self._popen.stdin.closed:
            with contextlib.suppress(OSError):  # it is ending or has ended
                self._popen.stdin.write(words)

    def disconnect(self):
        """Ends ssh, or the shell that looks after the process here; what it has started then ends itself."""
        self._popen.kill()

    def _supervise(self, script, readers):
        try:
            rest = memoryview(script)
            while rest:
                rest = rest[self._popen.stdin.write(rest) :]
            os.set_blocking(self._popen.stdin.fileno(), False)
            self._script_sent = True
        except OSError:
            pass  # ssh could not connect; its own words and exit code follow
        code = self._popen.wait()
        with self._control_lock:
            self._popen.stdin.close()
        for reader in readers:
            reader.join(timeout=5)  # a process that escaped may hold the pipe open
        if not self._status_reported:
            self.status = _LOST_CONNECTION if self.host else (128 - code if code < 0 else code)
        self.ended = True
        self._events.put(("ended", self))

    def _read(self, number, stream):
        pending = b""
        while True:
            try:
                chunk = os.read(stream.fileno(), _READ_SIZE)
            except (OSError, ValueError):
                chunk = b""
            *lines, pending = (pending + chunk).split(b"\n")
            if pending and (not chunk or len(pending) >= _LONGEST_LINE):
                lines.append(pending)
                pending = b""
            for line in lines:
                self._take_line(number, line)
            if not chunk:
                return

    def _take_line(self, number, line):
        if number == 2 and self.mark.encode() in line:
            line, _, report = line.partition(self.mark.encode())
            word, _, value = report.decode().strip().partition(" ")
            if word == "started":
                with self._control_lock:
                    self.started = True
                    self._send_untold()
                self._events.put(("started", self))
            elif word == "ended":
                status, *why = value.split()
                self.status = int(status)
                self.memory_exhausted = why == ["memory"]
                self._status_reported = True
            if not line:
                return
        if number == 1 and line.strip():
            self.last_output = line
        self.last_lines.append(line)
        self._console.keep(self._log, line)
        self._console.write(number, f"[{self.name}] ".encode() + line)


def describe_status(status):
    if status > 128:
        try:
            return f"was ended by signal {status - 128} ({signal.Signals(status - 128).name})"
        except ValueError:
            pass
    return f"ended with exit code {status}"
