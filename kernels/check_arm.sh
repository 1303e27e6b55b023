#!/bin/sh
# Compiles the kernels for ARM and runs tests/check_paths.cpp (products, attention, draws) and tests/check_passes.cpp (whole passes on
# 1 to 16 threads) on them in an emulator; the results must be those of this machine's portable path.
# Needs g++-aarch64-linux-gnu and qemu-user. Usage: check_arm.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-std=c++20 -O2 -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread -Wall -Wextra -Wno-unused-function -Wno-array-bounds -I$here/cpp"
core=
for name in bandwidth chain cpu decoder forks head kv_cache layout memory pack pass pass_plan projection thread_pool truncate workspace isa_portable; do
    core="$core $here/cpp/$name.cpp"
done

# build_core COMPILER NAME FLAGS: a library of all but main
build_core() {
    mkdir "$build/$2"
    for file in $core; do
        $1 $flags $3 -c "$file" -o "$build/$2/$(basename "$file").o"
    done
}

# compare NAME: one program on ARM and here
compare() {
    $arm $flags -static "$here/tests/$1.cpp" "$build"/arm/*.o -o "$build/arm_$1"
    ${CXX:-c++} $flags "$here/tests/$1.cpp" "$build"/here/*.o -o "$build/here_$1"
    on_arm=$(${ARM_RUN:-qemu-aarch64} "$build/arm_$1") || { echo "$on_arm"; exit 1; }
    here_too=$("$build/here_$1") || { echo "$here_too"; exit 1; }
    printf '%s\nARM:  %s\nhere: %s\n' "$1" "$on_arm" "$here_too"
    case $on_arm in dotprod*) ;; *) echo "the dotprod path did not run"; exit 1 ;; esac
    [ "${on_arm##* }" = "${here_too##* }" ] || { echo "ARM and this machine differ"; exit 1; }
}

arm=${ARM_CXX:-aarch64-linux-gnu-g++}
build_core "$arm" arm -DFOREWORD_HAS_DOTPROD=1
$arm $flags -march=armv8.2-a+dotprod -c "$here/cpp/isa_dotprod.cpp" -o "$build/arm/isa_dotprod.o"
build_core "${CXX:-c++}" here ""
compare check_paths
compare check_passes
