"""The training programs beside mnist: each learns something small, alone and in a job, and refuses in one sentence."""

import unittest

from support import LAUNCHER, ProgramTest, data_folder, program


def job(name, mode, *arguments, servers=1):
    return (*LAUNCHER, "-n", 2, "-s", servers, program(name), "--kvstore", mode, *arguments)


class Images(ProgramTest):
    def pack(self, digits, *options):
        """The first of the drawn digits as a data set; returns its manifest."""
        self.assertEqual(self.run_program(program("draw_digits"), "--train", digits, "--test", 1, "--out", "few").code, 0)
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

    def test_learns_and_resumes(self):
        """In two runs as in one; a network with batch norm, its statistics in the checkpoint."""
        data = data_folder()
        train = self.pack(400)
        flags = ("--network", "resnet20", "--train", train, "--test", train, "--batch_size", 20, "--schedule", "step",
                 "--step_epochs", 1, "--warmup", 0.2, "--weight_decay", 1e-4, "--checkpoint", "ck")  # fmt: skip
        first = self.train(*flags, "--epochs", 1)
        self.assertRegex(first.err, r"(?m)^epoch 1 of 1: test accuracy 0\.\d{4}$")
        second = self.train(*flags, "--epochs", 2)
        self.assertIn("resuming from ck/checkpoint.safetensors at epoch 1", second.err)
        self.assertGreater(second.result["test_accuracy"], 0.4, second)
        evaluated = self.train("--network", "resnet20", "--evaluate", second.result["checkpoint"], "--test", train)
        self.assertEqual(evaluated.result["test_accuracy"], second.result["test_accuracy"])
        wrong = self.run_program(program("image_classification"), "--network", "lenet", "--test", data / "test.manifest",
                                 "--evaluate", second.result["checkpoint"])  # fmt: skip
        self.assert_one_clear_sentence(wrong, "image_classification: ", "0.weight", code=1)

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
            ("--warmup", -1): ("--warmup is -1",),
            ("--schedule", "step", "--step_epochs", 0): ("--step_epochs",),
            ("--device", "gpu"): ("'gpu'",),
            ("--network", "vgg16"): ("max_pool",),  # nothing is left of 28 x 28
            ("--evaluate", "ck"): ("--evaluate needs --test",),
        }  # fmt: skip
        for arguments, words in cases.items():
            with self.subTest(" ".join(map(str, arguments))):
                ended = self.run_program(program("image_classification"), *train, *arguments)
                self.assert_one_clear_sentence(ended, "image_classification: ", *words, code=1)


if __name__ == "__main__":
    unittest.main()
