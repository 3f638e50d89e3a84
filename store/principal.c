/* Converts names of visibilities, and defines the principal of Motley's own processes. */
#include "store/principal.h"

#include <string.h>

const struct principal principal_service = {.kind = PRINCIPAL_SERVICE, .admin = true, .name = "service"};

static const char *const visibility_names[] = {"mine", "group", "everyone"};

const char *visibility_name(enum visibility visibility)
{
    return visibility_names[visibility];
}

int visibility_from_name(const char *name)
{
    for (int i = VISIBLE_MINE; i <= VISIBLE_EVERYONE; i++)
        if (strcmp(name, visibility_names[i]) == 0)
            return i;
    return -1;
}
