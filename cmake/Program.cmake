# The program `shoal`. It links the shared library, so it can use nothing that is not
# exported by shoal.h.
file(GLOB program_sources CONFIGURE_DEPENDS cli/*.c)
shoal_find(jansson jansson.h jansson)

if(NOT program_sources)
    message(STATUS "The program is not built: cli/ is empty")
elseif(NOT TARGET jansson)
    message(STATUS "The program is not built: jansson is missing (libjansson-dev)")
else()
    add_executable(shoal_program ${program_sources})
    set_target_properties(shoal_program PROPERTIES OUTPUT_NAME shoal)
    target_include_directories(shoal_program PRIVATE cli)
    target_link_libraries(shoal_program PRIVATE shoal jansson shoal_flags m)
    file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR}
        ${CMAKE_INSTALL_FULL_LIBDIR})
    set_target_properties(shoal_program PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
endif()
