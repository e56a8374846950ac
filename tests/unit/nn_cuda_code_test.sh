#!/usr/bin/env bash
# nn_cuda_code_test.sh NVCC OBJECT: the build has compiled lib/nn/kernels.cu, and each kernel is in it for both elements
# and for whole and single vectors. Catches: a kernel that is never made, which a CPU build would not miss when it links.
set -u
nvcc=$1 object=$2
if [[ -z $nvcc ]]; then
  echo "skipped: no nvcc was found (CUDAToolkit_ROOT or CUDA_HOME), so the CUDA kernels are not compiled"
  exit 77
fi
[[ -f $object ]] || { echo "$object is not there although $nvcc is"; exit 1; }
names=$(nm -C "$object")
rc=0
expect() {  # kernel body versions
  found=$(grep -oE "void meshard::kernels::.*$1<meshard::kernels::$2<[^(]*\(" <<<"$names" | grep -v device_stub |
          sort -u | wc -l)
  ((found == $3)) || { echo "$1 over $2: $found versions in $object, expected $3"; rc=1; }
}
expect over_rows RmsNormForwardRow 4
expect over_groups RmsNormBackwardRow 4
expect over_rows SumBackwardRow 4
expect over_vectors RotaryPairs 4
expect over_vectors RotaryRest 2
expect over_vectors SwigluForwardVectors 4
expect over_vectors SwigluBackwardVectors 4
expect over_vectors GatherVectors 4
expect over_vectors SumVectors 4
exit $rc
