#!/usr/bin/env python3
"""Runs sleep_job with 1, 2, 4 and 8 workers, fits kvsim's constants on 1 and 2, compares its prediction for 4 and 8:
T6.2 of algorithms.

All that a process sends goes through a line of --speed bytes a second, so that the server's line, not this machine's
processors, is what the workers share. The last line is a JSON object. Standard library only.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MESSAGE_BYTES = 262144  # the store's least, which a line this slow makes it use


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/cpu/bin"), help="folder of the programs")
    parser.add_argument("--mode", default="dist_async:staleness=none")
    parser.add_argument("--compute", default="lognormal:median=0.03,sigma=0.3")
    parser.add_argument(
        "--bytes",
        type=int,
        help="of the weights, by default 512 KiB, 4 MiB in mode ring, so that every worker owns some; "
        "kvsim cuts messages as the store does where they are all full",
    )
    parser.add_argument(
        "--speed", type=float, help="bytes per second of each process's line, by default 20e6, 100e6 in mode ring"
    )
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each number of workers; they give the spread")
    parser.add_argument(
        "--stall",
        type=float,
        default=0.05,
        help="a run is repeated where a sleep of 1 ms beside it took so much longer, in seconds",
    )
    parser.add_argument("--repeats", type=int, default=5, help="so often at most; then the calmest run counts")
    parser.add_argument("--save", help="file that gets what was measured")
    parser.add_argument("--load", help="such a file, instead of measuring")
    arguments = parser.parse_args()
    ring = arguments.mode.startswith("ring")
    arguments.bytes = arguments.bytes or (16 if ring else 2) * MESSAGE_BYTES
    arguments.speed = arguments.speed or (100e6 if ring else 20e6)
    return arguments


def servers_of(arguments):
    return "0" if arguments.mode.startswith(("ring", "gossip")) else "1"


def mode_of(arguments, workers):
    """A job waits for one worker at least: it has fewer backups than workers."""
    return re.sub(r"backup=(\d+)", lambda found: f"backup={min(int(found[1]), workers - 1)}", arguments.mode)


def run_job(arguments, workers, seed):
    """Steps per second of all workers, delays as {delay: count}, times slept and exchanged, the machine's stall."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "tools/launch.py"), "-n", str(workers), "-s", servers_of(arguments),
                   "--log-dir", folder, "--env", f"PACELINE_FAULTS=throttle {arguments.speed:g}B/s",
                   f"{arguments.bin}/sleep_job", "--mode", mode_of(arguments, workers), "--compute", arguments.compute,
                   "--bytes", str(arguments.bytes), "--seconds", str(arguments.seconds),
                   "--seed", str(seed)]  # fmt: skip
        # Tells the launcher whether there are servers.
        environment = {**os.environ, "PACELINE_KVSTORE": mode_of(arguments, workers)}
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, timeout=120 + 3 * arguments.seconds, env=environment
        )
        results = []
        for log in pathlib.Path(folder).rglob("worker-*.log"):
            results += [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"')]
    assert len(results) == workers, f"{len(results)} of {workers} workers printed a result"
    delays = {int(d): n for result in results for d, n in result.get("delays", {}).items()}
    return {
        "rate": sum(result["steps"] / result["seconds"] for result in results),
        "delays": delays,
        "stall": next(result["stall"] for result in results if "stall" in result),
        "slept": [t for result in results for t in result["slept"]],
        "exchanged": [t for result in results for t in result["exchanged"]],
    }


def calm_run(arguments, workers, seed):
    """The first run without a long stall of the machine; that is seen beside the job, not in what it measures."""
    runs = []
    for _ in range(arguments.repeats):
        runs.append(run_job(arguments, workers, seed))
        if runs[-1]["stall"] <= arguments.stall:
            break
    return min(runs, key=lambda run: run["stall"])


def simulate(arguments, workers, law, latency, server):
    """kvsim with `latency` seconds one way and `server` seconds a push at the server, one after the other.

    Without servers, `server` is what a worker takes over the bytes of a whole gradient.
    """
    slice_bytes = 0 if arguments.mode.startswith("ring") else MESSAGE_BYTES
    command = [f"{arguments.bin}/kvsim", "--mode", mode_of(arguments, workers), "--workers", str(workers),
               "--servers", "1", "--compute", law, "--bytes", str(arguments.bytes), "--slice_bytes", str(slice_bytes),
               "--iterations", "20000", "--worker_gbit", str(arguments.speed * 8e-9), "--worker_gbit_in", "0",
               "--server_gbit", str(arguments.speed * 8e-9), "--server_gbit_in", "0", "--one_line",
               "--latency_us", str(1e6 * latency), "--acknowledgement_us", str(1e6 * latency),
               "--server_push", f"us={1e6 * server}", "--server_pull", "", "--delays"]  # fmt: skip
    if servers_of(arguments) == "0":
        command += ["--worker_push", f"ns_per_byte={1e9 * server / arguments.bytes}", "--server_push", ""]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = json.loads(output.splitlines()[-1])
    return result["steps_per_second"], {int(d): n for d, n in result.get("delays", {"0": 1}).items()}


def fit(arguments, law, slept, alone, two):
    """Latency and the server's time: `alone` seconds an exchange of one worker, `two` steps per second of two."""
    if servers_of(arguments) == "0":  # one worker sends nothing
        low, high = 0.0, 1.0
        for _ in range(16):
            server = (low + high) / 2
            low, high = (server, high) if simulate(arguments, 2, law, 0, server)[0] > two else (low, server)
        return 0.0, low

    def latency_with(server):
        low, high = 0.0, alone
        for _ in range(12):
            middle = (low + high) / 2
            exchange = 1 / simulate(arguments, 1, law, middle, server)[0] - slept
            low, high = (middle, high) if exchange < alone else (low, middle)
        return (low + high) / 2

    low, high = 0.0, alone
    for _ in range(10):
        server = (low + high) / 2
        latency = latency_with(server)
        # The server's part is what two workers disturb each other by, and no more than one of them takes.
        fits = latency > alone / 2000 and simulate(arguments, 2, law, latency, server)[0] > two
        low, high = (server, high) if fits else (low, server)
    return latency_with(low), low


def distance(first, second):
    """The largest difference of the two distribution functions."""
    totals = [sum(first.values()), sum(second.values())]
    sums, worst = [0, 0], 0
    for delay in range(max(list(first) + list(second)) + 1):
        sums = [sums[0] + first.get(delay, 0), sums[1] + second.get(delay, 0)]
        worst = max(worst, abs(sums[0] / totals[0] - sums[1] / totals[1]))
    return worst


def compare(arguments, measured):
    """Fits on 1 and 2 workers; a row for each number of workers."""
    with tempfile.NamedTemporaryFile("w", suffix=".times") as times:
        slept = [t for workers in (1, 2) for run in measured[workers] for t in run["slept"]]
        times.write("\n".join(map(str, slept)))
        times.flush()
        law = f"empirical:file={times.name}"
        alone = statistics.mean(t for run in measured[1] for t in run["exchanged"])
        two = statistics.mean(run["rate"] for run in measured[2])
        latency, server = fit(arguments, law, statistics.mean(slept), alone, two)
        print(
            f"fitted on 1 and 2: {1e3 * latency:.3f} ms one way, {1e3 * server:.3f} ms a push "
            f"at the {'worker' if servers_of(arguments) == '0' else 'server'}"
        )
        rows = []
        for workers in sorted(measured):
            rates = [run["rate"] for run in measured[workers]]
            mean = statistics.mean(rates)
            spread = (max(rates) - min(rates)) / mean
            rate, delays = simulate(arguments, workers, law, latency, server)
            real = {}
            for run in measured[workers]:
                for delay, count in run["delays"].items():
                    real[delay] = real.get(delay, 0) + count
            rows.append(
                {
                    "workers": workers,
                    "measured": mean,
                    "spread": spread,
                    "predicted": rate,
                    "error": rate / mean - 1,
                    "distance": distance(real, delays),
                }
            )
            print(
                "{workers} workers: measured {measured:.2f} (spread {spread:.1%}), predicted {predicted:.2f} "
                "({error:+.1%}), distance of the delays {distance:.3f}".format(**rows[-1])
            )
    return {"latency_ms": 1e3 * latency, "server_ms": 1e3 * server, "runs": rows}


def main():
    arguments = parse_arguments()
    measured = {}
    if arguments.load:
        text = json.loads(pathlib.Path(arguments.load).read_text())
        measured = {
            int(workers): [{**run, "delays": {int(d): n for d, n in run["delays"].items()}} for run in runs]
            for workers, runs in text.items()
        }
    for workers in (1, 2, 4, 8):
        if not arguments.load:
            measured[workers] = [calm_run(arguments, workers, seed) for seed in range(1, arguments.rounds + 1)]
        rates = [run["rate"] for run in measured[workers]]
        print(
            f"{workers} workers: " + " ".join(f"{rate:.2f}" for rate in rates) + " steps per second, longest stall "
            f"{1e3 * max(run['stall'] for run in measured[workers]):.0f} ms",
            flush=True,
        )
    if arguments.save:
        pathlib.Path(arguments.save).write_text(json.dumps(measured))
    result = compare(arguments, measured)
    print(json.dumps(result))
    good = all(abs(row["error"]) <= max(0.1, row["spread"]) and row["distance"] <= 0.05 for row in result["runs"][2:])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
