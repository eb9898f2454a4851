#!/usr/bin/env python3
"""Compares kvbench with kvfloor, its floor: runs both in turns and prints medians and their ratios.

    tests/benchmarks/compare_floor.py [--bin build/cpu/bin] [--rounds 5] [--bf16] [-- flags of both, e.g. --servers 1]

Each round runs every program once, so that whatever else the machine does hits all of them. "cpu" is the processor time
that all processes of a run used for each gigabyte that they moved (seconds), which other load disturbs least. "to
floor" is ours by the floor's: less is better for "cpu" and the round trips.

Round trips come from runs of their own with one small key, workers on half of the processors and servers on the others
(`--apart`): where the system places threads, a program keeps for a whole run what it happened to get, and a trip takes
twice to four times as long between two processors as on one.
"""

import argparse
import json
import resource

from turns import in_turns, last_json, medians, ratios

RATES = ["push_gbps", "pull_gbps", "both_gbps", "keys_per_second"]
TRIPS = ["rtt_us_p50", "rtt_us_p99"]
FIGURES = RATES + TRIPS + ["cpu"]
FLAGS = ["--servers", "2", "--workers", "2", "--keys", "25", "--key_bytes", "4000000"]
ONE_SMALL_KEY = ["--keys", "1", "--key_bytes", "64", "--apart"]


def processor_seconds():
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command, seconds):
    command = [*command, "--seconds", seconds]
    before = processor_seconds()
    figures = last_json(command)
    used = processor_seconds() - before
    # The rates are of one worker; those of a run move the bytes of all.
    moved = seconds * figures["workers"] * (figures["push_gbps"] + figures["pull_gbps"] + 2 * figures["both_gbps"])
    figures["cpu"] = used / moved
    trips = last_json(command + ONE_SMALL_KEY)  # of flags given twice the last counts
    return figures | {name: trips[name] for name in TRIPS}


def floor(folder, flags, seconds, bf16=False):
    return run([f"{folder}/kvfloor", *flags, *(["--bf16"] if bf16 else [])], seconds)


def store(folder, transport, flags, seconds, bf16=False):
    compression = ["--compression", "bf16"] if bf16 else []
    return run([f"{folder}/kvbench", "--transport", transport, *flags, *compression], seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1, help="of each of a program's measurements")
    parser.add_argument("--transports", default="tcp,shm", help="of kvbench, with commas between")
    parser.add_argument("--bf16", action="store_true", help="compress both")
    parser.add_argument("flags", nargs="*", help="for all programs, after --")
    arguments = parser.parse_args()
    flags = arguments.flags or FLAGS
    how = flags, arguments.seconds, arguments.bf16

    programs = {"floor": lambda: floor(arguments.bin, *how)}
    for transport in arguments.transports.split(","):
        programs[transport] = lambda transport=transport: store(arguments.bin, transport, *how)
    runs = in_turns(programs, arguments.rounds, lambda run: f"both {run['both_gbps']:.3f} GB/s")

    summary = {
        name: {**medians(results, FIGURES), "ratio": ratios(results, runs["floor"], FIGURES)}
        for name, results in runs.items()
    }
    print(f"{'median':12}" + "".join(f"{figure:>17}" for figure in FIGURES))
    for name, median in summary.items():
        print(f"{name:12}" + "".join(f"{median[figure]:17.3f}" for figure in FIGURES))
        if name != "floor":
            print(f"{'  to floor':12}" + "".join(f"{median['ratio'][figure]:17.2f}" for figure in FIGURES))
    print(json.dumps({"rounds": arguments.rounds, "flags": flags, "programs": summary}))


if __name__ == "__main__":
    main()
