# The program `shoal`: the commands of cli/ and of lab/. It links the shared libraries, so
# it can use nothing that their headers do not export.
file(GLOB program_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
    cli/*.c lab/*.c)
shoal_find(cairo cairo.h cairo)
if(TARGET shoal_speech)
    list(REMOVE_ITEM program_sources cli/no_speech.c)
else()
    list(FILTER program_sources EXCLUDE REGEX
        "^(cli/(transcribe|speech_|recognise)|lab/wer).*")
endif()

if(NOT TARGET shoal_models)
    if(NOT SHOAL_MODELS)
        message(STATUS "The program is not built: it needs libshoal-models")
    endif() # else a message has said why
else()
    # Every build asks which commit it is of.
    set(experiments ${CMAKE_CURRENT_BINARY_DIR}/experiments.c)
    add_custom_target(shoal_experiments BYPRODUCTS ${experiments}
        COMMAND ${CMAKE_COMMAND} -D SOURCE=${CMAKE_CURRENT_SOURCE_DIR}
            -D OUTPUT=${experiments} -D NAMES=copy,speech,lf-mmi,text
            -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/Experiments.cmake VERBATIM)
    set_source_files_properties(${experiments} PROPERTIES
        COMPILE_OPTIONS -Wno-overlength-strings)
    add_executable(shoal_program ${program_sources} ${experiments})
    add_dependencies(shoal_program shoal_experiments)
    set_target_properties(shoal_program PROPERTIES OUTPUT_NAME shoal)
    target_include_directories(shoal_program PRIVATE cli lab)
    target_link_libraries(shoal_program PRIVATE shoal_exact shoal_train shoal_models
        shoal_flags
        jansson utf8proc Threads::Threads ${CMAKE_DL_LIBS} m)
    if(TARGET shoal_speech)
        target_link_libraries(shoal_program PRIVATE shoal_speech)
    else()
        message(STATUS "The program is built without speech")
    endif()
    if(TARGET cairo)
        target_link_libraries(shoal_program PRIVATE cairo)
        target_compile_definitions(shoal_program PRIVATE SHOAL_HAVE_CAIRO)
    else()
        message(STATUS "The program is built without plots: cairo is missing")
    endif()
    file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR}
        ${CMAKE_INSTALL_FULL_LIBDIR})
    set_target_properties(shoal_program PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
endif()

# Manual pages, dated as the latest release is, and completions: by the program itself,
# from the tables that it parses its command line with.
if(TARGET shoal_program AND NOT CMAKE_CROSSCOMPILING)
    set(manual ${CMAKE_CURRENT_BINARY_DIR}/manual)
    file(STRINGS CHANGELOG.md release REGEX "^## [0-9]" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+-[0-9]+-[0-9]+" release_date "${release}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS CHANGELOG.md)
    set_property(TARGET shoal_program APPEND PROPERTY LINK_DEPENDS
        ${CMAKE_CURRENT_SOURCE_DIR}/cli/completion.bash)
    add_custom_command(TARGET shoal_program POST_BUILD
        COMMAND ${CMAKE_COMMAND} -E make_directory ${manual}
        COMMAND shoal_program _manual ${manual} "${release_date}"
        COMMAND ${CMAKE_COMMAND} -E cat ${manual}/tables.bash
            ${CMAKE_CURRENT_SOURCE_DIR}/cli/completion.bash > ${manual}/shoal.bash
        VERBATIM)
endif()
