#!/usr/bin/env python3
"""Runs sleep_job with 1, 2, 4 and 8 workers, fits kvsim's constants on 1 and 2, and compares its prediction for 4 and 8.

All that a process sends goes through a line of --speed bytes a second, so that the server's line, not this machine's
processors, is what the workers share. The last line is a JSON object. Standard library only.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/cpu/bin"), help="folder of the programs")
    parser.add_argument("--mode", default="dist_async:staleness=none")
    parser.add_argument("--compute", default="lognormal:median=0.03,sigma=0.3")
    parser.add_argument("--bytes", type=int, default=400000, help="of the weights")
    parser.add_argument("--speed", type=float, default=20e6, help="bytes per second of each process's line")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each number of workers; the spread comes from them")
    return parser.parse_args()


def run_job(arguments, workers, seed):
    """Steps per second of all workers, delays as {delay: count}, times slept and exchanged."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "tools/launch.py"), "-n", str(workers), "-s", "1", "--log-dir", folder,
                   "--env", f"PACELINE_FAULTS=bytes_per_second={arguments.speed:g}",
                   f"{arguments.bin}/sleep_job", "--mode", arguments.mode, "--compute", arguments.compute,
                   "--bytes", str(arguments.bytes), "--seconds", str(arguments.seconds), "--seed", str(seed)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120 + 3 * arguments.seconds)
        results = []
        for log in pathlib.Path(folder).rglob("worker-*.log"):
            results += [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"')]
    assert len(results) == workers, f"{len(results)} of {workers} workers printed a result"
    delays = {int(d): n for result in results for d, n in result.get("delays", {}).items()}
    return {"rate": sum(result["steps"] / result["seconds"] for result in results), "delays": delays,
            "slept": [t for result in results for t in result["slept"]],
            "exchanged": [t for result in results for t in result["exchanged"]]}


def simulate(arguments, workers, law, overhead, server):
    """kvsim with `overhead` seconds an exchange, `server` of them at the server, one worker after the other."""
    # Where the mode may hold pulls back, they are a second trip after the push.
    trips = 2 if arguments.mode.startswith("dist_sync") or "bound=" in arguments.mode else 1
    command = [f"{arguments.bin}/kvsim", "--mode", arguments.mode, "--workers", str(workers), "--servers", "1",
               "--compute", law, "--bytes", str(arguments.bytes), "--iterations", "20000",
               "--worker_gbit", str(arguments.speed * 8e-9), "--server_gbit", str(arguments.speed * 8e-9),
               "--server_gbit_in", "0", "--latency_us", str(1e6 * (overhead - server) / 2 / trips),
               "--server_push", f"us={1e6 * server}", "--server_pull", "", "--delays"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = json.loads(output.splitlines()[-1])
    return result["steps_per_second"], {int(d): n for d, n in result.get("delays", {"0": 1}).items()}


def distance(first, second):
    """The largest difference of the two distribution functions."""
    totals = [sum(first.values()), sum(second.values())]
    sums, worst = [0, 0], 0
    for delay in range(max(list(first) + list(second)) + 1):
        sums = [sums[0] + first.get(delay, 0), sums[1] + second.get(delay, 0)]
        worst = max(worst, abs(sums[0] / totals[0] - sums[1] / totals[1]))
    return worst


def main():
    arguments = parse_arguments()
    measured = {}
    for workers in (1, 2, 4, 8):
        measured[workers] = [run_job(arguments, workers, seed) for seed in range(1, arguments.rounds + 1)]
        rates = [run["rate"] for run in measured[workers]]
        print(f"{workers} workers: " + " ".join(f"{rate:.2f}" for rate in rates) + " steps per second", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".times") as times:
        slept = [t for workers in (1, 2) for run in measured[workers] for t in run["slept"]]
        times.write("\n".join(map(str, slept)))
        times.flush()
        law = f"empirical:file={times.name}"
        alone = statistics.mean(t for run in measured[1] for t in run["exchanged"])
        overhead = max(0.0, alone - 2 * arguments.bytes / arguments.speed)
        # The server's part of the overhead is what two workers disturb each other by.
        two = statistics.mean(run["rate"] for run in measured[2])
        low, high = 0.0, overhead
        for _ in range(8):
            middle = (low + high) / 2
            low, high = (middle, high) if simulate(arguments, 2, law, overhead, middle)[0] > two else (low, middle)
        server = (low + high) / 2
        print(f"fitted on 1 and 2: an exchange takes {1e3 * overhead:.2f} ms besides its bytes, "
              f"{1e3 * server:.2f} ms of them at the server")
        rows = []
        for workers in (1, 2, 4, 8):
            rates = [run["rate"] for run in measured[workers]]
            mean = statistics.mean(rates)
            spread = (max(rates) - min(rates)) / mean
            rate, delays = simulate(arguments, workers, law, overhead, server)
            real = {}
            for run in measured[workers]:
                for delay, count in run["delays"].items():
                    real[delay] = real.get(delay, 0) + count
            rows.append({"workers": workers, "measured": mean, "spread": spread, "predicted": rate,
                         "error": rate / mean - 1, "distance": distance(real, delays)})
            print("{workers} workers: measured {measured:.2f} (spread {spread:.1%}), predicted {predicted:.2f} "
                  "({error:+.1%}), distance of the delays {distance:.3f}".format(**rows[-1]))
    print(json.dumps({"overhead_ms": 1e3 * overhead, "server_ms": 1e3 * server, "runs": rows}))
    good = all(abs(row["error"]) <= max(0.1, row["spread"]) and row["distance"] <= 0.05 for row in rows[2:])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
