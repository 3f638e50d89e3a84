/* Feeds an ID token, and behind a line end the issuer's keys. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "api/people/jwt.h"
#include "common/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    const struct jwt_asked asked = {.issuer = "joe", .client_id = "c", .nonce = "n", .now_s = 1300000000};
    char *token = strndup((const char *)data, size);
    char *line = token ? strchr(token, '\n') : NULL;
    if (line) {
        *line = '\0';
        json_t *claims = NULL, *keys = json_parse_limited(line + 1, strlen(line + 1), JSON_DEPTH_MAX, &err);
        if (keys && jwt_verify(token, keys, &claims, &err) == 0)
            jwt_check(claims, &asked, &err);
        json_decref(claims);
        json_decref(keys);
    }
    free(token);
    return 0;
}
