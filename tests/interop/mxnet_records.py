#!/usr/bin/env python3
"""Record files between MXNet and Paceline, in both directions. This is no test of the suites, as it needs MXNet:

    python3.11 -m venv /tmp/mxnet && /tmp/mxnet/bin/pip install mxnet==1.9.1 'numpy<1.24' 'opencv-python-headless<4.9'
    /tmp/mxnet/bin/python tests/interop/mxnet_records.py build/cpu/bin

MXNet reads what im2rec and rec write. Paceline trains on what each of MXNet's functions that pack writes, after
`rec index`. The program prints a line for each check, and ends with 1 if one failed.
"""

import pathlib
import random
import re
import subprocess
import sys
import tempfile

import cv2
import mxnet as mx
import numpy as np
from mxnet import recordio

COUNT = 24
SIZE = 16
MAGIC = b"\x0a\x23\xd7\xce"


class Checks:
    def __init__(self, programs, folder):
        self.programs, self.folder, self.failed = pathlib.Path(programs).resolve(), pathlib.Path(folder), 0

    def run(self, name, *arguments):
        command = [str(self.programs / name), *map(str, arguments)]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise AssertionError(f"{name} ended with {ended.returncode}: {ended.stderr}")
        return ended.stdout

    def check(self, what, body):
        try:
            body()
            print(f"ok      {what}")
        except Exception as error:
            self.failed += 1
            print(f"FAILED  {what}: {error}")

    def equal(self, found, expected):
        if found != expected:
            raise AssertionError(f"{found} instead of {expected}")


def pictures(channels):
    """Noise, so that every pixel counts."""
    shape = (SIZE, SIZE, 3) if channels == 3 else (SIZE, SIZE)
    return np.random.default_rng(5).integers(0, 256, (COUNT, *shape), dtype=np.uint8)


def read_by_iterator(path, channels, labels=1, **options):
    """Labels and pixels as ImageRecordIter gives them, in the order of the file."""
    data = mx.io.ImageRecordIter(
        path_imgrec=str(path), data_shape=(channels, SIZE, SIZE), batch_size=1, label_width=labels, round_batch=False,
        **options,
    )  # fmt: skip
    found = [(batch.label[0].asnumpy().ravel().tolist(), batch.data[0].asnumpy()[0]) for batch in data]
    return [label for label, _ in found], np.array([pixels for _, pixels in found])


class OursByMxnet(Checks):
    """What im2rec and rec write, read by MXNet."""

    def idx_set(self):
        def write(name, kind, shape, values):
            head = bytes([0, 0, 8, len(shape)]) + b"".join(int(n).to_bytes(4, "big") for n in shape)
            (self.folder / f"{name}-{kind}-ubyte").write_bytes(head + bytes(values))

        images = pictures(1)
        write("train", "images-idx3", images.shape, images.tobytes())
        write("train", "labels-idx1", (COUNT,), [i % 10 for i in range(COUNT)])
        self.run("im2rec", "--noshuffle", "idx", "train-images-idx3-ubyte")
        labels, pixels = read_by_iterator(self.folder / "idx-00000-of-00001.rec", 1)
        self.equal(labels, [[i % 10] for i in range(COUNT)])
        self.equal(bool((pixels[:, 0] == images).all()), True)

    def folder_set(self, extension, channels):
        images = pictures(channels)
        name = f"{extension}{channels}"
        for i, image in enumerate(images):
            place = self.folder / name / f"class{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(place / f"{i:03}.{extension}"), image)
        self.run("im2rec", "--shards", 2, f"set-{name}", name)
        labels = []
        for shard in sorted(self.folder.glob(f"set-{name}-*.rec")):
            found, pixels = read_by_iterator(shard, 3, path_imgidx=str(shard.with_suffix(".idx")))
            labels += [int(label) for (label,) in found]
            keyed = recordio.MXIndexedRecordIO(str(shard.with_suffix(".idx")), str(shard), "r")
            for place, key in enumerate(keyed.keys):
                header, decoded = recordio.unpack_img(keyed.read_idx(key), iscolor=1)
                self.equal(header.id, key)
                self.equal(bool((pixels[place] == decoded[:, :, ::-1].transpose(2, 0, 1)).all()), True)
        self.equal(sorted(labels), [0] * (COUNT // 2) + [1] * (COUNT // 2))

    def several_labels(self):
        cv2.imwrite(str(self.folder / "one.png"), pictures(3)[0])
        lines = [f"{i}\t{i}\t{i + 0.5}\tone.png" for i in range(4)]
        (self.folder / "two.lst").write_text("\n".join(lines) + "\n")
        self.run("im2rec", "--noshuffle", "two", "two.lst")
        labels, _ = read_by_iterator(self.folder / "two-00000-of-00001.rec", 3, labels=2)
        self.equal(labels, [[i, i + 0.5] for i in range(4)])

    def magic_numbers(self):
        """Records full of magic numbers, copied by rec."""
        expected = write_bytes(self.folder / "magic.rec")
        self.run("rec", "merge", "copied", "magic.rec")
        reader = recordio.MXRecordIO(str(self.folder / "copied-00000-of-00001.rec"), "r")
        self.equal([reader.read() for _ in expected], expected)
        self.equal(reader.read(), None)

    def all(self):
        self.check("MXNet's iterator reads IDX images, as im2rec packs them by default", self.idx_set)
        for extension, channels in (("png", 3), ("jpg", 3), ("png", 1)):
            self.check(f"MXNet reads a folder of {extension} of {channels} channels, by iterator and by index",
                       lambda e=extension, c=channels: self.folder_set(e, c))  # fmt: skip
        self.check("MXNet reads several labels", self.several_labels)
        self.check("MXNet reads records of several parts", self.magic_numbers)


def write_bytes(path):
    draw = random.Random(3)
    records = [b"".join(draw.choice([MAGIC, b"a", b"bcd", b""]) for _ in range(draw.randrange(9))) for _ in range(50)]
    writer = recordio.MXRecordIO(str(path), "w")
    for record in records:
        writer.write(record)
    writer.close()
    return records


class MxnetsByUs(Checks):
    """What MXNet packs: indexed, verified, trained on."""

    def train(self, manifest, *flags):
        self.run("image_classification", "--network", "mlp", "--classes", 10, "--epochs", 1, "--batch_size", 8,
                 "--train", manifest, *flags)  # fmt: skip

    def index(self, name, *words):
        before = (self.folder / f"{name}.rec").read_bytes()
        text = self.run("rec", "index", f"{name}.rec")
        self.equal((self.folder / f"{name}.rec").read_bytes() == before, True)
        for word in words:
            if not re.search(word, text):
                raise AssertionError(f"'{word}' is not in: {text}")
        self.equal("0 problems" in self.run("rec", "verify", f"{name}.manifest"), True)

    def packed_images(self, encoding, indexed, channels):
        name = f"pack_img-{encoding[1:]}-{indexed}-{channels}"
        path = str(self.folder / f"{name}.rec")
        index = path[:-3] + "idx"
        writer = recordio.MXIndexedRecordIO(index, path, "w") if indexed else recordio.MXRecordIO(path, "w")
        for i, image in enumerate(pictures(channels)):
            record = recordio.pack_img(recordio.IRHeader(0, float(i % 10), i, 0), image, img_fmt=encoding)
            writer.write_idx(7 * i, record) if indexed else writer.write(record)
        writer.close()
        self.index(name, f"{COUNT} records", f"image +{SIZE} x {SIZE} x {channels}", "class numbers")
        self.train(f"{name}.manifest")

    def mixed_images(self):
        writer = recordio.MXRecordIO(str(self.folder / "mixed.rec"), "w")
        for channels in (1, 3):
            for i, image in enumerate(pictures(channels)):
                writer.write(recordio.pack_img(recordio.IRHeader(0, i % 10, i, 0), image, img_fmt=".png"))
        writer.close()
        self.index("mixed", f"image +{SIZE} x {SIZE} x 0")
        self.train("mixed.manifest")

    def labels(self, name, label_of, *words):
        writer = recordio.MXIndexedRecordIO(str(self.folder / f"{name}.idx"), str(self.folder / f"{name}.rec"), "w")
        for i, image in enumerate(pictures(3)):
            writer.write_idx(i, recordio.pack_img(recordio.IRHeader(0, label_of(i), i, 0), image))
        writer.close()
        self.index(name, *words)

    def subset(self):
        self.labels("some", lambda i: i % 10, f"{COUNT} records")
        for made in ("some.manifest", "some.crc"):
            (self.folder / made).unlink()
        lines = (self.folder / "some.idx").read_text().splitlines()
        (self.folder / "some.idx").write_text("\n".join(lines[::3]) + "\n")
        self.index("some", f"{len(lines[::3])} records")
        self.train("some.manifest")

    def tool(self):
        place = self.folder / "files"
        for i, image in enumerate(pictures(3)):
            (place / f"c{i % 3}").mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(place / f"c{i % 3}" / f"{i}.jpg"), image)
        script = pathlib.Path(mx.__file__).parent / "tools" / "im2rec.py"
        for flags in (["--list", "--recursive"], ["--pack-label"]):
            subprocess.run([sys.executable, str(script), *flags, str(self.folder / "tool"), str(place)], check=True,
                           capture_output=True)  # fmt: skip
        self.index("tool", f"{COUNT} records", "class numbers")
        self.train("tool.manifest")

    def bytes_alone(self):
        expected = write_bytes(self.folder / "bytes.rec")
        self.index("bytes", "payload +bytes", f"{len(expected)} records")

    def all(self):
        for encoding in (".jpg", ".png"):
            for indexed in (False, True):
                for channels in (1, 3):
                    how = f"{encoding}, {channels} channels, {'MXIndexedRecordIO' if indexed else 'MXRecordIO'}"
                    self.check(f"we train on pack_img: {how}",
                               lambda e=encoding, i=indexed, c=channels: self.packed_images(e, i, c))  # fmt: skip
        self.check("we train on grey and coloured images together", self.mixed_images)
        self.check("we index several labels", lambda: self.labels("several", lambda i: [i, 0.5], "2 for each record"))
        self.check("we index labels for detection",
                   lambda: self.labels("boxes", lambda i: [2, 5] + [0, 0.1, 0.1, 0.5, 0.5] * (i % 3 + 1),
                                       "at most 17 for each record"))  # fmt: skip
        self.check("we train on an index of some records", self.subset)
        self.check("we train on what MXNet's im2rec.py writes", self.tool)
        self.check("we index records of several parts, that are no images", self.bytes_alone)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    failed = 0
    for kind in (OursByMxnet, MxnetsByUs):
        with tempfile.TemporaryDirectory() as folder:
            checks = kind(sys.argv[1], folder)
            checks.all()
            failed += checks.failed
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
