"""Makes the models of this folder, with answers of ONNX Runtime (optimizations off) or, where that has no kernel, of
onnx's reference evaluator. Needed only to change them: the tests read what is checked in.

    python make_cases.py            writes cases/<name>/{model.onnx,input_N.pb,output_N.pb} and bad/<name>.onnx
"""
import pathlib
import shutil

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator

HERE = pathlib.Path(__file__).parent
MS = "com.microsoft"
rng = np.random.default_rng(20)


def f(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def i8(*shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def u8(*shape):
    return rng.integers(0, 256, shape).astype(np.uint8)


def node(op, ins, outs, domain="", name=None, **attributes):
    return h.make_node(op, ins.split() if isinstance(ins, str) else ins, outs.split(), name=name or outs.split()[0],
                       domain=domain, **attributes)


def info(name, array, dims=None):
    return h.make_tensor_value_info(name, h.np_dtype_to_tensor_dtype(array.dtype), dims or list(array.shape))


def model(nodes, inputs, weights, outputs, dims, opset, ir, functions=(), domains=(MS,), as_inputs=()):
    graph = h.make_graph(nodes, "g", [info(k, v, dims.get(k)) for k, v in inputs.items()] +
                         [info(k, weights[k]) for k in as_inputs],
                         [onnx.ValueInfoProto(name=k) for k in outputs.split()],
                         [v if isinstance(v, onnx.TensorProto) else nh.from_array(v, k) for k, v in weights.items()])
    imports = [h.make_opsetid("", opset)] + [h.make_opsetid(d, 1) for d in domains]
    return h.make_model(graph, opset_imports=imports, ir_version=ir, functions=list(functions))


def evaluate(m, inputs):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, inputs)
    except Exception:
        return ReferenceEvaluator(m).run(None, inputs)


def case(name, nodes, inputs, weights, outputs, dims={}, opset=17, ir=8, answer=None, **more):
    m = model(nodes, inputs, weights, outputs, dims, opset, ir, **more)
    folder = HERE / "cases" / name
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(m.SerializeToString())
    result = answer if answer is not None else evaluate(m, inputs)
    for i, (k, v) in enumerate(inputs.items()):
        (folder / f"input_{i}.pb").write_bytes(nh.from_array(v, k).SerializeToString())
    for i, (k, v) in enumerate(zip(outputs.split(), result)):
        (folder / f"output_{i}.pb").write_bytes(nh.from_array(np.asarray(v), k).SerializeToString())


def bad(name, m):
    folder = HERE / "bad"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.onnx").write_bytes(m if isinstance(m, bytes) else m.SerializeToString())


B, S, H, N = 2, 5, 12, 2
x = f(B, S, H)
XD = {"x": ["batch", "seq", H]}
I = np.int32


def microsoft_attention():
    w, b = f(H, 3 * H) * 0.3, f(3 * H) * 0.1
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], I)

    def one(name, ins, weights, inputs, dims=None, **a):
        case("attention_" + name, [node("Attention", ins.split(" "), "y", MS, num_heads=N, **a)], inputs, weights,
                 "y",
             dims if dims is not None else XD)

    wb = {"w": w, "b": b}
    one("plain", "x w b", wb, {"x": x})
    one("no_bias", "x w", {"w": w}, {"x": x})
    one("mask_2d", "x w b m", wb, {"x": x, "m": mask}, {**XD, "m": ["batch", "seq"]})
    one("lengths", "x w b m", wb, {"x": x, "m": np.array([5, 3], I)}, {**XD, "m": ["batch"]})
    one("ends_starts", "x w b m", wb, {"x": x, "m": np.array([5, 4, 0, 2], I)}, {})
    one("mask_3d", "x w b m", wb, {"x": x, "m": (rng.random((B, S, S)) > 0.3).astype(I)},
        {**XD, "m": ["batch", "seq", "seq"]})
    one("causal", "x w b", wb, {"x": x}, unidirectional=1)
    one("causal_masked", "x w b m", wb, {"x": x, "m": mask}, {**XD, "m": ["batch", "seq"]}, unidirectional=1)
    one("filter", "x w b m", wb, {"x": x, "m": mask}, {**XD, "m": ["batch", "seq"]}, mask_filter_value=-3.0)
    one("scale", "x w b", wb, {"x": x}, scale=0.2)
    one("bias", "x w b   r", wb, {"x": x, "r": f(1, N, S, S)}, {**XD, "r": [1, N, "seq", "seq"]})
    one("sizes", "x w b", {"w": f(H, 20) * 0.3, "b": f(20)}, {"x": x}, qkv_hidden_sizes=[6, 6, 8])

    q, k, v = f(B, S, H), f(B, 4, H), f(B, 4, H)

    def many(name, ins, weights, inputs, **a):
        case("mha_" + name, [node("MultiHeadAttention", ins.split(" "), "y", MS, num_heads=N, **a)], inputs, weights,
                 "y")

    many("plain", "q k v", {}, {"q": q, "k": k, "v": v})
    many("bias", "q k v b", {"b": b}, {"q": q, "k": k, "v": v})
    many("mask", "q k v  m", {}, {"q": q, "k": k, "v": v, "m": np.array([[1, 1, 0, 0], [1, 0, 1, 1]], I)})
    many("lengths", "q k v  m", {}, {"q": q, "k": k, "v": v, "m": np.array([3, 1], I)})
    many("scores_bias", "q k v   r", {}, {"q": q, "k": k, "v": v, "r": f(B, N, S, 4)})
    many("by_head", "q k v", {}, {"q": q, "k": f(B, N, 4, 6), "v": f(B, N, 4, 6)})
    many("causal", "q k v", {}, {"q": q, "k": f(B, S, H), "v": f(B, S, H)}, unidirectional=1, scale=0.3)
    case("qattention", [node("QAttention", "x w b xs ws m xz wz", "y", MS, num_heads=N)],
         {"x": u8(B, S, H), "m": np.array([5, 3], I)},
         {"w": i8(H, 3 * H), "b": b, "xs": np.float32(0.02), "ws": np.float32(0.005), "xz": np.uint8(128),
          "wz": np.int8(0)}, "y")


def microsoft_others():
    g, be, bi, s = f(H), f(H), f(H), f(B, S, H)
    w = {"g": g, "be": be, "bi": bi}
    case("skip_layer_norm", [node("SkipLayerNormalization", "x s g be bi", "y", MS, epsilon=0.05)], {"x": x, "s": s},
             w, "y",
         {**XD, "s": ["batch", "seq", H]})
    case("skip_layer_norm_sum", [h.make_node("SkipLayerNormalization", ["x", "s", "g", "be", "bi"], ["y", "", "",
             "sum"],
                                             domain=MS)], {"x": x, "s": f(1, S, H)}, w, "y sum")
    case("skip_rms_norm", [h.make_node("SkipSimplifiedLayerNormalization", ["x", "s", "g", "bi"], ["y", "", "",
             "sum"],
                                       domain=MS, epsilon=0.01)], {"x": x, "s": s}, {"g": g, "bi": bi}, "y sum")
    case("simplified_layer_norm", [node("SimplifiedLayerNormalization", "x g", "y", axis=-1, epsilon=0.02)], {"x": x},
         {"g": g}, "y", XD)
    ids, seg = rng.integers(0, 20, (B, S)).astype(I), rng.integers(0, 2, (B, S)).astype(I)
    tables = {"we": f(20, H), "pe": f(9, H), "te": f(2, H), "g": g, "be": be}
    two = {k: ["batch", "seq"] for k in ("ids", "seg", "m", "p")}
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], I)
    case("embed_layer_norm", [node("EmbedLayerNormalization", "ids seg we pe te g be m", "y mi es", MS,
             epsilon=1e-3)],
         {"ids": ids, "seg": seg, "m": mask}, tables, "y mi es", two)
    case("embed_positions", [node("EmbedLayerNormalization", "ids,seg,we,pe,te,g,be,,p".split(","), "y mi", MS)],
         {"ids": ids, "seg": seg, "p": rng.integers(0, 9, (B, S)).astype(I)}, tables, "y", two)
    case("embed_no_segments", [node("EmbedLayerNormalization", "ids,,we,pe,,g,be".split(","), "y mi", MS)],
             {"ids": ids},
         {k: v for k, v in tables.items() if k != "te"}, "y", two)
    case("bias_gelu", [node("BiasGelu", "x g", "y", MS)], {"x": x}, {"g": g}, "y", XD)
    case("fast_gelu", [node("FastGelu", "x g", "y", MS)], {"x": x}, {"g": g}, "y", XD)
    case("ms_gelu", [node("Gelu", "x", "y", MS)], {"x": x}, {}, "y", XD)
    case("quick_gelu", [node("QuickGelu", "x", "y", MS, alpha=1.5)], {"x": x}, {}, "y", XD)
    for ta, tb in ((0, 1), (1, 0), (1, 1)):
        a = f(2, 3, 6, 5) if ta else f(2, 3, 5, 6)
        b = f(2, 3, 4, 6) if tb else f(2, 3, 6, 4)
        case(f"fused_matmul_{ta}{tb}", [node("FusedMatMul", "a b", "y", MS, transA=ta, transB=tb, alpha=0.37)],
             {"a": a, "b": b}, {}, "y")
    case("fused_matmul_batch", [node("FusedMatMul", "a b", "y", MS, transBatchA=1, transBatchB=1, transB=1)],
         {"a": f(5, 2, 3, 6), "b": f(4, 2, 3, 6)}, {}, "y")
    case("fused_gemm", [node("FusedGemm", "a b c", "y", MS, transB=1, alpha=0.5, beta=0.3, activation="LeakyRelu",
                             activation_alpha=0.2)], {"a": f(3, 5)}, {"b": f(4, 5), "c": f(4)}, "y")
    cos, sin, p = f(9, 3), f(9, 3), rng.integers(0, 9, (B, S)).astype(np.int64)
    tables = {"c": cos, "s": sin}
    for twist in (0, 1):
        case(f"rotary_{twist}", [node("RotaryEmbedding", "x p c s", "y", MS, interleaved=twist)], {"x": x, "p": p},
                 tables,
             "y", {**XD, "p": ["batch", "seq"]})
    case("rotary_offset", [node("RotaryEmbedding", "x p c s", "y", MS)], {"x": f(B, N, S, 6), "p": np.array([2])},
             tables,
         "y")
    case("rotary_part", [node("RotaryEmbedding", "x p c s", "y", MS, num_heads=1, rotary_embedding_dim=6)],
         {"x": x, "p": p}, tables, "y")
    case("dynamic_quantize_matmul", [node("DynamicQuantizeMatMul", "x w ws wz b", "y", MS)], {"x": x},
         {"w": u8(H, 10), "ws": np.float32([0.02]), "wz": np.uint8([120]), "b": f(10)}, "y", XD)
    case("matmul_integer_to_float", [node("MatMulIntegerToFloat", "a w as ws az wz b", "y", MS)], {"a": u8(B, S, H)},
         {"w": i8(H, 10), "as": np.float32([0.03]), "ws": np.abs(f(10)) * 0.01, "az": np.uint8([7]),
          "wz": np.zeros(10, np.int8), "b": f(10)}, "y")
    for bits, zeros in ((4, 0), (4, 1), (4, 2), (8, 1), (2, 1)):
        k, n, blocks = 40, 6, 3
        w, ins = {"B": u8(n, blocks, 16 * bits // 8), "sc": np.abs(f(n, blocks)) * 0.1}, "x B sc"
        if zeros:
            w["z"] = u8(n, -(-blocks * bits // 8)) if zeros == 1 else np.abs(f(n, blocks)) * 4
            ins += " z"
        case(f"nbits_{bits}_{zeros}", [node("MatMulNBits", ins, "y", MS, K=k, N=n, bits=bits, block_size=16)],
             {"x": f(2, 3, k)}, w, "y")
    rows = rng.integers(0, 6, (2, 3))
    for kind, low, high in ((T.UINT4, 0, 16), (T.INT4, -8, 8)):
        data = h.make_tensor("d", kind, [6, 32], rng.integers(low, high, 192).tolist())
        case(f"gather_blocks_{'u4' if low == 0 else 'i4'}",
             [node("GatherBlockQuantized", "d i sc", "y", MS, block_size=16, gather_axis=0, quantize_axis=1)],
             {"i": rows}, {"d": data, "sc": np.abs(f(6, 2))}, "y", opset=21, ir=10)
    case("gather_blocks_u8", [node("GatherBlockQuantized", "d i sc z", "y", MS, block_size=16, bits=4, gather_axis=0,
                                   quantize_axis=1)], {"i": rows},
         {"d": u8(6, 16), "sc": np.abs(f(6, 2)), "z": u8(6, 1)}, "y")


def old_forms():
    v = f(2, 6, 4)
    case("opset7", [node("Slice", "x", "a", axes=[1, 2], starts=[1, -3], ends=[1000, 4]),
                    node("Unsqueeze", "a", "b", axes=[0, 4]), node("Squeeze", "b", "c", axes=[0, 4]),
                    node("Clip", "c", "d", min=-0.5), node("Pad", "d", "e", pads=[0, 1, 0, 0, 0, 2], value=3.0),
                    node("ReduceSum", "e", "s", axes=[-1], keepdims=0), node("Softmax", "e", "y", axis=1),
                    node("TopK", "s", "t ti", axis=1, k=2), node("Dropout", "s", "dr", ratio=0.3),
                    node("Split", "e", "p q", axis=2, split=[1, 4])], {"x": v}, {}, "y t ti dr p q", opset=7, ir=3,
         domains=())
    case("softmax11", [node("Softmax", "x", "a", axis=1), node("LogSoftmax", "x", "b"), node("Hardmax", "x", "c",
             axis=0)],
         {"x": v}, {}, "a b c", opset=11, ir=6, domains=())
    case("softmax13", [node("Softmax", "x", "a", axis=1), node("LogSoftmax", "x", "b"), node("Hardmax", "x", "c",
             axis=0)],
         {"x": v}, {}, "a b c", opset=13, ir=7, domains=())
    case("clip_absent", [node("Clip", ["x", "", "hi"], "y")], {"x": v}, {"hi": np.float32(0.25)}, "y", domains=())
    case("split18", [node("Split", "x", "a b c d", axis=1, num_outputs=4)], {"x": f(2, 7)}, {}, "a b c d", opset=18,
         domains=())
    case("reduce_noop", [node("ReduceSum", "x", "a", noop_with_empty_axes=1), node("ReduceL2", "x", "b", axes=[0, 2],
                                                                                   keepdims=0)],
         {"x": v}, {}, "a b", opset=13, domains=())
    case("defaults", [node("LayerNormalization", "x g", "ln", axis=1, epsilon=0.3), node("Flatten", "x", "fl",
             axis=2),
                      node("Transpose", "x", "tr"), node("LeakyRelu", "x", "lr", alpha=0.3), node("Elu", "x", "el",
                      alpha=2.0),
                      node("HardSigmoid", "x", "hs", alpha=0.3, beta=0.4), node("Selu", "x", "se", alpha=1.1,
                      gamma=0.9),
                      node("ArgMax", "x", "am", axis=-1, keepdims=0, select_last_index=1),
                      node("CumSum", "x ax", "cs", exclusive=1, reverse=1), node("Gather", "x ix", "ga", axis=2),
                      node("Mod", "x x2", "mo", fmod=1), node("IsInf", "x", "ii", detect_negative=0)],
         {"x": v}, {"g": f(6, 4), "ax": np.int64(1), "ix": np.array([-1, 0]), "x2": f(4)},
         "ln fl tr lr el hs se am cs ga mo ii", domains=())
    case("gamma_spellings", [node("LayerNormalization", "x g1", "a"), node("LayerNormalization", "x g2 b2", "b"),
                             node("LayerNormalization", "x g3", "c")],
         {"x": v}, {"g1": f(1, 1, 4), "g2": f(6, 4), "b2": f(1), "g3": f(1)}, "a b c", domains=())


def structure():
    v = f(2, 3)
    weights = {
        "fd": h.make_tensor("fd", T.FLOAT, [3], [1.5, -2, 0.25]), "dd": h.make_tensor("dd", T.DOUBLE, [3], [1.5, -2,
        1e-9]),
        "i64": h.make_tensor("i64", T.INT64, [3], [-1, 2, 1 << 40]), "u64": h.make_tensor("u64", T.UINT64, [2], [1,
        1 << 63]),
        "i8": h.make_tensor("i8", T.INT8, [3], [-128, 0, 127]), "bo": h.make_tensor("bo", T.BOOL, [3], [1, 0, 1]),
        "h": h.make_tensor("h", T.FLOAT16, [3], [1.5, -2, 0.25]), "bf": h.make_tensor("bf", T.BFLOAT16, [2], [1.5,
        -3]),
        "u32": h.make_tensor("u32", T.UINT32, [1], [4000000000]), "raw": np.float32([7, 8, 9])}
    casts = [node("Cast", k, "c_" + k, to=T.DOUBLE) for k in weights]
    case("typed_fields", [node("Add", "x x", "s")] + casts, {"x": v}, weights,
             "s " + " ".join("c_" + k for k in weights),
         domains=())
    case("constant_forms", [h.make_node("Constant", [], ["a"], value_float=1.5), h.make_node("Constant", [], ["b"],
         value_floats=[1.0, 2.0, 3.0]), h.make_node("Constant", [], ["c"], value_int=3), h.make_node("Constant", [],
                  ["d"],
         value_ints=[2, 1, -1]), h.make_node("Constant", [], ["e"], value=nh.from_array(v)), node("Add", "x a", "f"),
        node("Mul", "f b", "g"), node("Reshape", "g d", "r"), node("Cast", "c", "cf", to=T.FLOAT), node("Add",
        "r cf", "y"),
        node("Add", "x e", "z")], {"x": v}, {}, "y z", opset=13, domains=())
    w = f(3, 3)
    case("scrambled", [node("Add", "b x", "y"), node("Relu", "a", "b"), node("MatMul", "x w", "a")], {"x": v},
             {"w": w}, "y",
         domains=(), answer=[np.maximum(v @ w, 0) + v])
    case("weights_as_inputs", [node("MatMul", "x w", "y")], {"x": v}, {"w": f(3, 4)}, "y", ir=3, domains=(),
             as_inputs=("w",))
    case("aliases", [node("Identity", "x", "a"), node("Identity", "a", "y"), node("Identity", "w", "z"), node("Relu",
             "a", "r"),
                     node("Identity", "r", "r2")], {"x": v}, {"w": f(2)}, "y z r r2", domains=())

    scaled = h.make_function("own", "Scaled", ["a"], ["b"], [
        h.make_node("Constant", [], ["s"]), node("LeakyRelu", "a", "l"), node("Mul", "l s", "b")],
        [h.make_opsetid("", 17)], ["factor"], [h.make_attribute("slope", 0.5)])
    scaled.node[0].attribute.append(onnx.AttributeProto(name="value_float", type=onnx.AttributeProto.FLOAT,
                                                        ref_attr_name="factor"))
    scaled.node[1].attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT,
                                                        ref_attr_name="slope"))
    twice = h.make_function("own", "Twice", ["a", "unused"], ["b"], [
        node("Scaled", "a", "t", "own", factor=2.0), node("Scaled", "t", "u", "own"), node("Add", "u a", "b")],
        [h.make_opsetid("", 17), h.make_opsetid("own", 1)], ["factor"])
    twice.node[1].attribute.append(onnx.AttributeProto(name="factor", type=onnx.AttributeProto.FLOAT,
                                                       ref_attr_name="factor"))
    case("functions", [node("Twice", "x", "y", "own", factor=3.0), node("Scaled", "x", "z", "own", factor=-1.0,
             slope=0.1)],
         {"x": v}, {}, "y z", domains=("own",), functions=(scaled, twice))

    def branch(name, nodes, out):
        return h.make_graph(nodes, name, [], [h.make_tensor_value_info(out, T.FLOAT, None)])

    shape_test = [node("Shape", "x", "sh"), node("Gather", "sh one", "d"), node("Equal", "d three", "eq")]
    ok = branch("then", [node("Mul", "x w", "t")], "t")
    never = branch("else", [node("NonZero", "x", "nz"), node("Cast", "nz", "e", to=T.FLOAT)], "e")
    case("if_folds", shape_test + [node("If", "eq", "y", then_branch=ok, else_branch=never)], {"x": v},
         {"one": np.int64(1), "three": np.int64(3), "w": f(3)}, "y", {"x": ["batch", 3]}, domains=())
    case("int4_dequantize", [node("DequantizeLinear", "q s z", "y", axis=1, block_size=4), node("MatMul", "x y",
             "o")],
         {"x": f(2, 3)}, {"q": h.make_tensor("q", T.INT4, [3, 8], rng.integers(-8, 8, 24).tolist()), "s": f(3, 2),
                          "z": h.make_tensor("z", T.INT4, [3, 2], [1, -1, 2, 0, -3, 4])}, "o", opset=21, ir=10,
                          domains=())
    case("unused_input", [node("Relu", "x", "y")], {"x": v, "other": f(4)}, {}, "y", domains=())


def more_operators():
    for name, extra in (("float", {}), ("quantized", {"ys": np.float32(0.5), "yz": np.uint8(100)})):
        w = {"as": np.float32(0.03), "az": np.uint8(7), "b": i8(4, 6), "bs": np.float32(0.02), "bz": np.int8(0),
             "c": rng.integers(-900, 900, 4).astype(I), **extra}
        case("qgemm_" + name, [node("QGemm", "a as az b bs bz c" + (" ys yz" if extra else ""), "y", MS, transB=1)],
             {"a": u8(3, 6)}, w, "y")
    case("resize_same", [node("Resize", ["x", "", "", "sizes"], "y", mode="cubic")], {"x": f(1, 2, 4, 4)},
         {"sizes": np.array([1, 2, 4, 4])}, "y", domains=())
    case("pools", [node("LpPool", "x", "a", kernel_shape=[2, 2], p=1, strides=[2, 1]),
                   node("MaxPool", "x", "b", kernel_shape=[3, 2], pads=[1, 0, 1, 1], ceil_mode=1, strides=[2, 2]),
                   node("AveragePool", "x", "c", kernel_shape=[2, 2], auto_pad="SAME_UPPER", count_include_pad=1),
                   node("Conv", "x w", "d", auto_pad="SAME_LOWER", strides=[2, 1], dilations=[1, 2], group=2),
                   node("GlobalMaxPool", "x", "e"), node("GlobalAveragePool", "x", "g")],
         {"x": f(1, 2, 5, 6)}, {"w": f(4, 1, 2, 2)}, "a b c d e g", domains=())
    q = f(1, 4, 3, 8)
    case("attention24", [h.make_node("Attention", ["q", "k", "v", "m"], ["y"], scale=0.3, softcap=2.0),
                         h.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["z", "nk", "nv"], is_causal=1)],
         {"q": q, "k": f(1, 2, 3, 8), "v": f(1, 2, 3, 6), "m": np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]], bool),
          "pk": f(1, 2, 2, 8), "pv": f(1, 2, 2, 6)}, {}, "y z nk nv", opset=24, ir=11, domains=())


def qlinear_operators():
    """Operators between DequantizeLinear and QuantizeLinear, each with zero points, without, and over a scale a channel."""
    own = np.random.default_rng(22)

    def b(kind, *shape):
        return own.integers(*((0, 256) if kind == np.uint8 else (-128, 128)), shape).astype(kind)

    def s(v):
        return np.float32(v)

    for kind, z in ((np.uint8, 131), (np.int8, -5)):
        t = np.dtype(kind).name
        zero = {"az": kind(z), "yz": kind(z + 2)}
        one = {"as": s(0.02), "ys": s(0.0311), **zero}  # no ties
        x = {"a": b(kind, 2, 3, 4)}
        for op in ("Add", "Mul"):
            case(f"qlinear_{op.lower()}_{t}", [node("QLinear" + op, "a as az c cs cz ys yz", "y", MS)],
                 {**x, "c": b(kind, 3, 1)}, {**one, "cs": s(0.01), "cz": kind(3)}, "y")
        case(f"qlinear_sigmoid_{t}", [node("QLinearSigmoid", "a as az ys yz", "y", MS)], x,
             {**one, "ys": s(1 / 256)}, "y")
        case(f"qlinear_leaky_{t}", [node("QLinearLeakyRelu", "a as az ys yz", "y", MS, alpha=0.2)], x, one, "y")
        case(f"qlinear_concat_{t}", [node("QLinearConcat", "ys yz a as az c cs cz a as az", "y", MS, axis=1)],
             {**x, "c": b(kind, 2, 2, 4)}, {**one, "cs": s(0.01), "cz": kind(3)}, "y")
        case(f"qlinear_where_{t}", [node("QLinearWhere", "m a as az c cs cz ys yz", "y", MS)],
             {"m": own.integers(0, 2, (2, 3, 4)).astype(bool), **x, "c": b(kind, 2, 3, 4)},
             {**one, "cs": s(0.01), "cz": kind(3)}, "y")
        case(f"qlinear_pool_{t}", [node("QLinearAveragePool", "a as az ys yz", "y", MS, kernel_shape=[2], strides=[2]),
                                   node("QLinearGlobalAveragePool", "a as az ys yz", "g", MS)],
             x, one, "y g")
        case(f"qlinear_softmax_{t}", [node("QLinearSoftmax", "a as az ys yz", "y", MS, axis=-1, opset=13),
                                      node("QLinearSoftmax", "a as az ys yz", "f", MS, axis=1, opset=11)], x,
             {**one, "ys": s(1 / 256)}, "y f")
    case("qlinear_conv", [node("QLinearConv", "a as az w ws wz ys yz b", "y", pads=[1, 1])],
         {"a": b(np.uint8, 1, 3, 6)},
         {"as": s(0.02), "az": np.uint8(131), "w": b(np.int8, 4, 3, 3), "ws": own.uniform(0.01, 0.03, 4).astype("f"),
          "wz": np.zeros(4, np.int8), "ys": s(0.2), "yz": np.uint8(120), "b": own.integers(-900, 900, 4).astype(I)},
         "y", domains=())


def resizes():
    """Numbers of their own, so that other cases stay as they are. Answers are onnx's."""
    own = np.random.default_rng(21)
    grid = own.standard_normal((1, 2, 5, 7)).astype(np.float32)

    def one(name, x, ins, weights, opset=19, **a):
        n = [node("Resize", ins, "y", **a)]
        reference = ReferenceEvaluator(model(n, {"x": x}, weights, "y", {}, opset, 9, domains=())).run(None, {"x": x})
        case("resize_" + name, n, {"x": x}, weights, "y", opset=opset, ir=9, domains=(), answer=reference)

    def sizes(*s):
        return {"s": np.array(s)}

    to = ["x", "", "", "s"]
    one("cubic_up", grid, to, sizes(1, 2, 9, 8), mode="cubic")
    one("cubic_down", grid, to, sizes(1, 2, 3, 7), mode="cubic", coordinate_transformation_mode="pytorch_half_pixel",
        exclude_outside=1, cubic_coeff_a=-0.5)
    one("cubic_antialias", grid, to, sizes(1, 2, 3, 4), mode="cubic", antialias=1)
    one("linear", grid, to, sizes(1, 2, 10, 3), mode="linear", coordinate_transformation_mode="align_corners")
    one("linear_antialias", grid, to, sizes(2, 5), mode="linear", antialias=1, axes=[2, 3])
    one("linear_scales", grid, ["x", "", "s"], {"s": np.float32([1, 1, 1.7, 0.6])}, mode="linear",
        coordinate_transformation_mode="half_pixel_symmetric")
    one("first_axis", grid, to, sizes(1, 3, 5, 7), mode="linear", coordinate_transformation_mode="asymmetric")
    one("nearest", own.integers(0, 99, (1, 2, 5, 7)), ["x", "", "s"], {"s": np.float32([1, 1, 2, 0.5])},
        nearest_mode="ceil", coordinate_transformation_mode="asymmetric")
    one("nearest_default", grid, to, sizes(1, 2, 8, 3))
    one("not_larger", grid, to, sizes(7, 8), axes=[2, 3], keep_aspect_ratio_policy="not_larger")
    # the grid of a position table as exporters write it: the root of the number of patches
    case("root_of_count", [node("Pow", "n half", "r"), node("Cast", "r", "i", to=T.INT64),
                           node("Concat", "one i i c", "s", axis=0), node("Reshape", "t s", "y")],
         {"t": own.standard_normal((1, 16, 3)).astype(np.float32)},
         {"n": np.float32([16]), "half": np.float32(0.5), "one": np.array([1]), "c": np.array([-1])}, "y", domains=())


def later_operators():
    own = np.random.default_rng(22)
    case("conv_integer", [node("ConvInteger", "x w xz wz", "y", pads=[1, 0, 1, 1])],
         {"x": own.integers(0, 256, (2, 2, 5, 4)).astype(np.uint8)},
         {"w": own.integers(0, 256, (3, 2, 2, 2)).astype(np.uint8), "xz": np.uint8(7), "wz": np.uint8([129])}, "y",
         domains=())
    case("quick_gelu_silu", [node("QuickGelu", "x", "y", MS, alpha=1.0)],
         {"x": own.standard_normal((2, 5)).astype(np.float32)}, {}, "y")
    case("root_of_count_f16", [node("Pow", "n half", "r"), node("Cast", "r", "i", to=T.INT64),
                               node("Concat", "one i i c", "s", axis=0), node("Reshape", "t s", "y")],
         {"t": own.standard_normal((1, 16, 3)).astype(np.float32)},
         {"n": np.float16([16]), "half": np.float16(0.5), "one": np.array([1]), "c": np.array([-1])}, "y", domains=())


def bad_models():
    v = {"x": f(2, 3)}

    def plain(nodes, outputs="y", weights={}, opset=17, ir=8, **more):
        return model(nodes, v, weights, outputs, {}, opset, ir, domains=more.pop("domains", ()), **more)

    relu = [node("Relu", "x", "y")]
    good = plain(relu)
    bad("empty", b"")
    bad("not_onnx", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(range(200)))
    bad("cut", good.SerializeToString()[:-7])
    bad("opset_future", plain(relu, opset=29))
    bad("opset_old", plain(relu, opset=6))
    bad("ir_future", plain(relu, ir=15))
    no_opset = plain(relu)
    del no_opset.opset_import[:]
    bad("no_opset", no_opset)
    bad("only_other_opset", model(relu, v, {}, "y", {}, 17, 8))
    other = onnx.load_from_string((HERE / "bad" / "only_other_opset.onnx").read_bytes())
    del other.opset_import[0]
    bad("only_other_opset", other)
    bad("cycle", plain([node("Add", "x b", "a", name="first"), node("Relu", "a", "b", name="second"), node("Relu",
             "b", "y")]))
    bad("cycle_unneeded", plain(relu + [node("Add", "x b", "a", name="first"), node("Relu", "a", "b",
             name="second")]))
    bad("undefined", plain([node("Add", "x nowhere", "y", name="adder")]))
    bad("undefined_output", plain(relu, "nothing"))
    bad("twice", plain([node("Relu", "x", "y", name="one"), node("Neg", "x", "y", name="two")]))
    bad("unknown_operators", plain([node("NonZero", "x", "n"), node("Hyper", "x", "a", "com.acme"),
                                    node("Hyper", "a", "y", "com.acme"), node("Loop", "x", "z")], "y n z",
                                   domains=("com.acme",)))
    bad("too_new_operator", plain([node("Gelu", "x", "y", name="early")]))
    bad("unknown_attribute", plain([node("Relu", "x", "y", name="odd", slope=1.0)]))
    bad("attribute_type", plain([node("Softmax", "x", "y", name="odd", axis=1.5)]))
    bad("axis_range", plain([node("Softmax", "x", "y", name="odd", axis=2)]))
    data = {"x": f(2), "i": np.int64([0])}
    bad("unsqueeze_on_data", model([node("Unsqueeze", "x i", "y", name="odd")], data, {}, "y", {}, 17, 8))
    bad("zero_point_type", model([node("MatMulInteger", ["a", "b", "", "z"], "y", name="odd")], {"a": u8(2, 3)}, {
        "b": i8(3, 2), "z": np.int32(0)}, "y", {}, 17, 8))
    bad("operand_type", model([node("Softmax", "x", "y", name="odd")], {"x": np.int32([1, 2])}, {}, "y", {}, 17, 8))
    bad("too_many_operands", plain([node("Relu", "x x", "y", name="odd")]))
    bad("too_few_operands", plain([node("Add", "x", "y", name="odd")]))
    for name, dims, raw in (("short_weight", [2, 3], 20), ("negative_dim", [-2, -3], 24), ("huge_dims", [8, 1 << 61],
             0)):
        t = onnx.TensorProto(name="w", data_type=T.FLOAT, dims=dims, raw_data=bytes(raw))
        bad(name, plain([node("Add", "x w", "y")], weights={"w": t}))
    bad("nan_weight", plain([node("Add", "x w", "y")], weights={"w": np.float32([1, np.nan, 3])}))
    bad("string_weight", plain([node("Add", "x w", "y")], weights={"w": h.make_tensor("w", T.STRING, [1], ["a"])}))
    bad("float8_weight", plain([node("Cast", "w", "y", to=1)], weights={"w": h.make_tensor("w", T.FLOAT8E5M2, [1],
             [1.0])}))
    for name, location in (("external_up", "../w.data"), ("external_absolute", "/w.data"), ("external_missing",
             "no.data"),
                           ("external_empty", "")):
        t = onnx.TensorProto(name="w", data_type=T.FLOAT, dims=[3], data_location=1)
        t.external_data.add(key="location", value=location)
        bad(name, plain([node("Add", "x w", "y")], weights={"w": t}))
    bad("duplicate_initializer", plain([node("Add", "x w", "y")], weights={"w": f(3)}))
    twice = onnx.load_from_string((HERE / "bad" / "duplicate_initializer.onnx").read_bytes())
    twice.graph.initializer.append(twice.graph.initializer[0])
    bad("duplicate_initializer", twice)

    def branch(name, out):
        return h.make_graph([node("Relu", "x", out)], name, [], [h.make_tensor_value_info(out, T.FLOAT, None)])

    bad("if_on_data", plain([node("ReduceSum", "x", "s", keepdims=0), node("Cast", "s", "c", to=T.BOOL),
                             node("If", "c", "y", name="choice", then_branch=branch("t", "a"),
                             else_branch=branch("e", "b"))]))
    loop = h.make_function("own", "Again", ["a"], ["b"], [node("Again", "a", "b", "own")],
                           [h.make_opsetid("", 17), h.make_opsetid("own", 1)])
    bad("recursive_function", plain([node("Again", "x", "y", "own", name="call")], domains=("own",),
             functions=(loop,)))
    inner = b""
    for _ in range(100):
        for key in (b"\x32", b"\x2a", b"\x0a"):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            inner = key + length(inner) + inner
    bad("deep", good.SerializeToString() + b"\x3a" + length(inner) + inner)
    sequence = plain(relu)
    sequence.graph.input.append(h.make_tensor_sequence_value_info("seq", T.FLOAT, None))
    bad("sequence_input", sequence)
    rankless = plain(relu)
    rankless.graph.input[0].type.tensor_type.ClearField("shape")
    bad("rankless_input", rankless)
    typeless = plain(relu)
    typeless.graph.input[0].ClearField("type")
    bad("typeless_input", typeless)
    bad("no_graph", onnx.ModelProto(ir_version=8, opset_import=[h.make_opsetid("", 17)]))


def length(content):
    n, out = len(content), b""
    while True:
        out += bytes([n & 127 | (128 if n > 127 else 0)])
        n >>= 7
        if not n:
            return out


if __name__ == "__main__":
    for folder in ("cases", "bad"):
        shutil.rmtree(HERE / folder, ignore_errors=True)
    microsoft_attention()
    microsoft_others()
    old_forms()
    structure()
    more_operators()
    bad_models()
    resizes()
    later_operators()
    qlinear_operators()
