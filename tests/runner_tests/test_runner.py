"""The runner of the tests, on test programs that are made up: nothing that goes wrong may look like success."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
import xml.etree.ElementTree as xml

RUNNER = pathlib.Path(__file__).resolve().parents[1] / "runner"
sys.path.insert(0, str(RUNNER))

from batches import Batch, batches_of, next_batch  # noqa: E402  after the path is set
from suites import Suite, Test  # noqa: E402

# Acts as a GoogleTest program: lists its tests, runs those of the filter, and reports as tests/support/test_events.cc.
PROGRAM = """\
    #!{python}
    import json, os, signal, sys, time
    tests = {tests!r}
    words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    if "--gtest_list_tests" in sys.argv:
        listed = [{{"name": name, "file": "../a_test.cc", "line": 1}} for name in tests]
        path = words["--gtest_output"].removeprefix("json:")
        json.dump({{"testsuites": [{{"name": "Suite", "testsuite": listed}}]}}, open(path, "w"))
        sys.exit(0)
    events = open(os.environ["PACELINE_TEST_EVENTS"], "a", buffering=1)
    open({log!r}, "a").write(words["--gtest_filter"] + "\\n")
    def end(name, result, reason=""):
        sys.stdout.flush()
        print("end", name, os.fstat(1).st_size, 0.5, 0.25, result, reason, file=events)
    code = 0
    if "no_begin" in tests.values(): sys.exit(2)
    for full in words["--gtest_filter"].split(":"):
        name = full.removeprefix("Suite.")
        sys.stdout.flush()
        print("begin", full, os.fstat(1).st_size, file=events)
        print("output of", name)
        does = tests[name]
        if does == "crash": sys.stdout.flush(); os.kill(os.getpid(), signal.SIGSEGV)
        if does == "hang": sys.stdout.flush(); time.sleep(1000)
        if does == "exit": sys.exit(0)
        if does == "interrupt" and signal.getsignal(signal.SIGINT) == signal.SIG_IGN: does = "fail"
        if does == "fail": code = 1
        if does == "bad_end": code = 66
        if does == "fork": print("forked", file=events)
        if does == "leak": end(full, "failed"); os._exit(1)
        end(full, {{"fail": "failed", "skip": "skipped"}}.get(does, "passed"), "no device" if does == "skip" else "")
    if "end_early" in tests.values(): os._exit(0)
    print("finished", file=events)
    sys.exit(code)
"""


class RunnerTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="runner-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.build = self.folder / "made_up"
        self.build.mkdir()
        self.suites = []

    def add(self, name, tests, timeout=30):
        program = self.folder / name
        log = str(self.folder / f"{name}.log")
        program.write_text(textwrap.dedent(PROGRAM).format(python=sys.executable, tests=tests, log=log))
        program.chmod(0o755)
        self.add_entry(name=name, kind="gtest", command=[str(program)], timeout=timeout)

    def add_entry(self, **entry):
        self.suites.append({"folder": str(self.folder), "target": entry["name"], "match": "*", **entry})
        (self.build / "tests.json").write_text(json.dumps({"environment": {}, "suites": self.suites}))

    def run_tests(self, *words, **options):
        command = [sys.executable, str(RUNNER), str(self.build), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=60, **options)
        return done.returncode, done.stdout + done.stderr

    def assert_last_line(self, code, text, expected):
        self.assertEqual(text.splitlines()[-1], expected, text)
        self.assertEqual(code, 0 if " 0 failed" in expected else 1, text)

    def processes(self, name):
        return (self.folder / f"{name}.log").read_text().splitlines()

    def test_many_tests_share_a_process(self):
        self.add("a", {"One": "pass", "Two": "pass", "Three": "skip"})
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 2 passed, 0 failed, 1 skipped")
        self.assertIn("skipped: 1: no device", text)
        self.assertEqual(self.processes("a"), ["Suite.One:Suite.Two:Suite.Three"])

    def test_a_failure_shows_its_own_output_alone(self):
        self.add("a", {"One": "pass", "Two": "fail", "Three": "pass"})
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 2 passed, 1 failed, 0 skipped")
        self.assertIn("output of Two", text)
        self.assertNotIn("output of One", text)
        self.assertNotIn("output of Three", text)
        self.assertIn("--gtest_filter=Suite.Two", text)
        self.assertEqual(len(self.processes("a")), 1)

    def test_a_crash_is_the_failure_of_one_test_and_the_others_run(self):
        self.add("a", {"One": "pass", "Two": "crash", "Three": "pass", "Four": "pass"})
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 3 passed, 1 failed, 0 skipped")
        self.assertIn("a.Suite.Two: ended by SIGSEGV", text)
        self.assertEqual(self.processes("a")[1], "Suite.Three:Suite.Four")

    def test_a_process_that_ends_before_its_end_fails_though_its_tests_passed(self):
        self.add("a", {"One": "end_early", "Two": "pass"})
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 2 passed, 1 failed, 0 skipped")

    def test_a_leak_is_the_failure_of_one_test_and_the_others_run(self):
        self.add("a", {"One": "pass", "Two": "leak", "Three": "pass"})
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 2 passed, 1 failed, 0 skipped")

    def test_a_child_that_goes_on_as_the_program_fails(self):
        self.add("a", {"One": "fork"})
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 1 passed, 1 failed, 0 skipped")
        self.assertIn("a child process that it forked", text)

    def test_a_suite_without_tests_is_an_error(self):
        self.add("a", {})
        self.assertEqual(self.run_tests()[0], 1)
        (self.folder / "test_ends.py").write_text("import sys\nsys.exit(0)\n")
        self.suites.clear()
        self.add_entry(name="python", kind="unittest", command=["test_ends"], timeout=30)
        code, text = self.run_tests()
        self.assertEqual(code, 1)
        self.assertIn("a module ends the program", text)

    def test_variables_of_googletest_choose_nothing(self):
        self.add("a", {"One": "pass"})
        code, text = self.run_tests(env={**os.environ, "GTEST_FILTER": "-Suite.One", "GTEST_REPEAT": "3"})
        self.assert_last_line(code, text, "made_up: 1 passed, 0 failed, 0 skipped")

    def test_numbers_that_would_run_nothing_are_refused(self):
        self.add("a", {"One": "fail"})
        for option in ("--repeat=0", "--repeat=x", "--cores=0", "--minutes=0"):
            self.assertEqual(self.run_tests(option)[0], 2, option)

    def test_what_was_not_started_is_said_in_the_last_line(self):
        self.add("a", {"One": "pass"})
        code, text = self.run_tests("--minutes=0.0000001")
        self.assertEqual(text.splitlines()[-1], "made_up: 0 passed, 0 failed, 0 skipped, 1 not started")
        self.assertEqual(code, 1)

    def test_a_process_that_comes_to_no_test_is_not_tried_again(self):
        self.add("a", {"One": "no_begin", "Two": "pass"})
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 0 passed, 2 failed, 0 skipped")
        self.assertIn("a.Suite.One: ended with exit code 2", text)

    def test_tests_heed_interrupts_though_the_runner_was_started_in_the_background(self):
        self.add("a", {"One": "interrupt"})
        code, text = self.run_tests(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        self.assert_last_line(code, text, "made_up: 1 passed, 0 failed, 0 skipped")

    def test_a_test_that_hangs_is_killed(self):
        self.add("a", {"One": "hang", "Two": "pass"}, timeout=10)
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 1 passed, 1 failed, 0 skipped")
        self.assertIn("a.Suite.One: did not end within 10 s", text)

    def test_a_test_that_leaves_the_process_fails(self):
        self.add("a", {"One": "exit", "Two": "pass"})
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 1 passed, 1 failed, 0 skipped")

    def test_a_process_that_ends_badly_fails_though_its_tests_passed(self):
        self.add("a", {"One": "bad_end"})
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 1 passed, 1 failed, 0 skipped")
        self.assertIn("ended with exit code 66", text)

    def test_a_failure_is_not_run_again(self):
        self.add("a", {"One": "fail"})
        self.run_tests()
        self.assertEqual(self.processes("a"), ["Suite.One"])

    def test_every_repetition_counts(self):
        self.add("a", {"One": "pass", "Two": "fail"})
        code, text = self.run_tests("--repeat", "3")
        self.assert_last_line(code, text, "made_up: 3 passed, 3 failed, 0 skipped")

    def test_names_choose(self):
        self.add("a", {"One": "pass", "Two": "pass"})
        self.add("b", {"One": "pass"})
        for words, number in ((["a"], 2), (["Two"], 1), (["*One"], 2), (["b.Suite.One", "Two"], 2)):
            code, text = self.run_tests(*words)
            self.assert_last_line(code, text, f"made_up: {number} passed, 0 failed, 0 skipped")
        code, text = self.run_tests("Three")
        self.assertEqual(code, 1)
        self.assertIn("'Three' names no test", text)

    def test_a_path_is_the_tests_of_a_file_or_its_suite(self):
        """The program names its file relative to the build folder, which is where the cache lets the compiler be."""
        self.add("a", {"One": "pass"})
        path = self.folder / "a_test.cc"
        path.write_text("")
        code, text = self.run_tests(str(path))
        self.assert_last_line(code, text, "made_up: 1 passed, 0 failed, 0 skipped")
        other = self.folder / "other_test.cc"
        other.write_text("")
        self.assertEqual(self.run_tests(str(other))[0], 1)

    def test_programs_that_were_not_built_now_are_not_asked(self):
        self.add("a", {"One": "pass"})
        self.add("b", {"One": "fail"})
        (self.folder / "targets").write_text("a\n")
        code, text = self.run_tests("--built", str(self.folder / "targets"), "One")
        self.assert_last_line(code, text, "made_up: 1 passed, 0 failed, 0 skipped")

    def test_a_failure_in_quarantine_is_counted_and_does_not_decide(self):
        self.add("a", {"One": "pass", "Two": "fail"})
        tables = self.folder / "exceptions.toml"
        tables.write_text('[quarantine]\n"a.Suite.Two" = "not yet repaired"\n')
        code, text = self.run_tests("--exceptions", str(tables))
        self.assertEqual(code, 0)
        self.assertEqual(
            text.splitlines()[-1],
            "made_up: 1 passed, 0 failed, 0 skipped, 1 in quarantine of which 1 failed",
        )
        self.assertEqual(sorted(self.processes("a")), ["Suite.One", "Suite.Two"])

    def test_a_program_that_is_missing_is_an_error(self):
        self.add("a", {"One": "pass"})
        (self.folder / "a").unlink()
        code, text = self.run_tests()
        self.assertEqual(code, 1)
        self.assertIn("is missing: build a", text)

    def test_commands_pass_fail_and_skip(self):
        for name, code in (("passes", 0), ("fails", 3), ("skips", 77)):
            path = self.folder / name
            path.write_text(f"#!/bin/sh\necho says {name}\nexit {code}\n")
            path.chmod(0o755)
            self.add_entry(name=name, kind="command", command=[str(path)], timeout=30)
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 1 passed, 1 failed, 1 skipped")
        self.assertIn("skipped: 1: says skips", text)
        self.assertIn("fails: ended with exit code 3", text)

    def test_unittest_classes_that_cannot_begin_fail_or_skip_as_a_whole(self):
        (self.folder / "test_made_up.py").write_text(
            textwrap.dedent("""\
                import unittest
                class Broken(unittest.TestCase):
                    @classmethod
                    def setUpClass(cls): raise OSError("no set-up")
                    def test_one(self): pass
                    def test_two(self): pass
                class Absent(unittest.TestCase):
                    @classmethod
                    def setUpClass(cls): raise unittest.SkipTest("not here")
                    def test_one(self): pass
                class Good(unittest.TestCase):
                    def test_passes(self): pass
                    def test_fails(self):
                        for i in range(2):
                            with self.subTest(i): self.assertEqual(i, 0)
                    def test_skips(self): self.skipTest("no reason")
                """)
        )
        self.add_entry(name="python", kind="unittest", command=["test_made_up"], timeout=30)
        code, text = self.run_tests()
        self.assert_last_line(code, text, "made_up: 1 passed, 3 failed, 2 skipped")
        self.assertIn("OSError: no set-up", text)
        self.assertIn("AssertionError: 1 != 0", text)

    def test_results_are_written_for_other_programs(self):
        self.add("a", {"One": "pass", "Two": "fail", "Three": "skip"})
        self.run_tests()
        (suite,) = xml.parse(self.build / "tests" / "junit.xml").getroot()
        self.assertEqual([suite.get(x) for x in ("name", "tests", "failures", "skipped")], ["a", "3", "1", "1"])
        failure = suite.find("testcase[@name='Two']/failure")
        self.assertIn("output of Two", failure.text)


class BatchesTest(unittest.TestCase):
    def setUp(self):
        entry = {"name": "s", "kind": "gtest", "command": ["s"], "folder": ".", "timeout": 1, "match": "*"}
        self.suite = Suite(entry, {})
        self.tests = [Test(self.suite, f"T.{i}") for i in range(100)]

    def test_every_test_is_in_one_batch_and_they_take_equal_time(self):
        costs = {test.id: (1 + i % 7, 1 + i % 7) for i, test in enumerate(self.tests)}
        batches = batches_of(self.tests, costs, {})
        self.assertEqual(sorted(t.id for b in batches for t in b.tests), sorted(t.id for t in self.tests))
        self.assertGreater(len(batches), 10)
        self.assertLess(max(b.wall for b in batches), 1.5 * min(b.wall for b in batches))

    def test_waiting_tests_are_apart_from_busy_ones(self):
        costs = {test.id: (1, i % 2) for i, test in enumerate(self.tests)}
        for batch in batches_of(self.tests, costs, {}):
            self.assertEqual(len({costs[test.id][1] for test in batch.tests}), 1)

    def test_tests_of_their_own_process(self):
        batches = batches_of(self.tests, {}, {"s.T.7": "because"})
        self.assertIn([self.tests[7]], [batch.tests for batch in batches])

    def test_waiting_batches_run_beside_busy_ones(self):
        busy, idle = Batch(self.tests[:1], 10, 10), Batch(self.tests[1:2], 5, 0.5)
        waiting = [Batch(busy.tests, 10, 10), idle]
        self.assertIs(next_batch(waiting, [busy, busy], cores=2, most=8), None)
        self.assertIs(next_batch([busy, idle], [busy], cores=1.2, most=8), idle)
        self.assertIs(next_batch([busy, idle], [busy], cores=2, most=8), busy)
        self.assertIs(next_batch([idle], [idle] * 8, cores=2, most=8), None)
