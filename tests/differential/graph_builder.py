"""A random ONNX graph under construction: every decision has a name, so that a graph can be made again with some of its
decisions set back to the plain one. Index 0 of each list of options is the plain choice; that is what shrinking
needs."""
import random
import zlib

import numpy as np
from onnx import TensorProto, helper, numpy_helper

TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "j": TensorProto.INT32, "b": TensorProto.BOOL,
         "h": TensorProto.FLOAT16}
NUMPY = {"f": np.float32, "i": np.int64, "j": np.int32, "b": np.bool_, "h": np.float16}
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "IsNaN")


class Builder:
    """choices: {name: index}. With choices None they are drawn from the seed; `made` has those that are not 0."""

    def __init__(self, seed, choices=None):
        self.seed, self.choices, self.made, self.asked = seed, choices, {}, {}
        self.path = []
        self.nodes, self.initializers, self.inputs, self.outputs = [], [], [], []
        self.types, self.inner, self.count = {}, [], 0
        self.expected = {}  # fusions that honest spellings should give
        self.tolerance = 1e-5
        self.notes = set()

    # ---- decisions
    def at(self, name):
        builder = self

        class Scope:
            def __enter__(self):
                builder.path.append(name)

            def __exit__(self, *_):
                builder.path.pop()
        return Scope()

    def name_of(self, name):
        return ".".join([*self.path, name])

    def pick(self, name, options, plain=1):
        """One of the options; the first is `plain` times as likely as each of the others."""
        key, n = self.name_of(name), len(options)
        while key in self.asked:  # asked again in the same place: another decision
            key += "'"
        if self.choices is None:
            at = random.Random(f"{self.seed}/{key}").randrange(n - 1 + plain)
            index = max(0, at - plain + 1)
        else:
            index = min(self.choices.get(key, 0), n - 1)
        self.asked[key] = str(options[index])
        if index:
            self.made[key] = index
        return options[index]

    def rarely(self, name, times=9):
        return self.pick(name, [False, True], plain=times)

    def numbers(self, name, shape, scale=1.0, offset=0.0):
        r = np.random.default_rng(zlib.crc32(f"{self.seed}/{self.name_of(name)}".encode()))
        return (r.standard_normal(shape) * scale + offset).astype(np.float32)

    # ---- values
    def fresh(self, what):
        self.count += 1
        return f"{what}_{self.count}"

    def const(self, array, kind=None):
        array = np.asarray(array)
        if kind is None:
            kind = "f" if array.dtype.kind == "f" else "b" if array.dtype.kind == "b" else "i"
        array = array.astype(NUMPY[kind])
        name = self.fresh("c")
        if self.constant_nodes:
            self.nodes.append(helper.make_node("Constant", [], [name], name=self.fresh("Constant"),
                                               value=numpy_helper.from_array(array, name)))
        else:
            self.initializers.append(numpy_helper.from_array(array, name))
        self.types[name] = kind
        return name

    def input(self, name, kind, dims):
        self.inputs.append((name, kind, list(dims)))
        self.types[name] = kind
        return name

    def op(self, kind, *inputs, outs=1, t=None, domain="", **attributes):
        names = [self.fresh(kind.lower()) for _ in range(outs)]
        node = helper.make_node(kind, [i or "" for i in inputs], names, name=self.fresh(kind), domain=domain, **attributes)
        self.nodes.append(node)
        if t is None:
            t = "b" if kind in COMPARISONS else "i" if kind in ("Shape", "ArgMax") else self.types[inputs[0]]
        for n in names:
            self.types[n] = t
        if t == "f" and outs == 1 and kind not in ("Identity", "Cast"):
            self.inner.append(names[0])
        return names[0] if outs == 1 else names

    def swap(self, name, a, b):
        return (b, a) if self.pick(name, [False, True]) else (a, b)

    def add(self, a, b, name=None):
        return self.op("Add", *(self.swap(name, a, b) if name else (a, b)))

    def mul(self, a, b, name=None):
        return self.op("Mul", *(self.swap(name, a, b) if name else (a, b)))

    def scalar(self, value, name, kind="f"):
        """A scalar constant in one of its shapes."""
        shape = self.pick(name, [(), (1,), (1, 1), (1, 1, 1)], plain=4)
        return self.const(np.full(shape, value), kind)

    # ---- operators whose form changed between opsets
    def axes_op(self, kind, x, axes, since, **attributes):
        if self.opset >= since:
            return self.op(kind, x, self.const(np.array(axes)), **attributes)
        return self.op(kind, x, axes=list(axes), **attributes)

    def unsqueeze(self, x, *axes):
        return self.axes_op("Unsqueeze", x, axes, 13)

    def squeeze(self, x, *axes):
        return self.axes_op("Squeeze", x, axes, 13)

    def mean(self, x, *axes, keepdims=1):
        return self.axes_op("ReduceMean", x, axes, 18, keepdims=keepdims)

    def sum(self, x, *axes, keepdims=1):
        return self.axes_op("ReduceSum", x, axes, 13, keepdims=keepdims)

    def reduce(self, kind, x, *axes, keepdims=1):
        return self.axes_op(kind, x, axes, 18, keepdims=keepdims)

    def cast(self, x, kind):
        return self.op("Cast", x, t=kind, to=TYPES[kind])

    def slice(self, x, start, end, axis, step=1):
        ints = [self.const(np.array([v])) if isinstance(v, int) else v for v in (start, end, axis, step)]
        return self.op("Slice", x, *(ints if step != 1 else ints[:3]))

    def split(self, x, sizes, axis):
        n = len(sizes)
        if self.opset >= 18 and len(set(sizes)) == 1 and self.pick("split_equal", [False, True]):
            return self.op("Split", x, outs=n, axis=axis, num_outputs=n)
        if self.opset >= 13:
            return self.op("Split", x, self.const(np.array(sizes)), outs=n, axis=axis)
        return self.op("Split", x, outs=n, axis=axis, split=sizes)

    def softmax(self, x, axis, rank):
        """Along the last axis for old opsets: before 13 the axes behind `axis` go with it."""
        axis = self.pick("softmax_axis", [-1, rank - 1]) if axis == -1 and self.opset >= 13 else axis
        return self.op("Softmax", x, axis=rank - 1 if self.opset < 13 else axis)

    def dim(self, x, axis, keep=True):
        """Size of an axis as a tensor [1] or scalar."""
        if self.opset >= 15 and keep and self.pick("shape_form", [0, 1]):
            return self.op("Shape", x, start=axis, end=axis + 1)
        d = self.op("Gather", self.op("Shape", x), self.const(np.array(axis)), axis=0)
        return self.unsqueeze(d, 0) if keep else d

    def shape(self, *parts):
        return self.op("Concat", *[self.const(np.array([p])) if isinstance(p, int) else p for p in parts], axis=0, t="i")

    def reshape(self, x, *parts):
        if all(isinstance(p, int) for p in parts):
            return self.op("Reshape", x, self.const(np.array(parts)))
        return self.op("Reshape", x, self.shape(*parts))

    def range(self, n):
        """0, 1, ... n-1 for a scalar n."""
        return self.op("Range", self.const(np.array(0)), n, self.const(np.array(1)), t="i")

    def no_op(self, x, name, rank=3):
        """Sometimes one of the operators that change nothing."""
        form = self.pick(name, ["none", "identity", "reshape", "transpose", "cast", "add0", "mul1", "unsqueeze"], plain=30)
        if form == "identity":
            return self.op("Identity", x)
        if form == "reshape":
            return self.op("Reshape", x, self.op("Shape", x))
        if form == "transpose":
            order = list(range(rank))
            order[-2:] = order[:-3:-1]
            return self.op("Transpose", self.op("Transpose", x, perm=order), perm=order)
        if form == "cast":
            return self.cast(x, self.types[x])
        if form == "add0":
            return self.op("Add", x, self.const(np.zeros(1)))
        if form == "mul1":
            return self.op("Mul", x, self.const(np.ones(())))
        if form == "unsqueeze":
            return self.squeeze(self.unsqueeze(x, 1), 1)
        return x

    def expect(self, kind, honest=True):
        if honest:
            self.expected[kind] = self.expected.get(kind, 0) + 1
