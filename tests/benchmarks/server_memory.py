#!/usr/bin/env python3
"""Watches the memory of every process while one worker pushes and pulls, then a single small key goes back and forth.

    tests/benchmarks/server_memory.py [--bin build/cpu/bin] [--transport shm] [--pushes 1000000] [-- flags of kvbench]

Prints megabytes: the weights; what each process holds of its own (not what it reads of its peers) at most, after 20, 60
and 80 % of the run, amid the pushes, and in the last phase, when it is at rest; of the server also what it held before
there were keys, and the bytes at rest beside that and the weights for each key. With --pushes the run before the rest
is one phase of that many pushes, each with a pull, and what is shown is the most that was held up to 10, 25, 50, 75 and
100 % of it, each since the mark before:

    tests/benchmarks/server_memory.py --pushes 1000000 -- --call_per_key --keys 10000 --key_bytes 1024

--load N keeps N processes busy beside it.
"""

import argparse
import itertools
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys
import tempfile
import time


def memory_of(pid):
    """Bytes of private memory and of the heap that it offers its peers."""
    own = 0
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            own = int(line.split()[1]) * 1024
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "memfd:paceline" in os.readlink(descriptor):
                own += os.stat(descriptor).st_blocks * 512
        except OSError:
            pass
    return own


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/cpu/bin", help="folder of the programs")
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--pushes", type=int, default=0, help="in one phase; 0: phases of a given time")
    parser.add_argument("--load", type=int, default=0, help="processes that compute beside it")
    parser.add_argument("flags", nargs="*", help="of kvbench, after --")
    arguments = parser.parse_args()
    flags = arguments.flags or ["--keys", "50", "--key_bytes", "4194304", "--seconds", "2"]

    started = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(arguments.load):
                started.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            print(json.dumps(watch(arguments, flags, pathlib.Path(folder), started)))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


def watch(arguments, flags, folder, started):
    """Adds every process that it starts to `started`."""
    port, marks = folder / "port", folder / "marks"
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32))
    environment = dict(
        os.environ,
        PACELINE_KEY_FILE=str(key),
        DMLC_PS_ROOT_URI="127.0.0.1",
        DMLC_NODE_HOST="127.0.0.1",
        DMLC_PS_ROOT_PORT="0",
        DMLC_NUM_SERVER="1",
        DMLC_NUM_WORKER="1",
        OMP_WAIT_POLICY="PASSIVE",
        PACELINE_TRANSPORT=arguments.transport,
        PACELINE_PORT_FILE=str(port),
    )

    def start(role, command, **options):
        started.append(subprocess.Popen(command, env=dict(environment, DMLC_ROLE=role), **options))
        return started[-1]

    scheduler = start("scheduler", [f"{arguments.bin}/paceline_server"])
    while len(words := port.read_text().split() if port.exists() else []) < 2:
        if scheduler.poll() is not None:
            sys.exit("the scheduler failed, see above")
        time.sleep(0.01)
    environment["DMLC_PS_ROOT_PORT"] = words[1]
    server = start("server", [f"{arguments.bin}/paceline_server"])
    time.sleep(0.5)
    empty = memory_of(server.pid)
    with open(marks, "w") as stderr:
        worker = start(
            "worker",
            [f"{arguments.bin}/kvbench", *flags, f"--pushes={arguments.pushes}"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    processes = {"server": server, "worker": worker, "scheduler": scheduler}
    samples = {name: [] for name in processes}
    passed = []  # samples taken before each mark
    while worker.poll() is None:
        if server.poll() or scheduler.poll():
            sys.exit("the server or the scheduler failed, see above")
        try:
            for name, process in processes.items():
                samples[name].append(memory_of(process.pid) or samples[name][-1])
        except (OSError, IndexError):
            pass
        passed += [len(samples["server"])] * (marks.read_text().count("pushed ") - len(passed))
        time.sleep(0.02)
    output = worker.stdout.read().strip().splitlines()
    if worker.returncode != 0 or not output:
        sys.exit(f"kvbench failed: {marks.read_text()}")
    figures = json.loads(output[-1])
    server.wait(20)
    scheduler.wait(20)

    sizes = {name: int(flags[flags.index(name) + 1]) for name in ("--keys", "--key_bytes")}
    megabyte = 1e6
    weights = sizes["--keys"] * sizes["--key_bytes"]
    result = {"weights": weights / megabyte}
    for name, held in samples.items():
        width = max(1, len(held) // 20)

        def after(share, held=held, width=width):
            at = int(share * len(held))
            return statistics.median(held[max(0, at - width) : at + 1])

        rest = statistics.median(held[-2 * width : -1])
        result[name] = {"most": max(held) / megabyte, "at_rest": rest / megabyte}
        if arguments.pushes:
            result[name]["to_10_25_50_75_100"] = [
                max(held[begin:end] or [0]) / megabyte for begin, end in itertools.pairwise([0, *passed])
            ]
        else:
            result[name]["after_20_60_80"] = [after(share) / megabyte for share in (0.2, 0.6, 0.8)]
    rest = result["server"]["at_rest"] * megabyte
    result["server"].update(
        {"empty": empty / megabyte, "bytes_beside_each_key": (rest - empty - weights) / sizes["--keys"]}
    )
    result["keys_per_second"] = figures["keys_per_second"]
    return result


if __name__ == "__main__":
    main()
