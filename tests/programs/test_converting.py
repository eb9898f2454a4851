"""to_rec as a user starts it: kills, mistakes, and what the converted data say of themselves."""

import os
import random
import shutil
import threading
import unittest

from support import ProgramTest, program
from test_packing import PROMPT, png


class Converting(ProgramTest):
    def to_rec(self, *arguments):
        return self.run_program(program("to_rec"), *arguments, patience=PROMPT)

    def files(self, folder):
        return {path.name: path.read_bytes() for path in (self.folder / folder).iterdir()}

    def assert_same(self, files, expected):
        self.assertEqual(sorted(files), sorted(expected))
        self.assertEqual([name for name in files if files[name] != expected[name]], [])

    def write_rows(self, count=6000):
        rows = "".join(f"{i},{i % 7},{'cat' if i % 3 else 'dog'}\n" for i in range(count))
        (self.folder / "rows.csv").write_text("x,y,kind\n" + rows)


class Kills(Converting):
    def test_killed_at_random_moments(self):
        """It goes on, and ends with the bytes of a run that nobody killed."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        choose = random.Random(seed)
        self.write_rows()
        flags = ("--label", "kind", "--shards", 8, "--split", "train=3,test=1", "--threads", 2)
        whole = self.to_rec(*flags, "whole/set", "rows.csv")
        self.assertEqual(whole.code, 0, whole)
        expected = self.files("whole")
        work = self.folder / "killed" / "set.converting"
        resumed = rounds = 0
        while rounds < 6 or (resumed == 0 and rounds < 60):  # on busy cores most runs end before they can be killed
            rounds += 1
            for _ in range(choose.randrange(1, 3)):
                enough = choose.randrange(1, 17)
                process = self.start(program("to_rec"), *flags, "killed/set", "rows.csv")
                self.wait_until(
                    lambda p=process, n=enough: p.poll() is not None or len(list(work.glob("*.done"))) >= n,
                    "no shards are finished",
                )
                process.kill()
                process.wait()
            ended = self.to_rec(*flags, "killed/set", "rows.csv")
            self.assertEqual(ended.code, 0, ended)
            resumed += "were finished by an earlier run" in ended.out
            self.assert_same(self.files("killed"), expected)
            shutil.rmtree(self.folder / "killed")
        self.assertGreater(resumed, 0)

    def test_im2rec_goes_on(self):
        """Killed in its second shard, im2rec keeps the first. A pipe holds it in the second."""
        images = [png(4, 4, i) for i in range(40)]
        for i, image in enumerate(images):
            (self.folder / f"{i}.png").write_bytes(image)
        lines = [f"{i}\t{i % 2}\t{i}.png\n" for i in range(40)]
        (self.folder / "plain.lst").write_text("".join(lines))
        lines[35] = "35\t1\tpipe.png\n"
        (self.folder / "pipe.lst").write_text("".join(lines))
        os.mkfifo(self.folder / "pipe.png")
        command = (program("im2rec"), "--noshuffle", "--shards", 2, "--threads", 1)
        process = self.start(*command, "killed/set", "pipe.lst")
        work = self.folder / "killed" / "set.converting"
        self.wait_until(lambda: len(list(work.glob("*.done"))) == 1, "the first shard is not finished", process)
        process.kill()
        process.wait()
        self.assertFalse((self.folder / "killed" / "set.manifest").exists())
        feeder = threading.Thread(target=lambda: (self.folder / "pipe.png").write_bytes(images[35]))
        feeder.start()
        ended = self.run_program(*command, "killed/set", "pipe.lst")
        feeder.join()
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("1 shards were finished by an earlier run", ended.out)
        self.assertEqual(self.run_program(*command, "whole/set", "plain.lst").code, 0)
        self.assert_same(self.files("killed"), self.files("whole"))

    def test_a_signal_keeps_what_is_finished(self):
        for i in range(20):
            (self.folder / f"{i}.png").write_bytes(png(4, 4, i))
        lines = [f"{i}\t{i % 2}\t{i}.png\n" for i in range(20)]
        lines[18] = "18\t1\tpipe.png\n"
        (self.folder / "pipe.lst").write_text("".join(lines))
        os.mkfifo(self.folder / "pipe.png")
        process = self.start(program("to_rec"), "--shuffle=false", "--shards", 2, "--threads", 1, "set", "pipe.lst")
        work = self.folder / "set.converting"
        self.wait_until(lambda: len(list(work.glob("*.done"))) == 1, "the first shard is not finished", process)
        # Opening the pipe waits for the program to open it too. It stays open: the program waits for its bytes in vain.
        with (self.folder / "pipe.png").open("wb"):
            process.terminate()
            ended = self.finish(process)
        self.assert_one_clear_sentence(
            ended,
            "interrupted; 1 of 2 shards are kept in set.converting, and the same command goes on from there",
            code=1,
        )


class Mistakes(Converting):
    def refused(self, *arguments, code=2):
        ended = self.to_rec(*arguments)
        words = arguments[-1]
        self.assert_one_clear_sentence(ended, code=code)
        self.assertEqual(len(ended.err.splitlines()), 1, (words, ended.err))
        return ended.err

    def test_one_sentence_for_each(self):
        self.write_rows(20)
        (self.folder / "a.bin").write_bytes(b"12")
        for expected, *arguments in (
            ("needs a prefix and a source", "set"),
            ("the name of a.bin does not tell its format; give it with --format", "set", "a.bin"),
            ("--format is 'xml', expected one of csv, tsv", "--format", "xml", "set", "rows.csv"),
            ("--window does not apply to the format csv", "--window", "3", "set", "rows.csv"),
            ("--skip does not apply to the format csv with --schema", *"--schema s --skip x set rows.csv".split()),
            (
                "--label does not apply to the format jsonl with --text_field",
                *"--text_field t --label x set a.jsonl".split(),
            ),
            ("--window does not apply to the format jsonl", "--window", "3", "set", "a.jsonl"),
            ("--split has 'train', expected a name and a share", "--split", "train", "set", "rows.csv"),
            ("the shares of --split add up to 0.5, expected 1", "--split", "train=0.5", "set", "rows.csv"),
            ("--split_key needs --split", "--split_key", "x", "set", "rows.csv"),
            ("--bad is 'ignore', expected one of fail, skip", "--bad", "ignore", "set", "rows.csv"),
            ("the table has no column 'z'; it has 'x', 'y', 'kind'", "--label", "z", "set", "rows.csv"),
            ("20 rows cannot fill 21 shards", "--shards", "21", "set", "rows.csv"),
            ("--delimiter is ';;', expected one character", "--delimiter", ";;", "set", "rows.csv"),
            ("rows.csv and a.npy are not of the same format", "set", "rows.csv", "a.npy"),
        ):
            with self.subTest(expected):
                self.assertIn(expected, self.refused(*arguments))
        self.assertIn("absent.csv on host", self.refused("set", "absent.csv", code=1))
        self.assertEqual(list(self.folder.glob("set*")), [])

    def test_bad_rows(self):
        self.write_rows(20)
        with (self.folder / "rows.csv").open("a") as file:
            file.write("1,2\n")
        ended = self.to_rec("set", "rows.csv")
        self.assert_one_clear_sentence(
            ended, "bad row: rows.csv:22: it has 2 columns, expected 3", "1 of 21 rows is bad",
            "nothing was written; --bad skip leaves them out", code=1,
        )  # fmt: skip
        ended = self.to_rec("--bad", "skip", "set", "rows.csv")
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("set.manifest: 20 records in 1 shard, 1 bad row left out", ended.out)


class Described(Converting):
    def test_rec_list_says_decoder_and_statistics(self):
        self.write_rows(21)
        self.assertEqual(self.to_rec("--label", "kind", "set", "rows.csv").code, 0)
        listed = self.run_program(program("rec"), "list", "set.manifest").out
        self.assertIn("decoder      tensor(data: float32 (2,), class_labels=1, labels=1)\n", listed)
        self.assertIn("numbers x    mean 10  deviation 6.05", listed)
        self.assertIn("class      0 cat  14 records\n", listed)

    def test_help_names_every_format(self):
        ended = self.to_rec("--help")
        self.assertEqual(ended.code, 0, ended)
        for word in (".csv", ".libsvm", ".jsonl", ".npz", ".tar", "--split", "--bad"):
            self.assertIn(word, ended.out)


if __name__ == "__main__":
    unittest.main()
