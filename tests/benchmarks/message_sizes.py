#!/usr/bin/env python3
"""Is the size of messages that a worker chooses from its link the best? (T3.3 of algorithms)

    tests/benchmarks/message_sizes.py [--gbit 1] [--keep FILE] [-- flags of kvbench]

kvbench runs over tcp in turns: with the size that it chooses itself and with each of --sizes (PACELINE_MESSAGE_BYTES);
--gbit makes everything that a process sends pass a line of that speed. Prints medians of "both" and their ratio to the
best one; with --keep, over all sittings that named the same file. Standard library only.
"""

import argparse
import json
import pathlib
import statistics
import sys

from turns import PLAIN, last_json, turned

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/cpu/bin"), help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of each of a program's measurements")
    parser.add_argument("--sizes", default="512,1024,2048,4096,8192", help="of messages in KiB, with commas between")
    parser.add_argument("--gbit", type=float, default=0, help="speed of each process's line; 0: the loopback's")
    parser.add_argument("--keep", type=pathlib.Path, help="file of the runs so far; these are added")
    parser.add_argument("flags", nargs="*", help="of kvbench, after --")
    arguments = parser.parse_args()
    flags = arguments.flags or ["--keys", "25", "--key_bytes", "4000000"]
    command = [f"{arguments.bin}/kvbench", "--transport", "tcp", "--seconds", str(arguments.seconds), *flags]

    names = ["chosen"] + arguments.sizes.split(",")
    runs = {name: [] for name in names}
    if arguments.keep and arguments.keep.exists():
        runs.update(json.loads(arguments.keep.read_text()))
    for number in range(arguments.rounds):
        for name in turned(names, number):
            environment = dict(PLAIN, PACELINE_MESSAGE_BYTES="0" if name == "chosen" else str(1024 * int(name)))
            if arguments.gbit:
                environment["PACELINE_FAULTS"] = f"throttle {arguments.gbit * 125e6:g}B/s"
            runs[name].append(last_json(command, environment)["both_gbps"])
    if arguments.keep:
        arguments.keep.write_text(json.dumps(runs))

    medians = {name: statistics.median(values) for name, values in runs.items()}
    best = max(medians.values())
    for name, median in medians.items():
        label = name if name == "chosen" else name + " KiB"
        print(
            f"{label:>8}: {median:.4f} GB/s, {median / best:.3f} of the best, "
            f"runs {min(runs[name]):.4f} to {max(runs[name]):.4f}"
        )
    print(json.dumps({"flags": flags, "gbit": arguments.gbit, "medians": medians, "ratio": medians["chosen"] / best}))
    return 0 if medians["chosen"] >= 0.97 * best else 1


if __name__ == "__main__":
    sys.exit(main())
