"""Makes the models of this case: one attention layer with a mask, as ONNX Runtime's static quantization writes it. Needed
only to change them. `products` has Q/DQ around the products alone; `everything` also around the sum of scores and mask,
calibrated with padding, so that its step is 1e36 and all scores become one number; `operators` is the first in the
QOperator format. Answers are those of ONNX Runtime with optimizations off."""
import pathlib

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper as h
from onnx import numpy_helper as nh
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

HERE = pathlib.Path(__file__).parent
rng = np.random.default_rng(17)
H, N, FFN = 16, 2, 24
nodes, weights = [], {}


def node(op, ins, out, **attributes):
    nodes.append(h.make_node(op, ins.split(), [out], name=out, **attributes))


def const(name, value):
    weights[name] = np.asarray(value)


for name, shape in (("wq", (H, H)), ("wk", (H, H)), ("wv", (H, H)), ("wo", (H, H)), ("w1", (H, FFN)), ("w2", (FFN, H))):
    const(name, (rng.standard_normal(shape) * 0.4).astype(np.float32))
for name, n in (("bq", H), ("bk", H), ("bv", H), ("bo", H), ("b1", FFN), ("b2", H)):
    const(name, (rng.standard_normal(n) * 0.1).astype(np.float32))
const("heads", np.array([0, 0, N, H // N]))
const("joined", np.array([0, 0, H]))
const("axes", np.array([1, 2]))
const("one", np.float32(1))
const("least", np.float32(-3.4e38))
const("scale", np.float32((H // N) ** -0.5))
const("half", np.float32(0.5))
const("root2", np.float32(2 ** 0.5))
for p in "qkv":
    node("MatMul", f"x w{p}", f"{p}m")
    node("Add", f"{p}m b{p}", f"{p}a")
    node("Reshape", f"{p}a heads", f"{p}r")
    node("Transpose", f"{p}r", f"{p}t", perm=[0, 2, 3, 1] if p == "k" else [0, 2, 1, 3])
node("MatMul", "qt kt", "scores")
node("Mul", "scores scale", "scaled")
node("Cast", "mask", "allowed", to=onnx.TensorProto.FLOAT)
node("Unsqueeze", "allowed axes", "plane")
node("Sub", "one plane", "masked")
node("Mul", "masked least", "added")
node("Add", "scaled added", "sum")
node("Softmax", "sum", "p", axis=-1)
node("MatMul", "p vt", "context")
node("Transpose", "context", "back", perm=[0, 2, 1, 3])
node("Reshape", "back joined", "rows")
node("MatMul", "rows wo", "om")
node("Add", "om bo", "o")
node("MatMul", "o w1", "m1")
node("Add", "m1 b1", "f1")
node("Div", "f1 root2", "d")
node("Erf", "d", "e")
node("Add", "e one", "e1")
node("Mul", "f1 e1", "g2")
node("Mul", "g2 half", "g")
node("MatMul", "g w2", "m2")
node("Add", "m2 b2", "y")
graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", 1, ["batch", "seq", H]),
                                  h.make_tensor_value_info("mask", 7, ["batch", "seq"])],
                     [h.make_tensor_value_info("y", 1, ["batch", "seq", H])],
                     [nh.from_array(v, k) for k, v in weights.items()])
source = HERE / "float.tmp.onnx"
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), source)


def feed(batch, seq, padded):
    mask = np.ones((batch, seq), np.int64)
    if padded:
        mask[-1, seq - 2:] = 0
    return {"x": rng.standard_normal((batch, seq, H)).astype(np.float32), "mask": mask}


class Reader(CalibrationDataReader):
    def __init__(self):
        self.rest = iter([feed(2, 6, True) for _ in range(8)])

    def get_next(self):
        return next(self.rest, None)


U8, S8 = QuantType.QUInt8, QuantType.QInt8
FORMS = {"products": dict(quant_format=QuantFormat.QDQ, op_types_to_quantize=["MatMul"], per_channel=True),
         "operators": dict(quant_format=QuantFormat.QOperator, op_types_to_quantize=["MatMul"]),
         "everything": dict(quant_format=QuantFormat.QDQ)}
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
feeds = [feed(1, 1, False), feed(1, 5, False), feed(3, 9, True)]
for name, form in FORMS.items():
    path = HERE / f"{name}.onnx"
    quantize_static(source, path, Reader(), activation_type=U8, weight_type=S8, **form)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for i, f in enumerate(feeds):
        folder = HERE / name / f"test_data_set_{i}"
        folder.mkdir(parents=True, exist_ok=True)
        for k, (key, value) in enumerate(f.items()):
            (folder / f"input_{k}.pb").write_bytes(nh.from_array(value, key).SerializeToString())
        (folder / "output_0.pb").write_bytes(nh.from_array(session.run(None, f)[0], "y").SerializeToString())
source.unlink()
