/* Addresses of Redis. */
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "common/redis_private.h"

/* Parses "unix:/path", "host:port" or "[v6]:port". */
static int place_parse(struct redis_place *place, const char *address, struct err *err)
{
    if (strncmp(address, "unix:", 5) == 0) {
        size_t room = sizeof(((struct sockaddr_un *)NULL)->sun_path);
        if (address[5] == '\0' || strlen(address + 5) >= room) {
            return err_set(err, ERR_INVALID, "the path of a unix socket has 1 to %zu bytes: \"%.120s\"",
                           room - 1, address + 5);
        }
        place->is_unix = true;
        place->host = strdup(address + 5);
    } else {
        const char *colon = strrchr(address, ':');
        char *end = NULL;
        long port = !colon ? 0 : strtol(colon + 1, &end, 10);
        bool bracket = address[0] == '[' && colon && colon > address + 2 && colon[-1] == ']';
        if (!colon || colon == address || *end != '\0' || port < 1 || port > 65535) {
            return err_set(err, ERR_INVALID, "\"%.120s\" is no Redis address (unix:/path or host:port)",
                           address);
        }
        place->port = (uint16_t)port;
        place->host = bracket ? strndup(address + 1, (size_t)(colon - address) - 2)
                              : strndup(address, (size_t)(colon - address));
    }
    return place->host ? 0 : err_set(err, ERR_NOMEM, "no memory for an address");
}

int redis_places_parse(struct redis_places *places, const char *addresses, struct err *err)
{
    for (const char *at = addresses;; at++) {
        const size_t length = strcspn(at, ",");
        if (places->count == REDIS_PLACES_MAX)
            return err_set(err, ERR_TOO_BIG, "more than %d addresses of Redis", REDIS_PLACES_MAX);
        struct redis_place *place = &places->items[places->count++];
        place->text = strndup(at, length);
        if (!place->text)
            return err_set(err, ERR_NOMEM, "no memory for an address");
        if (place_parse(place, place->text, err) < 0)
            return -1;
        at += length;
        if (*at == '\0')
            return 0;
    }
}

void redis_places_fini(struct redis_places *places)
{
    for (unsigned i = 0; i < places->count; i++) {
        free(places->items[i].text);
        free(places->items[i].host);
    }
    *places = (struct redis_places){0};
}
