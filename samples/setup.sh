# Sourced by quickstart.sh and tests/run.sh: installs what is missing and builds. Debian and Ubuntu, as root or with sudo.
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }
stop() { say "$1"; exit "${2:-1}"; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@" 2>/dev/null || sudo "$@"; fi; }

# need_packages NAME...: Debian packages, installed once, named before it happens
need_packages() {
  local missing=() p
  for p in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing with apt-get: ${missing[*]}"
  local log; log=$(mktemp)
  {
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get install -yq --no-install-recommends "${missing[@]}" ||
      { as_root apt-get update -q && as_root apt-get install -yq --no-install-recommends "${missing[@]}"; }
  } >"$log" 2>&1 </dev/null || { tail -n 20 "$log" >&2; rm -f "$log"; stop "apt-get could not install: ${missing[*]}"; }
  rm -f "$log"
}

# what the compiler and the runtime are built with
need_build_packages() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    stop "this script installs with apt-get; on other systems install gcc, meson, ninja, pkg-config, protobuf-c, libyaml, libzstd, xxhash, jansson and zlib, then: meson setup build && ninja -C build" 1
  need_packages gcc libc6-dev meson ninja-build pkg-config protobuf-c-compiler libprotobuf-c-dev libyaml-dev \
    libzstd-dev libxxhash-dev libjansson-dev zlib1g-dev
}

# build_in FOLDER [meson options...]: sets up once, then builds; the log is shown only when it fails
build_in() {
  local dir=$1 log start=$SECONDS o options=(); shift
  for o in "$@"; do case $o in -D*) options+=("$o") ;; esac; done   # a cross file counts at setup only
  log=$(mktemp)
  say "building in $(basename "$dir")/ ..."
  {
    if [ ! -f "$dir/build.ninja" ]; then meson setup "$dir" "$top" "$@"; else meson configure "$dir" "${options[@]}"; fi &&
      ninja -C "$dir"
  } >"$log" 2>&1 </dev/null || { grep -vE '^\[[0-9]+/[0-9]+\]' "$log" | tail -n 40 >&2; rm -f "$log"; stop "the build failed"; }
  say "built in $((SECONDS - start)) s"
  rm -f "$log"
}

# python_with PACKAGE...: sets $python to an interpreter of .venv that has them
python_with() {
  need_packages python3 python3-venv
  python=$top/.venv/bin/python
  [ -x "$python" ] || python3 -m venv "$top/.venv" || stop "python3 -m venv failed"
  local p missing=()
  for p in "$@"; do
    "$python" - "$p" <<'PY' || missing+=("$p")
import sys
from importlib.metadata import version
name, _, want = sys.argv[1].partition("==")
try:
    sys.exit(bool(want) and version(name) != want)
except Exception:
    sys.exit(1)
PY
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing with pip into .venv: ${missing[*]}"
  "$python" -m pip install -q --disable-pip-version-check "${missing[@]}" >&2 </dev/null || stop "pip could not install: ${missing[*]}"
}
