/* Replaces jansson's header on a machine without it, with the names that the engine's headers and the list of
 * code objects use. The linker drops every function that would call jansson, and files that read JSON are not
 * compiled (cmake/engine_only.cmake). */
#pragma once

#include <stddef.h>

typedef struct json_t json_t;
typedef long long json_int_t;
#define JSON_INTEGER_FORMAT "lld"

json_t *json_array(void);
json_t *json_object(void);
json_t *json_string(const char *value);
json_t *json_integer(json_int_t value);
json_t *json_pack(const char *format, ...);
int json_array_append_new(json_t *array, json_t *value);
int json_object_set_new(json_t *object, const char *key, json_t *value);
void json_decref(json_t *json);
