# tests/test_X.c is one program of cmocka cases and the CTest test X. Every other .c file
# in tests/ that is not a fuzz target is a helper that all of them may use.
enable_testing()
file(GLOB test_sources CONFIGURE_DEPENDS tests/test_*.c)
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz_*.c)
file(GLOB helper_sources CONFIGURE_DEPENDS tests/*.c)
list(REMOVE_ITEM helper_sources ${test_sources} ${fuzz_sources}
    ${CMAKE_CURRENT_SOURCE_DIR}/tests/instructions.c)

# tests/test_nn_*.c, test_data_*.c and test_model_*.c are of the rooms that may be absent, as
# are their fuzz targets; tests/nn_*.c and the like help them.
if(NOT model_libraries)
    set(of_models "/tests/(test_|fuzz_)?(nn|data|model)_[^/]*$")
    list(FILTER test_sources EXCLUDE REGEX ${of_models})
    list(FILTER fuzz_sources EXCLUDE REGEX ${of_models})
    list(FILTER helper_sources EXCLUDE REGEX ${of_models})
endif()

set(test_environment OMP_WAIT_POLICY=passive UBSAN_OPTIONS=print_stacktrace=1)
function(shoal_test name)
    cmake_parse_arguments(PARSE_ARGV 1 test "" "" COMMAND)
    add_test(NAME ${name} COMMAND ${test_COMMAND})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${test_environment}"
        TIMEOUT 900 SKIP_RETURN_CODE 77)
endfunction()

# There is no cmocka for the emulated processor: tests/qemu has the part of it in use.
if(CMAKE_CROSSCOMPILING)
    add_library(cmocka STATIC tests/qemu/cmocka.c)
    target_include_directories(cmocka PUBLIC tests/qemu)
    target_link_libraries(cmocka PRIVATE shoal_flags)
else()
    shoal_find(cmocka cmocka.h cmocka)
endif()

# What a test or a timing is compiled with; the archive makes internals reachable.
add_library(shoal_internals INTERFACE)
target_include_directories(shoal_internals INTERFACE src tests)
target_compile_definitions(shoal_internals INTERFACE ${kernel_macros}
    SHOAL_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(shoal_internals INTERFACE shoal_static shoal_flags)

if(NOT TARGET cmocka)
    message(STATUS "The unit tests are not built: cmocka is missing (libcmocka-dev)")
    set(test_sources "")
    set(helper_sources "")
endif()
if(helper_sources)
    add_library(test_helpers STATIC ${helper_sources})
    target_link_libraries(test_helpers PUBLIC shoal_internals cmocka)
    set(helpers test_helpers)
endif()

foreach(source IN LISTS test_sources)
    cmake_path(GET source STEM program)
    string(REGEX REPLACE "^test_" "" name ${program})
    add_executable(${program} ${source})
    target_link_libraries(${program} PRIVATE ${helpers} shoal_internals cmocka)
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
    shoal_test(${name} COMMAND ${program})
endforeach()

# Without libFuzzer a fuzz target replays the folder it is given.
foreach(source IN LISTS fuzz_sources)
    cmake_path(GET source STEM target)
    string(REGEX REPLACE "^fuzz_" "" name ${target})
    add_executable(replay_${name} ${source})
    target_compile_definitions(replay_${name} PRIVATE SHOAL_FUZZ_STANDALONE)
    target_link_libraries(replay_${name} PRIVATE shoal_internals)
    set_target_properties(replay_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
    shoal_test(replay_${name} COMMAND replay_${name}
        ${CMAKE_CURRENT_SOURCE_DIR}/tests/corpus/${name})
endforeach()

if(TARGET shoal_program AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/tests/test_cli.sh)
    shoal_test(cli COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/tests/test_cli.sh
        $<TARGET_FILE:shoal_program>)
endif()

# tests/cli_X.sh is a script of cases for the program, the CTest test cli_X.
file(GLOB program_scripts CONFIGURE_DEPENDS tests/cli_*.sh)
if(TARGET shoal_program)
    foreach(script IN LISTS program_scripts)
        cmake_path(GET script STEM name)
        shoal_test(${name} COMMAND bash ${script} $<TARGET_FILE:shoal_program>)
    endforeach()
endif()

if(TARGET shoal_program)
    shoal_test(bench COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/tests/test_bench.sh
        $<TARGET_FILE:shoal_program>)
endif()

# Checks of the tree and of the installed files: once, in the ordinary build, is enough.
if(NOT SHOAL_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    shoal_test(includes COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/tests/check_includes.sh
        ${CMAKE_CURRENT_SOURCE_DIR})
    # Work counted, not timed: neither sanitizers nor emulation would leave it as it is.
    add_executable(instructions tests/instructions.c)
    target_link_libraries(instructions PRIVATE shoal_static shoal_flags)
    set_target_properties(instructions PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
    shoal_test(instructions COMMAND bash
        ${CMAKE_CURRENT_SOURCE_DIR}/tests/test_instructions.sh
        $<TARGET_FILE:instructions>)
    if(SHOAL_INSTALL)
        shoal_test(install COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/tests/install/run.sh
            ${CMAKE_COMMAND} ${CMAKE_C_COMPILER} ${CMAKE_CURRENT_BINARY_DIR})
    endif()
endif()
