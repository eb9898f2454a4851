"""Runs batches of tests in processes of their own and tells what became of each test."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

from batches import Batch, next_batch
from events import EventReader, Outcome
from suites import inherited

SKIPPED = 77  # exit code of a command that cannot run here
POLL = 0.02


def heed_interrupts():
    """A shell lets what it starts in the background ignore SIGINT, and programs would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Running:
    """One process."""

    def __init__(self, batch, folder):
        self.batch = batch
        self.folder = folder
        self.load = batch.load
        folder.mkdir(parents=True)
        self.names = [test.name for test in batch.tests]
        self.reader = EventReader(folder / "events", folder / "output")
        (folder / "tmp").mkdir()
        suite = batch.suite
        self.command = suite.command_for(self.names)
        environment = {**inherited(), **suite.environment, "TMPDIR": str(folder / "tmp")}
        environment["PACELINE_TEST_EVENTS"] = str(folder / "events")
        (folder / "coverage").mkdir()
        environment["TEST_COVERAGE_FOLDER"] = str(folder / "coverage")
        # Appending, so that the size of the file is the place of the next byte whoever writes it.
        with open(folder / "output", "ab") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=suite.folder if suite.kind == "unittest" else folder / "tmp",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )
        self.begin = self.heard = time.monotonic()
        self.processor = 0.0
        self.timed_out = False

    def ended(self):
        """Looks at the process; kills it when one test takes too long."""
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if self.reader.poll():
            self.heard = time.monotonic()
        if pid:
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.processor = usage.ru_utime + usage.ru_stime
            self.reader.poll()
            self.kill()
            return True
        if time.monotonic() - self.heard > self.batch.suite.timeout and not self.timed_out:
            self.timed_out = True
            self.kill()
        return False

    def kill(self):
        """Whatever the tests have started and left behind goes, too."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def outcomes(self):
        """What became of the tests, and those that the process did not come to."""
        suite = self.batch.suite
        if suite.kind == "command":
            return [self._of_command()], []
        by_name = {test.name: test for test in self.batch.tests}
        ended = self.reader.ended
        left = [test for test in self.batch.tests if test.name not in {outcome.name for outcome in ended}]
        code, any_failed = self.process.returncode, any(outcome.result == "failed" for outcome in ended)
        finished = self.reader.finished and (code == 0 or (code == 1 and any_failed))
        # A test that leaks is the last one of its process (test_events.cc).
        leaked = not self.reader.finished and code == 1 and ended and ended[-1].result == "failed"
        if self.reader.current:
            name, printed = self.reader.current
            ended.append(
                Outcome(name, "failed", time.monotonic() - self.heard, 0, self._end(), self.reader.printed(printed))
            )
            left = [test for test in left if test.name != name]
        elif not finished and not leaked:
            if not ended:  # another process would do no better
                left, output = [], self.reader.printed(0)
                ended += [Outcome(test.name, "failed", 0, 0, self._end(), output) for test in self.batch.tests[:1]]
                why = "its process did not come to a test, see above"
                ended += [Outcome(test.name, "failed", 0, 0, why) for test in self.batch.tests[1:]]
            else:
                names = f"{len(self.names)} tests from {self.names[0]} on"
                ended.append(Outcome(f"the process of {names}", "failed", 0, 0, self._end(), self.reader.printed(0)))
        elif left and finished:
            ended += [Outcome(test.name, "failed", 0, 0, "the program did not run it") for test in left]
            left = []
        for outcome in ended:
            test = by_name.get(outcome.name)
            outcome.name = test.id if test else f"{suite.name}: {outcome.name}"
            if outcome.result == "failed":
                outcome.command = suite.by_hand([test.name] if test else self.names)
        return ended, left

    def _of_command(self):
        code = self.process.returncode
        result = {0: "passed", SKIPPED: "skipped"}.get(code, "failed")
        output = self.reader.printed(0)
        reason = self._end() if result == "failed" else (output.strip().splitlines() or [""])[-1]
        wall = time.monotonic() - self.begin
        command = self.batch.suite.by_hand(self.names)
        return Outcome(self.batch.tests[0].id, result, wall, self.processor, reason, output, command)

    def _end(self):
        code = self.process.returncode
        if self.timed_out:
            return f"did not end within {self.batch.suite.timeout} s"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def execute(batches, cores, folder, report, recorder=None, over=lambda: False):
    """Runs the batches; calls report(outcome) for each test. Returns the batches that were not started.

    A `recorder` gets what each test has called (coverage.py). Nothing is started any more once `over()` is true.
    """
    waiting, running, started = list(batches), [], 0
    folder = pathlib.Path(folder)
    try:
        while waiting or running:
            while not over():
                batch = next_batch(waiting, running, cores, most=6 * cores)
                if batch is None:
                    break
                running.append(Running(batch, folder / str(started)))
                started += 1
            if not running:
                break
            for one in [one for one in running if one.ended()]:
                running.remove(one)
                outcomes, left = one.outcomes()
                for outcome in outcomes:
                    report(outcome)
                if recorder:  # each test has its own process then
                    recorder.take(one.batch.tests[0].id, one.folder / "coverage")
                shutil.rmtree(one.folder, ignore_errors=True)
                if left:  # a test ended the process: those after it get a new one
                    waiting.insert(0, Batch(left, one.batch.wall, one.batch.processor))
            time.sleep(POLL)
    finally:
        for one in running:
            one.kill()
    return waiting
