/* Code objects of the kernels inside this build: PTX, which NVIDIA's drivers translate for the card at hand
 * and any newer one, and AMD's, each for one architecture. Compiled from engine/gpu/kernels by what compilers
 * the building machine had (cmake/gpu_code.cmake), packed with zlib. */
#ifndef MOTLEY_ENGINE_GPU_CODE_H
#define MOTLEY_ENGINE_GPU_CODE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/gpu/driver.h"

/* A target of this release, compiled or not. */
struct gpu_code {
    const char *kind;      /* "cuda", "hip" */
    const char *arch;      /* "sm_75", "gfx90a" */
    const char *form;      /* "ptx63": PTX of that version; "elf" */
    uint32_t matrix;       /* GPU_MATRIX_… (driver.h) that its kernels have */
    const uint8_t *packed; /* NULL: not in this build, for the reason `why` */
    uint32_t packed_bytes, bytes;
    const char *why;
};
extern const struct gpu_code gpu_codes[];
extern const uint32_t gpu_code_count;
extern const char *const gpu_code_compiler; /* "clang 14.0.6" */

/* Which of them a card takes: of PTX the newest that is not above it, of the others its own. NULL: none,
 * ERR_UNSUPPORTED naming those that there are. */
const struct gpu_code *gpu_code_choose(const char *kind, const char *arch, struct err *err);

/* The code for a card of this architecture, unpacked: new in *image, to be freed when the module made of it
 * is unloaded; behind its bytes stands a NUL. *matrix: its GPU_MATRIX_…. ERR_UNSUPPORTED: this build has
 * none, naming those that it has. */
int gpu_code_load(const char *kind, const char *arch, void **image, uint64_t *bytes, uint32_t *matrix,
                  struct err *err);

/* New {"compiler", "objects": [{"kind", "arch", "cards", "form", "matrix", "bytes", "packed_bytes", "why"}]}:
 * "cards" says in words which of them take it, "matrix" which 16-bit types its kernels multiply by matrix
 * units, "why" (else null) why one is not inside. NULL: ERR_NOMEM. */
json_t *gpu_code_list(struct err *err);

#endif
