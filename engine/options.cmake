# One portable binary: only these files may use more than baseline x86-64, and cpu/isa.c decides at run time.
# Contraction to fused multiply-add is wanted; the order of sums is not the compiler's to change.
set(kernel_flags -O3 -ffp-contract=fast -fno-math-errno -Wno-psabi)
set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/cpu/kernels_sse42.c PROPERTIES COMPILE_OPTIONS "${kernel_flags};-msse4.2")
set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/cpu/kernels_avx2.c PROPERTIES COMPILE_OPTIONS "${kernel_flags};-mavx2;-mfma;-mf16c")
set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/cpu/kernels_avx512.c PROPERTIES COMPILE_OPTIONS
  "${kernel_flags};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mprefer-vector-width=512")
include(CheckCCompilerFlag)
check_c_compiler_flag(-mamx-bf16 HAS_mamx_bf16)
if(HAS_mamx_bf16)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/cpu/kernels_bf16.c PROPERTIES COMPILE_OPTIONS
    "${kernel_flags};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mavx512bf16;-mamx-tile;-mamx-bf16")
endif()
# Unpacked weights are the same bits everywhere: no contraction.
set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/cpu/unpack_avx2.c PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off;-mavx2")
# Checks and conversions of weights on their way are the compiler's to vectorise.
set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/stage/load.c PROPERTIES COMPILE_OPTIONS -O3)
target_include_directories(motley_engine PUBLIC ${OPENBLAS_INCLUDE_DIRS})
# GPU kernels give the same bits on the emulated device as on cards: no contraction.
set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/gpu/emulated/kernels.c PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off;-fno-math-errno")
set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/gpu/emulated/kernels_fma.c PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off;-fno-math-errno;-mfma")
# Fibers switch stacks by hand, which a shadow stack does not allow.
if(HAS_fcf_protection)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/engine/gpu/emulated/fibers.c PROPERTIES COMPILE_OPTIONS -fcf-protection=branch)
endif()
# Code objects for cards.
include(${CMAKE_SOURCE_DIR}/cmake/gpu_code.cmake)
target_sources(motley_engine PRIVATE ${gpu_code_c})
