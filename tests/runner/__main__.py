"""Runs the tests of a build; tools/test.sh calls it. Many tests share a process, and processes share the cores.

A NAME chooses tests: a suite (kvstore), a pattern or a part of a test's name (kvstore.Gossip*, Gossip), or a file or
folder of the source tree that holds tests (tests/launch, ops/softmax). Results go to BUILD/tests/junit.xml.
"""

import argparse
import contextlib
import fnmatch
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import coverage
from batches import Batch, batches_of
from execute import execute
from records import EXCEPTIONS, Exceptions, durations, write_durations
from report import Report
from suites import SOURCE, suites_of


def positive(kind):
    def parse(text):
        if (value := kind(text)) <= 0:
            raise ValueError
        return value

    parse.__name__ = "positive number"
    return parse


def arguments():
    parser = argparse.ArgumentParser(prog="tests/runner", description=__doc__)
    parser.add_argument("build", help="build folder, for instance build/cpu")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to run; everything by default")
    parser.add_argument("--from-file", metavar="FILE", help="exact test names, one a line, as well")
    parser.add_argument("--exceptions", metavar="FILE", default=EXCEPTIONS, help="instead of tests/exceptions.toml")
    parser.add_argument("--built", metavar="FILE", help="targets that were built; programs of others are not asked")
    parser.add_argument("--cores", type=positive(int), default=len(os.sched_getaffinity(0)), help="cores to use (all)")
    parser.add_argument("--list", action="store_true", help="print the tests and run none")
    parser.add_argument("--isolate", action="store_true", help="a process for each test")
    parser.add_argument("--record", action="store_true", help="write what the tests cost to tests/recorded")
    parser.add_argument(
        "--coverage", action="store_true", help="write which test runs which file; preset coverage only"
    )
    parser.add_argument("--stop", action="store_true", help="end at the first failure")
    parser.add_argument(
        "--repeat", metavar="N", type=positive(int), default=1, help="run everything N times, whatever fails"
    )
    parser.add_argument("--waiting", action="store_true", help="only tests that start processes or wait for time")
    parser.add_argument("--load", action="store_true", help="keep all cores busy with stress-ng meanwhile")
    parser.add_argument("--minutes", type=positive(float), help="start nothing new after so many minutes")
    return parser.parse_intermixed_args()


def chosen(suites, names, exact):
    """The tests that any of the names chooses, all without names; ends the program for a name that chooses none.

    Programs are asked for their tests only as far as needed: not all of them may have been built. Beside the `exact`
    tests, which recorded coverage has chosen, run those of the same suites that were never recorded.
    """
    by_name = {suite.name: suite for suite in suites}
    if not names and not exact:
        return [test for suite in suites for test in suite.tests()]
    of_exact = {suite for suite in by_name if any(test == suite or test.startswith(suite + ".") for test in exact)}
    rest = [name for name in names if name not in by_name]
    asked = [s for s in suites if s.name in names or s.name in of_exact or (rest and s.is_built())]
    tests = [test for suite in asked for test in suite.tests()]
    found = {test.id for test in tests if test.suite.name in names or test.id in exact}
    if exact:
        recorded = coverage.read()
        found |= {test.id for test in tests if test.suite.name in of_exact and test.id not in recorded}
    for name in rest:
        matching = matches(name, tests)
        if not matching:
            sys.exit(f"tests/runner: '{name}' names no test that is built here; --list prints all")
        found |= matching
    return [test for test in tests if test.id in found]


def matches(name, tests):
    """The tests that a word stands for. A path without tests of its own stands for the suite that it is a part of."""
    if not os.path.exists(name):
        return {test.id for test in tests if fnmatch.fnmatchcase(test.id, name) or name in test.id}
    path = os.path.relpath(os.path.abspath(name), SOURCE)
    folder, *parts = pathlib.PurePath(path).parts or (".",)
    suite = parts[0] if folder == "tests" and parts else folder
    return {test.id for test in tests if test.file == path or test.file.startswith(path + "/")} or {
        test.id for test in tests if test.suite.name.split(".")[0] == suite
    }


def waits(test, costs):
    """True of tests whose recorded time is not spent on this process's own work."""
    wall, processor = costs.get(test.id, (1, 0))  # what was never recorded may wait
    processes = {"cluster", "programs", "launch", "install", "tools", "scripts", "runner_tests"}
    return test.suite.name.split(".")[0] in processes or wall - processor > 0.02


def main():
    options = arguments()
    build = pathlib.Path(options.build).resolve()
    preset = build.name
    exceptions, costs = Exceptions(preset, pathlib.Path(options.exceptions)), durations(preset)
    exact = set(pathlib.Path(options.from_file).read_text().split("\n")[:-1]) if options.from_file else set()
    suites = suites_of(build)
    if options.built:
        built = pathlib.Path(options.built).read_text().split()
        suites = [suite for suite in suites if not suite.target or suite.target in built or "all" in built]
    tests = chosen(suites, options.names, exact)
    if options.waiting:
        tests = [test for test in tests if waits(test, costs)]
    left_out = [why for test in tests if (why := Exceptions.match(exceptions.not_here, test.id)) is not None]
    tests = [test for test in tests if Exceptions.match(exceptions.not_here, test.id) is None]
    if options.list:
        print("\n".join(test.id for test in tests))
        return 0
    if not tests:
        if {suite.name for suite in suites} >= set(options.names) != set():
            print(f"{preset}: none of these tests is one for this preset\n{preset}: 0 passed, 0 failed, 0 skipped")
            return 0
        sys.exit("tests/runner: no tests to run")

    # A failure in quarantine must not hide what else goes wrong in its process.
    own_process = exceptions.own_process | exceptions.quarantine
    if options.isolate or options.coverage:
        own_process = {"*": "asked for"}
    batches = batches_of(tests, costs, own_process)
    if options.record:  # one process for each core, whatever the tests are known to need
        batches = [Batch(batch.tests, batch.wall, batch.wall) for batch in batches]
    rounds = [Batch(list(b.tests), b.wall, b.processor) for _ in range(options.repeat) for b in batches]
    report = Report(preset, len(tests) * options.repeat, lambda name: Exceptions.match(exceptions.quarantine, name))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="paceline-tests-"))
    deadline = time.monotonic() + options.minutes * 60 if options.minutes else None
    load = None
    try:
        if options.load:
            command = ["stress-ng", "--quiet", "--cpu", str(options.cores), "--vm", "1", "--vm-bytes", "512M"]
            load = subprocess.Popen(command)
        recorder = coverage.Recorder() if options.coverage else None
        left = execute(
            rounds,
            options.cores,
            folder,
            report.add,
            recorder=recorder,
            over=lambda: (deadline and time.monotonic() > deadline) or (options.stop and report.failures()),
        )
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            report.summary(left_out, interrupted=True)
        raise
    finally:
        if load:
            if load.poll() is not None:
                sys.exit(f"tests/runner: stress-ng ended with {load.returncode}, so there was no load")
            load.terminate()
        shutil.rmtree(folder, ignore_errors=True)
        report.write_junit(build / "tests" / "junit.xml")
    not_started = sum(len(batch.tests) for batch in left)
    report.summary(left_out, not_started)
    if recorder:
        some = options.names or options.from_file or options.waiting or not_started
        recorder.write(everything=not some and not report.failures())
    if options.record:
        write_durations(preset, report.outcomes)
    # Of repetitions, those that the time allows are enough: each test must have run once.
    enough = not not_started or {test.id for test in tests} <= {outcome.name for outcome in report.outcomes}
    return 1 if report.failures() or not enough else 0


def interrupt(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    # The processes of tests must not outlive this one, even where a shell has started it in the background.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("tests/runner: interrupted")
