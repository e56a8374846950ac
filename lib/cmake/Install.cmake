# `cmake --install`: the binary, the rooms with their headers, and the package that find_package(meshard) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/meshard)

get_property(rooms GLOBAL PROPERTY MESHARD_ROOMS)
list(TRANSFORM rooms PREPEND meshard_)
install(TARGETS ${rooms} EXPORT meshard ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET meshard)
  install(TARGETS meshard RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/lib/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/meshard
        FILES_MATCHING PATTERN "*.h" PATTERN cmake EXCLUDE)
install(EXPORT meshard NAMESPACE meshard:: FILE meshard-targets.cmake DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/meshard-config.cmake.in
                              ${PROJECT_BINARY_DIR}/package/meshard-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/meshard-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/meshard-config.cmake
              ${PROJECT_BINARY_DIR}/package/meshard-config-version.cmake ${CMAKE_CURRENT_LIST_DIR}/LibTorch.cmake
        DESTINATION ${package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
