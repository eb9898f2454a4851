#!/usr/bin/env python3
"""Compares kvbench with kvfloor, its floor: runs both in turns and prints medians and ratios.

    tests/benchmarks/compare_floor.py [--bin build/cpu/bin] [--rounds 5] [--bf16] [-- flags of both, e.g. --servers 1]

Each round runs every program once, so that whatever else the machine does hits all of them. "cpu" is the processor time
that all processes of a run used for each gigabyte that they moved (seconds), which other load disturbs least.

Round trips come from runs of their own with one small key, workers on half of the processors and servers on the others
(`--apart`): where the system places threads, a program keeps for a whole run what it happened to get, and a trip takes
twice to four times as long between two processors as on one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

RATES = ["push_gbps", "pull_gbps", "both_gbps", "keys_per_second"]
TRIPS = ["rtt_us_p50", "rtt_us_p99"]
FIGURES = RATES + TRIPS
ONE_SMALL_KEY = ["--keys", "1", "--key_bytes", "64", "--apart"]


def figures_of(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def run(command):
    before = os.times()
    figures = figures_of(command)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    figures["cpu"] = used / (figures["push_gbps"] + figures["pull_gbps"] + 2 * figures["both_gbps"])
    trips = figures_of(command + ONE_SMALL_KEY)  # of flags given twice the last counts
    return figures | {name: trips[name] for name in TRIPS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of each of a program's measurements")
    parser.add_argument("--transports", default="tcp,shm", help="of kvbench, with commas between")
    parser.add_argument("--bf16", action="store_true", help="compress both")
    parser.add_argument("flags", nargs="*", help="for all programs, after --")
    arguments = parser.parse_args()
    flags = arguments.flags or ["--servers", "2", "--workers", "2", "--keys", "25", "--key_bytes", "4000000"]
    flags += ["--seconds", str(arguments.seconds)]

    commands = {"floor": [f"{arguments.bin}/kvfloor", *flags] + (["--bf16"] if arguments.bf16 else [])}
    for transport in arguments.transports.split(","):
        compression = ["--compression", "bf16"] if arguments.bf16 else []
        commands[transport] = [f"{arguments.bin}/kvbench", "--transport", transport, *flags, *compression]

    runs = {name: [] for name in commands}
    for round_number in range(arguments.rounds):
        for name, command in commands.items():
            runs[name].append(run(command))
            print(f"round {round_number + 1} {name}: both {runs[name][-1]['both_gbps']:.3f} GB/s", file=sys.stderr)

    # The figures are of one worker; those of a run move the bytes of all.
    workers = runs["floor"][0]["workers"]
    summary = {}
    for name, results in runs.items():
        median = {figure: statistics.median(result[figure] for result in results) for figure in FIGURES}
        median["cpu"] = statistics.median(r["cpu"] for r in results) / (workers * arguments.seconds)
        median["ratio"] = {
            figure: statistics.median(
                mine[figure] / floor[figure] for mine, floor in zip(results, runs["floor"], strict=True)
            )
            for figure in FIGURES + ["cpu"]
        }
        summary[name] = median

    columns = FIGURES + ["cpu"]
    print(f"{'median':12}" + "".join(f"{column:>17}" for column in columns))
    for name, median in summary.items():
        print(f"{name:12}" + "".join(f"{median[column]:17.3f}" for column in columns))
        if name != "floor":
            print(f"{'  to floor':12}" + "".join(f"{median['ratio'][column]:17.2f}" for column in columns))
    print(json.dumps({"rounds": arguments.rounds, "flags": flags, "programs": summary}))


if __name__ == "__main__":
    main()
