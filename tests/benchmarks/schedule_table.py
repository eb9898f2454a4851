#!/usr/bin/env python3
"""The schedules of T3.1 of algorithms on the real transport, over a line of a limited speed.

    tests/benchmarks/schedule_table.py [--rounds 1] [--cases 1,2,3,4]

sleep_job computes (sleeps) and exchanges layers as the table has them, a unit of time being 4 to 20 ms, in the order of
backward and by priority; everything that a process sends passes a line of --gbit. Prints the steps beside what one line
would take (the table: in order; by priority and in slices), in units. Standard library only.
"""

import argparse
import json
import statistics
import sys

from priority_gain import ROOT, run_job

# Unit in seconds, forward, backward and exchange of each layer in units, and the iteration in order and by priority.
CASES = {
    "1": (0.02, [1, 1, 1], [2, 2, 2], [2, 2, 8], 17.0, 15.0),
    "2": (0.02, [1] * 4, [1] * 4, [3] * 4, 17.0, 14.0),
    "3": (0.004, [8, 8, 8, 8, 4, 1, 1], [16, 16, 16, 16, 8, 2, 2], [0.3, 1.5, 4, 8, 8, 70, 12], 143.8, 114.3),
    "4": (0.008, [2] * 16, [4] * 16, [0.5] * 3 + [1] * 4 + [3] * 6 + [12, 12, 14], 97.5, 96.5),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/cpu/bin"), help="folder of the programs")
    parser.add_argument("--mode", default="dist_async:staleness=none,transport=tcp")
    parser.add_argument("--gbit", type=float, default=1, help="speed of each process's line")
    parser.add_argument("--seconds", type=float, default=6, help="of each run")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cases", default=",".join(CASES))
    arguments = parser.parse_args()
    arguments.workers = arguments.servers = 1
    worst, table = 0, {}
    for case in arguments.cases.split(","):
        unit, forward, backward, exchange, *expected = CASES[case]
        text = ",".join(
            f"{f * unit:.9f}:{b * unit:.9f}:{int(c * unit * arguments.gbit * 125e6)}"
            for f, b, c in zip(forward, backward, exchange, strict=True)
        )
        steps = [[], []]
        for _ in range(arguments.rounds):
            for priority in (False, True):
                steps[priority].append(run_job(arguments, text, priority) / unit)
        found = [statistics.median(values) for values in steps]
        ratios = [mine / theirs for mine, theirs in zip(found, expected, strict=True)]
        worst = max(worst, *(abs(ratio - 1) for ratio in ratios))
        table[case] = {"expected": expected, "measured": found, "ratio": ratios}
        print(
            f"case {case}: in order {expected[0]:.1f}, measured {found[0]:.2f} ({ratios[0]:.3f}); "
            f"by priority {expected[1]:.1f}, measured {found[1]:.2f} ({ratios[1]:.3f})",
            flush=True,
        )
    print(json.dumps(table))
    return 0 if worst <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
