"""The programs that the pages show learn what they say, and the programs know the names that the pages list."""

import contextlib
import os
import pathlib
import random
import re
import shutil
import socket
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))

from pages import REFERENCE, SOURCE, code_in, names_of, section, tables  # noqa: E402  after the path is set
from support import LAUNCHER, ProgramTest, data_folder, program  # noqa: E402

SERVERS = ("--server-command", program("paceline_server"))
RUN_HERE = {"first", "train", "evaluate", "predict", "finetune", "table"}  # what the classes below run


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (SOURCE / page).read_text(), re.MULTILINE | re.DOTALL)


class Readme(ProgramTest):
    def last_loss(self, ended):
        self.assertEqual(ended.code, 0, ended)
        return float(re.findall(r"epoch 5  step \d+  loss (\d\.\d+)  \d+ examples/s", ended.out)[-1])

    def test_alone_and_in_a_job(self):
        """The program of the README learns, alone and distributed, and has nothing left to do once it has."""
        train = data_folder() / "train.manifest"
        self.assertLess(self.last_loss(self.run_program(program("readme_program"), "local", train)), 0.5)
        launch = (*LAUNCHER, "-n", 2, "-s", 2, *SERVERS)
        again = self.run_program(program("readme_program"), "local", train)
        self.assertEqual(again.out, "ckpt has done 5 epochs\n")
        (self.folder / "ckpt" / "checkpoint.safetensors").unlink()
        job = self.run_program(*launch, program("readme_program"), "dist_async", train)
        self.assertLess(self.last_loss(job), 0.5)
        self.assertIn("the job is over", job.err)
        self.assertNotIn("was lost", job.err)

    def test_what_is_wrong_it_says_in_a_sentence(self):
        for arguments, words in (
            ((), "usage: "),
            (("dist_asink", "x"), "unknown mode"),
            (("local", "x"), "No such file"),
        ):
            ended = self.run_program(program("readme_program"), *arguments)
            self.assert_one_clear_sentence(ended, words, code=1)
            self.assertEqual(ended.err.count("\n"), 1, ended)


class Tutorial(ProgramTest):
    def accuracies(self, ended):
        self.assertEqual(ended.code, 0, ended)
        return [float(found) for found in re.findall(r"epoch \d+: test accuracy (\S+)", ended.out)]

    def test_every_program_of_a_page_is_run(self):
        shown = {
            re.match(r"// ([a-z_]+)\.cc", block).group(1)
            for page in (SOURCE / "docs").glob("*.md")
            for block in blocks(page, "cpp")
            if "\nint main(" in block
        }
        self.assertEqual(shown, RUN_HERE)

    def test_first(self):
        ended = self.run_program(program("page_first"))
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(len(re.findall(r"^epoch \d  step \d+  loss", ended.out, re.MULTILINE)), 5, ended)
        self.assertGreater(float(re.search(r"^accuracy (\S+)$", ended.out, re.MULTILINE).group(1)), 0.95)

    def test_train_resume_evaluate_finetune(self):
        """As the page goes: train, go on from the checkpoint, evaluate it, put a new head on it."""
        train, test = data_folder() / "train.manifest", data_folder() / "test.manifest"
        found = self.accuracies(self.run_program(program("page_train"), "local", train, test, 10, 2))
        self.assertEqual(len(found), 2)
        wrong = self.run_program(program("page_train"), "local", train, test, "ten", 2)
        self.assert_one_clear_sentence(wrong, "option CLASSES=ten is not a whole number", code=1)
        ended = self.run_program(program("page_train"), "local", train, test, 10, 3)
        self.assertIn("resumed after epoch 2", ended.out)
        (last,) = self.accuracies(ended)
        self.assertGreater(last, 0.85)

        ended = self.run_program(program("page_evaluate"), "ckpt", test, 10)
        self.assertEqual(ended.code, 0, ended)
        self.assertRegex(ended.out, rf"accuracy {last}, loss \S+, of 1000 images\n(image \d: class \d\n){{5}}")

        said = re.findall(r"image \d: class (\d)", ended.out)
        self.assertEqual(self.run_program(program("rec"), "extract", "images", test).code, 0)
        paths = [line.split("\t")[-1] for line in (self.folder / "images" / "extracted.lst").read_text().splitlines()]
        images = [str(pathlib.Path("images", path)) for path in paths[:5]]
        ended = self.run_program(program("page_predict"), "ckpt", train, 10, *images)
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(re.findall(r"class (\d)", ended.out), said, ended)
        (self.folder / "bad.jpg").write_text("no image")
        (self.folder / "folder").mkdir()
        for bad in ("bad.jpg", "folder", "nowhere.jpg"):
            ended = self.run_program(program("page_predict"), "ckpt", train, 10, images[0], bad)
            self.assert_one_clear_sentence(ended, f"{bad}: ", code=1)

        ended = self.run_program(program("page_finetune"), "local", "ckpt", train, 10)
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(re.findall("trained from scratch: (.*)", ended.out), ["9.weight", "9.bias"])
        self.assertLess(float(re.search(r"loss (\S+)", ended.out).group(1)), 0.5)
        self.assertTrue((self.folder / "finetuned.params").exists())

    def write_table(self, name, rows, numbers):
        """Points whose class is the quarter of the plane that they lie in. Some coordinates are missing: they are 0."""
        lines = ["x,class,y"]
        for _ in range(rows):
            x, y = numbers.uniform(-1, 1), numbers.uniform(-1, 1)
            if numbers.random() < 0.02:
                lines.append(f",{int(y > 0)},{y:.4f}")
            else:
                lines.append(f"{x:.4f},{2 * (x > 0) + (y > 0)},{y:.4f}")
        (self.folder / name).write_text("\n".join(lines) + "\n")

    def test_table(self):
        numbers = random.Random(1)
        self.write_table("train.csv", 5000, numbers)
        self.write_table("test.csv", 1000, numbers)
        arguments = ("train.csv", "test.csv", "class", 4, 3)
        alone = self.run_program(program("page_table"), "local", *arguments)
        self.assertGreater(self.accuracies(alone)[-1], 0.95)
        self.assertEqual(len(re.findall(r"(?m)^waited \S+ s of .* for data; .*; bound by the ", alone.out)), 3)
        launch = (*LAUNCHER, "-n", 2, "-s", 1, *SERVERS)
        job = self.run_program(*launch, program("page_table"), "dist_sync", *arguments)
        self.assertGreater(self.accuracies(job)[-1], 0.95)
        self.assertEqual(len(self.accuracies(job)), 3, "one worker prints")
        (self.folder / "train.csv").write_text("x,class,y\n1,0,0\n1,0,right\n")
        wrong = self.run_program(program("page_table"), "local", *arguments)
        self.assert_one_clear_sentence(wrong, "train.csv:3: column 2 ('y') is 'right', expected a", code=1)

    def test_in_a_job(self):
        data = data_folder() / "train.manifest", data_folder() / "test.manifest"
        launch = (*LAUNCHER, "-n", 2, "-s", 2, *SERVERS)
        ended = self.run_program(*launch, program("page_train"), "dist_async", *data, 10, 4)
        self.assertGreater(self.accuracies(ended)[-1], 0.8)
        self.assertEqual(len(self.accuracies(ended)), 4, "one worker prints")
        self.assert_nothing_survives()


class FromMxnet(ProgramTest):
    def test_index(self):
        """Record files alone become a data set, and a program trains on it."""
        for shard in data_folder().glob("train-*.rec"):
            shutil.copy(shard, self.folder)
        shards = sorted(self.folder.glob("*.rec"))
        ended = self.run_program(program("rec"), "index", "--manifest", "train.manifest", *shards)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("train.manifest: 6000 records in 4 files\n", ended.out)
        ended = self.run_program(program("page_train"), "local", "train.manifest", "train.manifest", 10, 1)
        self.assertEqual(ended.code, 0, ended)
        ended = self.run_program(program("page_train"), "local", shards[0], "train.manifest", 10, 1)
        self.assert_one_clear_sentence(ended, f"`rec index {shards[0]}` writes the manifest", code=1)


class WithoutTheLauncher(ProgramTest):
    """The shell of running-a-job.md starts a job."""

    def setUp(self):
        super().setUp()
        folder = self.folder / "bin"
        folder.mkdir()
        for name, target in (("paceline_server", "paceline_server"), ("train", "readme_program")):
            (folder / name).symlink_to(program(target))
        self.environment["PATH"] = f"{folder}:{os.environ['PATH']}"
        (self.folder / "build").symlink_to(folder)
        shutil.copytree(data_folder(), self.folder, dirs_exist_ok=True)
        self.shown, self.role = blocks("docs/running-a-job.md", "sh")

    @staticmethod
    def with_free_port(text):
        while True:
            port = random.randrange(20000, 32000)  # below those that the system gives to other tests meanwhile
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                return re.sub(r"DMLC_PS_ROOT_PORT=\d+", f"DMLC_PS_ROOT_PORT={port}", text)

    def check(self, text):
        ended = self.run_program("sh", "-c", self.with_free_port(text))
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("all processes have joined: servers 1, workers 2", ended.err)
        self.assertIn("the job is over", ended.err)
        self.assert_nothing_survives()

    def test_by_hand(self):
        self.check(self.shown)

    def test_by_number(self):
        """One command in every process, as Slurm and mpirun start it."""
        (self.folder / "role.sh").write_text(self.role)
        variables = "\n".join(self.shown.split("\n")[:3])
        train = "sh role.sh build/train dist_sync train.manifest"
        lines = [f'SLURM_PROCID={number} {train} & pids="$pids $!"' for number in range(4)]
        self.check("\n".join([variables, *lines, 'for pid in $pids; do wait "$pid" || exit; done']))


class Names(ProgramTest):
    """What the programs list as known where a name is wrong."""

    def known(self, *command):
        ended = self.run_program(*command)
        self.assertEqual(ended.code, 2, ended)
        return set(re.search(r"; known: (.*)", ended.err).group(1).split())

    def known_in(self, mode):
        return self.known(program("paceline_server"), f"--check_mode={mode}")

    def test_modes(self):
        modes, aliases, *_ = tables(section(REFERENCE, "## Modes"))
        listed = {name.split(":")[0] for name in names_of(modes)} | names_of(aliases)
        self.assertEqual(listed, self.known_in("none_such"))

    def test_options_of_policies(self):
        common = self.known_in("dist_async:staleness=none,no_such=1")
        for name, *_, options in tables(section(REFERENCE, "## Staleness policies"))[0]:
            (policy,) = code_in(name)
            with self.subTest(policy):
                known = self.known_in(f"dist_async:staleness={policy},no_such=1") - common
                self.assertEqual(set(code_in(options)), known)

    def test_options_of_codecs(self):
        common = self.known_in("dist_async:staleness=none,compression=none,no_such=1")
        for name, _, options, _ in tables(section(REFERENCE, "## Compression codecs"))[0]:
            (codec,) = code_in(name)
            with self.subTest(codec):
                mode = f"dist_async:staleness=none,compression={codec},no_such=1"
                self.assertEqual(set(code_in(options)), self.known_in(mode) - common)

    def test_options_of_modes(self):
        rows = tables(section(REFERENCE, "## Modes"))[2]
        of_codecs = names_of(tables(section(REFERENCE, "## Compression codecs"))[1])
        for names, options, *_ in rows:
            for mode in code_in(names):
                with self.subTest(mode):
                    staleness = "staleness=none," if mode.startswith("dist_") else ""
                    known = self.known_in(f"{mode}:{staleness}no_such=1")
                    known -= of_codecs | {"transport", "staleness", "compression", "none"}
                    self.assertEqual(set(code_in(options)), known)

    def test_options_of_optimizers(self):
        own, every = tables(section(REFERENCE, "## Optimizers"))
        for name, _, _, options in own:
            (optimizer,) = code_in(name)
            with self.subTest(optimizer):
                known = self.known(program("kvbench"), "--mode", "local", "--optimizer", f"{optimizer}:no_such=1")
                self.assertEqual(set(code_in(options)) | names_of(every), known)


if __name__ == "__main__":
    unittest.main()
