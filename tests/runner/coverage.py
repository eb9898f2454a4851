"""Which test runs which file: recorded with the preset `coverage`, kept in tests/recorded/coverage.txt.

A program of that preset writes the addresses of the functions that it calls (tests/support/coverage.cc). Here they
become names of source files. The table lists the tests, numbered from 0, then for each file the numbers of the tests
that run it.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys

from records import DURATIONS
from suites import SOURCE

TABLE = DURATIONS / "coverage.txt"
PROGRAM_BYTES = 4096  # as tests/support/coverage.cc writes it: the program's path, then 8 bytes for each function


class Recorder:
    """Collects what every test's processes have called."""

    def __init__(self):
        self.called = collections.defaultdict(set)  # test id -> (program, address)

    def take(self, test_id, folder):
        for path in pathlib.Path(folder).iterdir():
            raw = path.read_bytes()
            program = raw[:PROGRAM_BYTES].rstrip(b"\0").decode()
            addresses = memoryview(raw)[PROGRAM_BYTES:].cast("Q")
            self.called[test_id].update((program, address) for address in addresses if address)
            path.unlink()

    def write(self, everything):
        """Replaces the rows of the tests that ran; `everything`: all rows, since tests are renamed and removed."""
        if not any(self.called.values()):
            sys.exit("coverage.py: no program has written what it called; build the preset `coverage` again")
        addresses = collections.defaultdict(set)
        for pairs in self.called.values():
            for program, address in pairs:
                addresses[program].add(address)
        files = {program: _files_of(program, found) for program, found in addresses.items()}
        table = {} if everything else {test: names for test, names in read().items() if test not in self.called}
        for test, pairs in self.called.items():
            table[test] = {name for program, address in pairs if (name := files[program].get(address))}
        _write(table)


def _files_of(program, addresses):
    """Address -> source file relative to the source folder, for functions of the product.

    What initialises a program's static objects is left out: it runs in every test of the program.
    """
    ordered = sorted(addresses)
    text = "\n".join(hex(address) for address in ordered)
    command = ["addr2line", "-f", "-e", program]
    printed = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for address, function, line in zip(ordered, printed[::2], printed[1::2], strict=True):
        if "_GLOBAL__sub_" in function or "__static_initialization_and_destruction" in function:
            continue
        path = os.path.normpath(line.rpartition(":")[0])
        if os.path.isabs(path):
            path = os.path.relpath(path, SOURCE)
        if re.match(r"(base|engine|ndarray|ops|io|kvstore|nn|tools|examples|tests)/", path):
            found[address] = path
    if ordered and not found:
        sys.exit(f"coverage.py: {program} names no source file; it was built without debug information")
    return found


def _write(table):
    tests = sorted(table)
    by_file = collections.defaultdict(list)
    for number, test in enumerate(tests):
        for name in table[test]:
            by_file[name].append(number)
    lines = [
        "# Written by tools/test.sh --coverage: the tests, then the files with the numbers of the tests that run them."
    ]
    lines += [*tests, ""]
    lines += [f"{name}: {_ranges(numbers)}" for name, numbers in sorted(by_file.items())]
    TABLE.write_text("\n".join(lines) + "\n")


def _ranges(numbers):
    """[0, 1, 2, 5] -> "0-2 5"."""
    ranges = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def read():
    """Test id -> files that it runs."""
    if not TABLE.exists():
        return {}
    tests, rows = TABLE.read_text().split("\n\n")
    tests = tests.splitlines()[1:]
    table = {test: set() for test in tests}
    for row in rows.splitlines():
        name, _, numbers = row.partition(": ")
        for part in numbers.split():
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                table[tests[number]].add(name)
    return table
