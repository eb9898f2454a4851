#!/usr/bin/env python3
"""Draws calls of operators, computes them with PyTorch and writes them to a file for draws_test.cc.

    /tmp/torch/bin/python tests/golden/draws.py --seed 1 --number 4000 --out /tmp/draws.safetensors

Shapes (0 to 4 axes, sizes 0, 1 and more), axes, numbers beside the arrays and types are drawn; draws_test.cc draws the
strides. What PyTorch refuses is drawn again. The arrays are named <function>/<draw>/<array> as in generate.py; `a` are
the numbers. Functions that are not here are those of families.py.
"""

import argparse
import pathlib
import random
import sys
import warnings

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import families  # noqa: E402
import generate  # noqa: E402

FIXED = {name: f for family in families.FAMILIES.values() for name, _, f, _ in family()}


class Draw:
    """One draw: sizes, arrays and numbers from one seed."""

    def __init__(self, seed):
        self.seed = seed
        self.random = random.Random(seed)

    def below(self, end):
        return self.random.randrange(end)

    def chance(self, share=0.5):
        return self.random.random() < share

    def size(self, least=0):
        sizes = (0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 9, 17)
        return max(least, self.random.choice(sizes))

    def shape(self, axes=None, least=0):
        count = self.random.choice((0, 1, 1, 2, 2, 3, 3, 4)) if axes is None else axes
        while True:
            shape = tuple(self.size(least) for _ in range(count))
            if torch.Size(shape).numel() <= 900:
                return shape

    def floats(self, shape, low=-2.0, high=2.0):
        self.seed += 1
        return families.sample(shape, self.seed, low, high)

    def whole(self, shape, low=-5, high=9, dtype=torch.int64):
        return torch.tensor(
            [self.random.randrange(low, high) for _ in range(torch.Size(shape).numel())], dtype=dtype
        ).reshape(shape)

    def array(self, shape):
        """Floats mostly; integers of each type and bool."""
        kind = self.below(10)
        if kind < 6:
            return self.floats(shape)
        if kind == 6:
            return self.whole(shape, 0, 2, torch.bool)
        if kind == 7:
            return self.whole(shape, 0, 9, torch.uint8)
        return self.whole(shape, dtype=self.random.choice((torch.int8, torch.int32, torch.int64)))

    def axis(self, x, extra=0):
        """An axis of x, now and then counted from the back; an array without axes takes 0 and -1."""
        count = max(x.dim() + extra, 1)
        return self.random.randrange(-count, count)

    def axes(self, x):
        if x.dim() == 0:
            return self.random.choice(([], [0], [-1]))
        chosen = self.random.sample(range(x.dim()), self.below(x.dim() + 1))
        return [axis - x.dim() if self.chance(0.3) else axis for axis in chosen]

    def broadcast(self, shape):
        """A shape that is broadcast to the given one."""
        kept = shape[self.below(len(shape) + 1) :] if self.chance(0.4) else shape
        return tuple(1 if self.chance(0.3) else size for size in kept)

    def permutation(self, count):
        return self.random.sample(range(count), count)


SIGNED = ("relu", "square", "abs", "sign", "negative", "floor", "ceil", "round")  # of integers, only signed ones here
FLOATING = ("leaky_relu(0.1)", "elu(1.5)", "selu", "gelu", "gelu_tanh", "silu", "softplus")


def elementwise(draw, name):
    x = draw.floats(draw.shape(), 0.5 if name in ("log", "log1p", "sqrt", "rsqrt") else -3, 3)
    if name in FLOATING or draw.chance(0.7):
        return [x]
    whole = draw.array(x.shape)
    return [whole if name not in SIGNED or whole.dtype not in (torch.bool, torch.uint8) else x]


def pair(draw, name):
    shape = draw.shape()
    if name.startswith("bitwise"):
        kinds = (torch.bool, torch.int32, torch.int64, torch.uint8)
        return [draw.whole(own, 0, 2, draw.random.choice(kinds)) for own in (shape, draw.broadcast(shape))]
    pairs = [draw.array(shape), draw.array(draw.broadcast(shape))]
    refused = ("add", "subtract", "multiply", "maximum", "minimum")  # of bool
    if name in refused and all(x.dtype == torch.bool for x in pairs):
        pairs[1] = draw.floats(pairs[1].shape)
    if name == "power":
        pairs = [draw.floats(shape, 0.25, 2), draw.floats(pairs[1].shape)]
    if name in ("remainder", "floor_divide"):  # dividing integers by 0 is an error of PyTorch
        pairs[1] = torch.where(pairs[1] == 0, torch.ones_like(pairs[1]), pairs[1])
    return pairs if draw.chance() else pairs[::-1] if name not in ("power", "remainder", "floor_divide") else pairs


def losses(draw, name):
    if "cross_entropy" in name and not name.startswith("sigmoid"):
        rows, classes = draw.size(), draw.size(3)
        scores = draw.floats((rows, classes))
        if name.startswith("soft_"):
            return [scores, torch.softmax(draw.floats((rows, classes)), 1)]
        labels = [scores, draw.whole((rows,), 0, classes)]
        return [*labels, draw.whole((classes,), 1, 7)] if name.startswith("weighted") else labels
    shape = draw.shape()
    return [draw.floats(shape), draw.floats(shape, 0.25, 1)]


def normalized(draw, name):
    if name == "instance_norm":
        x = draw.floats((draw.size(1), draw.size(1), *draw.shape(1 + draw.below(2), 2)))
        return [x, draw.floats(x.shape[1:2]), draw.floats(x.shape[1:2])]
    x = draw.floats(draw.shape(1 + draw.below(4), 1))
    axes = 1 + draw.below(x.dim())
    if name == "rms_norm":
        return [x, draw.floats(x.shape[-axes:])]
    return [x, draw.floats(x.shape[-axes:]), draw.floats(x.shape[-axes:])]


def products(draw, name):
    n, k, m = draw.size(), draw.size(), draw.size()
    if name == "matmul(a',b')":
        return [draw.floats((k, n)), draw.floats((m, k))]
    if name.startswith("batch_matmul"):
        batch = draw.shape(1 + draw.below(2))
        last = (m, k) if name.endswith("(b')") else (k, m)
        return [draw.floats((*batch, n, k)), draw.floats((*draw.broadcast(batch), *last))]
    if name == "matmul":
        kind = draw.below(4)
        if kind == 0:
            return [draw.floats((k,)), draw.floats((k,))]
        if kind == 1:
            return [draw.floats((n, k)), draw.floats((k,))]
        if kind == 2:
            return [draw.floats((k,)), draw.floats((k, m))]
        return [draw.floats((n, k)), draw.floats((k, m))]
    if name == "outer":
        return [draw.floats((n,)), draw.floats((m,))]
    if name.startswith("dense"):
        rows = (draw.size(), 2) if name.endswith("(rows)") else (draw.size(),)
        arrays = [draw.floats((*rows, k)), draw.floats((m, k)), draw.floats((m,))]
        return arrays[:2] if name.endswith("(plain)") else arrays
    if name.startswith("triangular_solve"):
        batch, n = draw.size(), draw.size(1) % 6 + 1
        return [draw.floats((batch, n, n)) + 3 * torch.eye(n), draw.floats((batch, n, m))]
    sizes = {letter: draw.size() % 5 for letter in "abcdhijkl"}
    operands = name.removeprefix("einsum ").split("->")[0].split(",")
    return [draw.floats([sizes[letter] for letter in own]) for own in operands]


def attended(draw, name):
    batch = draw.shape(1 + draw.below(2), 1)
    queries, keys, width, values = (1 + draw.size() % 6 for _ in range(4))
    arrays = [draw.floats((*batch, queries, width)), draw.floats((*batch, keys, width)),
              draw.floats((*batch, keys, values))]
    if name == "attention(mask)":
        mask = (queries, keys)
        arrays.append(draw.floats(mask) if draw.chance() else draw.whole(mask, 0, 2, torch.bool))
    return arrays


def steps(draw, name):
    gates = {"rnn": 1, "rnn_relu": 1, "lstm": 4, "gru": 3}[name.removesuffix("(reverse)")]
    count, n, width, hidden = (1 + draw.size() % 5 for _ in range(4))
    start = [draw.floats((n, hidden)) for _ in range(2 if gates == 4 else 1)]
    return [draw.floats((count, n, width)), *start, draw.floats((gates * hidden, width), -1, 1),
            draw.floats((gates * hidden, hidden), -1, 1), draw.floats((gates * hidden,)),
            draw.floats((gates * hidden,))]


def batch_norm(draw, name):
    x = draw.floats((draw.size(2), draw.size(1) % 5 + 1, *draw.shape(draw.below(3), 1)))
    return [x, *(draw.floats(x.shape[1:2]) for _ in range(3)), draw.floats(x.shape[1:2], 0.5, 2)]


# How the inputs are drawn of functions whose call in families.py fits all shapes.
UNARY = ["relu", "leaky_relu(0.1)", "elu(1.5)", "selu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "softplus",
         "softsign", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "square", "abs", "sign", "erf", "sin", "cos",
         "floor", "ceil", "round", "clip(-1,0.5)", "reciprocal", "negative", "add(1.5)", "subtract(1.5)",
         "1.5-subtract", "multiply(1.5)", "divide(1.5)", "1.5-divide", "maximum(0.5)", "minimum(0.5)", "greater(0.5)",
         "less_equal(0.5)", "equal(1)", "remainder(1.5)", "1.5-remainder", "nonzero", "to int64", "to bool"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "not_equal", "greater",
          "greater_equal", "less", "less_equal", "power", "remainder", "floor_divide", "logical_and", "logical_or",
          "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"]
LOSSES = [name for name in FIXED if name.split("/")[0] in (
    "squared", "absolute", "huber(0.75)", "sigmoid_cross_entropy", "kl_divergence", "cross_entropy(0)",
    "cross_entropy(0.2)", "weighted_cross_entropy(0)", "weighted_cross_entropy(0.2)", "soft_cross_entropy", "hinge")]
NORMS = ["layer_norm", "rms_norm", "instance_norm"]
PRODUCTS = [name for name in FIXED if name in ("matmul", "matmul(a',b')", "batch_matmul", "batch_matmul(b')", "outer",
                                               "dense") or name.startswith(("dense_", "triangular_solve", "einsum "))
            if "..." not in name and "no tape" not in name]
ATTENTION = ["attention", "attention(causal)", "attention(scale)", "attention(mask)"]
RECURRENT = [cell + end for cell in ("rnn", "rnn_relu", "lstm", "gru") for end in ("", "(reverse)")]
KNOWN = {name: how for how, names in (
    (elementwise, UNARY), (pair, BINARY), (losses, LOSSES), (normalized, NORMS), (products, PRODUCTS),
    (attended, ATTENTION), (steps, RECURRENT), (batch_norm, ["batch_norm", "batch_norm(fixed)"])) for name in names}


def reduced(f, floats_only=False, refused=None):
    def draw_one(draw):
        x = draw.floats(draw.shape()) if floats_only else draw.array(draw.shape())
        if x.dtype == refused:
            x = x.to(torch.int32)
        axes, keep = draw.axes(x), draw.chance()
        dims = axes or list(range(x.dim()))
        return [keep, *axes], [x], lambda x: f(x, dims, keep)
    return draw_one


def product(x, dims, keep):
    if x.dim() == 0:
        return torch.prod(x)
    for axis in sorted((axis % x.dim() for axis in dims), reverse=True):
        x = torch.prod(x, axis, keepdim=True)
    return x if keep else x.reshape([n for i, n in enumerate(x.shape) if i not in [axis % x.dim() for axis in dims]])


def along(f, *more, arrays=None):
    """A function of an array and an axis, and of numbers below those of `more`."""
    def draw_one(draw):
        x = (arrays or Draw.array)(draw, draw.shape())
        axis, numbers = draw.axis(x), [draw.below(end) for end in more]
        return [axis, *numbers], [x], lambda x: f(x, axis, *numbers)
    return draw_one


def reversed_sum(x, axis, reverse):
    if x.dim() and reverse:
        return torch.cumsum(x.flip(axis), axis).flip(axis)
    return torch.cumsum(x, axis)


def top_k(draw):
    x = draw.floats(draw.shape(1 + draw.below(3), 1))
    axis, largest = draw.axis(x), draw.below(2)
    k = 1 + draw.below(x.shape[axis])
    return [axis, largest, k], [x], lambda x: torch.topk(x, k, axis, largest=bool(largest))


def masked(f):
    def draw_one(draw):
        x = draw.floats(draw.shape(1 + draw.below(3), 1))
        axis = draw.axis(x)
        mask = draw.whole(x.shape, 0, 4, torch.bool)
        mask.select(axis, 0).fill_(True)  # nothing but masked places has no gradient in PyTorch
        return [axis], [x, mask], lambda x, m: f((x / 2).masked_fill(~m, -families.INF), axis)
    return draw_one


def concat(draw):
    x = draw.array(draw.shape(1 + draw.below(3)))
    axis = draw.axis(x)
    arrays = [x]
    for _ in range(draw.below(4)):
        shape = list(x.shape)
        shape[axis] = draw.size()
        arrays.append(draw.floats(shape) if x.is_floating_point() else draw.whole(shape, 0, 2, x.dtype))
    return [axis], arrays, lambda *x: torch.cat(x, axis)


def stack(draw):
    x = draw.array(draw.shape())
    axis = draw.axis(x, 1)
    arrays = [x] + [x.clone() for _ in range(draw.below(3))]
    return [axis], arrays, lambda *x: torch.stack(x, axis)


def split(draw):
    x = draw.array(draw.shape(1 + draw.below(3)))
    axis = draw.axis(x)
    sizes, rest = [], x.shape[axis]
    while rest > 0:
        sizes.append(1 + draw.below(rest))
        rest -= sizes[-1]
    sizes = sizes or [0]
    return [axis, *sizes], [x], lambda x: list(torch.split(x, sizes, axis))


def sliced(draw):
    x = draw.array(draw.shape(1 + draw.below(3)))
    axis = draw.axis(x)
    begin, end = sorted(draw.below(x.shape[axis] + 1) for _ in range(2))
    step = 1 + draw.below(3)
    places = torch.arange(begin, end, step)
    return [axis, begin, end, step], [x], lambda x: torch.index_select(x, axis, places)


def positions(draw, count, shape, from_back=False):
    return draw.whole(shape, -count if from_back else 0, max(count, 1))


def take(draw):
    x = draw.array(draw.shape(1 + draw.below(3), 1))
    axis = draw.axis(x) % x.dim()
    where = positions(draw, x.shape[axis], draw.shape(1 + draw.below(2)), True)
    return [axis], [x, where], lambda x, i: x[(slice(None),) * axis + (i,)]


def gather(draw):
    x = draw.array(draw.shape(1 + draw.below(3), 1))
    axis = draw.axis(x) % x.dim()
    shape = [draw.size() if i == axis else n for i, n in enumerate(x.shape)]
    return [axis], [x, positions(draw, x.shape[axis], shape)], lambda x, i: torch.gather(x, axis, i)


def scatter_add(draw):
    x = draw.floats(draw.shape(1 + draw.below(3), 1))
    axis = draw.axis(x) % x.dim()
    shape = [draw.size() if i == axis else n for i, n in enumerate(x.shape)]
    where = positions(draw, x.shape[axis], shape)
    return [axis], [x, where, draw.floats(shape)], lambda x, i, v: x.scatter_add(axis, i, v)


def gather_nd(draw):
    x = draw.array(draw.shape(1 + draw.below(3), 1))
    axes, count = 1 + draw.below(x.dim()), draw.size()
    where = torch.stack([positions(draw, x.shape[i], (count,), True) for i in range(axes)])
    return [], [x, where], lambda x, i: x[tuple(i)]


def chosen(name):
    def draw_one(draw):
        x = draw.array(draw.shape())
        mask = draw.whole(x.shape, 0, 2, torch.bool)
        if name == "masked_select":
            return [], [x, mask], torch.masked_select
        x = draw.floats(x.shape)
        return [], [x, mask], lambda x, m: torch.masked_fill(x, m, 0.5)
    return draw_one


def where(draw):
    shape = draw.shape()
    condition = draw.whole(draw.broadcast(shape), 0, 2, torch.bool)
    return [], [condition, draw.array(shape), draw.array(draw.broadcast(shape))], torch.where


def pad(draw):
    x = draw.floats(draw.shape(1 + draw.below(3)))
    widths = [(draw.below(3), draw.below(3)) for _ in x.shape]
    flat = [w for pair in reversed(widths) for w in pair]
    return [w for pair in widths for w in pair], [x], lambda x: F.pad(x, flat, value=0.5)


def tile(draw):
    x = draw.array(draw.shape(draw.below(4)))
    times = [1 + draw.below(3) for _ in range(x.dim())]
    return times, [x], lambda x: x.tile(*times) if times else x.clone()


def flip(draw):
    x = draw.array(draw.shape())
    axes = draw.axes(x) or list(range(x.dim()))
    return axes, [x], lambda x: x.flip(axes)


def transpose(draw):
    x = draw.array(draw.shape())
    order = draw.permutation(x.dim())
    return order, [x], lambda x: x.permute(order)


def reshape(draw):
    x = draw.array(draw.shape(None, 1))
    rest, sizes = x.numel(), []
    while rest > 1 and len(sizes) < 6:
        size = draw.random.choice([n for n in range(1, rest + 1) if rest % n == 0])
        sizes.append(size)
        rest //= size
    if sizes:
        sizes.append(rest)
    if sizes and draw.chance():
        sizes[draw.below(len(sizes))] = -1
    return sizes or [1], [x], lambda x: x.reshape(sizes or [1])


def squeeze(draw):
    x = draw.array(draw.shape(1 + draw.below(3)))
    axis = draw.axis(x)
    x = x.narrow(axis, 0, 1) if x.shape[axis] else x.sum(axis, keepdim=True)
    return [axis], [x.clone()], lambda x: x.squeeze(axis)


def widened(draw):
    shape = draw.shape()
    x = draw.array(draw.broadcast(shape))
    return list(shape), [x], lambda x: x.expand(shape)


def sum_to(draw):
    shape = draw.shape()
    target = draw.broadcast(shape)
    return list(target), [draw.floats(shape)], lambda x: x.sum_to_size(target)


def one_hot(draw):
    classes = draw.size(1)
    return [classes], [draw.whole(draw.shape(), 0, classes)], lambda i: F.one_hot(i, classes)


def embedding(draw):
    rows = draw.size(1)
    return [], [draw.whole(draw.shape(1 + draw.below(2)), 0, rows), draw.floats((rows, draw.size()))], F.embedding


def triangle(f):
    def draw_one(draw):
        diagonal = draw.below(7) - 3
        return [diagonal], [draw.array(draw.shape(2 + draw.below(2)))], lambda x: f(x, diagonal)
    return draw_one


def group_norm(draw):
    groups = 1 + draw.below(3)
    x = draw.floats((draw.size(1), groups * (1 + draw.below(2)), *draw.shape(draw.below(3), 2)))
    arrays = [x, draw.floats(x.shape[1:2]), draw.floats(x.shape[1:2])]
    return [groups], arrays, lambda x, s, b: F.group_norm(x, groups, s, b)


def convolution(transposed):
    kinds = ((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d) if transposed else
             (F.conv1d, F.conv2d, F.conv3d))

    def draw_one(draw):
        axes, groups = 1 + draw.below(3), 1 + draw.below(2)

        def each(end):
            return [draw.below(end) for _ in range(axes)]

        stride, padding, dilation = [1 + n for n in each(3)], each(3), [1 + n for n in each(2)]
        kernel, into, out = [1 + n for n in each(3)], 1 + draw.below(3), 1 + draw.below(3)
        x = draw.floats((1 + draw.below(3), groups * into, *(1 + n for n in each((9, 7, 4)[axes - 1]))))
        shape = (groups * into, out) if transposed else (groups * out, into)
        arrays = [x, draw.floats((*shape, *kernel), -1, 1), draw.floats((groups * out,))]
        how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return [*stride, *padding, *dilation, groups], arrays, lambda *x: kinds[axes - 1](*x, **how)
    return draw_one


def pool(kind):
    kinds = {"max": (F.max_pool1d, F.max_pool2d, F.max_pool3d), "average": (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)}

    def draw_one(draw):
        axes = 1 + draw.below(3)
        kernel = [1 + draw.below(3) for _ in range(axes)]
        stride, padding = [1 + draw.below(3) for _ in range(axes)], [draw.below(k // 2 + 1) for k in kernel]
        up, counts = draw.below(2), draw.below(2) if kind == "average" else 1
        x = draw.floats((draw.below(3), 1 + draw.below(2), *(k + draw.below((12, 8, 5)[axes - 1]) for k in kernel)))
        how = {"count_include_pad": bool(counts)} if kind == "average" else {}
        f = kinds[kind][axes - 1]
        numbers = [*kernel, *stride, *padding, up, counts]
        return numbers, [x], lambda x: f(x, kernel, stride, padding, ceil_mode=bool(up), **how)
    return draw_one


def resized(kinds, **how):
    def draw_one(draw):
        axes = 1 + draw.below(3)
        size = [1 + draw.below(6) for _ in range(axes)]
        x = draw.floats((draw.below(3), 1 + draw.below(2), *(1 + draw.below((12, 8, 5)[axes - 1]) for _ in size)))
        return size, [x], lambda x: kinds(axes)(x, size)
    return draw_one


def interpolated(draw_linear):
    def of(axes):
        mode = ("linear", "bilinear", "trilinear")[axes - 1]
        if draw_linear:
            return lambda x, size: F.interpolate(x, size, mode=mode, align_corners=False)
        return F.interpolate
    return resized(of)


def csr_matmul(draw):
    rows, columns, transpose = 1 + draw.size(), 1 + draw.size(), draw.below(2)
    counts = [draw.below(min(columns, 4) + 1) for _ in range(rows)]
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
    where = draw.whole((sum(counts),), 0, columns)
    b = draw.floats((rows if transpose else columns, draw.size()))

    def call(starts, where, values, b):
        line = torch.repeat_interleave(torch.arange(rows), starts.diff())
        a = torch.zeros((rows, columns), dtype=values.dtype).index_put((line, where), values, accumulate=True)
        return (a.T if transpose else a) @ b

    return [rows, columns, transpose], [starts, where, draw.floats((sum(counts),)), b], call


def plain(f, arrays=Draw.array, axes=lambda draw: None):
    def draw_one(draw):
        return [], [arrays(draw, draw.shape(axes(draw)))], f
    return draw_one


def specials(draw, shape):
    values = [families.NAN, families.INF, -families.INF, 0.0, 1.0]
    return families.array([draw.random.choice(values) for _ in range(torch.Size(shape).numel())]).reshape(shape)


norm = torch.linalg.vector_norm
OPERATORS = {
    "sum": reduced(lambda x, d, keep: torch.sum(x, d, keep)), "mean": reduced(torch.mean, True),
    "max": reduced(torch.amax, refused=torch.bool), "min": reduced(torch.amin, refused=torch.bool),
    "prod": reduced(product),
    "logsumexp": reduced(torch.logsumexp, True), "norm": reduced(lambda x, d, keep: norm(x, 2, d, keep), True),
    "norm1": reduced(lambda x, d, keep: norm(x, 1, d, keep), True), "any": reduced(torch.any, refused=torch.uint8),
    "all": reduced(torch.all, refused=torch.uint8),
    "var": reduced(lambda x, d, keep: torch.var(x, d, keepdim=keep), True),
    "std": reduced(lambda x, d, keep: torch.std(x, d, correction=0, keepdim=keep), True),
    "argmax": along(lambda x, axis, keep: torch.argmax(x, axis, bool(keep)), 2, arrays=Draw.floats),
    "argmin": along(lambda x, axis, keep: torch.argmin(x, axis, bool(keep)), 2, arrays=Draw.floats),
    "cumsum": along(reversed_sum, 2, arrays=Draw.floats), "cumprod": along(torch.cumprod, arrays=Draw.floats),
    "sort": along(lambda x, axis, down: torch.sort(x, dim=axis, descending=bool(down), stable=True), 2),
    "argsort": along(lambda x, axis, down: torch.argsort(x, dim=axis, descending=bool(down), stable=True), 2),
    "top_k": top_k, "softmax": along(torch.softmax, arrays=Draw.floats),
    "log_softmax": along(torch.log_softmax, arrays=Draw.floats), "masked_softmax": masked(torch.softmax),
    "masked_log_softmax": masked(torch.log_softmax),
    "l2_normalize": along(lambda x, axis: F.normalize(x, dim=axis), arrays=Draw.floats), "concat": concat,
    "stack": stack, "split": split, "slice": sliced, "take": take, "gather": gather, "scatter_add": scatter_add,
    "gather_nd": gather_nd, "masked_select": chosen("masked_select"), "masked_fill(0.5)": chosen("masked_fill"),
    "where": where, "pad": pad, "tile": tile, "repeat": along(lambda x, axis, n: x.repeat_interleave(n, axis), 4),
    "flip": flip, "transpose": transpose, "reshape": reshape, "squeeze": squeeze,
    "expand_dims": along(lambda x, axis: x.unsqueeze(axis)), "broadcast_to": widened, "sum_to": sum_to,
    "one_hot": one_hot, "embedding": embedding, "tril": triangle(torch.tril), "triu": triangle(torch.triu),
    "group_norm": group_norm, "convolution": convolution(False), "transposed_convolution": convolution(True),
    "max_pool": pool("max"), "average_pool": pool("average"),
    "adaptive_max_pool": resized(
        lambda n: (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[n - 1]),
    "adaptive_average_pool": resized(
        lambda n: (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[n - 1]),
    "upsample_nearest": interpolated(False), "upsample_linear": interpolated(True), "csr_matmul": csr_matmul,
    "copy": plain(torch.clone), "flatten": plain(lambda x: x.flatten(1), axes=lambda draw: 2 + draw.below(2)),
    "bitwise_not": plain(torch.bitwise_not, lambda draw, shape: draw.whole(shape)),
    "logical_not": plain(torch.logical_not), "isnan": plain(torch.isnan, specials),
    "isinf": plain(torch.isinf, specials), "isfinite": plain(torch.isfinite, specials),
}
OPERATORS |= {
    name: lambda draw, name=name, how=how: ([], how(draw, name), FIXED[name])
    for name, how in KNOWN.items() if name not in OPERATORS
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=4000, help="draws, over all functions in turn")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names, arrays, refused = sorted(OPERATORS), {}, 0
    for number in range(options.number):
        name = names[number % len(names)]
        for attempt in range(50):
            draw = Draw((options.seed * 1_000_003 + number) * 64 + attempt)
            try:
                numbers, inputs, call = OPERATORS[name](draw)
                new = generate.run(name, str(number), call, inputs)
                if all(array.dtype in generate.TYPES for array in new.values()):  # int16 is no type of ours
                    break
            except (RuntimeError, IndexError, ValueError, TypeError):
                refused += 1
        else:
            sys.exit(f"draws.py: PyTorch refused 50 draws of {name}")
        if numbers:
            new[f"{name}/{number}/a"] = torch.tensor([int(n) for n in numbers])
        arrays |= new
    generate.write(options.out, arrays)
    print(f"seed {options.seed}: {options.number} draws of {len(names)} functions; PyTorch refused {refused} more")


if __name__ == "__main__":
    main()
