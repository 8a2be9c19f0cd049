"""Trains the quickstart model: a BERT sentence classifier (4 layers of 128, own WordPiece vocabulary), and exports it.

    python train_sentiment.py OUT [--epochs 10] [--corpus DIR]

OUT/model.onnx       input_ids, attention_mask, token_type_ids [batch, seq] int64 -> logits [batch, 2]; torch's
                     TorchScript exporter, opset 17
OUT/tokenizer.json   Hugging Face tokenizers format
OUT/config.json      id2label
OUT/README.md        what it is, accuracy on the quarter of the corpus that was held out

Needs torch, transformers, tokenizers, onnx (requirements.txt beside this file). About ten minutes on two cores. The split
is by a hash of the sentence's text, so that it is the same everywhere and equal sentences fall on one side.
"""
import argparse
import hashlib
import json
import pathlib
import time

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification

from corpus import unpack

VOCABULARY, LENGTH, LABELS = 3000, 128, ["negative", "positive"]


def held_out(text):
    return hashlib.sha256(text.encode()).digest()[0] < 64


def make_tokenizer(texts):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special))
    cls, sep = t.token_to_id("[CLS]"), t.token_to_id("[SEP]")
    t.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    t.enable_truncation(LENGTH)
    return t


def batches(rows, size, shuffle):
    """Rows of like length together: little padding."""
    order = torch.randperm(len(rows)).tolist() if shuffle else list(range(len(rows)))
    order = [i for k in range(0, len(order), size * 32)
             for i in sorted(order[k:k + size * 32], key=lambda i: len(rows[i][0]))]
    groups = [order[k:k + size] for k in range(0, len(order), size)]
    for k in torch.randperm(len(groups)).tolist() if shuffle else range(len(groups)):
        part = [rows[i] for i in groups[k]]
        n = max(len(ids) for ids, _ in part)
        ids = torch.tensor([ids + [0] * (n - len(ids)) for ids, _ in part])
        yield ids, (ids != 0).long(), torch.tensor([s for _, s in part])


def accuracy(model, rows):
    model.eval()
    right = clear_right = clear = 0
    with torch.inference_mode():
        for ids, mask, score in batches(rows, 256, False):
            guess = model(input_ids=ids, attention_mask=mask).logits.argmax(-1) == 1
            good = guess == (score > 0)
            strong = score.abs() >= 1
            right += int(good.sum())
            clear_right += int((good & strong).sum())
            clear += int(strong.sum())
    return right / len(rows), clear_right / max(clear, 1)


def train(model, rows, test, epochs):
    steps = epochs * (len(rows) // 64 + 1)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    plan = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=steps, pct_start=0.15)
    start = time.time()
    for epoch in range(epochs):
        model.train()
        total = count = 0
        for ids, mask, score in batches(rows, 64, True):
            drop = (torch.rand(ids.shape) < 0.1) & (ids > 4)                 # word dropout
            logits = model(input_ids=ids.masked_fill(drop, 1), attention_mask=mask).logits
            want = torch.sigmoid(score * 1.5)                                # the rating as a soft label
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 1] - logits[:, 0], want)
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            plan.step()
            total, count = total + float(loss) * len(ids), count + len(ids)
        print(f"epoch {epoch + 1}: loss {total / count:.4f}, held out {accuracy(model, test)[0]:.4f}, "
              f"{time.time() - start:.0f} s", flush=True)


def export(model, path):
    x = torch.ones(2, 16, dtype=torch.long)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(model, (x, x, x * 0), str(path), input_names=names, output_names=["logits"],
                      dynamic_axes={**{n: {0: "batch", 1: "seq"} for n in names}, "logits": {0: "batch"}},
                      opset_version=17, dynamo=False)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out")
    a.add_argument("--epochs", type=int, default=10)
    a.add_argument("--corpus", default="corpus")
    a = a.parse_args()
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    rows = [json.loads(s) for s in unpack(a.corpus).read_text(encoding="utf-8").splitlines()]
    rows = [r for r in rows if r["score"] != 0]
    learn, test = ([r for r in rows if held_out(r["text"]) == side] for side in (False, True))
    tok = make_tokenizer([r["text"] for r in learn])
    tok.save(str(out / "tokenizer.json"))
    encode = lambda part: [(tok.encode(r["text"]).ids, r["score"]) for r in part]
    config = BertConfig(vocab_size=tok.get_vocab_size(), hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
                        intermediate_size=256, max_position_embeddings=LENGTH, num_labels=2,
                        hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.1)
    model = BertForSequenceClassification(config)
    train(model, encode(learn), encode(test), a.epochs)
    every, clear = accuracy(model, encode(test))
    model.eval()
    export(model, out / "model.onnx")
    (out / "config.json").write_text(json.dumps({"id2label": dict(enumerate(LABELS))}, indent=1) + "\n")
    (out / "README.md").write_text(f"""# Sentence sentiment, the quickstart model

A BERT classifier (4 layers, hidden size 128, 4 heads, feed-forward 256, {tok.get_vocab_size()} word pieces, at most
{LENGTH} tokens) that tells negative from positive English sentences. Made by `samples/train/train_sentiment.py` from the
corpus of the package vaderSentiment 3.3.2 (MIT licence, copyright 2016 C.J. Hutto; see LICENSE.corpus), exported by
torch's TorchScript exporter at opset 17.

Trained on {len(learn)} sentences; on the quarter held out ({len(test)} sentences, split by a hash of the text) it
agrees with the sign of the human rating for {every:.1%} of all, and for {clear:.1%} of those rated at least 1 from zero.
""")
    print(f"held out: {every:.4f} of {len(test)}, {clear:.4f} of the clear ones; "
          f"{(out / 'model.onnx').stat().st_size} bytes")


if __name__ == "__main__":
    main()
