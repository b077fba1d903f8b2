# The program `shoal`. It links the shared library, so it can use nothing that is not
# exported by shoal.h.
file(GLOB program_sources CONFIGURE_DEPENDS cli/*.c)
shoal_find(jansson jansson.h jansson)
shoal_find(cairo cairo.h cairo)
shoal_find(openblas cblas.h openblas)

if(NOT program_sources)
    message(STATUS "The program is not built: cli/ is empty")
elseif(NOT TARGET jansson)
    message(STATUS "The program is not built: jansson is missing (libjansson-dev)")
else()
    add_executable(shoal_program ${program_sources})
    set_target_properties(shoal_program PROPERTIES OUTPUT_NAME shoal)
    target_include_directories(shoal_program PRIVATE cli)
    target_link_libraries(shoal_program PRIVATE shoal jansson shoal_flags
        OpenMP::OpenMP_C m)
    # `shoal bench` draws with cairo and compares with OpenBLAS where they are there.
    foreach(optional IN ITEMS cairo openblas)
        if(TARGET ${optional})
            string(TOUPPER ${optional} upper)
            target_compile_definitions(shoal_program PRIVATE SHOAL_HAVE_${upper})
            target_link_libraries(shoal_program PRIVATE ${optional})
        else()
            message(STATUS "The program is built without ${optional}")
        endif()
    endforeach()
    if(model_libraries)
        target_compile_definitions(shoal_program PRIVATE SHOAL_HAVE_MODELS)
    endif()
    file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR}
        ${CMAKE_INSTALL_FULL_LIBDIR})
    set_target_properties(shoal_program PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
endif()
