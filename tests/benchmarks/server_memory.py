#!/usr/bin/env python3
"""Watches the memory of a server while one worker pushes and pulls, then a single small key goes back and forth.

    tests/benchmarks/server_memory.py [--bin build/cpu/bin] [--transport shm] [-- flags of kvbench]

Prints megabytes: the weights; what the server's process holds of its own (not what it reads of its peers) at most, and at
rest, in the last phase; and how much that grew from the middle to the end of the run. A million pushes and more of small keys:

    tests/benchmarks/server_memory.py -- --call_per_key --keys 10000 --key_bytes 1024 --seconds 30
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
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
    parser.add_argument("flags", nargs="*", help="of kvbench, after --")
    arguments = parser.parse_args()
    flags = arguments.flags or ["--keys", "50", "--key_bytes", "4194304", "--seconds", "2"]

    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, DMLC_PS_ROOT_URI="127.0.0.1", DMLC_NODE_HOST="127.0.0.1", DMLC_PS_ROOT_PORT="0",
                           DMLC_NUM_SERVER="1", DMLC_NUM_WORKER="1", OMP_WAIT_POLICY="PASSIVE",
                           PACELINE_TRANSPORT=arguments.transport, PACELINE_PORT_FILE=f"{folder}/port")
        server_program = f"{arguments.bin}/paceline_server"
        scheduler = subprocess.Popen([server_program], env=dict(environment, DMLC_ROLE="scheduler"))
        while not os.path.exists(f"{folder}/port"):
            time.sleep(0.01)
        time.sleep(0.1)
        environment["DMLC_PS_ROOT_PORT"] = pathlib.Path(f"{folder}/port").read_text().split()[1]
        server = subprocess.Popen([server_program], env=dict(environment, DMLC_ROLE="server"))
        worker = subprocess.Popen([f"{arguments.bin}/kvbench", *flags], env=dict(environment, DMLC_ROLE="worker"),
                                  stdout=subprocess.PIPE, text=True)
        samples = []
        while worker.poll() is None:
            try:
                if server.poll() is None:
                    samples.append(memory_of(server.pid) or samples[-1])
            except OSError:
                break
            time.sleep(0.05)
        figures = json.loads(worker.stdout.read().strip().splitlines()[-1])
        server.wait()
        scheduler.wait()

    sizes = {name: int(flags[flags.index(name) + 1]) for name in ("--keys", "--key_bytes")}
    megabyte = 1e6
    rest = statistics.median(samples[-max(1, len(samples) // 10):-1])
    middle = statistics.median(samples[len(samples) // 2: len(samples) // 2 + max(1, len(samples) // 20)])
    result = {
        "weights": sizes["--keys"] * sizes["--key_bytes"] / megabyte,
        "most": max(samples) / megabyte,
        "at_rest": rest / megabyte,
        "grown_since_the_middle": (rest - middle) / megabyte,
        "keys_per_second": figures["keys_per_second"],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
