"""Every example program does what its text says. Training programs have tests of their own."""

import re
import unittest

from support import LAUNCHER, SOURCE_DIR, ProgramTest, program

TRAINING = {"mnist", "image_classification", "sparse_linear", "factorization_machine", "char_lm", "mlp"}
EXPECTED = {
    "ndarray": r"0 10 -20 0 0 -30 70 0 \npoints: float32 \(4, 2\) on cpu\nturned: float32 \(4, 2\) on cpu\n"
    r"\[view\] float32 \(4, 2\) on cpu has 8 elements, shape \(3, 3\) has 9\n",
    "engine": r"sum of squares below 1000: 332833500\nas expected: \[divide\] by zero\n",
    "autograd": r"y = 2\.000 x \+ 1\.000\n",
    "kvstore": r"weight 1\.000, expected 1\.000\n",
    "embedding": r"most of the last pairs told apart, few words in memory\n",
    "custom_operator": r"-0\.5 -0\.25 1 2 0\.25 0\.25 1 1 \n",
}
# Programs with an object of their own, which their servers need too: what worker 0 of two prints, and the object.
WITH_OBJECTS = {
    "custom_staleness": ("weight 3.5 after gradients with a mean delay of 1.0", "staleness policy 'sign_of_the_old'"),
    "custom_mode": ("weight 1.000, nobody was more than 5 steps ahead: true", "mode 'widening'"),
    "custom_codec": ("largest error 0.000, gradients sent as 25.0 % of their bytes", "codec 'bytes'"),
}


class Examples(ProgramTest):
    def test_none_is_forgotten(self):
        sources = {path.stem for path in (SOURCE_DIR / "examples").glob("*.cc")}
        self.assertEqual(sources - TRAINING, EXPECTED.keys() | WITH_OBJECTS.keys())

    def test_none_includes_what_is_not_installed(self):
        for path in (SOURCE_DIR / "examples").rglob("*.[ch]*"):
            self.assertNotIn("<paceline/detail/", path.read_text(), path)

    def test_output(self):
        for name, output in EXPECTED.items():
            with self.subTest(name):
                ended = self.run_program(program(name))
                self.assertEqual(ended.code, 0, ended)
                self.assertIsNotNone(re.fullmatch(output, ended.out), ended)

    def test_store_in_a_job(self):
        launch = (*LAUNCHER, "-n", 2, "-s", 1, "--on-worker-loss", "stop")
        ended = self.run_program(*launch, program("kvstore"), "dist_sync")
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(ended.out, "[worker 0] weight 1.000, expected 1.000\n")
        ended = self.run_program(program("kvstore"), "dist_asink")
        self.assert_one_clear_sentence(ended, "kvstore: unknown mode 'dist_asink'; known: local", code=2)

    def test_a_mode_that_cannot_do_it_is_a_mistake(self):
        launch = (*LAUNCHER, "-n", 2, "--on-worker-loss", "stop")
        ended = self.run_program(*launch, program("embedding"), "ring")
        self.assert_one_clear_sentence(ended, "embedding: this mode holds no row-sparse tables; use local", code=2)

    def test_objects_of_their_own(self):
        """The servers run the program of the workers, which has the object, or refuse."""
        launch = (*LAUNCHER, "-n", 2, "-s", 2, "--on-worker-loss", "stop")
        for name, (output, object_) in WITH_OBJECTS.items():
            with self.subTest(name):
                ended = self.run_program(*launch, "--every-role", program(name))
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(ended.out, f"[worker 0] {output}\n")
                ended = self.run_program(*launch, program(name))
                self.assert_one_clear_sentence(
                    ended,
                    f"{name}: the workers name the {object_} of their program, which this server does not have: run "
                    "the workers' program in every role instead of paceline_server (launch.py --every-role), or pass "
                    "the same objects to serve()",
                    code=2,
                )
                alone = self.run_program(program(name))
                self.assert_one_clear_sentence(alone, f"{name}: [cluster] DMLC_ROLE is not set", code=2)


class Tools(ProgramTest):
    def kvbench(self, *flags, workers=1, servers=1):
        ended = self.run_program(program("kvbench"), "--servers", servers, "--workers", workers, "--keys", 4,
                                 "--key_bytes", 65536, "--seconds", 0.05, *flags)  # fmt: skip
        self.assertEqual(ended.code, 0, ended)
        self.assert_nothing_survives()
        return ended.result

    def test_kvbench(self):
        """The last line is the result; nothing stays behind."""
        dense = {"push_gbps", "pull_gbps", "both_gbps", "keys_per_second", "rtt_us_p50", "rtt_us_p99"}
        rows = {"push_gbps", "pull_gbps", "both_gbps", "rows_per_second", "rows_held", "table_megabytes"}
        sparse = ("--sparse_rows", 100, "--row_floats", 8, "--table_rows", 1000)
        for flags, keys in (
            ((), dense),
            (("--transport", "shm"), dense),
            (("--transport", "inproc", "--call_per_key"), dense),
            (("--compression", "top_k,ratio=0.01"), dense),
            (("--mode", "ring", "--transport", "shm"), dense),
            (("--mode", "ring", "--transport", "inproc", "--optimizer", "assign"), dense),
            (("--mode", "local"), dense),
            (sparse, rows),
            (("--transport", "shm", "--mode", "dist_sync", *sparse), rows),
            (("--transport", "inproc", *sparse), rows),
        ):
            with self.subTest(" ".join(map(str, flags))):
                result = self.kvbench(*flags, workers=2, servers=2)
                self.assertLessEqual(keys, result.keys())
                for key in keys:
                    self.assertGreater(result[key], 0, result)
                if "--transport" in flags:
                    self.assertEqual(result["transport"], flags[flags.index("--transport") + 1])
                if keys is rows:
                    self.assertLessEqual(result["rows_held"], 1000)  # of both servers

    def test_train_benchmark(self):
        ended = self.run_program(program("train_benchmark"), "--network", "lenet", "--batch_size", 8, "--threads", 1,
                                 "--seconds", 0.1)  # fmt: skip
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual([ended.result[key] for key in ("parameters", "threads", "image_size")], [61706, 1, 28])
        self.assertGreater(ended.result["samples_per_second"], 0)
        self.assertGreater(ended.result["peak_memory_mb"], 1)
        ended = self.run_program(program("train_benchmark"), "--network", "lenet", "--batch_size", 2, "--threads", 1,
                                 "--seconds", 0.1, "--precision", "float16")  # fmt: skip
        self.assertEqual(ended.result["precision"], "float16", ended)
        ended = self.run_program(program("train_benchmark"), "--network", "alexnet")
        self.assert_one_clear_sentence(ended, "train_benchmark: unknown network 'alexnet'; known: mlp", code=2)

    def test_help(self):
        """Every program has a readable --help."""
        for name in (*TRAINING, "im2rec", "rec", "draw_digits", "kvbench", "paceline_server", "train_benchmark"):
            with self.subTest(name):
                ended = self.run_program(program(name), "--help")
                self.assertEqual((ended.code, ended.err), (0, ""), ended)
                self.assertTrue(ended.out.startswith(name), ended)
                self.assertLess(max(map(len, ended.out.splitlines())), 240)


if __name__ == "__main__":
    unittest.main()
