"""Chooses tests before anything is built: those that a change can break, or those that names stand for.

A changed file of the product runs the tests that are recorded as running it (coverage.py). A changed header runs those
of every file that includes it, as the last build knows it. A changed test runs itself. A source for which no test is
recorded runs the suites whose programs it is a part of. Where nothing is known of a file, everything runs. Written are
PREFIX.targets (what to build), PREFIX.names (arguments for tests/runner, one a line) and PREFIX.tests (exact names of
tests).
"""

import argparse
import collections
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys

import coverage
from records import Exceptions, durations
from suites import SOURCE, suites_of

COMMANDS = "compile_commands.json"
BENCH = "tests/runner_tests/test_bench.py"
LAUNCHER = ("tools/launch.py", "tools/paceline_launch/")
NOTHING = ("tests/recorded/", ".ci/", ".github/", ".editorconfig", ".pre-commit-config.yaml")


def git(*words):
    done = subprocess.run(["git", *words], cwd=SOURCE, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"test.sh: git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.split("\n")[:-1]


def changed_files(base):
    new = git("ls-files", "--others", "--exclude-standard")
    if not base:
        base = "HEAD" if new or git("status", "--porcelain") else "HEAD~1"
        print(f"changes since {base}:")
    (commit,) = git("rev-parse", "--verify", base + "^{commit}")
    return sorted({*git("diff", "--name-only", "--no-renames", commit, "--"), *new})


def included_by(build):
    """Header -> the files that were compiled with it, from the last build; nothing where files were never compiled."""
    done = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True)
    found = collections.defaultdict(set)
    for block in done.stdout.split("\n\n"):
        _, *names = block.split("\n")
        paths = [os.path.relpath(os.path.normpath(os.path.join(build, name.strip())), SOURCE) for name in names]
        sources = [path for path in paths if path.endswith((".cc", ".cu"))]
        for path in paths:
            found[path].update(sources[:1])
    known = set().union(*found.values())
    sources = {os.path.relpath(c["file"], SOURCE) for c in json.loads(pathlib.Path(build, COMMANDS).read_text())}
    return found if {path for path in sources if not path.startswith("build/")} <= known else {}


def is_operators_header(path):
    """ops/X/X.h is installed as paceline/ops/X.h."""
    parts = pathlib.PurePath(path).parts
    return parts[0] == "ops" and len(parts) == 3 and parts[2] == f"{parts[1]}.h"


class Choice:
    def __init__(self, build):
        not_here = Exceptions(pathlib.Path(build).name).not_here
        self.suites = {
            suite.name: suite for suite in suites_of(build) if Exceptions.match(not_here, f"{suite.name}.") is None
        }
        self.covered = coverage.read()
        self._run = set().union(*self.covered.values())
        self.build = build
        self.tests, self.names, self.everything = set(), set(), False
        self._wanted = set()  # suites
        self._extra_targets = set()
        self._includers = None

    def for_file(self, path):
        """Adds what the change of one file can break; says in a few words what that is."""
        before = len(self.tests) + len(self.names)
        if path.startswith(NOTHING):
            return "no test depends on it"
        if path.endswith(".md"):
            self._suite("pages")
            if path == "tests/benchmarks/README.md":
                self.names.add(BENCH)
            return "the tests of the pages"
        if path.startswith(LAUNCHER):
            for suite in ("launch", "programs", "install", "pages"):
                self._suite(suite)
            return "the jobs that are launched"
        if path.startswith("tests/benchmarks/") and path.endswith((".cc", ".h")):
            self._extra_targets.add("all")
            return "no test runs it, but it is compiled"
        if path.startswith("tests/benchmarks/") and path.endswith(".py"):
            self.names.add(BENCH)
            return "the tests of tools/bench.sh"
        if path.startswith("tests/"):
            return self._test_file(path)
        if path.startswith("tools/docs/") or path == "mkdocs.yml":
            self._suite("scripts.docs")
            return "the tests of the documentation's scripts"
        if path.startswith("tools/") and path.endswith((".sh", ".py")):
            self._suite("scripts.*")
            self._suite("pages")
            return "the tests of scripts and pages"
        if path.endswith((".cu", ".cuh")) and pathlib.Path(self.build).name not in ("cuda", "emulated"):
            return "CUDA alone: run tools/test.sh --emulated"
        if path.endswith("_test.cc"):
            return self._tests_of(path)
        if "/include/paceline/" in path or is_operators_header(path):
            self._suite("install")
            self._suite("scripts.docs")
            self._extra_targets.update(("all", "all_verify_interface_header_sets"))
        if path.endswith((".cc", ".h")) and self._sources(path):
            return f"{len(self.tests) + len(self.names) - before} more tests that run it"
        if path.endswith(".cc") and (suites := self._suites_of_file(path)):
            programs = {name for name, suite in self.suites.items() if suite.kind == "unittest"}
            self.names |= suites | {name for name in programs if not name.startswith(("runner_tests", "scripts."))}
            return "the suites whose programs it is a part of, because no test is recorded for it"
        self.everything = True
        return "everything, because nothing is recorded of it"

    def _suite(self, suite_pattern, pattern="*"):
        for suite in self.suites:
            if fnmatch.fnmatchcase(suite, suite_pattern):
                known = [test for test in durations("cpu") if test == suite or test.startswith(suite + ".")]
                self.tests.update(fnmatch.filter(known, pattern))
                if pattern == "*":
                    self.names.add(suite)

    def _test_file(self, path):
        suite = path.split("/")[1]
        if suite == "runner" or path == "tests/exceptions.toml":
            self.names.update(("base", "runner_tests"))
            return "the runner's tests, and one suite to see it work"
        if path.endswith("_test.cc") or (path.endswith(".py") and "/test_" in path):
            return self._tests_of(path)
        if path.endswith((".cc", ".h")) and self._sources(path):
            return "the tests that use it"
        matching = [name for name in self.suites if name.split(".")[0] == suite]
        self.names.update(matching)
        self.everything |= not matching
        return "its suite" if matching else "everything, because nothing is recorded of it"

    def _tests_of(self, path):
        """Adds the tests that a file holds, or its suite where the file is gone."""
        if path.startswith("tests/cuda_emulation/") and "cuda_emulation" not in self.suites:
            return "CUDA alone: run tools/test.sh --emulated"
        if (SOURCE / path).exists():
            if not self._is_listed(path):
                sys.exit(f"test.sh: {path} is in no suite; name it in the CMakeLists.txt of its suite")
            self.names.add(path)
            return "itself"
        folder, *parts = pathlib.PurePath(path).parts
        suite = parts[0] if folder == "tests" else folder
        self.names.update({suite} & set(self.suites))
        return "the suite that it belonged to"

    def _is_listed(self, path):
        if path.endswith(".cc"):
            return bool(self._suites_of_file(path, by_folder=False))
        folder, module = os.path.split(SOURCE / path)
        return any(
            os.path.samefile(suite.folder, folder) and module.removesuffix(".py") in suite.command
            for suite in self.suites.values()
            if suite.kind == "unittest"
        )

    def _sources(self, path):
        """Adds the tests that run a file, or what includes it; false where too little is known to choose."""
        if not self.covered:
            return False
        files = {path}
        if path.endswith(".h"):
            if self._includers is None:
                self._includers = included_by(self.build)
            if path not in self._includers:
                return False
            files |= self._includers[path]
            # What no test runs is compiled all the same: benchmarks, tools.
            if not all(name.endswith("_test.cc") or name in self._run for name in self._includers[path]):
                self._extra_targets.add("all")
        files_of_tests = {path for path in files if path.endswith("_test.cc")}
        self.names |= files_of_tests
        found = {test for test, names in self.covered.items() if names & files}
        self.tests |= found
        return found or files_of_tests

    def for_name(self, name):
        """Adds what a word of the command line stands for."""
        if not name or os.path.abspath(name) == str(SOURCE):
            sys.exit(f"test.sh: '{name}' names no test; give no name to run all")
        self.names.add(name)
        if name in self.suites:
            return
        if os.path.exists(SOURCE / name):
            parts = pathlib.PurePath(os.path.relpath(os.path.abspath(SOURCE / name), SOURCE)).parts
            module = parts[1] if parts[0] == "tests" and len(parts) > 1 else parts[0]
            if module in self.suites:
                self._wanted.add(module)
                return
        known = {test.split(".")[0] for test in durations("cpu") if name in test or fnmatch.fnmatchcase(test, name)}
        # What was never recorded may have the name, too.
        word = re.split(r"[^\w]", name.strip("*").rpartition(".")[2])[0]
        files = [*SOURCE.glob("tests/*/*"), *SOURCE.glob("ops/*/*_test.cc")] if word else []
        held = [file.relative_to(SOURCE) for file in files if file.is_file() and word.encode() in file.read_bytes()]
        folders = (path.parts[:2] for path in held)
        known |= {second if first == "tests" else first for first, second in folders} & set(self.suites)
        self._wanted |= known or set(self.suites)

    def targets(self):
        """What to build for the choice."""
        if self.everything:
            return sorted({"all"} | self._extra_targets)
        wanted = set(self._wanted)
        for name in self.names:
            if name in self.suites:
                wanted.add(name)
            elif "/" in name:
                wanted |= self._suites_of_file(name)
        wanted |= {
            next((s for s in self.suites if t == s or t.startswith(s + ".")), t.split(".")[0]) for t in self.tests
        }
        targets = {self.suites[name].target for name in wanted if name in self.suites and self.suites[name].target}
        chosen = [self.suites[name] for name in wanted if name in self.suites]
        programs = [suite for suite in chosen if suite.kind == "unittest" and not suite.target]
        if any(not suite.name.startswith("scripts.") for suite in programs):  # those need no program
            targets = {"all"}
        return sorted(targets | self._extra_targets)

    def _suites_of_file(self, path, by_folder=True):
        """The suites whose programs are made of the file, some of them of the objects of another suite."""
        place = os.path.abspath(SOURCE / path)
        found = set()
        for suite in self.suites.values():
            if suite.kind == "gtest":
                command = ["ninja", "-C", self.build, "-t", "inputs", os.path.relpath(suite.command[0], self.build)]
                inputs = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
                if any(one == place or one.startswith(place + "/") for one in inputs):
                    found.add(suite.name)
        folder = pathlib.PurePath(path).parts
        return found | ({folder[1]} & set(self.suites) if by_folder and folder[0] == "tests" else set())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--since", metavar="BASE", help="a commit; empty: the last one")
    parser.add_argument("--files", metavar="FILE", nargs="*", help="as if these files had changed")
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--write", metavar="PREFIX", required=True)
    options = parser.parse_args()

    choice = Choice(options.build)
    for name in options.names:
        choice.for_name(name)
    if options.files or options.since is not None:
        for path in options.files or changed_files(options.since):
            print(f"  {path}: {choice.for_file(path)}")
    if choice.everything:
        choice.names, choice.tests = set(choice.suites), set()
    prefix = pathlib.Path(options.write)
    for ending, lines in (("targets", choice.targets()), ("names", choice.names), ("tests", choice.tests)):
        separator = " " if ending == "targets" else "\n"
        prefix.with_name(f"{prefix.name}.{ending}").write_text(separator.join(sorted(lines)) + ("\n" if lines else ""))


if __name__ == "__main__":
    main()
