# Libraries, archives, headers, program, CMake package and pkg-config files.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shoal)
# The prefix is found from the files' own place, so that the tree can be moved.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
    ${CMAKE_INSTALL_PREFIX})

# One library with its header. NAME is that of the .pc file, ON the one below it, and
# FLAGS what a program that links the archive needs beside it.
function(shoal_install target name on description flags)
    string(REPLACE "-" "_" header ${name})
    install(TARGETS ${target} ${target}_static EXPORT shoalTargets)
    install(FILES include/${header}.h TYPE INCLUDE)
    set(pc_name ${name})
    set(pc_on ${on})
    set(pc_description ${description})
    set(pc_private ${flags})
    configure_file(cmake/library.pc.in ${name}.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

shoal_install(shoal shoal "" "Attention whose cost is linear in the sequence"
    "${OpenMP_C_FLAGS} -lm")
if(TARGET shoal_models)
    shoal_install(shoal_models shoal-models shoal "Transformers and their training"
        "-lopenblas -ljansson ${OpenMP_C_FLAGS} -lm")
endif()
if(TARGET shoal_speech)
    shoal_install(shoal_speech shoal-speech shoal-models "Recordings become text"
        "-lfftw3f -lsndfile -lsoxr -lz ${OpenMP_C_FLAGS} -lm")
endif()
if(TARGET shoal_program)
    install(TARGETS shoal_program)
endif()

install(EXPORT shoalTargets NAMESPACE shoal:: DESTINATION ${package_dir})
configure_package_config_file(cmake/shoalConfig.cmake.in shoalConfig.cmake
    INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(shoalConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/shoalConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/shoalConfigVersion.cmake cmake/Find.cmake
    DESTINATION ${package_dir})
