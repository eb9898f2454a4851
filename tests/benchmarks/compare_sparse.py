#!/usr/bin/env python3
"""Compares rows of a row-sparse table with dense keys of as many bytes: runs kvbench with both in turns and prints
medians and their ratios.

    tests/benchmarks/compare_sparse.py [--bin build/cpu/bin] [--rounds 5] [--rows 100000] [-- flags of both]
"""

import argparse
import json

from turns import in_turns, last_json, medians, ratios

FIGURES = ["push_gbps", "pull_gbps", "both_gbps"]
ROWS, FLOATS, TABLE, KEYS = 100000, 64, 10000000, 10


def dense(folder, flags, seconds, rows=ROWS, floats=FLOATS, keys=KEYS):
    size = ["--keys", keys, "--key_bytes", 4 * rows * floats // keys]
    return last_json([f"{folder}/kvbench", "--seconds", seconds, *flags, *size])


def sparse(folder, flags, seconds, rows=ROWS, floats=FLOATS, table=TABLE):
    size = ["--sparse_rows", rows, "--row_floats", floats, "--table_rows", table]
    return last_json([f"{folder}/kvbench", "--seconds", seconds, *flags, *size])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of kvbench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="of each of a run's measurements")
    parser.add_argument("--rows", type=int, default=ROWS, help="in a call")
    parser.add_argument("--floats", type=int, default=FLOATS, help="of a row")
    parser.add_argument("--table", type=int, default=TABLE, help="rows of the table")
    parser.add_argument("--keys", type=int, default=KEYS, help="dense keys, which hold the bytes of a call together")
    parser.add_argument("flags", nargs="*", help="for both, after --")
    arguments = parser.parse_args()
    how = arguments.bin, arguments.flags, arguments.seconds, arguments.rows, arguments.floats
    programs = {"dense": lambda: dense(*how, arguments.keys), "rows": lambda: sparse(*how, arguments.table)}
    runs = in_turns(programs, arguments.rounds, lambda run: f"both {run['both_gbps']:.3f} GB/s")

    summary = {name: medians(results, FIGURES) for name, results in runs.items()}
    ratio = ratios(runs["rows"], runs["dense"], FIGURES)
    print(f"{'median':8}" + "".join(f"{figure:>12}" for figure in FIGURES))
    for name, median in summary.items():
        print(f"{name:8}" + "".join(f"{median[figure]:12.3f}" for figure in FIGURES))
    print(f"{'ratio':8}" + "".join(f"{ratio[figure]:12.2f}" for figure in FIGURES))
    print(json.dumps({"rounds": arguments.rounds, "flags": arguments.flags, "ratio": ratio, **summary}))


if __name__ == "__main__":
    main()
