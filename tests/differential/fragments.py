"""Layer norms, activations, linear layers and embeddings: honest spellings, near misses and oddities."""
import numpy as np


# ------------------------------------------------------------------------------------------------ linear layers
def linear(g, x, n_in, n_out, name, bias=True, rank=3):
    with g.at(name):
        w = g.numbers("weight", (n_in, n_out), 1.2 / np.sqrt(n_in))
        forms = ["matmul", "matmul_transposed", "scaled_weight", "reshape2d", "gemm", "gemm_transb", "gemm_scaled",
                 "two_matrices", "wrong_side", "f16"]
        form = g.pick("form", forms if rank == 3 else forms[:3], plain=6)
        b = g.numbers("bias", n_out, 0.3)
        if form in ("gemm", "gemm_transb", "gemm_scaled"):
            flat = g.reshape(x, -1, n_in)
            more = {"transB": 1} if form == "gemm_transb" else {"alpha": 0.5, "beta": 2.0} if form == "gemm_scaled" else {}
            y = g.op("Gemm", flat, g.const(w.T if "transB" in more else w), g.const(b), **more)
            return g.reshape(y, *like(g, x), n_out)
        if form == "matmul_transposed":
            y = g.op("MatMul", x, g.op("Transpose", g.const(w.T), perm=[1, 0]))
        elif form == "scaled_weight":
            y = g.op("MatMul", x, g.mul(g.const(w), g.const(np.float32(0.7)), "scale_order"))
        elif form == "reshape2d":
            y = g.reshape(g.op("MatMul", g.reshape(x, -1, n_in), g.const(w)), *like(g, x), n_out)
        elif form == "two_matrices":
            y = g.op("MatMul", g.op("MatMul", x, g.const(w)), g.const(g.numbers("second", (n_out, n_out), n_out ** -0.5)))
        elif form == "wrong_side":
            y = g.op("Transpose", g.op("MatMul", g.const(w.T), g.op("Transpose", x, perm=[0, 2, 1])), perm=[0, 2, 1])
        elif form == "f16":
            g.tolerance = max(g.tolerance, 1e-2)
            g.notes.add("f16")
            y = g.cast(g.op("MatMul", g.cast(x, "h"), g.const(w, "h")), "f")
        else:
            y = g.op("MatMul", x, g.const(w))
        how = g.pick("bias", ["add", "none", "twice", "row", "scalar", "sub", "rank3", "scaled_after"], plain=12) if bias else "none"
        if how == "add":
            y = g.add(g.const(b), y, "bias_order")
        elif how == "twice":
            y = g.add(g.add(y, g.const(b), "bias_order"), g.const(b[::-1].copy()))
        elif how == "row":
            y = g.add(y, g.const(b[None]), "bias_order")
        elif how == "rank3" and rank == 3:
            y = g.add(y, g.const(b[None, None]), "bias_order")
        elif how == "scalar":
            y = g.add(y, g.const(b[:1]), "bias_order")
        elif how == "sub":
            y = g.op("Sub", *g.swap("sub_order", y, g.const(b)))
        elif how == "scaled_after":
            y = g.mul(g.add(y, g.const(b), "bias_order"), g.const(np.float32(0.5)), "after_order")
        return y


def like(g, x):
    """The leading dims of [B,S,..] for a Reshape."""
    form = g.pick("like", ["shape", "zero", "infer"])
    if form == "shape":
        return g.dim(x, 0), g.dim(x, 1)
    if form == "zero" and g.static is None:
        return -1, g.dim(x, 1)
    return g.dim(x, 0), -1


# ------------------------------------------------------------------------------------------------ norms
NORM_MISSES = ["none", "exponent3", "exponent4", "first_axis", "second_axis", "both_axes", "eps_outside", "swapped",
               "no_root", "double_root", "unbiased", "other_center", "eps_vector", "no_eps", "square_other", "mean_only"]


def layer_norm(g, x, n, name):
    with g.at(name):
        eps = g.pick("eps", [1e-5, 1e-12, 1e-6, 0.1, 2.0])
        if g.opset >= 17 and g.pick("native", [False, True]):
            scale = g.const(g.numbers("gamma", n, 0.2, 1))
            beta = [g.const(g.numbers("beta", n, 0.2))] if g.pick("with_beta", [True, False]) else []
            g.expect("layernorm")
            return g.op("LayerNormalization", x, scale, *beta, axis=g.pick("axis", [-1, 2]), epsilon=eps)
        miss = g.pick("miss", NORM_MISSES, plain=30)
        axis = g.pick("axis", [-1, 2])
        g.expect("layernorm", miss == "none")
        first = (1,) if miss == "first_axis" else (1, 2) if miss == "both_axes" else (axis,)
        second = (1,) if miss == "second_axis" else (1, 2) if miss == "both_axes" else (axis,)
        mean = g.mean(x, *first) if g.rarely("keep", 8) is False or len(first) > 1 else \
            g.unsqueeze(g.mean(x, *first, keepdims=0), *[a if a >= 0 else -1 for a in first])
        d = g.op("Sub", *((mean, x) if miss == "swapped" else (x, mean)))
        d2 = g.op("Sub", x, mean) if g.pick("center_twice", [False, True], plain=3) and miss != "swapped" else d
        if miss == "other_center":
            d2 = g.op("Sub", x, g.const(g.numbers("center", n, 0.1)))
        exponent = 3 if miss == "exponent3" else 4 if miss == "exponent4" else 2
        base = x if miss == "square_other" else d2
        if exponent == 2 and g.pick("square", ["pow", "mul"]) == "mul":
            square = g.mul(base, base)
        else:
            square = g.op("Pow", base, g.const(np.array(exponent), "i") if g.opset >= 12 and g.pick("int_exponent", [False, True], plain=4)
                          else g.scalar(exponent, "exponent_shape"))
        if miss == "unbiased":
            var = g.op("Div", g.sum(square, *second), g.const(np.float32(n - 1)))
        elif g.pick("variance", ["mean", "sum"], plain=9) == "sum" and second == (axis,):
            var = g.op("Div", g.sum(square, *second), g.const(np.float32(n)))
        else:
            var = g.mean(square, *second)
        if miss == "exponent3":
            eps = 40.0
        if miss in ("no_root", "double_root", "mean_only"):
            eps = max(eps, 1.0)
        epsilon = g.const(np.abs(g.numbers("eps", n, 1)) + 0.01) if miss == "eps_vector" else g.scalar(eps, "eps_shape")
        if miss == "mean_only":
            root = epsilon
        elif miss == "eps_outside":
            root = g.add(g.op("Sqrt", var), epsilon)
        elif miss == "no_eps":
            root = g.op("Sqrt", var)
        elif miss == "no_root":
            root = g.add(var, epsilon, "eps_order")
        else:
            s = g.add(var, epsilon, "eps_order")
            root = g.op("Pow", s, g.const(np.float32(0.5))) if g.pick("root", ["sqrt", "pow"], plain=6) == "pow" else g.op("Sqrt", s)
            root = g.op("Sqrt", root) if miss == "double_root" else root
        div = g.pick("divide", ["div", "reciprocal", "one_over", "pow"], plain=4)
        if div == "div" or miss == "mean_only":
            y = g.op("Div", d, root)
        elif div == "reciprocal":
            y = g.mul(d, g.op("Reciprocal", root), "divide_order")
        elif div == "one_over":
            y = g.mul(d, g.op("Div", g.const(np.float32(1)), root), "divide_order")
        else:
            y = g.mul(d, g.op("Pow", root, g.const(np.float32(-1))), "divide_order")
        return affine(g, y, n)


def affine(g, y, n, beta=True):
    shapes = [(n,), (1, n), (1, 1, n), (1,), (1, 1, 1, n)]
    shape = g.pick("gamma_shape", [*shapes[:4], None], plain=8)
    if shape:
        y = g.mul(y, g.const(g.numbers("gamma", shape, 0.2, 1)), "gamma_order")
    if not beta:
        return y
    shape = g.pick("beta_shape", [*shapes[:4], None], plain=8)
    if shape:
        y = g.add(y, g.const(g.numbers("beta", shape, 0.2)), "beta_order")
    return y


def rms_norm(g, x, n, name):
    with g.at(name):
        eps = g.pick("eps", [1e-5, 1e-6, 0.1])
        miss = g.pick("miss", ["none", "exponent4", "axis", "eps_outside", "no_root", "other"], plain=15)
        g.expect("rmsnorm", miss == "none")
        if g.opset >= 23 and g.pick("native", [False, True]) and miss == "none":
            return g.op("RMSNormalization", x, g.const(g.numbers("gamma", n, 0.2, 1)), axis=-1, epsilon=eps)
        axis = 1 if miss == "axis" else g.pick("axis", [-1, 2])
        square = g.mul(x, x) if g.pick("square", ["pow", "mul"]) == "mul" and miss != "exponent4" else \
            g.op("Pow", x, g.const(np.float32(4 if miss == "exponent4" else 2)))
        var = g.mean(square, axis)
        if miss == "eps_outside":
            root = g.add(g.op("Sqrt", var), g.const(np.float32(eps)))
        elif miss == "no_root":
            root = g.add(var, g.const(np.float32(0.5)))
        else:
            root = g.op("Sqrt", g.add(var, g.scalar(eps, "eps_shape"), "eps_order"))
        other = g.op("Tanh", x) if miss == "other" else x
        div = g.pick("divide", ["one_over", "reciprocal", "div"])
        if div == "div":
            y = g.op("Div", other, root)
        else:
            y = g.mul(other, g.op("Reciprocal", root) if div == "reciprocal" else g.op("Div", g.const(np.float32(1)), root), "order")
        if g.pick("gamma_plus_one", [False, True], plain=5):
            return g.mul(y, g.add(g.const(g.numbers("gamma", n, 0.2)), g.const(np.float32(1)), "one_order"), "gamma_order")
        return affine(g, y, n, beta=False)


def layer_norm2(g, x, n):
    """Of [B*S,H]; now and then through the other axis."""
    across = g.pick("across", [False, True], plain=3)
    y = g.op("Transpose", x, perm=[1, 0]) if across else x
    axis = 0 if across else 1
    d = g.op("Sub", y, g.mean(y, axis))
    y = g.op("Div", d, g.op("Sqrt", g.add(g.mean(g.mul(d, d), axis), g.const(np.float32(1e-5)))))
    y = g.op("Transpose", y, perm=[1, 0]) if across else y
    return g.mul(y, g.const(g.numbers("flat_gamma", n, 0.2, 1)), "flat_gamma_order")


def norm(g, x, n, name):
    with g.at(name):
        if g.pick("flat", [False, True], plain=20):
            y = layer_norm2(g, g.reshape(x, -1, n), n)
            return g.reshape(y, g.dim(x, 0), -1, n)
        return layer_norm(g, x, n, "ln") if g.pick("kind", ["layer", "rms"], plain=6) == "layer" else rms_norm(g, x, n, "rms")


def norm4(g, x, n, name):
    """A norm of [B,N,S,D] over D."""
    with g.at(name):
        if g.opset >= 17 and g.pick("native", [False, True]):
            return g.op("LayerNormalization", x, g.const(g.numbers("gamma", n, 0.2, 1)), axis=-1, epsilon=1e-6)
        d = g.op("Sub", x, g.mean(x, -1))
        root = g.op("Sqrt", g.add(g.mean(g.mul(d, d), -1), g.const(np.float32(1e-6))))
        return g.mul(g.op("Div", d, root), g.const(g.numbers("gamma", n, 0.2, 1)), "gamma_order")


# ------------------------------------------------------------------------------------------------ activations
def activation(g, x, n, name):
    with g.at(name):
        kind = g.pick("kind", ["gelu", "gelu_tanh", "quick", "silu", "relu", "gelu_op", "other", "mish"], plain=4)
        if kind == "relu":
            return g.op("Relu", x)
        if kind == "gelu_op" and g.opset >= 20:
            tanh = g.pick("approximate", [False, True])
            g.expect("gelu_tanh" if tanh else "gelu")
            return g.op("Gelu", x, **({"approximate": "tanh"} if tanh else {}))
        if kind == "other":
            return g.op(g.pick("which", ["Tanh", "Sigmoid", "Elu", "LeakyRelu", "Softplus", "Softsign", "Abs", "Neg"]), x)
        if kind == "mish":
            return g.mul(x, g.op("Tanh", g.op("Softplus", x)), "order")
        if kind == "quick" or kind == "silu":
            miss = g.pick("miss", ["none", "factor", "other_x", "vector"], plain=8)
            alpha = 1.0 if kind == "silu" else 1.702
            alpha = alpha * 1.07 if miss == "factor" else alpha
            other = g.op("Neg", x) if miss == "other_x" else x
            g.expect("quick_gelu" if kind == "quick" else "silu", miss == "none")
            if miss == "vector":
                inside = g.mul(x, g.const(g.numbers("alpha", n, 0.3, alpha)), "alpha_order")
            else:
                inside = x if alpha == 1 else g.mul(x, g.scalar(alpha, "alpha_shape"), "alpha_order")
            return g.mul(other, g.op("Sigmoid", inside), "order")
        return gelu_tanh(g, x, n) if kind == "gelu_tanh" else gelu(g, x, n)


def final_half(g, x, inner, half, where):
    """x * inner * half in the places where exporters put the half."""
    if where == "last":
        return g.mul(g.mul(x, inner, "order"), half, "half_order")
    if where == "on_x":
        return g.mul(g.mul(x, half, "half_order"), inner, "order")
    return g.mul(x, g.mul(inner, half, "half_order"), "order")


def gelu(g, x, n):
    miss = g.pick("miss", ["none", "root", "one", "half", "other_x", "other_erf", "vector"], plain=14)
    g.expect("gelu", miss == "none")
    root = 1.5 if miss == "root" else np.sqrt(2)
    inside = g.op("Neg", x) if miss == "other_erf" else x
    if miss == "vector":
        scaled = g.op("Div", inside, g.const(g.numbers("root", n, 0.1, root)))
    elif g.pick("divide", [True, False]):
        scaled = g.op("Div", inside, g.scalar(root, "root_shape"))
    else:
        scaled = g.mul(inside, g.scalar(1 / root, "root_shape"), "root_order")
    one = g.add(g.op("Erf", scaled), g.scalar(0.9 if miss == "one" else 1.0, "one_shape"), "one_order")
    other = g.op("Abs", x) if miss == "other_x" else x
    if g.pick("half_div", [False, True], plain=6):
        return g.op("Div", g.mul(other, one, "order"), g.const(np.float32(2.2 if miss == "half" else 2)))
    half = g.scalar(0.55 if miss == "half" else 0.5, "half_shape")
    return final_half(g, other, one, half, g.pick("half_at", ["last", "on_x", "on_sum"]))


def gelu_tanh(g, x, n):
    miss = g.pick("miss", ["none", "cubic", "exponent", "root", "one", "half", "other_x"], plain=14)
    g.expect("gelu_tanh", miss == "none")
    c, root = (0.05 if miss == "cubic" else 0.044715), (0.7 if miss == "root" else np.sqrt(2 / np.pi))
    if miss == "exponent":
        cube = g.mul(x, x)
    elif g.pick("cube", ["pow", "mul"]) == "pow":
        cube = g.op("Pow", x, g.scalar(3, "exponent_shape"))
    else:
        cube = g.mul(g.mul(x, x), x, "cube_order")
    if g.pick("factored", [False, True], plain=3) and miss != "exponent":
        square = g.mul(x, x)
        poly = g.add(g.mul(square, g.const(np.float32(c)), "cubic_order"), g.const(np.float32(1)), "poly_order")
        inner = g.mul(g.mul(x, g.const(np.float32(root)), "root_order"), poly, "inner_order")
    else:
        inner = g.mul(g.add(x, g.mul(cube, g.scalar(c, "c_shape"), "cubic_order"), "poly_order"), g.scalar(root, "root_shape"), "root_order")
    one = g.add(g.op("Tanh", inner), g.scalar(0.9 if miss == "one" else 1.0, "one_shape"), "one_order")
    other = g.op("Abs", x) if miss == "other_x" else x
    half = g.scalar(0.55 if miss == "half" else 0.5, "half_shape")
    return final_half(g, other, one, half, g.pick("half_at", ["last", "on_x", "on_sum"]))


# ------------------------------------------------------------------------------------------------ embeddings
def positions(g, ids, mask, table, rows, n):
    """Position rows [1,S,n] or [B,S,n]."""
    forms = ["slice_ids", "slice_table", "range", "roberta", "table_all"]
    forms += ["input"] if g.static is None else []
    forms += ["mask_sum"] if mask and g.opset >= 11 else []
    form = g.pick("position_form", forms)
    if form == "slice_ids":
        return g.op("Gather", table, g.slice(g.const(np.arange(rows)[None]), 0, g.dim(ids, 1), 1))
    if form in ("slice_table", "table_all"):
        offset = 2 if form == "table_all" else 0
        end = g.dim(ids, 1)
        return g.unsqueeze(g.slice(table, offset, g.add(end, g.const(np.array([offset]))) if offset else end, 0), 0)
    if form == "range":
        r = g.range(g.dim(ids, 1, keep=False))
        if g.pick("range_expand", [False, True]):
            r = g.op("Expand", g.unsqueeze(r, 0), g.op("Shape", ids))
        elif g.pick("range_unsqueeze", [False, True]):
            r = g.unsqueeze(r, 0)
        return g.op("Gather", table, r)
    if form == "input":
        g.input("position_ids", "i", ["batch", "sequence"] if g.pick("position_batch", [True, False]) else [1, "sequence"])
        return g.op("Gather", table, "position_ids")
    if form == "roberta":
        real = g.op("Not", g.op("Equal", ids, g.const(np.array(1), g.types[ids])))
        real = g.cast(real, "j")
        p = g.mul(g.op("CumSum", real, g.const(np.array(1))), real, "cumsum_order")
        return g.op("Gather", table, g.op("Add", g.cast(p, "i"), g.const(np.array(1))))
    m = g.cast(mask, "i")
    p = g.op("Sub", g.op("CumSum", m, g.const(np.array(1))), g.const(np.array(1)))
    if g.pick("mask_positions", ["clip", "mul"]) == "mul":
        p = g.mul(g.op("CumSum", m, g.const(np.array(1))), m)
    else:
        p = g.op("Where", g.op("Equal", m, g.const(np.array(0))), g.const(np.array(0)), p, t="i")
    return g.op("Gather", table, p)


def embedding(g, ids, mask, n, vocab, rows):
    with g.at("embed"):
        table = g.const(g.numbers("words", (vocab, n), 0.8))
        look = ids if not g.rarely("cast_ids") else g.cast(ids, "j" if g.types[ids] == "i" else "i")
        parts = [g.op("Gather", table, look, axis=0)]
        honest = not g.rarely("scaled")
        if not honest:
            parts[0] = g.mul(parts[0], g.const(np.float32(np.sqrt(n))), "scale_order")
        if g.pick("with_positions", [True, False], plain=5):
            with g.at("position"):
                parts.append(positions(g, ids, mask, g.const(g.numbers("table", (rows, n), 0.5)), rows, n))
        kind = g.pick("types", ["input", "none", "zeros", "zeros_expand", "bias"])
        if kind != "none":
            types = g.const(g.numbers("types", (2, n), 0.5))
            if kind == "input":
                parts.append(g.op("Gather", types, g.input("token_type_ids", g.types[ids], ["batch", "sequence"])))
            elif kind == "zeros":
                zero = g.op("ConstantOfShape", g.op("Shape", ids), t="i",
                            value=__import__("onnx").numpy_helper.from_array(np.zeros(1, np.int64)))
                parts.append(g.op("Gather", types, zero))
            elif kind == "zeros_expand":
                parts.append(g.op("Gather", types, g.op("Expand", g.const(np.zeros((1, 1), np.int64)), g.op("Shape", ids))))
            else:
                parts.append(g.const(g.numbers("type_row", (1, 1, n), 0.5)))
        order = g.pick("order", ["wpt", "wtp", "pt_w"])
        if len(parts) == 3 and order == "wtp":
            parts = [parts[0], parts[2], parts[1]]
        if len(parts) == 3 and order == "pt_w" and kind in ("input", "zeros", "zeros_expand"):
            x = g.add(parts[0], g.add(parts[1], parts[2], "inner_order"), "sum_order")
        else:
            x = parts[0]
            minus = g.pick("minus", [False, True], plain=15)
            honest = honest and not (minus and len(parts) > 1)
            for p in parts[1:]:
                x = g.op("Sub", x, p) if minus else g.add(x, p, "sum_order")
        x = g.no_op(x, "no_op")
        if g.pick("norm", [True, False], plain=4):
            before = g.expected.get("layernorm", 0)
            x = norm(g, x, n, "norm")
            g.expect("embedding", honest and g.expected.get("layernorm", 0) > before)
        return x
