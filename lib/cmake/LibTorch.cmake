# LibTorch, found directly: the folder of an installed `torch` wheel or of an unpacked LibTorch. Its own CMake package
# fails outright for a CUDA wheel on a machine without the toolkit.
# Search order: -DLIBTORCH_DIR, $LIBTORCH_DIR, the project's .venv. Defines meshard_libtorch and LIBTORCH_VERSION.
# Installed along with the rooms: a user's project finds LibTorch the same way (meshard-config.cmake).
if(TARGET meshard_libtorch)
  return()
endif()
set(LIBTORCH_DIR "$ENV{LIBTORCH_DIR}" CACHE PATH "Folder that holds include/ATen and lib/libtorch.so")
if(NOT LIBTORCH_DIR)
  file(GLOB candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(candidates)
    list(GET candidates 0 LIBTORCH_DIR)
    set(LIBTORCH_DIR ${LIBTORCH_DIR} CACHE PATH "Folder that holds include/ATen and lib/libtorch.so" FORCE)
  endif()
endif()
if(NOT EXISTS "${LIBTORCH_DIR}/include/ATen/core/Tensor.h" OR NOT EXISTS "${LIBTORCH_DIR}/lib/libtorch.so")
  message(FATAL_ERROR "LibTorch not found in '${LIBTORCH_DIR}'. Run jobs/setup.sh, or pass -DLIBTORCH_DIR=DIR, a folder "
                      "with include/ATen and lib/libtorch.so (an installed torch wheel's site-packages/torch will do).")
endif()

set(LIBTORCH_VERSION "")
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${LIBTORCH_DIR}/include/torch/headeronly/version.h line REGEX "define TORCH_VERSION_${part} ")
  string(REGEX MATCH "[0-9]+" number "${line}")
  list(APPEND LIBTORCH_VERSION ${number})
endforeach()
list(JOIN LIBTORCH_VERSION "." LIBTORCH_VERSION)
if(LIBTORCH_VERSION VERSION_LESS 2.11 OR LIBTORCH_VERSION VERSION_GREATER_EQUAL 2.15)
  message(WARNING "LibTorch ${LIBTORCH_VERSION} is untested; Meshard is built for 2.11 to 2.14.")
endif()

set(LIBTORCH_HAS_CUDA OFF)
if(EXISTS ${LIBTORCH_DIR}/lib/libtorch_cuda.so)
  set(LIBTORCH_HAS_CUDA ON)
endif()

add_library(meshard_libtorch INTERFACE)
target_include_directories(meshard_libtorch SYSTEM INTERFACE ${LIBTORCH_DIR}/include
                                                             ${LIBTORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(meshard_libtorch INTERFACE AT_PER_OPERATOR_HEADERS _GLIBCXX_USE_CXX11_ABI=1)
target_link_directories(meshard_libtorch INTERFACE ${LIBTORCH_DIR}/lib)
target_link_libraries(meshard_libtorch INTERFACE -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 -Wl,--as-needed)
target_link_options(meshard_libtorch INTERFACE -Wl,-rpath,${LIBTORCH_DIR}/lib)

# LibTorch's include folder carries headers of a newer fmt, which would hide the installed one that we link: the
# installed one goes first, through a folder that holds nothing else.
find_path(FMT_INCLUDE_DIR fmt/core.h NO_CACHE)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
file(CREATE_LINK ${FMT_INCLUDE_DIR}/fmt ${CMAKE_BINARY_DIR}/include/fmt SYMBOLIC)
target_include_directories(meshard_libtorch BEFORE INTERFACE $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/include>)
