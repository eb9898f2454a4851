# Every library that the modules name as EXTERNAL. Packages: tools/install_dependencies.sh.
# What is linked here must be found again by pacelineConfig.cmake.in.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Boost 1.74 REQUIRED)
find_package(glog CONFIG REQUIRED)
find_package(gflags REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(cppzmq CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
pkg_check_modules(TURBOJPEG REQUIRED IMPORTED_TARGET libturbojpeg)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)

set(BLA_VENDOR OpenBLAS)
find_package(BLAS REQUIRED)

if(PACELINE_ONEDNN)
  find_package(dnnl CONFIG QUIET)
  if(NOT dnnl_FOUND)
    message(STATUS "oneDNN not found: building without it")
    set(PACELINE_ONEDNN OFF)
  endif()
endif()

# cuDNN is opened when it is first used: its header is all that a build needs.
if(PACELINE_CUDA AND NOT PACELINE_CUDA_EMULATION)
  find_package(CUDAToolkit REQUIRED)
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(CUDNN_INCLUDE_DIR)
  if(PACELINE_CUDNN AND NOT CUDNN_INCLUDE_DIR)
    message(STATUS "cuDNN not found: building without it")
    set(PACELINE_CUDNN OFF)
  endif()
else()
  set(PACELINE_CUDNN OFF)
endif()
if(PACELINE_TESTS)
  find_package(GTest REQUIRED)
endif()
if(PACELINE_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()

# Needed to compile a module, never to link the library.
set(PACELINE_HEADER_ONLY Boost::headers nlohmann_json::nlohmann_json)
