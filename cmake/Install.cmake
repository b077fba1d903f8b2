# Libraries, archives, headers, program, CMake package and pkg-config files.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shoal)
# The prefix is computed relative to the file, so that the installed tree can be moved.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
    ${CMAKE_INSTALL_PREFIX})

# One library with its header, its .pc file and its part of the CMake package. NAME is
# that of shoal::NAME, PC_NAME that of the .pc file, and PC_ON the one below it;
# further headers may follow.
function(shoal_install target name pc_name pc_on pc_description)
    install(TARGETS ${target} ${target}_static EXPORT ${name}Targets)
    install(EXPORT ${name}Targets NAMESPACE shoal:: DESTINATION ${package_dir})
    string(REPLACE "-" "_" header ${pc_name})
    install(FILES include/${header}.h ${ARGN} TYPE INCLUDE)
    get_target_property(pc_private ${target} ARCHIVE_FLAGS)
    configure_file(cmake/library.pc.in ${pc_name}.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${pc_name}.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

shoal_install(shoal shoal shoal "" "Attention whose cost is linear in the sequence"
    include/shoal_transport.h include/shoal_inspect.h)
if(TARGET shoal_models)
    shoal_install(shoal_models models shoal-models shoal
        "Transformers and their training")
endif()
if(TARGET shoal_speech)
    shoal_install(shoal_speech speech shoal-speech shoal-models "Recordings become text")
endif()
if(TARGET shoal_train)
    set(train_on shoal-models)
    if(TARGET shoal_speech)
        set(train_on shoal-speech)
    endif()
    shoal_install(shoal_train train shoal-train ${train_on}
        "Trainings of recognisers, text models and tasks of one's own")
endif()
if(TARGET shoal_mpi)
    shoal_install(shoal_mpi mpi shoal-mpi shoal "Several processes, on MPI")
endif()
if(TARGET shoal_program)
    install(TARGETS shoal_program)
endif()
if(manual)
    install(DIRECTORY ${manual}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
        FILES_MATCHING PATTERN "*.1")
    install(FILES ${manual}/shoal.bash RENAME shoal
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${manual}/_shoal
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
    install(FILES ${manual}/shoal.fish
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()

configure_package_config_file(cmake/shoalConfig.cmake.in shoalConfig.cmake
    INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(shoalConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/shoalConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/shoalConfigVersion.cmake DESTINATION ${package_dir})
