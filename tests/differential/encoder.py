"""A whole random encoder: inputs, blocks, heads, outputs, and data to run it on."""
import random
import zlib

import numpy as np
import onnx
from onnx import helper

import attention as a
import fragments as f
from graph_builder import NUMPY, TYPES, Builder

VOCAB, LONGEST, MOST_ROWS = 17, 9, 3


def blocks(g, x, n, mask):
    shared = a.make_mask(g, x, mask, "shared_mask") if g.pick("share_mask", [True, False]) else None
    first = x
    for i in range(g.pick("blocks", [1, 2, 3])):
        with g.at(f"block{i}"):
            kind = g.pick("kind", ["encoder", "pre_norm", "attention", "norm", "feed_forward", "activation", "linear", "odd",
                                   "gated", "none", "again", "class_token", "branches", "algebra", "twice_used",
                                   "wide_residual"], plain=3)
            before = x
            if kind == "encoder":
                y = a.attention(g, x, n, mask, first, shared, "attention")
                x = f.norm(g, residual(g, x, y, "residual1"), n, "norm1")
                x = f.norm(g, residual(g, x, feed_forward(g, x, n), "residual2"), n, "norm2")
            elif kind == "pre_norm":
                y = f.norm(g, x, n, "norm1")
                x = residual(g, x, a.attention(g, y, n, mask, first, shared, "attention"), "residual1")
                x = residual(g, x, feed_forward(g, f.norm(g, x, n, "norm2"), n), "residual2")
            elif kind == "attention":
                x = a.attention(g, x, n, mask, first, shared, "attention")
            elif kind == "norm":
                x = f.norm(g, residual(g, x, first, "residual") if g.pick("with_residual", [False, True]) else x, n, "norm")
            elif kind == "feed_forward":
                x = feed_forward(g, x, n)
            elif kind == "activation":
                x = f.activation(g, x, n, "activation")
            elif kind == "linear":
                x = f.linear(g, x, n, n, "linear")
            elif kind == "gated":
                x = gated(g, x, n)
            elif kind == "odd":
                x = odd(g, x, n, mask)
            elif kind == "again" and i:  # the weights of the block before, as in ALBERT
                x = residual(g, x, feed_forward(g, x, n), "residual")
                x = f.norm(g, x, n, "norm")
            elif kind == "class_token" and g.static is None and not mask:
                token = g.op("Expand", g.const(g.numbers("token", (1, 1, n), 0.5)), g.shape(g.dim(x, 0), 1, n))
                x = g.op("Concat", token, x, axis=1)
                before, shared = x, None  # what follows has one token more
            elif kind == "algebra":
                for j in range(g.pick("steps", [1, 2, 3])):
                    with g.at(f"step{j}"):
                        x = algebra(g, x, n)
            elif kind == "twice_used":  # a product whose value before and behind its activation is needed
                y = f.linear(g, x, n, n, "inner")
                z = f.activation(g, y, n, "act")
                x = g.add(f.linear(g, z, n, n, "second"), g.pick("again", [y, z, x]), "order")
                x = f.norm(g, x, n, "norm") if g.pick("with_norm", [True, False]) else x
            elif kind == "wide_residual":  # what is added is not of the same shape
                y = f.linear(g, x, n, n, "linear")
                shape = g.pick("shape", [(n,), (1, 1, n), (1,), (1, 1, 1, 1), "first", "mean", "column"])
                other = g.slice(first, 0, 1, 1) if shape == "first" else g.mean(x, 1) if shape == "mean" else \
                    g.mean(x, 2) if shape == "column" else g.const(g.numbers("row", shape, 0.5))
                x = g.add(y, other, "order")
                x = g.squeeze(x, 0) if shape == (1, 1, 1, 1) else x
                x = f.norm(g, x, n, "norm")
            elif kind == "branches":
                y = f.activation(g, f.linear(g, x, n, n, "left"), n, "left_act")
                x = f.norm(g, g.add(y, f.linear(g, x, n, n, "right"), "order"), n, "norm")
            x = g.no_op(x, "no_op")
            first = before
    return x


def residual(g, x, y, name):
    with g.at(name):
        form = g.pick("form", ["plain", "scaled", "minus", "none", "twice"], plain=12)
        if form == "scaled":
            y = g.mul(y, g.const(np.float32(0.5)), "scale_order")
        elif form == "minus":
            return g.op("Sub", x, y)
        elif form == "none":
            return y
        elif form == "twice":
            y = g.add(y, x)
        return g.add(x, y, "order")


def feed_forward(g, x, n):
    with g.at("ffn"):
        wide = g.pick("width", [2 * n, n, n + 5])
        return f.linear(g, f.activation(g, f.linear(g, x, n, wide, "up"), wide, "act"), wide, n, "down")


def gated(g, x, n):
    with g.at("gated"):
        if g.pick("one_product", [True, False]):
            u, v = g.split(f.linear(g, x, n, 2 * n, "both"), [n, n], -1)
        else:
            u, v = f.linear(g, x, n, n, "gate"), f.linear(g, x, n, n, "up")
        return f.linear(g, g.mul(f.activation(g, u, n, "act"), v, "order"), n, n, "down")


def algebra(g, x, n):
    """A step that a clean-up could take for one that changes nothing, or really changes nothing."""
    one, zero = np.float32(1), np.float32(0)
    kinds = ["mul1", "add0", "zero_minus", "one_over", "mul0", "self_minus", "self_div", "rank4", "slice_all", "slice_most",
             "slice_zero_end", "pad0", "concat_one", "split_join", "split_swap", "transpose2", "transpose_no", "reshape_mix",
             "expand_same", "where_true", "clip_wide", "max_inf", "pow1", "pow0", "round_int", "two_softmaxes", "two_clips",
             "reduce_one", "gather_all", "gather_turned", "int_division", "not_not", "sign", "add_sub", "mul_div", "min_max",
             "sqrt_square", "log_exp", "scale_twice", "shape_as_number"]
    kind = g.pick("which", kinds)
    c = g.const
    if kind in ("mul1", "pow1"):
        return g.op("Mul" if kind == "mul1" else "Pow", x, c(one))
    if kind == "add0":
        return g.add(x, c(zero), "order")
    if kind == "zero_minus":
        return g.op("Sub", c(zero), x)
    if kind == "one_over":
        return g.op("Div", c(one), g.add(g.op("Abs", x), c(one)))
    if kind == "mul0":
        return g.add(g.mul(x, c(zero)), c(g.numbers("row", (n,), 0.5)))
    if kind == "self_minus":
        return g.add(g.op("Sub", x, x), c(g.numbers("row", (n,), 0.5)))
    if kind == "self_div":
        y = g.add(g.op("Abs", x), c(one))
        return g.mul(x, g.op("Div", y, y))
    if kind == "rank4":
        return g.squeeze(g.op("Mul", x, c(np.ones((1, 1, 1, 1)))), 0)
    if kind == "slice_all":
        return g.slice(x, 0, 1 << 62, g.pick("axis", [1, 2, 0]))
    if kind == "slice_most":
        return g.op("Concat", g.slice(x, 0, n - 1, 2), g.slice(x, 0, 1, 2), axis=2)
    if kind == "slice_zero_end":
        return g.op("Concat", g.slice(x, 0, -1, 2), g.slice(x, -1, 1 << 62, 2), axis=2)
    if kind == "pad0":
        return g.op("Pad", x, c(np.zeros(6, np.int64)))
    if kind == "concat_one":
        return g.op("Concat", x, axis=g.pick("axis", [1, 2]))
    if kind in ("split_join", "split_swap"):
        a, b = g.split(x, [n // 2, n - n // 2], 2)
        return g.op("Concat", *((a, b) if kind == "split_join" else (b, a)), axis=-1)
    if kind in ("transpose2", "transpose_no"):
        y = g.op("Transpose", x, perm=[1, 2, 0])
        return g.op("Transpose", y, perm=[2, 0, 1] if kind == "transpose2" else [2, 0, 1]) if kind == "transpose2" else \
            g.op("Transpose", g.op("Relu", g.op("Transpose", x, perm=[2, 1, 0])), perm=[2, 1, 0])
    if kind == "reshape_mix":  # the same shape, other places
        b, s = g.dim(x, 0), g.dim(x, 1)
        return g.reshape(g.op("Transpose", x, perm=[0, 2, 1]), b, s, n)
    if kind == "expand_same":
        return g.op("Expand", x, c(np.array([1, 1, n])))
    if kind == "where_true":
        return g.op("Where", c(np.ones((1, 1, 1), bool)), x, c(zero), t="f")
    if kind == "clip_wide":
        return g.op("Clip", x, c(np.float32(-np.inf)), c(np.float32(np.inf)))
    if kind == "max_inf":
        return g.op("Max", x, c(np.float32(-np.inf)))
    if kind == "pow0":
        return g.add(x, g.op("Pow", g.add(g.op("Abs", x), c(one)), c(zero)))
    if kind == "round_int":
        return g.add(x, g.cast(g.cast(g.mul(x, c(np.float32(4))), "j"), "f"))
    if kind == "two_softmaxes" and g.opset >= 13:
        return g.add(g.op("Softmax", x, axis=2), g.op("Softmax", x, axis=g.pick("axis", [1, -1, 2])))
    if kind == "two_clips":
        low = c(np.float32(-0.5))
        return g.add(g.op("Clip", x, low, ""), g.op("Clip", x, "", low))
    if kind == "reduce_one":
        y = g.unsqueeze(x, 3)
        return g.squeeze(g.reduce(g.pick("reduce", ["ReduceMax", "ReduceMean", "ReduceL2"]), y, 3), 3)
    if kind in ("gather_all", "gather_turned"):
        order = np.arange(n) if kind == "gather_all" else np.arange(n)[::-1].copy()
        return g.op("Gather", x, c(order), axis=2)
    if kind == "int_division":
        i = g.op("Div", g.cast(g.mul(x, c(np.float32(9))), "j"), g.const(np.array(2), "j"))
        return g.add(x, g.cast(i, "f"))
    if kind == "not_not":
        return g.mul(x, g.cast(g.op("Not", g.op("Not", g.cast(x, "b"))), "f"))
    if kind == "sign":
        return g.mul(x, g.op("Sign", x))
    if kind == "add_sub":
        return g.op("Sub", g.add(x, c(np.float32(0.25))), c(np.float32(0.25)))
    if kind == "mul_div":
        return g.op("Div", g.mul(x, c(np.float32(3))), c(np.float32(g.pick("by", [3, 2]))))
    if kind == "min_max":
        return g.op("Min", g.op("Max", x, c(np.float32(0.5))), c(np.float32(-0.5)))
    if kind == "sqrt_square":
        return g.op("Sqrt", g.mul(x, x))
    if kind == "log_exp":
        return g.op("Log", g.add(g.op("Exp", g.op("Min", x, c(np.float32(5)))), c(np.float32(0.1))))
    if kind == "scale_twice":
        return g.op("Div", g.mul(g.mul(x, c(np.float32(0.5))), c(g.numbers("row", (n,), 0.3, 1))), c(np.float32(0.7)))
    if kind == "shape_as_number":
        return g.op("Div", x, g.cast(g.dim(x, g.pick("axis", [1, 0, 2]), keep=False), "f"))
    return x


def odd(g, x, n, mask):
    """Things that are no encoder block: they mix tokens or channels, so packing and pruning must see them."""
    kind = g.pick("which", ["shift", "reverse", "sum_tokens", "softmax_tokens", "running_sum", "zero_masked", "transpose",
                            "max_tokens", "channels", "clip", "first_token", "conv", "concat_token"])
    if kind == "shift":
        zero = g.mul(g.slice(x, 0, 1, 1), g.const(np.float32(0)))
        return g.add(x, g.op("Concat", zero, g.slice(x, 0, -1, 1), axis=1))
    if kind == "reverse":
        return g.slice(x, -1, -(1 << 62), 1, -1)
    if kind == "sum_tokens":
        return g.add(x, g.mean(x, 1))
    if kind == "softmax_tokens" and g.opset >= 13:
        return g.mul(x, g.op("Softmax", x, axis=1))
    if kind == "running_sum":
        return g.op("CumSum", x, g.const(np.array(1)))
    if kind == "zero_masked" and mask:
        return g.mul(x, g.cast(g.unsqueeze(mask, 2), "f"), "order")
    if kind == "transpose":
        return g.op("Transpose", g.op("Tanh", g.op("Transpose", x, perm=[0, 2, 1])), perm=[0, 2, 1])
    if kind == "max_tokens":
        return g.op("Max", x, g.reduce("ReduceMax", x, 1))
    if kind == "channels":
        return g.op("Concat", g.slice(x, n // 2, n, 2), g.slice(x, 0, n // 2, 2), axis=2)
    if kind == "clip":
        return g.op("Clip", x, g.const(np.float32(-0.7)), g.const(np.float32(0.9)))
    if kind == "first_token":
        return g.add(x, g.unsqueeze(g.op("Gather", x, g.const(np.array(0)), axis=1), 1))
    if kind == "conv":
        w = g.numbers("kernel", (n, 1, 3), 0.5)
        y = g.op("Conv", g.op("Transpose", x, perm=[0, 2, 1]), g.const(w), group=n, kernel_shape=[3], pads=[1, 1])
        return g.op("Transpose", y, perm=[0, 2, 1])
    if kind == "concat_token" and g.static is None:
        return g.slice(g.op("Concat", g.slice(x, 0, 1, 1), x, axis=1), 1, 1 << 62, 1)
    return g.op("Tanh", x)


# ------------------------------------------------------------------------------------------------ heads
def mask_weights(g, mask, n, x):
    m = g.unsqueeze(mask, g.pick("mask_axis", [2, -1]))
    if g.pick("expand", [False, True]):
        m = g.op("Expand", g.cast(m, "i"), g.op("Shape", x))
    return g.cast(m, "f")


def head(g, x, n, mask, name):
    with g.at(name):
        kinds = ["tokens", "cls", "pooler", "mean", "mean_where", "mean_all", "max", "last", "qa", "tokens_linear",
                 "tokens_l2", "eos", "flat", "two_tokens", "cls_slice", "qa_softmax", "tied", "mean_linear", "tokens_masked",
                 "tokens_transposed", "dot", "mean_odd", "take_odd", "cls_of_two", "attend_cls"]
        kind = g.pick("kind", kinds)
        if not mask and kind in ("mean_odd", "mean", "mean_where", "max", "mean_linear", "tokens_masked"):
            kind = "mean_all"
        if kind in ("cls", "pooler"):
            y = g.op("Gather", x, g.const(np.array(0)), axis=1)
            y = g.op("Tanh", f.linear(g, y, n, n, "pooler", rank=2)) if kind == "pooler" else y
            return f.linear(g, y, n, 3, "classifier", rank=2) if g.pick("classifier", [False, True]) else l2(g, y)
        if kind == "mean_odd":  # near misses of a mean over the tokens
            m = mask_weights(g, mask, n, x)
            form = g.pick("form", ["low3", "length", "plus_one", "other_mask", "squared", "root", "max_count", "unmasked_sum"])
            other = g.const(np.float32(3))
            weights = g.mul(m, g.op("Sigmoid", x)) if form == "other_mask" else m
            total = g.sum(x if form == "unmasked_sum" else g.mul(x, weights, "order"), 1, keepdims=0)
            count = g.sum(g.mul(m, m) if form == "squared" else m, 1, keepdims=0)
            if form == "low3":
                count = g.op("Clip", count, other, "")
            elif form == "length":
                count = g.cast(g.dim(x, 1, keep=False), "f")
            elif form == "plus_one":
                count = g.add(count, g.const(np.float32(1)))
            elif form == "root":
                count = g.op("Sqrt", count)
            elif form == "max_count":
                count = g.reduce("ReduceMax", count, 0)
            return g.op("Div", total, count)
        if kind == "take_odd" and g.static is None:
            form = g.pick("form", ["second", "last_but_one", "list", "pair", "slice_last", "of_transposed"])
            if form == "of_transposed":
                return g.op("Gather", g.op("Transpose", x, perm=[1, 0, 2]), g.const(np.array(0)), axis=0)
            if form == "slice_last":
                return g.slice(x, -1, 1 << 62, 1)
            g.least_length = 2
            at = {"second": 1, "last_but_one": -2, "list": [1], "pair": [0, -1]}[form]
            return g.op("Gather", x, g.const(np.array(at)), axis=1)
        if kind == "cls_of_two":
            first = g.op("Gather", x, g.const(np.array(0)), axis=1)
            return g.op("Concat", first, g.op("Tanh", f.linear(g, first, n, n, "pooler", rank=2)), axis=1)
        if kind == "attend_cls":  # one query more, behind the encoder
            q = f.linear(g, g.slice(x, 0, 1, 1), n, n, "query")
            s = g.op("MatMul", q, g.op("Transpose", f.linear(g, x, n, n, "key"), perm=[0, 2, 1]))
            s = g.mul(s, g.const(np.float32(n ** -0.5)))
            if mask and g.pick("masked", [True, False]):
                away = g.op("Sub", g.const(np.float32(1)), g.cast(g.unsqueeze(mask, 1), "f"))
                s = g.add(s, g.mul(away, g.const(np.float32(a.NEG_MAX))))
            return g.squeeze(g.op("MatMul", g.softmax(s, -1, 3), x), 1)
        if kind == "cls_slice":
            return g.squeeze(g.slice(x, 0, 1, 1), 1)
        if kind == "last":
            return g.op("Gather", x, g.const(np.array(-1)), axis=1)
        if kind in ("mean", "mean_linear"):
            m = mask_weights(g, mask, n, x)
            total = g.sum(g.mul(x, m, "order"), 1, keepdims=0)
            count = g.sum(m, 1, keepdims=0)
            low = g.const(np.float32(1e-9))
            form = g.pick("count", ["clip", "plain", "max", "add"])
            count = g.op("Clip", count, low, "") if form == "clip" else g.op("Max", count, low) if form == "max" else \
                g.add(count, low) if form == "add" else count
            y = g.op("Div", total, count)
            return f.linear(g, y, n, 4, "dense", rank=2) if kind == "mean_linear" else l2(g, y)
        if kind == "mean_where":
            away = g.unsqueeze(g.op("Not", g.cast(mask, "b")), 2)
            total = g.sum(g.op("Where", away, g.const(np.float32(0)), x, t="f"), 1, keepdims=0)
            return l2(g, g.op("Div", total, g.cast(g.unsqueeze(g.sum(g.cast(mask, "i"), 1, keepdims=0), 1), "f")))
        if kind == "mean_all":
            return g.mean(x, 1, keepdims=g.pick("keep", [0, 1]))
        if kind == "max":
            away = g.op("Equal", g.unsqueeze(g.cast(mask, "i"), 2), g.const(np.array(0)))
            return g.reduce("ReduceMax", g.op("Where", away, g.const(np.float32(-1e9)), x, t="f"), 1, keepdims=0)
        if kind in ("qa", "qa_softmax"):
            start, end = g.split(f.linear(g, x, n, 2, "qa"), [1, 1], -1)
            y = g.squeeze(g.pick("side", [start, end]), -1)
            return g.softmax(y, -1, 2) if kind == "qa_softmax" else y
        if kind == "tokens_linear":
            return f.linear(g, x, n, 5, "tokens")
        if kind == "tokens_l2":
            return l2(g, f.linear(g, x, n, 4, "colbert"), -1)
        if kind == "tokens_masked":
            return g.mul(x, g.cast(g.unsqueeze(mask, 2), "f"), "order")
        if kind == "eos" and "input_ids" in g.types:
            best = g.op("ArgMax", g.cast("input_ids", "j"), axis=1, keepdims=0)
            rows = g.op("Mul", g.range(g.dim(x, 0, keep=False)), g.dim(x, 1, keep=False))
            return g.op("Gather", g.reshape(x, -1, n), g.add(rows, best), axis=0)
        if kind == "flat":
            return g.op("Flatten", x, axis=g.pick("flat_axis", [1, 2]))
        if kind == "two_tokens":
            return g.slice(x, 0, 2, 1)
        if kind == "tied":
            return g.op("MatMul", x, g.op("Transpose", g.const(g.numbers("tied", (VOCAB, n), 0.4)), perm=[1, 0]))
        if kind == "tokens_transposed":
            return g.op("Transpose", x, perm=[0, 2, 1])
        if kind == "dot":
            return g.op("MatMul", x, g.op("Transpose", x, perm=[0, 2, 1]))
        return x


def l2(g, y, axis=1):
    form = g.pick("l2", ["none", "norm", "op", "sqrt"])
    if form == "none":
        return y
    if form == "op":
        return g.op("LpNormalization", y, axis=axis, p=2)
    n = g.reduce("ReduceL2", y, axis) if form == "norm" else g.op("Sqrt", g.sum(g.mul(y, y), axis))
    n = g.op("Clip", n, g.const(np.float32(1e-12)), "") if g.pick("l2_clip", [True, False]) else n
    return g.op("Div", y, g.op("Expand", n, g.op("Shape", y)) if g.pick("l2_expand", [True, False]) else n)


# ------------------------------------------------------------------------------------------------ the graph
def make(seed, choices=None):
    """(builder, model): a random encoder."""
    g = Builder(seed, choices)
    g.opset = g.pick("opset", [17, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23], plain=2)
    g.constant_nodes = g.pick("constant_nodes", [False, True])
    g.static = g.pick("static", [None, (2, 5), (1, 7)], plain=12)
    g.has_soft_fill, g.least_length = False, 1
    g.keep_padding = g.pick("keep_padding", [False, True])
    n = g.pick("hidden", [8, 12, 16, 24, 20])
    ids_kind = g.pick("ids", ["i", "j", "float"], plain=4)
    mask = None
    if ids_kind == "float":
        x = g.input("features", "f", ["batch", "sequence", n])
    else:
        x = g.input("input_ids", ids_kind, ["batch", "sequence"])
    if g.pick("with_mask", [True, False], plain=7):
        dims = ["batch", "sequence"]
        if g.rarely("mask_names"):
            dims = ["batch_2", "tokens"]
        mask = g.input("attention_mask", g.pick("mask_type", ["i", "j", "f", "b"], plain=3), dims)
        if g.pick("padding_mask", [False, True], plain=25):  # 1 for padding
            g.inputs[-1] = ("padding_mask", g.types[mask], dims)
            g.types["padding_mask"] = g.types[mask]
            mask = g.op("Not", g.cast("padding_mask", "b"))
            mask = g.cast(mask, "i")
        if g.types[mask] == "b":
            mask_input, mask = mask, g.cast(mask, "i")
    if ids_kind != "float":
        x = f.embedding(g, x, mask, n, VOCAB, LONGEST + 4)
    x = g.no_op(x, "no_op")
    x = blocks(g, x, n, mask)
    results = [head(g, x, n, mask, "head")]
    if g.pick("two_heads", [False, True], plain=2):
        results.append(head(g, x, n, mask, "head2"))
    for i in range(g.pick("inner_outputs", [0, 1, 2], plain=2)):
        candidates = [v for v in g.inner if v not in results]
        if not candidates:
            break
        with g.at(f"inner{i}"):
            # by distance from the end, so that it stays near the same place when the graph gets smaller
            results.append(candidates[g.pick("which", list(range(len(candidates) - 1, -1, -1)))])
    results = list(dict.fromkeys(results))
    return g, finish(g, results)


def finish(g, results):
    nodes = g.nodes
    results = [r if r not in [i[0] for i in g.inputs] else g.op("Identity", r) for r in results]
    if g.pick("node_order", ["as_made", "shuffled"]) == "shuffled":
        nodes = shuffled(nodes, random.Random(g.seed))
    # what no output needs is left out, now and then kept
    if g.pick("dead_nodes", [False, True], plain=4) is False:
        nodes = needed(nodes, results)
    sizes = {"batch": g.static[0], "batch_2": g.static[0], "sequence": g.static[1], "tokens": g.static[1]} if g.static else {}
    ports = [helper.make_tensor_value_info(name, TYPES[kind], [sizes.get(d, d) for d in dims]) for name, kind, dims in g.inputs]
    outputs = [helper.make_tensor_value_info(r, TYPES[g.types[r]], None) for r in results]
    used = {i for node in nodes for i in node.input}
    initializers = [t for t in g.initializers if t.name in used]
    graph = helper.make_graph(nodes, f"seed_{g.seed}", ports, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", g.opset)])
    model.ir_version = min(10, model.ir_version)
    return model


def needed(nodes, results):
    wanted, kept = set(results), []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(node.input)
    return kept[::-1]


def shuffled(nodes, r):
    """Another topological order."""
    made = {o for n in nodes for o in n.output}
    waiting, done, order = list(nodes), set(), []
    while waiting:
        ready = [n for n in waiting if all(i in done or i not in made for i in n.input)]
        node = r.choice(ready)
        waiting.remove(node)
        done |= set(node.output)
        order.append(node)
    return order


# ------------------------------------------------------------------------------------------------ data
def feeds(g, number):
    """Inputs of one run, as {name: array}, and what its mask input [B,S] keeps."""
    r = np.random.default_rng(zlib.crc32(f"{g.seed}/feeds{number}".encode()))
    b, s = g.static or (int(r.integers(1, MOST_ROWS + 1)), int(r.integers(2 if number else g.least_length, LONGEST + 1)))
    mask = np.ones((b, s), np.int64)
    style = "right" if "two_sums" in g.notes else ["right", "left", "holes", "full"][int(r.choice(4, p=[0.5, 0.2, 0.15, 0.15]))]
    for row in range(b):
        length = int(r.integers(1, s + 1))
        if style == "right":
            mask[row, length:] = 0
        elif style == "left":
            mask[row, :s - length] = 0
        elif style == "holes":
            mask[row] = r.random(s) < 0.7
            mask[row, int(r.integers(0, s))] = 1
    data = {}
    for name, kind, dims in g.inputs:
        shape = [{"batch": b, "batch_2": b, "sequence": s, "tokens": s}.get(d, d) for d in dims]
        if name in ("attention_mask", "padding_mask"):
            v = mask if name == "attention_mask" else 1 - mask
        elif name == "mask_plane":
            v = (1 - mask)[:, None, None, :] * -10000.0
        elif name == "token_type_ids":
            v = r.integers(0, 2, shape)
        elif name == "position_ids":
            v = np.broadcast_to(np.arange(s), shape)
        elif kind == "f":
            v = r.standard_normal(shape)
        else:
            v = r.integers(2, VOCAB, shape)
            if mask.shape == v.shape:
                v = np.where(mask == 0, 1, v)
            if number and r.random() < 0.3:
                v[0, 0] = 0
        data[name] = np.ascontiguousarray(v.astype(NUMPY[kind]))
    for name in ("attention_mask", "padding_mask"):
        if name in data:
            return data, (data[name] != 0).astype(np.int64)
    return data, None
