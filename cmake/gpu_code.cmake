# Code objects of the GPU kernels, for every card whose compiler is here: packed (zlib) into engine/gpu/code.h's
# table. A machine without clang, its linker or Python builds all the same: the table says what is lacking.
option(MOTLEY_GPU_CODE "compile the GPU kernels for the cards whose compilers are here" ON)
set(MOTLEY_GPU_TARGETS ".*" CACHE STRING "regular expression: the architectures that code is compiled for")

# Architecture; the version of its form, which decides how old a driver may be (PTX 7.0 is CUDA 11.0's, code objects of
# version 4 are ROCm 4.1's); and the matrix units that kernels/fragment.h uses there. tools/gpu_code.py reads the
# version from what was compiled. A card takes the last PTX that is not above it, translated by its driver: there is
# one for each text that differs, and those differ by the matrix units alone.
set(gpu_code_targets
  cuda:sm_52:ptx60:none cuda:sm_75:ptx65:f16 cuda:sm_80:ptx70:f16+bf16
  hip:gfx900:elf4:none hip:gfx906:elf4:none hip:gfx908:elf4:f16+bf16 hip:gfx90a:elf4:f16+bf16
  hip:gfx942:elf4:f16+bf16 hip:gfx950:elf4:f16+bf16
  hip:gfx1010:elf4:none hip:gfx1030:elf4:none hip:gfx1031:elf4:none hip:gfx1032:elf4:none hip:gfx1033:elf4:none
  hip:gfx1034:elf4:none hip:gfx1035:elf4:none hip:gfx1036:elf4:none
  hip:gfx1100:elf4:f16+bf16 hip:gfx1101:elf4:f16+bf16 hip:gfx1102:elf4:f16+bf16 hip:gfx1103:elf4:f16+bf16
  hip:gfx1150:elf4:f16+bf16 hip:gfx1151:elf4:f16+bf16 hip:gfx1152:elf4:f16+bf16
  hip:gfx1200:elf4:f16+bf16 hip:gfx1201:elf4:f16+bf16)
set(gpu_code_source ${CMAKE_SOURCE_DIR}/engine/gpu/kernels/all.cu)
set(gpu_code_look ${CMAKE_SOURCE_DIR}/engine/gpu/kernels/look.cu)
set(gpu_code_folder ${CMAKE_BINARY_DIR}/gpu_code)
set(gpu_code_c ${gpu_code_folder}/objects.c)
file(MAKE_DIRECTORY ${gpu_code_folder})

find_program(GPU_CLANG NAMES clang-19 clang-22 clang-21 clang-20 clang-18 clang-17 clang-16 clang-15 clang-14 clang NO_CACHE) # a later one may come
find_program(GPU_PYTHON3 python3)
# Where clang is not, CUDA's own compiler does for NVIDIA's cards from sm_75 on, with drivers as new as itself.
find_program(GPU_NVCC nvcc PATHS /usr/local/cuda/bin)

# No SDK: the dialect of the kernels needs the compiler alone. Nothing is contracted unless written so.
function(gpu_code_command kind arch form out)
  if(NOT GPU_CLANG AND GPU_NVCC AND kind STREQUAL "cuda")
    string(REPLACE "sm_" "compute_" virtual ${arch})
    set(${out} ${GPU_NVCC} -ptx -arch=${virtual} -O3 --fmad=false -diag-suppress=20199 -I${CMAKE_SOURCE_DIR}
      -include ${CMAKE_SOURCE_DIR}/engine/gpu/kernels/dialect_nvcc.h PARENT_SCOPE)
    return()
  endif()
  set(command ${GPU_CLANG} --cuda-device-only -O3 -ffp-contract=off -Wall -Wno-unknown-cuda-version -Wno-unused-function
    -I${CMAKE_SOURCE_DIR})
  if(CMAKE_COMPILE_WARNING_AS_ERROR)
    list(APPEND command -Werror)
  endif()
  if(kind STREQUAL "cuda")
    list(APPEND command -x cuda -nocudainc -nocudalib --cuda-gpu-arch=${arch} --cuda-feature=+${form} -S)
  else()
    list(APPEND command -x hip -nogpuinc -nogpulib --no-gpu-bundle-output --offload-arch=${arch}
      -mcode-object-version=4 -c)
  endif()
  set(${out} ${command} PARENT_SCOPE)
endfunction()

# Why there is no code for a target; "" where there is. Tried once for each compiler and text of this file, with an
# empty kernel (does it know the card, and has it a linker?) and with the kernels themselves.
function(gpu_code_probe kind arch form out)
  set(known GPU_CODE_${kind}_${arch})
  if(NOT DEFINED ${known} OR NOT "${GPU_CODE_PROBED}" STREQUAL "${gpu_code_probing}")
    set(why "")
    if(NOT MOTLEY_GPU_CODE)
      set(why "turned off: MOTLEY_GPU_CODE")
    elseif(NOT GPU_PYTHON3 OR (NOT GPU_CLANG AND NOT (GPU_NVCC AND kind STREQUAL "cuda")))
      set(why "no clang or no python3 when this was built")
    else()
      file(WRITE ${gpu_code_folder}/probe.cu "__attribute__((global)) void probe() {}\n")
      gpu_code_command(${kind} ${arch} ${form} command)
      execute_process(COMMAND ${command} -o ${gpu_code_folder}/probe.out ${gpu_code_folder}/probe.cu
        RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE said)
      if(NOT failed AND GPU_CLANG) # each word of the kernels' dialect, read but not translated: 0.2 s
        execute_process(COMMAND ${command} -fsyntax-only -Wno-unused-command-line-argument ${gpu_code_source}
          RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE said)
      endif()
      if(failed)
        string(REGEX REPLACE "\n.*" "" said "${said}")
        string(REGEX REPLACE "[\"\\;]" "" why "${said}")
        string(SUBSTRING "${why}" 0 160 why)
        if(why MATCHES "invalid target ID|unsupported CUDA gpu architecture")
          set(why "${gpu_code_compiler} does not know ${arch}: a later one does")
        endif()
      endif()
    endif()
    set(${known} "${why}" CACHE INTERNAL "why there is no code for ${arch}" FORCE)
  endif()
  set(${out} "${${known}}" PARENT_SCOPE)
endfunction()

file(SHA256 ${CMAKE_CURRENT_LIST_FILE} gpu_code_probing)
string(PREPEND gpu_code_probing "${GPU_CLANG} ${GPU_NVCC} ")
if(NOT MOTLEY_GPU_CODE OR NOT "${GPU_CODE_SETTING}" STREQUAL "${MOTLEY_GPU_CODE}")
  unset(GPU_CODE_PROBED CACHE)
endif()
set(gpu_code_compiler "none")
if(GPU_CLANG)
  execute_process(COMMAND ${GPU_CLANG} -dumpversion OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(gpu_code_compiler "clang ${version}")
elseif(GPU_NVCC)
  set(gpu_code_compiler "nvcc")
endif()
set(gpu_code_files)
set(gpu_code_words)
file(GLOB gpu_code_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/engine/gpu/kernels/*.h)
foreach(target ${gpu_code_targets})
  string(REPLACE ":" ";" parts ${target})
  list(GET parts 0 kind)
  list(GET parts 1 arch)
  list(GET parts 2 form)
  list(GET parts 3 matrix)
  gpu_code_probe(${kind} ${arch} ${form} why)
  if(why STREQUAL "" AND NOT arch MATCHES "^(${MOTLEY_GPU_TARGETS})$")
    set(why "left out when this was built (MOTLEY_GPU_TARGETS): `make build` compiles all")
  endif()
  if(why STREQUAL "")
    set(object ${gpu_code_folder}/${arch})
    gpu_code_command(${kind} ${arch} ${form} command)
    add_custom_command(OUTPUT ${object} DEPENDS ${gpu_code_source} ${gpu_code_headers} VERBATIM
      COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${command} -o ${object} ${gpu_code_source}
      COMMENT "Compiling GPU kernels for ${arch}")
    add_custom_command(OUTPUT ${object}.look DEPENDS ${gpu_code_look} ${gpu_code_headers} VERBATIM
      COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${command} -o ${object}.look ${gpu_code_look})
    list(APPEND gpu_code_files ${object} ${object}.look)
    list(APPEND gpu_code_words --object ${kind} ${arch} ${form} ${matrix} ${object})
  else()
    list(APPEND gpu_code_words --absent ${kind} ${arch} ${form} ${why})
  endif()
endforeach()
set(GPU_CODE_PROBED "${gpu_code_probing}" CACHE INTERNAL "")
set(GPU_CODE_SETTING "${MOTLEY_GPU_CODE}" CACHE INTERNAL "")

if(GPU_PYTHON3)
  add_custom_command(OUTPUT ${gpu_code_c} DEPENDS ${gpu_code_files} ${CMAKE_SOURCE_DIR}/tools/gpu_code.py VERBATIM
    COMMAND ${GPU_PYTHON3} ${CMAKE_SOURCE_DIR}/tools/gpu_code.py --out ${gpu_code_c} --compiler ${gpu_code_compiler}
      ${MOTLEY_GPU_CODE_PACKING} ${gpu_code_words}
    COMMENT "Packing GPU code objects")
else()
  file(WRITE ${gpu_code_c} "#include \"engine/gpu/code.h\"\nconst struct gpu_code gpu_codes[1] = {{.kind = \"cuda\", .arch = \"any\", .form = \"\", .why = \"no python3 when this was built\"}};\nconst uint32_t gpu_code_count = 1;\nconst char *const gpu_code_compiler = \"none\";\n")
endif()
