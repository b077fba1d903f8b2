# Each bench/*.c is one timing program; `bench` builds and runs them all. Speeds are
# relative to a BLAS, so nothing is built without one.
file(GLOB bench_sources CONFIGURE_DEPENDS bench/*.c)
shoal_find(openblas cblas.h openblas)

if(NOT bench_sources)
    message(STATUS "The timings are not built: bench/ is empty")
elseif(NOT TARGET openblas)
    message(STATUS "The timings are not built: OpenBLAS is missing (libopenblas-dev)")
else()
    if(NOT TARGET shoal_models)
        list(FILTER bench_sources EXCLUDE REGEX "products.c$")
    endif()
    set(runs "")
    foreach(source IN LISTS bench_sources)
        cmake_path(GET source STEM name)
        add_executable(bench_${name} ${source})
        target_include_directories(bench_${name} PRIVATE . src bench)
        target_compile_definitions(bench_${name} PRIVATE ${kernel_macros})
        target_link_libraries(bench_${name} PRIVATE
            $<IF:$<TARGET_EXISTS:shoal_models_static>,shoal_models_static,shoal_static>
            shoal_flags openblas)
        set_target_properties(bench_${name} PROPERTIES
            OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY bench)
        list(APPEND runs COMMAND bench_${name})
    endforeach()
    add_custom_target(bench ${runs} USES_TERMINAL) # one after another
endif()
