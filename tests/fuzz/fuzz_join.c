/* Feeds what an unknown machine sends to join: a certificate request and a join token. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "common/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    char identity[TLS_IDENTITY_SIZE], secret[96];
    uint8_t ca[TLS_FINGERPRINT_SIZE], key[TLS_FINGERPRINT_SIZE];
    char *text = strndup((const char *)data, size);
    if (!text)
        return 0;
    tls_request_read(text, identity, key, &err);
    tls_join_token_parse(text, secret, ca, &err);
    tls_fingerprint(text, ca, &err);
    free(text);
    return 0;
}
