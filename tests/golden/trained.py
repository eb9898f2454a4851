#!/usr/bin/env python3
"""Writes ../nn/trained.safetensors: the weights that PyTorch has after 20 steps, in float64, of networks that use
views, a tied weight and a frozen part. ../nn/training_control_test.cc trains the same. See generate.py for what it
needs.
"""

import math
import pathlib

import torch
from generate import write

torch.set_default_dtype(torch.float64)
STEPS = 20


def waves(shape, scale, phase, factor, of=math.sin):
    return torch.tensor([scale * of(factor * i + phase) for i in range(math.prod(shape))]).reshape(shape)


def weight(shape, phase):
    return waves(shape, 0.5, phase, 3)


def half_square(y, target):
    return ((y - target) ** 2).mean() * 0.5


def train(trained, loss):
    for w in trained:
        w.requires_grad_()
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()


def batch(step):
    return waves((8, 3), 1, step, 1), waves((8, 2), 1, step, 2, math.cos)


def views():
    w = [weight((6, 3), 1), weight((6,), 2), weight((2, 4), 3), weight((2,), 4)]

    def loss(step):
        x, y = batch(step)
        h = (x @ w[0].T + w[1]).view(-1, 2, 3).narrow(2, 0, 2).permute(0, 2, 1).clone().reshape(-1, 4)
        return half_square(torch.tanh(h) @ w[2].T + w[3], y)

    train(w, loss)
    return w


def tied():
    w = weight((5, 3), 5)

    def loss(step):
        ids = torch.tensor([(3 * i + step) % 5 for i in range(6)])
        labels = torch.tensor([(i + 2 * step) % 5 for i in range(6)])
        return torch.nn.functional.cross_entropy(torch.tanh(w[ids]) @ w.T, labels)

    train([w], loss)
    return [w]


def frozen():
    w = [weight((4, 3), 6), weight((4,), 7), weight((2, 4), 8), weight((2,), 9)]

    def loss(step):
        x, y = batch(step)
        return half_square(torch.tanh(x @ w[0].T + w[1]) @ w[2].T + w[3], y)

    train(w[2:], loss)
    return w


if __name__ == "__main__":
    results = {f"{case.__name__}/w{i}": w.detach() for case in (views, tied, frozen) for i, w in enumerate(case())}
    write(pathlib.Path(__file__).parent.parent / "nn/trained.safetensors", results)
