#!/usr/bin/env python3
"""Times training steps of PyTorch on random examples that stay in memory, beside train_benchmark.

    pytorch_steps.py NETWORK BATCH SECONDS [--device cpu|cuda] [--threads N]
                     [--precision float32|bfloat16] [--channels_last] [--compile]

Networks, examples and optimizer are train_benchmark's. bfloat16 means autocast. The last line is JSON:
samples_per_second, peak_memory_mb (the resident set's, of the whole process), parameters, and pytorch, its version.
Exits with 3 where PyTorch, or on cuda a GPU, is missing.
"""

import argparse
import contextlib
import json
import resource
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as error:
    print(f"pytorch_steps.py: {error}; name an interpreter that has PyTorch", file=sys.stderr)
    sys.exit(3)


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))  # fmt: skip


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))  # fmt: skip


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))  # fmt: skip
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x):
        shortcut = x
        if self.stride > 1:
            shortcut = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return torch.relu_(self.body(x) + shortcut)


def resnet20():
    layers, width = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)], 16
    for outputs in (16, 32, 64):
        for i in range(3):
            layers.append(Block(width, outputs, 2 if i == 0 and outputs > 16 else 1))
            width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))  # fmt: skip
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu_(self.body(x) + self.shortcut(x))


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if i == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


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
            feed = nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
            blocks.append(Residual(nn.LayerNorm(width), *feed))
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


# Network, and an image's shape and number of classes; characters have neither.
NETWORKS = {
    "mlp": (mlp, (1, 28, 28), 10),
    "lenet": (lenet, (1, 28, 28), 10),
    "resnet20": (resnet20, (3, 32, 32), 10),
    "resnet50": (resnet50, (3, 224, 224), 1000),
    "lstm": (Lstm, None, 65),
    "transformer": (Transformer, None, 65),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=list(NETWORKS))
    parser.add_argument("batch", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--channels_last", action="store_true", help="images")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("pytorch_steps.py: PyTorch sees no GPU; leave --device cuda away", file=sys.stderr)
        sys.exit(3)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    bfloat16 = arguments.precision == "bfloat16"
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True

    make, image, classes = NETWORKS[arguments.network]
    network, batch = make().to(arguments.device), arguments.batch
    if image:
        data = torch.randn(batch, *image, device=arguments.device)
        label = torch.arange(batch, device=arguments.device) * 7 % classes
        if arguments.channels_last:
            network, data = (x.to(memory_format=torch.channels_last) for x in (network, data))
    else:
        data = label = (torch.arange(batch * 64, device=arguments.device) * 7 % classes).view(batch, 64)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
    forward = torch.compile(network) if arguments.compile else network

    def step():
        optimizer.zero_grad(set_to_none=True)
        half = torch.autocast(arguments.device, torch.bfloat16) if bfloat16 else contextlib.nullcontext()
        with half:
            scores = forward(data)
            loss = nn.functional.cross_entropy(scores.flatten(0, -2), label.flatten())
        loss.backward()
        optimizer.step()

    def finish():
        if on_gpu:
            torch.cuda.synchronize()

    for _ in range(5 if on_gpu else 3):
        step()
    finish()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < arguments.seconds:
        step()
        steps += 1
        if steps % 8 == 0:
            finish()  # else the time is that of issuing
    finish()
    spent = time.perf_counter() - start
    print(json.dumps({
        "samples_per_second": steps * batch / spent,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parameters": sum(p.numel() for p in network.parameters()),
        "pytorch": torch.__version__,
    }))  # fmt: skip


main()
