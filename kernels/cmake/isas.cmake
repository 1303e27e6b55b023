# Adds one source file for each instruction set the compiler can target, and says in FOREWORD_HAS_<NAME> which.
include(CheckCXXCompilerFlag)

set(foreword_avx2 -mavx2 -mfma -mf16c)
set(foreword_avx512 ${foreword_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)

function(foreword_add_isa target name)
  string(TOUPPER ${name} upper)
  string(REPLACE ";" " " flags "${ARGN}")
  if(flags)
    check_cxx_compiler_flag("${flags}" FOREWORD_COMPILES_${upper})
    if(NOT FOREWORD_COMPILES_${upper})
      return()
    endif()
  endif()
  target_sources(${target} PRIVATE cpp/isa_${name}.cpp)
  # GCC 12 takes the deliberately undefined operands of its own intrinsics for uninitialised ones.
  set_source_files_properties(cpp/isa_${name}.cpp PROPERTIES COMPILE_OPTIONS
    "${ARGN};-Wno-unknown-warning-option;-Wno-uninitialized;-Wno-maybe-uninitialized;-Wno-array-bounds;-Wno-unused-function")
  target_compile_definitions(${target} PRIVATE FOREWORD_HAS_${upper}=1)
endfunction()

function(foreword_add_isas target)
  foreword_add_isa(${target} portable)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    foreword_add_isa(${target} avx2 ${foreword_avx2})
    foreword_add_isa(${target} avxvnni ${foreword_avx2} -mavxvnni)
    foreword_add_isa(${target} avx512 ${foreword_avx512})
    foreword_add_isa(${target} amx ${foreword_avx512} -mamx-tile -mamx-int8)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    foreword_add_isa(${target} dotprod -march=armv8.2-a+dotprod)
  endif()
endfunction()
