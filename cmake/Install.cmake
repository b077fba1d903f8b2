# Library, archive, header, program, CMake package and pkg-config file.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shoal)

install(TARGETS shoal EXPORT shoalTargets)
install(TARGETS shoal_static)
install(FILES include/shoal.h TYPE INCLUDE)
if(TARGET shoal_program)
    install(TARGETS shoal_program)
endif()

install(EXPORT shoalTargets NAMESPACE shoal:: DESTINATION ${package_dir})
configure_package_config_file(cmake/shoalConfig.cmake.in shoalConfig.cmake
    INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(shoalConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/shoalConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/shoalConfigVersion.cmake DESTINATION ${package_dir})

# The prefix is found from the file's own place, so that the tree can be moved.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
    ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/shoal.pc.in shoal.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/shoal.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
