#!/usr/bin/env bash
# Builds the runtime and its tests for aarch64, where every kernel family is plain C, and runs them under QEMU user
# emulation; then runs an artifact compiled on this machine with both runtimes and compares the answers.
# Libraries of the other architecture are unpacked into build-aarch64/sysroot; nothing is installed for it system-wide.
set -euo pipefail
. "$(dirname "$0")/../samples/setup.sh"
cd "$top"
dir=$top/build-aarch64
skip() { say "SKIP aarch64: $1"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
[ "$(uname -m)" = x86_64 ] || skip "the machine itself is $(uname -m)"
need_packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user python3

sysroot=$dir/sysroot
if [ ! -f "$sysroot/complete" ]; then
  mkdir -p "$dir/apt/lists/partial" "$dir/apt/archives/partial" "$dir/deb" "$sysroot"
  : >"$dir/apt/status"
  cat >"$dir/apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State "$dir/apt";
Dir::State::status "$dir/apt/status";
Dir::Cache "$dir/apt";
APT::Sandbox::User "root";
CONF
  say "downloading libzstd, libxxhash and libcmocka for arm64"
  (cd "$dir/deb" && export APT_CONFIG=$dir/apt/apt.conf && apt-get update -q &&
    apt-get download -q libzstd-dev libzstd1 libxxhash-dev libcmocka-dev libcmocka0) >"$dir/apt.log" 2>&1 ||
    skip "the distribution's archive has no arm64 packages here"
  for p in "$dir"/deb/*.deb; do dpkg-deb -x "$p" "$sysroot"; done
  touch "$sysroot/complete"
fi
lib=$sysroot/usr/lib/aarch64-linux-gnu
sed -i "s|^prefix=.*|prefix=$sysroot/usr|" "$lib"/pkgconfig/*.pc
cat >"$dir/cross.ini" <<INI
[binaries]
c = 'aarch64-linux-gnu-gcc'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', '/usr/aarch64-linux-gnu', '-E', 'LD_LIBRARY_PATH=$lib']
[built-in options]
c_args = ['-I$sysroot/usr/include']
c_link_args = ['-L$lib', '-Wl,-rpath-link,$lib']
[properties]
pkg_config_libdir = '$lib/pkgconfig'
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
INI
build_in "$dir/meson" --cross-file "$dir/cross.ini" -Dcompiler=false -Donednn=disabled -Dtests=true

"$top/tests/run.sh" --count-unit "$dir/meson" -t 10 || true

# one artifact, two architectures: labels and logits agree
run() { "$@" samples/data/sentiment.tsv | grep -v 'us a sentence'; }
build/lathe compile samples/data/sentiment/model.onnx -o "$dir/sentiment.lathe" --target generic \
  --labels samples/data/sentiment/config.json >/dev/null
if diff <(run build/samples/classify "$dir/sentiment.lathe") \
  <(run qemu-aarch64 -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=$lib:$dir/meson/runtime" \
    "$dir/meson/samples/classify" "$dir/sentiment.lathe"); then
  echo "1 passed, 0 failed"
else
  echo "FAIL the answers on aarch64 differ"; echo "0 passed, 1 failed"
fi
