/* Unpacking where the CPU has SSE4.2 (engine/options.cmake). */
#include "model/nf4.h"

#define UNPACKERS unpackers_sse42
#define UNPACK_NF4 nf4_dequantise

#include "engine/cpu/unpack_body.h"
