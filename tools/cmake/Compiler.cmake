# Language, warnings, sanitizers, compiler cache and output folders, the same for every target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

# Paths are hashed relative to the source folder, so that several checkouts share one cache. The sloppiness is what ccache
# asks for where headers are precompiled: the sources use neither __TIME__ nor macros to choose among headers.
find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# Programs and tests link many large objects: mold takes a fifth of the time of ld. Without mold, lld is used.
find_program(MOLD_PROGRAM mold)
find_program(LLD_PROGRAM ld.lld)
mark_as_advanced(MOLD_PROGRAM LLD_PROGRAM)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
elseif(LLD_PROGRAM)
  add_link_options(-fuse-ld=lld)
endif()

if(PACELINE_CUDA AND NOT PACELINE_CUDA_EMULATION)
  find_program(NVCC_PROGRAM nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(NVCC_PROGRAM)
  if(NVCC_PROGRAM AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER ${NVCC_PROGRAM})
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
    message(FATAL_ERROR "CUDA ${CMAKE_CUDA_COMPILER_VERSION} is too old: 12.4 or newer is needed")
  endif()
  # CMake 3.25 does not know that nvcc speaks C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  # Programs find the libraries packed beside them (tools/bundle.sh), and so do those libraries: hence no RUNPATH.
  set(CMAKE_BUILD_RPATH $ORIGIN/../lib)
  add_link_options(LINKER:--disable-new-dtags)
endif()

# g++ 12 reports std::string concatenation as overlapping copies (its bug 105651), hence -Wno-restrict. clang reports
# each `omp simd` loop that it does not vectorise, hence -Wno-pass-failed.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic>" "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>" "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety;-Wno-pass-failed>"
                    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra>")
if(PACELINE_WERROR)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Werror>" "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings -Xcompiler=-Werror>")
endif()
if(PACELINE_NATIVE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-march=native>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-march=native>")
endif()

if(PACELINE_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PACELINE_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
  add_link_options(-fsanitize=${PACELINE_SANITIZE})
endif()

# The hook is linked into every program, because the compiler calls it at every function. Debug information names files
# relative to the source folder: an object may come from another checkout, by the cache.
if(PACELINE_COVERAGE)
  add_library(coverage_hook STATIC ${PROJECT_SOURCE_DIR}/tests/support/coverage.cc)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-finstrument-functions;-finstrument-functions-exclude-file-list=/usr/include;-fdebug-prefix-map=${PROJECT_SOURCE_DIR}=.>")
endif()
