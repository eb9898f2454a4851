"""tools/bench.sh without a measurement: statistics, turns, tables, and runs of programs that print fixed figures."""

import contextlib
import io
import json
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench  # noqa: E402  after the path is set
import subjects  # noqa: E402
import tables  # noqa: E402
import turns  # noqa: E402

RATE = subjects.Figure("rate, GB/s", "rate", 1e-9)
TIME = subjects.Figure("time, µs", "time", less_is_better=True)
MEMORY = subjects.Figure("memory, MB", "memory", less_is_better=True, is_speed=False)
SETUP = subjects.Setup(seconds=0.1, python="python", taskflow="taskflow", folder="bin")
PROGRAM = "#!/bin/sh\ncat <<'END'\n{}\nEND\n"
ENGINE = {"tasks_per_second": 2e6, "cpu_ns_per_task": 500, "task_ns": 100, "kernel_add_ns": 200, "kernel_axpy_ns": 300,
          "operator_add_ns": 400}  # fmt: skip


def case_of(*figures):
    return subjects.Case(figures, ours=lambda folder: {}, peer=None)


def program(folder, name, values):
    path = pathlib.Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROGRAM.format(json.dumps(values)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Statistics(unittest.TestCase):
    def test_the_ratio_is_that_of_the_medians(self):
        self.assertEqual(turns.ratio([1, 6, 100], [2, 3, 4]), 2)

    def test_the_geometric_mean_of_ratios(self):
        self.assertAlmostEqual(turns.geometric_mean_of_ratios([([4], [1]), ([1], [1]), ([1], [4])]), 1)
        self.assertAlmostEqual(turns.geometric_mean_of_ratios([([8], [1]), ([2], [1])]), 4)

    def test_the_bound_is_the_mean_where_all_turns_agree(self):
        self.assertAlmostEqual(turns.lower_bound([([3] * 5, [2] * 5), ([6] * 5, [4] * 5)]), 1.5)

    def test_the_bound_lies_among_the_ratios_and_repeats(self):
        pairs = [([10, 11, 12, 9, 8, 10, 13], [10, 10, 10, 10, 10, 10, 10])]
        bound = turns.lower_bound(pairs)
        self.assertGreaterEqual(bound, 0.8)
        self.assertLess(bound, turns.geometric_mean_of_ratios(pairs))
        self.assertEqual(bound, turns.lower_bound(pairs))

    def test_a_turn_stays_together(self):
        # The load of each turn moves both programs, so their ratio is certain.
        load = [1, 2, 4, 8, 16]
        self.assertAlmostEqual(turns.lower_bound([([3 * x for x in load], load)]), 3)

    def test_every_program_is_first_equally_often(self):
        names = ["a", "b", "c"]
        self.assertEqual([turns.turned(names, turn)[0] for turn in range(6)], names * 2)
        self.assertEqual(sorted(turns.turned(names, 1)), names)

    def test_less_is_better_turns_the_ratio_round(self):
        self.assertEqual(tables.Compared(RATE, [4], [2]).ratio(), 2)
        self.assertEqual(tables.Compared(TIME, [4], [2]).ratio(), 0.5)

    def test_few_turns_have_their_least_ratio(self):
        self.assertIsNone(tables.Compared(RATE, [4], [2]).at_least())
        self.assertEqual(tables.Compared(RATE, [4, 3, 6], [2, 2, 2]).at_least(), 1.5)
        self.assertEqual(tables.Compared(TIME, [4, 2], [2, 2]).at_least(), 0.5)


class Tables(unittest.TestCase):
    PAGE = "# Page\n\n<!-- begin: store, written by tools/bench.sh -->\n{}<!-- end: store -->\n\ntext\n"

    def row(self, name, ours="1", peer="2"):
        return (name, ours, peer, "0.50", "0.40", "5", "abc1234", "Xeon, 2 cores")

    def test_numbers(self):
        for value, text in ((23557.4, "23,557"), (100, "100"), (99.94, "99.9"), (1.164, "1.16"), (0.3341, "0.334"),
                            (0.048, "0.048"), (0.00002, "0.0000"), (0, "0"), (None, tables.NONE)):  # fmt: skip
            self.assertEqual(tables.number(value), text)

    def test_a_table_is_read_as_it_was_written(self):
        rows = [self.row("a"), self.row("`b`: c, GB/s")]
        self.assertEqual(tables.parse(tables.table(tables.HEADER, rows)), rows)
        self.assertEqual(tables.parse([]), [])

    def test_rows_of_a_case(self):
        runs = {"ours": [{"rate": 3e9, "time": 8}], "peer": [{"rate": 2e9, "time": 4, "version": "Peer 1.2"}]}
        rows = tables.rows_of(case_of(RATE, TIME, MEMORY), runs, "abc1234", "Xeon")
        self.assertEqual(rows, [
            ("rate, GB/s", "3", "2", "1.50", tables.NONE, "1", "abc1234", "Xeon; Peer 1.2"),
            ("time, µs", "8", "4", "0.50", tables.NONE, "1", "abc1234", "Xeon; Peer 1.2"),
        ])  # fmt: skip

    def test_a_figure_without_a_peer(self):
        for runs in ({"ours": [{"rate": 3e9}]}, {"ours": [{"rate": 3e9}], "peer": [{}]}):
            (row,) = tables.rows_of(case_of(RATE), runs, "abc1234", "Xeon")
            self.assertEqual(row, ("rate, GB/s", "3", *[tables.NONE] * 3, "1", "abc1234", "Xeon"))

    def test_what_was_not_measured_stays(self):
        old = [self.row("b"), self.row("a"), self.row("gone")]
        self.assertEqual(tables.merged(old, [self.row("b", "9"), self.row("c")], ["a", "b", "c", "d"]),
                         [self.row("a"), self.row("b", "9"), self.row("c")])  # fmt: skip

    def test_a_missing_peer_does_not_remove_what_is_known_of_it(self):
        alone = self.row("a", "9", tables.NONE)
        self.assertEqual(tables.merged([self.row("a")], [alone], ["a"]), [self.row("a")])
        self.assertEqual(tables.merged([self.row("a", "1", tables.NONE)], [alone], ["a"]), [alone])

    def test_only_the_marked_part_of_a_page_is_written(self):
        page = tables.written(self.PAGE.format(""), "store", [self.row("a")], ["a"])
        self.assertEqual(page, self.PAGE.format("\n".join(tables.table(tables.HEADER, [self.row("a")])) + "\n"))
        self.assertEqual(tables.written(page, "store", [], ["a"]), page)
        with self.assertRaisesRegex(ValueError, "no marks '<!-- begin: engine"):
            tables.written(page, "engine", [], [])


class Page(unittest.TestCase):
    def test_its_tables_hold_what_the_subjects_measure(self):
        page = bench.PAGE.read_text()
        for name, subject in subjects.SUBJECTS.items():
            known = [figure.name for case in subject.cases(SETUP) for figure in case.figures]
            self.assertEqual(len(known), len(set(known)), name)
            self.assertEqual(tables.written(page, name, [], known), page, f"{name}: unknown figures or another order")


class Turns(unittest.TestCase):
    def setUp(self):
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def measured(self, **programs):
        return bench.Measured(case_of(RATE), programs, "ours")

    def test_all_programs_run_in_every_turn(self):
        one = self.measured(ours=lambda: {"rate": 1}, peer=lambda: {"rate": 2})
        self.assertEqual(bench.measure([one], 3, None), 3)
        self.assertEqual(one.runs, {"ours": [{"rate": 1}] * 3, "peer": [{"rate": 2}] * 3})

    def test_one_turn_at_least(self):
        self.assertEqual(bench.measure([self.measured(ours=dict)], None, 1e-9), 1)

    def test_a_peer_that_fails_is_left_out(self):
        one = self.measured(ours=lambda: {"rate": 1}, peer=mock.Mock(side_effect=turns.ProgramFailed("broken")))
        bench.measure([one], 2, None)
        self.assertEqual(one.runs, {"ours": [{"rate": 1}] * 2})

    def test_ours_must_not_fail(self):
        with self.assertRaisesRegex(turns.ProgramFailed, "broken"):
            bench.measure([self.measured(ours=mock.Mock(side_effect=turns.ProgramFailed("broken")))], 2, None)

    def test_programs_that_cannot_be_measured(self):
        for command, words in ((["/nothing/there"], "cannot be started"), (["false"], "false failed"),
                               (["true"], "printed no JSON"), (["echo", "x"], "printed no JSON")):  # fmt: skip
            with self.assertRaisesRegex(turns.ProgramFailed, words):
                turns.last_json(command)


class AgainstABuild(unittest.TestCase):
    def report(self, now, before, again):
        runs = {who: [{"rate": value, "memory": 1} for value in values]
                for who, values in (("now", now), ("before", before), ("again", again))}  # fmt: skip
        one = mock.Mock(case=case_of(RATE, MEMORY, TIME), runs=runs)
        lines, fine = bench.report_build({"store": [one]}, "x beside y", len(now))
        return "\n".join(lines), fine

    def test_as_fast(self):
        text, fine = self.report([10, 11, 9, 10, 10], [10, 10, 10, 10, 10], [11, 9, 10, 10, 9])
        self.assertTrue(fine)
        self.assertIn("Geometric mean of 1 figures: now/before 1.000", text)  # memory is none of speed
        self.assertIn("store: memory, MB", text)
        self.assertNotIn("time", text)

    def test_slower(self):
        text, fine = self.report([5] * 5, [10] * 5, [10] * 5)
        self.assertFalse(fine)
        self.assertIn("It is slower on the whole: 0.500 is below 1.000. A loss of 50.0% cannot be excluded.", text)
        self.assertIn("store: rate, GB/s (0.500)", text)

    def test_what_is_faster_is_never_slower(self):
        text, fine = self.report([11] * 5, [10] * 5, [12] * 5)
        self.assertTrue(fine)
        self.assertNotIn("Each below", text)

    def test_few_turns_prove_nothing(self):
        text, fine = self.report([10] * 4, [10] * 4, [10] * 4)
        self.assertFalse(fine)
        self.assertIn("4 turns are too few", text)


class Runs(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(bench, "BENCH", self.folder / "bench"))
        self.enterContext(mock.patch.object(subjects, "find_taskflow", lambda folder: (None, "not there")))
        self.errors = self.enterContext(contextlib.redirect_stderr(io.StringIO()))
        program(self.folder, "now/engine_benchmark", ENGINE)

    def run_bench(self, *words):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = bench.main([f"--bin={self.folder}/now", "--turns=2", "engine", *words])
        return code, output.getvalue()

    def test_beside_a_peer_that_is_missing(self):
        code, output = self.run_bench()
        self.assertEqual(code, 0)
        self.assertIn("| tasks of a random graph, million/s | 2 | – | – | – | 2 |", output)
        self.assertIn("skipped: Taskflow: not there", self.errors.getvalue())
        self.assertEqual((self.folder / "bench/results.md").read_text(), output)
        self.assertEqual(len(json.loads((self.folder / "bench/results.json").read_text())["runs"]["engine"]), 2)

    def test_the_page_is_written_after_enough_turns(self):
        page = self.enterContext(mock.patch.object(bench, "PAGE", self.folder / "page.md"))
        text = "<!-- begin: engine, written by tools/bench.sh -->\n<!-- end: engine -->\n"
        page.write_text(text)
        self.enterContext(mock.patch.object(bench, "build", lambda *_: f"{self.folder}/now"))
        with contextlib.redirect_stdout(io.StringIO()), self.assertRaises(SystemExit):
            bench.main(["--write", "--turns=2", "engine"])
        self.assertIn("not written: 2 turns are too few", self.errors.getvalue())
        self.assertEqual(page.read_text(), text)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(bench.main(["--write", "--turns=5", "engine"]), 0)
        self.assertEqual(len(tables.parse(page.read_text().splitlines()[1:-1])), 6)

    def test_against_a_folder(self):
        for factor, code in ((1, 0), (0.5, 1)):
            program(self.folder, "other/bin/engine_benchmark", {name: v * factor for name, v in ENGINE.items()})
            given, output = self.run_bench("--turns=5", f"--against={self.folder}/other")
            self.assertIn(f"Geometric mean of 6 figures: now/before {2 ** (-4 / 6) if code else 1:.3f}", output)
            self.assertEqual(given, code)

    def test_refusals(self):
        for words, message in (
            (["--against=no-such-commit"], "'no-such-commit' is neither a folder nor a commit"),
            ([f"--against={self.folder}"], "holds none of engine_benchmark"),
            (["--write"], "leave out --against and --bin"),
            (["store"], "holds no kvbench kvfloor"),
        ):
            with self.assertRaises(SystemExit):
                self.run_bench(*words)
            self.assertIn(message, self.errors.getvalue())

    def test_the_scripts_beside_one_peer(self):
        rates = {"push_gbps": 1, "pull_gbps": 1, "both_gbps": 1, "keys_per_second": 1, "rtt_us_p50": 1,
                 "rtt_us_p99": 1, "workers": 2}  # fmt: skip
        program(self.folder, "kvfloor", rates)
        program(self.folder, "kvbench", {**rates, "both_gbps": 3})
        for name, ratio in (
            ("compare_floor", lambda summary: summary["programs"]["tcp"]["ratio"]["both_gbps"]),
            ("compare_sparse", lambda summary: summary["ratio"]["both_gbps"] * 3),
        ):
            command = [sys.executable, "-B", BENCHMARKS / f"{name}.py", "--bin", self.folder, "--rounds", "2"]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(ratio(json.loads(done.stdout.splitlines()[-1])), 3)
