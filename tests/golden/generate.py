#!/usr/bin/env python3
"""Writes the fixtures of golden_test.cc: what PyTorch computes, values and gradients in float64.

Needed only to add or change fixtures:
    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch numpy
    /tmp/torch/bin/python tests/golden/generate.py [family ...]

One safetensors file per family, <family>.safetensors. Its arrays are named <function>/<case>/<array>, where <array> is
x0, x1, ... (inputs), y0, ... (outputs) or dx0, ... (gradients of sum(y0 * w0) + sum(y1 * w1) + ..., with the weights
w[i] = 0.5 + (7 * i mod 11) / 11). golden_test.cc holds the call of ours that belongs to each <function>. Inputs are
multiples of 2^-10, hence exact in float32.
"""

import json
import pathlib
import struct
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import families  # noqa: E402

# Of safetensors and of struct.
TYPES = {
    torch.float64: ("F64", "d"),
    torch.float32: ("F32", "f"),
    torch.int64: ("I64", "q"),
    torch.int32: ("I32", "i"),
    torch.int8: ("I8", "b"),
    torch.uint8: ("U8", "B"),
    torch.bool: ("BOOL", "?"),
}


def weights(y):
    i = torch.arange(y.numel(), dtype=torch.int64)
    return (0.5 + (7 * i % 11).to(torch.float64) / 11).reshape(y.shape)


def run(name, case, function, inputs):
    """The arrays of one case."""
    inputs = [x.clone() for x in inputs]
    for x in inputs:
        if x.is_floating_point():
            x.requires_grad_(True)
    outputs = function(*inputs)
    if isinstance(outputs, torch.Tensor):
        outputs = [outputs]
    loss = sum((y * weights(y)).sum() for y in outputs if y.is_floating_point() and y.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    arrays = {f"x{i}": x.detach() for i, x in enumerate(inputs)}
    arrays |= {f"y{i}": y.detach() for i, y in enumerate(outputs)}
    arrays |= {f"dx{i}": x.grad for i, x in enumerate(inputs) if x.is_floating_point() and x.grad is not None}
    return {f"{name}/{case}/{key}": value for key, value in arrays.items()}


def write(path, arrays):
    header, body = {"__metadata__": {"torch": torch.__version__.split("+")[0]}}, b""
    for name, array in sorted(arrays.items()):
        kind, letter = TYPES[array.dtype]
        flat = array.contiguous().reshape(-1).tolist()
        data = struct.pack(f"<{len(flat)}{letter}", *flat)
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    wanted = sys.argv[1:] or sorted(families.FAMILIES)
    for family in wanted:
        arrays = {}
        for name, case, function, inputs in families.FAMILIES[family]():
            new = run(name, case, function, inputs)
            assert not arrays.keys() & new.keys(), f"{name}/{case} occurs twice"
            arrays |= new
        path = pathlib.Path(__file__).parent / f"{family}.safetensors"
        write(path, arrays)
        print(f"{path.name}: {len(arrays)} arrays, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
