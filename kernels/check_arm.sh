#!/bin/sh
# Compiles the kernels for ARM and runs tests/check_paths.cpp on them in an emulator; the results must be those of this
# machine's portable path. Needs g++-aarch64-linux-gnu and qemu-user. Usage: check_arm.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-std=c++20 -O2 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-unused-function -Wno-array-bounds -I$here/cpp"
common="$here/tests/check_paths.cpp $here/cpp/cpu.cpp $here/cpp/pack.cpp $here/cpp/truncate.cpp $here/cpp/isa_portable.cpp"
arm=${ARM_CXX:-aarch64-linux-gnu-g++}
$arm $flags -march=armv8.2-a+dotprod -c "$here/cpp/isa_dotprod.cpp" -o "$build/isa_dotprod.o"
$arm $flags -DFOREWORD_HAS_DOTPROD=1 -static $common "$build/isa_dotprod.o" -o "$build/check_arm"
on_arm=$(${ARM_RUN:-qemu-aarch64} "$build/check_arm") || { echo "$on_arm"; exit 1; }
${CXX:-c++} $flags $common -o "$build/check_here"
here_too=$("$build/check_here") || { echo "$here_too"; exit 1; }
printf 'ARM:  %s\nhere: %s\n' "$on_arm" "$here_too"
case $on_arm in dotprod*) ;; *) echo "the dotprod path did not run"; exit 1 ;; esac
[ "${on_arm##* }" = "${here_too##* }" ] || { echo "ARM and this machine differ"; exit 1; }
