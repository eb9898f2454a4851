"""The functions and inputs of the fixtures, by family: yields (function, case, call, inputs)."""

import math

import torch
import torch.nn.functional as F

NAN, INF = math.nan, math.inf


def sample(shape, seed, low=-2.0, high=2.0):
    """Different multiples of 2^-10 in [low, high), none an integer."""
    generator = torch.Generator().manual_seed(seed)
    steps = int((high - low) * 512)
    count = math.prod(shape)
    chosen = torch.randperm(steps, generator=generator)[:count] * 2 + 1
    return (low + chosen.to(torch.float64) / 1024).reshape(shape)


def array(values):
    return torch.tensor(values, dtype=torch.float64)


def integers(values):
    return torch.tensor(values, dtype=torch.int64)


SPECIAL = [NAN, INF, -INF, 0.0, 1.0, -1.0, 30.0, -30.0, 0.5]


def unary():
    identity = [
        ("relu", torch.relu), ("leaky_relu(0.1)", lambda x: F.leaky_relu(x, 0.1)),
        ("elu(1.5)", lambda x: F.elu(x, 1.5)), ("selu", torch.selu), ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("silu", F.silu), ("sigmoid", torch.sigmoid), ("tanh", torch.tanh),
        ("softplus", lambda x: F.softplus(x, threshold=50)), ("softsign", F.softsign), ("exp", torch.exp),
        ("expm1", torch.expm1), ("square", torch.square), ("abs", torch.abs), ("sign", torch.sign),
        ("erf", torch.erf), ("sin", torch.sin), ("cos", torch.cos), ("floor", torch.floor), ("ceil", torch.ceil),
        ("round", torch.round), ("clip(-1,0.5)", lambda x: torch.clamp(x, -1, 0.5)),
        ("reciprocal", torch.reciprocal), ("negative", torch.neg),
    ]
    positive = [("log", torch.log), ("log1p", torch.log1p), ("sqrt", torch.sqrt), ("rsqrt", torch.rsqrt)]
    for functions, low, high in ((identity, -3, 3), (positive, 0, 4)):
        for seed, (name, f) in enumerate(functions):
            yield name, "ordinary", f, [sample((2, 3, 2), seed, low, high)]
            yield name, "empty", f, [sample((3, 0), seed)]
            yield name, "one", f, [sample((), seed, low, high)]
            yield name, "special", f, [array(SPECIAL)]
    yield "round", "halves", torch.round, [array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])]
    for slope, case in ((1, "one slope"), (3, "slopes")):
        yield "prelu", case, F.prelu, [sample((2, 3, 2), 50), sample((slope,), 51)]
    yield "prelu", "empty", F.prelu, [sample((0, 3), 50), sample((3,), 51)]
    yield "prelu", "special", F.prelu, [array(SPECIAL), sample((1,), 51)]


def binary():
    arithmetic = [("add", torch.add), ("subtract", torch.sub), ("multiply", torch.mul), ("divide", torch.div),
                  ("maximum", torch.maximum), ("minimum", torch.minimum)]
    comparisons = [("equal", torch.eq), ("not_equal", torch.ne), ("greater", torch.gt), ("greater_equal", torch.ge),
                   ("less", torch.lt), ("less_equal", torch.le)]
    pairs = [(a, b) for a in (NAN, INF, -INF, 0.0, 2.0) for b in (NAN, INF, -INF, 0.0, 2.0)]
    left, right = array([a for a, _ in pairs]), array([b for _, b in pairs])
    for seed, (name, f) in enumerate(arithmetic + comparisons + [("power", torch.pow)]):
        low = 0 if name == "power" else -2
        yield name, "ordinary", f, [sample((2, 3), seed, low), sample((2, 3), seed + 40)]
        yield name, "broadcast", f, [sample((2, 1, 3), seed, low), sample((4, 1), seed + 40)]
        yield name, "one", f, [sample((1,), seed, low), sample((), seed + 40)]
        yield name, "empty", f, [sample((0, 3), seed, low), sample((3,), seed + 40)]
        yield name, "special", f, [left, right]
    bits = [("bitwise_and", torch.bitwise_and), ("bitwise_or", torch.bitwise_or), ("bitwise_xor", torch.bitwise_xor)]
    logic = [("logical_and", torch.logical_and), ("logical_or", torch.logical_or), ("logical_xor", torch.logical_xor)]
    steps = [("remainder", torch.remainder), ("floor_divide", lambda a, b: torch.div(a, b, rounding_mode="floor"))]
    whole, divisors = integers([7, -7, 7, -7, 6, -6, 0]), integers([3, 3, -3, -3, -3, 3, -2])
    for seed, (name, f) in enumerate(logic + steps):
        yield name, "ordinary", f, [sample((2, 3), seed), sample((2, 3), seed + 40)]
        yield name, "broadcast", f, [sample((2, 1, 3), seed), sample((4, 1), seed + 40)]
        yield name, "special", f, [left, right]
        yield name, "integers", f, [whole, divisors]
    for name, f in bits:
        yield name, "integers", f, [whole, divisors]
        yield name, "bool", f, [torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])]
    yield "power", "zeros", torch.pow, [array([0, 0, 0, 2, -2]), array([0, 1, 2, 0, 2])]
    scalars = [
        ("add(1.5)", lambda x: x + 1.5), ("subtract(1.5)", lambda x: x - 1.5), ("1.5-subtract", lambda x: 1.5 - x),
        ("multiply(1.5)", lambda x: x * 1.5), ("divide(1.5)", lambda x: x / 1.5), ("1.5-divide", lambda x: 1.5 / x),
        ("power(3)", lambda x: x**3), ("power(0)", lambda x: x**0), ("power(0.5)", lambda x: x**0.5),
        ("1.5-power", lambda x: 1.5**x), ("maximum(0.5)", lambda x: torch.clamp(x, min=0.5)),
        ("minimum(0.5)", lambda x: torch.clamp(x, max=0.5)), ("greater(0.5)", lambda x: x > 0.5),
        ("less_equal(0.5)", lambda x: x <= 0.5), ("equal(1)", lambda x: x == 1),
        ("remainder(1.5)", lambda x: torch.remainder(x, 1.5)),
        ("1.5-remainder", lambda x: torch.remainder(1.5, x)),
        ("floor_divide(1.5)", lambda x: torch.div(x, 1.5, rounding_mode="floor")),
    ]
    for seed, (name, f) in enumerate(scalars):
        yield name, "ordinary", f, [sample((2, 3), seed, 0)]
        yield name, "empty", f, [sample((0, 3), seed)]
        yield name, "one", f, [sample((), seed, 0)]
        yield name, "special", f, [array(SPECIAL)]
    condition = torch.tensor([[True], [False]])
    yield "where", "ordinary", torch.where, [array([[1, 0, 1], [0, 0, 1]]) > 0, sample((2, 3), 1), sample((2, 3), 2)]
    yield "where", "broadcast", torch.where, [condition, sample((3,), 1), sample((), 2)]
    yield "where", "special", torch.where, [left > 0, left, right]
    yield "where", "one", torch.where, [condition[0], sample((1,), 1), sample((), 2)]
    yield "where", "empty", torch.where, [condition, sample((2, 0), 1), sample((2, 1), 2)]


def reduction():
    ordinary = sample((2, 3, 4), 1)
    zeros = array([[1, 0, 2, 4], [0, 3, 0, 1], [4, 5, 6, 2]])
    special = array([[NAN, 1, 2], [INF, 1, 2], [-INF, 1, 2], [INF, -INF, 0], [-INF, -INF, -INF], [0, 0, 0]])
    norm = torch.linalg.vector_norm
    by_axes = [
        ("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax), ("min", torch.amin),
        ("logsumexp", torch.logsumexp), ("norm2", lambda x, dim: norm(x, 2, dim)),
        ("norm1", lambda x, dim: norm(x, 1, dim)), ("norm3", lambda x, dim: norm(x, 3, dim)),
        ("norm_inf", lambda x, dim: norm(x, INF, dim)), ("prod", lambda x, dim: torch.prod(x, dim[0])),
        ("argmax", lambda x, dim: torch.argmax(x, dim[0])), ("argmin", lambda x, dim: torch.argmin(x, dim[0])),
        ("cumsum", lambda x, dim: torch.cumsum(x, dim[0])), ("cumprod", lambda x, dim: torch.cumprod(x, dim[0])),
        ("any", torch.any), ("all", torch.all), ("var", lambda x, dim: torch.var(x, dim)),
        ("var(0)", lambda x, dim: torch.var(x, dim, correction=0)), ("std", lambda x, dim: torch.std(x, dim)),
    ]
    for name, f in by_axes:
        one_axis = name in ("prod", "argmax", "argmin", "cumsum", "cumprod")
        nothing = name not in ("max", "min", "norm_inf", "argmax", "argmin")
        for case, dims in (("last", (2,)), ("middle", (1,)), ("outer and inner", (0, 2)), ("all", (0, 1, 2))):
            if len(dims) == 1 or not one_axis:
                yield f"{name}/{','.join(map(str, dims))}", case, lambda x, f=f, d=dims: f(x, d), [ordinary]
        last = lambda x, f=f: f(x, (1,))
        # PyTorch divides by infinities for the gradient of cumprod; var's of them are NaN or infinite either way.
        if name not in ("cumprod", "var", "var(0)"):
            yield f"{name}/1", "special", last, [special]
        yield f"{name}/1", "one", last, [sample((1, 1), 2)]
        yield f"{name}/1", "no results", last, [sample((0, 3), 2)]
        if nothing:
            yield f"{name}/1", "of nothing", last, [sample((2, 0), 2)]
    yield "prod/1", "zeros", lambda x: torch.prod(x, 1), [zeros]
    yield "cumprod/1", "zeros", lambda x: torch.cumprod(x, 1), [zeros]
    yield "std/1", "equal", lambda x: torch.std(x, 1), [array([[2, 2, 2], [1, 2, 3]])]
    yield "max/1", "ties", lambda x: torch.amax(x, 1), [array([[1, 3, 3], [2, 2, 2]])]
    ordered = [("sort/1", lambda x: torch.sort(x, dim=1, stable=True)),
               ("sort_descending/0", lambda x: torch.sort(x, dim=0, descending=True, stable=True)),
               ("argsort/1", lambda x: torch.argsort(x, dim=1, stable=True)),
               ("top_2/1", lambda x: torch.topk(x, 2, 1)), ("bottom_2/0", lambda x: torch.topk(x, 2, 0, largest=False))]
    for name, f in ordered:
        yield name, "ordinary", f, [sample((3, 4), 5)]
        yield name, "special", f, [array([[NAN, INF, 1], [-INF, NAN, 2], [1, -INF, INF]])]
        yield name, "empty", f, [sample((0, 4) if name.endswith("1") else (4, 0), 5)]
        if not name.endswith(("top_2/1", "bottom_2/0")):
            yield name, "one", f, [sample((1, 1), 5)]
    yield "sort/1", "of nothing", ordered[0][1], [sample((2, 0), 5)]
    yield "top_1/1", "one", lambda x: torch.topk(x, 1, 1), [sample((1, 1), 5)]


def shape():
    x = sample((2, 3, 4), 1)
    places = integers([[2, 0, 1, 1], [0, 0, 2, 1]])
    empty = integers([]).reshape(0, 3, 4)
    calls = [
        ("reshape(4,-1)", lambda x: x.reshape(4, -1), [x]), ("reshape(-1,1)", lambda x: x.reshape(-1, 1), [x]),
        ("transpose(2,0,1)", lambda x: x.permute(2, 0, 1), [x]),
        ("concat/1", lambda *x: torch.cat(x, 1), [x, sample((2, 1, 4), 2)]),
        ("stack/-1", lambda *x: torch.stack(x, -1), [sample((2, 3), 1), sample((2, 3), 2)]),
        ("split/1", lambda x: list(torch.split(x, [1, 2], 1)), [x]), ("slice/2", lambda x: x[:, :, 1:3], [x]),
        ("slice/2/2", lambda x: x[:, :, 0:4:2], [x]), ("slice/2/3", lambda x: x[:, :, 1:4:3], [x]),
        ("take(-1)/1", lambda x, i: x[:, i], [x, integers([-1, 0, -3, 2])]),
        ("gather_nd", lambda x, i: x[i[0], i[1]], [x, integers([[1, 0, -1], [2, 2, -3]])]),
        ("masked_select", torch.masked_select, [x, x > 0.5]), ("nonzero", torch.nonzero, [x > 0.5]),
        ("masked_fill(0.5)", lambda x, m: torch.masked_fill(x, m, 0.5), [x, x > 0.5]),
        ("pad", lambda x: F.pad(x, (1, 2, 0, 1, 0, 0), value=0.5), [x]),
        ("tile(2,1,3)", lambda x: x.tile(2, 1, 3), [x]),
        ("repeat(3)/1", lambda x: x.repeat_interleave(3, 1), [x]),
        ("broadcast_to(2,3,4)", lambda x: x.expand(2, 3, 4), [sample((3, 1), 1)]),
        ("broadcast_to(2,0,4)", lambda x: x.expand(2, 0, 4), [sample((1, 4), 1)]),
        ("squeeze/1", lambda x: x.squeeze(1), [sample((2, 1, 3), 1)]),
        ("expand_dims/1", lambda x: x.unsqueeze(1), [sample((2, 3), 1)]),
        ("flip(0,2)", lambda x: x.flip(0, 2), [x]),
        ("take/1", lambda x, i: torch.index_select(x, 1, i), [x, integers([2, 0, 2, 2])]),
        ("gather/1", lambda x, i: torch.gather(x, 1, i), [x, places.reshape(2, 1, 4)]),
        ("scatter_add/1", lambda x, i, v: x.scatter_add(1, i, v), [x, places.reshape(2, 1, 4), sample((2, 1, 4), 3)]),
        ("one_hot(4)", lambda i: F.one_hot(i, 4), [places]),
        ("embedding", lambda i, w: F.embedding(i, w), [places, sample((3, 2), 3)]),
    ]
    for name, f, inputs in calls:
        yield name, "ordinary", f, inputs
    nothing = sample((0, 3, 4), 1)
    empties = {"transpose(2,0,1)": [nothing], "concat/1": [nothing, nothing], "split/1": [nothing],
               "slice/2": [nothing], "pad": [nothing], "tile(2,1,3)": [nothing], "repeat(3)/1": [nothing],
               "flip(0,2)": [nothing], "take/1": [x, integers([])], "gather/1": [nothing, empty],
               "scatter_add/1": [x, empty, nothing], "stack/-1": [nothing, nothing], "reshape(4,-1)": [nothing],
               "reshape(-1,1)": [nothing], "broadcast_to(2,0,4)": [sample((0, 1), 1)],
               "squeeze/1": [sample((0, 1, 3), 1)],
               "expand_dims/1": [nothing], "one_hot(4)": [integers([])], "embedding": [integers([]), sample((3, 2), 3)]}
    one = sample((1, 1, 1), 1)
    zero = integers([0]).reshape(1, 1, 1)
    ones = {"transpose(2,0,1)": [one], "concat/1": [one], "pad": [one], "tile(2,1,3)": [one], "repeat(3)/1": [one],
            "flip(0,2)": [one], "take/1": [one, integers([0])], "gather/1": [one, zero],
            "scatter_add/1": [one, zero, one], "stack/-1": [one, one], "reshape(-1,1)": [one],
            "broadcast_to(2,3,4)": [one], "broadcast_to(2,0,4)": [one], "squeeze/1": [one], "expand_dims/1": [one],
            "one_hot(4)": [zero], "embedding": [zero, sample((1, 1), 3)]}
    for name, f, _ in calls:
        if name in empties:
            yield name, "empty", f, empties[name]
        if name in ones:
            yield name, "one", f, ones[name]



def loss():
    pairs = [(0.5, 0.25), (-INF, 0.0), (INF, 1.0), (NAN, 0.5), (1.0, 1.0), (60.0, 0.0), (-60.0, 1.0)]
    left, right = array([a for a, _ in pairs]), array([b for _, b in pairs])
    losses = [
        ("squared", F.mse_loss, -2), ("absolute", F.l1_loss, -2),
        ("huber(0.75)", lambda p, t, reduction: F.huber_loss(p, t, reduction=reduction, delta=0.75), -2),
        ("sigmoid_cross_entropy", F.binary_cross_entropy_with_logits, 0), ("kl_divergence", F.kl_div, 0),
    ]
    for name, f, low in losses:
        for reduction in ("mean", "sum", "none"):
            call = lambda p, t, f=f, r=reduction: f(p, t, reduction=r)
            yield f"{name}/{reduction}", "ordinary", call, [sample((2, 3), 1), sample((2, 3), 2, low, 1)]
            yield f"{name}/{reduction}", "one", call, [sample((1,), 1), sample((1,), 2, low, 1)]
            yield f"{name}/{reduction}", "empty", call, [sample((0, 3), 1), sample((0, 3), 2)]
        yield f"{name}/none", "special", lambda p, t, f=f: f(p, t, reduction="none"), [left, right]
    yield "kl_divergence/none", "ends", lambda p, t: F.kl_div(p, t, reduction="none"), [
        array([0.5, -INF, INF, NAN, -1, -1, 0.5]), array([0, 0, 0, 0, NAN, INF, -0.5])]
    hinge = lambda p, t: torch.clamp(1 - p * t, min=0).mean()
    yield "hinge/mean", "ordinary", hinge, [sample((2, 3), 1), array([[1, -1, 1], [-1, -1, 1]])]
    yield "hinge/mean", "empty", hinge, [sample((0, 3), 1), sample((0, 3), 2)]
    yield "hinge/mean", "one", hinge, [sample((1,), 1), array([1])]
    yield "hinge/mean", "special", hinge, [array([-INF, 60, -60]), array([1, 1, -1])]
    scores, labels = sample((4, 5), 3), integers([0, 4, 2, 2])
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.2):
            call = lambda x, t, r=reduction, e=smoothing: F.cross_entropy(
                x, t, reduction=r, label_smoothing=e, ignore_index=2)
            name = f"cross_entropy({smoothing:g})/{reduction}"
            yield name, "ordinary", call, [scores, labels]
            yield name, "one", call, [sample((1, 1), 3), integers([0])]
            yield name, "empty", call, [sample((0, 5), 3), integers([])]
            yield name, "all ignored", call, [sample((1, 3), 3), integers([2])]
            yield name, "special", call, [array([[INF, 0, 1], [NAN, 0, 1], [-INF, 0, 1]]), integers([1, 0, 0])]
            weighted = lambda x, t, w, r=reduction, e=smoothing: F.cross_entropy(
                x, t, w.to(x.dtype) / 4, reduction=r, label_smoothing=e, ignore_index=2)
            yield f"weighted_{name}", "ordinary", weighted, [scores, labels, integers([3, 1, 4, 2, 6])]
        soft = lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r)
        yield f"soft_cross_entropy/{reduction}", "ordinary", soft, [scores, torch.softmax(sample((4, 5), 9), 1)]


def normalize():
    x, image = sample((3, 2, 4), 1), sample((2, 4, 3), 2)
    four, other, pair = sample((4,), 3), sample((4,), 4), sample((2, 4), 5)
    special = array([[NAN, 1, 2, 3], [INF, 1, 2, 3], [1, 1, 1, 1], [0, 0, 0, 0]])
    layer = lambda x, s, b: F.layer_norm(x, s.shape, s, b)
    rms = lambda x, s: F.rms_norm(x, s.shape, s, 1e-6)
    group = lambda x, s, b: F.group_norm(x, 2, s, b)
    yield "layer_norm", "ordinary", layer, [x, four, other]
    yield "layer_norm", "two axes", layer, [x, pair, pair]
    yield "layer_norm", "empty", layer, [sample((0, 4), 1), four, other]
    yield "layer_norm", "one", layer, [sample((1, 1), 1), sample((1,), 2), sample((1,), 3)]
    yield "layer_norm", "special", layer, [special, four, other]
    yield "layer_norm(plain)", "ordinary", lambda x: F.layer_norm(x, (4,)), [x]
    yield "rms_norm", "ordinary", rms, [x, four]
    yield "rms_norm", "empty", rms, [sample((0, 4), 1), four]
    yield "rms_norm", "special", rms, [special, four]
    yield "group_norm(2)", "ordinary", group, [image, four, other]
    yield "group_norm(2)", "without places", group, [special, four, other]
    instance = lambda x, s, b: F.instance_norm(x, weight=s, bias=b)
    yield "instance_norm", "ordinary", instance, [image, four, other]
    yield "instance_norm", "one channel", instance, [sample((1, 1, 5), 7), sample((1,), 2), sample((1,), 3)]
    yield "instance_norm", "special", instance, [special.reshape(1, 4, 4), four, other]
    yield "l2_normalize/1", "ordinary", lambda x: F.normalize(x, dim=1), [x]
    yield "l2_normalize/1", "special", lambda x: F.normalize(x, dim=1), [special]
    mask = torch.tensor([[True, False, True, True], [True, True, True, False]])
    special = array([[NAN, 1, 2], [INF, 1, 2], [-INF, 1, 2], [-INF, -INF, -INF], [1000, 0, -1000]])
    for name, f in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        yield f"{name}/-1", "ordinary", lambda x, f=f: f(x, -1), [x]
        yield f"{name}/-1", "special", lambda x, f=f: f(x, -1), [special]
        yield f"{name}/-1", "empty", lambda x, f=f: f(x, -1), [sample((2, 0), 1)]
        yield f"{name}/-1", "one", lambda x, f=f: f(x, -1), [sample((1,), 1)]
        yield f"{name}/0", "ordinary", lambda x, f=f: f(x, 0), [x]
        masked = lambda x, m, f=f: f((x / 2).masked_fill(~m, -INF), -1)
        yield f"{name}(masked,2)", "ordinary", masked, [sample((2, 4), 6), mask]
        yield f"{name}(masked,2)", "empty", masked, [sample((0, 2, 4), 6), mask]
        yield f"{name}(masked,2)", "one", masked, [sample((1,), 6), mask[0, :1]]
        yield f"{name}(masked,2)", "special", masked, [special, mask[:1, :3]]


def linear():
    a, b = sample((2, 3), 1), sample((3, 4), 2)
    yield "matmul", "ordinary", torch.matmul, [a, b]
    yield "matmul", "batch", torch.matmul, [sample((2, 3, 2), 1), sample((2, 2, 4), 2)]
    yield "matmul", "no rows", torch.matmul, [sample((0, 3), 1), b]
    yield "matmul", "no depth", torch.matmul, [sample((2, 0), 1), sample((0, 4), 1)]
    yield "matmul", "one", torch.matmul, [sample((1, 1), 1), sample((1, 1), 2)]
    yield "matmul", "special", torch.matmul, [array([[INF, 1], [NAN, 0]]), array([[0, 1], [1, 2]])]
    yield "matmul(a',b')", "ordinary", lambda x, y: x.T @ y.T, [sample((3, 2), 1), sample((4, 3), 2)]
    yield "matmul(a',b')", "empty", lambda x, y: x.T @ y.T, [sample((3, 0), 1), sample((4, 3), 2)]
    yield "matmul(a',b')", "one", lambda x, y: x.T @ y.T, [sample((1, 1), 1), sample((1, 1), 2)]
    yield "batch_matmul", "broadcast", torch.matmul, [sample((2, 1, 2, 3), 1), sample((3, 3, 2), 2)]
    yield "batch_matmul", "empty", torch.matmul, [sample((0, 1, 2, 3), 1), sample((3, 3, 2), 2)]
    yield "batch_matmul(b')", "ordinary", lambda x, y: x @ y.mT, [sample((2, 2, 2, 3), 1), sample((2, 2, 4, 3), 2)]
    yield "batch_matmul(b')", "empty", lambda x, y: x @ y.mT, [sample((2, 0, 2, 3), 1), sample((2, 0, 4, 3), 2)]
    yield "batch_matmul(b')", "one", lambda x, y: x @ y.mT, [sample((1, 1, 1, 1), 1), sample((1, 1, 1, 1), 2)]
    yield "outer", "one", torch.outer, [sample((1,), 1), sample((1,), 2)]
    yield "outer", "ordinary", torch.outer, [sample((3,), 1), sample((2,), 2)]
    yield "outer", "empty", torch.outer, [sample((0,), 1), sample((2,), 2)]
    yield "dense", "ordinary", F.linear, [a, sample((4, 3), 2), sample((4,), 3)]
    yield "dense", "empty", F.linear, [sample((0, 3), 1), sample((4, 3), 2), sample((4,), 3)]
    yield "dense", "no columns", F.linear, [sample((2, 0), 1), sample((4, 0), 2), sample((4,), 3)]
    yield "dense", "one", F.linear, [sample((1, 1), 1), sample((1, 1), 2), sample((1,), 3)]
    yield "dense", "special", F.linear, [array([[INF, 1], [NAN, 0]]), array([[0, 1], [1, 2]]), sample((2,), 3)]
    equations = {"ij,jk->ik": (a, b), "bij,bjk->bik": (sample((2, 3, 2), 1), sample((2, 2, 3), 2)),
                 "bhid,bhjd->bhij": (sample((2, 2, 2, 3), 1), sample((2, 2, 3, 3), 2)),
                 "i,j->ij": (sample((2,), 1), sample((3,), 2)), "i,i->": (sample((4,), 1), sample((4,), 2)),
                 "ij->ji": (a,), "ijk->k": (sample((2, 3, 2), 1),), "ij,kl->il": (a, b),
                 "ij,jk,kl->il": (a, b, sample((4, 2), 3)), "bi,bi->b": (a, sample((2, 3), 3))}
    for equation, operands in equations.items():
        call = lambda *x, e=equation: torch.einsum(e, *x)
        yield f"einsum {equation}", "ordinary", call, list(operands)
        letters = equation.split("->")[0].split(",")
        for case, absent in (("empty", letters[0][0]), ("nothing to sum", letters[0][-1]), ("one", "")):
            sizes = [[0 if letter == absent else 1 if case == "one" else 2 for letter in own] for own in letters]
            yield f"einsum {equation}", case, call, [sample(size, i) for i, size in enumerate(sizes)]

    ellipses = {"...ij,...jk->...ik": ([(2, 1, 2, 3), (4, 3, 2)], [(0, 1, 2, 3), (4, 3, 2)]),
                "...ij,jk->i...k": ([(2, 3), (3, 2)], [(0, 2, 3), (3, 2)]),
                "b...,b->...": ([(2, 3, 2), (2,)], [(0, 3, 2), (0,)]),
                "i...->i": ([(2, 3, 2)], [(2, 0)]),
                "i...,...->...i": ([(2, 1, 3), (2, 4, 1)], [(2, 1, 3), (0, 1)])}
    for equation, shapes in ellipses.items():
        call = lambda *x, e=equation: torch.einsum(e, *x)
        ones = [(1,) * len(size) for size in shapes[0]]
        for case, sizes in zip(("ordinary", "empty", "one"), (*shapes, ones), strict=True):
            yield f"einsum {equation}", case, call, [sample(size, i) for i, size in enumerate(sizes)]

    for name, call in (("tril", torch.tril), ("triu(1)", lambda x: torch.triu(x, 1))):
        for case, shape in (("ordinary", (2, 3, 4)), ("empty", (2, 0, 3)), ("one", (1, 1))):
            yield name, case, call, [sample(shape, 1)]
        yield name, "special", call, [array([[NAN, INF, 1], [INF, NAN, NAN]])]
    solve = torch.linalg.solve_triangular
    for name, call in (("", lambda a, b: solve(a, b, upper=False)), ("(upper)", lambda a, b: solve(a, b, upper=True)),
                       ("(a')", lambda a, b: solve(a.mT, b, upper=True)),
                       ("(unit)", lambda a, b: solve(a, b, upper=False, unitriangular=True))):
        for case, (batch, n, k) in (("ordinary", (2, 3, 2)), ("empty", (0, 3, 2)), ("no columns", (1, 2, 0)),
                                    ("one", (1, 1, 1))):
            a = sample((batch, n, n), 1) + 3 * torch.eye(n)
            yield f"triangular_solve{name}", case, call, [a, sample((batch, n, k), 2)]
    singular = [array([[0, 5], [1, 2]]), array([[1], [2]])]
    yield "triangular_solve", "special", lambda a, b: solve(a, b, upper=False), singular

    def sparse(starts, columns, values):  # 3 rows of 4
        rows = torch.repeat_interleave(torch.arange(3), starts.diff())
        return torch.zeros((3, 4), dtype=values.dtype).index_put((rows, columns), values, accumulate=True)

    starts, columns = integers([0, 2, 2, 5]), integers([1, 3, 0, 3, 0])
    for case, places in (("ordinary", [starts, columns, sample((5,), 1)]),
                         ("empty", [integers([0] * 4), integers([]), sample((0,), 1)])):
        yield "csr_matmul", case, lambda s, c, v, b: sparse(s, c, v) @ b, places + [sample((4, 2), 2)]
        yield "csr_matmul(a')", case, lambda s, c, v, b: sparse(s, c, v).T @ b, places + [sample((3, 2), 2)]


def dense():
    w, b = sample((4, 3), 2), sample((4,), 3)
    square = array([[0, 1], [1, 2]])
    tanh_gelu = lambda x: F.gelu(x, approximate="tanh")
    for name, f in (("dense_relu", torch.relu), ("dense_gelu_tanh", tanh_gelu)):
        call = lambda x, w, b, f=f: f(F.linear(x, w, b))
        yield name, "ordinary", call, [sample((5, 3), 1), w, b]
        yield name, "flattened", lambda x, w, b, f=f: f(F.linear(x.flatten(1), w, b)), [
            sample((3, 2, 2), 1), sample((6, 4), 2), sample((6,), 3)]
        yield name, "empty", call, [sample((0, 3), 1), w, b]
        yield name, "no columns", call, [sample((2, 0), 1), sample((4, 0), 2), b]
        yield name, "one", call, [sample((1, 1), 1), sample((1, 1), 2), sample((1,), 3)]
        yield name, "special", call, [array([[INF, 1], [NAN, 0]]), square, sample((2,), 3)]
        yield f"{name}(plain)", "ordinary", lambda x, w, f=f: f(F.linear(x, w)), [sample((5, 3), 1), w]
        yield f"{name}(rows)", "ordinary", call, [sample((2, 3, 3), 1), w, b]
    alone = lambda x, w, b: tanh_gelu(F.linear(x, w, b)).detach()
    yield "dense_gelu_tanh(no tape)", "ordinary", alone, [sample((5, 3), 1), w, b]
    yield "dense_gelu_tanh(no tape)", "special", alone, [array([[INF, 1], [NAN, 0]]), square, sample((2,), 3)]


def convolution():
    image, weight, bias = sample((2, 4, 7, 6), 1), sample((6, 2, 3, 2), 2, -1, 1), sample((6,), 3)
    line, volume = sample((2, 4, 9), 4), sample((1, 4, 4, 5, 4), 5)
    how2 = dict(stride=(2, 1), padding=(1, 2), dilation=(2, 1), groups=2)
    how1 = dict(stride=2, padding=1, dilation=2, groups=2)
    how3 = dict(stride=(2, 1, 2), padding=(1, 0, 1), dilation=(1, 2, 1), groups=2)
    special = array([[[[NAN, 1, 2], [3, INF, 5], [6, 7, -INF]]]])
    square = sample((1, 1, 2, 2), 6)
    yield "conv(plain)", "one axis", lambda x, w, b: F.conv1d(x, w, b), [line, sample((3, 4, 2), 7), sample((3,), 8)]
    plain = [image, sample((3, 4, 3, 2), 7), sample((3,), 8)]
    yield "conv(plain)", "two axes", lambda x, w, b: F.conv2d(x, w, b), plain
    yield "conv(plain)", "three axes", lambda x, w, b: F.conv3d(x, w, b), [
        volume, sample((3, 4, 2, 2, 2), 7, -1, 1), sample((3,), 8)]
    yield "conv(plain)", "empty", lambda x, w, b: F.conv2d(x, w, b), [
        sample((0, 4, 7, 6), 1), sample((3, 4, 3, 2), 7), sample((3,), 8)]
    yield "conv(plain)", "one", lambda x, w, b: F.conv2d(x, w, b), [
        sample((1, 1, 1, 1), 1), sample((1, 1, 1, 1), 2), sample((1,), 3)]
    yield "conv(plain)", "special", lambda x, w, b: F.conv2d(x, w, b), [special, square, sample((1,), 3)]
    yield "conv1d", "ordinary", lambda x, w, b: F.conv1d(x, w, b, **how1), [line, sample((6, 2, 3), 2), bias]
    yield "conv2d", "ordinary", lambda x, w, b: F.conv2d(x, w, b, **how2), [image, weight, bias]
    yield "conv3d", "ordinary", lambda x, w, b: F.conv3d(x, w, b, **how3), [
        volume, sample((6, 2, 2, 2, 3), 2, -1, 1), bias]
    for axes, how, f in ((1, how1, F.conv1d), (2, how2, F.conv2d), (3, how3, F.conv3d)):
        call = lambda x, w, b, f=f, how=how: f(x, w, b, **how)
        yield f"conv{axes}d", "empty", call, [sample((0, 4) + (5,) * axes, 1), sample((6, 2) + (2,) * axes, 2), bias]
        yield f"conv{axes}d", "one place", call, [
            sample((1, 2) + (1,) * axes, 1), sample((2, 1) + (1,) * axes, 2), sample((2,), 3)]
    plain = lambda f: lambda x, w, b: f(x, w, b)
    yield "transposed(plain)", "one axis", plain(F.conv_transpose1d), [line, sample((4, 3, 2), 7), sample((3,), 8)]
    yield "transposed(plain)", "two axes", plain(F.conv_transpose2d), [image, sample((4, 3, 3, 2), 7), sample((3,), 8)]
    yield "transposed(plain)", "three axes", plain(F.conv_transpose3d), [
        volume, sample((4, 3, 2, 2, 2), 7, -1, 1), sample((3,), 8)]
    yield "transposed(plain)", "empty", plain(F.conv_transpose1d), [
        sample((0, 4, 3), 1), sample((4, 3, 2), 7), sample((3,), 8)]
    yield "transposed(plain)", "special", plain(F.conv_transpose2d), [special, square, sample((1,), 3)]
    how2 |= dict(stride=(2, 3), output_padding=(1, 2))
    back2 = lambda x, w, b: F.conv_transpose2d(x, w, b, **how2)
    back3 = lambda x, w, b: F.conv_transpose3d(x, w, b, stride=2, output_padding=1, groups=2)
    two = sample((2,), 3)
    yield "transposed2d", "ordinary", back2, [sample((2, 4, 3, 4), 1), sample((4, 3, 3, 2), 2), bias]
    yield "transposed2d", "empty", back2, [sample((0, 4, 3, 4), 1), sample((4, 3, 3, 2), 2), bias]
    yield "transposed2d", "one place", back2, [sample((1, 2, 1, 1), 1), sample((2, 1, 3, 3), 2), two]
    yield "transposed3d", "ordinary", back3, [
        sample((1, 4, 2, 3, 2), 1), sample((4, 1, 2, 3, 2), 2, -1, 1), two]
    yield "transposed3d", "empty", back3, [sample((0, 4, 2, 3, 2), 1), sample((4, 1, 2, 3, 2), 2, -1, 1), two]
    yield "transposed3d", "one place", back3, [sample((1, 2, 1, 1, 1), 1), sample((2, 1, 1, 1, 1), 2), two]


def pool():
    image, line, volume = sample((1, 2, 7, 8), 1), sample((2, 2, 9), 2), sample((1, 1, 5, 4, 6), 3)
    special = array([[[NAN, 1, 2, 3, INF, 5, -INF, -INF, 6]]])
    kinds = [("max", (F.max_pool1d, F.max_pool2d, F.max_pool3d), {}),
             ("average", (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d), {}),
             ("average(inside)", (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d), {"count_include_pad": False})]
    numbers = ("one axis", "two axes", "three axes")
    for name, functions, how in kinds:
        for ceil, text in ((False, ""), (True, ", up")):
            for f, x, axes in zip(functions, (line, image, volume), numbers, strict=True):
                call = lambda x, f=f, h=how, c=ceil: f(x, 3, 2, 1, ceil_mode=c, **h)
                yield f"{name}(3,2,1{text})", axes, call, [x]
            call = lambda x, f=functions[0], h=how, c=ceil: f(x, 3, 2, 1, ceil_mode=c, **h)
            yield f"{name}(3,2,1{text})", "special", call, [special]
            yield f"{name}(3,2,1{text})", "one", call, [sample((1, 1, 1), 4)]
            yield f"{name}(3,2,1{text})", "empty", call, [sample((0, 2, 4), 4)]
    for name, functions in (
            ("adaptive_max", (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)),
            ("adaptive_average", (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d))):
        for f, x, axes in zip(functions, (line, image, volume), numbers, strict=True):
            yield f"{name}(4)", axes, lambda x, f=f: f(x, 4), [x]
            yield f"{name}(1)", axes, lambda x, f=f: f(x, 1), [x]
        yield f"{name}(4)", "special", lambda x, f=functions[0]: f(x, 4), [special]
        for size in (1, 4):
            call = lambda x, f=functions[0], size=size: f(x, size)
            yield f"{name}({size})", "one", call, [sample((1, 1, 1), 4)]
            yield f"{name}({size})", "empty", call, [sample((0, 2, 9), 4)]


def attention():
    def attend(*inputs, **how):  # the fused kernels turn NaN into 0
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(*inputs, **how)

    q, k, v = sample((2, 2, 3, 4), 1), sample((2, 2, 5, 4), 2), sample((2, 2, 5, 3), 3)
    seen = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
    special = array([[[NAN, 1], [INF, 0], [1, 2]]])
    plain = lambda q, k, v: attend(q, k, v)
    yield "attention", "ordinary", plain, [q, k, v]
    yield "attention", "long", plain, [sample((1, 9, 2), 1), sample((1, 17, 2), 2), sample((1, 17, 1), 3)]
    yield "attention", "one", plain, [sample((1, 1, 1), 1), sample((1, 1, 1), 2), sample((1, 1, 1), 3)]
    yield "attention", "empty", plain, [sample((0, 3, 4), 1), sample((0, 5, 4), 2), sample((0, 5, 3), 3)]
    yield "attention", "special", plain, [special, sample((1, 3, 2), 1), sample((1, 3, 2), 2)]
    yield "attention(causal)", "ordinary", lambda q, k, v: attend(q, k, v, is_causal=True), [q, k, v]
    more = [k, q, sample((2, 2, 3, 3), 4)]
    yield "attention(causal)", "more queries", lambda q, k, v: attend(q, k, v, is_causal=True), more
    yield "attention(scale)", "ordinary", lambda q, k, v: attend(q, k, v, scale=0.3), [q, k, v]
    yield "attention(scale)", "empty", lambda q, k, v: attend(q, k, v, scale=0.3), [
        sample((0, 3, 4), 1), sample((0, 5, 4), 2), sample((0, 5, 3), 3)]
    yield "attention(scale)", "one", lambda q, k, v: attend(q, k, v, scale=0.3), [
        sample((1, 1, 1), i) for i in (1, 2, 3)]
    added = lambda q, k, v, m: attend(q, k, v, m)
    yield "attention(mask)", "ordinary", added, [q, k, v, sample((3, 5), 5)]
    yield "attention(mask)", "broadcast", added, [q, k, v, sample((2, 1, 1, 5), 5)]
    yield "attention(mask)", "seen", added, [q, k, v, seen]
    for name, sizes, x in (("one axis", [7], sample((2, 2, 3), 1)), ("two axes", [4, 6], sample((1, 2, 3, 2), 2)),
                           ("three axes", [4, 3, 5], sample((1, 1, 2, 3, 2), 3)),
                           ("fewer", [2, 3], sample((1, 2, 5, 7), 4)),
                           ("one", [3, 2], sample((1, 1, 1, 1), 5)), ("empty", [5], sample((0, 2, 3), 6)),
                           ("special", [9], array([[[NAN, 1, INF], [1, -INF, 2]]]))):
        linear = ("linear", "bilinear", "trilinear")[len(sizes) - 1]
        text = ",".join(map(str, sizes))
        yield f"nearest({text})", name, lambda x, s=sizes: F.interpolate(x, s), [x]
        between = lambda x, s=sizes, m=linear: F.interpolate(x, s, mode=m, align_corners=False)
        yield f"linear({text})", name, between, [x]


def recurrent():
    def one(kind, reverse=False, **how):
        def call(x, *rest):
            *start, weight_x, weight_h, bias_x, bias_h = rest
            names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
            module = kind(x.shape[2], start[0].shape[1], dtype=torch.float64, **how)
            state = tuple(s[None] for s in start) if len(start) == 2 else start[0][None]
            weights = dict(zip(names, (weight_x, weight_h, bias_x, bias_h), strict=True))
            y, last = torch.func.functional_call(module, weights, (x.flip(0) if reverse else x, state))
            return [y.flip(0) if reverse else y] + [s[0] for s in (last if len(start) == 2 else [last])]
        return call

    cells = [("rnn", torch.nn.RNN, 1, {}), ("rnn_relu", torch.nn.RNN, 1, {"nonlinearity": "relu"}),
             ("lstm", torch.nn.LSTM, 4, {}), ("gru", torch.nn.GRU, 3, {})]
    for name, kind, gates, how in cells:
        for case, steps, n, width, hidden in (("ordinary", 4, 3, 2, 3), ("one", 1, 1, 1, 1), ("long", 12, 1, 2, 2),
                                             ("empty", 2, 0, 2, 3)):
            start = [sample((n, hidden), 2)] + ([sample((n, hidden), 3)] if name == "lstm" else [])
            weights = [sample((gates * hidden, width), 4, -1, 1), sample((gates * hidden, hidden), 5, -1, 1),
                       sample((gates * hidden,), 6), sample((gates * hidden,), 7)]
            yield name, case, one(kind, **how), [sample((steps, n, width), 1)] + start + weights
            yield f"{name}(reverse)", case, one(kind, True, **how), [sample((steps, n, width), 1)] + start + weights
        seeds = (2, 3) if name == "lstm" else (2,)
        start = [array([[[NAN], [INF], [-INF], [1]]])] + [sample((4, 1), s) for s in seeds]
        yield name, "special", one(kind, **how), start + [
            sample((gates, 1), s) for s in (4, 5)] + [sample((gates,), s) for s in (6, 7)]


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., 2011): the four words of one block."""
    c, k, mask = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], [key & 0xFFFFFFFF, key >> 32], 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def dropout(x, rate, seed):
    """PyTorch's own stream differs, so the mask is made here and PyTorch applies it."""
    words = [word for block in range(-(-x.numel() // 4)) for word in philox(block, seed)][:x.numel()]
    kept = torch.tensor([word >= rate * 2**32 for word in words], dtype=torch.bool).reshape(x.shape)
    return torch.where(kept, x, 0) * (1 / (1 - rate))


def training():
    def batch_norm(x, scale, shift, mean, variance):
        axes = [i for i in range(x.ndim) if i != 1]
        y = F.batch_norm(x, mean.detach().clone(), variance.detach().clone(), scale, shift, True, 0.1, 1e-5)
        now = (x.mean(axes).detach(), x.var(axes, unbiased=False).detach())  # PyTorch's running variance is unbiased
        return [y] + [0.9 * old.detach() + 0.1 * new for old, new in zip((mean, variance), now, strict=True)]

    fixed = lambda x, scale, shift, mean, variance: F.batch_norm(
        x, mean.detach(), variance.detach(), scale, shift, False, 0.1, 1e-5)
    three = [sample((3,), 2), sample((3,), 3), sample((3,), 4), sample((3,), 5, 0.5, 2)]
    special = array([[NAN, 1, 2], [3, INF, 2], [5, 6, 2]])
    for case, x in (("image", sample((2, 3, 3, 2), 1)), ("rows", sample((4, 3), 1)),
                    ("volume", sample((2, 3, 2, 1, 2), 1)), ("special", special)):
        yield "batch_norm", case, batch_norm, [x] + three
        yield "batch_norm(fixed)", case, fixed, [x] + three
    yield "batch_norm(fixed)", "empty", fixed, [sample((0, 3), 1)] + three
    for rate, seed in ((0.5, 1), (0.25, 2**40 + 7)):
        for case, x in (("ordinary", sample((5, 7), 1)), ("empty", sample((0, 2), 1)), ("one", sample((), 1))):
            yield f"dropout({rate:g})", case, lambda x, r=rate, s=seed: dropout(x, r, s), [x]
    for kind in (torch.float16, torch.bfloat16):
        name = f"through {str(kind)[6:]}"
        through = lambda x, k=kind: x.to(k).to(x.dtype)
        yield name, "ordinary", through, [sample((3, 4), 1)]
        yield name, "special", through, [array(SPECIAL + [65504, 65519, 65520, 2**-24, 2**-25, 1e30])]
        yield name, "empty", through, [sample((0, 2), 1)]
    yield "to int64", "ordinary", lambda x: x.to(torch.int64), [sample((3, 4), 1, -100, 100)]
    yield "to bool", "special", lambda x: x.to(torch.bool), [array(SPECIAL)]


FAMILIES = {"unary": unary, "binary": binary, "reduction": reduction, "shape": shape, "loss": loss,
            "normalize": normalize, "linear": linear, "dense": dense, "convolution": convolution, "pool": pool,
            "training": training, "attention": attention, "recurrent": recurrent}
