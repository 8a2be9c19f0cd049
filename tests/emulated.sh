#!/usr/bin/env bash
# Kernel rows on CPUs that this machine is not: each family's test as a static binary, and small artifacts with their
# known answer and reference outputs, on emulated CPUs. An instruction that a CPU lacks ends the program there.
#
#   RUN_ON=TOOL ./tests/emulated.sh [CPU...]            default: skylake-x cascadelake icelake
#   RUN_ON=TOOL ONLY='q8 model' ./tests/emulated.sh     only these: families of tests/kernel, model
#
# TOOL CPU [--timeout S] [--env K=V] BINARY [ARGS...] [-- FILE...] runs a static binary there, its files beside it, and
# ends with its exit code. Emulated instructions are some hundred times slower, so the tests take a sample of their
# cases (LATHE_TEST_QUICK; LATHE_TEST_SEED=N takes another one): one to five minutes a family and CPU.
set -uo pipefail
. "$(dirname "$0")/../samples/setup.sh"
cd "$top"
if [ -z "${RUN_ON:-}" ] || [ ! -x "$RUN_ON" ]; then
  say "SKIP emulated CPUs: RUN_ON names no program that runs static binaries on them"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
run_on=$(realpath "$RUN_ON")
cpus=${*:-skylake-x cascadelake icelake}
need_build_packages
need_packages libcmocka-dev
build_in build -Dtests=true
families=$(meson introspect build --targets | grep -o '"kernel_check_[a-z0-9_]*"' | tr -d '"' | sed 's/kernel_check_//' | sort -u)
only=${ONLY:-$families model}
work=$top/build/emulated.$$ logs=$top/build/test-logs/emulated
trap 'rm -rf "$work"' EXIT
mkdir -p "$work" "$logs"
targets=() want=()
for f in $only; do
  [ "$f" = model ] && targets+=(tests/lathe_static) || targets+=("tests/kernel/kernel_check_$f")
done
ninja -C build "${targets[@]}" >"$logs/build.log" 2>&1 || { tail -n 20 "$logs/build.log" >&2; stop "the static build failed"; }
for t in "${targets[@]}"; do strip -o "$work/$(basename "$t")" "build/$t"; done

# what `model` runs: precision and target of the artifact, whatever CPU it runs on
artifacts='f32:haswell f32:znver5 int8:haswell int8:cascadelake int8:znver5-fast bf16:sapphirerapids'
model=tests/models/zoo/distilbert-seqcls_ts17_sdpa
case " $only " in *' model '*)
  cp -r "$model"/test_data_set_* "$work"
  for a in $artifacts; do
    build/lathe compile "$model/model.onnx" -o "$work/${a/:/-}.lathe" --precision "${a%:*}" --target "${a#*:}" \
      >"$logs/compile.log" 2>&1 || { cat "$logs/compile.log" >&2; stop "compiling for $a failed"; }
  done ;;
esac
cd "$work"

passed=0 failed=0 skipped=0
# one CPU NAME COMMAND...: a run in the emulator; each 'passed' line of its log counts, or the exit code if it has none
one() {
  local cpu=$1 name=$2 log=$logs/$1-$2.log start=$SECONDS code p s; shift 2
  "$run_on" "$cpu" --timeout "${LIMIT:-1800}" --env LATHE_TEST_QUICK=1 ${LATHE_TEST_SEED:+--env "LATHE_TEST_SEED=$LATHE_TEST_SEED"} \
    "$@" >"$log" 2>&1 </dev/null
  code=$?
  p=$(grep -c '^passed ' "$log") s=$(grep '^skipped here: ' "$log" | sort -u | wc -l)
  [ "$p" -gt 0 ] || [ "$code" -ne 0 ] || p=1
  passed=$((passed + p)) skipped=$((skipped + s))
  printf '%-12s %-24s %4d s  ' "$cpu" "$name" $((SECONDS - start))
  if [ "$code" -eq 0 ]; then
    echo "$p passed$([ "$s" -eq 0 ] || echo ", skipped: $(sed -n 's/^skipped here: //p' "$log" | sort -u | tr '\n' ' ')")"
  else
    failed=$((failed + 1))
    echo "FAIL, exit code $code; $log ends with:"
    tail -n 5 "$log"
  fi
}
for cpu in $cpus; do
  for f in $only; do
    if [ "$f" != model ]; then one "$cpu" "$f" "kernel_check_$f"; continue; fi
    for a in $artifacts; do
      file=${a/:/-}.lathe atol=1e-4 bound=()
      [ "${a%:*}" = f32 ] || bound=(--min-cosine 0.98) atol=1
      one "$cpu" "${a/:/-}-check" lathe_static inspect "$file" --check -- "$file"
      one "$cpu" "${a/:/-}-verify" lathe_static verify "$file" --test-data test_data_set_2 --atol $atol "${bound[@]}" \
        -- "$file" test_data_set_2
    done
  done
done
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
