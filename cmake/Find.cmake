# Dependencies. The core library only needs a C library with POSIX threads.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# Finds a C library by its header; creates the target NAME, or leaves it undefined. Stores
# the linker's name for users of the archives.
function(shoal_find name header library)
    if(TARGET ${name})
        return()
    endif()
    find_path(${name}_INCLUDE_DIR ${header} PATH_SUFFIXES ${name} ${name}-pthread)
    find_library(${name}_LIBRARY ${library})
    mark_as_advanced(${name}_INCLUDE_DIR ${name}_LIBRARY)
    if(${name}_INCLUDE_DIR AND ${name}_LIBRARY)
        add_library(${name} UNKNOWN IMPORTED)
        set_target_properties(${name} PROPERTIES
            IMPORTED_LOCATION "${${name}_LIBRARY}"
            INTERFACE_INCLUDE_DIRECTORIES "${${name}_INCLUDE_DIR}"
            LINK_NAME ${library})
    endif()
endfunction()
