/* What every program answers to `--version` and `--help`. */
#ifndef MOTLEY_COMMON_USAGE_H
#define MOTLEY_COMMON_USAGE_H

#include <stdbool.h>

#include "common/doc.h"

/* Whether the first word is --version or --help: then the answer was printed (the program's name, release and
 * protocol, or 'usage'), and the program ends with status 0. Called before anything is opened. */
bool usage_answered(int argc, char **argv, const char *usage);
/* Whether the first word is --schema: then the JSON schema of the program's configuration file was printed.
 */
bool usage_schema(int argc, char **argv, const struct doc *config);

#endif
