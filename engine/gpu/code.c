/* The code objects inside this build, by architecture. */
#include "engine/gpu/code.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* The compute capability that an NVIDIA architecture's name contains: 86 for "sm_86"; 0 for other names. */
static unsigned capability(const char *arch)
{
    char *end;
    if (strncmp(arch, "sm_", 3) != 0)
        return 0;
    unsigned long value = strtoul(arch + 3, &end, 10);
    return end == arch + 3 || value > 9999 ? 0 : (unsigned)value;
}

/* Sets an error that lists the architectures for which this build has code, and says why it has none for
 * `arch` if the release has. */
static void code_absent(const char *kind, const char *arch, struct err *err)
{
    char has[384] = "";
    const char *why = "nothing was compiled", *why_arch = "";
    for (uint32_t i = 0; i < gpu_code_count; i++) {
        size_t at = strlen(has);
        if (strcmp(gpu_codes[i].kind, kind) != 0)
            continue;
        if (gpu_codes[i].packed)
            snprintf(has + at, sizeof(has) - at, "%s%s", at == 0 ? "" : ", ", gpu_codes[i].arch);
        else if (strcmp(gpu_codes[i].arch, arch) == 0)
            why = why_arch = gpu_codes[i].why;
        else if (has[0] == '\0' && why_arch[0] == '\0')
            why = gpu_codes[i].why;
    }
    if (has[0] == '\0')
        err_set(err, ERR_UNSUPPORTED, "this build has no %s code at all: %s", kind, why);
    else
        err_set(err, ERR_UNSUPPORTED, "this build has no %s code for %s, but for %s%s%s", kind, arch, has,
                why_arch[0] == '\0' ? "" : ": ", why_arch);
}

const struct gpu_code *gpu_code_choose(const char *kind, const char *arch, struct err *err)
{
    const struct gpu_code *best = NULL;
    for (uint32_t i = 0; i < gpu_code_count; i++) {
        const struct gpu_code *code = &gpu_codes[i];
        if (!code->packed || strcmp(code->kind, kind) != 0)
            continue;
        if (strcmp(code->arch, arch) == 0)
            return code;
        if (strncmp(code->form, "ptx", 3) == 0 && capability(code->arch) < capability(arch) &&
            (!best || capability(best->arch) < capability(code->arch)))
            best = code;
    }
    if (!best)
        code_absent(kind, arch, err);
    return best;
}

int gpu_code_load(const char *kind, const char *arch, bool look, void **image, uint64_t *bytes,
                  uint32_t *matrix, struct err *err)
{
    const struct gpu_code *code = gpu_code_choose(kind, arch, err);
    *image = NULL;
    *bytes = 0;
    *matrix = 0;
    if (!code)
        return -1;
    const uint32_t size = look ? code->look_bytes : code->bytes;
    uLongf got = size;
    char *memory = malloc((size_t)size + 1);
    if (!memory)
        return err_set(err, ERR_NOMEM, "out of memory for the code of %s", code->arch);
    if (uncompress((Bytef *)memory, &got, look ? code->look : code->packed,
                   look ? code->look_packed_bytes : code->packed_bytes) != Z_OK ||
        got != size) {
        free(memory);
        return err_set(err, ERR_CORRUPT, "the code of %s inside this program does not unpack", code->arch);
    }
    memory[size] = '\0';
    *image = memory;
    *bytes = size;
    *matrix = code->matrix;
    return 0;
}

/* Describes which cards use the code: PTX serves all cards from its own up to the next PTX's, other objects
 * serve one. */
static void code_cards(const struct gpu_code *code, char *out, size_t room)
{
    const struct gpu_code *next = NULL;
    for (uint32_t i = 0; i < gpu_code_count; i++)
        if (gpu_codes[i].packed && strcmp(gpu_codes[i].kind, code->kind) == 0 &&
            capability(gpu_codes[i].arch) > capability(code->arch) &&
            (!next || capability(gpu_codes[i].arch) < capability(next->arch)))
            next = &gpu_codes[i];
    if (strncmp(code->form, "ptx", 3) != 0)
        snprintf(out, room, "%s", code->arch);
    else if (!next)
        snprintf(out, room, "%s and later", code->arch);
    else
        snprintf(out, room, "%s and later, below %s", code->arch, next->arch);
}

json_t *gpu_code_list(struct err *err)
{
    json_t *objects = json_array(), *list = NULL;
    bool ok = objects != NULL;
    for (uint32_t i = 0; ok && i < gpu_code_count; i++) {
        const struct gpu_code *code = &gpu_codes[i];
        static const char *const matrix[] = {"", "fp16", "bf16", "fp16, bf16"};
        char cards[80];
        code_cards(code, cards, sizeof(cards));
        json_t *entry = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:s?}", "kind", code->kind, "arch",
                                  code->arch, "cards", cards, "form", code->form, "matrix",
                                  matrix[code->matrix & 3], "bytes", (json_int_t)code->bytes, "packed_bytes",
                                  (json_int_t)code->packed_bytes, "why", code->why);
        ok = entry && json_array_append_new(objects, entry) == 0;
    }
    if (ok)
        list = json_pack("{s:s, s:O}", "compiler", gpu_code_compiler, "objects", objects);
    json_decref(objects);
    if (!list)
        err_set(err, ERR_NOMEM, "out of memory for a list of code objects");
    return list;
}
