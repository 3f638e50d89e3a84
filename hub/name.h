/* What people call a model or a data set of a hub: [hf:]OWNER/NAME[@REVISION][:FILE]. Pure. */
#ifndef MOTLEY_HUB_NAME_H
#define MOTLEY_HUB_NAME_H

#include <stdbool.h>

#include "common/err.h"

enum { HUB_ID_BYTES = 200, HUB_REVISION_BYTES = 256, HUB_FILE_BYTES = 512 }; /* the NUL included */

struct hub_name {
    char id[HUB_ID_BYTES];             /* "OWNER/NAME", or of the oldest models "NAME" */
    char revision[HUB_REVISION_BYTES]; /* a branch, tag or commit; "main" when none is named */
    char file[HUB_FILE_BYTES];         /* one file of the repository; "": those that it needs */
    bool dataset;                      /* a data set's repository; hub_name_parse() makes it false */
    bool prefixed;                     /* it began with "hf:", so it can mean nothing else */
};

/* Reads a name. ERR_INVALID says what is wrong. An id without an owner needs "hf:". */
int hub_name_parse(const char *text, struct hub_name *name, struct err *err);

/* Whether the text may be a name of a hub: it begins with "hf:", or reads as OWNER/NAME. */
bool hub_name_like(const char *text);

#endif
