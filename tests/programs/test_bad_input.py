"""Bad input of every kind: one clear sentence, an exit code that is not 0, and nothing lost."""

import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import threading
import unittest

from support import LAUNCHER, ProgramTest, data_folder, program

PROMPT = 40  # seconds within which a refusal must come, however busy the machine


class BadInput(ProgramTest):
    def mnist(self, *arguments, **environment):
        return self.run_program(program("mnist"), *arguments, patience=PROMPT, **environment)

    def copy_of_data(self):
        """A copy of the training set that may be damaged; returns its manifest."""
        for path in data_folder().glob("train*"):
            if path.is_file():
                shutil.copy(path, self.folder)
        return self.folder / "train.manifest"

    def small_set(self, records, classes=10):
        """A training set of a few records; returns its manifest."""
        images = struct.pack(">IIII", 2051, records, 28, 28) + bytes(784 * records)
        labels = struct.pack(">II", 2049, records) + bytes(i % classes for i in range(records))
        (self.folder / "small-images-idx3-ubyte").write_bytes(images)
        (self.folder / "small-labels-idx1-ubyte").write_bytes(labels)
        packed = self.run_program(program("im2rec"), "small", "small-images-idx3-ubyte")
        self.assertEqual(packed.code, 0, packed)
        return self.folder / "small.manifest"


class CommandLine(BadInput):
    def test_unknown_flag(self):
        near = {
            "mnist": ("batchsize", "batch_size"), "im2rec": ("shard", "shards"), "rec": ("limmit", "limit"),
            "draw_digits": ("sed", "seed"), "kvbench": ("key_byte", "key_bytes"), "paceline_server": ("bogus", ""),
        }  # fmt: skip
        for name, (flag, meant) in near.items():
            with self.subTest(name):
                ended = self.run_program(program(name), "--" + flag, patience=PROMPT)
                meant = f" (do you mean --{meant}?)" if meant else ""
                self.assertEqual(ended.err, f"{name}: unknown flag --{flag}{meant}; {name} --help says more\n")
                self.assertEqual((ended.code, ended.out), (2, ""), ended)
        ended = self.run_program(*LAUNCHER, "-n", 2, "--bogus", program("mnist"))
        self.assert_one_clear_sentence(ended, "--bogus", code=2)

    def test_unknown_argument(self):
        self.assert_one_clear_sentence(self.mnist("extra"), "unknown argument 'extra'", code=2)

    def test_a_mode_that_no_process_of_kvbench_knows(self):
        ended = self.run_program(program("kvbench"), "--mode", "dist_asink", patience=PROMPT)
        self.assert_one_clear_sentence(ended, "kvbench: unknown mode 'dist_asink'; known: local", code=2)
        self.assertEqual(ended.err.count("\n"), 1, ended)

    def test_a_server_that_checks_an_empty_mode_refuses_it(self):
        ended = self.run_program(program("paceline_server"), "--check_mode=", patience=PROMPT)
        self.assert_one_clear_sentence(ended, "paceline_server: unknown mode ''; known: local", code=2)

    def test_a_wrong_mode_starts_no_job(self):
        train = ("--train", data_folder() / "train.manifest")
        for mode, words in (
            ("dist_sync:bakcup=1", "unknown option 'bakcup' of mode 'dist_sync'; known: aggregate backup"),
            ("dist_snc", "unknown mode 'dist_snc'; known: local"),
            ("ring:bound=2", "unknown option 'bound' of mode 'ring'"),
            ("dist_local:staleness=discard", "leave staleness=discard out"),
        ):
            with self.subTest(mode):
                ended = self.run_program(*LAUNCHER, "-n", 2, program("mnist"), *train, "--kvstore", mode)
                self.assert_one_clear_sentence(ended, "launch.py: " + words if words[0] == "u" else words, code=2)
                self.assertEqual(ended.err.count("\n"), 1, ended)
                self.assertFalse((self.folder / "logs").exists())

    def test_threads_that_cannot_be_made(self):
        ended = self.run_program("sh", "-c", 'ulimit -v 2500000; exec "$@"', "sh", program("mnist"), "--network", "mlp",
                                 "--train", self.small_set(100), PACELINE_NUM_THREADS=1000)  # fmt: skip
        self.assert_one_clear_sentence(ended, "mnist: the system makes no more threads, for ", code=1)

    def test_a_job_whose_command_names_no_mode(self):
        """A training program says so and ends; the library, which cannot know what is meant, warns in every worker."""
        ended = self.run_program(*LAUNCHER, "-n", 2, "-s", 1, program("mnist"), "--train", self.small_set(100))
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("mnist: --kvstore is 'local', one process alone, in a job of 2 workers", ended.err)
        ended = self.run_program(*LAUNCHER, "-n", 2, "-s", 1, "--grace", 1, program("kvstore"))
        self.assertEqual(ended.err.count("mode 'local' in a job of 2 workers and 1 servers"), 2, ended)

    def test_a_test_set_of_another_kind(self):
        """Found before the first epoch."""
        train = ("--train", data_folder() / "train.manifest", "--epochs", 1000)
        ended = self.mnist(*train, "--test", self.small_set(5))
        self.assert_one_clear_sentence(ended, "small.manifest' names 5 classes, which are not the 10 of", code=2)
        images = data_folder() / "idx" / "t10k-images-idx3-ubyte.gz"
        packed = self.run_program(program("im2rec"), "--channels", 3, "coloured", images)
        self.assertEqual(packed.code, 0, packed)
        ended = self.mnist(*train, "--test", "coloured.manifest")
        self.assert_one_clear_sentence(
            ended, "'coloured.manifest' are 28 x 28 x 3, but those of", "28 x 28 x 1", code=2
        )

    def test_a_test_set_that_a_worker_cannot_open_starts_no_job(self):
        ended = self.run_program(
            *LAUNCHER, "-n", 2, "-s", 1, program("mnist"), "--kvstore", "dist_sync", "--network", "mlp", "--train",
            self.small_set(100), "--test", "nowhere", "--epochs", 2, patience=PROMPT,
        )  # fmt: skip
        self.assert_one_clear_sentence(ended, "--test: cannot open nowhere", code=2)
        self.assertNotIn("epoch 1", ended.err)

    def test_more_classes_than_mnist_has(self):
        ended = self.mnist("--train", self.small_set(24, classes=12))
        self.assert_one_clear_sentence(ended, "small.manifest' names 12 classes", "image_classification", code=2)

    def test_a_test_set_that_is_not_there_has_no_accuracy(self):
        self.small_set(100)
        alone = self.mnist("--epochs", 1, "--network", "mlp", "--train", self.folder / "small.manifest")
        self.assertIsNone(alone.result["test_accuracy"], alone)
        self.assertNotIn("in a job", alone.err)

    def test_unknown_names(self):
        train = ("--train", data_folder() / "train.manifest")
        cases = {
            ("--kvstore", "dist_asink"): ("unknown mode 'dist_asink'; known: local", "dist_sync dist_async"),
            ("--kvstore", ""): ("unknown mode ''; known: local",),
            ("--kvstore",): ("--kvstore needs a value: mode of the store",),
            ("--kvstore", "dist_async:bund=2"): ("'bund'", "bound"),
            ("--kvstore", "dist_async:bound=-1"): ("bound",),
            ("--kvstore", "dist_async:staleness=old"): ("unknown staleness 'old'", "gap_aware", "dana"),
            ("--optimizer", "sdg"): ("unknown optimizer 'sdg'", "sgd momentum nesterov adam"),
            ("--optimizer", "sgd:lr=5", "--lr", "1"): ("--optimizer has lr, which --lr is for, too: leave one out",),
            ("--optimizer", "adam", "--momentum", "0.5"): ("--momentum has no effect with --optimizer adam",),
            ("--step_epochs", "2"): ("--step_epochs has no effect with --schedule linear: leave it out",),
            ("--on_nan", "never"): ("unknown on_nan 'never'; known: warn stop skip ignore",),
            ("--slow_worker", "1"): ("--slow_worker is 1, expected a rank below 1",),
            ("--slow_factor", "3"): ("--slow_factor has no effect without --slow_worker: leave it out",),
            ("--network", "resnet"): ("unknown network 'resnet'", "mlp lenet"),
            ("--schedule", "never"): ("unknown schedule 'never'", "constant linear"),
            ("--epochs", "many"): ("--epochs is 'many', expected int32: passes",),
            ("--epochs",): ("--epochs needs a value: passes",),
            ("--epochs", "0"): ("--epochs is 0, expected at least 1",),
            ("--batch_size", "0"): ("--batch_size is 0, expected at least 1",),
            ("--lr", "-1"): ("lr is -1",),
        }
        for arguments, words in cases.items():
            with self.subTest(" ".join(arguments)):
                self.assert_one_clear_sentence(self.mnist(*train, *arguments), *words, code=2)

    def test_what_is_needed_at_the_end_is_looked_at_first(self):
        train = ("--train", data_folder() / "train.manifest", "--epochs", 1000)
        for flag in ("--test", "--trace"):
            with self.subTest(flag):
                ended = self.mnist(*train, flag, "nowhere/it")
                self.assert_one_clear_sentence(ended, f"mnist: {flag}: cannot ", "nowhere/it", code=2)

    def test_a_checkpoint_that_cannot_be_written(self):
        """A file is where the folder would be."""
        train = data_folder() / "train.manifest"
        ended = self.mnist("--train", train, "--epochs", 1000, "--checkpoint", train / "ckpt")
        self.assert_one_clear_sentence(ended, "--checkpoint: cannot write into the folder", "Not a directory", code=2)

    def test_a_device_that_is_not_there(self):
        train = ("--train", data_folder() / "train.manifest")
        self.assert_one_clear_sentence(self.mnist(*train, "--device", "cuda:99"), "cuda:99", code=2)

    def test_environment(self):
        good = {
            "DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9", "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1", "PACELINE_START_DEADLINE": "3",
        }  # fmt: skip
        cases = [({name: None}, name) for name in good if name.startswith("DMLC")]
        cases += [
            ({"DMLC_ROLE": "boss"}, "scheduler server worker"),
            ({"DMLC_PS_ROOT_PORT": "99999"}, "DMLC_PS_ROOT_PORT='99999'"),
            ({"DMLC_NUM_WORKER": "two"}, "DMLC_NUM_WORKER='two'"),
            ({"DMLC_NUM_WORKER": "0"}, "DMLC_NUM_WORKER='0'"),
            ({"DMLC_NUM_SERVER": "-1"}, "DMLC_NUM_SERVER='-1'"),
            ({"DMLC_INTERFACE": "nosuch7"}, "DMLC_INTERFACE='nosuch7'"),
            ({"DMLC_PS_ROOT_URI": "no/host"}, "DMLC_PS_ROOT_URI='no/host'"),
            ({"PACELINE_SILENCE_DEADLINE": "soon"}, "PACELINE_SILENCE_DEADLINE='soon'"),
        ]
        train = data_folder() / "train.manifest"
        for change, words in cases:
            variables = {name: value for name, value in {**good, **change}.items() if value is not None}
            with self.subTest(change):
                ended = self.mnist("--kvstore", "dist_sync", "--train", train, **variables)
                self.assert_one_clear_sentence(ended, words, code=2)
            if "DMLC_NUM_SERVER" in variables and variables.get("DMLC_ROLE") == "worker":
                variables["DMLC_ROLE"] = "server"
            with self.subTest(change, role="server"):
                ended = self.run_program(program("paceline_server"), patience=PROMPT, **variables)
                self.assert_one_clear_sentence(ended, words, code=2)


class Records(BadInput):
    def refuse(self, *words, code=1):
        ended = self.mnist("--train", self.folder / "train.manifest", "--epochs", 1)
        self.assert_one_clear_sentence(ended, *words, code=code)

    def test_no_manifest(self):
        self.assert_one_clear_sentence(self.mnist(), "--train is missing", code=2)
        self.refuse("--train: cannot open ", "train.manifest on host " + socket.gethostname(), "No such file", code=2)
        ended = self.mnist("--train", self.folder)
        self.assert_one_clear_sentence(ended, "--train: '", "' is a folder, expected a file", code=2)

    def test_damaged_manifest(self):
        manifest = self.copy_of_data()
        text = manifest.read_text()
        manifest.write_text(text[:700])
        self.refuse("train.manifest cannot be read")
        manifest.write_text(text.replace('"records": 1500', '"records": 1400', 1))
        self.refuse("train.manifest cannot be used: its checksum is wrong")
        manifest.write_bytes(os.urandom(500))
        self.refuse("train.manifest cannot be read")
        manifest.write_text("{}")
        self.refuse("train.manifest")

    def test_missing_shard(self):
        self.copy_of_data()
        (self.folder / "train-00002-of-00004.rec").unlink()
        self.refuse("train-00002-of-00004.rec on host " + socket.gethostname(), "No such file")

    def test_missing_shard_of_a_job(self):
        """Only the worker that needs it is refused; it says which file, and where."""
        manifest = self.copy_of_data()
        (self.folder / "train-00003-of-00004.rec").unlink()
        ended = self.run_program(
            *LAUNCHER, "-n", 2, "-s", 1, "--on-worker-loss", "stop", program("mnist"), "--kvstore", "dist_async",
            "--train", manifest, "--virtual_nodes", 2, patience=PROMPT,
        )  # fmt: skip
        self.assert_one_clear_sentence(
            ended, "train-00003-of-00004.rec on host " + socket.gethostname(), "which the job cannot survive", code=1
        )
        self.assert_nothing_survives()

    def test_truncated_shard(self):
        self.copy_of_data()
        os.truncate(self.folder / "train-00001-of-00004.rec", 100_000)
        self.refuse("train-00001-of-00004.rec has 100000 bytes, the manifest", "says 1248000")
        os.truncate(self.folder / "train-00001-of-00004.rec", 0)
        self.refuse("train-00001-of-00004.rec has 0 bytes, the manifest", "says 1248000")

    def flip(self, name, offset, bit=1):
        path = self.folder / name
        raw = bytearray(path.read_bytes())
        raw[offset] ^= bit
        path.write_bytes(raw)

    def test_flipped_bits(self):
        self.copy_of_data()
        self.flip("train-00001-of-00004.rec", 832 * 600 + 400)
        self.refuse("train-00001-of-00004.rec: record 600 at offset 499200 is damaged")

    def test_flipped_frame(self):
        self.copy_of_data()
        self.flip("train-00001-of-00004.rec", 832 * 600)
        self.refuse("train-00001-of-00004.rec: record 600 at offset 499200 is damaged")

    def test_damaged_index(self):
        self.copy_of_data()
        self.flip("train-00001-of-00004.idx", 100, bit=2)
        self.refuse("train-00001-of-00004.idx is damaged")
        os.truncate(self.folder / "train-00001-of-00004.idx", 500)
        self.refuse("train-00001-of-00004.idx is damaged")
        (self.folder / "train-00001-of-00004.idx").unlink()
        self.refuse("train-00001-of-00004.idx", "No such file")

    def test_damaged_checksums(self):
        self.copy_of_data()
        self.flip("train-00000-of-00004.crc", 50)
        self.refuse("train-00000-of-00004.crc")

    def test_empty_shard(self):
        manifest = self.small_set(3)
        ended = self.run_program(program("im2rec"), "--shards", 5, "five", "small-images-idx3-ubyte")
        self.assert_one_clear_sentence(ended, "3 images cannot fill 5 shards", code=2)
        description = json.loads(manifest.read_text())
        del description["checksum"]
        description["shards"].append({**description["shards"][0], "records": 0, "bytes": 0, "path": "empty.rec"})
        manifest.write_text(json.dumps(description))
        ended = self.mnist("--train", manifest)
        self.assert_one_clear_sentence(ended, "small.manifest", "empty.rec", code=1)

    def test_more_workers_than_records(self):
        manifest = self.small_set(2)
        ended = self.run_program(
            *LAUNCHER, "-n", 3, "-s", 1, program("mnist"), "--kvstore", "dist_sync", "--train", manifest, "--test",
            manifest, "--epochs", 2, patience=PROMPT,
        )  # fmt: skip
        self.assert_one_clear_sentence(ended, "3 workers", "2 records")
        self.assert_nothing_survives()

    def test_no_records(self):
        ended = self.run_program(program("im2rec"), "small", ".", patience=PROMPT)
        self.assert_one_clear_sentence(ended, "no images")


class Checkpoints(BadInput):
    def setUp(self):
        super().setUp()
        self.manifest = self.small_set(64)
        self.train = ("--train", self.manifest, "--test", self.manifest, "--network", "mlp", "--batch_size", 16)
        made = self.mnist(*self.train, "--checkpoint", "ck", "--epochs", 1)
        self.assertEqual(made.code, 0, made)
        self.path = self.folder / "ck" / "checkpoint.safetensors"
        self.whole = self.path.read_bytes()

    def job(self, *arguments, launch=()):
        return self.run_program(
            *LAUNCHER, "-n", 2, "-s", 1, *launch, program("mnist"), *self.train, "--kvstore", "dist_sync", *arguments,
            patience=PROMPT,
        )  # fmt: skip

    def refuse_everywhere(self, *words, code=1):
        """Alone and in a job; the file stays as it is, and no worker goes on with fresh weights."""
        before = self.path.read_bytes()
        arguments = ("--checkpoint", "ck", "--epochs", 3)
        ended = self.mnist(*self.train, *arguments)
        self.assert_one_clear_sentence(ended, *words, code=code)
        self.assertEqual(self.path.read_bytes(), before)
        ended = self.job(*arguments)
        self.assert_one_clear_sentence(ended, *words)
        self.assertEqual(len(re.findall(r"^\[worker \d\] mnist: ", ended.err, re.MULTILINE)), 2, ended)
        self.assertEqual(self.path.read_bytes(), before)
        self.assert_nothing_survives()

    def test_truncated(self):
        self.path.write_bytes(self.whole[: len(self.whole) // 2])
        self.refuse_everywhere("ck/checkpoint.safetensors")

    def test_rubbish(self):
        self.path.write_bytes(os.urandom(2000))
        self.refuse_everywhere("ck/checkpoint.safetensors", "put back a copy of the checkpoint, or remove it")

    def test_other_network(self):
        self.train = (*self.train, "--network", "lenet")
        self.refuse_everywhere("checkpoint", code=2)
        ended = self.mnist("--evaluate", self.path, "--network", "lenet", "--test", self.manifest)
        self.assert_one_clear_sentence(ended, "checkpoint.safetensors", code=2)

    def test_other_optimizer(self):
        self.train = (*self.train, "--optimizer", "adam")
        self.refuse_everywhere("trained with optimizer nesterov", "adam", code=2)

    def test_evaluate_nothing(self):
        ended = self.mnist("--evaluate", "nowhere", "--test", self.manifest)
        self.assert_one_clear_sentence(ended, "--evaluate: cannot open nowhere", "No such file", code=2)
        (self.folder / "empty").mkdir()
        ended = self.mnist("--evaluate", "empty", "--test", self.manifest)
        self.assert_one_clear_sentence(ended, "--evaluate: cannot open empty/checkpoint.safetensors", code=2)

    def test_evaluate_in_a_job(self):
        ended = self.mnist("--evaluate", self.path, "--test", self.manifest, DMLC_ROLE="worker")
        self.assert_one_clear_sentence(ended, "--evaluate runs alone: start it without launch.py", code=2)

    def on_full_disk(self, *command):
        """Runs it where ck/ is a disk that has room for the old checkpoint, not for a second one."""
        kilobytes = len(self.whole) // 1024 + 64
        script = f"mount -t tmpfs -o size={kilobytes}k none full && cp ck/* full/ && " + (
            '"$@"; code=$?; cp full/checkpoint.safetensors after; ls -A full >left; exit $code')  # fmt: skip
        (self.folder / "full").mkdir()
        unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        trial = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", self.folder / "full"], capture_output=True)
        if trial.returncode:
            self.skipTest("may not mount a small disk here")
        ended = self.run_program(*unshare, "sh", "-c", script, "sh", *command, patience=PROMPT)
        self.assert_one_clear_sentence(ended, "full/checkpoint.safetensors", "No space left on device", code=1)
        self.assertEqual((self.folder / "after").read_bytes(), self.whole)
        self.assertEqual((self.folder / "left").read_text().split(), ["checkpoint.safetensors"])
        self.assert_nothing_survives()
        return ended

    def test_disk_full(self):
        self.on_full_disk(program("mnist"), *self.train, "--checkpoint", "full", "--epochs", "3")

    def test_disk_full_in_a_job(self):
        ended = self.on_full_disk(
            *LAUNCHER, "-n", "2", "-s", "1", program("mnist"), *self.train, "--kvstore", "dist_sync", "--checkpoint",
            "full", "--epochs", "3",
        )  # fmt: skip
        self.assertIn("[worker 1] mnist: the checkpoint 'full/checkpoint.safetensors' could not be written", ended.err)


class Peers(BadInput):
    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            job = self.run_job("dist_sync", launch=("--port", port))
            self.assert_one_clear_sentence(job, f"127.0.0.1:{port}", "Address already in use")
            self.assert_nothing_survives()
            alone = self.run_program(
                program("paceline_server"), patience=PROMPT, DMLC_ROLE="scheduler", DMLC_PS_ROOT_URI="127.0.0.1",
                DMLC_PS_ROOT_PORT=port, DMLC_NUM_WORKER=1, DMLC_NUM_SERVER=1,
            )  # fmt: skip
            self.assert_one_clear_sentence(alone, f"127.0.0.1:{port}", "Address already in use", code=1)

    def test_workers_of_two_shapes(self):
        """Both are told, and both shapes are named."""
        data = data_folder()
        ended = self.run_program(
            *LAUNCHER, "-n", 2, "-s", 1, "--server-command", program("paceline_server"), "sh", "-c",
            '[ "$DMLC_TASK_ID" = 1 ] && exec "$@" --network lenet; exec "$@" --network mlp', "sh", program("mnist"),
            "--kvstore", "dist_async", "--train", data / "train.manifest", patience=PROMPT,
        )  # fmt: skip
        self.assert_one_clear_sentence(ended, code=2)
        for worker in (0, 1):
            self.assertRegex(ended.err, rf"(?m)^\[worker {worker}\] mnist: .*worker [01].*worker [01]", ended)
        self.assert_nothing_survives()

    def start_long_job(self, launch=()):
        launch = ("--log-dir", "logs", "--server-command", program("paceline_server"), *self.slow_steps(), *launch)
        job = self.start_job("dist_async", "--log_every", 10, network="mlp", epochs=2, launch=launch)
        self.wait_for_line(job, r"\[worker \d\] epoch 1  step 10 ")
        return job

    def test_process_of_another_job(self):
        job = self.start_long_job()
        port = (self.folder / "logs" / "scheduler.port").read_text().split()[1]
        common = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": port, "DMLC_NUM_WORKER": 2,
                  "DMLC_NUM_SERVER": 2, "PACELINE_JOB_ID": "another", "PACELINE_START_DEADLINE": 20}  # fmt: skip
        stranger = self.mnist("--kvstore", "dist_async", "--train", data_folder() / "train.manifest", **common,
                              DMLC_ROLE="worker")  # fmt: skip
        self.assert_one_clear_sentence(stranger, f"127.0.0.1:{port} serves another job than 'another'", code=1)
        server = self.run_program(program("paceline_server"), patience=PROMPT, **common, DMLC_ROLE="server")
        self.assert_one_clear_sentence(server, f"127.0.0.1:{port} serves another job than 'another'", code=1)
        ended = self.finish(job)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("another job than 'another' of the worker", ended.err)

    def listening_ports(self):
        inodes = set()
        for pid in self.survivors():
            for path in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
                try:
                    inodes.add(os.readlink(path))
                except OSError:
                    pass
        ports = set()
        tables = [pathlib.Path("/proc/net") / name for name in ("tcp", "tcp6")]
        for line in "".join(table.read_text() for table in tables if table.exists()).splitlines():
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.add(int(fields[1].split(":")[1], 16))
        return ports

    def test_random_bytes(self):
        self.knock_with_rubbish((), "turned away somebody at")

    def test_random_bytes_without_keys(self):
        self.knock_with_rubbish(("--insecure",), "dropped a malformed message from")

    def knock_with_rubbish(self, launch, said):
        """Strangers knock at every port with rubbish, half of it after a proper ZeroMQ greeting; the job goes on."""
        job = self.start_long_job(launch=launch)
        ports = self.listening_ports()
        self.assertGreaterEqual(len(ports), 3, ports)  # the scheduler's and the servers'
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\x01" + bytes(31)
        ready = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"

        def knock(port, seed):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                    if seed % 3 == 0:
                        stranger.sendall(os.urandom(100 * (seed + 1)))
                    elif seed % 3 == 1:
                        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    else:
                        stranger.sendall(greeting + ready)
                        for size in range(0, 255, 5):
                            stranger.sendall(bytes([0, size]) + os.urandom(size))
                    stranger.settimeout(0.2)
                    while stranger.recv(4096):
                        pass
            except OSError:
                pass

        knocks = [threading.Thread(target=knock, args=(port, seed)) for port in ports for seed in range(12)]
        for thread in knocks:
            thread.start()
        for thread in knocks:
            thread.join()
        ended = self.finish(job)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn(said, ended.err)
        self.assertGreaterEqual(ended.result["test_accuracy"], 0.85, ended)
        self.assertNotIn("was lost", ended.err)


if __name__ == "__main__":
    unittest.main()
