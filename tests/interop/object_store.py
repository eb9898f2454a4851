#!/usr/bin/env python3
"""Data sets and checkpoints in a real object store. This is no test of the suites, as it needs one. With Swift of
OpenStack, which it starts on this machine:

    python3 -m venv /tmp/swift && /tmp/swift/bin/pip install swift
    python3 tests/interop/object_store.py --swift /tmp/swift/bin build/cpu/bin

With a store that runs, whose AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set:

    python3 tests/interop/object_store.py build/cpu/bin

The program makes a bucket and leaves it there. It prints a line for each check, and ends with 1 if one failed.
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from object_server import expected_signature

KINDS = ("account", "container", "object")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Swift:
    """One server of each kind with one device, in processes of this program."""

    def __init__(self, programs, folder):
        self.programs, self.folder, self.processes = pathlib.Path(programs), folder, []
        self.environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}

    def start(self):
        (self.folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = test\n")
        ports = {kind: free_port() for kind in (*KINDS, "proxy")}
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        common = f"bind_ip = 127.0.0.1\nuser = {user}\nswift_dir = {self.folder}\nworkers = 0\nlog_level = WARNING\n"
        for kind in KINDS:
            (self.folder / "devices" / kind / "d1").mkdir(parents=True)
            self.ring(kind, ports[kind])
            (self.folder / f"{kind}-server.conf").write_text(
                f"[DEFAULT]\n{common}bind_port = {ports[kind]}\ndevices = {self.folder}/devices/{kind}\n"
                f"mount_check = false\n[pipeline:main]\npipeline = {kind}-server\n"
                f"[app:{kind}-server]\nuse = egg:swift#{kind}\n"
            )
        (self.folder / "proxy-server.conf").write_text(
            f"[DEFAULT]\n{common}bind_port = {ports['proxy']}\n[pipeline:main]\n"
            "pipeline = catch_errors gatekeeper listing_formats s3api tempauth slo proxy-server\n"
            "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\nallow_account_management = true\n"
            "[filter:tempauth]\nuse = egg:swift#tempauth\nuser_test_tester = testing .admin\n"
            + "".join(
                f"[filter:{name}]\nuse = egg:swift#{name}\n"
                for name in ("catch_errors", "gatekeeper", "listing_formats", "s3api", "slo")
            )
        )
        for kind in (*KINDS, "proxy"):
            log = (self.folder / f"{kind}.log").open("wb")
            command = [self.programs / f"swift-{kind}-server", self.folder / f"{kind}-server.conf", "--verbose"]
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))
        for port in ports.values():
            self.wait_for(port)
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['proxy']}",
            "AWS_ACCESS_KEY_ID": "test:tester",
            "AWS_SECRET_ACCESS_KEY": "testing",
        }

    def ring(self, kind, port):
        for arguments in (["create", "4", "1", "1"], ["add", f"r1z1-127.0.0.1:{port}/d1", "1"], ["rebalance"]):
            subprocess.run(
                [self.programs / "swift-ring-builder", self.folder / f"{kind}.builder", *arguments],
                check=True, capture_output=True, env=self.environment,
            )  # fmt: skip

    def wait_for(self, port):
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            for process in self.processes:
                if process.poll() is not None:
                    logs = "\n".join(path.read_text() for path in self.folder.glob("*.log"))
                    raise SystemExit(f"Swift has ended:\n{logs}")
            time.sleep(0.1)
        raise SystemExit("Swift does not listen")

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()


@contextlib.contextmanager
def swift_from(programs, folder):
    """The environment with which Swift is reached while it runs; nothing where `programs` is none."""
    if not programs:
        yield {}
        return
    folder.mkdir(exist_ok=True)
    swift = Swift(programs, folder)
    try:
        yield swift.start()
    finally:
        swift.stop()


class Store:
    """Writes to the store with a signature of its own."""

    def __init__(self, environment):
        self.url = urllib.parse.urlsplit(environment["AWS_ENDPOINT_URL"])
        self.key, self.secret = environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]
        self.region = environment.get("AWS_REGION", "us-east-1")

    def request(self, method, path, body=b""):
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(body).hexdigest()
        headers = {"host": self.url.netloc, "x-amz-content-sha256": digest, "x-amz-date": moment}
        names = sorted(headers)
        signature = expected_signature(method, path, "", headers, names, digest, scope, moment, self.secret)
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.key}/{scope},SignedHeaders={';'.join(names)},Signature={signature}"
        )
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.url.netloc, timeout=60)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise AssertionError(f"{method} {path}: {answer.status} {data[:300]!r}")
        return data


class Checks:
    def __init__(self, programs, folder, environment):
        self.programs, self.folder, self.failed = pathlib.Path(programs).resolve(), folder, 0
        self.environment = {**environment, "PACELINE_CACHE": str(folder / "cache"), "PACELINE_REMOTE_ATTEMPTS": "3"}
        self.store = Store(environment)
        self.bucket = f"paceline-{os.getpid()}-{int(time.time())}"

    def run(self, name, *arguments, fails=False, **environment):
        ended = subprocess.run(
            [str(self.programs / name), *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
            env={**self.environment, **environment}, check=False,
        )  # fmt: skip
        if (ended.returncode != 0) != fails:
            raise AssertionError(f"{name} ended with {ended.returncode}: {ended.stdout}{ended.stderr}")
        return ended.stderr if fails else ended.stdout

    def check(self, what, body):
        try:
            body()
            print(f"ok      {what}", flush=True)
        except Exception as error:
            self.failed += 1
            print(f"FAILED  {what}: {error}", flush=True)

    def expect(self, holds, what):
        if not holds:
            raise AssertionError(what)

    def upload(self):
        self.run("draw_digits", "--train", 2000, "--test", 500, "--seed", 7, "--out", "idx")
        for name, source in (("train", "train"), ("test", "t10k")):
            self.run("im2rec", "--shards", 2, f"set/{name}", f"idx/{source}-images-idx3-ubyte.gz")
        self.store.request("PUT", f"/{self.bucket}")
        for path in (self.folder / "set").iterdir():
            self.store.request("PUT", f"/{self.bucket}/a%20set/{path.name}", path.read_bytes())

    def train(self, place, *arguments):
        output = self.run("mnist", "--network", "mlp", "--epochs", 1, "--seed", 3, "--train", f"{place}/train.manifest",
                          "--test", f"{place}/test.manifest", *arguments)  # fmt: skip
        return json.loads(output.splitlines()[-1])

    def all(self):
        there, out = f"s3://{self.bucket}/a set", f"s3://{self.bucket}/run + 1"
        self.check("a data set is uploaded", self.upload)
        self.check("rec verify", lambda: self.run("rec", "verify", f"{there}/train.manifest"))

        def train():
            here, from_there = self.train("set"), self.train(there, "--checkpoint", out)
            self.expect(here["test_accuracy"] == from_there["test_accuracy"], f"{here} {from_there}")
            again = self.run("mnist", "--network", "mlp", "--evaluate", out, "--test", f"{there}/test.manifest")
            self.expect(json.loads(again.splitlines()[-1])["test_accuracy"] == here["test_accuracy"], again)

        self.check("training, a checkpoint, and its evaluation", train)

        def parts():
            rows = "".join(
                f"{row % 2} " + " ".join(f"{number}:1" for number in range(row + 1, 1_500_000, 64)) + "\n"
                for row in range(64)
            )
            (self.folder / "rows.libsvm").write_text(rows)
            arguments = ["--train", "rows.libsvm", "--batch_size", 64, "--epochs", 1, "--checkpoint"]
            for place in (f"s3://{self.bucket}/large", "large"):
                self.run("sparse_linear", *arguments, place)
            name = "large/checkpoint.safetensors"
            self.expect(self.store.request("GET", f"/{self.bucket}/{name}") == (self.folder / name).read_bytes(),
                        "the two checkpoints differ")  # fmt: skip

        self.check("a checkpoint in parts", parts)

        def refused():
            place = f"{there}/train.manifest"
            said = self.run("rec", "verify", place, fails=True, AWS_SECRET_ACCESS_KEY="wrong-secret")
            self.expect("check AWS_SECRET_ACCESS_KEY" in said and "wrong-secret" not in said, said)
            said = self.run("rec", "verify", place, fails=True, AWS_ACCESS_KEY_ID="nobody:here")
            self.expect("nobody" not in said and "cannot read" in said, said)
            said = self.run("rec", "verify", f"{there}/none.manifest", fails=True)
            self.expect("there is no such file" in said and "NoSuchKey" in said, said)
            said = self.run("rec", "verify", f"s3://{self.bucket}-none/x.manifest", fails=True)
            self.expect("there is no such bucket" in said, said)

        self.check("refusals", refused)
        return self.failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swift", help="folder with swift-proxy-server and the others, which are started")
    parser.add_argument("programs", help="folder with mnist, rec and the others")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="object-store-") as name:
        folder = pathlib.Path(name)
        with swift_from(options.swift, folder) as swift:
            failed = Checks(options.programs, folder, {**os.environ, **swift}).all()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
