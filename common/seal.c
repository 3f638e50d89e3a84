#include "common/seal.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"

struct seal {
    EVP_MAC_CTX *keyed; /* holds the key; reset for each message */
    char *node;
};

struct seal *seal_create(const uint8_t key[SEAL_KEY_SIZE], const char *node, struct err *err)
{
    static char sha256[] = "SHA256"; /* not const, because OpenSSL's parameters are not */
    const OSSL_PARAM params[] = {OSSL_PARAM_utf8_string(OSSL_MAC_PARAM_DIGEST, sha256, sizeof(sha256) - 1),
                                 OSSL_PARAM_END};
    struct seal *seal = calloc(1, sizeof(*seal));
    EVP_MAC *hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    if (seal) {
        seal->node = strdup(node);
        seal->keyed = !hmac ? NULL : EVP_MAC_CTX_new(hmac);
    }
    EVP_MAC_free(hmac); /* the context has its own reference */
    if (!seal || !seal->node || !seal->keyed || EVP_MAC_init(seal->keyed, key, SEAL_KEY_SIZE, params) != 1) {
        seal_destroy(seal);
        err_set(err, ERR_INTERNAL, "OpenSSL could not make an HMAC-SHA256");
        return NULL;
    }
    return seal;
}

void seal_destroy(struct seal *seal)
{
    if (seal) {
        EVP_MAC_CTX_free(seal->keyed);
        free(seal->node);
        free(seal);
    }
}

static bool seal_part_add(EVP_MAC_CTX *mac, const void *bytes, size_t size)
{
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)size >> (56 - 8 * i));
    return EVP_MAC_update(mac, length, sizeof(length)) == 1 &&
           (size == 0 || EVP_MAC_update(mac, bytes, size) == 1);
}

int seal_make(struct seal *seal, enum seal_direction direction, const void *body, size_t size,
              uint8_t out[SEAL_SIZE], struct err *err)
{
    const char *way = direction == SEAL_EVENTS ? "events" : "messages";
    size_t made = 0;
    if (EVP_MAC_init(seal->keyed, NULL, 0, NULL) != 1 || !seal_part_add(seal->keyed, way, strlen(way)) ||
        !seal_part_add(seal->keyed, seal->node, strlen(seal->node)) ||
        !seal_part_add(seal->keyed, body, size) || EVP_MAC_final(seal->keyed, out, &made, SEAL_SIZE) != 1 ||
        made != SEAL_SIZE) {
        return err_set(err, ERR_INTERNAL, "OpenSSL could not make an HMAC-SHA256");
    }
    return 0;
}

bool seal_holds(struct seal *seal, enum seal_direction direction, const void *body, size_t size,
                const void *mac, size_t mac_size)
{
    uint8_t right[SEAL_SIZE];
    struct err ignored; /* if no seal can be made, no message is accepted */
    return mac_size == SEAL_SIZE && seal_make(seal, direction, body, size, right, &ignored) == 0 &&
           digest_equal(right, mac, SEAL_SIZE);
}
