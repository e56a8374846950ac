# One room of lib/ = one static library `meshard::<room>`, whose DOORS are all the rooms it may see.
#   meshard_room(mesh SOURCES mesh.cpp mesh_shape.cpp DOORS comm [LINKS fmt::fmt ...] [TENSORS])
# TENSORS: the room compiles against LibTorch and shares the one precompiled header.
add_library(meshard_options INTERFACE)
# An enum's new value is an error in every switch that does not say what becomes of it, so a switch over an enum of ours
# has no default (tests/unit/switches_test.sh).
target_compile_options(meshard_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter
                       -Wno-missing-field-initializers -Werror=switch -Werror=return-type>)
# Any node of a cluster, login or compute, runs the same binary: no -march=native. Hot loops use function multiversioning.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(meshard_options INTERFACE -march=x86-64-v3)
endif()

# What every source pays for its headers, the precompiled one included, is most of a clean build. Off is better while one
# works on a room: a change then costs one source.
option(MESHARD_UNITY "Compile several sources of a room at once" ON)

function(meshard_use_tensors target)
  target_link_libraries(${target} PUBLIC $<BUILD_INTERFACE:meshard_libtorch> $<INSTALL_INTERFACE:meshard::libtorch>)
  target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  if(NOT target STREQUAL meshard_module)
    target_precompile_headers(${target} REUSE_FROM meshard_module)
  endif()
endfunction()

function(meshard_room name)
  cmake_parse_arguments(ROOM "TENSORS" "" "SOURCES;DOORS;LINKS" ${ARGN})
  add_library(meshard_${name} STATIC ${ROOM_SOURCES})
  add_library(meshard::${name} ALIAS meshard_${name})
  set_target_properties(meshard_${name} PROPERTIES EXPORT_NAME ${name} UNITY_BUILD ${MESHARD_UNITY}
                                                   UNITY_BUILD_BATCH_SIZE 8)
  target_include_directories(meshard_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/lib>
                                                    $<INSTALL_INTERFACE:include/meshard>)
  target_compile_features(meshard_${name} PUBLIC cxx_std_20)
  target_link_libraries(meshard_${name} PRIVATE $<BUILD_INTERFACE:meshard_options>)
  foreach(door ${ROOM_DOORS})
    target_link_libraries(meshard_${name} PUBLIC meshard_${door})
  endforeach()
  target_link_libraries(meshard_${name} PUBLIC ${ROOM_LINKS})
  if(ROOM_TENSORS)
    meshard_use_tensors(meshard_${name})
  endif()
  set_property(GLOBAL APPEND PROPERTY MESHARD_ROOMS ${name})
endfunction()
