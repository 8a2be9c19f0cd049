#!/usr/bin/env bash
# All checks: installs what they need, builds and runs them. The last line is 'N passed, N failed, N skipped'; a skip names
# the feature that is missing. Long fuzzing and soak runs have their own command, tests/long.sh.
#
#   ./tests/run.sh            everything
#   ./tests/run.sh NAME...    only these parts: unit sanitize clang models onnx differential aarch64
set -uo pipefail
. "$(dirname "$0")/../samples/setup.sh"
cd "$top"
passed=0 failed=0 skipped=0
logs=build/test-logs

# the C tests of a build folder; meson's own summary is turned into the line of counts
unit() {
  meson test -C "$1" --print-errorlogs --no-rebuild "${@:2}" || true
  python3 - "$1/meson-logs/testlog.json" <<'PY'
import json, re, sys
p = f = s = 0
for line in open(sys.argv[1]):
    t = json.loads(line)
    text = t.get("stdout", "") + t.get("stderr", "")
    ok = len(re.findall(r"^\[       OK \]", text, re.M))
    bad = len(re.findall(r"^\[  FAILED  \] (?!\d)", text, re.M)) // (2 if "FAILED TEST" in text else 1)
    skip = len(re.findall(r"^\[  SKIPPED \] (?!\d)", text, re.M))
    for why in re.findall(r"^SKIP.*$", text, re.M):
        print(why)
    if t["result"] == "SKIP":
        s += max(skip, 1)
    elif t["result"] == "OK":
        p, s = p + max(ok, 1), s + (skip if ok else 0)
    else:
        p, f = p + ok, f + max(bad, 1)
        print("FAIL", t["name"])
print(f"{p} passed, {f} failed, {s} skipped")
sys.exit(f > 0)
PY
}

if [ "${1:-}" = --count-unit ]; then unit "${@:2}"; exit; fi   # for tests/aarch64.sh
parts=${*:-unit sanitize clang models onnx differential aarch64}
need_build_packages
need_packages libcmocka-dev clang
python_with numpy onnx==1.23.2
build_in build -Dtests=true ${CI:+-Dwerror=true}
mkdir -p "$logs"

# count FILE: adds the 'N passed, N failed[, N skipped]' lines of a log
count() {
  local p f s
  read -r p f s < <(grep -aoE '^([a-z]+: )?[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$1" | tr -dc '0-9\n ' |
    awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}')
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  printf '  %d passed, %d failed, %d skipped\n' "$p" "$f" "$s" >&2
  [ $((p + f + s)) -gt 0 ]
}

# part TITLE LOG COMMAND...: runs a checker that ends with a line of counts
part() {
  local title=$1 log=$logs/$2 start=$SECONDS; shift 2
  say "$title ..."
  "$@" >"$log" 2>&1 </dev/null
  local code=$?
  grep -aE '^(FAIL|SKIP|not run)' "$log" | cut -c1-300 >&2
  if ! count "$log" || { [ "$code" -ne 0 ] && ! grep -aqE '[1-9][0-9]* failed' "$log"; }; then
    say "FAIL $title ended with $code"; tail -n 25 "$log" >&2
    failed=$((failed + 1))
  fi
  say "  $((SECONDS - start)) s, log in $log"
}

for p in $parts; do
  case $p in
    unit) part "C tests" unit.log unit build ;;
    sanitize)
      build_in build-asan -Dbuildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false -Dtests=true
      export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
      part "C tests under ASan and UBSan" sanitize.log unit build-asan -t 5
      part "bad input under ASan and UBSan" sanitize-bad.log "$python" tests/models/check_cases.py --lathe build-asan/lathe --precision f32 tests/models/zoo-bad tests/models/cases
      unset ASAN_OPTIONS UBSAN_OPTIONS ;;
    clang)
      say "build with clang, warnings as errors ..."
      if CC=clang build_in build-clang -Dwerror=true -Dtests=true; then passed=$((passed + 1)); else failed=$((failed + 1)); fi ;;
    models)
      part "models in f32 and int8: compile, fusion counts, verify, run" models.log "$python" tests/models/check_cases.py --lathe build/lathe --precision f32,int8 --zoo-precision f32,int8 --jobs 2 tests/models
      part "padding left out: same numbers, zeros, bits of a sequence alone" packed-rows.log "$python" tests/models/packed_rows.py --lathe build/lathe tests/models/zoo tests/models/zoo-more
      part "static shapes: buckets, padding, refusals" buckets.log "$python" tests/models/check_buckets.py --lathe build/lathe --jobs 2 tests/models/zoo tests/models/zoo-more
      # for a target that has bf16; it runs on any machine
      part "models in bf16" models-bf16.log "$python" tests/models/check_cases.py --lathe build/lathe --target znver4 --precision bf16 --zoo-precision bf16 --jobs 2 tests/models ;;
    onnx) part "ONNX node tests" onnx.log "$python" tests/onnx/backend_test.py --lathe build/lathe ;;
    differential)
      part "random encoders, fused against unfused and the reference evaluator" differential.log "$python" tests/differential/differential.py --driver build/tests/differential/run_models --keep "$logs/differential"
      part "cast policies against an emulation in numpy" casts.log "$python" tests/differential/casts.py --lathe build/lathe ;;
    aarch64) part "aarch64, plain C, under QEMU" aarch64.log bash tests/aarch64.sh ;;
    *) stop "unknown part '$p'" 2 ;;
  esac
done
[ "$failed" -eq 0 ]; code=$?
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
exit $code
