#!/usr/bin/env python3
"""Compares rows of a row-sparse table with dense keys of as many bytes: runs kvbench with both in turns and prints
medians and ratios.

    tests/benchmarks/compare_sparse.py [--bin build/cpu/bin] [--rounds 5] [--rows 100000] [-- flags of both]
"""

import argparse
import json
import statistics
import subprocess
import sys

FIGURES = ["push_gbps", "pull_gbps", "both_gbps"]


def run(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of kvbench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="of each of a run's measurements")
    parser.add_argument("--rows", type=int, default=100000, help="in a call")
    parser.add_argument("--floats", type=int, default=64, help="of a row")
    parser.add_argument("--table", type=int, default=10000000, help="rows of the table")
    parser.add_argument("--keys", type=int, default=10, help="dense keys, which hold the bytes of a call together")
    parser.add_argument("flags", nargs="*", help="for both, after --")
    arguments = parser.parse_args()
    kvbench = [f"{arguments.bin}/kvbench", "--seconds", str(arguments.seconds), *arguments.flags]
    commands = {
        "dense": [*kvbench, "--keys", str(arguments.keys),
                  "--key_bytes", str(4 * arguments.rows * arguments.floats // arguments.keys)],
        "rows": [*kvbench, "--sparse_rows", str(arguments.rows), "--row_floats", str(arguments.floats),
                 "--table_rows", str(arguments.table)],
    }  # fmt: skip
    runs = {name: [] for name in commands}
    for round_number in range(arguments.rounds):
        for name, command in commands.items():
            runs[name].append(run(command))
            print(f"round {round_number + 1} {name}: both {runs[name][-1]['both_gbps']:.3f} GB/s", file=sys.stderr)

    def median(name, figure):
        return statistics.median(result[figure] for result in runs[name])

    ratio = {
        figure: statistics.median(
            rows[figure] / dense[figure] for rows, dense in zip(runs["rows"], runs["dense"], strict=True)
        )
        for figure in FIGURES
    }
    print(f"{'median':8}" + "".join(f"{figure:>12}" for figure in FIGURES))
    for name in runs:
        print(f"{name:8}" + "".join(f"{median(name, figure):12.3f}" for figure in FIGURES))
    print(f"{'ratio':8}" + "".join(f"{ratio[figure]:12.2f}" for figure in FIGURES))
    print(
        json.dumps(
            {
                "rounds": arguments.rounds,
                "flags": arguments.flags,
                "ratio": ratio,
                **{name: {figure: median(name, figure) for figure in FIGURES} for name in runs},
            }
        )
    )


if __name__ == "__main__":
    main()
