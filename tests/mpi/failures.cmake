# How a run ends when a rank stops, throws or is not expected: a program that misbehaves, and a script that runs it.
add_executable(failing_ranks failing_ranks.cpp)
set(T_DOORS comm)
_meshard_test_target(failing_ranks)
meshard_use_tensors(failing_ranks)
add_test(NAME mpi.failures COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/failures_test.sh
                                   ${PROJECT_SOURCE_DIR}/tests/support/mpirun.sh $<TARGET_FILE:failing_ranks>)
set_tests_properties(mpi.failures PROPERTIES TIMEOUT 180 COST 180 PROCESSORS 2 LABELS mpi
                     ENVIRONMENT "${SHARED_CORES}")
