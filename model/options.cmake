# Packed weights become fp32 whenever they are used: fast, and the same bits everywhere.
set_source_files_properties(${CMAKE_SOURCE_DIR}/model/files/dequantise.c ${CMAKE_SOURCE_DIR}/model/files/nf4.c PROPERTIES
  COMPILE_OPTIONS "-O3;-ffp-contract=off")
# The one file that may use more than baseline x86-64; nf4.c asks the CPU.
set_source_files_properties(${CMAKE_SOURCE_DIR}/model/files/nf4_avx2.c PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off;-mavx2")
