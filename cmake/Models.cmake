# The rooms nn, data and model: layers, training and speech. They need libraries that the
# attention itself does not; without one of them these rooms are left out, whole, and the
# program says so when it is asked for them.
set(model_libraries "")
set(model_parts
    openblas cblas.h openblas libopenblas-dev
    jansson jansson.h jansson libjansson-dev
    fftw3f fftw3.h fftw3f libfftw3-dev
    sndfile sndfile.h sndfile libsndfile1-dev
    soxr soxr.h soxr libsoxr-dev
    zlib zlib.h z zlib1g-dev)

# Sets model_libraries and takes the rooms out of the list of sources where they cannot be.
function(shoal_choose_models list_name)
    set(found "")
    set(missing "")
    if(SHOAL_MODELS AND NOT CMAKE_CROSSCOMPILING)
        set(parts ${model_parts})
        while(parts)
            list(POP_FRONT parts name header library package)
            shoal_find(${name} ${header} ${library})
            if(TARGET ${name})
                list(APPEND found ${name})
            else()
                list(APPEND missing ${package})
            endif()
        endwhile()
    endif()
    if(found AND NOT missing)
        set(model_libraries ${found} PARENT_SCOPE)
        return()
    endif()
    if(missing)
        list(JOIN missing ", " missing)
        message(STATUS "Layers, training and speech are not built: missing ${missing}")
    endif()
    set(kept ${${list_name}})
    list(FILTER kept EXCLUDE REGEX "^src/(nn|data|model)/")
    set(${list_name} ${kept} PARENT_SCOPE)
endfunction()
