"""The training programs beside mnist: each learns something small, alone and in a job, and refuses in one sentence."""

import gzip
import pathlib
import random
import re
import shutil
import unittest

from support import LAUNCHER, ProgramTest, data_folder, program, tensors_of
from test_packing import png


def job(name, mode, *arguments, servers=1):
    return (*LAUNCHER, "-n", 2, "-s", servers, program(name), "--kvstore", mode, *arguments)


class Images(ProgramTest):
    def pack(self, digits, *options):
        """The first of the drawn digits as a data set; returns its manifest."""
        drawn = self.run_program(program("draw_digits"), "--train", digits, "--test", 1, "--out", "few")
        self.assertEqual(drawn.code, 0, drawn)
        images = "few/train-images-idx3-ubyte.gz"
        packed = self.run_program(program("im2rec"), *options, "--shards", 2, "few/train", images)
        self.assertEqual(packed.code, 0, packed)
        return self.folder / "few" / "train.manifest"

    def train(self, *arguments):
        ended = self.run_program(program("image_classification"), *arguments)
        self.assertEqual(ended.code, 0, ended)
        return ended

    def test_each_network_trains(self):
        train = self.pack(12, "--channels", 3)
        for network in ("mlp", "lenet", "resnet20", "resnet50", "vgg16", "mobilenet_v2"):
            with self.subTest(network):
                ended = self.train("--network", network, "--train", train, "--image_size", 32, "--batch_size", 6,
                                   "--epochs", 1, "--log_every", 1, "--lr", 0.001, "--crop", 2, "--flip",
                                   "--label_smoothing", 0.1)  # fmt: skip
                self.assertEqual(ended.result["network"], network)
                self.assertRegex(ended.err, r"(?m)^epoch 1  step 2  loss \d+\.\d+  \d+ images/s$")

    def test_augments(self):
        train = self.pack(60)
        steps = "random_resized_crop(size=24,scale=0.5:1);flip;rotate(degrees=10);color_jitter(brightness=0.3);mixup"
        ended = self.train("--network", "lenet", "--train", train, "--test", train, "--batch_size", 20, "--epochs", 1,
                           "--lr", 0.001, "--label_smoothing", 0.1, "--augment", steps,
                           "--augment_test", "resize(short=26);center_crop(size=24)")  # fmt: skip
        self.assertGreaterEqual(ended.result["test_accuracy"], 0)

    def test_images_are_seen_as_in_training(self):
        """By the numbers of normalize."""
        train = self.pack(40)
        images = ("--network", "lenet", "--test", train)
        resumed = ("--train", train, "--epochs", 1, "--lr", 0.001, "--checkpoint", "ck")
        steps = ("--augment", "center_crop(size=24);normalize(scale=0.004)")
        test_steps = ("--augment_test", "resize(short=26); center_crop(size=24)")
        self.train(*images, *resumed, *steps, *test_steps)
        # The other steps may be others.
        self.train(*images, "--evaluate", "ck", "--augment", "flip;random_crop(size=24);normalize(scale=0.004)",
                   "--augment_test", "center_crop(size=24)")  # fmt: skip
        wrong = ("--augment", "center_crop(size=24);normalize(scale=0.005)", *test_steps)
        for run in (("--evaluate", "ck"), resumed):
            with self.subTest(run=run[0]):
                self.assert_one_clear_sentence(
                    self.run_program(program("image_classification"), *images, *run, *wrong),
                    "was trained with scale=0.004, this run has 0.005: give the step normalize the same", code=2,
                )  # fmt: skip

    def test_learns_and_resumes(self):
        """In two runs as in one; a network with batch norm, its statistics in the checkpoint."""
        train = self.pack(400)
        images = ("--network", "resnet20", "--image_size", 16, "--test", train)
        flags = (*images, "--train", train, "--batch_size", 20, "--schedule", "step", "--step_epochs", 1,
                 "--warmup", 0.2, "--weight_decay", 1e-4, "--checkpoint", "ck")  # fmt: skip
        first = self.train(*flags, "--epochs", 1)
        self.assertRegex(first.err, r"(?m)^epoch 1 of 1: test accuracy 0\.\d{4}, loss \d\.\d{4}$")
        self.assertRegex(first.err, r"(?m)^epoch 1 of 1: waited \d.* for data; .*; bound by the \w+$")
        second = self.train(*flags, "--epochs", 2)
        self.assertIn("resuming from ck/checkpoint.safetensors after epoch 1", second.err)
        self.assertGreater(second.result["test_accuracy"], 0.4, second)
        third = self.train(*flags, "--epochs", 2)
        self.assertIn(
            "nothing is left to do: ck/checkpoint.safetensors has done 2 of 2 epochs; raise --epochs to go on",
            third.err,
        )
        self.assertEqual(third.result["test_accuracy"], second.result["test_accuracy"])
        evaluated = self.train(*images, "--evaluate", second.result["checkpoint"])
        self.assertEqual(evaluated.result["test_accuracy"], second.result["test_accuracy"])
        self.assertAlmostEqual(evaluated.result["test_loss"], second.result["test_loss"], places=6)
        self.assertGreater(second.result["test_loss"], 0)
        # What the evaluation must be told again is compared: most of it would give a number that means nothing.
        for flags, words in (
            (("--network", "resnet20"), "was trained with --image_size=16, this run has 28: give the same"),
            ((*images[:4], "--mean", 0.9), "was trained with --mean=0.1307, this run has 0.9: give the same"),
            ((*images[2:4], "--network", "lenet"), "was trained with --network=resnet20, this run has lenet: give"),
        ):
            with self.subTest(words):
                wrong = self.run_program(program("image_classification"), *flags, *images[4:],
                                         "--evaluate", second.result["checkpoint"])  # fmt: skip
                self.assert_one_clear_sentence(wrong, "image_classification: ", words, code=2)

    def test_classes_of_a_checkpoint_are_those_of_its_training(self):
        """A test folder that lacks a class, or has another name for it, gives other numbers to the same images."""
        for folder, classes in (("train", "abc"), ("fewer", "bc"), ("renamed", "zbc")):
            for value, name in enumerate(classes):
                (self.folder / folder / name).mkdir(parents=True)
                for i in range(4):
                    (self.folder / folder / name / f"{i}.png").write_bytes(png(8, 8, 80 * value + i))
            packed = self.run_program(program("im2rec"), folder, folder)
            self.assertEqual(packed.code, 0, packed)
        flags = ("--network", "mlp", "--test")
        self.train(*flags, "train.manifest", "--train", "train.manifest", "--epochs", 1, "--checkpoint", "ck")
        for words, *test in (
            ('["b","c"]', "fewer.manifest"),
            ('["b","c"]', "fewer.manifest", "--classes", 3),
            ('["b","c","z"]', "renamed.manifest"),
        ):
            with self.subTest(test):
                wrong = self.run_program(program("image_classification"), *flags, *test, "--evaluate", "ck")
                self.assert_one_clear_sentence(
                    wrong, f"""'ck' was trained with class_names=["a","b","c"], this run has {words}: give data""",
                    code=2,
                )  # fmt: skip

    def test_weight_decay_of_zero(self):
        """Is none, where the optimizer has one of its own."""
        flags = ("--network", "mlp", "--train", self.pack(40), "--batch_size", 10, "--epochs", 2, "--lr", 0.01,
                 "--log_every", 1)  # fmt: skip
        losses = [re.findall(r"loss (\d+\.\d+)", self.train(*flags, *options).err) for options in (
            ("--optimizer", "adamw", "--weight_decay", 0), ("--optimizer", "adamw:weight_decay=0"),
            ("--optimizer", "adamw"))]  # fmt: skip
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])

    def test_options_of_the_optimizer_stand(self):
        """A flag that is not given replaces none of them."""
        flags = ("--network", "mlp", "--train", self.pack(40), "--batch_size", 10, "--epochs", 2, "--log_every", 1)
        losses = [re.findall(r"loss (\d+\.\d+)", self.train(*flags, *options).err) for options in (
            ("--optimizer", "momentum:lr=0.01,momentum=0.5,schedule=constant"),
            ("--optimizer", "momentum", "--lr", 0.01, "--momentum", 0.5, "--schedule", "constant"),
            ("--optimizer", "momentum"))]  # fmt: skip
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])

    def test_labels_that_are_no_classes(self):
        (self.folder / "grey.pgm").write_bytes(b"P5 8 8 255\n" + bytes(64))
        (self.folder / "some.lst").write_text("0\t0.5\tgrey.pgm\n1\t1.5\tgrey.pgm\n")
        packed = self.run_program(program("im2rec"), "some", "some.lst")
        self.assertEqual(packed.code, 0, packed)
        ended = self.run_program(program("image_classification"), "--train", "some.manifest", "--classes", 2)
        self.assert_one_clear_sentence(ended, "the labels of 'some.manifest' are no classes", code=2)

    def test_over_devices(self):
        """In stages, alone and in a job; the checkpoint is that of the network."""
        train = self.pack(200)
        images = ("--network", "lenet", "--test", train)
        flags = (*images, "--train", train, "--batch_size", 10, "--epochs", 5, "--checkpoint", "ck",
                 "--devices", "cpu:0,cpu:1,cpu:2", "--pipeline_micro_batches", 3)  # fmt: skip
        trained = self.train(*flags)
        self.assertGreater(trained.result["test_accuracy"], 0.4, trained)
        evaluated = self.train(*images, "--evaluate", "ck")
        self.assertEqual(evaluated.result["test_accuracy"], trained.result["test_accuracy"])
        ended = self.run_program(*job("image_classification", "dist_sync", *flags, "--epochs", 6))
        self.assertEqual((ended.code, ended.result["epochs"]), (0, 6), ended)

    def test_in_a_job(self):
        data = data_folder()
        flags = ("--network", "lenet", "--lr", 0.1, "--epochs", 1, "--train", data / "train.manifest",
                 "--test", data / "test.manifest")  # fmt: skip
        for mode in ("dist_async", "dist_sync"):
            with self.subTest(mode):
                ended = self.run_program(*job("image_classification", mode, *flags))
                self.assertEqual(ended.code, 0, ended)
                self.assertGreater(ended.result["test_accuracy"], 0.5, ended)
                self.assertEqual((ended.result["mode"], ended.result["workers"]), (mode, 2))

    def test_refusals(self):
        train = ("--train", data_folder() / "train.manifest")
        cases = {
            ("--network", "resnet"): ("unknown network 'resnet'; known: mlp lenet resnet20",),
            ("--classes", 3): ("--classes is 3, but the data set names 10",),
            ("--mean", "0.1,x"): ("--mean is '0.1,x', expected numbers",),
            ("--mean", "0.1,0.2"): ("mean and deviation hold one number or 1",),
            ("--deviation", "0"): ("the deviation of channel 0 is 0",),
            ("--label_smoothing", 1): ("label_smoothing < 1",),
            ("--crop", -1): ("--crop",),
            ("--augment", "filp"): ("--augment: unknown step 'filp'; known: affine",),
            ("--augment", "flip", "--flip"): ("put random_crop(pad=4) and flip into it",),
            ("--augment", "resize(short=30)"): ("make images of different sizes",),
            ("--augment", "flip;normalize", "--mean", 0.5): ("leave one out",),
            ("--warmup", -1): ("--warmup is -1",),
            ("--schedule", "step", "--step_epochs", 0): ("--step_epochs",),
            ("--device", "gpu"): ("'gpu'",),
            ("--devices", "cpu:0,gpu"): ("unknown device 'gpu'",),
            ("--network", "mlp", "--devices", "cpu" + ",cpu" * 6): ("cannot cut 6 modules into 7 stages",),
            ("--devices", "cpu", "--pipeline_micro_batches", 0): ("micro_batches is 0",),
            ("--pipeline_micro_batches", 2): ("--pipeline_micro_batches has no effect without --devices",),
            ("--devices", "cpu:0,cpu:1", "--device", "cpu:2"): ("--device has no effect with --devices: leave it out",),
            ("--network", "vgg16"): ("max_pool",),  # nothing is left of 28 x 28
            ("--evaluate", "ck"): ("--evaluate needs --test",),
        }  # fmt: skip
        for arguments, words in cases.items():
            with self.subTest(" ".join(map(str, arguments))):
                ended = self.run_program(program("image_classification"), *train, *arguments)
                self.assert_one_clear_sentence(ended, "image_classification: ", *words, code=2)


class Sparse(ProgramTest):
    def write_examples(self, name, count, seed):
        """The label says whether the numbers of two features are both even or both odd, which no linear model can tell;
        a third feature tells it in two cases of three."""
        numbers = random.Random(seed)
        lines = []
        for _ in range(count):
            first, second = numbers.randrange(20), 20 + numbers.randrange(20)
            even = (first + second) % 2 == 0
            lines.append(f"{int(even)} {first + 1}:1 {second + 1}:1 {41 + int(even) * 2 + numbers.randrange(3)}:0.5")
        path = self.folder / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def setUp(self):
        super().setUp()
        self.data = ("--train", self.write_examples("train", 4000, 1), "--test", self.write_examples("test", 1000, 2))

    def auc(self, ended):
        self.assertEqual(ended.code, 0, ended)
        self.assertRegex(ended.err, r"epoch 2 of 2: test auc \d\.\d{4}")
        return ended.result["test_auc"]

    def test_linear(self):
        """By the third feature alone."""
        auc = self.auc(self.run_program(program("sparse_linear"), *self.data, "--epochs", 2))
        self.assertGreater(auc, 0.85)
        self.assertLess(auc, 0.98)

    def test_labels_of_either_kind(self):
        """LibSVM's own sets say -1 and +1."""
        signed = self.folder / "signed"
        signed.write_text("".join("+-"[line[0] == "0"] + "1" + line[1:] for line in open(self.data[1])))
        first, second = (self.run_program(program("sparse_linear"), "--train", train, *self.data[2:], "--epochs", 2)
                         for train in (self.data[1], signed))  # fmt: skip
        self.assertEqual(self.auc(first), self.auc(second))

    def test_factorization_machine(self):
        """Pairs of features tell the label."""
        flags = (*self.data, "--epochs", 2, "--lr", 0.1, "--factors", 4)
        self.assertGreater(self.auc(self.run_program(program("factorization_machine"), *flags)), 0.98)

    def test_in_a_job(self):
        for mode in ("dist_async", "dist_sync"):
            with self.subTest(mode):
                ended = self.run_program(*job("sparse_linear", mode, *self.data, "--epochs", 2))
                self.assertGreater(self.auc(ended), 0.85)
                self.assertEqual(ended.result["rows_held"], 46)  # 45 features, and the one that is always 1

    def test_in_modes_without_tables(self):
        """The rows are a key that every worker has whole, also in a checkpoint."""
        for mode in ("ring", "gossip", "dist_local:steps=2", "dist_sync:backup=1"):
            with self.subTest(mode):
                servers = 1 if mode.startswith("dist") else 0
                flags = (*self.data, "--lr", 0.1, "--checkpoint", "whole", "--epochs")
                self.run_program(*job("factorization_machine", mode, *flags, 1, servers=servers))
                ended = self.run_program(*job("factorization_machine", mode, *flags, 2, servers=servers))
                self.assertGreater(self.auc(ended), 0.85)
                self.assertNotIn("trains alone", ended.err)
                self.assertIn("resuming from whole/checkpoint.safetensors after epoch 1", ended.err)
                evaluated = self.run_program(program("factorization_machine"), *self.data[2:], "--evaluate", "whole")
                self.assertGreater(evaluated.result["test_auc"], 0.85)
                shutil.rmtree(self.folder / "whole")

    def test_resumes(self):
        """In two runs as in one, to the last bit."""
        flags = (*self.data, "--schedule", "step", "--step_epochs", 1, "--checkpoint")
        for name in ("sparse_linear", "factorization_machine"):
            with self.subTest(name):
                self.run_program(program(name), *flags, "parts", "--epochs", 1)
                second = self.run_program(program(name), *flags, "parts", "--epochs", 2)
                self.assertIn("resuming from parts/checkpoint.safetensors after epoch 1", second.err)
                whole = self.run_program(program(name), *flags, "whole", "--epochs", 2)
                self.assertEqual(self.auc(second), self.auc(whole))
                parts, together = (tensors_of(self.folder / run.result["checkpoint"]) for run in (second, whole))
                self.assertEqual(parts, together)
                evaluated = self.run_program(program(name), *self.data[2:], "--evaluate", "parts")
                self.assertEqual(evaluated.result, {"checkpoint": "parts", "test_auc": second.result["test_auc"]})
                again = self.run_program(program(name), *flags, "parts", "--epochs", 2)
                self.assertIn("parts/checkpoint.safetensors has done 2 of 2 epochs; raise --epochs to go on", again.err)
                self.assertEqual(again.result["test_auc"], second.result["test_auc"])
                shutil.rmtree(self.folder / "parts")
                shutil.rmtree(self.folder / "whole")

    def test_ends_after_so_many_steps(self):
        """And goes on behind them: in three runs as in one."""
        flags = (*self.data, "--epochs", 2, "--checkpoint")
        for name in ("sparse_linear", "factorization_machine"):
            with self.subTest(name):
                for _ in range(2):
                    part = self.run_program(program(name), *flags, "parts", "--max_steps", 7)
                    self.assertIn("ends after 7 steps, as --max_steps says", part.err)
                    self.assertGreater(part.result["test_auc"], 0.4)
                    self.assertGreater(part.result["examples_per_second"], 0)
                rest = self.run_program(program(name), *flags, "parts")
                whole = self.run_program(program(name), *flags, "whole")
                self.assertEqual(self.auc(rest), self.auc(whole))
                parts, together = (tensors_of(self.folder / run.result["checkpoint"]) for run in (rest, whole))
                self.assertEqual(parts, together)
                shutil.rmtree(self.folder / "parts")
                shutil.rmtree(self.folder / "whole")

    def weights(self, folder):
        """By row; rows lie in a checkpoint in any order."""
        tensors, _ = tensors_of(self.folder / folder / "checkpoint.safetensors")
        ids, weights = (memoryview(tensors[f"store:table:weights:{slot}"]) for slot in ("ids", "weight"))
        return dict(zip(ids.cast("q"), weights.cast("f"), strict=True))

    def test_resumes_in_a_job(self):
        """Likewise; one process goes on from what a job wrote."""
        flags = (*self.data, "--schedule", "constant", "--checkpoint")
        for folder, runs in (("parts", (1, 2)), ("whole", (2,))):
            for epochs in runs:
                ended = self.run_program(*job("sparse_linear", "dist_sync", *flags, folder, "--epochs", epochs))
                self.assertEqual(ended.code, 0, ended)
        parts, whole = (self.weights(folder) for folder in ("parts", "whole"))
        self.assertEqual(parts, whole)
        alone = self.run_program(program("sparse_linear"), *flags, "parts", "--epochs", 3)
        self.assertIn("resuming from parts/checkpoint.safetensors after epoch 2", alone.err)
        self.assertEqual(alone.result["epochs"], 3)

    def test_other_features_are_not_resumed(self):
        """The row behind the last feature is the bias, and would become a feature's."""
        flags = (*self.data, "--checkpoint", "ck", "--epochs")
        for name in ("sparse_linear", "factorization_machine"):
            with self.subTest(name):
                first = self.run_program(program(name), *flags, 1)
                self.assertEqual(first.code, 0, first)
                before = tensors_of(self.folder / "ck" / "checkpoint.safetensors")
                more = self.run_program(program(name), *flags, 2, "--features", 50)
                self.assert_one_clear_sentence(
                    more, "ck/checkpoint.safetensors' was trained with --features=45, this run has 50: give the same",
                    code=2,
                )  # fmt: skip
                self.assertEqual(tensors_of(self.folder / "ck" / "checkpoint.safetensors"), before)
                shutil.rmtree(self.folder / "ck")

    def test_other_features_are_not_evaluated(self):
        first = self.run_program(program("sparse_linear"), *self.data, "--epochs", 1, "--checkpoint", "ck")
        self.assertEqual(first.code, 0, first)
        evaluate = (program("sparse_linear"), *self.data[2:], "--evaluate", "ck", "--features")
        self.assertEqual(self.run_program(*evaluate, 45).result["test_auc"], first.result["test_auc"])
        self.assert_one_clear_sentence(
            self.run_program(*evaluate, 50), "'ck' was trained with --features=45, this run has 50: give the same",
            code=2,
        )  # fmt: skip

    def test_refusals(self):
        bad = self.folder / "bad"
        bad.write_text("1 0:1\n")
        seven = self.folder / "seven"
        seven.write_text("1 1:1\n7 1:1\n")
        empty = self.folder / "empty"
        empty.write_text("")
        positive = self.folder / "positive"
        positive.write_text("1 1:1\n1 2:1\n")
        cases = {
            (): (2, "--train is missing"),
            ("--train", "nowhere"): (2, "--train: cannot open nowhere", "No such file"),
            ("--train", bad): (1, "bad:1:"),
            ("--train", seven): (2, "example 2 is 7", "-1 and +1"),
            (*self.data, "--features", 7): (1, "train:"),
            (*self.data, "--device", "cpu:0"): (2, "--device has no effect with sparse_linear: leave it out"),
            ("--train", empty): (2, "empty' holds no examples"),
            (*self.data[:2], "--test", empty): (2, "empty' holds no examples"),
            (*self.data[:2], "--test", positive): (2, "positive' holds examples of one class only"),
            (*self.data, "--checkpoint", bad / "ck"): (2, "--checkpoint: cannot write into the folder"),
            ("--train", self.folder): (2, "--train: '", "' is a folder, expected a file"),
            ("--evaluate", "nowhere"): (2, "--evaluate needs --test"),
            (*self.data[2:], "--evaluate", "nowhere"): (2, "--evaluate: cannot open nowhere", "No such file"),
        }
        for arguments, (code, *words) in cases.items():
            with self.subTest(" ".join(map(str, arguments))):
                ended = self.run_program(program("sparse_linear"), *arguments)
                self.assert_one_clear_sentence(ended, "sparse_linear: ", *words, code=code)
        ended = self.run_program(program("factorization_machine"), *self.data, "--factors", 0)
        self.assert_one_clear_sentence(ended, "--factors is 0", code=2)


class Rows(ProgramTest):
    """Records of a table, in one process and in a job."""

    def setUp(self):
        super().setUp()
        numbers = random.Random(5)
        with (self.folder / "rows.csv").open("w") as file:
            file.write("size,colour,kind\n")
            for _ in range(3000):
                size, colour = numbers.uniform(0, 1000), numbers.choice(("red", "blue"))
                file.write(f"{size:.1f},{colour},{'big' if (size > 300) == (colour == 'red') else 'small'}\n")
        self.convert("--label", "kind", "--split", "train=0.8,test=0.2", "rows", "rows.csv")
        self.flags = ("--train", "rows-train.manifest", "--test", "rows-test.manifest", "--lr", 0.01)

    def convert(self, *arguments):
        ended = self.run_program(program("to_rec"), "--shards", 4, *arguments)
        self.assertEqual(ended.code, 0, ended)

    def test_a_table_is_learned(self):
        ended = self.run_program(program("mlp"), *self.flags, "--checkpoint", "ck")
        self.assertEqual(ended.code, 0, ended)
        self.assertGreater(ended.result["test_accuracy"], 0.9, ended)
        again = self.run_program(program("mlp"), "--evaluate", "ck", *self.flags[2:4])
        self.assertEqual(again.result["test_accuracy"], ended.result["test_accuracy"])
        other = self.run_program(program("mlp"), "--evaluate", "ck", *self.flags[2:4], "--hidden", 8)
        self.assert_one_clear_sentence(other, "'ck' is of another network", "give the flags of the network", code=2)

    def test_a_test_set_with_other_categories_is_refused(self):
        """Converted without the schema of the training set, it gives other numbers to the same words."""
        flags = (*self.flags[:2], "--epochs", 1, "--checkpoint", "ck", "--test")
        trained = self.run_program(program("mlp"), *flags, self.flags[3])
        self.assertEqual(trained.code, 0, trained)
        (self.folder / "blue.csv").write_text("size,colour,kind\n1.5,blue,big\n800.5,blue,small\n")
        ended = self.run_program(program("to_rec"), "--label", "kind", "blue", "blue.csv")
        self.assertEqual(ended.code, 0, ended)
        wrong = self.run_program(program("mlp"), *flags, "blue.manifest")
        self.assert_one_clear_sentence(wrong, "blue.manifest' has other columns or categories than", "--schema", code=2)
        wrong = self.run_program(program("mlp"), "--evaluate", "ck", "--test", "blue.manifest")
        self.assert_one_clear_sentence(wrong, "'ck' was trained with columns=checksum ", "--schema", code=2)
        ended = self.run_program(program("to_rec"), "--schema", "rows-train.schema.json", "blue", "blue.csv")
        self.assertEqual(ended.code, 0, ended)
        right = self.run_program(program("mlp"), "--evaluate", "ck", "--test", "blue.manifest")
        self.assertEqual(right.code, 0, right)

    def test_a_loss_that_is_no_number_leaves_the_checkpoint(self):
        flags = (*self.flags, "--checkpoint", "ck", "--epochs")
        self.assertEqual(self.run_program(program("mlp"), *flags, 1).code, 0)
        before = (self.folder / "ck" / "checkpoint.safetensors").read_bytes()
        ended = self.run_program(program("mlp"), *flags, 3, "--lr", 1e30)
        self.assert_one_clear_sentence(ended, "the loss of step", "choose another on_nan (warn, stop", code=1)
        self.assertEqual(ended.err.count("the loss of step"), 1, ended)
        self.assertEqual((self.folder / "ck" / "checkpoint.safetensors").read_bytes(), before)

    def test_a_dynamic_balance_counts_every_record(self):
        flags = (*self.flags, "--balance", "dynamic", "--slow_worker", 1, "--checkpoint", "ck")
        ended = self.run_program(*job("mlp", "dist_async", *flags))
        self.assertEqual(ended.code, 0, ended)
        self.assertGreater(ended.result["test_accuracy"], 0.9, ended)
        _, metadata = tensors_of(self.folder / "ck" / "checkpoint.safetensors")
        listed = self.run_program(program("rec"), "list", "rows-train.manifest").out
        records = int(re.search(r"records +(\d+)", listed)[1])
        self.assertEqual(set(metadata["examples"]) - {0}, {3 * records}, metadata)  # 0: running means

    def test_windows_of_a_text(self):
        words = random.Random(3)
        (self.folder / "text.txt").write_text("".join(words.choice(("one ", "seven ")) for _ in range(4000)))
        self.convert("--window", 17, "--split", "train=0.9,test=0.1", "text", "text.txt")
        ended = self.run_program(
            program("char_lm"), "--train", "text-train.manifest", "--test", "text-test.manifest", "--width", 32,
            "--heads", 2, "--layers", 1, "--lr", 0.01,
        )  # fmt: skip
        self.assertEqual(ended.code, 0, ended)
        self.assertLess(ended.result["validation_loss"], 0.6, ended)

    def test_refusals(self):
        self.convert("--label", "size", "--label_type", "number", "number", "rows.csv")
        images = data_folder() / "train.manifest"
        cases = {
            ("mlp",): (2, "--train is missing"),
            ("mlp", "--train", "number.manifest"): (2, "are no classes; convert with --label_type class"),
            ("mlp", *self.flags, "--hidden", "8,x"): (2, "--hidden is '8,x'"),
            ("mlp", *self.flags, "--balance", "fair"): (2, "unknown balance 'fair'; known: even dynamic"),
            ("mlp", *self.flags, "--balance", "dynamic", "--global_batch", 64): (2, "leave one out"),
            ("char_lm", *self.flags): (2, "are no windows of tokens; convert a text with to_rec --window"),
            ("char_lm", *self.flags, "--text", "rows.csv"): (2, "leave one out"),
            ("char_lm", *self.flags, "--context", 8): (2, "--context has no effect on records: leave it out"),
            ("mlp", "--train", images): (2, "train.manifest' names no decoder of its records", "image_classification"),
            ("char_lm", "--train", images): (2, "train.manifest' names no decoder of its records"),
        }
        for (name, *arguments), (code, *words) in cases.items():
            with self.subTest(name + " " + " ".join(map(str, arguments))):
                ended = self.run_program(program(name), *arguments)
                self.assert_one_clear_sentence(ended, f"{name}: ", *words, code=code)


class Characters(ProgramTest):
    def setUp(self):
        super().setUp()
        numbers = random.Random(3)
        words = ("one ", "three ", "seven ", "eleven ")
        self.text = pathlib.Path(self.folder / "text")
        self.text.write_text("".join(numbers.choice(words) for _ in range(4000)))
        self.flags = ("--text", self.text, "--width", 32, "--heads", 2, "--context", 16, "--lr", 0.01)

    def test_both_networks_learn(self):
        for network, layers, *more in (("transformer", 2), ("lstm", 1), ("lstm", 1, "--sparse_grad")):
            with self.subTest(network, more=more):
                ended = self.run_program(program("char_lm"), "--network", network, "--layers", layers, *more,
                                         *self.flags)  # fmt: skip
                self.assertEqual(ended.code, 0, ended)
                # A word is one of four, 1.39 nats, and has 5 characters; the first of a context are told blindly.
                self.assertLess(ended.result["validation_loss"], 0.7, ended)
                self.assertGreater(ended.result["validation_loss"], 1.38 / 5, ended)
                self.assertRegex(ended.err, r"epoch 3 of 3: validation accuracy 0\.\d{4}, loss 0\.\d{4}")

    def test_a_mode_without_tables_says_so(self):
        flags = (*self.flags, "--network", "lstm", "--layers", 1, "--epochs", 1, "--sparse_grad")
        said = "holds no row-sparse tables: gradients are dense in spite of --sparse_grad"
        ended = self.run_program(*job("char_lm", "ring", *flags, servers=0))
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(ended.err.count("mode 'ring' " + said), 1, ended)
        self.assertNotIn("the ring goes on over", ended.err)  # as after a loss
        self.assertNotIn(said, self.run_program(program("char_lm"), *flags).err)

    def test_ends_after_so_many_steps(self):
        flags = (*self.flags, "--network", "lstm", "--layers", 1, "--epochs", 1, "--checkpoint")
        part = self.run_program(program("char_lm"), *flags, "parts", "--max_steps", 5)
        self.assertIn("ends after 5 steps, as --max_steps says", part.err)
        self.assertEqual(part.result["epochs"], 0, part)
        self.assertGreater(part.result["validation_loss"], 0, part)
        _, metadata = tensors_of(self.folder / "parts" / "checkpoint.safetensors")
        self.assertEqual(metadata["steps"], "5")
        rest = self.run_program(program("char_lm"), *flags, "parts")
        whole = self.run_program(program("char_lm"), *flags, "whole")
        self.assertEqual(rest.result["validation_loss"], whole.result["validation_loss"], rest)
        refused = self.run_program(*job("char_lm", "dist_sync", *flags, "parts", "--max_steps", 5))
        self.assert_one_clear_sentence(refused, "--max_steps ends the run of one process alone", code=2)

    def test_evaluates_what_was_held_out(self):
        flags = ("--width", 32, "--layers", 1, "--context", 16, "--lr", 0.01)
        text = ("--text", self.text, "--heads", 2)
        first = self.run_program(program("char_lm"), *flags, *text, "--max_steps", 2, "--checkpoint", "ck")
        self.assertEqual(first.code, 0, first)
        other = self.folder / "other"
        other.write_text(self.text.read_text().upper())
        right = self.run_program(program("char_lm"), *flags, *text, "--evaluate", "ck")
        self.assertEqual(right.code, 0, right)
        for wrong, words in (
            ((*text, "--held_out", 0.9), "--held_out=0.1, this run has 0.9: give the same"),
            ((*text[:2], "--heads", 4), "--heads=2, this run has 4: give the same"),
            (("--text", other, *text[2:]), "characters="),
        ):
            for of_run in (("--evaluate", "ck"), ("--checkpoint", "ck")):
                with self.subTest(words, of_run=of_run):
                    ended = self.run_program(program("char_lm"), *flags, *wrong, *of_run)
                    self.assert_one_clear_sentence(ended, "' was trained with " + words, code=2)

    def test_in_a_job_with_a_checkpoint(self):
        flags = (*self.flags, "--network", "lstm", "--layers", 1, "--epochs", 1, "--checkpoint", "ck", "--stride", 8)
        ended = self.run_program(*job("char_lm", "dist_async", *flags))
        self.assertEqual(ended.code, 0, ended)
        self.assertLess(ended.result["validation_loss"], 1.5, ended)
        again = self.run_program(program("char_lm"), *self.flags, "--network", "lstm", "--layers", 1,
                                 "--evaluate", ended.result["checkpoint"])  # fmt: skip
        self.assertAlmostEqual(again.result["validation_loss"], ended.result["validation_loss"], places=5)

    def test_refusals(self):
        zipped = self.folder / "text.gz"
        zipped.write_bytes(gzip.compress(self.text.read_bytes()))
        empty = self.folder / "empty"
        empty.write_text("")
        cases = {
            (): (2, "--text is missing"),
            ("--text", "nowhere"): (2, "--text: cannot open nowhere", "No such file"),
            ("--text", zipped): (1, "is compressed by gzip; unpack it with gunzip first"),
            ("--text", self.folder): (2, "is a folder, expected a file"),
            ("--text", empty): (2, "empty' has 0 characters, too few to train on"),
            ("--text", self.text, "--window", -5): (2, "--window has no effect with --text: leave it out"),
            ("--text", self.text, "--context", 20000): (2, "too few to train on"),
            ("--text", self.text, "--held_out", 1): (2, "--held_out is 1"),
            ("--text", self.text, "--network", "gru"): (2, "unknown network 'gru'; known: transformer lstm"),
            ("--text", self.text, "--heads", 3): (2, "not divisible by 3 heads"),
            ("--text", self.text, "--layers", 0): (2, "at least 1"),
        }
        for arguments, (code, *words) in cases.items():
            with self.subTest(" ".join(map(str, arguments))):
                ended = self.run_program(program("char_lm"), *arguments)
                self.assert_one_clear_sentence(ended, "char_lm: ", *words, code=code)


if __name__ == "__main__":
    unittest.main()
