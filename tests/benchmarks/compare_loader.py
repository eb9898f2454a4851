#!/usr/bin/env python3
"""Compares the loader with its peers: all read the same files in turns, with two threads. Prints the medians, their
ratios, and the lower bounds of the ratios.

    python3.11 -m venv peers
    peers/bin/pip install mxnet==1.9.1 numpy==1.23.5 pillow torch torchvision
    git clone https://github.com/dmlc/dmlc-core
    peers/bin/python tests/benchmarks/compare_loader.py --dmlc dmlc-core [--bin build/cpu/bin] [--turns 7] [PART ...]

Parts, and the peers of each:
  500x375, 256x256   JPEGs of this size, shuffled: decoded, cropped at random and resized to 224 x 224, flipped,
                     normalised. MXNet's ImageRecordIter, torchvision's DataLoader, FFCV; TurboJPEG alone, which
                     decodes them whole: parts of these sizes never shrink by two, so nobody decodes them smaller
  32x32              JPEGs of this size, shuffled, decoded. TurboJPEG alone
  records            records of 1 KB with checksums, in order and shuffled. dmlc-core's InputSplit, which has none
  to_rec             files packed into records. What copies the files into two files and makes those durable; TurboJPEG
                     alone, where to_rec decodes the images

The pictures are made of CIFAR-10's, which --data holds: larger, with grain. FFCV (pip install --no-build-isolation ffcv
numba opencv-python-headless; it needs the development packages of OpenCV and TurboJPEG) reads them as it encodes them
itself, with the same quality. MXNet decodes with one thread less than there are cores: it gets a second iterator.
A peer that is missing is named and left out. --work keeps the files for other runs.
"""

import argparse
import importlib.util
import itertools
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

from turns import in_turns, last_json, lower_bound, output_of, ratio

HERE = pathlib.Path(__file__).resolve().parent
THREADS, BATCH, SIDE, QUALITY = 2, 64, 224, 90
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STEPS = ";".join((
    f"random_resized_crop(size={SIDE})", "flip",
    f"normalize(mean={':'.join(map(str, MEAN))},deviation={':'.join(map(str, DEVIATION))})",
))  # fmt: skip
DMLC_SOURCES = "io recordio io/filesys io/indexed_recordio_split io/input_split_base io/line_split io/local_filesys " \
               "io/recordio_split"  # fmt: skip


def pictures(archive, count):
    """CIFAR-10's pictures, as (name, bytes)."""
    with tarfile.open(archive) as tar:
        files = (member for member in tar if member.isfile() and member.name.endswith(".jpg"))
        for member in itertools.islice(files, count):
            yield member.name.replace("/", "-"), tar.extractfile(member).read()


def make_jpegs(folder, archive, count, size):
    """`folder` with `count` JPEGs in ten classes; of CIFAR-10's own size they are its files."""
    if folder.exists():
        return
    import io

    import numpy
    from PIL import Image

    random = numpy.random.default_rng(1)
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for number, (name, data) in enumerate(pictures(archive, count)):
        path = unfinished / str(number % 10) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if size == (32, 32):
            path.write_bytes(data)
            continue
        large = numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize(size, Image.BICUBIC), numpy.float32)
        grain = random.standard_normal(large.shape[:2], numpy.float32)[..., None] * 6
        Image.fromarray((large + grain).clip(0, 255).astype(numpy.uint8)).save(path, quality=QUALITY)
    unfinished.rename(folder)


def whole_epochs(seconds, epoch):
    """Examples per second of epoch(), which returns how many it read; the first one is not counted."""
    epoch()
    began, done = time.perf_counter(), 0
    while not done or time.perf_counter() - began < seconds:
        done += epoch()
    return done / (time.perf_counter() - began)


def mxnet(prefix, seconds):
    from mxnet.io import ImageRecordIter

    numbers = {f"mean_{c}": 255 * value for c, value in zip("rgb", MEAN, strict=True)}
    numbers |= {f"std_{c}": 255 * value for c, value in zip("rgb", DEVIATION, strict=True)}
    parts = [
        ImageRecordIter(
            path_imgrec=f"{prefix}-00000-of-00001.rec", data_shape=(3, SIDE, SIDE), batch_size=BATCH, shuffle=True,
            random_resized_crop=True, min_random_area=0.08, max_random_area=1, min_aspect_ratio=3 / 4,
            max_aspect_ratio=4 / 3, rand_mirror=True, preprocess_threads=1, num_parts=THREADS, part_index=part,
            **numbers,
        )
        for part in range(THREADS)
    ]  # fmt: skip

    def epoch():
        done, left = 0, list(parts)
        while left:
            for part in list(left):
                try:
                    batch = part.next()
                except StopIteration:
                    part.reset()
                    left.remove(part)
                    continue
                batch.data[0].wait_to_read()
                done += BATCH - batch.pad
        return done

    return whole_epochs(seconds, epoch)


def torchvision(prefix, seconds):
    import torch
    from torchvision.io import decode_jpeg, read_file
    from torchvision.transforms import v2

    steps = v2.Compose([
        v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, DEVIATION),
    ])  # fmt: skip

    class Files(torch.utils.data.Dataset):
        paths = sorted(map(str, pathlib.Path(prefix).glob("*/*.jpg")))

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, place):
            path = self.paths[place]
            return steps(decode_jpeg(read_file(path))), int(path.split("/")[-2])

    loader = torch.utils.data.DataLoader(Files(), BATCH, shuffle=True, num_workers=THREADS, persistent_workers=True)
    return whole_epochs(seconds, lambda: sum(len(labels) for _, labels in loader))


def ffcv(prefix, seconds):
    import numpy
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class Files:
        paths = sorted(map(str, pathlib.Path(prefix).glob("*/*.jpg")))

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, place):
            path = self.paths[place]
            return Image.open(path).convert("RGB"), int(path.split("/")[-2])

    beton = pathlib.Path(f"{prefix}.beton")
    if not beton.exists():
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=QUALITY), "label": IntField()}
        DatasetWriter(str(beton), fields, num_workers=1).from_indexed_dataset(Files())
    mean, deviation = (255 * numpy.array(numbers) for numbers in (MEAN, DEVIATION))
    image = [
        RandomResizedCropRGBImageDecoder((SIDE, SIDE)), RandomHorizontalFlip(),
        NormalizeImage(mean, deviation, numpy.float32), ToTensor(), ToTorchImage(),
    ]  # fmt: skip
    loader = Loader(
        str(beton), batch_size=BATCH, num_workers=THREADS, order=OrderOption.RANDOM, os_cache=True, drop_last=False,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor()]},
    )  # fmt: skip
    return whole_epochs(seconds, lambda: sum(len(images) for images, _ in loader))


PEERS = {"mxnet": mxnet, "torchvision": torchvision, "ffcv": ffcv}  # each runs in a process of its own


def find_dmlc(folder, work):
    """The compiled dmlc_records, or None and why not."""
    if not folder:
        return None, "dmlc-core: --dmlc names no folder of its sources"
    source, program = pathlib.Path(folder), work / "dmlc_records"
    files = [str(source / f"src/{name}.cc") for name in DMLC_SOURCES.split()]
    flags = ["-std=c++17", "-O3", "-DNDEBUG", *(f"-DDMLC_USE_{name}=0" for name in ("HDFS", "S3", "AZURE"))]
    command = ["c++", *flags, "-I", str(source / "include"), str(HERE / "dmlc_records.cc"), *files, "-pthread"]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    return (str(program), "") if done.returncode == 0 else (None, f"dmlc_records.cc does not compile:\n{done.stderr}")


class Comparison:
    def __init__(self, arguments, work):
        self.arguments, self.work = arguments, work
        self.peers = [name for name in PEERS if importlib.util.find_spec(name)]
        for name in PEERS.keys() - set(self.peers):
            print(f"{name} is not installed: left out", file=sys.stderr)

    def program(self, what, path, *flags):
        """A measurement of loader_benchmark; a rate."""
        command = [f"{self.arguments.bin}/loader_benchmark", f"--threads={THREADS}"]
        command += [f"--seconds={self.arguments.seconds}", *flags, what, path]
        return last_json(command)["rate"]

    def to_rec(self, prefix, folder, *flags):
        """Files per second."""
        for path in prefix.parent.glob(f"{prefix.name}[-.]*"):
            path.unlink()
        began = time.perf_counter()
        output_of([f"{self.arguments.bin}/to_rec", f"--threads={THREADS}", *flags, prefix, folder])
        return sum(1 for _ in folder.glob("*/*.jpg")) / (time.perf_counter() - began)

    def images(self, count, size):
        """A folder of JPEGs, which is also the prefix of a data set of them."""
        folder = self.work / f"{'x'.join(map(str, size))}-{count}"
        make_jpegs(folder, self.arguments.data / "cifar10/cifar10-jpg.tar.xz", count, size)
        if not folder.with_suffix(".manifest").exists():
            self.to_rec(folder, folder, "--pass_through")
        return folder

    def report(self, part, programs, pairs):
        """Runs in turns; `pairs` name what is compared."""
        runs = in_turns(programs, self.arguments.turns, lambda rate: f"{part}: {rate:,.0f}/s")
        for mine, theirs in pairs:
            found = {
                "part": part, **{name: round(statistics.median(runs[name])) for name in (mine, theirs)},
                "ratio": round(ratio(runs[mine], runs[theirs]), 3),
                "at_least": round(lower_bound([(runs[mine], runs[theirs])]), 3),
            }  # fmt: skip
            print(json.dumps(found), flush=True)

    def peer(self, name, folder):
        return last_json([sys.executable, __file__, "--peer", name, "--seconds", self.arguments.seconds, folder])[
            "rate"
        ]

    def augmented(self, part, size):
        folder = self.images(self.arguments.images, size)
        manifest = f"{folder}.manifest"
        programs = {
            "ours": lambda: self.program("load", manifest, f"--steps={STEPS}", f"--batch={BATCH}"),
            "turbojpeg": lambda: self.program("turbojpeg", manifest),
        }
        programs |= {name: lambda name=name: self.peer(name, folder) for name in self.peers}
        self.report(part, programs, [("ours", name) for name in programs if name != "ours"])

    def small(self, part):
        manifest = f"{self.images(20000, (32, 32))}.manifest"
        programs = {name: lambda what=what: self.program(what, manifest) for name, what in
                    (("ours", "load"), ("turbojpeg", "turbojpeg"))}  # fmt: skip
        self.report(part, programs, [("ours", "turbojpeg")])

    def records(self, part):
        prefix = self.work / "records"
        if not prefix.with_suffix(".manifest").exists():
            output_of([f"{self.arguments.bin}/loader_benchmark", "--count=500000", "write", prefix])
        whats = ("records", "shuffled", "load_bytes", "load_bytes_shuffled")
        programs = {what: lambda what=what: self.program(what, f"{prefix}.manifest", "--batch=256") for what in whats}
        dmlc, why = find_dmlc(self.arguments.dmlc, self.work)
        if not dmlc:
            print(f"{why}: left out", file=sys.stderr)
            return
        file = f"{prefix}-00000-of-00001"
        command = [dmlc, f"{file}.rec", f"{file}.idx", THREADS, self.arguments.seconds]
        for how in ("ahead", "parts", "shuffled"):
            programs[f"dmlc {how}"] = lambda how=how: last_json([*command, how])["rate"]
            programs[f"dmlc {how}, batches"] = lambda how=how: last_json([*command, how, 256])["rate"]
        ordered = [("records", "dmlc ahead"), ("records", "dmlc parts")]
        ordered += [("load_bytes", "dmlc ahead, batches"), ("load_bytes", "dmlc parts, batches")]
        shuffled = [("shuffled", "dmlc shuffled"), ("load_bytes_shuffled", "dmlc shuffled, batches")]
        self.report(part, programs, ordered + shuffled)

    def packing(self, part):
        folder = self.images(self.arguments.images, (256, 256))
        files = self.work / f"files-{self.arguments.files}"
        if not files.exists():
            found = sorted(folder.glob("*/*.jpg"))
            for number, path in enumerate(itertools.islice(itertools.cycle(found), self.arguments.files)):
                to = files / path.parent.name / f"{number:06}.jpg"
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)
        packed = self.work / "packed"
        programs = {
            "copy": lambda: self.program("copy", files),
            "turbojpeg": lambda: self.program("turbojpeg", f"{folder}.manifest"),
            "pass_through": lambda: self.to_rec(packed, files, "--pass_through"),
            "auto": lambda: self.to_rec(packed, files),
        }
        self.report(part, programs, [("pass_through", "copy"), ("auto", "copy"), ("auto", "turbojpeg")])


def main():
    parts = {
        "500x375": lambda comparison, part: comparison.augmented(part, (500, 375)),
        "256x256": lambda comparison, part: comparison.augmented(part, (256, 256)),
        "32x32": Comparison.small,
        "records": Comparison.records,
        "to_rec": Comparison.packing,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)}; none: all")
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of loader_benchmark and to_rec")
    parser.add_argument("--dmlc", help="folder of dmlc-core's sources")
    parser.add_argument("--data", type=pathlib.Path, default=HERE.parents[2] / "shared/data", help="folder of cifar10/")
    parser.add_argument("--work", type=pathlib.Path, help="folder that keeps the files that are made")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5, help="of a measurement, at least, after an epoch before it")
    parser.add_argument("--images", type=int, default=2000, help="JPEGs of 500x375 and of 256x256")
    parser.add_argument("--files", type=int, default=100000, help="that to_rec packs, of 256x256")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        print(json.dumps({"rate": PEERS[arguments.peer](arguments.parts[0], arguments.seconds)}))
        return
    unknown = set(arguments.parts) - set(parts)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.work or pathlib.Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        comparison = Comparison(arguments, work)
        for part in arguments.parts or parts:
            parts[part](comparison, part)


if __name__ == "__main__":
    main()
