# libFuzzer programs of tests/*/fuzz_*.c, and the target `fuzz_run`, which runs each for
# SHOAL_FUZZ_SECONDS. Findings are kept in the build directory, beside a copy of the
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
    target_link_libraries(${target} PRIVATE shoal_train_static shoal_flags)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    list(APPEND runs
        COMMAND ${CMAKE_COMMAND} -E make_directory corpus/${name} ${seeds}
        COMMAND ${target} -max_total_time=${SHOAL_FUZZ_SECONDS} -timeout=10
            corpus/${name} ${seeds})
endforeach()
add_custom_target(fuzz_run ${runs} USES_TERMINAL)
