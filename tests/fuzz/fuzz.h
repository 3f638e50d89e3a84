/* Functions that the fuzz targets share: parsing with the product's own limits, and mutations of documents.
 *
 * A target is one fuzz_x.c with LLVMFuzzerTestOneInput. With libFuzzer (make fuzz) json_mutate.c mutates
 * documents, half of the time, so that inputs stay valid for the parser. Without libFuzzer, replay.c runs
 * files through the same function (make test replays the corpus).
 */
#ifndef MOTLEY_TEST_FUZZ_H
#define MOTLEY_TEST_FUZZ_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define FUZZ_BYTES_MAX 65536u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t size_max, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t size_max);

/* Returns new, or NULL when the text is no document. */
json_t *fuzz_parse(const uint8_t *data, size_t size);
/* Return the config.json of a small model and a specification for it; new. */
json_t *fuzz_config(void);
json_t *fuzz_spec(void);

#endif
