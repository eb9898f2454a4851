#!/usr/bin/env python3
"""Compares CsvIterator with Arrow's reader of CSV: both read a file of numbers in turns, with two threads. Prints the
medians and their ratio.

    python3 -m venv arrow && arrow/bin/pip install pyarrow
    arrow/bin/python tests/benchmarks/compare_csv.py [--bin build/cpu/bin] [--rounds 5] [--rows 500000] [--columns 20]
"""

import argparse
import json
import pathlib
import random
import statistics
import tempfile
import time

from turns import PLAIN, in_turns, output_of


def write_table(path, rows, columns):
    numbers = random.Random(1)
    with path.open("w") as file:
        file.write(",".join(f"c{column}" for column in range(columns)) + "\n")
        for _ in range(rows):
            file.write(",".join(f"{numbers.gauss(0, 1):.6g}" for _ in range(columns)) + "\n")


def ours(folder, path):
    """Rows per second."""
    command = [f"{folder}/io_benchmark", "--benchmark_filter=read_csv/threads:2", "--benchmark_format=json"]
    found = json.loads(output_of(command, {**PLAIN, "BENCHMARK_CSV": str(path)}))
    return found["benchmarks"][0]["items_per_second"]


def arrow(path, rows, columns):
    import pyarrow
    from pyarrow import csv

    pyarrow.set_cpu_count(2)
    types = {f"c{column}": pyarrow.float32() for column in range(columns)}
    began = time.perf_counter()
    table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=types))
    seconds = time.perf_counter() - began
    if table.num_rows != rows:
        raise SystemExit(f"Arrow read {table.num_rows} rows of {rows}")
    return rows / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of io_benchmark")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=500000)
    parser.add_argument("--columns", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "numbers.csv"
        write_table(path, arguments.rows, arguments.columns)
        programs = {
            "ours": lambda: ours(arguments.bin, path),
            "arrow": lambda: arrow(path, arguments.rows, arguments.columns),
        }
        runs = in_turns(programs, arguments.rounds, lambda rate: f"{rate / 1e6:.3f} million rows/s")
    median = {name: statistics.median(rates) for name, rates in runs.items()}
    print(json.dumps({**median, "ratio": median["ours"] / median["arrow"]}))


if __name__ == "__main__":
    main()
