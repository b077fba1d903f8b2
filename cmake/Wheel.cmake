# What a wheel carries (pyproject.toml): the package's folder has the shared libraries as
# plain files, which find each other beside themselves, and the program in bin/. A script
# on the PATH starts it.
set(wheel_libraries shoal)
foreach(name IN ITEMS models speech train)
    if(TARGET shoal_${name})
        list(APPEND wheel_libraries shoal_${name})
    endif()
endforeach()
set_property(TARGET ${wheel_libraries} PROPERTY VERSION)
set_property(TARGET ${wheel_libraries} PROPERTY SOVERSION)
install(TARGETS ${wheel_libraries} LIBRARY DESTINATION shoal COMPONENT python)
if(TARGET shoal_program)
    set_target_properties(shoal_program PROPERTIES INSTALL_RPATH "$ORIGIN/..")
    install(TARGETS shoal_program RUNTIME DESTINATION shoal/bin COMPONENT python)
    install(PROGRAMS ${CMAKE_CURRENT_SOURCE_DIR}/python/program
        RENAME shoal DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
endif()

# Licences of the libraries that are put into a wheel for other systems (tools/wheel).
set(SHOAL_LICENCES "" CACHE PATH "Folder of licences of libraries inside the wheel")
if(SHOAL_LICENCES)
    install(DIRECTORY ${SHOAL_LICENCES}/ DESTINATION
        ${SKBUILD_METADATA_DIR}/licenses/libraries COMPONENT python)
endif()
