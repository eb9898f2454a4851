#!/usr/bin/env python3
"""What priorities gain on a slow line, beside the model of one line that serves one slice after the other.

sleep_job pushes and pulls keys of ResNet-50's shapes through lines of --gbit; sleeping takes as long as the bytes take
on the line. Runs with and without priorities take turns; kvsim computes what one line would need for the same layers,
in the order pushed and whole, and by priority and in slices. The last line is a JSON object. Standard library only.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def resnet50():
    """(bytes, multiplications) of the 161 keys, front first."""
    keys = []

    def convolution(out, inputs, width, pixels):
        keys.append((4 * out * inputs * width * width, out * inputs * width * width * pixels))
        keys.extend([(4 * out, 0), (4 * out, 0)])

    convolution(64, 3, 7, 112 * 112)
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        narrow, pixels = 64 << stage, (56 >> stage) ** 2
        for block in range(blocks):
            convolution(narrow, inputs, 1, pixels)
            convolution(narrow, narrow, 3, pixels)
            convolution(4 * narrow, narrow, 1, pixels)
            if block == 0:
                convolution(4 * narrow, inputs, 1, pixels)
            inputs = 4 * narrow
    keys.extend([(4 * 1000 * 2048, 1000 * 2048), (4000, 0)])
    return keys


def layers(seconds):
    """As the flag --layers: a third of the computing is forward."""
    keys = resnet50()
    whole = sum(work for _, work in keys)
    parts = ((seconds * work / whole, size) for size, work in keys)
    return ",".join(f"{part / 3:.9f}:{2 * part / 3:.9f}:{size}" for part, size in parts)


def model(arguments, text, priority, slice_bytes):
    """Seconds of a step on one line."""
    command = [f"{arguments.bin}/kvsim", "--workers", "1", "--servers", "1", "--compute", "constant:seconds=1",
               "--layers", text, f"--priority={str(priority).lower()}", "--slice_bytes", str(slice_bytes),
               "--worker_gbit", str(arguments.gbit), "--worker_gbit_in", "0", "--server_gbit", "0", "--latency_us", "0",
               "--server_push", "", "--server_pull", "", "--iterations", "60"]  # fmt: skip
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return 1 / json.loads(output.splitlines()[-1])["steps_per_second"]


def run_job(arguments, text, priority):
    """Seconds of a step, median over all workers' steps but the first two."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "tools/launch.py"), "-n", str(arguments.workers), "-s",
                   str(arguments.servers), "--log-dir", folder,
                   "--env", f"PACELINE_FAULTS=throttle {arguments.gbit * 125e6:g}B/s",
                   f"{arguments.bin}/sleep_job", "--mode", arguments.mode, "--compute", "constant:seconds=1",
                   "--layers", text, f"--priority={str(priority).lower()}",
                   "--seconds", str(arguments.seconds)]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60 + 3 * arguments.seconds)
        steps = []
        for log in pathlib.Path(folder).rglob("worker-*.log"):
            for line in log.read_text().splitlines():
                if line.startswith('{"'):
                    result = json.loads(line)
                    steps += [a + b for a, b in zip(result["slept"], result["exchanged"], strict=True)][2:]
    return statistics.median(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/cpu/bin"), help="folder of the programs")
    parser.add_argument("--mode", default="dist_async:staleness=none,transport=tcp")
    parser.add_argument("--gbit", type=float, default=1, help="speed of each process's line")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=12, help="of each run")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    text = layers(sum(size for size, _ in resnet50()) / (arguments.gbit * 125e6))
    predicted = [model(arguments, text, False, 0), model(arguments, text, True, 1 << 18)]
    measured = [[], []]
    for number in range(arguments.rounds):
        for priority in (False, True):
            measured[priority].append(run_job(arguments, text, priority))
        print(f"round {number + 1}: in order {measured[0][-1]:.3f} s, by priority {measured[1][-1]:.3f} s", flush=True)
    real = [statistics.median(times) for times in measured]
    gain, promised = real[0] / real[1] - 1, predicted[0] / predicted[1] - 1
    print(f"model: {predicted[0]:.3f} s and {predicted[1]:.3f} s, gain {promised:.1%}; measured gain {gain:.1%}")
    print(
        json.dumps(
            {
                "model_seconds": predicted,
                "measured_seconds": real,
                "model_gain": promised,
                "measured_gain": gain,
                "ratio": gain / promised,
            }
        )
    )
    return 0 if gain >= 0.8 * promised else 1


if __name__ == "__main__":
    sys.exit(main())
