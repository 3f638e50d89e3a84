/* Reads NF4 tensors as bitsandbytes 0.4x to 0.5x saves them in a folder. Beside the codes, which have the
 * tensor's name X, there are X.absmax (fp32, or u8 with X.nested_absmax, one fp32 for 256, and an offset in
 * the JSON text X.quant_state.bitsandbytes__nf4) and the tables X.quant_map and X.nested_quant_map. Sizes are
 * checked when the model is opened, contents when a tensor is read. Blocks other than 64 and 256, and tables
 * other than those that bitsandbytes has always written, are ERR_UNSUPPORTED. */
#ifndef MOTLEY_MODEL_FILES_NF4_STORED_H
#define MOTLEY_MODEL_FILES_NF4_STORED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "model/files/source.h"

/* A range of bytes in a file of the source; size 0 means that the part is absent. */
struct nf4_place {
    uint32_t file;
    uint64_t offset, size;
};

enum nf4_part { NF4_ABSMAX, NF4_NESTED, NF4_MAP, NF4_NESTED_MAP, NF4_STATE, NF4_PARTS };

struct nf4_places {
    struct nf4_place codes, parts[NF4_PARTS];
    uint64_t rows, columns; /* shape of the matrix, set by nf4_stored_shape() */
};

/* The suffix that each part adds to the tensor's name (".absmax" …). An fp4 tensor has another suffix for
 * NF4_STATE. */
extern const char *const nf4_suffixes[NF4_PARTS];

/* Returns true when the absmax are themselves quantised to 8 bits. */
static inline bool nf4_stored_nested(const struct nf4_places *places)
{
    return places->parts[NF4_NESTED].size > 0;
}

/* Checks the sizes of all parts of a matrix of this shape. Errors: ERR_INVALID, ERR_UNSUPPORTED. */
int nf4_stored_shape(struct nf4_places *places, uint64_t rows, uint64_t columns, struct err *err);

/* Reads values [begin, begin + count) as codes, unchanged, and absmax[nf4_blocks(count)] in fp32, restored
 * where they are quantised. begin is a multiple of 64, and so is count unless the matrix ends there. */
int nf4_stored_codes(struct model_source *source, const struct nf4_places *places, uint64_t begin,
                     uint64_t count, uint8_t *codes, float *absmax, struct err *err);
/* Reads the quantised absmax unchanged: codes[blocks], scales[nf4_scales()], of which the first is the
 * offset. */
int nf4_stored_scales(struct model_source *source, const struct nf4_places *places, uint8_t *codes,
                      float *scales, struct err *err);
/* Reads values [begin, begin + count) as fp32; begin and count may be any. */
int nf4_stored_values(struct model_source *source, const struct nf4_places *places, uint64_t begin,
                      uint64_t count, float *values, struct err *err);

#endif
