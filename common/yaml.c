/* Converts libyaml's events to json_t, with our own limits. Scalars follow the core schema of YAML 1.2
 * (section 10.3.2) if they are plain; quoted and block scalars are always text. */
#include "common/yaml.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct yaml_loader {
    yaml_parser_t parser;
    const char *text; /* the text being parsed, borrowed */
    size_t size;
    unsigned nodes;
    struct err *err;
};

static json_t *node_load(struct yaml_loader *loader, yaml_event_t *event, unsigned depth);

static json_t *load_fail(struct yaml_loader *loader, const yaml_mark_t *mark, const char *what)
{
    err_set(loader->err, ERR_INVALID, "no valid YAML: line %zu column %zu: %s", mark->line + 1,
            mark->column + 1, what);
    return NULL;
}

/* Whether there is a tab at a mark or in the indentation in front of it. */
static bool tab_at(const struct yaml_loader *loader, const yaml_mark_t *mark)
{
    size_t at = mark->index < loader->size ? mark->index : loader->size;
    bool tab = at < loader->size && loader->text[at] == '\t';
    while (!tab && at > 0 && (loader->text[at - 1] == ' ' || loader->text[at - 1] == '\t'))
        tab = loader->text[--at] == '\t';
    return tab;
}

static bool event_next(struct yaml_loader *loader, yaml_event_t *event)
{
    if (yaml_parser_parse(&loader->parser, event))
        return true;
    const char *problem = !loader->parser.problem ? "unreadable" : loader->parser.problem;
    if (loader->parser.error == YAML_SCANNER_ERROR && tab_at(loader, &loader->parser.problem_mark))
        problem = "a tab stands here; YAML is indented with spaces";
    load_fail(loader, &loader->parser.problem_mark, problem);
    return false;
}

/* Converts digits of a base; strtoll alone would accept spaces and signs. */
static json_t *integer_load(const char *text, const char *digits, int base)
{
    const char *first = text + (base == 10 && (*text == '-' || *text == '+'));
    if (*first == '\0' || first[strspn(first, digits)] != '\0')
        return NULL;
    errno = 0;
    long long value = strtoll(text, NULL, base);
    return errno == 0 ? json_integer(value) : NULL;
}

/* Whether a text matches [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )? */
static bool is_real(const char *text)
{
    text += *text == '-' || *text == '+';
    size_t whole = strspn(text, "0123456789");
    text += whole;
    size_t fraction = 0;
    if (*text == '.') {
        fraction = strspn(text + 1, "0123456789");
        text += 1 + fraction;
    }
    if (whole + fraction == 0)
        return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        text += *text == '-' || *text == '+';
        size_t exponent = strspn(text, "0123456789");
        text += exponent;
        return exponent > 0 && *text == '\0';
    }
    return *text == '\0';
}

static bool yaml_is_one_of(const char *text, const char *a, const char *b, const char *c)
{
    return strcmp(text, a) == 0 || strcmp(text, b) == 0 || strcmp(text, c) == 0;
}

/* Whether a text is a number that YAML 1.1 reads as octal and YAML 1.2 as decimal. */
static bool is_octal_or_not(const char *text)
{
    text += *text == '-' || *text == '+';
    return text[0] == '0' && text[1] != '\0' && text[strspn(text, "0123456789")] == '\0';
}

static json_t *plain_load(struct yaml_loader *loader, const char *text, size_t size, const yaml_mark_t *mark)
{
    if (size == 0 || strcmp(text, "~") == 0 || yaml_is_one_of(text, "null", "Null", "NULL"))
        return json_null();
    if (yaml_is_one_of(text, "true", "True", "TRUE"))
        return json_true();
    if (yaml_is_one_of(text, "false", "False", "FALSE"))
        return json_false();
    const char *bare = text + (*text == '-' || *text == '+');
    if (yaml_is_one_of(bare, ".inf", ".Inf", ".INF") || yaml_is_one_of(text, ".nan", ".NaN", ".NAN"))
        return load_fail(loader, mark, "numbers must be finite");
    if (is_octal_or_not(text)) {
        return load_fail(loader, mark,
                         "a number that begins with 0 is octal in YAML 1.1 and decimal in YAML 1.2; write "
                         "it without the 0, or as a text in quotes");
    }
    json_t *value = NULL;
    if (strncmp(text, "0x", 2) == 0)
        value = integer_load(text + 2, "0123456789abcdefABCDEF", 16);
    else if (strncmp(text, "0o", 2) == 0)
        value = integer_load(text + 2, "01234567", 8);
    else
        value = integer_load(text, "0123456789", 10);
    if (!value && is_real(text)) {
        double number = strtod(text, NULL);
        return isfinite(number) ? json_real(number) : load_fail(loader, mark, "a number is too big");
    }
    return value ? value : json_stringn(text, size);
}

static json_t *scalar_load(struct yaml_loader *loader, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t size = event->data.scalar.length;
    const char *tag = (const char *)event->data.scalar.tag;
    if (event->data.scalar.anchor)
        return load_fail(loader, &event->start_mark, "anchors are not used here");
    if (tag && strcmp(tag, YAML_STR_TAG) != 0)
        return load_fail(loader, &event->start_mark, "tags are not used here");
    if (strlen(text) != size)
        return load_fail(loader, &event->start_mark, "a text contains U+0000");
    if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !tag)
        return plain_load(loader, text, size, &event->start_mark);
    json_t *value = json_stringn(text, size);
    return value ? value : load_fail(loader, &event->start_mark, "a text is not valid UTF-8");
}

static json_t *sequence_load(struct yaml_loader *loader, unsigned depth)
{
    json_t *array = json_array();
    for (;;) {
        yaml_event_t event;
        if (!event_next(loader, &event))
            break;
        if (event.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&event);
            return array;
        }
        json_t *value = node_load(loader, &event, depth + 1);
        yaml_event_delete(&event);
        if (!value || json_array_append_new(array, value) < 0)
            break;
    }
    json_decref(array);
    return NULL;
}

/* Loads one key and its value into 'object'; 'event' is the key's. */
static bool entry_load(struct yaml_loader *loader, yaml_event_t *event, json_t *object, unsigned depth)
{
    if (event->type != YAML_SCALAR_EVENT) {
        load_fail(loader, &event->start_mark, "a key must be a plain text");
        return false;
    }
    const char *key = (const char *)event->data.scalar.value;
    if (event->data.scalar.anchor || event->data.scalar.tag || strlen(key) != event->data.scalar.length) {
        load_fail(loader, &event->start_mark, "a key must be a plain text");
        return false;
    }
    if (json_object_get(object, key)) {
        char what[120];
        snprintf(what, sizeof(what), "the key \"%.60s\" appears twice", key);
        load_fail(loader, &event->start_mark, what);
        return false;
    }
    yaml_event_t next;
    if (!event_next(loader, &next))
        return false;
    json_t *value = node_load(loader, &next, depth + 1);
    yaml_event_delete(&next);
    if (!value)
        return false;
    if (json_object_set_new(object, key, value) < 0) {
        load_fail(loader, &event->start_mark, "a key is not valid UTF-8");
        return false;
    }
    return true;
}

static json_t *mapping_load(struct yaml_loader *loader, unsigned depth)
{
    json_t *object = json_object();
    for (;;) {
        yaml_event_t event;
        if (!event_next(loader, &event))
            break;
        bool end = event.type == YAML_MAPPING_END_EVENT;
        bool good = end || entry_load(loader, &event, object, depth);
        yaml_event_delete(&event);
        if (end)
            return object;
        if (!good)
            break;
    }
    json_decref(object);
    return NULL;
}

static json_t *node_load(struct yaml_loader *loader, yaml_event_t *event, unsigned depth)
{
    if (depth > YAML_DEPTH_MAX || ++loader->nodes > YAML_NODES_MAX) {
        err_set(loader->err, ERR_TOO_BIG, "YAML line %zu: over the limits of %d levels and %d values",
                event->start_mark.line + 1, YAML_DEPTH_MAX, YAML_NODES_MAX);
        return NULL;
    }
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return scalar_load(loader, event);
    case YAML_SEQUENCE_START_EVENT:
        if (event->data.sequence_start.anchor || event->data.sequence_start.tag)
            return load_fail(loader, &event->start_mark, "anchors and tags are not used here");
        return sequence_load(loader, depth);
    case YAML_MAPPING_START_EVENT:
        if (event->data.mapping_start.anchor || event->data.mapping_start.tag)
            return load_fail(loader, &event->start_mark, "anchors and tags are not used here");
        return mapping_load(loader, depth);
    case YAML_ALIAS_EVENT:
        return load_fail(loader, &event->start_mark, "aliases are not used here");
    default:
        return load_fail(loader, &event->start_mark, "a value is missing");
    }
}

/* Reads the next event, which must be of 'type' or 'other'; false with err on failure. */
static bool event_expect(struct yaml_loader *loader, yaml_event_type_t type, yaml_event_type_t other,
                         yaml_event_type_t *found)
{
    yaml_event_t event;
    if (!event_next(loader, &event))
        return false;
    *found = event.type;
    yaml_mark_t mark = event.start_mark;
    yaml_event_delete(&event);
    if (*found != type && *found != other) {
        load_fail(loader, &mark, "one document is expected");
        return false;
    }
    return true;
}

static json_t *yaml_document_load(struct yaml_loader *loader)
{
    yaml_event_type_t found;
    if (!event_expect(loader, YAML_STREAM_START_EVENT, YAML_NO_EVENT, &found) ||
        !event_expect(loader, YAML_DOCUMENT_START_EVENT, YAML_STREAM_END_EVENT, &found)) {
        return NULL;
    }
    if (found == YAML_STREAM_END_EVENT)
        return json_null();
    yaml_event_t event;
    if (!event_next(loader, &event))
        return NULL;
    json_t *value = node_load(loader, &event, 0);
    yaml_event_delete(&event);
    if (value && (!event_expect(loader, YAML_DOCUMENT_END_EVENT, YAML_NO_EVENT, &found) ||
                  !event_expect(loader, YAML_STREAM_END_EVENT, YAML_NO_EVENT, &found))) {
        json_decref(value);
        return NULL;
    }
    return value;
}

/* Refuses characters that end a line in YAML 1.1, which libyaml follows, and are ordinary in YAML 1.2. */
static int check_line_ends(const char *text, size_t size, struct err *err)
{
    static const struct {
        const char *bytes, *name, *escape;
    } ends[] = {
        {"\xc2\x85", "U+0085", "\\N"}, {"\xe2\x80\xa8", "U+2028", "\\L"}, {"\xe2\x80\xa9", "U+2029", "\\P"}};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const char *found = memmem(text, size, ends[i].bytes, strlen(ends[i].bytes));
        size_t line = 1;
        for (const char *at = text; found && at < found; at++)
            line += *at == '\n';
        if (found)
            return err_set(err, ERR_INVALID,
                           "no valid YAML: line %zu: %s ends a line in YAML 1.1 and is a character in YAML "
                           "1.2; write it as %s in double quotes, or give the file as JSON",
                           line, ends[i].name, ends[i].escape);
    }
    return 0;
}

json_t *yaml_parse(const char *text, size_t size, struct err *err)
{
    if (size > YAML_BYTES_MAX) {
        err_set(err, ERR_TOO_BIG, "a YAML text of %zu bytes, the limit is %d", size, YAML_BYTES_MAX);
        return NULL;
    }
    if (check_line_ends(text, size, err) < 0)
        return NULL;
    struct yaml_loader loader = {.text = text, .size = size, .err = err};
    if (!yaml_parser_initialize(&loader.parser)) {
        err_set(err, ERR_NOMEM, "no memory to parse YAML");
        return NULL;
    }
    yaml_parser_set_input_string(&loader.parser, (const unsigned char *)text, size);
    yaml_parser_set_encoding(&loader.parser, YAML_UTF8_ENCODING);
    json_t *value = yaml_document_load(&loader);
    yaml_parser_delete(&loader.parser);
    return value;
}
