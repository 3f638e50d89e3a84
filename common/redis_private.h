/* What the files of the Redis client share. */
#ifndef MOTLEY_COMMON_REDIS_PRIVATE_H
#define MOTLEY_COMMON_REDIS_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum {
    REDIS_COMMAND_MS = 5000,  /* a command's own deadline, unless it says another */
    REDIS_STREAMS_MAX = 1000, /* most streams that one command reads */
    REDIS_ARGS_MAX = 2 * REDIS_STREAMS_MAX + 6,
    REDIS_PLACES_MAX = 8
};

struct redis_place {
    char *text; /* the address as it was given */
    char *host; /* a host, or the path of a unix socket */
    uint16_t port;
    bool is_unix;
};

struct redis_places {
    struct redis_place items[REDIS_PLACES_MAX];
    unsigned count;
};

/* Parses addresses with commas between them; 'places' is empty before. Free it on an error, too. */
int redis_places_parse(struct redis_places *places, const char *addresses, struct err *err);
void redis_places_fini(struct redis_places *places);

#endif
