#!/usr/bin/env python3
"""Watches the memory of every process while one worker pushes and pulls, then a single small key goes back and forth.

    tests/benchmarks/server_memory.py [--bin build/cpu/bin] [--transport shm] [-- flags of kvbench]

Prints megabytes: the weights; what each process holds of its own (not what it reads of its peers) at most, in the last
phase, when it is at rest, and how much more that is than after a fifth of the run, amid the pushes. Millions of pushes:

    tests/benchmarks/server_memory.py -- --call_per_key --keys 10000 --key_bytes 1024 --seconds 10
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
        processes = {"server": server, "worker": worker, "scheduler": scheduler}
        samples = {name: [] for name in processes}
        while worker.poll() is None:
            try:
                for name, process in processes.items():
                    samples[name].append(memory_of(process.pid) or samples[name][-1])
            except (OSError, IndexError):
                pass
            time.sleep(0.05)
        figures = json.loads(worker.stdout.read().strip().splitlines()[-1])
        server.wait()
        scheduler.wait()

    sizes = {name: int(flags[flags.index(name) + 1]) for name in ("--keys", "--key_bytes")}
    megabyte = 1e6
    result = {"weights": sizes["--keys"] * sizes["--key_bytes"] / megabyte}
    for name, held in samples.items():
        length = max(1, len(held) // 10)
        rest = statistics.median(held[-length:-1])
        early = statistics.median(held[2 * length: 3 * length])
        result[name] = {"most": max(held) / megabyte, "at_rest": rest / megabyte, "grown": (rest - early) / megabyte}
    result["keys_per_second"] = figures["keys_per_second"]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
