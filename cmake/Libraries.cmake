# The libraries. Each is one set of objects, from which a shared library and an archive
# are made. Symbols are hidden unless a header says otherwise: SHOAL_API is the public
# interface, SHOAL_PRIVATE is for Shoal's libraries above only (docs/architecture.md,
# "Libraries").

include(CheckLinkerFlag)
check_linker_flag(C "LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/check.map"
    SHOAL_VERSION_SCRIPTS)
configure_file(cmake/symbols.map.in symbols.map @ONLY)

# shoal_library(NAME SOURCES ... [ON below] [NEEDS libraries] [DEFINITIONS ...]) creates
# the targets shoal_NAME_objects, shoal_NAME and shoal_NAME_static (for the core:
# shoal_objects, shoal, shoal_static), and the aliases shoal::NAME and shoal::NAME_static.
function(shoal_library name)
    cmake_parse_arguments(PARSE_ARGV 1 library "" "ON" "SOURCES;NEEDS;DEFINITIONS")
    set(target shoal_${name})
    set(output shoal-${name})
    if(name STREQUAL "shoal")
        set(target shoal)
        set(output shoal)
    endif()
    set(static_on "")
    if(library_ON)
        set(static_on ${library_ON}_static)
    endif()

    add_library(${target}_objects OBJECT ${library_SOURCES})
    target_include_directories(${target}_objects PRIVATE include src .)
    target_compile_definitions(${target}_objects PRIVATE ${library_DEFINITIONS})
    target_link_libraries(${target}_objects PRIVATE shoal_flags Threads::Threads
        ${library_NEEDS})
    set_target_properties(${target}_objects PROPERTIES
        POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)

    add_library(${target} SHARED $<TARGET_OBJECTS:${target}_objects>)
    add_library(shoal::${name} ALIAS ${target})
    target_include_directories(${target} PUBLIC
        $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${target} PUBLIC ${library_ON}
        PRIVATE shoal_flags Threads::Threads ${library_NEEDS} m)
    if(SHOAL_VERSION_SCRIPTS)
        target_link_options(${target} PRIVATE
            LINKER:--version-script=${CMAKE_CURRENT_BINARY_DIR}/symbols.map)
    endif()
    # Minor versions add to the interface and change nothing (tests/tree/abi).
    set_target_properties(${target} PROPERTIES
        OUTPUT_NAME ${output}
        VERSION ${PROJECT_VERSION}
        SOVERSION ${PROJECT_VERSION_MAJOR}
        INSTALL_RPATH "$ORIGIN"
        EXPORT_NAME ${name}
        LINKER_LANGUAGE C)

    # The archive keeps internal functions accessible for tests and timing programs.
    add_library(${target}_static STATIC $<TARGET_OBJECTS:${target}_objects>)
    add_library(shoal::${name}_static ALIAS ${target}_static)
    set_target_properties(${target}_static PROPERTIES
        OUTPUT_NAME ${output} EXPORT_NAME ${name}_static LINKER_LANGUAGE C)
    target_include_directories(${target}_static PUBLIC
        $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    # In the build tree the libraries that were found; elsewhere their names, as in
    # pkg-config.
    target_link_libraries(${target}_static INTERFACE ${static_on} m)
    target_link_options(${target}_static INTERFACE -pthread)
    set(links "")
    foreach(need IN LISTS library_NEEDS)
        get_target_property(link ${need} LINK_NAME)
        target_link_libraries(${target}_static INTERFACE
            $<BUILD_INTERFACE:${need}> $<INSTALL_INTERFACE:${link}>)
        string(APPEND links "-l${link} ")
    endforeach()
    set_property(TARGET ${target} PROPERTY ARCHIVE_FLAGS "${links}-pthread -lm")
endfunction()

# Finds the dependencies of one library, rows of NAME HEADER LIBRARY PACKAGE. FOUND_NAME
# gets the targets, or nothing if one is missing; a message names its package.
function(shoal_find_parts what found_name)
    set(found "")
    set(missing "")
    set(parts ${ARGN})
    while(parts)
        list(POP_FRONT parts name header library package)
        shoal_find(${name} ${header} ${library})
        if(TARGET ${name})
            list(APPEND found ${name})
        else()
            list(APPEND missing ${package})
        endif()
    endwhile()
    if(missing)
        list(JOIN missing ", " missing)
        message(STATUS "${what} not built: missing ${missing}")
        set(found "")
    endif()
    set(${found_name} ${found} PARENT_SCOPE)
endfunction()

# ---- libshoal: attention. A C library, its mathematics and threads, nothing else -------

file(GLOB core_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} src/*/*.c)
shoal_choose_kernels(core_sources kernel_macros)
shoal_library(shoal SOURCES ${core_sources} DEFINITIONS ${kernel_macros})

# ---- libshoal-models: layers, files of tensors, training -------------------------------

set(models_needs "")
if(SHOAL_MODELS)
    shoal_find_parts("libshoal-models, libshoal-speech and the program are" models_needs
        jansson jansson.h jansson libjansson-dev
        utf8proc utf8proc.h utf8proc libutf8proc-dev)
endif()
if(models_needs)
    file(GLOB models_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
        models/*/*.c)
    shoal_choose_kernels(models_sources kernel_macros)
    shoal_library(models ON shoal SOURCES ${models_sources} NEEDS ${models_needs}
        DEFINITIONS ${kernel_macros})
endif()

# ---- libshoal-speech: recordings become text -------------------------------------------

set(speech_needs "")
if(SHOAL_SPEECH AND TARGET shoal_models)
    shoal_find_parts("libshoal-speech is" speech_needs
        kissfft kiss_fftr.h kissfft-float libkissfft-dev
        sndfile sndfile.h sndfile libsndfile1-dev
        soxr soxr.h soxr libsoxr-dev
        zlib zlib.h z zlib1g-dev)
endif()
if(speech_needs)
    file(GLOB speech_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
        speech/*/*.c)
    shoal_library(speech ON shoal_models SOURCES ${speech_sources}
        NEEDS ${speech_needs} ${models_needs})
endif()

# ---- libshoal-train: trainings as runs, and their evaluation; without libshoal-speech
# it has no task speech ------------------------------------------------------------------

if(TARGET shoal_models)
    file(GLOB train_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
        train/*.c train/*/*.c)
    if(TARGET shoal_speech)
        shoal_library(train ON shoal_speech SOURCES ${train_sources}
            NEEDS jansson utf8proc DEFINITIONS SHOAL_HAVE_SPEECH)
    else()
        list(FILTER train_sources EXCLUDE REGEX "speech")
        shoal_library(train ON shoal_models SOURCES ${train_sources}
            NEEDS jansson utf8proc)
    endif()
endif()

# ---- libshoal-mpi: several processes, where there is an MPI ----------------------------

if(SHOAL_MPI AND NOT CMAKE_CROSSCOMPILING)
    find_package(MPI QUIET COMPONENTS C)
    if(MPI_C_FOUND)
        add_library(mpi INTERFACE IMPORTED)
        target_link_libraries(mpi INTERFACE MPI::MPI_C)
        list(GET MPI_C_LIB_NAMES 0 mpi_name) # mpi or mpich
        set_target_properties(mpi PROPERTIES LINK_NAME ${mpi_name})
        file(GLOB mpi_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
            mpi/*.c)
        # MPICH's MPI_STATUSES_IGNORE is the address 1, which gcc takes for an array.
        set_source_files_properties(${mpi_sources} PROPERTIES COMPILE_OPTIONS
            $<$<C_COMPILER_ID:GNU>:-Wno-stringop-overflow>)
        shoal_library(mpi ON shoal SOURCES ${mpi_sources} NEEDS mpi)
    else()
        message(STATUS "libshoal-mpi is not built: missing an MPI (libopenmpi-dev)")
    endif()
endif()

# ---- exact/: every formula in double precision, for the tests and the laboratory -------

if(SHOAL_BUILD_CLI OR SHOAL_BUILD_TESTS)
    file(GLOB exact_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
        exact/*.c)
    add_library(shoal_exact STATIC EXCLUDE_FROM_ALL ${exact_sources})
    target_include_directories(shoal_exact PUBLIC . include)
    target_link_libraries(shoal_exact PRIVATE shoal_flags PUBLIC m)
endif()
