#!/usr/bin/env python3
"""Compares train_benchmark with PyTorch: runs both in turns, on the same network, batch and number of threads, and prints
medians and ratios.

    tests/benchmarks/compare_pytorch.py [--bin build/cpu/bin] [--rounds 5] [--seconds 5] [--threads 2] [--networks ...]

A step is forward, backward and an update by SGD with momentum 0.9, on random examples that stay in memory. The fractions
are those multiply-adds of its products that have to be made, beside the rate of one product of 1024 x 1024 matrices, which
train_benchmark measures. Peak memory is the resident set's, of the whole process. PYTHON is an interpreter with PyTorch; without --python one is made for the run:
PyTorch of the version below in a folder of its own, which is deleted at the end.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

PYTORCH = "torch==2.5.1"
BATCHES = {"mlp": 128, "lenet": 64, "resnet20": 128, "lstm": 32, "transformer": 32}

# Multiply-adds of forward and backward for an example: three times those of forward, less the gradient of the data.
_mlp, _lenet = 784 * 512, 28 * 28 * 6 * 25
_resnet, _block = 32 * 32 * 16 * 27, 32 * 32 * 16 * 144
_attention = 2 * 128 * 64 * 65 // 2  # causal
MULTIPLY_ADDS = {
    "mlp": 3 * (_mlp + 512 * 512 + 512 * 10) - _mlp,
    "lenet": 3 * (_lenet + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10) - _lenet,
    "resnet20": 3 * (_resnet + 17 * _block + 640) - _resnet,
    "lstm": 3 * 64 * (2 * 256 * 1024 + 256 * 65),
    "transformer": 3 * (4 * _attention + 64 * (4 * 12 * 128 * 128 + 128 * 65)),
}

# Arguments: network, batch, threads, seconds. Prints a line of JSON as train_benchmark does.
PROGRAM = """
import json, resource, sys, time, torch
from torch import nn
name, batch, threads, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
torch.set_num_threads(threads)
torch.manual_seed(1)

class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.stride, self.more = stride, outputs - inputs
    def forward(self, x):
        shortcut = x
        if self.stride > 1:
            shortcut = nn.functional.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, 0, self.more))
        return torch.relu_(self.body(x) + shortcut)

def resnet20():
    layers, width = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)], 16
    for outputs in (16, 32, 64):
        for i in range(3):
            layers.append(Block(width, outputs, 2 if i == 0 and outputs > 16 else 1))
            width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.input, self.output, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
    def forward(self, x):
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.input(x).chunk(3, 2))
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(seen.transpose(1, 2).flatten(2))

class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.body = nn.Sequential(*layers)
    def forward(self, x):
        return x + self.body(x)

class Transformer(nn.Module):
    def __init__(self, symbols=65, width=128, layers=4, heads=4, steps=64):
        super().__init__()
        self.symbol, self.place = nn.Embedding(symbols, width), nn.Parameter(torch.randn(steps, width) * 0.02)
        blocks = []
        for _ in range(layers):
            blocks.append(Residual(nn.LayerNorm(width), Attention(width, heads)))
            blocks.append(Residual(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(),
                                   nn.Linear(4 * width, width)))
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, symbols))
    def forward(self, x):
        return self.blocks(self.symbol(x) + self.place)

class Lstm(nn.Module):
    def __init__(self, symbols=65, width=256):
        super().__init__()
        self.symbol, self.cells = nn.Embedding(symbols, width), nn.LSTM(width, width, batch_first=True)
        self.output = nn.Linear(width, symbols)
    def forward(self, x):
        return self.output(self.cells(self.symbol(x))[0])

network = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                                 nn.Linear(512, 10)),
    "lenet": lambda: nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5),
                                   nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(),
                                   nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)),
    "resnet20": resnet20,
    "lstm": Lstm,
    "transformer": Transformer,
}[name]()
optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
if name in ("lstm", "transformer"):
    data = label = (torch.arange(batch * 64) * 7 % 65).view(batch, 64)
else:
    data = torch.randn(batch, 3, 32, 32) if name == "resnet20" else torch.randn(batch, 1, 28, 28)
    label = torch.arange(batch) % 10

def step():
    optimizer.zero_grad(set_to_none=True)
    scores = network(data)
    nn.functional.cross_entropy(scores.flatten(0, -2), label.flatten()).backward()
    optimizer.step()

for _ in range(3):
    step()
start, steps = time.perf_counter(), 0
while time.perf_counter() - start < seconds:
    step()
    steps += 1
spent = time.perf_counter() - start
print(json.dumps({"samples_per_second": steps * batch / spent,
                  "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                  "parameters": sum(p.numel() for p in network.parameters())}))
"""


def run(command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def compare(arguments, python, network):
    figures = {"ours": [], "eager": [], "pytorch": []}
    flags = ["--network", network, "--batch_size", BATCHES[network], "--threads", arguments.threads,
             "--seconds", arguments.seconds]  # fmt: skip
    for _ in range(arguments.rounds):
        figures["ours"].append(run([arguments.bin / "train_benchmark", *flags]))
        figures["eager"].append(run([arguments.bin / "train_benchmark", *flags, "--captured=false"]))
        figures["pytorch"].append(
            run([python, "-c", PROGRAM, network, BATCHES[network], arguments.threads, arguments.seconds]))

    def median(who, figure):
        return statistics.median(one[figure] for one in figures[who])

    if len({one["parameters"] for runs in figures.values() for one in runs}) != 1:
        sys.exit(f"{network}: the two have different numbers of parameters: {figures}")
    ours, eager, theirs = (median(who, "samples_per_second") for who in ("ours", "eager", "pytorch"))
    fraction = MULTIPLY_ADDS[network] / (1e9 * median("ours", "gemm_gmacs"))
    print(f"{network:11} {BATCHES[network]:5} {ours:10.0f} {eager:10.0f} {theirs:10.0f} {ours / theirs:6.2f} "
          f"{ours * fraction:9.3f} {theirs * fraction:8.3f} "
          f"{median('ours', 'peak_memory_mb'):8.0f} {median('pytorch', 'peak_memory_mb'):8.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/cpu/bin"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of each run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--networks", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--python", help="an interpreter with PyTorch")
    arguments = parser.parse_args()
    if not (arguments.bin / "train_benchmark").exists():
        sys.exit(f"compare_pytorch.py: no train_benchmark in '{arguments.bin}'; build it or name its folder with --bin")
    with tempfile.TemporaryDirectory(prefix="paceline-pytorch-") as folder:
        python = arguments.python
        if not python:
            print(f"installing {PYTORCH}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            python = f"{folder}/bin/python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", PYTORCH, "numpy"], check=True)
        print(f"{arguments.threads} threads; examples per second, medians of {arguments.rounds} runs in turns; fractions "
              "of sgemm's rate; memory in MB")
        print("network     batch       ours      eager    PyTorch  ratio  fraction  PyTorch   memory  PyTorch")
        for network in arguments.networks:
            compare(arguments, python, network)


if __name__ == "__main__":
    main()
