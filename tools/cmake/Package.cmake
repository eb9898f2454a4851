# Installs the library as the CMake package `paceline`.

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/paceline)

target_compile_features(paceline PUBLIC cxx_std_20)
install(TARGETS paceline EXPORT pacelineTargets FILE_SET HEADERS)
install(EXPORT pacelineTargets NAMESPACE paceline:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/pacelineConfig.cmake.in pacelineConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(pacelineConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pacelineConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/pacelineConfigVersion.cmake
        DESTINATION ${package_dir})
