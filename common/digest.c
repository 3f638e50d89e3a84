#include "common/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct digest {
    EVP_MD_CTX *context;
};

static int digest_start(struct digest *digest, struct err *err)
{
    if (EVP_DigestInit_ex(digest->context, EVP_sha256(), NULL) != 1)
        return err_set(err, ERR_INTERNAL, "OpenSSL has no SHA-256");
    return 0;
}

struct digest *digest_create(struct err *err)
{
    struct digest *digest = calloc(1, sizeof(*digest));
    if (digest)
        digest->context = EVP_MD_CTX_new();
    if (!digest || !digest->context) {
        err_set(err, ERR_NOMEM, "no memory for a digest");
        digest_destroy(digest);
        return NULL;
    }
    if (digest_start(digest, err) < 0) {
        digest_destroy(digest);
        return NULL;
    }
    return digest;
}

void digest_destroy(struct digest *digest)
{
    if (digest) {
        EVP_MD_CTX_free(digest->context);
        free(digest);
    }
}

int digest_update(struct digest *digest, const void *data, size_t size, struct err *err)
{
    if (size > 0 && EVP_DigestUpdate(digest->context, data, size) != 1)
        return err_set(err, ERR_INTERNAL, "OpenSSL refused %zu bytes for SHA-256", size);
    return 0;
}

int digest_final(struct digest *digest, uint8_t out[DIGEST_SIZE], struct err *err)
{
    if (EVP_DigestFinal_ex(digest->context, out, NULL) != 1)
        return err_set(err, ERR_INTERNAL, "OpenSSL did not finish a SHA-256");
    return digest_start(digest, err);
}

int digest_sha256(const void *data, size_t size, uint8_t out[DIGEST_SIZE], struct err *err)
{
    if (EVP_Digest(size > 0 ? data : "", size, out, NULL, EVP_sha256(), NULL) != 1)
        return err_set(err, ERR_INTERNAL, "OpenSSL could not make a SHA-256");
    return 0;
}

int digest_sha256_hex(const void *data, size_t size, char out[DIGEST_HEX_SIZE], struct err *err)
{
    uint8_t bytes[DIGEST_SIZE];
    if (digest_sha256(data, size, bytes, err) < 0)
        return -1;
    digest_hex(bytes, sizeof(bytes), out);
    return 0;
}

int digest_git_blob_hex(const void *data, size_t size, char out[41], struct err *err)
{
    uint8_t sha1[20];
    char head[32];
    const int length = snprintf(head, sizeof(head), "blob %zu", size) + 1;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const bool made = context && EVP_DigestInit_ex(context, EVP_sha1(), NULL) == 1 &&
                      EVP_DigestUpdate(context, head, (size_t)length) == 1 &&
                      EVP_DigestUpdate(context, data, size) == 1 &&
                      EVP_DigestFinal_ex(context, sha1, NULL) == 1;
    EVP_MD_CTX_free(context);
    if (!made)
        return err_set(err, ERR_INTERNAL, "OpenSSL did not make a SHA-1");
    digest_hex(sha1, sizeof(sha1), out);
    return 0;
}

void digest_hex(const uint8_t *data, size_t size, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size; i++) {
        out[2 * i] = digits[data[i] >> 4];
        out[2 * i + 1] = digits[data[i] & 15];
    }
    out[2 * size] = '\0';
}

static int digest_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int digest_unhex(const char *text, uint8_t *out, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        int high = digest_hex_digit(text[2 * i]);
        int low = high < 0 ? -1 : digest_hex_digit(text[2 * i + 1]);
        if (low < 0)
            return -1;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return text[2 * size] == '\0' ? 0 : -1;
}

bool digest_equal(const void *a, const void *b, size_t size)
{
    return CRYPTO_memcmp(a, b, size) == 0;
}

int random_bytes(void *out, size_t size, struct err *err)
{
    if (size > INT32_MAX || RAND_bytes(out, (int)size) != 1)
        return err_set(err, ERR_INTERNAL, "the system gives no random bytes");
    return 0;
}

int random_hex(char *out, size_t bytes, struct err *err)
{
    uint8_t raw[64];
    if (bytes > sizeof(raw))
        return err_set(err, ERR_TOO_BIG, "%zu random bytes asked for, the limit is %zu", bytes, sizeof(raw));
    if (random_bytes(raw, bytes, err) < 0)
        return -1;
    digest_hex(raw, bytes, out);
    return 0;
}
