"""The suites of a build, as CMake wrote them to tests.json, and their tests."""

import dataclasses
import fnmatch
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
LISTED = "all-listed"  # what python_tests.py prints last
PYTHON_TESTS = str(pathlib.Path(__file__).with_name("python_tests.py"))


def inherited():
    """The caller's environment for tests. Variables of GoogleTest would leave tests out."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GTEST_")}


@dataclasses.dataclass(frozen=True)
class Test:
    suite: "Suite"
    name: str  # as the suite's program knows it
    file: str = ""  # where it is written, relative to the source folder

    @property
    def id(self):
        return f"{self.suite.name}.{self.name}" if self.name else self.suite.name


class Suite:
    """A GoogleTest program (kind gtest), modules of unittest (kind unittest) or one command (kind command)."""

    def __init__(self, entry, environment, build=".", prefix=()):
        self.build = str(build)
        self.prefix = list(prefix)  # words before the command of a program of GoogleTest
        self.name = entry["name"]
        self.kind = entry["kind"]
        self.target = entry.get("target", "")
        self.command = entry["command"]  # the program; the modules; the words of the command
        self.folder = entry["folder"]
        self.timeout = entry["timeout"]
        self.match = entry["match"]  # pattern that the full names of its tests fit
        self.environment = {**environment, **entry.get("environment", {})}

    def command_for(self, names):
        """Runs these tests in one process, in this order at best."""
        if self.kind == "gtest":
            return [*self.prefix, *self.command, "--gtest_filter=" + ":".join(names)]
        if self.kind == "unittest":
            return [sys.executable, "-B", PYTHON_TESTS, "run", *names]
        return self.command

    def by_hand(self, names):
        """The same as a line for a shell, with the environment and in the folder that the runner gives it."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        words = [*(["env", *variables] if variables else []), *self.command_for(names)]
        folder = ["cd", self.folder, "&&"] if self.kind == "unittest" else []
        return " ".join([*folder, shlex.join(words)])

    def is_built(self):
        return self.kind != "gtest" or os.path.exists(self.command[0])

    def tests(self):
        tests = self._all_tests()
        if not tests:
            sys.exit(f"the suite {self.name} lists no test: {' '.join(self.command)}")
        return [test for test in tests if fnmatch.fnmatchcase(test.id, self.match)]

    def _all_tests(self):
        if self.kind == "gtest":
            return self._listed_by_program()
        if self.kind == "unittest":
            *names, end = self._output([sys.executable, "-B", PYTHON_TESTS, "list", *self.command]).split() or [""]
            if end != LISTED:
                sys.exit(f"cannot list the tests of {self.name}: a module ends the program: {' '.join(self.command)}")
            folder = os.path.relpath(self.folder, SOURCE)
            return [Test(self, name, f"{folder}/{name.split('.')[0]}.py") for name in names]
        return [Test(self, "", os.path.relpath(self.command[0], SOURCE))]

    def _listed_by_program(self):
        if not self.is_built():
            sys.exit(f"{self.command[0]} is missing: build {self.target}")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "list.json"
            self._output([*self.prefix, *self.command, "--gtest_list_tests", f"--gtest_output=json:{path}"])
            suites = json.loads(path.read_text())["testsuites"]
        return [
            Test(self, f"{suite['name']}.{test['name']}", self._source(test["file"]))
            for suite in suites
            for test in suite["testsuite"]
            if not test["name"].startswith("DISABLED_") and not suite["name"].startswith("DISABLED_")
        ]

    def _source(self, path):
        """A file as the compiler knows it, from the source folder on. The cache lets it begin at the build folder."""
        return os.path.relpath(os.path.normpath(os.path.join(self.build, path)), SOURCE)

    def _output(self, command):
        environment = {**inherited(), **self.environment}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            sys.exit(f"cannot list the tests of {self.name}: {' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout


def suites_of(build):
    path = pathlib.Path(build) / "tests.json"
    if not path.exists():
        sys.exit(f"{path} is missing: configure this build with PACELINE_TESTS=ON")
    description = json.loads(path.read_text())
    build = path.parent.resolve()
    prefix = fixed_addresses() if build.name == "tsan" else []
    return [Suite(entry, description["environment"], build, prefix) for entry in description["suites"]]


def fixed_addresses():
    """ThreadSanitizer cannot start where the kernel spreads addresses too widely."""
    command = ["setarch", "-R"]
    works = shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if works else []
