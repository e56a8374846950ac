# The NCCL backend. It needs the CUDA runtime and nvcc, nccl.h with its library, and a LibTorch with CUDA; with all of
# them, MESHARD_WITH_CUDA is on. With the headers of CUDA and NCCL alone, MESHARD_CHECK_NCCL is on: the sources are
# compiled, so that they cannot rot, but not linked (lib/comm/CMakeLists.txt). Sets MESHARD_CUDA_INCLUDES and
# MESHARD_CUDA_LINKS; MESHARD_NVCC (empty: not found) and MESHARD_CUDA_ARCHITECTURES for the kernels (lib/nn).
#   MESHARD_CUDA   AUTO (what is found), ON (an error that says what is missing) or OFF
#   NCCL_ROOT      a prefix with include/nccl.h and lib/libnccl.so*; otherwise the nvidia-nccl package beside torch, which
#                  is the one that a CUDA LibTorch loads anyway, then the system's
#   CUDAToolkit_ROOT, CUDA_HOME   where CUDA is, if not in /usr/local/cuda or the PATH
set(MESHARD_WITH_CUDA OFF)
set(MESHARD_CHECK_NCCL OFF)
set(MESHARD_NVCC "")
if(MESHARD_CUDA STREQUAL OFF)
  return()
endif()

if(NOT CUDAToolkit_ROOT AND DEFINED ENV{CUDA_HOME})
  set(CUDAToolkit_ROOT $ENV{CUDA_HOME})
endif()
find_package(CUDAToolkit QUIET)

file(GLOB nccl_packages ${LIBTORCH_DIR}/../nvidia/nccl ${LIBTORCH_DIR}/../nvidia/cu13
     ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} $ENV{NCCL_ROOT} ${nccl_packages} PATH_SUFFIXES include)
get_filename_component(nccl_prefix "${NCCL_INCLUDE_DIR}" DIRECTORY)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${nccl_prefix} ${NCCL_ROOT} $ENV{NCCL_ROOT}
             PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

set(missing "")
if(NOT CUDAToolkit_FOUND)
  list(APPEND missing "CUDA (cuda_runtime_api.h, cudart; CUDAToolkit_ROOT)")
endif()
if(NOT NCCL_INCLUDE_DIR)
  list(APPEND missing "nccl.h (NCCL_ROOT, or the Python package nvidia-nccl-cu13)")
endif()
# The kernels of lib/nn are compiled wherever nvcc is, linked or not; where it is not, a test says so.
set(MESHARD_NVCC "")
if(CUDAToolkit_NVCC_EXECUTABLE)
  set(MESHARD_NVCC ${CUDAToolkit_NVCC_EXECUTABLE})
elseif(CUDAToolkit_FOUND)
  list(APPEND missing "nvcc (CUDAToolkit_ROOT)")
endif()
set(MESHARD_CUDA_ARCHITECTURES 80 90)
if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
  list(APPEND MESHARD_CUDA_ARCHITECTURES 100)
endif()

if(NCCL_INCLUDE_DIR AND CUDAToolkit_FOUND)
  set(MESHARD_CHECK_NCCL ON)
  set(MESHARD_CUDA_INCLUDES ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
endif()
if(NOT NCCL_LIBRARY)
  list(APPEND missing "libnccl.so")
endif()
if(NOT LIBTORCH_HAS_CUDA)
  list(APPEND missing "a LibTorch with CUDA (this one is for CPUs: ${LIBTORCH_DIR})")
endif()
list(JOIN missing ", " missing)

if(NOT missing)
  set(MESHARD_WITH_CUDA ON)
  set(MESHARD_CHECK_NCCL OFF)
  get_filename_component(nccl_folder "${NCCL_LIBRARY}" DIRECTORY)
  set(MESHARD_CUDA_LINKS ${NCCL_LIBRARY} -Wl,-rpath,${nccl_folder} CUDA::cudart -Wl,--no-as-needed -ltorch_cuda
                         -lc10_cuda -Wl,--as-needed)
elseif(MESHARD_CUDA STREQUAL ON)
  message(FATAL_ERROR "MESHARD_CUDA=ON, but not found: ${missing}")
elseif(MESHARD_CHECK_NCCL)
  message(STATUS "NCCL backend: sources are compiled as a check, not linked; not found: ${missing}")
else()
  message(STATUS "NCCL backend: not built; not found: ${missing}")
endif()
