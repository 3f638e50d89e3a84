/* Shared helpers that open the vendors' libraries of products. */
#include "engine/gpu/products.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *products_library(const char *what, const char *environment, const char *const *usual, char *name,
                       uint32_t room, struct err *err)
{
    const char *asked = getenv(environment);
    const char *const only[] = {asked, NULL};
    void *library = NULL;
    if (asked != NULL && strcmp(asked, "none") == 0) {
        err_set(err, ERR_NOT_FOUND, "turned off: %s", environment);
        return NULL;
    }
    bool named = asked != NULL && asked[0] != '\0';
    for (const char *const *file = named ? only : usual; library == NULL && *file != NULL; file++) {
        /* never unmapped, for the reason in vendor.c */
        library = dlopen(*file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        snprintf(name, room, "%s", *file);
    }
    if (library == NULL)
        err_set(err, ERR_NOT_FOUND, "no %s on this machine: %s", what, named ? dlerror() : *usual);
    return library;
}

int products_symbols(void *library, const char *name, const struct products_symbol *symbols, size_t count,
                     void *api, struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (found == NULL)
            return err_set(err, ERR_UNSUPPORTED, "%s lacks %s", name, symbols[i].name);
        /* POSIX allows this conversion from a data pointer to a function pointer */
        memcpy((char *)api + symbols[i].at, &found, sizeof found);
    }
    return 0;
}
