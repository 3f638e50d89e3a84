# The number that programs print (`--version`) and put into what they write.
set_source_files_properties(${CMAKE_SOURCE_DIR}/common/release.c PROPERTIES
  COMPILE_DEFINITIONS "MOTLEY_VERSION=\"${PROJECT_VERSION}\"")
