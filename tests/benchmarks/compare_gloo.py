#!/usr/bin/env python3
"""Compares kvbench in mode ring with the all-reduce of gloo, which PyTorch brings: runs both in turns and prints
medians and ratios.

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


def gloo(arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    elements = arguments.keys * (arguments.key_bytes // 4)
    workers = [
        subprocess.Popen(
            [arguments.python, "-c", GLOO]
            + [str(value) for value in (port, rank, arguments.workers, elements, arguments.seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(arguments.workers)
    ]
    answers = [worker.communicate() for worker in workers]
    for worker, (_, errors) in zip(workers, answers, strict=True):
        if worker.returncode != 0:
            sys.exit(f"gloo failed:\n{errors}")
    return 4e-9 * elements / float(answers[0][0])


def ring(arguments, transport, optimizer):
    command = [f"{arguments.bin}/kvbench", "--mode", "ring", "--transport", transport, "--optimizer", optimizer]
    for flag in ("workers", "keys", "key_bytes", "seconds"):
        command += [f"--{flag}", str(getattr(arguments, flag))]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])["both_gbps"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of the programs")
    parser.add_argument("--python", default=sys.executable, help="interpreter with PyTorch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keys", type=int, default=25)
    parser.add_argument("--key_bytes", type=int, default=4000000)
    arguments = parser.parse_args()
    probe = [arguments.python, "-c", "import torch.distributed as group; assert group.is_gloo_available()"]
    if subprocess.run(["timeout", "60", *probe], capture_output=True).returncode != 0:
        sys.exit(
            f"{arguments.python} has no PyTorch with gloo. Make an environment that has,\n"
            "    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch 'numpy<2'\n"
            "and run this with --python /tmp/torch/bin/python"
        )

    programs = {"gloo": gloo}
    for transport in "tcp", "shm":
        for optimizer in "assign", "sgd":
            programs[f"{transport}, {optimizer}"] = lambda a, t=transport, o=optimizer: ring(a, t, o)
    runs = {name: [] for name in programs}
    for number in range(arguments.rounds):
        for name, program in programs.items():
            runs[name].append(program(arguments))
            print(f"round {number + 1} {name}: {runs[name][-1]:.3f} GB/s", file=sys.stderr)
    summary = {}
    for name, figures in runs.items():
        ratio = statistics.median(mine / gloo for mine, gloo in zip(figures, runs["gloo"], strict=True))
        summary[name] = {"gbps": statistics.median(figures), "to_gloo": ratio}
        print(f"{name:13}{summary[name]['gbps']:8.3f} GB/s{ratio:8.2f} times gloo")
    print(
        json.dumps(
            {
                "rounds": arguments.rounds,
                "workers": arguments.workers,
                "megabytes": 1e-6 * arguments.keys * arguments.key_bytes,
                "programs": summary,
            }
        )
    )


if __name__ == "__main__":
    main()
