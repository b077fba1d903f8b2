# The programs of examples/: they use only public headers and are linked like a user's
# program. Each is run by a test that checks its output.
set(shared_data ${CMAKE_CURRENT_SOURCE_DIR}/../shared/data)

# shoal_example(NAME LIBRARY PATTERN [ARGUMENT ...]); if there is a
# tests/tree/example_NAME.sh, that script is the test; with an empty PATTERN another test
# runs the program.
function(shoal_example name library pattern)
    if(NOT TARGET ${library})
        return()
    endif()
    add_executable(example_${name} examples/${name}.c)
    target_link_libraries(example_${name} PRIVATE ${library} shoal_flags m)
    set_target_properties(example_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY examples)
    set(script ${CMAKE_CURRENT_SOURCE_DIR}/tests/tree/example_${name}.sh)
    if(COMMAND shoal_test AND EXISTS ${script})
        shoal_test(example_${name} COMMAND bash ${script} $<TARGET_FILE:example_${name}>)
    elseif(COMMAND shoal_test AND pattern)
        shoal_test(example_${name} COMMAND bash
            ${CMAKE_CURRENT_SOURCE_DIR}/tests/tree/example.sh ${pattern}
            $<TARGET_FILE:example_${name}> ${ARGN})
    endif()
endfunction()

shoal_example(clustered shoal "32 exact keys: error 0.1.*gradients within [0-9]e-0[6-9]")
shoal_example(attention shoal "attends to topic 5 by 7[0-9] %")
shoal_example(train shoal_models "^loaded +loss 0\\.[0-4].* right +(9[0-9]|100) %")
shoal_example(embed shoal_models "^ *0\\.[0-9]+  a b c$"
    FILE:${CMAKE_CURRENT_SOURCE_DIR}/tests/models/text/bert "a b" "a b c")
shoal_example(transcribe shoal_speech "he is rather difficult to get hold of"
    FILE:${shared_data}/models/ggml-tiny.bin
    FILE:${shared_data}/speech/1088-134315-0020.flac)
shoal_example(train_task shoal_train "^test +right +(9[0-9]|100) %" run)
if(TARGET shoal_speech)
    shoal_example(train_speech shoal_train "")
    shoal_example(recognise shoal_speech "") # run by example_train_speech.sh
endif()
