/* Writes a JSON schema as openapi.yaml has it: what fits on a line in braces, the rest indented. */
#ifndef MOTLEY_TEST_API_SCHEMA_YAML_H
#define MOTLEY_TEST_API_SCHEMA_YAML_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { YAML_LINE_MAX = 200 };

static void yaml_scalar(FILE *out, const json_t *value)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-0123456789";
    const char *text = json_string_value(value);
    char number[40];
    if (json_is_real(value)) { /* YAML 1.1 takes 1e-06 for a text */
        snprintf(number, sizeof(number), "%.15g", json_real_value(value));
        char *power = strchr(number, '.') ? NULL : strchr(number, 'e');
        fprintf(out, "%.*s%s%s", power ? (int)(power - number) : 40, number, power ? ".0" : "",
                power ? power : "");
    } else if (text && *text > '9' && strspn(text, plain) == strlen(text) && strcmp(text, "null") != 0) {
        fputs(text, out);
    } else if (text && !strchr(text, '\'')) {
        fprintf(out, "'%s'", text);
    } else {
        json_dumpf(value, out, JSON_ENCODE_ANY);
    }
}

static void yaml_flow(FILE *out, const json_t *value)
{
    const char *key, *comma = "";
    json_t *item;
    size_t index;
    if (json_is_object(value)) {
        fputc('{', out);
        json_object_foreach ((json_t *)value, key, item) {
            fprintf(out, strpbrk(key, " :") ? "%s'%s': " : "%s%s: ", comma, key);
            yaml_flow(out, item);
            comma = ", ";
        }
        fputc('}', out);
    } else if (json_is_array(value)) {
        fputc('[', out);
        json_array_foreach ((json_t *)value, index, item) {
            fputs(comma, out);
            yaml_flow(out, item);
            comma = ", ";
        }
        fputc(']', out);
    } else {
        yaml_scalar(out, value);
    }
}

static void yaml_block(FILE *out, const char *key, const json_t *value, int indent)
{
    char *line = NULL;
    size_t size = 0;
    FILE *flow = open_memstream(&line, &size);
    yaml_flow(flow, value);
    fclose(flow);
    fprintf(out, "%*s%s:", indent, "", key);
    if (size + (size_t)indent + strlen(key) < YAML_LINE_MAX || !json_is_object(value)) {
        fprintf(out, " %s\n", line);
    } else {
        const char *inner;
        json_t *item;
        fputc('\n', out);
        json_object_foreach ((json_t *)value, inner, item)
            yaml_block(out, inner, item, indent + 2);
    }
    free(line);
}

#endif
