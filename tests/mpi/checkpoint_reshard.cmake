# Checkpoints from every mesh to every other: one program, run twice on each number of ranks.
add_executable(mpi_checkpoint_reshard checkpoint_reshard_test.cpp $<TARGET_OBJECTS:mpi_main> ${nccl_stub_objects})
set(T_DOORS train comm)
set(T_TENSORS ON)
_meshard_test_target(mpi_checkpoint_reshard)
add_test(NAME mpi.checkpoint_reshard
         COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checkpoint_reshard_test.sh
                 ${PROJECT_SOURCE_DIR}/tests/support/mpirun.sh $<TARGET_FILE:mpi_checkpoint_reshard>)
set_tests_properties(mpi.checkpoint_reshard PROPERTIES TIMEOUT 400 COST 400 PROCESSORS 2 LABELS mpi
                     ENVIRONMENT "${SHARED_CORES}")
