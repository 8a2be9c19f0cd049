"""Writes prepared sentences (c/prepared.h) from a tokenizer.json: the samples read token ids until the product has its
own tokenizer.

    python prepare_ids.py tokenizer.json OUT.tsv < lines        a line: [rating<TAB>]sentence

Needs the package tokenizers."""
import sys

from tokenizers import Tokenizer


def main():
    tok = Tokenizer.from_file(sys.argv[1])
    tok.no_padding()
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        for line in sys.stdin:
            *rating, text = line.rstrip("\n").split("\t")
            e = tok.encode(text)
            at = [len(text[:i].encode()) for i in range(len(text) + 1)]
            spans = " ".join(f"{at[a]}:{at[b]}" for a, b in e.offsets)
            print(rating[0] if rating else "-", " ".join(map(str, e.ids)), spans, text, sep="\t", file=out)


if __name__ == "__main__":
    main()
