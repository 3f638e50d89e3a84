# The engine alone (-DMOTLEY_ENGINE_ONLY=ON), for gpu-check and gpu-bench: builds on a machine that has a card, a
# compiler and little else. What of jansson, zlib, cmocka and OpenBLAS's header is not there is stood for by
# bench/gpu/absent, and what cannot be stood for (golden models, whose files are JSON) is left out and said.
find_package(Threads REQUIRED)
include(CheckIncludeFile)

add_library(motley_flags INTERFACE)
target_compile_options(motley_flags INTERFACE -Wall -Wextra -Wshadow -fno-common -fvisibility=hidden
  -ffunction-sections -fdata-sections)
target_compile_definitions(motley_flags INTERFACE _GNU_SOURCE)
target_include_directories(motley_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_link_options(motley_flags INTERFACE -Wl,--gc-sections)
target_link_libraries(motley_flags INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)

# MOTLEY_GPU_ABSENT names headers to do without, to try this where they are.
function(engine_only_needs header library folder out)
  string(MAKE_C_IDENTIFIER "HAVE_${header}" known)
  find_path(${known} NAMES ${header} PATH_SUFFIXES x86_64-linux-gnu/openblas-pthread openblas)
  if(${known} AND NOT folder IN_LIST MOTLEY_GPU_ABSENT)
    target_include_directories(motley_flags INTERFACE ${${known}})
    if(library)
      target_link_libraries(motley_flags INTERFACE ${library})
    endif()
    set(${out} TRUE PARENT_SCOPE)
  else()
    message(STATUS "no ${header}: going on without it")
    target_include_directories(motley_flags INTERFACE ${CMAKE_SOURCE_DIR}/bench/gpu/absent/${folder})
    set(${out} FALSE PARENT_SCOPE)
  endif()
endfunction()
engine_only_needs(jansson.h jansson jansson has_jansson)
engine_only_needs(pcre2.h pcre2-8 pcre2 has_pcre2)
if(NOT has_pcre2) # adapters' files need both
  set(has_jansson FALSE)
endif()
engine_only_needs(zlib.h z zlib has_zlib)
engine_only_needs(cmocka.h cmocka cmocka has_cmocka)
engine_only_needs(cblas.h "" cblas has_cblas)
set(MOTLEY_GPU_CODE_PACKING "")
if(NOT has_zlib)
  set(MOTLEY_GPU_CODE_PACKING --stored)
endif()

# What of the rooms below the engine it is linked with.
set(common array buf clock err file log rand units)
set(model shape/arch shape/arch_table shape/blocks files/by_name shape/config files/dequantise files/dynamic_map files/file_kind shape/flat
  shape/footprint files/gguf shape/layer shape/layer_steps shape/layer_tensors files/nf4 files/nf4_avx2 files/nf4_stored files/pack
  shape/packing shape/rope files/source files/tensor_type shape/lora_sites)
if(has_jansson)
  list(APPEND common json)
  list(APPEND model shape/config_delta shape/config_experts shape/config_heads shape/config_keys shape/config_parse shape/config_plain shape/gguf_config files/hub_json shape/lora_match shape/lora_rules
    shape/names shape/nf4_skipped adapters/peft adapters/peft_config adapters/peft_experts adapters/peft_keys shape/generation_config files/safetensors files/safetensors_write files/source_local
    shape/tensors shape/tensors_fused)
endif()
file(GLOB_RECURSE engine ${CMAKE_SOURCE_DIR}/engine/*.c)
list(FILTER engine EXCLUDE REGEX "engine/profile[a-z_]*\\.c$") # it needs OpenSSL, for the key that agents ask by
if(NOT has_jansson)
  list(FILTER engine EXCLUDE REGEX "engine/gpu/(cards|health[a-z_]*)\\.c$")
endif()
list(TRANSFORM common PREPEND ${CMAKE_SOURCE_DIR}/common/)
list(TRANSFORM model PREPEND ${CMAKE_SOURCE_DIR}/model/)
set(sources ${common} ${model})
list(TRANSFORM sources APPEND .c)
add_library(motley_engine STATIC ${engine} ${sources})
target_link_libraries(motley_engine PUBLIC motley_flags)
include(${CMAKE_SOURCE_DIR}/model/options.cmake)
include(${CMAKE_SOURCE_DIR}/engine/options.cmake)

foreach(program gpu_check gpu_bench gpu_hour gpu_paper)
  add_executable(${program} ${CMAKE_SOURCE_DIR}/bench/gpu/${program}.c)
  target_link_libraries(${program} PRIVATE motley_engine)
  target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${program} PRIVATE MOTLEY_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
    GPU_HAS_JSON=$<BOOL:${has_jansson}>)
endforeach()
