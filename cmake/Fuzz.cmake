# libFuzzer programs of tests/*/fuzz_*.c, and the target `fuzz_run` that gives each one
# SHOAL_FUZZ_SECONDS. What they find is kept in the build directory, beside a copy of the
# corpus that they may extend.
set(SHOAL_FUZZ_SECONDS 60 CACHE STRING "Seconds per fuzz target")
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/*/fuzz_*.c)
set(runs "")

foreach(source IN LISTS fuzz_sources)
    cmake_path(GET source STEM target)
    string(REGEX REPLACE "^fuzz_" "" name ${target})
    set(seeds ${CMAKE_CURRENT_SOURCE_DIR}/tests/corpus/${name})
    add_executable(${target} ${source})
    target_include_directories(${target} PRIVATE . src tests tests/models tests/speech)
    if(source MATCHES "tests/cli/") # with the parts of the program that read
        target_sources(${target} PRIVATE cli/glue.c cli/squad.c cli/text_data.c
            cli/text_metrics.c cli/command.c cli/files.c cli/ranks.c)
        target_include_directories(${target} PRIVATE cli)
        target_link_libraries(${target} PRIVATE jansson utf8proc)
    endif()
    target_link_libraries(${target} PRIVATE shoal_speech_static shoal_flags)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    list(APPEND runs
        COMMAND ${CMAKE_COMMAND} -E make_directory corpus/${name} ${seeds}
        COMMAND ${target} -max_total_time=${SHOAL_FUZZ_SECONDS} -timeout=10
            corpus/${name} ${seeds})
endforeach()
add_custom_target(fuzz_run ${runs} USES_TERMINAL)
