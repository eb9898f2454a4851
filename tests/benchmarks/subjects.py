"""What tools/bench.sh measures: subjects, their figures, and the runs of our programs and of their peers."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import compare_floor
import compare_gloo
import compare_pytorch
import compare_sparse
from turns import ProgramFailed, last_json, output_of

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "build/bench"
ENVIRONMENT, TASKFLOW = BENCH / "pytorch", BENCH / "taskflow"  # where peers are looked for


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str  # with its unit, as the table shows it
    key: str  # in the values of a run
    scale: float = 1  # of the value
    less_is_better: bool = False
    is_speed: bool = True  # counts in the mean of --against


@dataclasses.dataclass(frozen=True)
class Case:
    """Figures that one run gives together. A run is a dictionary of values; the peer's may hold its version."""

    figures: tuple[Figure, ...]
    ours: Callable[[str], dict]  # from the folder of the programs
    peer: Callable[[], dict] | None


@dataclasses.dataclass(frozen=True)
class Setup:
    """How long a measurement takes, and the peers that are there."""

    seconds: float
    python: str | None  # an interpreter with PyTorch
    taskflow: str | None  # a compiled taskflow_benchmark
    folder: str  # of our programs, for peers that we build


@dataclasses.dataclass(frozen=True)
class Subject:
    peer: str  # or nothing
    programs: tuple[str, ...]
    cases: Callable[[Setup], list[Case]]


def engine(setup):
    tasks, predecessors, threads, rounds = 300000, 3, 2, 3

    def ours(folder):
        flags = ["--tasks", tasks, "--predecessors", predecessors, "--threads", threads, "--rounds", rounds]
        return last_json([f"{folder}/engine_benchmark", *flags])

    def taskflow():
        run = last_json([setup.taskflow, tasks, predecessors, threads, rounds])
        return {**run, "version": f"Taskflow {run['version']}"}

    graph = (
        Figure("tasks of a random graph, million/s", "tasks_per_second", 1e-6),
        Figure("processor time of a task, ns", "cpu_ns_per_task", less_is_better=True),
    )
    issues = tuple(
        Figure(f"issue of {what}, ns", key, less_is_better=True)
        for what, key in (
            ("an empty task", "task_ns"),
            ("`kernels::add`", "kernel_add_ns"),
            ("`kernels::axpy`", "kernel_axpy_ns"),
            ("the operator `add`", "operator_add_ns"),
        )
    )
    return [
        Case(graph, ours, taskflow if setup.taskflow else None),
        Case(issues, lambda folder: last_json([f"{folder}/engine_benchmark", "--issues", 30000]), None),
    ]


def google_benchmark(program, names, seconds):
    """Name -> entry, for benchmarks whose names match."""
    command = [program, f"--benchmark_filter={names}", f"--benchmark_min_time={seconds}", "--benchmark_format=json"]
    try:
        entries = json.loads(output_of(command))["benchmarks"]
    except (ValueError, KeyError):
        raise ProgramFailed(f"{program} printed no benchmarks") from None
    return {entry["name"].removesuffix("/real_time").removesuffix("/process_time"): entry for entry in entries}


OPERATORS = (
    "conv2d_1_to_6", "conv2d_6_to_16", "tanh_301056", "max_pool2d_301056", "dense_400_to_120", "dense_84_to_10",
    "softmax_cross_entropy", "batch_norm_2097152",
)  # fmt: skip


def operators(setup):
    def ours(folder):
        entries = google_benchmark(f"{folder}/lenet_operators_benchmark", "ward", setup.seconds / 4)
        return {name: 1e-3 * entry["real_time"] for name, entry in entries.items()}  # nanoseconds

    names = [f"{name}/{way}" for name in OPERATORS for way in ("forward", "backward")]
    return [Case(tuple(Figure(f"`{name}`, µs", name, less_is_better=True) for name in names), ours, None)]


def training(setup):
    def case(network, threads):
        def ours(folder):
            how = network, threads, setup.seconds
            captured = compare_pytorch.ours(folder, *how)
            values = {"captured": captured["samples_per_second"], "memory": captured["peak_memory_mb"]}
            if threads == 1:
                return values
            return values | {"eager": compare_pytorch.ours(folder, *how, captured=False)["samples_per_second"]}

        def peer():
            run = compare_pytorch.pytorch(setup.python, network, threads, setup.seconds)
            rate, memory = run["samples_per_second"], run["peak_memory_mb"]
            return {"captured": rate, "eager": rate, "memory": memory, "version": f"PyTorch {run['pytorch']}"}

        what = f"{network} {compare_pytorch.BATCHES[network]}, {'one thread' if threads == 1 else 'two threads'}"
        figures = [Figure(f"{what}, captured, examples/s", "captured")]
        if threads > 1:
            figures.append(Figure(f"{what}, eager, examples/s", "eager"))
            figures.append(Figure(f"{what}, peak memory, MB", "memory", less_is_better=True, is_speed=False))
        return Case(tuple(figures), ours, peer if setup.python else None)

    return [case(network, threads) for threads in (2, 1) for network in compare_pytorch.BATCHES]


def store(setup):
    rates = [(f"{what}, GB/s", f"{what}_gbps", False) for what in ("push", "pull", "both")]
    rest = [("round trip, µs", "rtt_us_p50", True), ("processor seconds for a GB", "cpu", True)]
    large = tuple(
        Figure(f"`{transport}`: {name}", f"{transport} {key}", less_is_better=less)
        for transport in ("tcp", "shm")
        for name, key, less in rates + rest
    )
    small = (Figure("`tcp`: 10,000 keys of 1 KB, thousand keys/s", "keys_per_second", 1e-3),)
    keys = ["--keys", 10000, "--key_bytes", 1024, "--seconds", setup.seconds]

    def ours(folder):
        runs = {t: compare_floor.store(folder, t, compare_floor.FLAGS, setup.seconds) for t in ("tcp", "shm")}
        return {f"{transport} {key}": value for transport, run in runs.items() for key, value in run.items()}

    def floor():
        run = compare_floor.floor(setup.folder, compare_floor.FLAGS, setup.seconds)
        return {f"{transport} {key}": value for transport in ("tcp", "shm") for key, value in run.items()}

    return [
        Case(large, ours, floor),
        Case(
            small,
            lambda folder: last_json([f"{folder}/kvbench", *keys]),
            lambda: last_json([f"{setup.folder}/kvfloor", "--servers", 1, "--workers", 1, *keys]),
        ),
    ]


def sparse(setup):
    def case(transport):
        flags = ["--transport", transport]
        return Case(
            tuple(Figure(f"`{transport}`: {key.removesuffix('_gbps')}, GB/s", key) for key in compare_sparse.FIGURES),
            lambda folder: compare_sparse.sparse(folder, flags, setup.seconds),
            lambda: compare_sparse.dense(setup.folder, flags, setup.seconds),
        )

    return [case("tcp"), case("shm")]


def allreduce(setup):
    size = compare_gloo.WORKERS, compare_gloo.KEYS, compare_gloo.KEY_BYTES, setup.seconds
    ways = {f"`{t}`, `{o}`, GB/s": (t, o) for t in compare_gloo.TRANSPORTS for o in compare_gloo.OPTIMIZERS}

    def gloo():
        return dict.fromkeys(ways, compare_gloo.gloo(setup.python, *size))

    return [
        Case(
            tuple(Figure(name, name) for name in ways),
            lambda folder: {name: compare_gloo.ring(folder, *way, *size) for name, way in ways.items()},
            gloo if setup.python else None,
        )
    ]


JPEGS = {"28x28_grey": "28x28 grey", "32x32_colour": "32x32 colour", "256x256_colour": "256x256 colour"}
IMAGES = {
    **{f"decode/jpeg_{size}": f"JPEG {words}" for size, words in JPEGS.items()},
    "decode/raw_28x28_grey": "raw 28x28 grey",
    **{f"decode/png_{size}": f"PNG {words}" for size, words in JPEGS.items()},
}
RECORDS = {
    "read_records_in_order/1024": "records of 1 KB read in order",
    "read_records_at_random/1024": "records of 1 KB read at random",
    "write_records/1024": "records of 1 KB written",
}
LOADS = {
    "load/raw_28x28_grey/threads:1": "loader, raw 28x28 grey",
    "load/png_28x28_grey/threads:1": "loader, PNG 28x28 grey",
    "load/jpeg_32x32_colour/threads:1": "loader, JPEG 32x32 colour",
    "load/jpeg_256x256_colour/threads:1": "loader, JPEG 256x256 colour",
    "read_csv/threads:1": "CSV, rows of 20 numbers, found and read",
    "load_csv/threads:1": "CSV, rows of 20 numbers, shuffled",
}


def loader(setup):
    figures = [Figure(f"{words} decoded, thousand/s", key, 1e-3) for key, words in IMAGES.items()]
    figures += [Figure(f"{words}, GB/s", key, 1e-9) for key, words in RECORDS.items()]
    figures += [Figure(f"{words}, thousand/s", key, 1e-3) for key, words in LOADS.items()]

    def run(folder, names):
        entries = google_benchmark(f"{folder}/io_benchmark", names, setup.seconds / 4)
        return {
            name: entry["bytes_per_second" if "records" in name else "items_per_second"]
            for name, entry in entries.items()
        }

    def turbojpeg():
        return {
            f"decode{name.removeprefix('turbojpeg')}": rate for name, rate in run(setup.folder, "turbojpeg").items()
        }

    return [Case(tuple(figures), lambda folder: run(folder, "decode|records|threads:1"), turbojpeg)]


SUBJECTS = {
    "engine": Subject("Taskflow", ("engine_benchmark",), engine),
    "operators": Subject("", ("lenet_operators_benchmark",), operators),
    "training": Subject("PyTorch", ("train_benchmark",), training),
    "store": Subject("`kvfloor`", ("kvbench", "kvfloor"), store),
    "sparse": Subject("dense keys of as many bytes", ("kvbench",), sparse),
    "allreduce": Subject("gloo", ("kvbench",), allreduce),
    "loader": Subject("bare TurboJPEG", ("io_benchmark",), loader),
}


def find_pytorch(python):
    """An interpreter with PyTorch, or None and why not."""
    asked = [python] if python else [sys.executable, str(ENVIRONMENT / "bin/python")]
    for each in asked:
        if os.path.exists(each) and compare_gloo.has_gloo(each):
            return each, ""
    where = os.path.relpath(ENVIRONMENT)
    install = f"python3 -m venv {where} && {where}/bin/pip install {compare_pytorch.PYTORCH} numpy"
    return None, f"{' and '.join(asked)}: no PyTorch with gloo; to have one for a while: {install}"


def find_taskflow(folder):
    """A compiled taskflow_benchmark, or None and why not."""
    folders = [pathlib.Path(folder)] if folder else [TASKFLOW, pathlib.Path("/usr/include")]
    for each in folders:
        if not (each / "taskflow/taskflow.hpp").exists():
            continue
        BENCH.mkdir(parents=True, exist_ok=True)
        program = BENCH / "taskflow_benchmark"
        command = ["c++", "-std=c++20", "-O3", "-DNDEBUG", "-isystem", str(each), str(HERE / "taskflow_benchmark.cc")]
        done = subprocess.run([*command, "-pthread", "-o", str(program)], capture_output=True, text=True)
        if done.returncode != 0:
            return None, f"taskflow_benchmark.cc does not compile with {each}:\n{done.stderr}"
        return str(program), ""
    tried = " and ".join(map(str, folders))
    return None, f"{tried}: no taskflow/taskflow.hpp; unpack Taskflow's headers there or name their folder"
