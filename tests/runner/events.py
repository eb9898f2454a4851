"""What a process that runs many tests says about each of them.

The process appends lines to the file that PACELINE_TEST_EVENTS names:

    begin NAME PRINTED
    end NAME PRINTED WALL PROCESSOR RESULT [REASON]

PRINTED is the size of the process's output so far, so that each test's own output can be cut out of it. WALL and
PROCESSOR are seconds; PROCESSOR counts all threads and the children that were waited for. RESULT is passed, failed or
skipped; REASON is free text. tests/support/test_events.cc and python_tests.py write these lines.
"""

import dataclasses


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
        for line in whole.decode(errors="replace").splitlines():
            words = line.split(" ", 6)
            if words[0] == "begin":
                self.current = words[1], int(words[2])
            else:
                _, name, printed, wall, processor, result, *reason = words
                begin = self.current[1] if self.current else 0
                output = self.printed(begin, int(printed)) if result == "failed" else ""
                self.ended.append(Outcome(name, result, float(wall), float(processor), " ".join(reason), output))
                self.current = None
        return bool(whole)

    def printed(self, begin, end=None):
        """The process's output from byte `begin` to byte `end`, or to its present end."""
        with open(self.log, "rb") as file:
            file.seek(begin)
            return file.read(None if end is None else end - begin).decode(errors="replace")
