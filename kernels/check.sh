#!/bin/sh
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer and runs the native tests on them.
# test_spills.py looks at the optimised build and is left out. Usage: check.sh PYTHON [pytest arguments]; the build goes to kernels/build/sanitize.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")  # CMake wants a whole path
shift
here=$(cd "$(dirname "$0")" && pwd)
build=$here/build/sanitize
cmake=$("$python" -c 'import cmake, pathlib; print(pathlib.Path(cmake.CMAKE_BIN_DIR) / "cmake")' 2>/dev/null || echo cmake)
"$cmake" -S "$here" -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFOREWORD_SANITIZE=ON -DPython_EXECUTABLE="$python"
"$cmake" --build "$build" --parallel 2
rm -rf "$build/site" && mkdir -p "$build/site/foreword_kernels"
cp "$here"/src/foreword_kernels/*.py "$build"/_native*.so "$build/site/foreword_kernels/"
# The interpreter is not built with the sanitizers, so their runtime is loaded before it. Python frees little at exit: no leak check.
asan=$(${CXX:-c++} -print-file-name=libasan.so)
stdcxx=$(${CXX:-c++} -print-file-name=libstdc++.so.6)
cd "$here/.."
LD_PRELOAD="$asan $stdcxx" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONPATH="$build/site:src:." "$python" -m pytest tests/native --ignore=tests/native/test_spills.py -q -p no:cacheprovider "$@"
