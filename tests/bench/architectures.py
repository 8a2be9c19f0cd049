"""Other encoders than BERT, side by side with ONNX Runtime and OpenVINO: which operators of ours are slow?

    python architectures.py WORK_DIR --lathe build/lathe [--only NAME,NAME] [--tokens 16,128,384] [--rounds 3]

Needs torch, transformers, onnx, onnxruntime and openvino. Exports three layers of width 768 with random weights of each
architecture into WORK_DIR (once), compiles them in int8 and f32, and prints the best peer's median time over ours, and
the dearest operators of ours that are no products, attention or norms. The int8 peer is ONNX Runtime's dynamic
quantization, or any peer's f32 where that is faster; OpenVINO is held to f32. Batch 1, 2 threads; each round visits all
in turn, and the least of the rounds' medians counts.
"""
import argparse
import json
import logging
import pathlib
import statistics
import subprocess
import time
import warnings

H, LAYERS, HEADS, FFN, VOCAB = 768, 3, 12, 3072, 2000
COMMON = dict(hidden_size=H, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=FFN,
              vocab_size=VOCAB, max_position_embeddings=514)
DEBERTA = dict(relative_attention=True, position_biased_input=False, pos_att_type="c2p|p2c")
MARKS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
# name: (model class, config class, what differs from COMMON (None: left out), has token types)
MODELS = {
    "bert": ("BertModel", "BertConfig", {}, True),
    "albert": ("AlbertModel", "AlbertConfig", {"embedding_size": 128}, True),
    "mpnet": ("MPNetModel", "MPNetConfig", {}, False),
    "deberta": ("DebertaModel", "DebertaConfig", DEBERTA, True),
    "deberta-v3": ("DebertaV2Model", "DebertaV2Config",
                   DEBERTA | {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_buckets": 256}, True),
    "modernbert": ("ModernBertModel", "ModernBertConfig", MARKS | {"global_attn_every_n_layers": 3}, False),
    "roformer": ("RoFormerModel", "RoFormerConfig", {}, True),
    "esm": ("EsmModel", "EsmConfig", {"position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 32,
                                      "token_dropout": False}, False),
    "nystromformer": ("NystromformerModel", "NystromformerConfig", {}, True),
    "squeezebert": ("SqueezeBertModel", "SqueezeBertConfig", {"embedding_size": H}, True),
    "convbert": ("ConvBertModel", "ConvBertConfig", {"embedding_size": H}, True),
    "xlnet": ("XLNetModel", "XLNetConfig",
              {"hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None,
               "max_position_embeddings": None, "d_model": H, "n_layer": LAYERS, "n_head": HEADS, "d_inner": FFN},
              True),
    "t5 encoder": ("T5EncoderModel", "T5Config",
                   {"hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None,
                    "intermediate_size": None, "max_position_embeddings": None, "d_model": H, "d_kv": H // HEADS,
                    "d_ff": FFN, "num_layers": LAYERS, "num_heads": HEADS, "feed_forward_proj": "gated-gelu"}, False),
}


def export(name, path):
    import torch
    import transformers
    model, config, own, types = MODELS[name]
    settings = {k: v for k, v in (COMMON | own).items() if v is not None}
    torch.manual_seed(1)
    net = getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, ids, mask, *rest):
            return self.net(input_ids=ids, attention_mask=mask, **({"token_type_ids": rest[0]} if rest else {}))[0]

    ids, mask = torch.randint(3, VOCAB, (2, 24)), torch.ones(2, 24, dtype=torch.long)
    mask[1, 12:] = 0
    args = (ids, mask) + ((torch.zeros_like(ids),) if types else ())
    names = ["input_ids", "attention_mask", "token_type_ids"][:len(args)]
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(First(), args, str(path), dynamo=False, input_names=names, output_names=["out"],
                      dynamic_axes={n: {0: "batch", 1: "seq"} for n in names}, opset_version=17)


def median(run, seconds):
    for _ in range(3):
        run()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def peers(path, tokens):
    """name: how to run it once on that many tokens"""
    import numpy as np
    import onnxruntime as ort
    import openvino as ov
    from onnxruntime.quantization import QuantType, quantize_dynamic
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    plain = ort.InferenceSession(str(path), options)
    small = path.with_name("dynamic.onnx")
    if not small.exists():
        quantize_dynamic(path, small, weight_type=QuantType.QInt8)
    dynamic = ort.InferenceSession(str(small), options)
    core = ov.Core()
    model = core.read_model(path)

    def make(seq):
        feed = {i.name: np.zeros((1, seq), np.int64) for i in plain.get_inputs()}
        feed["input_ids"] = np.random.default_rng(0).integers(3, VOCAB, (1, seq))
        feed["attention_mask"][:] = 1
        fixed = model.clone()
        fixed.reshape({k: list(v.shape) for k, v in feed.items()})
        request = core.compile_model(fixed, "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 2,
                                                    "INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        return {"ort": lambda: plain.run(None, feed), "ort-int8": lambda: dynamic.run(None, feed),
                "ov": lambda: request.infer(feed)}
    return {seq: make(seq) for seq in tokens}


def lathe(binary, *args):
    return subprocess.run([binary, *map(str, args)], check=True, text=True, stdout=subprocess.PIPE).stdout


def dear(binary, artifact, seq):
    steps = json.loads(lathe(binary, "bench", artifact, "--seq", seq, "--threads", 2, "--steps", "--json"))["steps"]
    total, by_op = sum(s["ms"] for s in steps), {}
    for s in steps:
        if not any(w in s["op"] for w in ("linear", "attention", "norm", "matmul")):
            by_op[s["op"]] = by_op.get(s["op"], 0) + s["ms"]
    return ", ".join(f"{op} {100 * ms / total:.0f} %" for op, ms in sorted(by_op.items(), key=lambda x: -x[1])[:3]
                     if ms > 0.03 * total)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("--lathe", default="build/lathe")
    p.add_argument("--only", default=",".join(MODELS))
    p.add_argument("--tokens", default="16,128,384")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=0.4)
    a = p.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    tokens = [int(s) for s in a.tokens.split(",")]
    print("| best peer / lathe, tokens | " + " | ".join(f"int8 {s}" for s in tokens) + " | " +
          " | ".join(f"f32 {s}" for s in tokens) + " | dear beside products |")
    print("|---" * (2 * len(tokens) + 2) + "|")
    for name in a.only.split(","):
        path = a.work / name.replace(" ", "-") / "model.onnx"
        if not path.exists():
            export(name, path)
        ours = {}
        for precision in ("int8", "f32"):
            ours[precision] = path.with_name(precision + ".lathe")
            lathe(a.lathe, "compile", path, "-o", ours[precision], "--precision", precision)
        ratios, contenders = {}, peers(path, tokens)
        for seq in tokens:
            best = {}
            for _ in range(a.rounds):
                for who, run in contenders[seq].items():
                    best[who] = min(best.get(who, 1e9), median(run, a.seconds))
                for precision, artifact in ours.items():
                    out = lathe(a.lathe, "bench", artifact, "--seq", seq, "--threads", 2, "--seconds", a.seconds,
                                "--json")
                    best[precision] = min(best.get(precision, 1e9), json.loads(out)["p50_ms"])
            ratios["int8", seq] = min(best["ort"], best["ort-int8"], best["ov"]) / best["int8"]
            ratios["f32", seq] = min(best["ort"], best["ov"]) / best["f32"]
        print(f"| {name} | " + " | ".join(f"{ratios[p, s]:.2f}" for p in ("int8", "f32") for s in tokens) +
              f" | {dear(a.lathe, ours['int8'], tokens[-1])} |", flush=True)


if __name__ == "__main__":
    main()
