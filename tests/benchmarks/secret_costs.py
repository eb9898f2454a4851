#!/usr/bin/env python3
"""What secrets cost: runs kvbench with and without them and two bare programs in turns, and prints ratios of medians.

    tests/benchmarks/secret_costs.py [--bin build/cpu/bin] [--rounds 5] [--seconds 1]

Each line has a ratio of speeds and the least that it should be. "bare" moves the same bytes over ZeroMQ and seals them
with the same library (kvfloor --seal=aes); "curve" lets ZeroMQ encrypt everything (kvfloor --seal=curve). Round trips
come from runs with workers on half of the processors and servers on the others, as in compare_floor.py.
"""

import argparse
import json
import os
import statistics

from turns import PLAIN, in_turns, last_json, ratio

LARGE = ["--servers", "2", "--workers", "2", "--keys", "25", "--key_bytes", "4000000"]
SMALL = ["--servers", "2", "--workers", "2", "--keys", "1000", "--key_bytes", "64"]
TRIP = ["--servers", "1", "--workers", "1", "--keys", "1", "--key_bytes", "64", "--apart"]

# Name, numerator, denominator, figure, least ratio. Of round trips the smaller is the better.
LIMITS = [
    ("sealed tcp to bare", "tcp", "bare", "both_gbps", 0.9),
    ("sealed tcp to curve", "tcp", "curve", "both_gbps", 1.5),
    ("shm with secrets to without", "shm", "shm insecure", "both_gbps", 0.95),
    ("small keys with secrets to without", "small", "small insecure", "keys_per_second", 0.8),
    ("round trips with secrets to without", "trip insecure", "trip", "rtt_us_p50", 0.8),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of each of a program's measurements")
    arguments = parser.parse_args()

    def store(transport, flags, environment=os.environ):
        command = [f"{arguments.bin}/kvbench", "--transport", transport, *flags, "--seconds", arguments.seconds]
        return lambda: last_json(command, environment)

    def bare(seal):
        command = [f"{arguments.bin}/kvfloor", "--seal", seal, *LARGE, "--seconds", arguments.seconds]
        return lambda: last_json(command)

    programs = {
        "bare": bare("aes"),
        "curve": bare("curve"),
        "tcp": store("tcp", LARGE),
        "tcp insecure": store("tcp", LARGE, PLAIN),
        "shm": store("shm", LARGE),
        "shm insecure": store("shm", LARGE, PLAIN),
        "small": store("tcp", SMALL),
        "small insecure": store("tcp", SMALL, PLAIN),
        "trip": store("tcp", TRIP),
        "trip insecure": store("tcp", TRIP, PLAIN),
    }
    runs = in_turns(programs, arguments.rounds, lambda run: f"both {run['both_gbps']:.3f} GB/s")

    for name, results in runs.items():
        middle = {figure: statistics.median(run[figure] for run in results) for figure in ("both_gbps", "rtt_us_p50")}
        print(f"{name:16} both {middle['both_gbps']:8.3f} GB/s   round trip {middle['rtt_us_p50']:8.1f} us")
    found = {}
    for name, mine, theirs, figure, least in LIMITS:
        found[name] = ratio([run[figure] for run in runs[mine]], [run[figure] for run in runs[theirs]])
        print(f"{name:36} {found[name]:5.2f}   at least {least}" + ("" if found[name] >= least else "   MISSED"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
