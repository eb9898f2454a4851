#!/usr/bin/env python3
"""Four public data sets and a CSV file, converted, and trained from local shards, the web and an object store.

    python3 tests/interop/data_sets.py --data DATA build/cpu/bin
    python3 tests/interop/data_sets.py --data DATA --swift /tmp/swift/bin build/cpu/bin

DATA holds the folders mnist, cifar10, a9a and text; a CSV of 10^6 rows is written. With --swift the object store is
Swift of OpenStack, see object_store.py; else it is the server of the tests, which checks signatures too. A training
must end with the same numbers from each place. It prints a row for each data set: the result, and the bytes that were
fetched for the first epochs and for a second run, as shares of the data set. The last check asks how much was fetched
when the first batch was there, with windows of two shards. The program ends with 1 where something does not hold.
"""

import argparse
import gzip
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from object_server import ObjectServer
from object_store import Store, swift_from

MOST_COLD = 1.05  # of the bytes of a data set
KEY, SECRET = "test-key", "test-secret"


class Set:
    """How a data set is converted and trained, and which member of the result is compared."""

    def __init__(self, name, convert, train, member):
        self.name, self.convert, self.train, self.member = name, convert, train, member


def unpacked(path, to):
    with gzip.open(path, "rb") as source, to.open("wb") as target:
        shutil.copyfileobj(source, target)
    return to


def mnist(run, data, out):
    for name, prefix in (("train", "train"), ("test", "t10k")):
        run("im2rec", "--shards", 8, out / name, data / "mnist" / f"{prefix}-images-idx3-ubyte.gz")


def cifar10(run, data, out):
    with tarfile.open(data / "cifar10" / "cifar10-jpg.tar.xz") as tar:
        tar.extractall(out.parent / "jpg", filter="data")
    folders = {path.name: path for path in (out.parent / "jpg").rglob("*") if path.name in ("train", "test")}
    for name, folder in folders.items():
        run("im2rec", "--shards", 8, out / name, folder)


def a9a(run, data, out):
    for name in ("train", "test"):
        text = unpacked(data / "a9a" / f"{name}.libsvm.gz", out.parent / f"{name}.libsvm")
        run("to_rec", "--shards", 8, "--features", 123, out / name, text)


def text(run, data, out):
    whole = unpacked(data / "text" / "tinyshakespeare.txt.gz", out.parent / "shakespeare.txt")
    run("to_rec", "--shards", 8, "--window", 65, "--split", "train=0.9,test=0.1", out / "text", whole)
    for name in ("train", "test"):
        shutil.copy(out / f"text-{name}.manifest", out / f"{name}.manifest")


def csv(run, data, out):
    numbers, table = random.Random(11), out.parent / "table.csv"
    with table.open("w") as file:
        file.write("a,b,c,colour,kind\n")
        for _ in range(1_000_000):
            a, b, c = numbers.random(), numbers.random(), numbers.random()
            colour = numbers.choice(("red", "green", "blue"))
            inside = (a - 0.5) ** 2 + (b - 0.5) ** 2 < (0.1 if colour == "red" else 0.2)
            file.write(f"{a:.4f},{b:.4f},{c:.4f},{colour},{'in' if inside else 'out'}\n")
    run("to_rec", "--shards", 8, "--label", "kind", "--split", "train=0.95,test=0.05", out / "table", table)
    for name in ("train", "test"):
        shutil.copy(out / f"table-{name}.manifest", out / f"{name}.manifest")


SETS = (
    Set("MNIST", mnist, ("mnist", "--epochs", 2), "test_accuracy"),
    Set("CIFAR-10", cifar10, ("image_classification", "--network", "lenet", "--flip", "--epochs", 2), "test_accuracy"),
    Set("a9a", a9a, ("mlp", "--epochs", 3), "test_accuracy"),
    Set("Tiny Shakespeare", text, ("char_lm", "--network", "lstm", "--layers", 1, "--epochs", 1), "validation_loss"),
    Set("CSV of 10^6 rows", csv, ("mlp", "--epochs", 2, "--batch_size", 256), "test_accuracy"),
)


class Checks:
    def __init__(self, options, folder):
        self.programs, self.data, self.folder = options.programs.resolve(), options.data.resolve(), folder
        self.failed, self.first = 0, None
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        self.environment.update(HOME=str(folder), no_proxy="127.0.0.1")

    def run(self, name, *arguments, **environment):
        ended = subprocess.run(
            [str(self.programs / name), *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
            env={**self.environment, **environment}, check=False,
        )  # fmt: skip
        if ended.returncode != 0:
            raise SystemExit(f"{name} ended with {ended.returncode}: {ended.stdout}{ended.stderr}")
        return ended.stdout

    def train(self, one, place, **environment):
        name, *arguments = one.train
        output = self.run(name, *arguments, "--seed", 3, "--train", f"{place}/train.manifest", "--test",
                          f"{place}/test.manifest", **environment)  # fmt: skip
        return json.loads(output.splitlines()[-1])[one.member]

    def expect(self, holds, what):
        if not holds:
            self.failed += 1
            print(f"FAILED  {what}", flush=True)

    def all(self, names, swift):
        print("| data set | records | local | web | object store | fetched cold | warm | seconds |")
        print("|---|---|---|---|---|---|---|---|")
        store = Store(swift) if swift else None
        for number, one in enumerate(SETS):
            if names and one.name not in names:
                continue
            out = self.folder / str(number) / "set"
            out.mkdir(parents=True)
            one.convert(self.run, self.data, out)
            self.compare(one, out, store, swift)
            if number == 0:
                self.first = out
        if self.first:
            self.first_batch(self.first)
        return self.failed

    def compare(self, one, out, store, swift):
        start = time.monotonic()
        here = self.train(one, out)
        web = ObjectServer(credentials=None)
        web.add_folder("set", out)
        size = sum(len(data) for data in web.objects.values())
        cache = {"PACELINE_CACHE": str(out.parent / "web")}
        from_web = self.train(one, f"{web.url}/set", **cache)
        cold, before, shards = web.bytes / size, web.bytes, web.count("GET", ".rec")
        again = self.train(one, f"{web.url}/set", **cache)
        warm, shards = (web.bytes - before) / size, web.count("GET", ".rec") - shards
        web.close()
        cache = {"PACELINE_CACHE": str(out.parent / "s3")}
        if store:
            bucket = f"paceline-{os.getpid()}-{out.parent.name}"
            store.request("PUT", f"/{bucket}")
            for path in out.iterdir():
                store.request("PUT", f"/{bucket}/{path.name}", path.read_bytes())
            from_store = self.train(one, f"s3://{bucket}", **cache, **swift)
        else:
            server = ObjectServer(credentials={KEY: SECRET})
            server.add_folder("bucket", out)
            from_store = self.train(one, "s3://bucket", **cache, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET,
                                    AWS_ENDPOINT_URL=server.url)  # fmt: skip
            self.expect(server.bytes <= MOST_COLD * size, f"{one.name}: {server.bytes} bytes of {size} from the store")
            server.close()
        records = self.run("rec", "list", out / "train.manifest").split("records")[1].split()[0]
        print(f"| {one.name} | {records} | {here:.4f} | {from_web:.4f} | {from_store:.4f} | {cold:.3f} | {warm:.4f} | "
              f"{time.monotonic() - start:.0f} |", flush=True)  # fmt: skip
        self.expect(here == from_web == again == from_store, f"{one.name}: other numbers from other places")
        self.expect(cold <= MOST_COLD, f"{one.name}: {cold:.3f} of the data set were fetched")
        self.expect(shards == 0, f"{one.name}: {shards} shards were fetched again")

    def first_batch(self, out):
        """A slow server shows what is fetched before the first step is printed.

        A batch needs the shards of a window.
        """
        count, seen = len(list(out.glob("train-*.rec"))), threading.Event()

        def slow(request, reply):
            if request[1].endswith(".rec") and not seen.is_set():
                time.sleep(0.5)

        server = ObjectServer(change=slow)
        server.add_folder("set", out)
        process = subprocess.Popen(
            [str(self.programs / "mnist"), "--network", "mlp", "--epochs", "1", "--log_every", "1", "--window", "2",
             "--train", f"{server.url}/set/train.manifest"],
            cwd=self.folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            env={**self.environment, "PACELINE_CACHE": str(self.folder / "first")},
        )  # fmt: skip
        for line in process.stderr:
            if " step " in line:
                break
        shards = sum(1 for method, path, _ in server.requests if method == "GET" and path.endswith(".rec"))
        seen.set()
        process.kill()
        process.wait()
        server.close()
        print(f"first batch: {shards} of {count} shards were asked for", flush=True)
        self.expect(shards <= 2 + 2, "the first batch came after more than two shards and those that are read ahead")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with mnist, cifar10, a9a and text")
    parser.add_argument("--sets", nargs="+", metavar="NAME", choices=[one.name for one in SETS], help="only these")
    parser.add_argument("--swift", help="folder with swift-proxy-server and the others, which are started")
    parser.add_argument("programs", type=pathlib.Path, help="folder with mnist, to_rec and the others")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="data-sets-") as name:
        folder = pathlib.Path(name)
        with swift_from(options.swift, folder / "swift") as swift:
            failed = Checks(options, folder).all(options.sets, swift)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
