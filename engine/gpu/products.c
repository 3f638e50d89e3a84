/* Shared helpers that open the vendors' libraries of products. */
#include "engine/gpu/products.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int products_symbols_find(const struct products_search *search, void *library, const char *name,
                                 void *api, struct err *err)
{
    for (size_t i = 0; i < search->symbol_count; i++) {
        void *found = dlsym(library, search->symbols[i].name);
        if (!found)
            return err_set(err, ERR_UNSUPPORTED, "%s lacks %s", name, search->symbols[i].name);
        /* POSIX allows this conversion from a data pointer to a function pointer */
        memcpy((char *)api + search->symbols[i].at, &found, sizeof(found));
    }
    return 0;
}

int products_find(const struct products_search *search, uint32_t driver_version, const char *arch, void *api,
                  char *name, uint32_t room, struct err *err)
{
    const char *asked = getenv(search->environment);
    const char *const only[] = {asked, NULL};
    const bool named = asked && asked[0] != '\0';
    struct stat status;
    const bool folder = named && stat(asked, &status) == 0 && S_ISDIR(status.st_mode);
    struct err refused;
    bool opened = false;
    if (named && strcmp(asked, "none") == 0)
        return err_set(err, ERR_NOT_FOUND, "turned off: %s", search->environment);
    err_set(err, ERR_NOT_FOUND, "no %s on this machine: %s%s%s (%s names a file or a folder)", search->what,
            search->usual[0], search->hint ? "; " : "", search->hint ? search->hint : "",
            search->environment);
    for (const char *const *file = named && !folder ? only : search->usual; *file; file++) {
        if (folder && strchr(*file, '/'))
            continue;
        snprintf(name, room, "%s%s%s", folder ? asked : "", folder ? "/" : "", *file);
        /* The library is never unmapped (RTLD_NODELETE), because it may start threads of its own. */
        void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!library && named)
            err_set(err, ERR_NOT_FOUND, "no %s on this machine: %s", search->what, dlerror());
        if (!library)
            continue;
        if (products_symbols_find(search, library, name, api, &refused) == 0 &&
            search->check(api, driver_version, arch, name, room, &refused) == 0)
            return 0;
        if (!opened)
            *err = refused;
        opened = true;
    }
    return -1;
}
