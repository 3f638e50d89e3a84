#include "hub/name.h"

#include <stdio.h>
#include <string.h>

static const char prefix[] = "hf:";
static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
static const char in_revision[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/+";

/* Whether a part of an id is one by the Hub's rules: its folder in a cache joins the parts by "--". */
static bool part_is_good(const char *part, size_t size)
{
    return size > 0 && size <= 96 && strspn(part, letters) >= size && part[0] != '.' && part[0] != '-' &&
           part[size - 1] != '.' && part[size - 1] != '-' && !memmem(part, size, "..", 2) &&
           !memmem(part, size, "--", 2);
}

/* Whether a relative path stays below its folder. */
static bool path_is_good(const char *path)
{
    for (const char *part = path; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL) {
        size_t size = strcspn(part, "/");
        if (size == 0 || (size == 1 && part[0] == '.') || (size == 2 && memcmp(part, "..", 2) == 0))
            return false;
    }
    for (const char *at = path; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f || *at == '\\')
            return false;
    return true;
}

static bool read_name(const char *text, struct hub_name *name)
{
    *name = (struct hub_name){.prefixed = strncmp(text, prefix, sizeof(prefix) - 1) == 0};
    const char *id = text + (name->prefixed ? sizeof(prefix) - 1 : 0);
    const size_t id_size = strcspn(id, "@:");
    const char *revision = id[id_size] == '@' ? id + id_size + 1 : "main";
    const size_t revision_size = strcspn(revision, ":");
    const char *file = strchr(id, ':');
    const char *slash = memchr(id, '/', id_size);
    const size_t owner = slash ? (size_t)(slash - id) : 0;
    const size_t skipped = slash ? owner + 1 : 0;
    if (id_size >= sizeof(name->id) || revision_size >= sizeof(name->revision) ||
        (file && strlen(file) > sizeof(name->file)) || (!slash && !name->prefixed) ||
        (slash && !part_is_good(id, owner)) || !part_is_good(id + skipped, id_size - skipped))
        return false;
    memcpy(name->id, id, id_size);
    memcpy(name->revision, revision, revision_size);
    snprintf(name->file, sizeof(name->file), "%s", file ? file + 1 : "");
    return path_is_good(name->revision) && strspn(name->revision, in_revision) == revision_size &&
           (!file || path_is_good(name->file));
}

int hub_name_parse(const char *text, struct hub_name *name, struct err *err)
{
    return read_name(text, name)
               ? 0
               : err_set(err, ERR_INVALID,
                         "\"%.200s\" is no name of a hub: that is OWNER/NAME, with @REVISION and :FILE where "
                         "one is meant, such as HuggingFaceTB/SmolLM2-135M-Instruct@main",
                         text);
}

bool hub_name_like(const char *text)
{
    struct hub_name name;
    return strncmp(text, prefix, sizeof(prefix) - 1) == 0 || read_name(text, &name);
}
