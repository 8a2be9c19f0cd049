#!/usr/bin/env bash
# Long fuzzing, apart from tests/run.sh: the same programs with other seeds under ASan and UBSan, until the time is up.
#
#   ./tests/long.sh [MINUTES]      default 30; LATHE_TEST_SEED=N gives the first seed
#
# Damaged models and artifacts, mutants of attention graphs, random encoders against ONNX's reference evaluator. It stops at
# the first failure, whose seed it prints.
#
# Before that, once: 100,000 requests of four clients on each fleet, with the
# memory watched, and a tenth of them under the thread sanitizer.
set -uo pipefail
. "$(dirname "$0")/../samples/setup.sh"
cd "$top"
minutes=${1:-30} seed=${LATHE_TEST_SEED:-$(date +%s)}
need_build_packages
need_packages libcmocka-dev
python_with numpy onnx==1.23.2
soak_model=tests/models/zoo/distilbert-seqcls_ts17_sdpa/model.onnx
build_in build -Dtests=true
build/tests/runtime/test_fleet "$soak_model" 100000 || stop "the soak failed"
build_in build-tsan -Dbuildtype=debugoptimized -Db_sanitize=thread -Db_lundef=false -Dtests=true
TSAN_OPTIONS=halt_on_error=1 setarch -R build-tsan/tests/runtime/test_fleet "$soak_model" 10000 || stop "the soak under TSan failed"
build_in build-asan -Dbuildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false -Dtests=true
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
log=build-asan/long.log rounds=0

try() {
  LATHE_TEST_SEED=$seed "$@" >"$log" 2>&1 </dev/null && return 0
  tail -n 30 "$log"
  printf 'FAIL with seed %s: %s\n%d passed, 1 failed\n' "$seed" "$*" "$rounds"
  exit 1
}
while [ "$SECONDS" -lt $((minutes * 60)) ]; do
  try build-asan/tests/onnx/test_onnx_damaged tests/onnx "$seed"
  try build-asan/tests/format/test_damage
  try build-asan/tests/pass/test_attention_mutants 4000 "$((seed % 1000000 + 1))"
  try build-asan/tests/graph/test_dim
  try "$python" tests/differential/differential.py --driver build-asan/tests/differential/run_models --count 200 --seed "$seed"
  rounds=$((rounds + 1)) seed=$((seed + 1000))
  say "round $rounds done after $((SECONDS / 60)) min, next seed $seed"
done
printf '%d passed, 0 failed\n' "$rounds"
