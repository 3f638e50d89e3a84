/* Parses JSON as the files of published models contain it: config.json, tokenizer_config.json, indexes and so
 * on.
 *
 * Python writes these files and goes beyond JSON: it writes NaN, Infinity and -Infinity as bare words, and
 * whole numbers of any length (a tokenizer's model_max_length of 1000000000000000019884624838656 is
 * int(1e30)). Here NaN becomes the text "NaN", which every key with a meaning refuses (Python treats NaN as
 * true and computes with it). An infinity becomes the largest double of its sign. A whole number beyond 64
 * bits becomes the nearest double, or the largest. When a key occurs twice, its last value counts. Everything
 * else is refused as json_parse_limited() refuses it. */
#ifndef MOTLEY_MODEL_FILES_HUB_JSON_H
#define MOTLEY_MODEL_FILES_HUB_JSON_H

#include "common/json.h"

/* Parses like json_parse_limited(), which documents the limits and errors. Returns a new value, or NULL. */
json_t *hub_json_parse(const char *text, size_t size, unsigned depth_max, struct err *err);

/* Parses settings (config.json), of which only numbers and known words are read. U+0000 and halves of
 * surrogate pairs, which occur only in keys and texts that nobody reads, become U+FFFD, which is in no known
 * word. */
json_t *hub_json_parse_settings(const char *text, size_t size, unsigned depth_max, struct err *err);

#endif
