/* Tests that openapi.yaml describes the routes that exist, with their parameters, and no others, and that its
 * schemas are those of the described documents (common/doc.h). `make schemas` writes these. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/request/route.h"
#include "api/schema_yaml.h"
#include "common/doc.h"
#include "common/yaml.h"
#include "model/job/spec.h"

extern const char api_openapi_text[];
extern const unsigned api_openapi_size;

static json_t *document;

static int setup(void **state)
{
    struct err err = {0};
    (void)state;
    document = yaml_parse(api_openapi_text, api_openapi_size, &err);
    if (!document)
        fprintf(stderr, "openapi.yaml: %s\n", err.text);
    return document ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(document);
    return 0;
}

/* Returns a parameter, or the one that its "$ref" refers to. */
static const json_t *resolve(const json_t *parameter)
{
    const char *reference = json_string_value(json_object_get(parameter, "$ref"));
    if (!reference)
        return parameter;
    return json_object_get(json_object_get(json_object_get(document, "components"), "parameters"),
                           strrchr(reference, '/') + 1);
}

static json_t *path_of(const struct route *route)
{
    return json_object_get(json_object_get(document, "paths"), route->pattern);
}

static json_t *operation_of(const struct route *route)
{
    char method[16];
    snprintf(method, sizeof(method), "%s", httpd_method_name(route->method));
    for (char *c = method; *c; c++)
        *c = (char)(*c | 0x20);
    return json_object_get(path_of(route), method);
}

static bool query_described(const json_t *list, const char *name, size_t size)
{
    size_t index;
    json_t *parameter;
    json_array_foreach ((json_t *)list, index, parameter) {
        const json_t *whole = resolve(parameter);
        const char *given = json_string_value(json_object_get(whole, "name"));
        const char *in = json_string_value(json_object_get(whole, "in"));
        if (given && in && strcmp(in, "query") == 0 && strlen(given) == size &&
            strncmp(given, name, size) == 0)
            return true;
    }
    return false;
}

static void every_route_is_described_with_its_parameters(void **state)
{
    (void)state;
    for (const struct route *route = route_table(); route->pattern; route++) {
        json_t *operation = operation_of(route);
        if (!operation)
            fail_msg("%s %s is not in openapi.yaml", httpd_method_name(route->method), route->pattern);
        bool open = json_is_array(json_object_get(operation, "security"));
        if (open != (route->scope == 0))
            fail_msg("%s %s: openapi.yaml has another idea of who may", httpd_method_name(route->method),
                     route->pattern);
        if ((route->body == BODY_JSON || route->body == BODY_STREAM) !=
                json_is_object(json_object_get(operation, "requestBody")) &&
            route->body != BODY_JSON_OPTIONAL)
            fail_msg("%s %s: openapi.yaml has another idea of its body", httpd_method_name(route->method),
                     route->pattern);
        for (const char *at = route->query; *at;) {
            size_t size = strcspn(at, " ");
            if (size && !query_described(json_object_get(operation, "parameters"), at, size))
                fail_msg("%s %s: the query parameter %.*s is not described", httpd_method_name(route->method),
                         route->pattern, (int)size, at);
            at += size + (at[size] == ' ');
        }
    }
}

static bool header_described(const json_t *list, const char *name)
{
    size_t index;
    json_t *parameter;
    json_array_foreach ((json_t *)list, index, parameter) {
        const json_t *whole = resolve(parameter);
        if (strcmp(json_string_value(json_object_get(whole, "in")), "header") == 0 &&
            strcmp(json_string_value(json_object_get(whole, "name")), name) == 0)
            return true;
    }
    return false;
}

static void every_post_of_somebody_known_takes_an_idempotency_key(void **state)
{
    (void)state;
    for (const struct route *route = route_table(); route->pattern; route++)
        if (route->method == HTTP_POST && route->scope &&
            !header_described(json_object_get(operation_of(route), "parameters"), "Idempotency-Key"))
            fail_msg("POST %s: openapi.yaml does not say that it takes an Idempotency-Key", route->pattern);
}

static void nothing_is_described_that_is_not_there(void **state)
{
    (void)state;
    const char *path, *key;
    json_t *item, *operation;
    json_object_foreach (json_object_get(document, "paths"), path, item) {
        json_object_foreach (item, key, operation) {
            if (strcmp(key, "parameters") == 0 || strcmp(key, "head") == 0)
                continue;
            bool found = false;
            for (const struct route *route = route_table(); route->pattern; route++)
                found |= strcmp(route->pattern, path) == 0 &&
                         strcasecmp(key, httpd_method_name(route->method)) == 0;
            if (!found)
                fail_msg("openapi.yaml describes %s %s, which is not there", key, path);
        }
    }
}

static const struct {
    const char *name;
    const struct doc *doc;
} described[] = {{"Specification", &spec_doc}};

/* Replaces the schemas in the file that MOTLEY_SCHEMAS names. Each begins with its name, four columns in, and
 * ends where the next one begins. */
static int schemas_write(const char *path)
{
    struct err err;
    FILE *out = fopen(path, "w");
    if (!out)
        return 1;
    for (const char *line = api_openapi_text, *next; *line; line = next) {
        next = strchr(line, '\n') + 1;
        for (size_t i = 0; i < sizeof(described) / sizeof(described[0]); i++) {
            const size_t size = strlen(described[i].name);
            if (strncmp(line, "    ", 4) != 0 || strncmp(line + 4, described[i].name, size) != 0 ||
                strncmp(line + 4 + size, ":\n      type:", 13) != 0)
                continue;
            json_t *schema = doc_schema(described[i].doc, &err);
            yaml_block(out, described[i].name, schema, 4);
            json_decref(schema);
            for (line = next; strncmp(line, "     ", 5) == 0; line = next)
                next = strchr(line, '\n') + 1;
        }
        fprintf(out, "%.*s", (int)(next - line), line);
    }
    return fclose(out) == 0 ? 0 : 1;
}

static void the_schemas_are_those_of_the_readers(void **state)
{
    const json_t *schemas = json_object_get(json_object_get(document, "components"), "schemas");
    struct err err;
    (void)state;
    for (size_t i = 0; i < sizeof(described) / sizeof(described[0]); i++) {
        json_t *schema = doc_schema(described[i].doc, &err);
        if (!json_equal(json_object_get(schemas, described[i].name), schema))
            fail_msg("%s is not what its reader takes: make schemas", described[i].name);
        json_decref(schema);
    }
}

int main(void)
{
    if (getenv("MOTLEY_SCHEMAS"))
        return schemas_write(getenv("MOTLEY_SCHEMAS"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_route_is_described_with_its_parameters),
        cmocka_unit_test(every_post_of_somebody_known_takes_an_idempotency_key),
        cmocka_unit_test(nothing_is_described_that_is_not_there),
        cmocka_unit_test(the_schemas_are_those_of_the_readers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
