/* JSON as the files of published models hold it: config.json, tokenizer_config.json, indexes and the like.
 *
 * They are written by Python, which goes beyond JSON: NaN, Infinity and -Infinity stand for themselves, and
 * whole numbers have any length (a tokenizer's model_max_length of 1000000000000000019884624838656 is
 * int(1e30)). Here NaN becomes the text "NaN", which no key with a
 * meaning takes (Python takes it for true, and computes with it), an infinity the largest double of its sign,
 * and a whole number beyond 64 bits a real one, the nearest double or the largest; of a key that stands twice
 * the last value counts. All else is refused as json_parse_limited() refuses it.
 */
#ifndef MOTLEY_MODEL_FILES_HUB_JSON_H
#define MOTLEY_MODEL_FILES_HUB_JSON_H

#include "common/json.h"

/* As json_parse_limited(), which also says what the limits and errors are. Returns new, or NULL. */
json_t *hub_json_parse(const char *text, size_t size, unsigned depth_max, struct err *err);

/* For settings (config.json), of which only numbers and known words are read: U+0000 and halves of surrogate
 * pairs, which stand in keys and texts that nobody reads, become U+FFFD, which no known word has. */
json_t *hub_json_parse_settings(const char *text, size_t size, unsigned depth_max, struct err *err);

#endif
