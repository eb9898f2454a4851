"""Runs the tests of a build; tools/test.sh calls it. Many tests share a process, and processes share the cores.

A NAME chooses tests: a suite (kvstore), a pattern or a part of a test's name (kvstore.Gossip*, Gossip), or a file or
folder of the source tree that holds tests (tests/launch, ops/softmax). Results go to BUILD/tests/junit.xml.
"""

import argparse
import fnmatch
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from batches import Batch, batches_of
from coverage import Recorder
from execute import execute
from records import Exceptions, durations, write_durations
from report import Report
from suites import SOURCE, suites_of


def arguments():
    parser = argparse.ArgumentParser(prog="tests/runner", description=__doc__)
    parser.add_argument("build", help="build folder, for instance build/cpu")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to run; everything by default")
    parser.add_argument("--from-file", metavar="FILE", help="exact test names, one a line, as well")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (all)")
    parser.add_argument("--list", action="store_true", help="print the tests and run none")
    parser.add_argument("--isolate", action="store_true", help="a process for each test")
    parser.add_argument("--record", action="store_true", help="write what the tests cost to tests/recorded")
    parser.add_argument(
        "--coverage", action="store_true", help="write which test runs which file; preset coverage only"
    )
    parser.add_argument("--stop", action="store_true", help="end at the first failure")
    parser.add_argument("--repeat", metavar="N", type=int, default=1, help="run everything N times, whatever fails")
    parser.add_argument("--waiting", action="store_true", help="only tests that start processes or wait for time")
    parser.add_argument("--load", action="store_true", help="keep all cores busy with stress-ng meanwhile")
    parser.add_argument("--minutes", type=float, help="start nothing new after so many minutes")
    return parser.parse_intermixed_args()


def chosen(suites, names, exact):
    """The tests that any of the names chooses, all without names; ends the program for a name that chooses none.

    Programs are asked for their tests only as far as needed: not all of them may have been built.
    """
    by_name = {suite.name: suite for suite in suites}
    if not names and not exact:
        return [test for suite in suites for test in suite.tests()]
    wanted = {name for name in names if name in by_name}
    wanted |= {suite for suite in by_name if any(test == suite or test.startswith(suite + ".") for test in exact)}
    rest = [name for name in names if name not in by_name]
    built = [suite for suite in suites if suite.name in wanted or (rest and suite.is_built())]
    tests = [test for suite in built for test in suite.tests()]
    found = {test.id for test in tests if test.suite.name in names or test.id in exact}
    for name in rest:
        path = os.path.relpath(os.path.abspath(name), SOURCE) if os.path.exists(name) else None
        if path:
            matching = [test.id for test in tests if test.file == path or test.file.startswith(path + "/")]
        else:
            matching = [test.id for test in tests if fnmatch.fnmatchcase(test.id, name) or name in test.id]
        if not matching:
            sys.exit(f"tests/runner: '{name}' names no test that is built here; --list prints all")
        found.update(matching)
    return [test for test in tests if test.id in found]


def waits(test, costs):
    """True of tests whose recorded time is not spent on this process's own work."""
    wall, processor = costs.get(test.id, (0, 0))
    processes = {"cluster", "programs", "launch", "install", "tools", "scripts"}
    return test.suite.name in processes or wall - processor > 0.02


def fixed_addresses():
    """ThreadSanitizer cannot start where the kernel spreads addresses too widely."""
    command = ["setarch", "-R"]
    works = shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if works else []


def main():
    options = arguments()
    build = pathlib.Path(options.build).resolve()
    preset = build.name
    exceptions, costs = Exceptions(preset), durations(preset)
    exact = set(pathlib.Path(options.from_file).read_text().split("\n")[:-1]) if options.from_file else set()
    tests = chosen(suites_of(build), options.names, exact)
    if options.waiting:
        tests = [test for test in tests if waits(test, costs)]
    left_out = [why for test in tests if (why := Exceptions.match(exceptions.not_here, test.id)) is not None]
    tests = [test for test in tests if Exceptions.match(exceptions.not_here, test.id) is None]
    if options.list:
        print("\n".join(test.id for test in tests))
        return 0
    if not tests:
        sys.exit("tests/runner: no tests to run")

    own_process = {"*": "asked for"} if options.isolate or options.coverage else exceptions.own_process
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
        prefix = fixed_addresses() if preset == "tsan" else []
        recorder = Recorder() if options.coverage else None
        left = execute(
            rounds,
            options.cores,
            folder,
            report.add,
            prefix=prefix,
            recorder=recorder,
            over=lambda: (deadline and time.monotonic() > deadline) or (options.stop and report.failures()),
        )
    finally:
        if load:
            load.terminate()
        shutil.rmtree(folder, ignore_errors=True)
        report.write_junit(build / "tests" / "junit.xml")
    if left:
        why = "stopped at a failure" if options.stop and report.failures() else "the time was over"
        print(f"{sum(len(batch.tests) for batch in left)} tests were not started: {why}")
    report.summary(left_out)
    if recorder:
        recorder.write()
    if options.record:
        write_durations(preset, report.outcomes)
    return 1 if report.failures() else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("tests/runner: interrupted")
