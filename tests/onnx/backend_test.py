#!/usr/bin/env python3
"""ONNX's own node tests through `lathe compile` and `lathe run`.

    backend_test.py --lathe BUILD/compiler/lathe [--jobs N] [--only REGEX] [--update] [--verbose]

Each case is compiled and run and ends as one of
  pass     every output has the expected type and shape and is within the case's own tolerance
  refused  `lathe compile` said exit 4; the case stands in refused.txt
  wrong    other numbers, type or shape; or a valid model called invalid
  crash    a signal, exit 1, or an exit code that nothing explains
The test fails on a wrong or crashed case, when fewer than 1,000 pass, and when refused.txt is not exactly the refused
ones. --update writes refused.txt anew. Without the onnx package: exit 77, a skip."""
import argparse
import collections
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

LEAST_PASSES = 1000
REFUSED_LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "refused.txt")
TIMEOUT = 120

try:
    import numpy as np
    import onnx
    from onnx import numpy_helper
except ImportError as error:
    print(f"skip: {error}")
    sys.exit(77)


def collect():
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    from onnx.backend.test.case.node import collect_testcases
    quiet = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nothing:  # the package talks while it makes its data
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
        try:
            return sorted(collect_testcases(None), key=lambda c: c.name)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for fd in (1, 2):
                os.dup2(quiet[fd - 1], fd)
                os.close(quiet[fd - 1])


def call(words):
    try:
        done = subprocess.run(words, capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return -1, "no answer within %d s" % TIMEOUT
    return done.returncode, done.stderr.decode("utf-8", "replace").strip()


def as_array(value):
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value)


def write_inputs(case, folder):
    os.makedirs(folder)
    for i, value in enumerate(case.data_sets[0][0]):
        proto = value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value))
        with open(os.path.join(folder, f"input_{i}.pb"), "wb") as f:
            f.write(proto.SerializeToString())


def read_output(folder, name):
    file = re.sub(r"[^A-Za-z0-9._-]", "_", name) + ".npy"
    found = np.load(os.path.join(folder, file))
    if found.dtype == np.dtype("V2"):
        import ml_dtypes
        found = found.view(ml_dtypes.bfloat16)
    return found


def difference(case, found, expected):
    """What is wrong with an output, "" when nothing is."""
    expected = as_array(expected)
    if found.dtype != expected.dtype:
        return f"type {found.dtype}, expected {expected.dtype}"
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    if expected.dtype == np.bool_ or expected.dtype.kind in "iu":
        wrong = found != expected
        return f"{int(wrong.sum())} of {wrong.size} elements differ" if wrong.any() else ""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    rtol = max(case.rtol, 2 ** -6) if expected.dtype.name == "bfloat16" else case.rtol  # as ONNX's own runner
    same = np.isclose(a, b, rtol=rtol, atol=case.atol, equal_nan=True)
    if same.all():
        return ""
    worst = np.nanmax(np.where(same, 0, abs(a - b)))
    return f"{int((~same).sum())} of {same.size} elements differ, by up to {worst:g}"


def run_case(case, lathe):
    """(verdict, reason)"""
    folder = tempfile.mkdtemp(prefix="lathe-onnx-")
    try:
        model, artifact = os.path.join(folder, "model.onnx"), os.path.join(folder, "model.lathe")
        with open(model, "wb") as f:
            f.write(case.model.SerializeToString())
        status, text = call([lathe, "compile", model, "-o", artifact])
        if status == 4:
            return ("refused", text) if not os.path.exists(artifact) else ("crash", "exit 4, but an artifact is left")
        if status == 3:
            return "wrong", "called invalid: " + text
        if status != 0:
            return "crash", f"compile: exit {status}: {text}"
        data, results = os.path.join(folder, "data"), os.path.join(folder, "results")
        write_inputs(case, data)
        os.makedirs(results)
        feeds = ["--test-data", data] if case.data_sets[0][0] else []
        status, text = call([lathe, "run", artifact, *feeds, "--output-dir", results, "--allow-nonfinite"])
        if status == 3:
            return "wrong", "inputs called invalid: " + text
        if status != 0:
            return "crash", f"run: exit {status}: {text}"
        for info, expected in zip(case.model.graph.output, case.data_sets[0][1]):
            reason = difference(case, read_output(results, info.name), expected)
            if reason:
                return "wrong", f"{info.name}: {reason}"
        return "pass", ""
    except Exception as error:  # of the test itself: the case must not vanish
        return "crash", f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--lathe", required=True)
    args.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args.add_argument("--only", default="")
    args.add_argument("--update", action="store_true")
    args.add_argument("--verbose", action="store_true", help="print the reason of each refusal")
    args = args.parse_args()
    if not os.access(args.lathe, os.X_OK):
        print(f"{args.lathe}: no such program")
        return 2
    cases = [c for c in collect() if re.search(args.only, c.name)]
    counts, refused, failed = collections.Counter(), set(), []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for case, (verdict, reason) in zip(cases, pool.map(lambda c: run_case(c, args.lathe), cases)):
            counts[verdict] += 1
            if verdict == "refused":
                refused.add(case.name)
            if verdict in ("wrong", "crash"):
                failed.append(case.name)
                print(f"FAIL {case.name}: {verdict}: {reason}")
            elif verdict == "refused" and args.verbose:
                print(f"{verdict} {case.name}: {reason}")
    print(f"onnx {onnx.__version__}: {len(cases)} cases: " +
          ", ".join(f"{counts[v]} {v}" for v in ("pass", "refused", "wrong", "crash")))
    if args.update and not args.only:
        with open(REFUSED_LIST, "w") as f:
            f.write(f"# Node tests of onnx {onnx.__version__} that lathe refuses with exit 4; "
                    "backend_test.py --update writes this\n")
            f.writelines(name + "\n" for name in sorted(refused))
    failures, passes = len(failed), counts["pass"]
    if not args.only:
        with open(REFUSED_LIST) as f:
            head = f.readline()
            listed = {line.strip() for line in f if line.strip() and not line.startswith("#")}
        if f"onnx {onnx.__version__} " in head:  # another package has other cases
            for name in sorted(refused - listed):
                print(f"FAIL {name}: refused, but not in refused.txt")
            for name in sorted(listed - refused):
                print(f"FAIL {name}: in refused.txt, but not refused")
            if counts["pass"] < LEAST_PASSES:
                print(f"FAIL only {counts['pass']} pass; at least {LEAST_PASSES} must")
            failures += len(refused ^ listed) + (counts["pass"] < LEAST_PASSES)
            passes += len(refused & listed)  # refused as they must be
    print(f"{passes} passed, {failures} failed, 0 skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
