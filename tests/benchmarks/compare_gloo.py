#!/usr/bin/env python3
"""Compares kvbench in mode ring with the all-reduce of gloo, which PyTorch brings: runs both in turns and prints
medians and their ratios.

    tests/benchmarks/compare_gloo.py [--bin build/cpu/bin] [--rounds 5] [--python PYTHON]

Both move a gradient of float32, 100 MB in keys of 4 MB unless told otherwise, among worker processes on this machine.
The figure is the bytes of the gradient over the time of one exchange, as often as fits into --seconds, in GB/s. An
exchange of gloo is `all_reduce` in place of one tensor as large as all keys: their sum. One of kvbench is a `push_pull`
of all keys and `step_end`: with optimizer `assign` an all-reduce, the mean in the worker's arrays; with `sgd` an update
of the store's weights and a copy of them into the worker's arrays. gloo talks over the loopback interface; kvbench over
it (tcp) and through shared memory (shm).

PYTHON is an interpreter with PyTorch 1.13 or newer, by default the one that runs this. To have one for a while:

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch 'numpy<2'
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys

from turns import ProgramFailed, in_turns, last_json, ratio

WORKERS, KEYS, KEY_BYTES = 2, 25, 4000000
TRANSPORTS, OPTIMIZERS = ("tcp", "shm"), ("assign", "sgd")

# Arguments: port, rank, workers, elements, seconds. Rank 0 prints the seconds of a call.
GLOO = """
import sys, time, torch, torch.distributed as group
port, rank, workers, elements, seconds = *map(int, sys.argv[1:5]), float(sys.argv[5])
torch.set_num_threads(1)
group.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers)
gradient = torch.zeros(elements)

def seconds_of(calls):
    group.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        group.all_reduce(gradient)
    group.barrier()
    return time.perf_counter() - start

seconds_of(1)
calls = torch.tensor([max(3, round(seconds / (seconds_of(2) / 2)))])
group.broadcast(calls, 0)
spent = seconds_of(int(calls))
if rank == 0:
    print(spent / int(calls))
"""


def gloo(python, workers, keys, key_bytes, seconds):
    """GB/s of an all-reduce."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    elements = keys * (key_bytes // 4)
    processes = [
        subprocess.Popen(
            [python, "-c", GLOO, *map(str, (port, rank, workers, elements, seconds))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(workers)
    ]
    answers = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, answers, strict=True):
        if process.returncode != 0:
            raise ProgramFailed(f"gloo failed:\n{errors}")
    return 4e-9 * elements / float(answers[0][0])


def ring(folder, transport, optimizer, workers, keys, key_bytes, seconds):
    """GB/s of an exchange."""
    command = [f"{folder}/kvbench", "--mode", "ring", "--transport", transport, "--optimizer", optimizer]
    command += ["--workers", workers, "--keys", keys, "--key_bytes", key_bytes, "--seconds", seconds]
    return last_json(command)["both_gbps"]


def has_gloo(python):
    probe = [python, "-c", "import torch.distributed as group; assert group.is_gloo_available()"]
    return subprocess.run(["timeout", "60", *probe], capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of the programs")
    parser.add_argument("--python", default=sys.executable, help="interpreter with PyTorch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--key_bytes", type=int, default=KEY_BYTES)
    arguments = parser.parse_args()
    if not has_gloo(arguments.python):
        sys.exit(
            f"{arguments.python} has no PyTorch with gloo. Make an environment that has,\n"
            "    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch 'numpy<2'\n"
            "and run this with --python /tmp/torch/bin/python"
        )

    size = arguments.workers, arguments.keys, arguments.key_bytes, arguments.seconds
    programs = {"gloo": lambda: gloo(arguments.python, *size)}
    for transport in TRANSPORTS:
        for optimizer in OPTIMIZERS:
            programs[f"{transport}, {optimizer}"] = lambda t=transport, o=optimizer: ring(arguments.bin, t, o, *size)
    runs = in_turns(programs, arguments.rounds, lambda rate: f"{rate:.3f} GB/s")
    summary = {}
    for name, rates in runs.items():
        summary[name] = {"gbps": statistics.median(rates), "to_gloo": ratio(rates, runs["gloo"])}
        print(f"{name:13}{summary[name]['gbps']:8.3f} GB/s{summary[name]['to_gloo']:8.2f} times gloo")
    megabytes = 1e-6 * arguments.keys * arguments.key_bytes
    print(
        json.dumps(
            {"rounds": arguments.rounds, "workers": arguments.workers, "megabytes": megabytes, "programs": summary}
        )
    )


if __name__ == "__main__":
    main()
