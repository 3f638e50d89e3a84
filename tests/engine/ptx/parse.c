/* Parses a kernel of a PTX text into decoded instructions. */
#include "engine/ptx/ptx.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLASSES_MAX = 16,
    TOKENS_MAX = 24,
    TOKEN_ROOM = 128,
    STATEMENT_ROOM = 512,
    ARRAY_GAP = 1024, /* between shared arrays, so that an access just beyond one hits no other */
    SPECIAL_BYTES = 4 * PTX_LANES
};

struct label {
    char name[32];
    uint32_t at; /* number of the instruction behind the label, or of the branch that jumps to it */
};
struct labels {
    struct label *list;
    uint32_t count, room;
};

/* A kind of registers, such as %rd: their size, their number, and the offset of the first one. */
struct register_class {
    char name[8];
    uint32_t bytes, count, at;
};

struct parser {
    const char *text, *at, *end; /* at: the next character to parse */
    struct ptx_kernel *kernel;
    struct register_class classes[CLASSES_MAX];
    uint32_t class_count;
    struct labels labels, branches;
    uint32_t line;
    char tokens[TOKENS_MAX][TOKEN_ROOM]; /* the operands of the statement */
    uint32_t token_count;
    struct err *err;
};

static int refuse(struct parser *p, const char *what, const char *text)
{
    return err_set(p->err, ERR_UNSUPPORTED, "PTX of %s, line %u: %s '%s'", p->kernel->name, p->line, what,
                   text);
}

/* Makes room for one more element. */
static void *room_make(void *list, uint32_t count, uint32_t *room, size_t size)
{
    if (count < *room)
        return list;
    *room = *room == 0 ? 256 : 2 * *room;
    void *grown = realloc(list, *room * size);
    if (!grown)
        abort();
    return grown;
}

static void label_add(struct labels *labels, const char *name, size_t length, uint32_t at)
{
    labels->list = room_make(labels->list, labels->count, &labels->room, sizeof(*labels->list));
    struct label *label = &labels->list[labels->count++];
    snprintf(label->name, sizeof(label->name), "%.*s", (int)length, name);
    label->at = at;
}

static int label_compare(const void *a, const void *b)
{
    return strcmp(((const struct label *)a)->name, ((const struct label *)b)->name);
}

/* --- operands */

/* Returns the operand of a constant, which is stored as 32 equal values, once for all its uses. */
static uint32_t constant(struct ptx_kernel *kernel, uint64_t value, uint32_t bytes)
{
    uint8_t lanes[PTX_LANES * sizeof(value)];
    for (uint32_t l = 0; l < PTX_LANES; l++)
        memcpy(lanes + l * bytes, &value, bytes);
    for (uint32_t at = 0; at < kernel->constant_bytes; at += 64)
        if (at + PTX_LANES * bytes <= kernel->constant_bytes &&
            memcmp(kernel->constants + at, lanes, PTX_LANES * bytes) == 0)
            return at | 1;
    uint32_t at = kernel->constant_bytes;
    if (kernel->constant_room < at + sizeof(lanes)) {
        kernel->constant_room = 2 * at + 4096;
        uint8_t *grown = aligned_alloc(64, kernel->constant_room);
        if (!grown)
            abort();
        if (at > 0)
            memcpy(grown, kernel->constants, at);
        free(kernel->constants);
        kernel->constants = grown;
    }
    memcpy(kernel->constants + at, lanes, PTX_LANES * bytes);
    kernel->constant_bytes += PTX_LANES * bytes;
    return at | 1;
}

static int register_find(struct parser *p, const char *name, uint32_t bytes, uint32_t *out)
{
    static const char *const specials[PTX_SPECIALS] = {"%tid.x", "%ctaid.x", "%ctaid.y", "%ctaid.z",
                                                       "%nctaid.x"};
    for (uint32_t i = 0; i < PTX_SPECIALS; i++)
        if (strcmp(specials[i], name) == 0 && bytes == 4) {
            *out = i * SPECIAL_BYTES;
            return 0;
        }
    size_t letters = strcspn(name, "0123456789");
    for (uint32_t i = 0; i < p->class_count; i++) {
        const struct register_class *class = &p->classes[i];
        unsigned long number = strtoul(name + letters, NULL, 10);
        if (strlen(class->name) != letters || strncmp(class->name, name, letters) != 0 ||
            number >= class->count)
            continue;
        if (class->bytes != bytes)
            return refuse(p, "a register of another size:", name);
        *out = class->at + (uint32_t)number * PTX_LANES * bytes;
        return 0;
    }
    return refuse(p, "unknown register", name);
}

/* Finds where `name` is declared as shared memory (.align N .b8 name[bytes]) and gives it addresses. */
static int array_find(struct parser *p, const char *name, uint64_t *out)
{
    struct ptx_kernel *kernel = p->kernel;
    for (uint32_t i = 0; i < kernel->array_count; i++)
        if (strcmp(kernel->arrays[i].name, name) == 0) {
            *out = kernel->arrays[i].at;
            return 0;
        }
    char pattern[TOKEN_ROOM + 8];
    unsigned align, bytes;
    snprintf(pattern, sizeof(pattern), ".b8 %s[", name);
    const char *found = strstr(p->text, pattern), *line = found;
    while (line && line > p->text && line[-1] != '\n')
        line--;
    if (!found || sscanf(line, " .shared .align %u", &align) != 1 ||
        sscanf(found + strlen(pattern), "%u];", &bytes) != 1 || kernel->array_count == PTX_ARRAYS ||
        align == 0)
        return refuse(p, "unknown name", name);
    struct ptx_array *array = &kernel->arrays[kernel->array_count++];
    snprintf(array->name, sizeof(array->name), "%s", name);
    array->at = (kernel->shared_bytes + ARRAY_GAP + align - 1) / align * align;
    array->bytes = bytes;
    kernel->shared_bytes = array->at + bytes;
    kernel->array_bytes += (bytes + align - 1) / align * align;
    *out = array->at;
    return 0;
}

/* Returns the bytes of a register; 0 if the token is no register. */
static uint8_t register_bytes(const struct parser *p, const char *token)
{
    for (uint32_t i = 0; i < p->class_count; i++)
        if (strcspn(token, "0123456789") == strlen(p->classes[i].name) &&
            strncmp(token, p->classes[i].name, strlen(p->classes[i].name)) == 0)
            return (uint8_t)p->classes[i].bytes;
    return 0;
}

static int operand(struct parser *p, const char *token, uint32_t bytes, uint32_t *out)
{
    uint64_t value;
    char *end = NULL;
    if (token[0] == '%' || register_bytes(p, token) != 0)
        return register_find(p, token, bytes, out);
    if (token[0] == '0' && (token[1] == 'f' || token[1] == 'd')) {
        value = strtoull(token + 2, &end, 16);
        if ((token[1] == 'f') != (bytes == 4))
            return refuse(p, "a number of another size:", token);
    } else if (isdigit((unsigned char)token[0]) || token[0] == '-') {
        value = (uint64_t)strtoll(token, &end, 0);
    } else {
        char param[TOKEN_ROOM];
        snprintf(param, sizeof(param), "%s_param_0", p->kernel->name);
        value = 0; /* the arguments begin at address 0 of the parameter space */
        if (strcmp(token, param) != 0 && array_find(p, token, &value) != 0)
            return -1;
    }
    if (end && *end != '\0')
        return refuse(p, "unknown number", token);
    *out = constant(p->kernel, value, bytes);
    return 0;
}

/* --- instructions */

static struct ptx_instr *instr_add(struct parser *p)
{
    struct ptx_kernel *kernel = p->kernel;
    kernel->code = room_make(kernel->code, kernel->count, &kernel->room, sizeof(*kernel->code));
    struct ptx_instr *instr = &kernel->code[kernel->count++];
    *instr = (struct ptx_instr){.line = p->line};
    return instr;
}

/* Parses [address], [address+offset] or [address-offset]. */
static int address_read(struct parser *p, struct ptx_instr *instr, char *token)
{
    size_t length = strlen(token);
    char *sign = strpbrk(token, "+-");
    if (token[0] != '[' || token[length - 1] != ']')
        return refuse(p, "no address:", token);
    token[length - 1] = '\0';
    if (sign) {
        instr->access.offset = strtoll(sign + (*sign == '+'), NULL, 10);
        *sign = '\0';
    }
    return operand(p, token + 1, 8, &instr->at[instr->access.count]);
}

/* Parses ld.space[.v2|.v4].type, st.space… and atom.global.add.u32. */
static int access_parse(struct parser *p, const char *opcode)
{
    static const char *const spaces[] = {"global", "shared", "param"};
    struct ptx_instr *instr = instr_add(p);
    char action[8] = "", space[16] = "", third[16] = "", fourth[16] = "";
    int words = sscanf(opcode, "%7[a-z].%15[a-z].%15[a-z0-9].%15[a-z0-9]", action, space, third, fourth);
    const char *type = words == 4 ? fourth : third;
    bool vector = words == 4 && third[0] == 'v', known = words >= 3;
    instr->run = ptx_access;
    instr->kind = PTX_ACCESS;
    instr->access.space = PTX_PARAM + 1;
    for (uint32_t i = 0; i <= PTX_PARAM; i++)
        if (strcmp(space, spaces[i]) == 0)
            instr->access.space = i;
    instr->access.action = strcmp(action, "ld") == 0   ? PTX_LOAD
                           : strcmp(action, "st") == 0 ? PTX_STORE
                                                       : PTX_ADD;
    if (instr->access.action == PTX_ADD)
        known = strcmp(opcode, "atom.global.add.u32") == 0;
    else if (words == 4)
        known = vector;
    instr->access.count = (uint8_t)(vector ? strtoul(third + 1, NULL, 10) : 1);
    instr->access.bytes = (uint8_t)(strtoul(type + 1, NULL, 10) / 8);
    instr->access.is_signed = type[0] == 's';
    uint32_t count = instr->access.count, first = instr->access.action == PTX_STORE;
    if (!known || instr->access.space > PTX_PARAM || count == 0 || count > 4 || instr->access.bytes == 0 ||
        p->token_count != count + 1 + (instr->access.action == PTX_ADD))
        return refuse(p, "unknown access", opcode);
    if (address_read(p, instr, p->tokens[first != 0 ? 0 : count]) != 0)
        return -1;
    instr->access.register_bytes = register_bytes(p, p->tokens[first]);
    for (uint32_t i = 0; i < count; i++)
        if (operand(p, p->tokens[first + i], instr->access.register_bytes, &instr->at[i]) != 0)
            return -1;
    if (instr->access.register_bytes < instr->access.bytes)
        return refuse(p, "a register that is too small:", p->tokens[first]);
    return instr->access.action == PTX_ADD ? operand(p, p->tokens[2], 4, &instr->at[2]) : 0;
}

static int branch_parse(struct parser *p, const char *guard)
{
    struct ptx_instr *instr = instr_add(p);
    instr->kind = PTX_BRANCH;
    if (p->token_count != 1)
        return refuse(p, "a branch to", "more than one place");
    label_add(&p->branches, p->tokens[0], strlen(p->tokens[0]), p->kernel->count - 1);
    if (guard[0] == '\0')
        return 0;
    bool unless = guard[1] == '!';
    instr->guard = unless ? PTX_UNLESS : PTX_IF;
    return operand(p, guard + 1 + unless, 4, &instr->at[0]);
}

static int form_parse(struct parser *p, const char *opcode)
{
    char name[STATEMENT_ROOM];
    snprintf(name, sizeof(name), "%s", opcode);
    for (char *c = name; *c != '\0'; c++)
        *c = *c == '.' ? '_' : *c;
    for (uint32_t f = 0; f < ptx_form_count; f++) {
        const struct ptx_form *form = &ptx_forms[f];
        if (strcmp(form->name, name) != 0)
            continue;
        struct ptx_instr *instr = instr_add(p);
        instr->run = form->run;
        instr->kind = form->kind;
        instr->is_move = strncmp(opcode, "mov.", 4) == 0;
        instr->is_mma = strncmp(opcode, "mma.", 4) == 0;
        if (strncmp(opcode, "ldmatrix.", 9) == 0) {
            instr->access.space = PTX_SHARED;
            instr->access.bytes = 16;
            instr->access.count = 1;
        }
        if (p->token_count != form->count)
            return refuse(p, "another number of operands:", opcode);
        if (form->kind == PTX_BARRIER && strcmp(p->tokens[0], "0") != 0)
            return refuse(p, "unknown barrier", p->tokens[0]);
        for (uint32_t i = 0; i < form->count; i++)
            if (operand(p, p->tokens[i], form->bytes[i], &instr->at[i]) != 0)
                return -1;
        return 0;
    }
    return refuse(p, "unknown instruction", opcode);
}

/* Splits operands at commas and drops what stands around them: the braces around vectors. */
static int tokens_split(struct parser *p, const char *text, const char *around)
{
    p->token_count = 0;
    while (*text != '\0') {
        text += strspn(text, around);
        size_t length = strcspn(text, around);
        if (length == 0)
            break;
        if (p->token_count == TOKENS_MAX || length >= TOKEN_ROOM)
            return refuse(p, "too many or too long operands:", text);
        memcpy(p->tokens[p->token_count], text, length);
        p->tokens[p->token_count++][length] = '\0';
        text += length;
    }
    return 0;
}

static int statement_parse(struct parser *p, const char *text)
{
    char guard[16] = "", opcode[TOKEN_ROOM] = "";
    int used = 0;
    if (text[0] == '@' && sscanf(text, "%15s %n", guard, &used) != 1)
        return refuse(p, "unknown statement", text);
    text += used;
    size_t length = strcspn(text, " \t\n");
    bool unpacks = strncmp(text, "mov.", 4) == 0 && text[length + strspn(text + length, " \t")] == '{';
    snprintf(opcode, sizeof(opcode), "%.*s%s", (int)length, text, unpacks ? ".unpack" : "");
    /* These have their addresses in registers; what they access is no operand of a form. */
    bool blocks = strncmp(opcode, "ldmatrix.", 9) == 0 || strncmp(opcode, "cp.async.", 9) == 0;
    if (tokens_split(p, text + length, blocks ? " \t\n,{}[]" : " \t\n,{}") != 0)
        return -1;
    if (strcmp(opcode, "bra") == 0 || strcmp(opcode, "bra.uni") == 0)
        return branch_parse(p, guard);
    if (guard[0] != '\0')
        return refuse(p, "a guard before", opcode);
    if (strncmp(opcode, "ld.", 3) == 0 || strncmp(opcode, "st.", 3) == 0 || strncmp(opcode, "atom.", 5) == 0)
        return access_parse(p, opcode);
    return form_parse(p, opcode);
}

/* Parses the declaration of registers: .reg .b32 %r<644>, or .reg .b16 tmp, which a later declaration of the
 * same name replaces. Other known directives are ignored. */
static int directive_parse(struct parser *p, const char *text)
{
    char type[8], name[8];
    unsigned count = 1;
    if (strncmp(text, ".reg", 4) != 0)
        return strncmp(text, ".shared", 7) == 0 || strncmp(text, ".pragma", 7) == 0
                   ? 0
                   : refuse(p, "unknown directive", text);
    if (sscanf(text, ".reg .%7s %7[%a-z]<%u>", type, name, &count) < 2 || p->class_count == CLASSES_MAX)
        return refuse(p, "unknown registers", text);
    uint32_t bytes = strcmp(type, "pred") == 0 ? 4 : (uint32_t)strtoul(type + 1, NULL, 10) / 8;
    uint32_t place = 0;
    while (place < p->class_count && strcmp(p->classes[place].name, name) != 0)
        place++;
    p->class_count += place == p->class_count;
    struct register_class *class = &p->classes[place];
    *class = (struct register_class){.bytes = bytes, .count = count, .at = p->kernel->register_bytes};
    snprintf(class->name, sizeof(class->name), "%s", name);
    p->kernel->register_bytes += count * bytes * PTX_LANES;
    return 0;
}

/* --- the text */

/* Parses the next statement, directive, label or comment. */
static int next_parse(struct parser *p)
{
    char text[STATEMENT_ROOM];
    if (*p->at == '\n')
        p->line++;
    if (isspace((unsigned char)*p->at) || *p->at == '{' || *p->at == '}') {
        p->at++; /* Braces around statements only limit the scope of names. */
        return 0;
    }
    if (p->at[0] == '/' && p->at[1] == '/') {
        p->at += strcspn(p->at, "\n");
        return 0;
    }
    size_t length = strcspn(p->at, p->at[0] == '$' ? ":" : ";");
    if (p->at + length >= p->end || length >= sizeof(text))
        return refuse(p, "a statement without an end:", "");
    if (p->at[0] == '$')
        label_add(&p->labels, p->at, length, p->kernel->count);
    memcpy(text, p->at, length);
    text[length] = '\0';
    p->at += length + 1;
    int rc = text[0] == '$' ? 0 : text[0] == '.' ? directive_parse(p, text) : statement_parse(p, text);
    for (size_t i = 0; i < length; i++)
        p->line += text[i] == '\n';
    return rc;
}

static int branches_resolve(struct parser *p)
{
    if (p->labels.count == 0)
        return p->branches.count == 0 ? 0 : refuse(p, "no label", p->branches.list[0].name);
    qsort(p->labels.list, p->labels.count, sizeof(*p->labels.list), label_compare);
    for (uint32_t i = 0; i < p->branches.count; i++) {
        const struct label *branch = &p->branches.list[i];
        const struct label *found =
            bsearch(branch, p->labels.list, p->labels.count, sizeof(*p->labels.list), label_compare);
        if (!found)
            return refuse(p, "no label", branch->name);
        p->kernel->code[branch->at].target = found->at;
    }
    return 0;
}

/* Finds the kernel's heading, and the begin and the end of its body. */
static int kernel_find(struct parser *p)
{
    char heading[128];
    snprintf(heading, sizeof(heading), ".entry %s(", p->kernel->name);
    const char *found = strstr(p->text, heading);
    const char *body = !found ? NULL : strstr(found, "\n{"), *end = !body ? NULL : strstr(body, "\n}");
    const char *threads = !found ? NULL : strstr(found, ".maxntid ");
    if (!end ||
        sscanf(found + strlen(heading), " .param .align 8 .b8 %*[^[][%u]", &p->kernel->args_bytes) != 1)
        return err_set(p->err, ERR_NOT_FOUND, "the PTX has no kernel %s", p->kernel->name);
    if (!threads || threads > body || sscanf(threads, ".maxntid %u", &p->kernel->threads) != 1)
        return refuse(p, "no .maxntid", p->kernel->name);
    p->at = body + 2;
    p->end = end;
    for (const char *c = p->text; c < p->at; c++)
        p->line += *c == '\n';
    return 0;
}

struct ptx_kernel *ptx_parse(const char *text, const char *name, struct err *err)
{
    struct ptx_kernel *kernel = calloc(1, sizeof(*kernel));
    struct parser p = {.text = text, .kernel = kernel, .line = 1, .err = err};
    if (!kernel)
        abort();
    snprintf(kernel->name, sizeof(kernel->name), "%s", name);
    kernel->register_bytes = PTX_SPECIALS * SPECIAL_BYTES;
    int rc = kernel_find(&p);
    while (rc == 0 && p.at < p.end)
        rc = next_parse(&p);
    if (rc == 0)
        rc = branches_resolve(&p);
    if (rc == 0)
        instr_add(&p)->kind = PTX_TRAP; /* a lane that runs beyond the last instruction traps */
    free(p.labels.list);
    free(p.branches.list);
    if (rc == 0)
        return kernel;
    ptx_free(kernel);
    return NULL;
}

void ptx_free(struct ptx_kernel *kernel)
{
    if (!kernel)
        return;
    free(kernel->code);
    free(kernel->constants);
    free(kernel);
}
