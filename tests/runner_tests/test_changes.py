"""Which tests a change runs: tables that are written and read again, and the choice for each kind of file."""

import contextlib
import io
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "runner"))

import changes  # noqa: E402  after the path is set
import coverage  # noqa: E402
import records  # noqa: E402

TABLE = {
    "kvstore.Gossip.One": {"kvstore/gossip.cc", "base/log.cc"},
    "kvstore.Gossip.Two": {"kvstore/gossip.cc"},
    "kvstore.Ring.One": {"kvstore/ring.cc", "base/log.cc"},
    "nn.Layers.One": {"nn/layers.cc"},
}


class Tables(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="changes-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        for module, name, value in (
            (coverage, "TABLE", self.folder / "coverage.txt"),
            (records, "DURATIONS", self.folder),
        ):
            patch = mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        coverage._write(TABLE)
        names = [*TABLE, "launch.test_local.X.test_y", "scripts.refusals"]
        (self.folder / "cpu.tsv").write_text("# head\n" + "".join(f"{name}\t1.0\t0.5\n" for name in names))


class Records(Tables):
    def test_coverage_is_read_as_it_was_written(self):
        self.assertEqual(coverage.read(), TABLE)

    def test_durations_of_another_preset_are_those_of_cpu(self):
        self.assertEqual(records.durations("tsan")["nn.Layers.One"], (1.0, 0.5))

    def test_exceptions_are_found_by_pattern(self):
        path = self.folder / "exceptions.toml"
        path.write_text('[quarantine]\n"kvstore.Gossip.*" = "why"\n[not_under.tsan]\n"nn.*" = "slow"\n')
        exceptions = records.Exceptions("tsan", path)
        self.assertEqual(exceptions.match(exceptions.quarantine, "kvstore.Gossip.One"), "why")
        self.assertIsNone(exceptions.match(exceptions.quarantine, "kvstore.Ring.One"))
        self.assertEqual(exceptions.match(exceptions.not_here, "nn.Layers.One"), "slow")
        self.assertEqual(records.Exceptions("asan", path).not_here, {})
        path.write_text("[quarantined]\n")
        with self.assertRaises(SystemExit):
            records.Exceptions("tsan", path)

    def test_the_tables_of_the_tree_can_be_read(self):
        with mock.patch.object(coverage, "TABLE", records.TESTS / "recorded" / "coverage.txt"):
            self.assertGreater(len(coverage.read()), 1000)
        records.Exceptions("cpu")


class Choice(Tables):
    def setUp(self):
        super().setUp()
        suites = [
            {"name": name, "kind": kind, "target": target, "command": ["x"], "folder": ".", "timeout": 1, "match": "*"}
            for name, kind, target in (
                ("kvstore", "gtest", "kvstore_tests"),
                ("nn", "gtest", "nn_tests"),
                ("launch", "unittest", ""),
                ("scripts.refusals", "command", ""),
                ("pages", "unittest", "page_programs"),
                ("scripts.docs", "unittest", ""),
            )
        ]
        (self.folder / "tests.json").write_text(json.dumps({"environment": {}, "suites": suites}))
        includers = {"kvstore/gossip.h": {"kvstore/gossip.cc", "tests/kvstore/gossip_test.cc"}}
        patch = mock.patch.object(changes, "included_by", lambda build: includers)
        patch.start()
        self.addCleanup(patch.stop)
        self.choice = changes.Choice(str(self.folder))

    def test_a_source_runs_the_tests_that_run_it(self):
        self.choice.for_file("kvstore/gossip.cc")
        self.assertEqual(self.choice.tests, {"kvstore.Gossip.One", "kvstore.Gossip.Two"})
        self.assertEqual(self.choice.targets(), ["kvstore_tests"])

    def test_a_header_runs_those_of_what_includes_it(self):
        self.choice.for_file("kvstore/gossip.h")
        self.assertEqual(self.choice.tests, {"kvstore.Gossip.One", "kvstore.Gossip.Two"})
        self.assertEqual(self.choice.names, {"tests/kvstore/gossip_test.cc"})

    def test_a_test_runs_itself(self):
        with self.assertRaises(SystemExit) as refused:
            self.choice.for_file("tests/nn/layers_test.cc")
        self.assertIn("is in no suite", str(refused.exception))
        self.enterContext(mock.patch.object(changes.Choice, "_suites_of_file", lambda *_, **__: {"nn"}))
        self.choice.for_file("tests/nn/layers_test.cc")
        self.assertEqual((self.choice.tests, self.choice.names), (set(), {"tests/nn/layers_test.cc"}))
        self.assertEqual(self.choice.targets(), ["nn_tests"])

    def test_a_test_that_is_gone_runs_its_suite(self):
        self.choice.for_file("tests/nn/never_was_test.cc")
        self.assertEqual(self.choice.names, {"nn"})

    def test_a_public_header_is_compiled_everywhere(self):
        self.choice.for_file("nn/include/paceline/nn.h")
        self.assertLessEqual({"all", "all_verify_interface_header_sets"}, set(self.choice.targets()))

    def test_a_public_header_has_comments(self):
        for path in ("nn/include/paceline/nn.h", "ops/softmax/softmax.h", "tools/docs/api.py", "mkdocs.yml"):
            choice = changes.Choice(str(self.folder))
            choice.for_file(path)
            self.assertIn("scripts.docs", choice.names, path)
        self.assertEqual(choice.targets(), [])

    def test_a_benchmark_is_compiled(self):
        self.choice.for_file("tests/benchmarks/convergence.cc")
        self.assertEqual((self.choice.targets(), self.choice.tests, self.choice.names), (["all"], set(), set()))

    def test_a_script_that_measures_runs_its_tests(self):
        self.choice.for_file("tests/benchmarks/turns.py")
        self.assertEqual(self.choice.names, {"tests/runner_tests/test_bench.py"})
        self.choice.for_file("tests/benchmarks/README.md")  # whose tables that script writes
        self.assertEqual(self.choice.names, {"tests/runner_tests/test_bench.py", "pages"})
        self.assertFalse(self.choice.everything)

    def test_a_page_runs_the_tests_of_pages(self):
        for path in ("CONTRIBUTING.md", "docs/reference.md"):
            self.choice.for_file(path)
            self.assertEqual((self.choice.tests, self.choice.names, self.choice.everything), (set(), {"pages"}, False))
        self.assertEqual(self.choice.targets(), ["page_programs"])

    def test_the_launcher_runs_jobs(self):
        self.choice.for_file("tools/paceline_launch/ssh.py")
        self.assertIn("launch", self.choice.names)
        self.assertEqual(self.choice.targets(), ["all"])

    def test_a_source_that_no_test_is_recorded_for_runs_the_suites_that_hold_it(self):
        self.enterContext(mock.patch.object(changes.Choice, "_suites_of_file", lambda *_, **__: {"nn"}))
        self.choice.for_file("nn/new_file.cc")
        self.assertEqual((self.choice.names, self.choice.everything), ({"nn", "launch", "pages"}, False))
        self.assertEqual(self.choice.targets(), ["all"])

    def test_a_suite_that_is_not_run_with_the_preset_is_not_built(self):
        with mock.patch.object(records.Exceptions, "__init__", lambda self, *_: setattr(
            self, "not_here", {"launch.*": "why"})):  # fmt: skip
            choice = changes.Choice(str(self.folder))
        choice.for_file("tools/paceline_launch/ssh.py")
        self.assertEqual(choice.names, {"pages"})

    def test_what_nothing_is_known_of_runs_everything(self):
        for path in (
            "CMakeLists.txt",
            "kvstore/new_file.cc",
            "tools/cmake/Module.cmake",
            "tests/support/paths.cc.in",
            "kvstore/never_included.h",
        ):
            choice = changes.Choice(str(self.folder))
            choice.for_file(path)
            self.assertTrue(choice.everything, path)
            self.assertEqual(choice.targets(), ["all"])

    def test_names(self):
        self.choice.for_name("Gossip")
        self.assertEqual(self.choice.targets(), ["kvstore_tests"])
        choice = changes.Choice(str(self.folder))
        choice.for_name("NeverRecorded")
        self.assertEqual(choice.targets(), ["all"])

    def test_what_is_written(self):
        prefix = self.folder / "chosen"
        words = ["changes.py", str(self.folder), "--write", str(prefix), "--files", "nn/layers.cc", "README.md"]
        with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()):
            changes.main()
        self.assertEqual((self.folder / "chosen.tests").read_text(), "nn.Layers.One\n")
        self.assertEqual((self.folder / "chosen.targets").read_text(), "nn_tests page_programs\n")
