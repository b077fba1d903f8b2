# The shared body of the kernels is compiled once per instruction set. A file whose name
# ends in an instruction set gets that set's flags, and is excluded for processors of
# another family. The macros SHOAL_HAVE_* tell the dispatcher which tables exist; whether
# the processor supports them is tested at run time.
set(x86_64_sets avx2 avx512)
set(aarch64_sets neon)
set(avx2_flags -mavx2 -mfma -mf16c) # every processor with AVX2 has F16C
set(avx512_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
    -mprefer-vector-width=512)
set(neon_flags "")

# Fuzzing is for parsers: the plain kernels are enough, and clang needs many minutes for
# the vector ones with all its checks.
set(shoal_sets "")
if(CMAKE_SIZEOF_VOID_P EQUAL 8 AND NOT SHOAL_FUZZ)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
        set(shoal_sets ${x86_64_sets})
    elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
        set(shoal_sets ${aarch64_sets})
    endif()
endif()

# Removes from the named list of sources those for other processors, sets the flags of the
# remaining ones, and stores the dispatcher's macros in the other named list.
function(shoal_choose_kernels source_list macro_list)
    set(kept ${${source_list}})
    set(defined "")
    foreach(set_name IN LISTS x86_64_sets aarch64_sets)
        set(files ${kept})
        list(FILTER files INCLUDE REGEX "_${set_name}\\.c$")
        if(NOT files)
            continue()
        elseif(set_name IN_LIST shoal_sets)
            set_source_files_properties(${files} PROPERTIES
                COMPILE_OPTIONS "${${set_name}_flags}")
            string(TOUPPER ${set_name} upper)
            list(APPEND defined SHOAL_HAVE_${upper}=1)
        else()
            list(REMOVE_ITEM kept ${files})
        endif()
    endforeach()
    set(${source_list} ${kept} PARENT_SCOPE)
    set(${macro_list} ${defined} PARENT_SCOPE)
endfunction()
