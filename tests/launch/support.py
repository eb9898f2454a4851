"""What the launcher's tests share: stub programs, a launcher under observation, and the search for survivors."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import uuid

SOURCE_DIR = pathlib.Path(__file__).resolve().parents[2]
LAUNCHER = SOURCE_DIR / "tools" / "launch.py"
PATIENCE = 60  # seconds after which something is taken to hang; nothing takes nearly as long

sys.path.insert(0, str(SOURCE_DIR / "tools"))

# Keeps the contract of paceline_server: the scheduler writes its port, and all end when every worker has said `done`.
STUB_SERVER = """\
    #!/bin/sh
    [ $# = 0 ] || exit 0
    if [ "$DMLC_ROLE" = scheduler ]; then
      echo "$DMLC_PS_ROOT_URI ${STUB_PORT:-4242}" >"$PACELINE_PORT_FILE.new"
      mv "$PACELINE_PORT_FILE.new" "$PACELINE_PORT_FILE"
    fi
    touch "$STUB_DIR/$DMLC_ROLE-$DMLC_TASK_ID-runs"
    eval "$STUB_SERVER_DOES"
    until [ "$(ls "$STUB_DIR" | grep -c '^done-')" -ge "$DMLC_NUM_WORKER" ]; do sleep 0.05; done
"""

# Says that it was asked to end, and leaves children that do not. Saying so starts no process: on a busy machine it
# might not run within the grace, and SIGTERM would also end it, after which the shell leaves without its trap (set -e).
LONG_WORKER = """
    trap ': >"$STUB_DIR/asked-$DMLC_TASK_ID"; exit 1' TERM
    (trap '' TERM; exec setsid sleep 1000) &
    sleep 1000 &
    : >"$STUB_DIR/up-$DMLC_TASK_ID"
    wait
"""


class LauncherTest(unittest.TestCase):
    launcher = LAUNCHER

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="launch-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.stub_dir = self.folder / "stub"
        self.stub_dir.mkdir()
        self.token = uuid.uuid4().hex
        self.program("bin/paceline_server", STUB_SERVER)
        self.environment = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "STUB_DIR": str(self.stub_dir),
            "LAUNCH_TEST": self.token,
            "HOME": os.environ.get("HOME", "/"),
        }
        # What tests/runner sets for programs of the product.
        for name in ("TEST_COVERAGE_FOLDER", "TEST_MUTANT"):
            if name in os.environ:
                self.environment[name] = os.environ[name]
        self.addCleanup(self.kill_survivors)

    def program(self, path, text):
        """Writes a program below the test's folder and returns its path."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text), encoding="utf-8")
        target.chmod(0o755)
        return str(target)

    def worker(self, text):
        """A worker that runs `text` in sh; it says `done` when it got to the end of it."""
        body = textwrap.dedent(text).strip() + '\ntouch "$STUB_DIR/done-$DMLC_TASK_ID"\n'
        return self.program(f"worker-{uuid.uuid4().hex[:8]}", "#!/bin/sh\nset -e\n" + body)

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, self.launcher, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )

    def finish(self, launcher):
        """Waits for the launcher; returns exit code, standard output and standard error."""
        try:
            out, err = launcher.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            launcher.kill()
            out, err = launcher.communicate()
            self.fail(f"the launcher hangs; it printed:\n{out}\n{err}")
        return launcher.returncode, out, err

    def launch(self, *arguments):
        return self.finish(self.start(*arguments))

    def forget_what_stubs_did(self):
        for path in self.stub_dir.iterdir():
            path.unlink()

    def wait_until(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"waited {PATIENCE} s in vain: {what}")
            time.sleep(0.02)

    def wait_for_files(self, *names):
        self.wait_until(lambda: all((self.stub_dir / name).exists() for name in names), f"no files {names}")

    def survivors(self):
        """The living processes that carry the test's token in their environment."""
        pids = [int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if self.token.encode() in self.environment_of(pid)]

    def kill_survivors(self):
        for pid in self.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @staticmethod
    def environment_of(pid):
        """The environment of a process; nothing when it has just ended, or is another user's."""
        try:
            return pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return b""

    @staticmethod
    def command_of(pid):
        """The words of a process's command line; none when it has just ended."""
        try:
            return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            return []

    def assert_nothing_survives(self):
        self.wait_until(lambda: not self.survivors(), f"processes {self.survivors()} are still there")

    def log(self, name):
        (path,) = self.folder.glob(f"logs/*/{name}.log")
        return path.read_text(encoding="utf-8")
