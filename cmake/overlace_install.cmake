# Install tree: include/overlace, lib/liboverlace.so, bin/overlace with its manual page and schemas, the files of
# find_package(overlace) and pkg-config, and the examples. Nothing in it names the prefix: the tree may be moved, and
# `cpack` packs it.
# NOTE: `lib` everywhere: programs find the oneDNN provider at ../lib/overlace.
set(CMAKE_INSTALL_LIBDIR lib CACHE PATH "Folder of libraries below the prefix")
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# What `overlace bench` starts, without programs: it shows and compares records, and names a program that is missing.
function(overlace_install_driver folder component)
  set(bench ${PROJECT_SOURCE_DIR}/bench)
  install(DIRECTORY ${bench}/driver DESTINATION ${folder} COMPONENT ${component}
          FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
  install(FILES ${bench}/record.schema.json ${bench}/torch_block.py ${bench}/torch_competitors.py ${bench}/torch_moe.py
          DESTINATION ${folder} COMPONENT ${component})
  install(FILES ${bench}/dense/cases.json ${bench}/dense/operators.json DESTINATION ${folder}/dense
          COMPONENT ${component})
endfunction()

function(overlace_install)
  install(DIRECTORY include/overlace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING
          PATTERN "*.h" PATTERN "*.cuh" PATTERN "README.md")
  target_include_directories(overlace_shared INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(overlace_shared INTERFACE cxx_std_20)
  install(TARGETS overlace_shared EXPORT overlaceTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT overlaceTargets NAMESPACE overlace:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/overlace)
  if(TARGET overlace_onednn)
    install(TARGETS overlace_onednn LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/overlace)
  endif()
  if(TARGET overlace)
    install(TARGETS overlace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(FILES docs/reference/overlace.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(DIRECTORY docs/reference/schemas DESTINATION ${CMAKE_INSTALL_DATADIR}/overlace)
  endif()
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/overlaceConfig.cmake.in
    ${PROJECT_BINARY_DIR}/overlaceConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/overlace)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/overlaceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/overlaceConfig.cmake ${PROJECT_BINARY_DIR}/overlaceConfigVersion.cmake
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/overlace)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/overlace.pc.in ${PROJECT_BINARY_DIR}/overlace.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/overlace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/overlace)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  set(CPACK_GENERATOR TGZ)
  string(TOLOWER "${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" platform)
  set(CPACK_PACKAGE_FILE_NAME "overlace-${PROJECT_VERSION}-${platform}")
  set(CPACK_STRIP_FILES ON)
  include(CPack)
endfunction()
