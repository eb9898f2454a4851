# The vocabulary of the CMakeLists.txt files:
#
#   add_module(<name> DEPENDS <modules> [ROOMS <rooms>] EXTERNAL <libraries> HEADERS <public> SOURCES <private>)
#     An object library `paceline_<name>` that sees its own folder, its own include/ and the include/ of the modules in
#     DEPENDS (and theirs), nothing else. HEADERS are relative to include/ and are installed; headers under
#     include/paceline/detail/ are for the modules above and are not listed. SOURCES may hold .cu files behind
#     $<$<BOOL:${PACELINE_CUDA}>:...>. EXTERNAL are targets of Dependencies.cmake.
#   add_room(<module> <name> DEPENDS <modules> BELOW <rooms> EXTERNAL <libraries> PROTOS <files> SOURCES <private>)
#     In a folder of a large module: an object library that sees its own folder, the module's include/, the modules in
#     DEPENDS, and the folders of the rooms in BELOW, nothing else. Headers lie beside the sources; none is installed.
#     PROTOS are compiled into headers that the rooms above see, too. The module names its rooms in ROOMS of add_module.
#   add_plugins(<module> <kind> [INTERFACE <Class>] [HEADER <paceline/x.h>] <names>)
#     Compiles <kind>/<name>.cc, each with `std::unique_ptr<Kind> make_<name>_<kind>(const Options&)`, and writes
#     <kind>_table.cc, which defines the function `<kind>_catalog()` that <paceline/kind.h> declares. In CUDA builds a
#     <kind>/<name>.cu joins in; it defines `std::unique_ptr<Kind> <name>_<kind>_on_cuda(std::unique_ptr<Kind>)`.
#   add_operator(<folder> [OPERATORS <names>])         in ops/, after add_module(ops ...)
#     Compiles <folder>/<folder>.cc and publishes <folder>/<folder>.h as <paceline/ops/<folder>.h>. The .cc defines
#     `OpDef <name>_op()` for each name (by default the folder's own). In CUDA builds <folder>/<folder>.cu joins in; it
#     defines `OpDef <name>_on_cuda(OpDef)` for each name. The generated table defines `const OpDef& <name>_operator()`,
#     the one finished instance, which the .cc declares and hands to invoke(), and lists it in all_operators().
#     <folder>/<folder>_test.cc becomes part of the module's unit tests.
#   generate_operator_table()                          in ops/, after the last add_operator
#   add_unit_tests(<module> [NAME <name>] [BESIDE <module>] [EXTERNAL <libraries>] SOURCES <files>)
#     In tests/<name>/CMakeLists.txt: one GoogleTest program `<name>_tests` (NAME is the module by default) of the module,
#     of the one BESIDE it and of those below them, so that it builds without the others; it sees private headers and
#     <support/...> of tests/. Run it with tools/test.sh <name>. The target unit_tests builds them all.
#   link_modules(<target> <modules>)
#     The target sees the private headers of the modules and of those below them, and links their objects.
#   add_python_tests(<name> TIMEOUT <seconds> [TARGET <target>] [ENVIRONMENT <variables>] MODULES <names>)
#     Modules of unittest in tests/<name>/. TARGET builds what they need; without one, that may be anything.
#   add_suite(<name> <kind> <command> <timeout> [TARGET <name>] [MATCH <pattern>] [ENVIRONMENT <variables>])
#     Tells tests/runner of tests: a program of GoogleTest (kind gtest), or a command (kind command) that ends with 0 when
#     it passes and with 77 when it cannot run here. MATCH takes only the tests whose full names fit the pattern. A test
#     may take <timeout> seconds.
#   add_program(<name> [EXTERNAL <libraries>] SOURCES <files>)      build/<preset>/bin/<name>: tools and examples
#   add_benchmark(<name> [EXTERNAL <libraries>] SOURCES <files>)    the same for a Google Benchmark or timing program

# precompile_headers(<target> <header> [LIBRARIES <that the header uses>] [OPTIONS <for the target and its header>])
# All users of one precompiled header must have the same options: GCC compares those that define macros, and from 14 on
# those of optimisation. A target of its own precompiles it, without the macros that only some of them define.
function(precompile_headers target header)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "LIBRARIES;OPTIONS")
  target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno> ${arg_OPTIONS})
  if(NOT PACELINE_PRECOMPILED_HEADERS)
    return()
  endif()
  string(MAKE_C_IDENTIFIER "precompiled_${header}" precompiled)
  if(NOT TARGET ${precompiled})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled.cc CONTENT "// Only the header counts.\n")
    add_library(${precompiled} OBJECT ${PROJECT_BINARY_DIR}/precompiled.cc)
    target_link_libraries(${precompiled} PRIVATE OpenMP::OpenMP_CXX ${arg_LIBRARIES})
    target_compile_options(${precompiled} PRIVATE -fno-math-errno ${arg_OPTIONS}
                           $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
    target_precompile_headers(${precompiled} PRIVATE ${PROJECT_SOURCE_DIR}/${header})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${precompiled})
  # The first is what ccache asks for; the second, because programs would be compiled with -fPIE and the header is not.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess> $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  # g++ 12 suspects the additions of its own std::string (its bug 105329), and shows it where headers are precompiled.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow;-Wno-array-bounds>")
  endif()
endfunction()

# An object library that sees its own folder and what its DEPENDS show.
function(add_object_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPENDS;EXTERNAL;SOURCES")
  set(target paceline_${name})
  add_library(${target} OBJECT ${arg_SOURCES})
  target_include_directories(${target} PRIVATE .)

  set(closure ${name})
  foreach(module IN LISTS arg_DEPENDS)
    target_link_libraries(${target} PUBLIC paceline_${module})
    get_target_property(below paceline_${module} PACELINE_CLOSURE)
    list(APPEND closure ${below})
  endforeach()
  list(REMOVE_DUPLICATES closure)

  set(linked ${arg_EXTERNAL})
  list(REMOVE_ITEM linked ${PACELINE_HEADER_ONLY})
  set_target_properties(${target} PROPERTIES PACELINE_CLOSURE "${closure}" PACELINE_LINKED "${linked}"
                        PACELINE_FOLDERS ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE ${arg_EXTERNAL})
  target_link_libraries(paceline PRIVATE ${linked})
  precompile_headers(${target} tools/cmake/precompiled.h)
  target_sources(paceline PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()

function(add_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPENDS;ROOMS;EXTERNAL;HEADERS;SOURCES")
  list(TRANSFORM arg_ROOMS PREPEND ${name}_)
  add_object_library(${name} DEPENDS ${arg_DEPENDS} ${arg_ROOMS} EXTERNAL ${arg_EXTERNAL} SOURCES ${arg_SOURCES})
  target_include_directories(paceline_${name} PUBLIC include)
  see_rooms(${name} ${arg_ROOMS})
  list(TRANSFORM arg_HEADERS PREPEND include/)
  target_sources(paceline PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${arg_HEADERS})
endfunction()

# The target sees the private headers of these rooms.
function(see_rooms name)
  foreach(room IN LISTS ARGN)
    get_target_property(folders paceline_${room} PACELINE_FOLDERS)
    # Generated headers are not ours to warn about.
    list(POP_FRONT folders folder)
    target_include_directories(paceline_${name} PRIVATE ${folder})
    target_include_directories(paceline_${name} SYSTEM PRIVATE ${folders})
  endforeach()
endfunction()

function(add_room module room)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "DEPENDS;BELOW;EXTERNAL;PROTOS;SOURCES")
  set(name ${module}_${room})
  set(target paceline_${name})
  list(TRANSFORM arg_BELOW PREPEND ${module}_)
  add_object_library(${name} DEPENDS ${arg_DEPENDS} ${arg_BELOW} EXTERNAL ${arg_EXTERNAL} SOURCES ${arg_SOURCES})
  target_include_directories(${target} PUBLIC ../include)
  see_rooms(${name} ${arg_BELOW})
  if(arg_PROTOS)
    set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
    file(MAKE_DIRECTORY ${generated})
    protobuf_generate(LANGUAGE cpp PROTOS ${arg_PROTOS} OUT_VAR sources
                      PROTOC_OUT_DIR ${generated} IMPORT_DIRS ${CMAKE_CURRENT_SOURCE_DIR})
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS -w)
    target_sources(${target} PRIVATE ${sources})
    target_include_directories(${target} SYSTEM PRIVATE ${generated})
    set_property(TARGET ${target} APPEND PROPERTY PACELINE_FOLDERS ${generated})
  endif()
endfunction()

function(add_plugins module kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "INTERFACE;HEADER" "")
  set(interface ${arg_INTERFACE})
  if(NOT interface)
    string(REPLACE "_" ";" words ${kind})
    foreach(word IN LISTS words)
      string(SUBSTRING ${word} 0 1 initial)
      string(SUBSTRING ${word} 1 -1 rest)
      string(TOUPPER ${initial} initial)
      string(APPEND interface ${initial}${rest})
    endforeach()
  endif()
  set(header ${arg_HEADER})
  if(NOT header)
    set(header paceline/${kind}.h)
  endif()

  foreach(name IN LISTS arg_UNPARSED_ARGUMENTS)
    target_sources(paceline_${module} PRIVATE ${kind}/${name}.cc)
    string(APPEND declarations "std::unique_ptr<${interface}> make_${name}_${kind}(const Options&);\n")
    set(factory make_${name}_${kind})
    if(PACELINE_CUDA AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${kind}/${name}.cu)
      target_sources(paceline_${module} PRIVATE ${kind}/${name}.cu)
      string(APPEND declarations
             "std::unique_ptr<${interface}> ${name}_${kind}_on_cuda(std::unique_ptr<${interface}>);\n")
      set(factory "[](const Options& options) { return ${name}_${kind}_on_cuda(${factory}(options)); }")
    endif()
    string(APPEND entries "      {\"${name}\", ${factory}},\n")
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/plugin_table.cc.in ${kind}_table.cc @ONLY)
  target_sources(paceline_${module} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${kind}_table.cc)
endfunction()

function(add_operator folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "OPERATORS")
  set(path ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${folder})
  set(forward ${CMAKE_CURRENT_BINARY_DIR}/include/paceline/ops)
  # A relative path, so that a compiler cache sees the same text in every checkout.
  file(RELATIVE_PATH header ${forward} ${path}.h)
  file(CONFIGURE OUTPUT ${forward}/${folder}.h CONTENT "#include \"${header}\"  // IWYU pragma: export\n")
  install(FILES ${path}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/paceline/ops)
  target_sources(paceline_ops PRIVATE ${path}.cc)
  set(cuda OFF)
  if(PACELINE_CUDA AND EXISTS ${path}.cu)
    set(cuda ON)
    target_sources(paceline_ops PRIVATE ${path}.cu)
  endif()
  if(EXISTS ${path}_test.cc)
    set_property(GLOBAL APPEND PROPERTY PACELINE_OPERATOR_TESTS ${path}_test.cc)
  endif()

  if(NOT arg_OPERATORS)
    set(arg_OPERATORS ${folder})
  endif()
  foreach(name IN LISTS arg_OPERATORS)
    set(definition "${name}_op()")
    set(declaration "OpDef ${name}_op();\n")
    if(cuda)
      set(definition "${name}_on_cuda(${definition})")
      string(APPEND declaration "OpDef ${name}_on_cuda(OpDef op);\n")
    endif()
    set_property(GLOBAL APPEND_STRING PROPERTY PACELINE_OPERATOR_DEFINITIONS "${declaration}\
const OpDef& ${name}_operator() {
  static const OpDef& op = *new OpDef(${definition});
  return op;
}\n\n")
    set_property(GLOBAL APPEND_STRING PROPERTY PACELINE_OPERATOR_ENTRIES "      &${name}_operator(),\n")
  endforeach()
  set_property(GLOBAL APPEND_STRING PROPERTY PACELINE_OPERATOR_HEADERS "#include <paceline/ops/${folder}.h>\n")
endfunction()

# Writes the table from op_table.cc.in and the umbrella header <paceline/ops.h>.
function(generate_operator_table)
  get_property(operator_definitions GLOBAL PROPERTY PACELINE_OPERATOR_DEFINITIONS)
  get_property(operator_entries GLOBAL PROPERTY PACELINE_OPERATOR_ENTRIES)
  get_property(operator_headers GLOBAL PROPERTY PACELINE_OPERATOR_HEADERS)
  set(out ${CMAKE_CURRENT_BINARY_DIR})
  configure_file(op_table.cc.in ${out}/op_table.cc @ONLY)
  file(CONFIGURE OUTPUT ${out}/include/paceline/ops.h @ONLY CONTENT "// Every operator of the library.\n#pragma once\n\n@operator_headers@")
  target_sources(paceline_ops PRIVATE ${out}/op_table.cc)
  target_include_directories(paceline_ops PUBLIC ${out}/include)
  target_include_directories(paceline PUBLIC $<BUILD_INTERFACE:${out}/include>)
  install(FILES ${out}/include/paceline/ops.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/paceline)
endfunction()

function(add_suite name kind command timeout)
  cmake_parse_arguments(PARSE_ARGV 4 arg "" "TARGET;MATCH" "ENVIRONMENT")
  if(NOT arg_MATCH)
    set(arg_MATCH $<IF:$<BOOL:${PACELINE_CUDA_EMULATION}>,*[Cc]uda*,*>)
  endif()
  list(TRANSFORM command REPLACE "(.+)" "\"\\1\"")
  list(JOIN command ", " command)
  set(entry "\"name\": \"${name}\", \"kind\": \"${kind}\", \"command\": [${command}], \"timeout\": ${timeout}")
  string(APPEND entry ", \"folder\": \"${CMAKE_CURRENT_SOURCE_DIR}\", \"target\": \"${arg_TARGET}\"")
  string(APPEND entry ", \"match\": \"${arg_MATCH}\"")
  set(environment)
  foreach(variable IN LISTS arg_ENVIRONMENT)
    string(REGEX REPLACE "^([^=]+)=(.*)$" "\"\\1\": \"\\2\"" variable "${variable}")
    list(APPEND environment ${variable})
  endforeach()
  list(JOIN environment ", " environment)
  set_property(GLOBAL APPEND PROPERTY PACELINE_SUITES "{${entry}, \"environment\": {${environment}}}")
  # The runner uses all cores by itself.
  add_test(NAME ${name} COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/runner ${PROJECT_BINARY_DIR} ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${name} RUN_SERIAL TRUE TIMEOUT 3600)
endfunction()

function(link_modules target)
  set(closure)
  foreach(module IN LISTS ARGN)
    get_target_property(below paceline_${module} PACELINE_CLOSURE)
    list(APPEND closure ${below})
  endforeach()
  list(REMOVE_DUPLICATES closure)
  foreach(below IN LISTS closure)
    # Object libraries hand on their objects only to those that name them directly.
    get_target_property(linked paceline_${below} PACELINE_LINKED)
    get_target_property(folders paceline_${below} PACELINE_FOLDERS)
    target_link_libraries(${target} PRIVATE paceline_${below} ${linked})
    list(POP_FRONT folders folder)
    target_include_directories(${target} PRIVATE ${folder})
    target_include_directories(${target} SYSTEM PRIVATE ${folders})
  endforeach()
endfunction()

function(add_unit_tests module)
  if(NOT PACELINE_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME;BESIDE" "EXTERNAL;SOURCES")
  set(name ${module})
  if(arg_NAME)
    set(name ${arg_NAME})
  endif()
  if(name STREQUAL ops)
    get_property(operator_tests GLOBAL PROPERTY PACELINE_OPERATOR_TESTS)
    list(APPEND arg_SOURCES ${operator_tests})
  endif()
  set(target ${name}_tests)
  add_executable(${target} ${arg_SOURCES})
  link_modules(${target} ${module} ${arg_BESIDE})
  target_link_libraries(${target} PRIVATE test_support ${arg_EXTERNAL} nlohmann_json::nlohmann_json)
  # The tests' own code need not be fast, but compiled fast.
  precompile_headers(${target} tests/support/precompiled.h LIBRARIES GTest::gmock OPTIONS $<$<CONFIG:Release>:-O1>)
  link_coverage(${target})
  add_dependencies(unit_tests ${target})

  set(timeout 120)
  if(PACELINE_SANITIZE)
    set(timeout 600)
  endif()
  add_suite(${name} gtest $<TARGET_FILE:${target}> ${timeout} TARGET ${target})
endfunction()

function(add_python_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;TARGET" "ENVIRONMENT;MODULES")
  add_suite(${name} unittest "${arg_MODULES}" ${arg_TIMEOUT} TARGET ${arg_TARGET} ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()

function(link_coverage target)
  if(PACELINE_COVERAGE)
    target_link_libraries(${target} PRIVATE coverage_hook)
  endif()
endfunction()

function(add_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "EXTERNAL;SOURCES")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE paceline::paceline gflags nlohmann_json::nlohmann_json ${arg_EXTERNAL})
  link_coverage(${name})
endfunction()

function(add_benchmark name)
  if(PACELINE_BENCHMARKS)
    add_program(${name} ${ARGN})
    target_link_libraries(${name} PRIVATE benchmark::benchmark)
  endif()
endfunction()
