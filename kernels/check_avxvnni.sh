#!/bin/sh
# Compiles the AVX-VNNI path with its one instruction emulated by AVX2, and runs tests/check_paths.cpp on it: products, attention and
# noise must have the bits of the portable path. For processors with AVX2 and without AVX-VNNI. Usage: check_avxvnni.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-std=c++20 -O2 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-unused-function -Wno-array-bounds -I$here/cpp"
compile="${CXX:-c++} $flags"
$compile -mavx2 -mfma -mf16c -include "$here/tests/emulate_avxvnni.hpp" -c "$here/cpp/isa_avxvnni.cpp" -o "$build/isa_avxvnni.o"
$compile -DFOREWORD_EMULATES_AVXVNNI=1 "$here/tests/check_paths.cpp" "$here/cpp/cpu.cpp" "$here/cpp/pack.cpp" "$here/cpp/truncate.cpp" \
  "$here/cpp/isa_portable.cpp" "$build/isa_avxvnni.o" -o "$build/check"
"$build/check"
