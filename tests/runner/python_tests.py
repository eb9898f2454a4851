"""Lists or runs unittest tests: python_tests.py list MODULE... | python_tests.py run TEST...

Run in the folder of the modules. A TEST is module.Class.method; tests of one class must stand together, because their
setUpClass runs once. `run` reports as events.py says.
"""

import os
import re
import sys
import time
import unittest


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


class Events(unittest.TextTestResult):
    names = []  # of all tests that are to run

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.process = os.getpid()
        self.file = os.open(
            os.environ.get("PACELINE_TEST_EVENTS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
        )
        self.started = None
        self.last_end = time.monotonic(), processor_seconds()  # what a class sets up counts to its first test
        self.verdict, self.reason = "passed", ""
        self.any_failed = False

    def write(self, *words):
        if os.getpid() != self.process:  # a child that a test has forked and not ended
            os.write(self.file, b"forked\n")
            os._exit(1)
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())

    def begin(self, name):
        self.started = self.last_end
        self.verdict, self.reason = "passed", ""
        self.write("begin", name, printed_bytes())

    def end(self, name):
        self.last_end = time.monotonic(), processor_seconds()
        wall, processor = (now - then for now, then in zip(self.last_end, self.started, strict=True))
        self.started = None
        self.write("end", name, printed_bytes(), wall, processor, self.verdict, self.reason)

    def startTest(self, test):
        self.begin(test.id())
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        self.printErrors()
        self.errors, self.failures = [], []  # printed once, in the output of their own test
        self.end(test.id())

    def take(self, test, verdict, reason=""):
        self.any_failed |= verdict == "failed"
        if self.started is None:  # raised by setUpClass: no test of the class will begin
            owner = re.search(r"\((.+)\)", test.id()).group(1)
            for name in self.names:
                if name.startswith(owner + "."):
                    self.begin(name)
                    self.printErrors()
                    self.verdict, self.reason = verdict, reason
                    self.end(name)
        elif self.verdict != "failed":
            self.verdict, self.reason = verdict, reason

    def wasSuccessful(self):  # what the last line is printed by; the lists it would look at are emptied
        return not self.any_failed

    def addError(self, test, error):
        super().addError(test, error)
        self.take(test, "failed")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.take(test, "failed")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.take(test, "failed")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.take(test, "failed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.take(test, "skipped", (reason.splitlines() or [""])[0])


def printed_bytes():
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fstat(1).st_size


def processor_seconds():
    return sum(os.times()[:4])


def main(action, *names):
    sys.path.insert(0, os.getcwd())
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    tests = list(flat(suite))
    for test in tests:
        if isinstance(test, unittest.loader._FailedTest):
            sys.exit(f"python_tests.py: {test._exception}")
    Events.names = [test.id() for test in tests]
    if action == "list":
        print("\n".join([*Events.names, "all-listed"]))  # the last word: no module has ended the program
        return 0
    runner = unittest.TextTestRunner(verbosity=2, resultclass=Events)
    result = runner.run(suite)
    result.write("finished")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
