/* Parses a template's text into a tree: the text between tags, and statements. */
#include "model/templates/jinja.h"

#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja_parser.h"
#include "model/text/utf8.h"

enum { TREE_BYTES_MAX = 64 << 20 };

static struct jinja_node *block(struct jinja_parser *p, const char *const *ends);
static struct jv jinja_parse_text_before(const struct jinja_parser *p, size_t end);

static int tag_close(struct jinja_parser *p, const char *close)
{
    if (p->token.kind != T_END || !jv_is_text(&p->token.value, close))
        return jinja_expected(p, close);
    p->token.line = 0;
    return 0;
}

/* Parses the rest of a closing tag, behind its name. */
static int tag_finish(struct jinja_parser *p)
{
    return jinja_advance(p) < 0 ? -1 : tag_close(p, "%}");
}

/* Parses the end of the opening tag and the body up to a tag of 'ends', whose name is then the current token.
 */
static struct jinja_node *body(struct jinja_parser *p, const char *const *ends)
{
    return tag_close(p, "%}") < 0 ? NULL : block(p, ends);
}

static int targets(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_nodes nodes = {0};
    do {
        if (nodes.count > 0 && jinja_advance(p) < 0)
            return -1;
        struct jinja_node *target = p->token.kind == T_NAME ? jinja_name_or_constant(p) : NULL;
        if (target && node->kind == JN_SET && jinja_is_operator(p, "."))
            target = jinja_attribute(p, target);
        if (!target || target->kind == JN_CONST)
            return p->err->code != ERR_NONE ? -1 : jinja_expected(p, "a name");
        if (jinja_nodes_add(p, &nodes, target) < 0)
            return -1;
    } while (jinja_is_operator(p, ","));
    node->list = nodes.items;
    node->count = nodes.count;
    return 0;
}

static struct jinja_node *statement_for(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    if (targets(p, node) < 0 || !jinja_is_name(p, "in"))
        return p->err->code != ERR_NONE ? NULL : (jinja_expected(p, "in"), NULL);
    node->a = jinja_advance(p) < 0 ? NULL : jinja_tuple(p, false);
    if (node->a && jinja_is_name(p, "if"))
        node->b = jinja_advance(p) < 0 ? NULL : jinja_expression(p);
    if (!node->a || p->err->code != ERR_NONE)
        return NULL;
    if (jinja_is_name(p, "recursive")) {
        node->negated = true;
        if (jinja_advance(p) < 0)
            return NULL;
    }
    p->loops++;
    node->c = body(p, ends);
    p->loops--;
    if (node->c && jinja_is_name(p, "else"))
        node->d = jinja_advance(p) < 0 ? NULL : body(p, last);
    return p->err->code != ERR_NONE || tag_finish(p) < 0 ? NULL : node;
}

static struct jinja_node *statement_if(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct jinja_nodes nodes = {0};
    do {
        if (nodes.count > 0 && jinja_advance(p) < 0)
            return NULL;
        struct jinja_node *condition = jinja_tuple(p, false);
        struct jinja_node *then = condition ? body(p, ends) : NULL;
        if (!then || jinja_nodes_add(p, &nodes, condition) < 0 || jinja_nodes_add(p, &nodes, then) < 0)
            return NULL;
    } while (jinja_is_name(p, "elif"));
    if (jinja_is_name(p, "else"))
        node->a = jinja_advance(p) < 0 ? NULL : body(p, last);
    node->list = nodes.items;
    node->count = nodes.count;
    return p->err->code != ERR_NONE || tag_finish(p) < 0 ? NULL : node;
}

static struct jinja_node *statement_set(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endset", NULL};
    if (targets(p, node) < 0)
        return NULL;
    if (jinja_is_operator(p, "=")) {
        node->a = jinja_advance(p) < 0 ? NULL : jinja_tuple(p, true);
        return !node->a || tag_close(p, "%}") < 0 ? NULL : node;
    }
    if (jinja_is_operator(p, "|")) {
        struct jinja_node *text = jinja_node_new(p, JN_CAPTURE);
        node->a = !text ? NULL : jinja_filters(p, text);
        if (node->a)
            text->a = body(p, ends);
        return !node->a || !text->a || tag_finish(p) < 0 ? NULL : node;
    }
    node->b = body(p, ends);
    return !node->b || tag_finish(p) < 0 ? NULL : node;
}

/* Parses {% filter name | name … %}: the filters are applied to the body's output. */
static struct jinja_node *statement_filter(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endfilter", NULL};
    struct jinja_node *text = jinja_node_new(p, JN_CAPTURE);
    node->negated = true;
    node->a = !text ? NULL : jinja_filters(p, jinja_filter(p, text));
    if (node->a)
        text->a = body(p, ends);
    return !node->a || !text->a || tag_finish(p) < 0 ? NULL : node;
}

static struct jinja_node *statement_with(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endwith", NULL};
    struct jinja_nodes nodes = {0};
    while (p->token.kind != T_END) {
        struct jinja_node *name = jinja_node_new(p, JN_NAMED);
        if (!name || p->token.kind != T_NAME)
            return !name ? NULL : (jinja_expected(p, "a name"), NULL);
        name->value = p->token.value;
        if (jinja_advance(p) < 0 || jinja_take_operator(p, "=") < 0 || !(name->a = jinja_expression(p)) ||
            jinja_nodes_add(p, &nodes, name) < 0 || (jinja_is_operator(p, ",") && jinja_advance(p) < 0)) {
            return NULL;
        }
    }
    node->list = nodes.items;
    node->count = nodes.count;
    node->a = body(p, ends);
    return !node->a || tag_finish(p) < 0 ? NULL : node;
}

/* Checks a macro's parameters: those without default come first. */
static int parameters_check(struct jinja_parser *p, const struct jinja_node *macro)
{
    for (size_t i = 0; i < macro->count; i++) {
        const struct jinja_node *param = macro->list[i];
        if (param->kind != JN_NAMED &&
            (param->kind != JN_NAME || (i > 0 && macro->list[i - 1]->kind == JN_NAMED))) {
            return jinja_fail(p, ERR_INVALID, "a parameter that is not a name, or not in its place", NULL);
        }
        if (jv_is_text(&param->value, "caller"))
            return jinja_fail(p, ERR_UNSUPPORTED, "a parameter named", &param->value);
    }
    return 0;
}

static struct jinja_node *statement_macro(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endmacro", NULL};
    const unsigned loops = p->loops;
    if (p->token.kind != T_NAME) {
        jinja_expected(p, "a name");
        return NULL;
    }
    node->value = p->token.value;
    if (jinja_advance(p) < 0 || !jinja_is_operator(p, "("))
        return p->err->code != ERR_NONE ? NULL : (jinja_expected(p, "("), NULL);
    if (jinja_arguments(p, node) < 0)
        return NULL;
    if (parameters_check(p, node) < 0)
        return NULL;
    p->loops = 0;
    node->a = body(p, ends);
    p->loops = loops;
    if (!node->a || jinja_advance(p) < 0)
        return NULL;
    return (p->token.kind == T_NAME && jinja_advance(p) < 0) || tag_close(p, "%}") < 0 ? NULL : node;
}

/* Parses {% call(parameters) macro(arguments) %}: the body is a macro that the called macro knows as
 * `caller`. */
static struct jinja_node *statement_call(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endcall", NULL};
    struct jinja_node *caller = jinja_node_new(p, JN_MACRO);
    if (!caller || (jinja_is_operator(p, "(") && jinja_arguments(p, caller) < 0))
        return NULL;
    if (parameters_check(p, caller) < 0)
        return NULL;
    caller->value = jv_borrow("caller", 6);
    caller->negated = true;
    node->b = jinja_expression(p);
    if (!node->b || node->b->kind != JN_CALL)
        return !node->b ? NULL : (jinja_expected(p, "a call"), NULL);
    node->a = caller;
    caller->a = body(p, ends);
    return !caller->a || tag_finish(p) < 0 ? NULL : node;
}

/* Parses {% raw %}: everything up to {% endraw %} is text. */
static struct jinja_node *statement_raw(struct jinja_parser *p, struct jinja_node *node)
{
    if (tag_close(p, "%}") < 0)
        return NULL;
    for (size_t at = p->at; at + 1 < p->size; at++) {
        size_t name = at + 2;
        if (p->text[at] != '{' || p->text[at + 1] != '%')
            continue;
        name += name < p->size && (p->text[name] == '-' || p->text[name] == '+');
        while (name < p->size && strchr(" \t\r\n", p->text[name]) && p->text[name] != '\0')
            name++;
        size_t end = name + 6;
        while (end < p->size && strchr(" \t\r\n", p->text[end]) && p->text[end] != '\0')
            end++;
        const size_t sign = end < p->size && (p->text[end] == '-' || p->text[end] == '+');
        if (end + sign + 1 >= p->size || memcmp(p->text + name, "endraw", 6) != 0 ||
            p->text[end + sign] != '%' || p->text[end + sign + 1] != '}') {
            continue;
        }
        node->value = jinja_parse_text_before(p, at);
        for (; p->at < end; p->at++)
            p->line += p->text[p->at] == '\n';
        p->at = end + sign + 2;
        jinja_end_trim(p, sign ? p->text[end] : '\0', true);
        return node;
    }
    jinja_fail(p, ERR_INVALID,
               "the template ends where this must be:", &(struct jv){.text = "endraw", .size = 6});
    return NULL;
}

static struct jinja_node *statement_leave(struct jinja_parser *p, struct jinja_node *node)
{
    if (p->loops == 0) {
        jinja_fail(p, ERR_INVALID, "break or continue outside of a loop", NULL);
        return NULL;
    }
    return tag_close(p, "%}") < 0 ? NULL : node;
}

static struct jinja_node *statement_generation(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endgeneration", NULL};
    node->a = body(p, ends);
    return !node->a || tag_finish(p) < 0 ? NULL : node;
}

/* Parses {% autoescape expression %}. */
static struct jinja_node *statement_autoescape(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endautoescape", NULL};
    node->a = jinja_expression(p);
    node->b = node->a ? body(p, ends) : NULL;
    return !node->b || tag_finish(p) < 0 ? NULL : node;
}

/* Parses a statement that needs other templates; it is refused only when rendering reaches it. */
static struct jinja_node *statement_refused(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endblock", NULL};
    const bool has_body = jv_is_text(&node->value, "block");
    while (p->token.kind != T_END)
        if (jinja_advance(p) < 0)
            return NULL;
    if (!has_body)
        return tag_close(p, "%}") < 0 ? NULL : node;
    if (!body(p, ends) || jinja_advance(p) < 0 || (p->token.kind == T_NAME && jinja_advance(p) < 0))
        return NULL;
    return tag_close(p, "%}") < 0 ? NULL : node;
}

/* Parses a statement behind its "{%". Returns NULL with ERR_NONE if its name is one of 'ends'. */
static struct jinja_node *statement(struct jinja_parser *p, const char *const *ends)
{
    static const struct {
        const char *name;
        enum jinja_kind kind;
        struct jinja_node *(*parse)(struct jinja_parser *, struct jinja_node *);
    } rows[] = {{"for", JN_FOR, statement_for},
                {"if", JN_IF, statement_if},
                {"set", JN_SET, statement_set},
                {"macro", JN_MACRO, statement_macro},
                {"break", JN_BREAK, statement_leave},
                {"continue", JN_CONTINUE, statement_leave},
                {"generation", JN_GENERATION, statement_generation},
                {"with", JN_WITH, statement_with},
                {"filter", JN_OUTPUT, statement_filter},
                {"call", JN_CALL_BLOCK, statement_call},
                {"raw", JN_TEXT, statement_raw},
                {"autoescape", JN_AUTOESCAPE, statement_autoescape},
                {"include", JN_REFUSED, statement_refused},
                {"import", JN_REFUSED, statement_refused},
                {"from", JN_REFUSED, statement_refused},
                {"extends", JN_REFUSED, statement_refused},
                {"block", JN_REFUSED, statement_refused}};
    if (jinja_advance(p) < 0)
        return NULL;
    for (size_t i = 0; ends && ends[i]; i++)
        if (jinja_is_name(p, ends[i]))
            return NULL;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (jinja_is_name(p, rows[i].name)) {
            struct jinja_node *node = jinja_node_new(p, rows[i].kind);
            if (node) {
                node->value = p->token.value;
                node->value.size = rows[i].kind == JN_REFUSED ? node->value.size : 0;
            }
            p->keep_line = jinja_is_name(p, "raw");
            const int status = !node ? -1 : jinja_advance(p);
            p->keep_line = false;
            return status < 0 ? NULL : rows[i].parse(p, node);
        }
    }
    if (p->token.kind == T_NAME) {
        jinja_fail(p, ERR_UNSUPPORTED,
                   "a statement that is not known here or not in its place:", &p->token.value);
    } else {
        jinja_expected(p, "a statement");
    }
    return NULL;
}

/* Returns the offset of the next tag, or the text's size. */
static size_t tag_find(const struct jinja_parser *p)
{
    for (size_t at = p->at; at + 1 < p->size; at++) {
        const char *brace = memchr(p->text + at, '{', p->size - 1 - at);
        if (!brace)
            break;
        at = (size_t)(brace - p->text);
        if (strchr("{%#", p->text[at + 1]) && p->text[at + 1] != '\0')
            return at;
    }
    return p->size;
}

/* Returns the text up to the tag at 'end' without the white space that the tag removes. */
static struct jv jinja_parse_text_before(const struct jinja_parser *p, size_t end)
{
    const char sign = end + 2 < p->size ? p->text[end + 2] : '\0';
    const struct jv text = jv_borrow(p->text + p->at, end - p->at);
    if (end == p->size)
        return text;
    if (sign == '-')
        return jv_strip(text, NULL, false, true);
    if (sign == '+' || p->text[end + 1] == '{')
        return text;
    /* lstrip_blocks removes blanks between the beginning of the line and the tag. */
    size_t line = end;
    while (line > p->at && p->text[line - 1] != '\n')
        line--;
    const struct jv blanks = jv_borrow(p->text + line, end - line);
    const bool begins_line = line == 0 || p->text[line - 1] == '\n';
    return begins_line && jv_strip(blanks, NULL, true, false).size == 0 ? jv_borrow(text.text, line - p->at)
                                                                        : text;
}

static int jinja_parse_comment_skip(struct jinja_parser *p)
{
    for (size_t at = p->at; at + 1 < p->size; at++) {
        p->line += p->text[at] == '\n';
        if (p->text[at] == '#' && p->text[at + 1] == '}') {
            const char sign = at > p->at ? p->text[at - 1] : '\0';
            p->at = at + 2;
            jinja_end_trim(p, sign, true);
            return 0;
        }
    }
    return jinja_fail(p, ERR_INVALID, "a comment that does not end", NULL);
}

/* Appends the text up to the next tag as a node. */
static int text_take(struct jinja_parser *p, size_t tag, struct jinja_nodes *nodes)
{
    const struct jv text = jinja_parse_text_before(p, tag);
    const uint32_t line = p->line;
    for (; p->at < tag; p->at++)
        p->line += p->text[p->at] == '\n';
    struct jinja_node *node = text.size > 0 ? jinja_node_new(p, JN_TEXT) : NULL;
    if (node) {
        node->value = text;
        node->line = line;
    }
    return text.size > 0 && (!node || jinja_nodes_add(p, nodes, node) < 0) ? -1 : 0;
}

static struct jinja_node *output(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JN_OUTPUT);
    if (!node || jinja_advance(p) < 0 || !(node->a = jinja_tuple(p, true)))
        return NULL;
    return tag_close(p, "}}") < 0 ? NULL : node;
}

/* Parses everything up to a tag of 'ends', whose name is then the current token, or to the end of the text.
 */
static struct jinja_node *block(struct jinja_parser *p, const char *const *ends)
{
    struct jinja_nodes nodes = {0};
    struct jinja_node *all = jinja_deeper(p) < 0 ? NULL : jinja_node_new(p, JN_BLOCK);
    while (all) {
        const size_t tag = tag_find(p);
        if (text_take(p, tag, &nodes) < 0)
            return NULL;
        if (tag == p->size) {
            if (ends) {
                jinja_fail(p, ERR_INVALID, "the template ends where this must be:",
                           &(struct jv){.text = ends[0], .size = strlen(ends[0])});
                return NULL;
            }
            break;
        }
        const char kind = p->text[tag + 1];
        p->at = tag + 2;
        p->at += p->at < p->size && (p->text[p->at] == '-' || p->text[p->at] == '+');
        if (kind == '#') {
            if (jinja_parse_comment_skip(p) < 0)
                return NULL;
            continue;
        }
        struct jinja_node *node = kind == '{' ? output(p) : statement(p, ends);
        if (!node && p->err->code == ERR_NONE)
            break; /* the tag is one of 'ends' */
        if (!node || jinja_nodes_add(p, &nodes, node) < 0)
            return NULL;
    }
    if (all) {
        all->list = nodes.items;
        all->count = nodes.count;
        p->depth--;
    }
    return all;
}

/* Copies the template. As in Jinja, line ends become \n and a line end at the end of the text is removed. */
static int source_copy(struct jinja_parser *p, const char *text, size_t size)
{
    char *copy = jinja_alloc(p->arena, size + 1, p->err);
    size_t out = 0;
    for (size_t i = 0; copy && i < size; i++) {
        if (text[i] == '\r') {
            copy[out++] = '\n';
            i += i + 1 < size && text[i + 1] == '\n';
        } else {
            copy[out++] = text[i];
        }
    }
    p->text = copy;
    p->size = out > 0 && copy[out - 1] == '\n' ? out - 1 : out;
    return copy ? 0 : -1;
}

int jinja_parse(const char *text, size_t size, struct jinja **out, struct err *err)
{
    const size_t valid = utf8_check(text, size);
    if (size > JINJA_SOURCE_BYTES_MAX || valid != size) {
        return size > JINJA_SOURCE_BYTES_MAX
                   ? err_set(err, ERR_TOO_BIG, "%zu bytes are more than %d", size, JINJA_SOURCE_BYTES_MAX)
                   : err_set(err, ERR_INVALID, "not valid UTF-8 at byte %zu", valid);
    }
    struct jinja *jinja = calloc(1, sizeof(*jinja));
    struct jinja_parser *p = calloc(1, sizeof(*p));
    struct err why = {0};
    if (!jinja || !p) {
        err_set(&why, ERR_NOMEM, "out of memory for a chat template");
    } else {
        jinja->arena.limit = TREE_BYTES_MAX;
        *p = (struct jinja_parser){.arena = &jinja->arena, .line = 1, .err = &why};
        if (source_copy(p, text, size) == 0) {
            jinja->root = block(p, NULL);
            if (jinja->root && jinja_check(p, jinja->root) == 0)
                jinja_scopes(p, jinja->root);
        }
    }
    free(p);
    if (why.code != ERR_NONE) {
        *err = why;
        jinja_destroy(jinja);
        return -1;
    }
    *out = jinja;
    return 0;
}

void jinja_destroy(struct jinja *jinja)
{
    if (jinja) {
        jinja_arena_fini(&jinja->arena);
        free(jinja);
    }
}
