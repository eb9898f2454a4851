"""What a process that runs many tests says about each of them.

The process appends lines to the file that PACELINE_TEST_EVENTS names:

    begin NAME PRINTED
    end NAME PRINTED WALL PROCESSOR RESULT [REASON]
    forked
    finished

PRINTED is the size of the process's output so far, so that each test's own output can be cut out of it. WALL and
PROCESSOR are seconds; PROCESSOR counts all threads and the children that were waited for. RESULT is passed, failed or
skipped; REASON is free text. A child of a test that goes on as if it were the program writes `forked`. A program that
has run all of its tests writes `finished`. tests/support/test_events.cc and python_tests.py write these lines.
"""

import dataclasses
import os

MOST = 1 << 20  # bytes of a test's output that are kept


@dataclasses.dataclass
class Outcome:
    """What became of one test."""

    name: str
    result: str  # passed, failed, skipped
    wall: float
    processor: float
    reason: str = ""
    output: str = ""
    command: str = ""


class EventReader:
    """Follows the event file of one process while it grows."""

    def __init__(self, path, log):
        self.path, self.log = path, log
        self.read = 0  # bytes of the event file that were looked at
        self.current = None  # name and PRINTED of the test that runs now
        self.finished = False
        self.ended = []  # Outcome of each test that ended, without its suite's name

    def poll(self):
        """Reads what is new; true when there was something."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.read)
                new = file.read()
        except FileNotFoundError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.decode(errors="replace").split("\n")[:-1]:
            words = line.split(" ", 6)
            if words[0] == "finished":
                self.finished = True
            elif words[0] == "forked":
                name, begin = self.current or ("a test", 0)
                why = "a child process that it forked returned from it"
                self.ended.append(Outcome(name, "failed", 0, 0, why, self.printed(begin)))
            elif words[0] == "begin":
                self.current = words[1], int(words[2])
            else:
                _, name, printed, wall, processor, result, *reason = words
                begin = self.current[1] if self.current else 0
                output = self.printed(begin, int(printed)) if result == "failed" else ""
                self.ended.append(Outcome(name, result, float(wall), float(processor), " ".join(reason), output))
                self.current = None
        return bool(whole)

    def printed(self, begin, end=None):
        """The last of the process's output from byte `begin` to byte `end`, or to its present end."""
        with open(self.log, "rb") as file:
            end = file.seek(0, os.SEEK_END) if end is None else end
            file.seek(max(begin, end - MOST))
            return file.read(max(0, min(end - begin, MOST))).decode(errors="replace").replace("\0", "?")
