"""The main job: the same program alone and distributed, to an accuracy; checkpoints read by another process and job."""

import array
import json
import unittest

from support import RESULT_KEYS, ProgramTest, data_folder, program, tensors_of

THRESHOLD = 0.85  # of 6,000 drawn digits after three epochs


class Mnist(ProgramTest):
    def assert_trained(self, ended, mode, workers, servers, epochs=3, threshold=THRESHOLD):
        self.assertEqual(ended.code, 0, ended)
        result = ended.result
        self.assertLessEqual(RESULT_KEYS, result.keys())
        given = {key: result[key] for key in ("mode", "workers", "servers", "epochs")}
        self.assertEqual(given, {"mode": mode, "workers": workers, "servers": servers, "epochs": epochs})
        self.assertGreaterEqual(result["test_accuracy"], threshold, ended)
        self.assertLessEqual(result["test_accuracy"], 1)
        self.assertGreater(result["train_seconds"], 0)
        self.assertLess(result["train_seconds"], ended.seconds)
        self.assertAlmostEqual(result["images_per_second"] * result["train_seconds"], 6000 * epochs, delta=1)
        self.assertGreater(result["images_per_second"], 6000 * epochs / ended.seconds)
        self.assertLessEqual(result["delay_p50"], result["delay_p99"])
        return result

    def train_alone(self, network):
        data = data_folder()
        ended = self.run_program(
            program("mnist"), "--train", data / "train.manifest", "--test", data / "test.manifest",
            "--network", network, "--checkpoint", "ck",
        )  # fmt: skip
        result = self.assert_trained(ended, "local", 1, 0)
        self.assertEqual((result["delay_mean"], result["delay_p99"]), (0, 0))
        self.assertEqual(self.evaluate(result["checkpoint"], network), result["test_accuracy"])

    def test_trace(self):
        data = data_folder()
        ended = self.run_program(program("mnist"), "--train", data / "test.manifest", "--network", "mlp", "--epochs", 1,
                                 "--trace", "trace.json")  # fmt: skip
        self.assertEqual(ended.code, 0, ended)
        names = {event["name"] for event in json.loads((self.folder / "trace.json").read_text())["traceEvents"]}
        self.assertIn("store.update", names)
        ended = self.run_job("dist_sync", "--trace", "shared.json", network="mlp", epochs=1)
        self.assertEqual(ended.code, 0, ended)
        self.assertFalse((self.folder / "shared.json").exists())
        for worker in (0, 1):
            self.assertTrue(json.loads((self.folder / f"shared.json.worker-{worker}").read_text())["traceEvents"])

    def test_local_lenet(self):
        self.train_alone("lenet")

    def test_local_mlp(self):
        self.train_alone("mlp")

    def test_dist_sync(self):
        ended = self.run_job("dist_sync", "--checkpoint", "ck", "--lr", "0.1")
        result = self.assert_trained(ended, "dist_sync", 2, 2)
        self.assertEqual(result["delay_mean"], 0)
        self.assertEqual(self.evaluate(result["checkpoint"]), result["test_accuracy"])

    def test_a_global_batch_trains_alike_with_any_number_of_workers(self):
        """The steps are the same sets of records, so that the weights differ by rounding only."""

        def weights(workers, *arguments):
            ended = self.run_job(
                "dist_sync", "--checkpoint", f"ck{workers}{len(arguments)}", "--global_batch", 132, "--lr", "0.05",
                *arguments, workers=workers, servers=1, network="mlp", epochs=1,
            )  # fmt: skip
            self.assertEqual(ended.code, 0, ended)
            self.assert_nothing_survives()
            arrays, metadata = tensors_of(self.folder / ended.result["checkpoint"])
            self.assertEqual(metadata["steps"], str(-(-6000 // 132)))
            self.assertEqual(set(metadata["examples"]), {6000})
            return array.array("f", b"".join(arrays[name] for name in sorted(arrays) if name.startswith("arg:")))

        alone = weights(1)
        for arguments in ((), ("--virtual_nodes", 3)):
            expected = alone if not arguments else weights(1, *arguments)
            shared = weights(3, *arguments)
            self.assertEqual(len(shared), len(expected))
            self.assertLess(max(abs(a - b) for a, b in zip(shared, expected, strict=True)), 2e-3)
        other = max(abs(a - b) for a, b in zip(alone, expected, strict=True))
        self.assertGreater(other, 2e-2, "another order makes other weights, or the comparison says nothing")

    def test_an_epoch_goes_on_in_no_other_order(self):
        command = [
            program("mnist"), "--train", data_folder() / "train.manifest", "--network", "mlp", "--checkpoint", "ck",
        ]  # fmt: skip
        first = self.run_program(*command, "--max_steps", 10)
        self.assertEqual(first.code, 0, first)
        _, metadata = tensors_of(self.folder / first.result["checkpoint"])
        self.assertEqual(metadata["positions"], "0-640")
        self.assertRegex(metadata["order"], "^seed=[0-9]+ window=4 data=[0-9a-f]{8}$")
        other = self.run_program(*command, "--seed", 77)
        self.assert_one_clear_sentence(other, "epoch 1 began with its records in the order 'seed=", code=2)
        # Of other workers each record of the epoch comes once, with those of before.
        ended = self.run_job("dist_sync", "--checkpoint", "ck", network="mlp", workers=3, servers=1, epochs=1)
        self.assertEqual(ended.code, 0, ended)
        _, metadata = tensors_of(self.folder / ended.result["checkpoint"])
        self.assertEqual(set(metadata["examples"]), {6000})
        # The rate counts what came after the first run.
        self.assertAlmostEqual(ended.result["images_per_second"] * ended.result["train_seconds"], 6000 - 640, delta=1)

    def test_ring(self):
        ended = self.run_job("ring", "--checkpoint", "ck", "--lr", "0.1", servers=0)
        result = self.assert_trained(ended, "ring", 2, 0)
        self.assertEqual(result["delay_mean"], 0)
        self.assertEqual(self.evaluate(result["checkpoint"]), result["test_accuracy"])

    def test_the_same_bits_in_every_synchronous_mode_over_every_transport(self):
        """A gradient that is written again before it was sent would differ from run to run."""
        weights = {}
        for mode, servers in (("dist_sync", 2), ("ring", 0)):
            for transport in ("shm", "tcp"):
                folder = f"{mode}-{transport}"
                ended = self.run_job(mode, "--checkpoint", folder, network="mlp", servers=servers, epochs=1,
                                     environment={"PACELINE_TRANSPORT": transport})  # fmt: skip
                self.assertEqual(ended.code, 0, ended)
                tensors, _ = tensors_of(self.folder / ended.result["checkpoint"])
                weights[folder] = {name: value for name, value in tensors.items() if name.startswith("arg:")}
        for folder, values in weights.items():
            self.assertTrue(values == weights["dist_sync-shm"], f"{folder} ended with other weights")

    def test_dist_async(self):
        ended = self.run_job("dist_async", "--checkpoint", "ck")
        result = self.assert_trained(ended, "dist_async", 2, 2)
        # Two equal workers give 1; less where one starts or ends before the other.
        self.assertGreaterEqual(result["delay_mean"], 0.3)
        self.assertLessEqual(result["delay_mean"], 1)
        self.assertEqual(self.evaluate(result["checkpoint"]), result["test_accuracy"])
        self.assertRegex(ended.err, r"delays of worker 1: \d+ slices pushed, mean [\d.]+")
        self.assertIsNone(result["furthest_ahead"])

    def test_the_other_modes(self):
        """Those of whole numbers of steps between two exchanges, of peers, and of workers to spare."""
        for mode, workers, servers in (
            ("dist_sync:backup=1", 3, 1),
            ("dist_local:steps=4", 2, 2),
            ("dist_local:steps=4,averaging=elastic", 2, 1),
            ("dist_local:steps=8,averaging=federated", 2, 1),
            ("gossip:steps=4", 2, 0),
            ("device", 1, 0),
        ):
            with self.subTest(mode):
                checkpoint = f"ck{len(self.started)}"
                ended = self.run_job(mode, "--checkpoint", checkpoint, "--lr", "0.1", workers=workers, servers=servers,
                                     network="mlp", epochs=2)  # fmt: skip
                result = self.assert_trained(ended, mode, workers, servers, epochs=2, threshold=0.75)
                self.assertAlmostEqual(self.evaluate(result["checkpoint"], "mlp"), result["test_accuracy"], places=4)
                self.assert_nothing_survives()

    def test_bound(self):
        ended = self.run_job("dist_async:bound=2", "--checkpoint", "ck")
        result = self.assert_trained(ended, "dist_async:bound=2", 2, 2)
        self.assertLessEqual(result["delay_p99"], (2 - 1) * (2 * 2 + 1))  # (M-1)(2s+1) of the contract
        self.assertEqual(self.evaluate(result["checkpoint"]), result["test_accuracy"])

    def test_bound_with_a_slow_worker(self):
        ended = self.run_job("dist_async:bound=2", "--slow_worker", 1, "--slow_factor", 5, workers=3, epochs=1)
        self.assertEqual(ended.code, 0, ended)
        self.assertLessEqual(ended.result["furthest_ahead"], 2)
        self.assertGreater(ended.result["furthest_ahead"], 0)
        self.assertEqual(len(ended.result["wait_seconds"]), 3)
        self.assertGreater(max(ended.result["wait_seconds"]), 0)
        for worker in range(3):
            for server in range(2):
                self.assertRegex(
                    ended.err, rf"server {server}.* delays of worker {worker}: .* held back \d+ times, for "
                )


class Resume(ProgramTest):
    def test_other_numbers(self):
        """A checkpoint of two workers and two servers goes on under other numbers and loses nothing."""
        first = self.run_job("dist_async", "--checkpoint", "ck", epochs=1)
        self.assertEqual(first.code, 0, first)
        path = self.folder / "ck" / "checkpoint.safetensors"
        before, metadata = tensors_of(path)
        self.assertEqual(metadata["epoch"], "1")
        # Under a learning rate of 0 an epoch leaves the weights as they were read.
        epochs = 1
        for workers, servers in ((1, 1), (3, 2)):
            epochs += 1
            ended = self.run_job("dist_async", "--checkpoint", "ck", "--lr", "0", "--schedule", "constant",
                                 workers=workers, servers=servers, epochs=epochs)  # fmt: skip
            self.assertEqual(ended.code, 0, ended)
            self.assertIn(f"resuming from ck/checkpoint.safetensors after epoch {epochs - 1}", ended.err)
            self.assertEqual(ended.result["test_accuracy"], first.result["test_accuracy"])
            after, metadata = tensors_of(path)
            self.assertEqual(metadata["epoch"], str(epochs))
            self.assertEqual(set(metadata["examples"]), {6000 * epochs})
            weights = {name for name in before if name.startswith("arg:")}
            self.assertEqual(len(weights), 10)
            for name in weights:
                self.assertEqual(before[name], after[name], f"{name} with {workers} workers and {servers} servers")
        ended = self.run_job("dist_async", "--checkpoint", "ck", epochs=epochs + 2)
        self.assertEqual(ended.code, 0, ended)
        self.assertGreaterEqual(ended.result["test_accuracy"], THRESHOLD)

    def test_nothing_left_to_do(self):
        first = self.run_job("dist_sync", "--checkpoint", "ck", epochs=1, network="mlp")
        again = self.run_job("dist_sync", "--checkpoint", "ck", epochs=1, network="mlp")
        self.assertEqual(again.code, 0, again)
        self.assertEqual(again.result["test_accuracy"], first.result["test_accuracy"])
        self.assertIn("ck/checkpoint.safetensors has done 1 of 1 epochs; raise --epochs to go on", again.err)


if __name__ == "__main__":
    unittest.main()
