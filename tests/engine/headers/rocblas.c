/* Compares our declarations of rocBLAS with AMD's rocblas.h. */
#include <hip/hip_runtime_api.h>
#include <rocblas/rocblas.h>

#include "engine/gpu/rocblas.c"
#include "tests/engine/headers/same.h"

SAME(STATUS_NOT_IMPLEMENTED, rocblas_status_not_implemented);
SAME(STATUS_INVALID_SIZE, rocblas_status_invalid_size);
SAME(STATUS_MEMORY_ERROR, rocblas_status_memory_error);
SAME(STATUS_INTERNAL_ERROR, rocblas_status_internal_error);
SAME(STATUS_INVALID_VALUE, rocblas_status_invalid_value);
SAME(STATUS_EXCLUDED_FROM_BUILD, rocblas_status_excluded_from_build);
SAME(STATUS_ARCH_MISMATCH, rocblas_status_arch_mismatch);
SAME(TYPE_F16, rocblas_datatype_f16_r);
SAME(TYPE_F32, rocblas_datatype_f32_r);
SAME(TYPE_BF16, rocblas_datatype_bf16_r);
SAME(OPERATION_NONE, rocblas_operation_none);
SAME(OPERATION_TRANSPOSE, rocblas_operation_transpose);
SAME(POINTERS_HOST, rocblas_pointer_mode_host);
SAME(ATOMICS_NOT_ALLOWED, rocblas_atomics_not_allowed);
SAME(ALGORITHM_STANDARD, rocblas_gemm_algo_standard);
SAME(FLAGS_NONE, rocblas_gemm_flags_none);
