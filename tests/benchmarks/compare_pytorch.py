#!/usr/bin/env python3
"""Compares train_benchmark with PyTorch: runs both in turns, on the same network, batch and number of threads, and
prints medians and their ratios.

    tests/benchmarks/compare_pytorch.py [--bin build/cpu/bin] [--rounds 5] [--seconds 5] [--threads 2] [--networks ...]

A step is forward, backward and an update by SGD with momentum 0.9, on random examples that stay in memory. The
fractions are those multiply-adds of its products that have to be made, beside the rate of one product of 1024 x 1024
matrices, which train_benchmark measures. Peak memory is the resident set's, of the whole process. PyTorch's steps are
tools/pytorch_steps.py. PYTHON is an interpreter with PyTorch; without --python one is made for the run: PyTorch of the
version below in a folder of its own, which is deleted at the end.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

from turns import in_turns, last_json, medians

PYTORCH = "torch==2.5.1"
BATCHES = {"mlp": 128, "lenet": 64, "resnet20": 128, "lstm": 32, "transformer": 32}

# Multiply-adds of forward and backward for an example: three times those of forward, less the gradient of the data.
_mlp, _lenet = 784 * 512, 28 * 28 * 6 * 25
_resnet, _block = 32 * 32 * 16 * 27, 32 * 32 * 16 * 144
_attention = 2 * 128 * 64 * 65 // 2  # causal
MULTIPLY_ADDS = {
    "mlp": 3 * (_mlp + 512 * 512 + 512 * 10) - _mlp,
    "lenet": 3 * (_lenet + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10) - _lenet,
    "resnet20": 3 * (_resnet + 17 * _block + 640) - _resnet,
    "lstm": 3 * 64 * (2 * 256 * 1024 + 256 * 65),
    "transformer": 3 * (4 * _attention + 64 * (4 * 12 * 128 * 128 + 128 * 65)),
}

STEPS = pathlib.Path(__file__).resolve().parents[2] / "tools/pytorch_steps.py"


def ours(folder, network, threads, seconds, captured=True):
    flags = ["--network", network, "--batch_size", BATCHES[network], "--threads", threads, "--seconds", seconds]
    return last_json([f"{folder}/train_benchmark", *flags, f"--captured={str(captured).lower()}"])


def pytorch(python, network, threads, seconds):
    return last_json([python, STEPS, network, BATCHES[network], seconds, "--threads", threads])


def compare(arguments, python, network):
    how = network, arguments.threads, arguments.seconds
    programs = {
        "captured": lambda: ours(arguments.bin, *how),
        "eager": lambda: ours(arguments.bin, *how, captured=False),
        "pytorch": lambda: pytorch(python, *how),
    }
    runs = in_turns(programs, arguments.rounds, lambda run: f"{run['samples_per_second']:.0f} {network}")
    if len({one["parameters"] for results in runs.values() for one in results}) != 1:
        sys.exit(f"{network}: the two have different numbers of parameters: {runs}")
    median = {name: medians(results, ["samples_per_second", "peak_memory_mb"]) for name, results in runs.items()}
    captured, eager, theirs = (median[name]["samples_per_second"] for name in programs)
    fraction = MULTIPLY_ADDS[network] / (1e9 * medians(runs["captured"], ["gemm_gmacs"])["gemm_gmacs"])
    print(
        f"{network:11} {BATCHES[network]:5} {captured:10.0f} {eager:10.0f} {theirs:10.0f} {captured / theirs:6.2f} "
        f"{captured * fraction:9.3f} {theirs * fraction:8.3f} "
        f"{median['captured']['peak_memory_mb']:8.0f} {median['pytorch']['peak_memory_mb']:8.0f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/cpu/bin"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of each run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--networks", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--python", help="an interpreter with PyTorch")
    arguments = parser.parse_args()
    if not (arguments.bin / "train_benchmark").exists():
        sys.exit(f"compare_pytorch.py: no train_benchmark in '{arguments.bin}'; build it or name its folder with --bin")
    with tempfile.TemporaryDirectory(prefix="paceline-pytorch-") as folder:
        python = arguments.python
        if not python:
            print(f"installing {PYTORCH}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            python = f"{folder}/bin/python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", PYTORCH, "numpy"], check=True)
        print(
            f"{arguments.threads} threads; examples per second, medians of {arguments.rounds} runs in turns; fractions "
            "of sgemm's rate; memory in MB"
        )
        print("network     batch       ours      eager    PyTorch  ratio  fraction  PyTorch   memory  PyTorch")
        for network in arguments.networks:
            compare(arguments, python, network)


if __name__ == "__main__":
    main()
