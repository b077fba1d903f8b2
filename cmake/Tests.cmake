# tests/ROOM/test_X.c is a program of cmocka cases and the CTest test ROOM_X, linked with
# the room's library and those below. Every other .c file there that is not a fuzz target
# is a helper for the tests of that room and of the rooms above.
enable_testing()
set(unwatched ${CMAKE_CURRENT_SOURCE_DIR}/tests/thread_sanitizer.txt)
set(test_environment UBSAN_OPTIONS=print_stacktrace=1
    TSAN_OPTIONS=suppressions=${unwatched})
function(shoal_test name)
    cmake_parse_arguments(PARSE_ARGV 1 test "" "" COMMAND)
    add_test(NAME ${name} COMMAND ${test_COMMAND})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${test_environment}"
        TIMEOUT 900 SKIP_RETURN_CODE 77)
endfunction()

# There is no cmocka for the emulated processor: tests/qemu has the required subset.
if(CMAKE_CROSSCOMPILING)
    add_library(cmocka STATIC tests/qemu/cmocka.c)
    target_include_directories(cmocka PUBLIC tests/qemu)
    target_compile_definitions(cmocka PUBLIC SHOAL_EMULATED)
    target_link_libraries(cmocka PRIVATE shoal_flags)
else()
    shoal_find(cmocka cmocka.h cmocka)
endif()
if(NOT TARGET cmocka)
    message(STATUS "The unit tests are not built: cmocka is missing (libcmocka-dev)")
endif()

# Without libFuzzer a fuzz target replays a folder.
function(shoal_replay source library)
    cmake_path(GET source STEM target)
    string(REGEX REPLACE "^fuzz_" "" name ${target})
    add_executable(replay_${name} ${source})
    target_compile_definitions(replay_${name} PRIVATE SHOAL_FUZZ_STANDALONE)
    target_link_libraries(replay_${name} PRIVATE ${library})
    set_target_properties(replay_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
    shoal_test(replay_${name} COMMAND replay_${name}
        ${CMAKE_CURRENT_SOURCE_DIR}/tests/corpus/${name})
endfunction()

# Tests of one room: its folder in tests/, its archive, and the room below it.
function(shoal_test_room room archive below)
    file(GLOB tests CONFIGURE_DEPENDS tests/${room}/test_*.c)
    file(GLOB fuzz CONFIGURE_DEPENDS tests/${room}/fuzz_*.c)
    file(GLOB helpers CONFIGURE_DEPENDS tests/${room}/*.c)
    list(REMOVE_ITEM helpers ${tests} ${fuzz})

    # Compile options of a test; the archive makes internal functions accessible.
    add_library(${room}_internals INTERFACE)
    target_include_directories(${room}_internals INTERFACE . src tests tests/${room})
    target_compile_definitions(${room}_internals INTERFACE ${kernel_macros}
        SHOAL_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}")
    target_link_libraries(${room}_internals INTERFACE shoal_exact ${archive}
        shoal_flags)

    if(TARGET cmocka)
        set(linked ${room}_internals cmocka)
        if(helpers)
            add_library(${room}_helpers STATIC ${helpers})
            target_link_libraries(${room}_helpers PUBLIC ${room}_internals cmocka)
            list(PREPEND linked ${room}_helpers)
            if(below)
                target_link_libraries(${room}_helpers PUBLIC ${below}_helpers)
            endif()
        elseif(below)
            list(APPEND linked ${below}_helpers)
        endif()
        foreach(source IN LISTS tests)
            cmake_path(GET source STEM program)
            string(REGEX REPLACE "^test_" "${room}_" name ${program})
            add_executable(test_${name} ${source})
            target_link_libraries(test_${name} PRIVATE ${linked})
            set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
            shoal_test(${name} COMMAND test_${name})
        endforeach()
    endif()

    foreach(source IN LISTS fuzz)
        shoal_replay(${source} ${room}_internals)
    endforeach()
endfunction()

# With the sanitizer of threads: the core, where threads are, and every command once.
shoal_test_room(core shoal_static "")
if(SHOAL_SANITIZE STREQUAL "thread")
    if(TARGET shoal_program)
        shoal_test(cli_every_command COMMAND bash
            ${CMAKE_CURRENT_SOURCE_DIR}/tests/cli/every_command.sh
            $<TARGET_FILE:shoal_program>)
    endif()
    return()
endif()
if(TARGET shoal_models)
    shoal_test_room(models shoal_models_static core)
elseif(TARGET cmocka)
    # Without its other parts, which need other libraries: the kernels.
    file(GLOB models_kernels CONFIGURE_DEPENDS models/kernels/*.c)
    shoal_choose_kernels(models_kernels kernel_macros)
    add_executable(test_models_kernels tests/models/test_kernels.c ${models_kernels})
    target_link_libraries(test_models_kernels PRIVATE core_helpers)
    set_target_properties(test_models_kernels PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
    shoal_test(models_kernels COMMAND test_models_kernels)
endif()
if(TARGET shoal_speech)
    shoal_test_room(speech shoal_speech_static models)
endif()
if(TARGET shoal_train)
    shoal_test_room(train shoal_train_static models)
endif()

# tests/mpi: programs that scripts run on several ranks; the program itself under mpirun
# is tested by cli_ranks.
if(TARGET shoal_mpi)
    add_executable(test_mpi_transport tests/mpi/transport.c)
    target_link_libraries(test_mpi_transport PRIVATE shoal_mpi shoal_flags)
    set_target_properties(test_mpi_transport PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
    shoal_test(mpi_transport COMMAND bash
        ${CMAKE_CURRENT_SOURCE_DIR}/tests/mpi/transport.sh
        $<TARGET_FILE:test_mpi_transport>)
endif()

# tests/cli/X.sh is a script of cases for the program, the CTest test cli_X; tests/cli/
# test_X.c, the test cli_X_parts, calls functions of cli/.
if(TARGET shoal_program)
    if(TARGET cmocka)
        file(GLOB program_tests CONFIGURE_DEPENDS tests/cli/test_*.c)
        set(program_parts ${program_sources})
        list(FILTER program_parts INCLUDE REGEX "^cli/")
        list(FILTER program_parts EXCLUDE REGEX "/main\\.c$")
        add_library(cli_parts STATIC EXCLUDE_FROM_ALL ${program_parts})
        target_include_directories(cli_parts PUBLIC . cli)
        target_link_libraries(cli_parts PUBLIC models_helpers train_internals jansson)
        foreach(source IN LISTS program_tests)
            cmake_path(GET source STEM program)
            string(REGEX REPLACE "^test_" "cli_" name ${program}_parts)
            add_executable(test_${name} ${source})
            target_link_libraries(test_${name} PRIVATE cli_parts)
            set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
            shoal_test(${name} COMMAND test_${name})
        endforeach()
    endif()
    file(GLOB scripts CONFIGURE_DEPENDS tests/cli/*.sh)
    # Every command once is for the sanitizer of threads and for installed programs.
    list(FILTER scripts EXCLUDE REGEX "/every_command\\.sh$")
    foreach(script IN LISTS scripts)
        cmake_path(GET script STEM name)
        shoal_test(cli_${name} COMMAND bash ${script} $<TARGET_FILE:shoal_program>)
    endforeach()
endif()

# Checks of the tree and of what is built and installed: once, in the ordinary build.
if(NOT SHOAL_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    set(tree ${CMAKE_CURRENT_SOURCE_DIR}/tests/tree)
    set(places ${CMAKE_C_COMPILER} ${CMAKE_CURRENT_BINARY_DIR}
        ${CMAKE_CURRENT_SOURCE_DIR})
    shoal_test(tree_includes COMMAND bash ${tree}/includes.sh
        ${CMAKE_CURRENT_SOURCE_DIR})
    shoal_test(tree_links_rooms COMMAND bash ${tree}/links_rooms.sh ${places})
    shoal_test(tree_links COMMAND bash ${tree}/links.sh ${CMAKE_CURRENT_SOURCE_DIR})
    shoal_test(tree_words COMMAND bash ${tree}/words.sh ${CMAKE_CURRENT_SOURCE_DIR})
    shoal_test(tree_format COMMAND bash ${tree}/format.sh ${CMAKE_CURRENT_SOURCE_DIR})
    shoal_test(tree_headers COMMAND bash ${tree}/headers.sh ${places})
    shoal_test(tree_abi COMMAND python3 ${tree}/abi/abi.py --check ${places})
    shoal_test(tree_sdist COMMAND bash ${tree}/sdist.sh ${CMAKE_COMMAND}
        ${CMAKE_CURRENT_SOURCE_DIR})
    if(TARGET shoal_program)
        shoal_test(tree_wheel COMMAND bash ${tree}/wheel.sh
            ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR})
    endif()
    if(SHOAL_VERSION_SCRIPTS)
        shoal_test(tree_symbols COMMAND bash ${tree}/symbols.sh ${places})
    endif()
    if(SHOAL_INSTALL)
        shoal_test(tree_install COMMAND bash ${tree}/install/run.sh ${CMAKE_COMMAND}
            ${places})
    endif()
    if(TARGET shoal_program)
        if(SHOAL_INSTALL)
            shoal_test(tree_guides COMMAND bash ${tree}/guides.sh ${CMAKE_COMMAND}
                ${places})
        endif()
        shoal_test(tree_paths COMMAND bash ${tree}/paths.sh ${CMAKE_COMMAND} ${places})
    endif()
    # Instructions are counted, not timed; sanitizers and emulation would change the
    # counts.
    add_executable(instructions ${tree}/instructions.c)
    target_link_libraries(instructions PRIVATE shoal_static shoal_flags)
    set_target_properties(instructions PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
    shoal_test(tree_instructions COMMAND bash ${tree}/instructions.sh
        $<TARGET_FILE:instructions>)
endif()
