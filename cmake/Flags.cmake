# Flags of everything that is compiled here, as the target shoal_flags.
add_library(shoal_flags INTERFACE)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)

# Fused multiply-adds are used only where the code spells them, so that results agree
# between instruction sets. The other flags do not change results: exported functions may
# be inlined, since nothing is expected to replace them.
target_compile_options(shoal_flags INTERFACE
    -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-semantic-interposition)

# There float is computed in double otherwise, which vectors of floats are not.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^s390")
    target_compile_options(shoal_flags INTERFACE -fexcess-precision=fast)
endif()

target_compile_options(shoal_flags INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    $<$<BOOL:${SHOAL_WERROR}>:-Werror>)

# As part of another project without a build type, Shoal would be compiled without
# optimisation, ten times slower.
get_property(several_types GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT several_types AND NOT CMAKE_C_FLAGS MATCHES "-O")
    message(STATUS "Shoal: no CMAKE_BUILD_TYPE is set; Shoal itself gets -O3 -g")
    target_compile_options(shoal_flags INTERFACE -O3 -g)
endif()

if(SHOAL_FUZZ AND NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SHOAL_FUZZ needs clang: -DCMAKE_C_COMPILER=clang")
endif()
if(SHOAL_SANITIZE OR SHOAL_FUZZ)
    set(sanitizers address,undefined)
    if(SHOAL_SANITIZE STREQUAL "thread")
        set(sanitizers thread)
    elseif(SHOAL_FUZZ)
        string(APPEND sanitizers ",fuzzer-no-link")
    endif()
    target_compile_options(shoal_flags INTERFACE -O2 -fsanitize=${sanitizers}
        -fno-sanitize-recover=all -fno-omit-frame-pointer)
    string(REPLACE ",fuzzer-no-link" "" linked_sanitizers ${sanitizers})
    target_link_options(shoal_flags INTERFACE -fsanitize=${linked_sanitizers})
endif()
