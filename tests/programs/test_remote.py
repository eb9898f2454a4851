"""Data sets and checkpoints on web servers and in object stores, as a user's programs read and write them."""

import contextlib
import hashlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

from support import LAUNCHER, ProgramTest, data_folder, program, tensors_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from object_server import ObjectServer

KEY, SECRET = "test-key", "s3cret/of+the=test"
SHARDS = [f"train-{number:05}-of-00004.rec" for number in range(4)]


class RemoteTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"
        self.environment.update(
            PACELINE_CACHE=str(self.cache), PACELINE_REMOTE_ATTEMPTS="3", HOME=str(self.folder), no_proxy="",
        )  # fmt: skip
        for name in list(self.environment):
            if name.startswith("AWS_") or name.lower().endswith("_proxy"):
                del self.environment[name]

    def serve(self, **options):
        server = ObjectServer(**options)
        self.addCleanup(server.close)
        server.add_folder("set", data_folder())
        return server

    def serve_s3(self, **options):
        server = self.serve(credentials={KEY: SECRET}, **options)
        self.environment.update(
            AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_ENDPOINT_URL=server.url, AWS_REGION="nowhere-1"
        )
        return server

    def train(self, place, *arguments, **environment):
        ended = self.run_program(
            program("mnist"), "--network", "mlp", "--epochs", 1, "--train", f"{place}/train.manifest",
            "--test", f"{place}/test.manifest", *arguments, **environment,
        )  # fmt: skip
        self.assertEqual(ended.code, 0, ended)
        return ended.result

    def assert_no_secret(self, ended):
        self.assertNotIn(SECRET, ended.text)
        self.assertNotIn("Signature=", ended.text)


class Training(RemoteTest):
    def test_a_job_trains_from_a_web_server_and_each_shard_comes_once(self):
        server = self.serve()
        job = self.run_program(
            *LAUNCHER, "-n", 2, "-s", 1, program("mnist"), "--kvstore", "dist_sync", "--network", "mlp",
            "--epochs", 2, "--train", f"{server.url}/set/train.manifest", "--test", f"{server.url}/set/test.manifest",
        )  # fmt: skip
        self.assertEqual(job.code, 0, job)
        self.assertGreater(job.result["test_accuracy"], 0.5, job)
        for shard in SHARDS:
            self.assertEqual(server.count("GET", shard), 1, shard)
        size = sum(len(data) for data in server.objects.values())
        self.assertLess(server.bytes, 1.05 * size)
        files = [path for _, path, _ in server.requests if not path.endswith(".manifest")]
        self.train(f"{server.url}/set")
        again = [path for _, path, _ in server.requests if not path.endswith(".manifest")]
        self.assertEqual(again, files, "another job finds the shards in the cache")

    def test_two_processes_that_want_the_same_shard_fetch_it_once(self):
        both = threading.Event()

        def hold(request, _):
            if request[1].endswith(SHARDS[0]):
                both.wait()

        server = self.serve(change=hold)
        jobs = [
            self.start(
                program("mnist"), "--network", "mlp", "--epochs", 1, "--train", f"{server.url}/set/train.manifest"
            )
            for _ in range(2)
        ]
        for job in jobs:
            self.wait_until(lambda: list(self.cache.glob("*.part")), "a shard is fetched", job)
            # A process has the lock's file open from when it wants the shard on.
            self.wait_until(lambda job=job: self.wants_a_shard(job.pid), "the process wants a shard", job)
        both.set()
        for job in jobs:
            ended = self.finish(job)
            self.assertEqual(ended.code, 0, ended)
        for shard in SHARDS:
            self.assertEqual(server.count("GET", shard), 1, shard)

    @staticmethod
    def wants_a_shard(pid):
        with contextlib.suppress(OSError):
            return any(os.readlink(entry).endswith(".lock") for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir())
        return False

    def test_an_object_store_is_read_and_written(self):
        server = self.serve_s3()
        here = self.train(data_folder(), "--seed", 5)
        there = self.train("s3://set", "--seed", 5, "--checkpoint", "s3://out/a folder/run+1")
        self.assertEqual(there["test_accuracy"], here["test_accuracy"])
        name = "out/a folder/run+1/checkpoint.safetensors"
        self.assertEqual(there["checkpoint"], f"s3://{name}")
        copy = self.folder / "copy.safetensors"
        copy.write_bytes(server.objects[name])
        self.assertEqual(tensors_of(copy)[1]["epoch"], "1")
        for place in (f"s3://{name}", "s3://out/a folder/run+1"):
            before = server.bytes
            ended = self.run_program(program("mnist"), "--network", "mlp", "--evaluate", place,
                                     "--test", "s3://set/test.manifest")  # fmt: skip
            self.assertEqual(ended.code, 0, ended)
            self.assertLess(server.bytes - before, 1.5 * len(server.objects[name]), "the checkpoint is fetched once")
            self.assertEqual(ended.result["test_accuracy"], here["test_accuracy"])
        resumed = self.train("s3://set", "--seed", 5, "--checkpoint", "s3://out/a folder/run+1", "--epochs", 2)
        self.assertEqual(resumed["epochs"], 2)
        copy.write_bytes(server.objects[name])
        self.assertEqual(tensors_of(copy)[1]["epoch"], "2")

    def test_a_large_checkpoint_goes_in_parts(self):
        failed, parts, met = set(), itertools.count(), []
        two_parts = threading.Barrier(2, timeout=25)  # before the program gives the request up

        def fail_each_part_once(request, reply):
            command, _, query = request
            if command in ("PUT", "POST") and query not in failed:
                failed.add(query)
                if command == "PUT" and next(parts) < 2:
                    with contextlib.suppress(threading.BrokenBarrierError):
                        met.append(two_parts.wait())
                reply.update(status=503, body=b"<Error><Code>SlowDown</Code></Error>")

        server = self.serve_s3(change=fail_each_part_once)
        text, numbers = self.folder / "rows.libsvm", 1_500_000
        with text.open("w") as file:
            for row in range(64):
                features = " ".join(f"{number}:1" for number in range(row + 1, numbers, 64))
                file.write(f"{row % 2} {features}\n")
        arguments = ["--train", text, "--batch_size", 64, "--epochs", 1]
        for place in ("s3://out", self.folder / "here"):
            ended = self.run_program(program("sparse_linear"), *arguments, "--checkpoint", place)
            self.assertEqual(ended.code, 0, ended)
        here = (self.folder / "here" / "checkpoint.safetensors").read_bytes()
        self.assertGreater(len(here), 32 << 20, "it would go in one part")
        there = server.objects["out/checkpoint.safetensors"]
        self.assertEqual(hashlib.md5(there).hexdigest(), hashlib.md5(here).hexdigest())
        self.assertEqual(len(met), 2, "one part waited for the other")

        def lose_the_upload(request, reply):
            command, name, query = request
            if command == "POST" and query.startswith("uploadId") and reply["status"] == 200:
                server.objects[name] = there
                reply.update(status=503, body=b"<Error><Code>SlowDown</Code></Error>")

        server.change = lose_the_upload
        ended = self.run_program(program("sparse_linear"), *arguments[:-1], 2, "--checkpoint", "s3://out")
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("the server has forgotten the parts of the upload", ended.err)
        self.assertFalse(
            set(server.uploads) - {"upload/0+"}, "an upload whose number was lost is the server's to clean"
        )

    def test_a_killed_fetch_leaves_nothing_broken(self):
        held = threading.Event()

        def stall(request, reply):
            if request[1].endswith(SHARDS[1]):
                held.wait()

        server = self.serve(change=stall)
        arguments = ["--network", "mlp", "--epochs", 1, "--train", f"{server.url}/set/train.manifest"]
        victim = self.start(program("mnist"), *arguments)
        self.wait_until(lambda: server.count("GET", SHARDS[1]), "the shard is asked for", victim)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self.assertTrue(list(self.cache.glob("*.part")))
        held.set()
        ended = self.run_program(program("mnist"), *arguments)
        self.assertEqual(ended.code, 0, ended)
        self.assertFalse(list(self.cache.glob("*.part")))
        self.assertEqual(len(list(self.cache.glob("*/shard.rec"))), 4)


class Tools(RemoteTest):
    def verify(self, place, **environment):
        return self.run_program(program("rec"), "verify", place, **environment)

    def assert_refused(self, ended, *words):
        self.assert_one_clear_sentence(ended, *words)
        self.assert_no_secret(ended)

    def test_rec_reads_an_object_store(self):
        self.serve_s3()
        ended = self.verify("s3://set/train.manifest")
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("6000 records in 4 files, 0 problems", ended.out)
        ended = self.run_program(program("rec"), "list", "--limit", 1, f"s3://set/{SHARDS[0]}")
        self.assertEqual(ended.code, 0, ended)

    def test_credentials_from_a_profile(self):
        self.serve_s3(token="short-lived")
        del self.environment["AWS_ACCESS_KEY_ID"], self.environment["AWS_SECRET_ACCESS_KEY"]
        (self.folder / ".aws").mkdir()
        (self.folder / ".aws" / "credentials").write_text(
            f"[work]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\naws_session_token = short-lived\n"
        )
        self.assertEqual(self.verify("s3://set/train.manifest", AWS_PROFILE="work").code, 0)
        self.assert_refused(self.verify("s3://set/train.manifest"), "no credentials", "profile 'default'")

    def test_what_the_store_refuses_is_said(self):
        self.serve_s3()
        place = "s3://set/train.manifest"
        wrong = self.verify(place, AWS_SECRET_ACCESS_KEY=SECRET + "x")
        self.assert_refused(wrong, place, "check AWS_SECRET_ACCESS_KEY", "SignatureDoesNotMatch")
        self.assert_refused(self.verify(place, AWS_ACCESS_KEY_ID="unknown"), place, "check AWS_ACCESS_KEY_ID")
        self.assert_refused(self.verify(place, AWS_SESSION_TOKEN="old"), place, "AWS_SESSION_TOKEN")
        self.assert_refused(self.verify("s3://set/nothing.manifest"), "s3://set/nothing.manifest", "no such file",
                            "NoSuchKey")  # fmt: skip
        self.assert_refused(self.verify("s3://set"), "expected s3://BUCKET/KEY")

    def test_a_bucket_that_does_not_exist_is_no_run_without_a_checkpoint(self):
        def refuse(_, reply):
            reply.update(status=404, body=b"<Error><Code>NoSuchBucket</Code></Error>")

        self.serve_s3(change=refuse)
        sets = ["--train", data_folder() / "train.manifest", "--test", data_folder() / "test.manifest"]
        ended = self.run_program(program("mnist"), *sets, "--network", "mlp", "--checkpoint", "s3://wrong/run")
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("there is no such bucket", ended.err)
        self.assertNotIn("epoch 1", ended.text)

    def test_a_checkpoint_that_cannot_be_written_is_refused_before_training(self):
        sets = ["--train", data_folder() / "train.manifest", "--test", data_folder() / "test.manifest"]
        for place, said in (("gs://bucket/run", "is no place that can be read or written"),
                            ("http://127.0.0.1:1/run", "only files of s3:// can be written")):  # fmt: skip
            ended = self.run_program(program("mnist"), *sets, "--network", "mlp", "--checkpoint", place)
            self.assertEqual(ended.code, 2, ended)
            self.assertIn(said, ended.err)
            self.assertNotIn("epoch 1", ended.text)

    def test_a_wrong_clock_is_said(self):
        self.serve_s3(clock=lambda: time.time() + 3600)
        ended = self.verify("s3://set/train.manifest")
        self.assert_refused(ended, "the clock of this host is")
        self.assertRegex(ended.err, r"is 3[56]\d\d s behind the server's")

    def test_a_certificate_is_checked(self):
        certificate, key = self.folder / "certificate.pem", self.folder / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        server = self.serve(certificate=(certificate, key))
        place = f"{server.url}/set/train.manifest"
        self.assert_refused(self.verify(place), place, "TLS failed", "SSL_CERT_FILE")
        self.assertEqual(self.verify(place, SSL_CERT_FILE=certificate).code, 0)

    def test_redirections_are_followed_and_proxies_used(self):
        server = self.serve()

        def redirect(_, reply):
            reply.update(status=302, body=b"", headers={"Location": f"{server.url}/set/train.manifest"})

        signpost = self.serve(change=redirect)
        ended = self.run_program(program("rec"), "list", f"{signpost.url}/elsewhere.manifest")
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("records      6000", ended.out)
        # The host exists in no name service: only a proxy reaches it.
        ended = self.verify("http://data.invalid/set/train.manifest", http_proxy=server.url)
        self.assertEqual(ended.code, 0, ended)

    def test_passwords_of_urls_are_not_shown(self):
        server = self.serve()
        place = f"http://user:{SECRET.replace('/', '')}@{server.host}/set/nothing.manifest"
        ended = self.verify(place)
        self.assert_one_clear_sentence(ended, f"{server.url}/set/nothing.manifest")
        self.assertNotIn(SECRET.replace("/", ""), ended.text)


if __name__ == "__main__":
    unittest.main()
