"""Masks, relative biases and attention: the forms of exporters, near misses and oddities."""
import numpy as np

import fragments as f

NEG_MAX = float(np.finfo(np.float32).min)


# ------------------------------------------------------------------------------------------------ masks
def index_grid(g, x):
    """Token numbers as [1,1,S,1] for queries and [1,1,1,S] for keys."""
    r = g.range(g.dim(x, 1, keep=False))
    return g.unsqueeze(r, 0, 1, 3), g.unsqueeze(r, 0, 1, 2)


def key_mask(g, x, mask):
    """The mask as bool [B,1,1,S]."""
    forms = ["unsqueeze", "at_once", "reshape", "flatten_gather", "gather_nd", "expand", "slices"]
    form = g.pick("read", forms, plain=2)
    m = g.cast(mask, "b") if g.types[mask] != "b" else mask
    if form == "at_once":
        return g.unsqueeze(m, 1, 2)
    if form == "reshape":
        return g.reshape(m, g.dim(m, 0), 1, 1, -1)
    if form in ("flatten_gather", "gather_nd") and g.opset >= 12:
        b = g.unsqueeze(g.range(g.dim(x, 0, keep=False)), 1, 2, 3)
        k = g.unsqueeze(g.range(g.dim(x, 1, keep=False)), 0, 1, 2)
        if form == "flatten_gather":
            flat = g.op("Flatten", m, axis=2)
            at = g.add(g.mul(b, g.dim(m, 1, keep=False)), k, "flat_order")
            picked = g.op("Gather", g.reshape(flat, -1), g.reshape(at, -1), axis=0)
            return g.op("Reshape", picked, g.op("Shape", at))
        both = g.op("Shape", g.op("Max", b, k))
        pair = [g.unsqueeze(g.op("Expand", v, both), 4) for v in (b, k)]
        return g.op("GatherND", m, g.op("Concat", *pair, axis=-1, t="i"), t="b")
    if form == "expand":
        wide = g.unsqueeze(m, 1, 2)
        return g.op("Expand", wide, g.shape(g.dim(x, 0), 1, g.dim(x, 1), g.dim(x, 1)))
    if form == "slices":
        return g.unsqueeze(g.slice(g.unsqueeze(m, 1), 0, 1 << 62, 2), 2)
    return g.unsqueeze(g.unsqueeze(m, 1), 2)


class Mask:
    """kind: 'none', 'add' (float to add to scores), 'bool' (true: may be seen)."""

    def __init__(self, kind, value=None, fill=0.0):
        self.kind, self.value, self.fill = kind, value, fill


def allowed(g, x, mask):
    """A bool plane from the mask input and the place of the tokens; None when nothing is masked."""
    parts = []
    source = g.pick("source", ["input", "none", "types", "queries", "product", "inverted", "ids"], plain=14)
    if source == "input" and mask:
        parts.append(key_mask(g, x, mask))
    elif source == "types" and mask and "token_type_ids" in [n for n, _, _ in g.inputs]:
        parts.append(key_mask(g, x, "token_type_ids"))
    elif source == "ids" and "input_ids" in g.types:
        pad = g.op("Equal", "input_ids", g.const(np.array(1), g.types["input_ids"]))
        parts.append(g.unsqueeze(g.op("Not", pad), 1, 2))
        g.notes.add("rows_without_keys")
    elif source == "queries" and mask:
        parts.append(g.unsqueeze(g.cast(mask, "b"), 1, 3))
        g.notes.add("rows_without_keys")
    elif source == "inverted" and mask:
        parts.append(g.op("Not", key_mask(g, x, mask)))
        g.notes.add("rows_without_keys")
    elif source == "product" and mask:
        m = g.cast(mask, "i")
        both = g.mul(g.unsqueeze(m, 1), g.unsqueeze(m, 2), "product_order")
        parts.append(g.cast(g.unsqueeze(both, 1), "b"))
        g.notes.add("rows_without_keys")
    place = g.pick("place", ["none", "causal", "window", "window_causal", "trilu", "always_true"], plain=6)
    if place in ("causal", "window", "window_causal", "always_true"):
        q, k = index_grid(g, x)
        if place == "always_true":
            parts.append(g.op("GreaterOrEqual", q, g.const(np.array(0))) if g.opset >= 12 else
                         g.op("Not", g.op("Less", q, g.const(np.array(0)))))
        if place.endswith("causal"):
            up = g.pick("causal_form", ["le", "ge", "not"])
            if up == "not" or g.opset < 12:
                parts.append(g.op("Not", g.op("Greater", k, q)))
            else:
                parts.append(g.op("LessOrEqual", k, q) if up == "le" else g.op("GreaterOrEqual", q, k))
        if place.startswith("window"):
            d = g.op("Abs", g.op("Sub", *g.swap("window_order", q, k)))
            w = g.pick("window", [2, 1, 3])
            parts.append(g.op("Less", d, g.const(np.array(w + 1))) if g.opset < 12 or g.pick("window_less", [False, True])
                         else g.op("LessOrEqual", d, g.const(np.array(w))))
            g.notes.add("rows_without_keys")
    if place == "causal" or place == "window_causal":
        g.notes.add("rows_without_keys")
    if place == "trilu" and g.opset >= 14:
        ones = g.op("Expand", g.const(np.ones((1, 1), np.int64)), g.shape(g.dim(x, 1), g.dim(x, 1)))
        parts.append(g.cast(g.op("Trilu", ones, upper=0), "b"))
        g.notes.add("rows_without_keys")
    if not parts:
        return None
    m = parts[0]
    for p in parts[1:]:
        m = g.op("And", *g.swap("and_order", m, p))
    return m


def make_mask(g, x, mask, name="mask"):
    """Made once a graph or once a layer."""
    with g.at(name):
        form = g.pick("form", ["where_add", "legacy", "bool", "float_input", "minus_one_times", "none", "soft", "numbers",
                               "log", "two_sums"], plain=2)
        fill = g.pick("fill", [NEG_MAX, -10000.0, float("-inf"), -1e9, -65504.0, -30.0, 10000.0],
                      plain=3)
        if fill == -65504.0:
            g.notes.add("f16_min")
        if form == "none" or (form == "float_input" and (g.static is not None or not mask)):
            return Mask("none")
        if form == "float_input":
            if "mask_plane" not in g.types:
                g.input("mask_plane", "f", ["batch", 1, 1, "sequence"])
            return Mask("add", "mask_plane", -10000.0)
        if form in ("legacy", "minus_one_times", "soft", "numbers", "log") and mask:
            if not np.isfinite(fill):
                fill = NEG_MAX
            m = g.unsqueeze(g.unsqueeze(mask, 1), 2) if g.pick("cast_first", [False, True]) is False else None
            m = g.cast(m, "f") if m else g.unsqueeze(g.cast(mask, "f"), 1, 2)
            if form == "numbers":  # a float that only looks like a mask
                m = g.mul(m, g.const(np.float32(0.5)))
            if form == "log":
                return Mask("add", g.op("Log", g.add(m, g.const(np.float32(1e-9)))), 0.0)
            if form == "minus_one_times":
                return Mask("add", g.mul(g.op("Sub", m, g.const(np.float32(1))), g.const(np.float32(-fill)), "order"), fill)
            return Mask("add", g.mul(g.op("Sub", g.scalar(1, "one_shape"), m), g.scalar(fill, "fill_shape"), "order"), fill)
        if form == "two_sums" and mask and np.isfinite(fill):
            q, k = index_grid(g, x)
            later = g.op("Where", g.op("Greater", k, q), g.const(np.float32(fill)), g.const(np.float32(0)), t="f")
            m = g.op("Sub", g.const(np.float32(1)), g.cast(g.unsqueeze(mask, 1, 2), "f"))
            g.notes.add("two_sums")
            return Mask("add", g.add(g.mul(m, g.const(np.float32(fill)), "order"), later, "sum_order"), fill)
        plane = allowed(g, x, mask)
        if plane is None:
            return Mask("none")
        if form == "where_add":
            inverted = g.pick("inverted", [False, True], plain=3)
            a, b = g.const(np.float32(0)), g.scalar(fill, "fill_shape")
            return Mask("add", g.op("Where", g.op("Not", plane), b, a, t="f") if inverted else g.op("Where", plane, a, b, t="f"), fill)
        return Mask("bool", plane, fill)


def relative_bias(g, x, heads):
    """[1,N,S,S] or None; depends on the length only."""
    with g.at("bias"):
        form = g.pick("form", ["none", "table", "alibi", "static", "per_batch"], plain=9)
        if form == "none":
            return None
        q, k = index_grid(g, x)
        if form == "alibi":
            slopes = g.const(-np.abs(g.numbers("slopes", (heads, 1, 1), 0.3)))
            return g.mul(slopes, g.cast(g.op("Abs", g.op("Sub", k, q)), "f"), "alibi_order")
        if form == "static":
            return g.const(g.numbers("plain", (1, heads, 1, 1), 0.5))
        d = g.op("Sub", g.squeeze(k, 0, 1), g.squeeze(q, 0, 1))
        d = g.op("Max", g.op("Min", d, g.const(np.array(4))), g.const(np.array(-4)))
        rows = g.op("Gather", g.const(g.numbers("table", (9, heads), 0.5)), g.op("Add", d, g.const(np.array(4))))
        bias = g.unsqueeze(g.op("Transpose", rows, perm=[2, 0, 1]), 0)
        if form == "per_batch":
            return g.op("Expand", bias, g.shape(g.dim(x, 0), heads, g.dim(x, 1), g.dim(x, 1)))
        return bias


# ------------------------------------------------------------------------------------------------ attention
def heads_of(g, x, y, heads, size, name, for_key=False):
    """[B,S,N*D] -> [B,N,S,D], or [B,N,D,S] for keys that are transposed at once."""
    with g.at(name):
        form = g.pick("shape", ["zeros", "dims", "infer", "wrong_view"] if name != "q" else ["zeros", "dims", "infer"], plain=12)
        if form == "wrong_view":  # heads from neighbouring tokens: no head split
            return g.op("Transpose", g.reshape(y, g.dim(y, 0), heads, -1, size), perm=[0, 1, 3, 2] if for_key else [0, 1, 2, 3])
        shape = {"zeros": (0, 0, heads, size), "dims": (g.dim(x, 0), g.dim(x, 1), heads, size),
                 "infer": (g.dim(x, 0), -1, heads, size)}[form]
        y = g.reshape(y, *shape)
        if for_key:
            return g.op("Transpose", y, perm=[0, 2, 3, 1])
        return g.op("Transpose", y, perm=[0, 2, 1, 3])


def rotate(g, x, y, size, cos, sin):
    """Rotary embedding of [B,N,S,D] in the form of exporters."""
    half = size // 2
    with g.at("rope"):
        if g.pick("halves", ["slice", "split"]) == "split":
            a, b = g.split(y, [half, half], -1)
        else:
            a, b = g.slice(y, 0, half, 3), g.slice(y, half, 1 << 62, 3)
        turned = g.op("Concat", g.op("Neg", b), a, axis=-1)
        return g.add(g.mul(y, cos, "cos_order"), g.mul(turned, sin, "sin_order"), "order")


def rotary_tables(g, x, size):
    p = g.cast(g.range(g.dim(x, 1, keep=False)), "f")
    inverse = 1.0 / 100.0 ** (np.arange(0, size, 2) / size)
    angle = g.mul(g.unsqueeze(p, 1), g.const(inverse.astype(np.float32)))
    angle = g.unsqueeze(g.op("Concat", angle, angle, axis=-1), 0)
    return [g.unsqueeze(g.op(f, angle), 1) for f in ("Cos", "Sin")]


def project(g, x, other, n, heads, kv_heads, size):
    """q, k, v as [B,S,heads*size]."""
    form = g.pick("projection", ["three", "packed", "packed_heads", "tied", "cross", "two_packed"], plain=4)
    if form == "packed" and kv_heads == heads:
        y = f.linear(g, x, n, 3 * n, "qkv")
        if g.pick("packed_split", ["split", "slice"]) == "split":
            return g.split(y, [n] * 3, g.pick("split_axis", [-1, 2]))
        return [g.slice(y, i * n, (i + 1) * n, 2) for i in range(3)]
    if form == "packed_heads" and kv_heads == heads:
        y = f.linear(g, x, n, 3 * n, "qkv")
        y = g.reshape(y, 0, 0, 3, n)
        if g.pick("packed_split", ["split", "gather"]) == "split":
            return [g.squeeze(p, 2) for p in g.split(y, [1] * 3, 2)]
        return [g.op("Gather", y, g.const(np.array(i)), axis=2) for i in range(3)]
    if form == "two_packed":
        q = f.linear(g, x, n, n, "q_proj")
        k, v = g.split(f.linear(g, x, n, 2 * kv_heads * size, "kv"), [kv_heads * size] * 2, 2)
        return q, k, v
    kx = other if form == "cross" else x
    q = f.linear(g, x, n, n, "q_proj")
    k = q if form == "tied" and kv_heads == heads else f.linear(g, kx, n, kv_heads * size, "k_proj")
    v = f.linear(g, kx, n, kv_heads * size, "v_proj")
    return q, k, v


ATTENTION_MISSES = ["none", "softmax_queries", "softmax_heads", "scale_heads", "scale_negative", "key_as_query", "softcap",
                    "transposed_weights", "scale_channels", "no_softmax", "weights_times_mask", "scores_twice",
                    "mask_after", "exp_sum"]


def repeat_heads(g, x, y, heads, kv_heads, size):
    """Grouped queries: [B,G,S,D] -> [B,N,S,D]."""
    times = heads // kv_heads
    b, s = g.dim(x, 0), g.dim(x, 1)
    wide = g.op("Expand", g.unsqueeze(y, 2), g.shape(b, kv_heads, times, s, size))
    return g.reshape(wide, b, heads, s, size)


def scaled(g, q, kt, size, miss):
    """MatMul of queries and keys with the scale where exporters put it."""
    scale = size ** -0.5
    form = g.pick("scale", ["scores_mul", "scores_div", "q_mul", "q_div", "k_mul", "both", "none", "twice"], plain=2)
    if miss == "scale_negative":
        scale = -scale
        form = "scores_mul"
    root = g.scalar(scale, "scale_shape") if form != "both" else g.scalar(abs(scale) ** 0.5, "scale_shape")
    if form == "q_mul" or form == "both" or form == "twice":
        q = g.mul(q, root, "q_order")
    if form == "q_div":
        q = g.op("Div", q, g.const(np.float32(1 / scale)))
    if form == "k_mul" or form == "both":
        kt = g.mul(kt, root, "k_order")
    if miss == "scale_channels":
        q = g.mul(q, g.const(g.numbers("channels", size, 0.3, 1)), "channel_order")
    s = g.op("MatMul", q, kt)
    if form == "scores_mul" or form == "twice":
        s = g.mul(s, root, "scale_order")
    if form == "scores_div":
        s = g.op("Div", s, g.const(np.float32(1 / scale)))
    return s


def apply_mask(g, s, mask):
    if mask.kind == "none":
        return s
    if mask.kind == "add":
        return g.add(s, mask.value, "mask_order")
    fill = g.const(np.float32(mask.fill))
    form = g.pick("select", ["where", "where_not", "add"])
    if form == "where":
        return g.op("Where", mask.value, s, fill, t="f")
    if form == "where_not":
        away = g.op("Not", mask.value)
        if g.pick("select_expand", [False, True], plain=3):
            away = g.op("Expand", away, g.op("Shape", s))
        return g.op("Where", away, fill, s, t="f")
    return g.add(s, g.op("Where", mask.value, g.const(np.float32(0)), fill, t="f"), "mask_order")


def weights_of(g, s, mask, miss, rank=4):
    if miss == "softmax_queries" and g.opset >= 13:
        return g.op("Softmax", s, axis=rank - 2)
    if miss == "softmax_heads" and g.opset >= 13:
        return g.op("Softmax", s, axis=rank - 3)
    if miss == "no_softmax":
        return g.op("Sigmoid", s)
    if miss == "exp_sum":
        e = g.op("Exp", g.op("Min", s, g.const(np.float32(20))))
        return g.op("Div", e, g.op("Add", g.sum(e, -1), g.const(np.float32(0.1))))
    if g.pick("shifted", [False, True], plain=12):
        s = g.op("Sub", s, g.reduce("ReduceMax", s, -1))
    p = g.softmax(s, -1, rank)
    guard = g.pick("guard", [False, True], plain=3)
    if guard:
        p = g.op("Where", g.op("IsNaN", p), g.const(np.float32(0)), p, t="f")
    if miss == "weights_times_mask":
        p = g.mul(p, g.const(np.float32(0.5)))
    if miss == "mask_after" and mask.kind == "bool":
        p = g.op("Where", mask.value, p, g.const(np.float32(0)), t="f")
    return g.no_op(p, "weights_no_op", rank)


def merge(g, x, y, heads, size):
    """[B,N,S,D] -> [B,S,N*D]."""
    form = g.pick("merge", ["zeros", "dims", "infer", "no_transpose"], plain=10)
    if form == "no_transpose":  # heads laid end to end: tokens mixed
        return g.reshape(y, g.dim(x, 0), -1, heads * size)
    y = g.op("Transpose", y, perm=[0, 2, 1, 3])
    return g.reshape(y, *{"zeros": (0, 0, heads * size), "dims": (g.dim(x, 0), g.dim(x, 1), heads * size),
                          "infer": (g.dim(x, 0), -1, heads * size)}[form])


def folded(g, x, q, k, v, heads, size, mask):
    """Batch and heads in one axis: 3-D products."""
    b, s = g.dim(x, 0), g.dim(x, 1)

    def fold(y):
        y = g.op("Transpose", g.reshape(y, b, s, heads, size), perm=[0, 2, 1, 3])
        return g.reshape(y, -1, s, size)
    q, k, v = fold(q), fold(k), fold(v)
    scores = scaled(g, q, g.op("Transpose", k, perm=[0, 2, 1]), size, "none")
    if mask.kind != "none":
        scores = apply_mask(g, g.reshape(scores, b, heads, s, s), mask)
        if g.pick("softmax_folded", [False, True]):
            p = weights_of(g, g.reshape(scores, -1, s, s), mask, "none", 3)
        else:
            p = g.reshape(weights_of(g, scores, mask, "none"), -1, s, s)
    else:
        p = weights_of(g, scores, mask, "none", 3)
    y = g.op("MatMul", p, v)
    y = g.op("Transpose", g.reshape(y, b, heads, s, size), perm=[0, 2, 1, 3])
    return g.reshape(y, b, s, heads * size)


def attention(g, x, n, mask_input, other, shared_mask, name):
    with g.at(name):
        heads = g.pick("heads", [h for h in (2, 4, 1, 3) if n % h == 0])
        size = n // heads
        grouped = heads > 1 and g.rarely("grouped", 12)
        kv_heads = 1 if grouped else heads
        miss = g.pick("miss", ATTENTION_MISSES, plain=40)
        mask = shared_mask if shared_mask and g.pick("own_mask", [False, True], plain=2) is False else make_mask(g, x, mask_input)
        if mask.kind == "bool" and g.opset < 12 and mask.fill == float("-inf"):
            mask.fill = NEG_MAX
        g.has_soft_fill |= mask.kind != "none" and -1e9 < mask.fill
        q, k, v = project(g, x, other, n, heads, kv_heads, size)
        layout = g.pick("layout", ["four", "folded", "native4", "native3", "sdpa_key"], plain=4)
        bias = relative_bias(g, x, heads)
        honest = miss == "none"
        g.expect("attention", honest)
        if layout == "folded" and kv_heads == heads and bias is None and honest:
            y = folded(g, x, q, k, v, heads, size, mask)
        elif layout == "native3" and g.opset >= 23 and honest and bias is None:
            y = native(g, [q, k, v], mask, q_num_heads=heads, kv_num_heads=kv_heads)
        else:
            y = four(g, x, q, k, v, heads, kv_heads, size, mask, bias, miss, layout)
        return f.linear(g, y, n, n, "out") if g.pick("out", [True, False], plain=6) else y


def native(g, qkv, mask, **attributes):
    if mask.kind == "none":
        if g.pick("causal", [False, True], plain=4):
            attributes["is_causal"] = 1
            g.notes.add("rows_without_keys")
        return g.op("Attention", *qkv, **attributes)
    if g.pick("native_scale", [False, True], plain=3):
        attributes["scale"] = 0.3
    return g.op("Attention", *qkv, mask.value, **attributes)


def four(g, x, q, k, v, heads, kv_heads, size, mask, bias, miss, layout):
    q = heads_of(g, x, q, heads, size, "q")
    v = heads_of(g, x, v, kv_heads, size, "v")
    if layout == "native4" and g.opset >= 23 and miss == "none" and bias is None:
        k = heads_of(g, x, k, kv_heads, size, "k")
        return merge(g, x, native(g, [q, k, v], mask), heads, size)
    turn = size % 2 == 0 and g.pick("rotary", [False, True], plain=9)
    norms = g.pick("head_norms", [False, True], plain=15)
    if turn:
        cos, sin = rotary_tables(g, x, size)
        q = rotate(g, x, q, size, cos, sin)
    if norms:
        q = f.norm4(g, q, size, "q_norm")
    direct = not turn and not norms and kv_heads == heads and layout != "sdpa_key" and g.pick("key_direct", [True, False])
    if direct:
        kt = heads_of(g, x, k, heads, size, "k", for_key=True)
    else:
        k = heads_of(g, x, k, kv_heads, size, "k")
        if turn:
            k = rotate(g, x, k, size, cos, sin)
        if norms:
            k = f.norm4(g, k, size, "k_norm")
        if kv_heads != heads:
            k, v = repeat_heads(g, x, k, heads, kv_heads, size), repeat_heads(g, x, v, heads, kv_heads, size)
        if layout == "sdpa_key":
            b, s = g.dim(x, 0), g.dim(x, 1)
            kt = g.reshape(g.op("Transpose", g.reshape(k, -1, s, size), perm=[0, 2, 1]), b, heads, size, s)
        else:
            kt = g.op("Transpose", k, perm=[0, 1, 3, 2])
    if miss == "key_as_query":
        q, kt = g.op("Transpose", kt, perm=[0, 1, 3, 2]), g.op("Transpose", q, perm=[0, 1, 3, 2])
    s = scaled(g, q, kt, size, miss)
    if miss == "scale_heads":
        s = g.mul(s, g.const(g.numbers("head_scale", (heads, 1, 1), 0.3, 1)), "head_order")
    if miss == "softcap":
        s = g.mul(g.op("Tanh", s), g.const(np.float32(2)))
    if miss == "scores_twice":
        s = g.add(s, s)
    if bias is not None:
        if mask.kind == "add" and g.pick("bias_with_mask", [False, True]):
            s = g.add(s, g.add(bias, mask.value, "bias_mask_order"), "bias_order")
            mask = Mask("none")
        else:
            s = g.add(s, bias, "bias_order")
    s = g.no_op(s, "scores_no_op", 4)
    p = weights_of(g, apply_mask(g, s, mask), mask, miss)
    if miss == "transposed_weights":
        p = g.op("Transpose", p, perm=[0, 1, 3, 2])
    return merge(g, x, g.op("MatMul", p, v), heads, size)
