/* Code objects of the kernels inside this build. PTX is translated by NVIDIA's drivers for the card at hand
 * and any newer one; AMD's objects are each for one architecture. They are compiled from engine/gpu/kernels
 * by the compilers of the building machine (cmake/gpu_code.cmake) and compressed with zlib. */
#ifndef MOTLEY_ENGINE_GPU_CODE_H
#define MOTLEY_ENGINE_GPU_CODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "engine/gpu/driver.h"

/* The kernels' code for one architecture that this release supports, whether this build contains it or not.
 */
struct gpu_code {
    const char *kind; /* "cuda" or "hip" */
    const char *arch; /* such as "sm_75" or "gfx90a" */
    const char *form; /* such as "ptx70" (PTX of version 7.0) or "elf4" (a code object of version 4), read
                         from the object when it was packed */
    uint32_t matrix;  /* GPU_MATRIX_… (driver.h): the types that its kernels multiply with matrix units */
    const uint8_t *packed; /* NULL: this build does not contain it, for the reason in `why` */
    uint32_t packed_bytes, bytes;
    const uint8_t *look; /* kernels/look.cu, packed likewise */
    uint32_t look_packed_bytes, look_bytes;
    const char *why;
};
extern const struct gpu_code gpu_codes[];
extern const uint32_t gpu_code_count;
extern const char *const gpu_code_compiler; /* such as "clang 14.0.6" */

/* The code object that a card uses: the newest PTX that is not newer than the card, or the object for AMD's
 * architecture. NULL with ERR_UNSUPPORTED: there is none; the text names the targets that there are. */
const struct gpu_code *gpu_code_choose(const char *kind, const char *arch, struct err *err);

/* Load and decompress the code for a card of this architecture, or with `look` the few kernels that show
 * whether the card runs our code at all. *image is new and must be freed when the
 * module made from it is unloaded; a NUL follows its bytes. *matrix gets its GPU_MATRIX_…. ERR_UNSUPPORTED:
 * this build has no code for the card; the text names what it has. */
int gpu_code_load(const char *kind, const char *arch, bool look, void **image, uint64_t *bytes,
                  uint32_t *matrix, struct err *err);

/* Returns new {"compiler", "objects": [{"kind", "arch", "cards", "form", "matrix", "bytes", "packed_bytes",
 * "why"}]}. "cards" describes in words which cards use the object, "matrix" lists the 16-bit types that its
 * kernels multiply with matrix units, and "why" (else null) is the reason why this build does not contain it.
 * NULL: ERR_NOMEM. */
json_t *gpu_code_list(struct err *err);

#endif
