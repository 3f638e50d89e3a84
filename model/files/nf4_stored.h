/* NF4 as a folder of bitsandbytes 0.4x to 0.5x has it beside a tensor X: X the codes; X.absmax, fp32, or u8
 * with X.nested_absmax (fp32, one for 256) and the offset in X.quant_state.bitsandbytes__nf4 (JSON); the
 * tables X.quant_map and X.nested_quant_map. What a header says is checked when the model is opened, the rest
 * when a tensor is read: blocks of 64 and 256 and the tables that bitsandbytes has always written, or
 * ERR_UNSUPPORTED.
 */
#ifndef MOTLEY_MODEL_FILES_NF4_STORED_H
#define MOTLEY_MODEL_FILES_NF4_STORED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/files/source.h"

/* A run of bytes of a file of the source; size 0: not there. */
struct nf4_place {
    uint32_t file;
    uint64_t offset, size;
};

enum nf4_part { NF4_ABSMAX, NF4_NESTED, NF4_MAP, NF4_NESTED_MAP, NF4_STATE, NF4_PARTS };

struct nf4_places {
    struct nf4_place codes, parts[NF4_PARTS];
    uint64_t rows, columns; /* of the matrix; set by nf4_stored_shape() */
};

/* What comes behind a tensor's name for each part, ".absmax" …; with fp4 the last has another. */
extern const char *const nf4_suffixes[NF4_PARTS];

/* Scales are themselves in 8 bits. */
static inline bool nf4_stored_nested(const struct nf4_places *places)
{
    return places->parts[NF4_NESTED].size > 0;
}

/* Check the sizes of all parts of a matrix of this shape. ERR_INVALID, ERR_UNSUPPORTED. */
int nf4_stored_shape(struct nf4_places *places, uint64_t rows, uint64_t columns, struct err *err);

/* Values [begin, begin + count), begin a multiple of 64 and count too unless the matrix ends there: codes as
 * they are, absmax[nf4_blocks(count)] in fp32, unnested where they are nested. */
int nf4_stored_codes(struct model_source *source, const struct nf4_places *places, uint64_t begin,
                     uint64_t count, uint8_t *codes, float *absmax, struct err *err);
/* The nested scales as they are: codes[blocks], scales[nf4_scales()], the offset first. */
int nf4_stored_scales(struct model_source *source, const struct nf4_places *places, uint8_t *codes,
                      float *scales, struct err *err);
/* Any values in fp32. */
int nf4_stored_values(struct model_source *source, const struct nf4_places *places, uint64_t begin,
                      uint64_t count, float *values, struct err *err);

#endif
