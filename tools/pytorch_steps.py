#!/usr/bin/env python3
"""Times training steps of PyTorch on the first GPU, for gpu_check.sh: pytorch_steps.py NETWORK BATCH SECONDS [--compile]

The networks, examples and optimizer are those of train_benchmark: resnet50 in bfloat16 (autocast, channels_last), or the
character transformer in float32. The last line is JSON with `samples_per_second`. Exits with 3 where PyTorch with CUDA
cannot be imported.
"""

import json
import sys
import time

try:
    import torch
    from torch import nn

    if not torch.cuda.is_available():
        raise ImportError("PyTorch sees no GPU")
except ImportError as error:
    print(f"pytorch_steps.py: {error}", file=sys.stderr)
    sys.exit(3)


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


def main():
    name, batch, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    images = name == "resnet50"
    network = {"resnet50": resnet50, "transformer": Transformer}[name]().cuda()
    if images:
        torch.backends.cudnn.benchmark = True
        network = network.to(memory_format=torch.channels_last)
        data = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        label = torch.arange(batch, device="cuda") * 7 % 1000
    else:
        data = label = (torch.arange(batch * 64, device="cuda") * 7 % 65).view(batch, 64)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
    forward = torch.compile(network) if "--compile" in sys.argv else network

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=images):
            scores = forward(data)
            loss = nn.functional.cross_entropy(scores.flatten(0, -2), label.flatten())
        loss.backward()
        optimizer.step()

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
        if steps % 8 == 0:
            torch.cuda.synchronize()  # else the time is that of issuing
    torch.cuda.synchronize()
    spent = time.perf_counter() - start
    print(json.dumps({"samples_per_second": steps * batch / spent, "pytorch": torch.__version__}))


main()
