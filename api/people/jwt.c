/* Signatures by OpenSSL. A JWK becomes a key for one verification. */
#include "api/people/jwt.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/rsa.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"

enum { PART_DEPTH_MAX = 16, RSA_BITS_MIN = 2048, NUMBER_BYTES_MAX = 1024 };

struct jws_algorithm {
    const char *name, *kty, *digest;
    const char *curve, *group; /* of EC: JWK's name, and OpenSSL's */
    size_t number;             /* of EC: bytes of a coordinate, and of half a signature */
    bool pss;
};
static const struct jws_algorithm algorithms[] = {
    {"RS256", "RSA", "SHA256", NULL, NULL, 0, false},
    {"RS384", "RSA", "SHA384", NULL, NULL, 0, false},
    {"RS512", "RSA", "SHA512", NULL, NULL, 0, false},
    {"PS256", "RSA", "SHA256", NULL, NULL, 0, true},
    {"ES256", "EC", "SHA256", "P-256", "P-256", 32, false},
    {"ES384", "EC", "SHA384", "P-384", "P-384", 48, false},
};

/* Decodes base64url without padding (RFC 4648, section 5) into out[room]. Returns the number of bytes, or
 * -1. */
static int base64url_decode(const char *text, size_t size, uint8_t *out, size_t room)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint32_t bits = 0;
    unsigned count = 0;
    size_t used = 0;
    if (size % 4 == 1)
        return -1;
    for (size_t i = 0; i < size; i++) {
        const char *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at)
            return -1;
        bits = bits << 6 | (uint32_t)(at - digits);
        count += 6;
        if (count >= 8) {
            count -= 8;
            if (used == room)
                return -1;
            out[used++] = (uint8_t)(bits >> count);
            bits &= (1u << count) - 1;
        }
    }
    return bits == 0 ? (int)used : -1;
}

static int jwt_number_of(const json_t *key, const char *name, uint8_t *out, size_t room)
{
    const char *text = json_text_of(key, name);
    return base64url_decode(text, strlen(text), out, room);
}

static EVP_PKEY *jwt_key_make(const char *kind, OSSL_PARAM_BLD *build)
{
    EVP_PKEY *key = NULL;
    OSSL_PARAM *params = OSSL_PARAM_BLD_to_param(build);
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, kind, NULL);
    if (!params || !context || EVP_PKEY_fromdata_init(context) != 1 ||
        EVP_PKEY_fromdata(context, &key, EVP_PKEY_PUBLIC_KEY, params) != 1)
        key = NULL;
    EVP_PKEY_CTX_free(context);
    OSSL_PARAM_free(params);
    return key;
}

static EVP_PKEY *rsa_key(const json_t *jwk, OSSL_PARAM_BLD *build)
{
    uint8_t n[NUMBER_BYTES_MAX], e[8];
    int n_size = jwt_number_of(jwk, "n", n, sizeof(n)), e_size = jwt_number_of(jwk, "e", e, sizeof(e));
    BIGNUM *modulus = n_size > 0 ? BN_bin2bn(n, n_size, NULL) : NULL;
    BIGNUM *exponent = e_size > 0 ? BN_bin2bn(e, e_size, NULL) : NULL;
    EVP_PKEY *key = NULL;
    if (modulus && exponent && BN_num_bits(modulus) >= RSA_BITS_MIN &&
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_RSA_N, modulus) == 1 &&
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_RSA_E, exponent) == 1)
        key = jwt_key_make("RSA", build);
    BN_free(modulus);
    BN_free(exponent);
    return key;
}

static EVP_PKEY *ec_key(const json_t *jwk, const struct jws_algorithm *algorithm, OSSL_PARAM_BLD *build)
{
    uint8_t point[1 + 2 * 48] = {POINT_CONVERSION_UNCOMPRESSED};
    const size_t size = algorithm->number;
    if (jwt_number_of(jwk, "x", point + 1, size) != (int)size ||
        jwt_number_of(jwk, "y", point + 1 + size, size) != (int)size ||
        OSSL_PARAM_BLD_push_utf8_string(build, OSSL_PKEY_PARAM_GROUP_NAME, algorithm->group, 0) != 1 ||
        OSSL_PARAM_BLD_push_octet_string(build, OSSL_PKEY_PARAM_PUB_KEY, point, 1 + 2 * size) != 1)
        return NULL;
    return jwt_key_make("EC", build);
}

/* Returns the key that a JWK describes, new; NULL where it is no such key, or a weak one. */
static EVP_PKEY *jwt_key_of(const json_t *jwk, const struct jws_algorithm *algorithm)
{
    OSSL_PARAM_BLD *build = OSSL_PARAM_BLD_new();
    EVP_PKEY *key = NULL;
    if (build)
        key = algorithm->curve ? ec_key(jwk, algorithm, build) : rsa_key(jwk, build);
    OSSL_PARAM_BLD_free(build);
    return key;
}

/* Makes the DER that OpenSSL wants of an EC signature's two numbers. Returns its length, or -1. */
static int ec_signature(const uint8_t *raw, size_t half, uint8_t **der)
{
    ECDSA_SIG *signature = ECDSA_SIG_new();
    BIGNUM *r = BN_bin2bn(raw, (int)half, NULL), *s = BN_bin2bn(raw + half, (int)half, NULL);
    int size = -1;
    if (signature && r && s && ECDSA_SIG_set0(signature, r, s) == 1)
        size = i2d_ECDSA_SIG(signature, der);
    else
        BN_free(r), BN_free(s);
    ECDSA_SIG_free(signature);
    return size;
}

static bool is_signed_by(EVP_PKEY *key, const struct jws_algorithm *algorithm, const char *text, size_t size,
                         const uint8_t *signature, size_t signature_size)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    EVP_PKEY_CTX *how = NULL;
    const int good =
        context && EVP_DigestVerifyInit_ex(context, &how, algorithm->digest, NULL, NULL, key, NULL) == 1 &&
        (!algorithm->pss || (EVP_PKEY_CTX_set_rsa_padding(how, RSA_PKCS1_PSS_PADDING) == 1 &&
                             EVP_PKEY_CTX_set_rsa_pss_saltlen(how, RSA_PSS_SALTLEN_DIGEST) == 1)) &&
        EVP_DigestVerify(context, signature, signature_size, (const uint8_t *)text, size) == 1;
    EVP_MD_CTX_free(context);
    return good;
}

static bool verify(EVP_PKEY *key, const struct jws_algorithm *algorithm, const char *text, size_t size,
                   const char *signature)
{
    uint8_t raw[NUMBER_BYTES_MAX], *der = NULL;
    const int raw_size = base64url_decode(signature, strlen(signature), raw, sizeof(raw));
    if (!algorithm->curve)
        return raw_size > 0 && is_signed_by(key, algorithm, text, size, raw, (size_t)raw_size);
    const int der_size =
        raw_size == 2 * (int)algorithm->number ? ec_signature(raw, algorithm->number, &der) : -1;
    const bool good = der_size > 0 && is_signed_by(key, algorithm, text, size, der, (size_t)der_size);
    OPENSSL_free(der);
    return good;
}

/* Whether the key may have signed with this algorithm. */
static bool key_fits(const json_t *jwk, const struct jws_algorithm *algorithm)
{
    const char *use = json_text_of(jwk, "use"), *alg = json_text_of(jwk, "alg");
    return strcmp(json_text_of(jwk, "kty"), algorithm->kty) == 0 && (!*use || strcmp(use, "sig") == 0) &&
           (!*alg || strcmp(alg, algorithm->name) == 0) &&
           (!algorithm->curve || strcmp(json_text_of(jwk, "crv"), algorithm->curve) == 0);
}

/* Returns the key with the header's kid; without a kid the only one that fits; else NULL. Borrowed. */
static const json_t *key_find(const json_t *keys, const char *kid, const struct jws_algorithm *algorithm)
{
    const json_t *found = NULL;
    size_t i;
    json_t *jwk;
    json_array_foreach (json_object_get(keys, "keys"), i, jwk) {
        if (!key_fits(jwk, algorithm) || (*kid && strcmp(json_text_of(jwk, "kid"), kid) != 0))
            continue;
        if (found)
            return NULL; /* of two that fit, none is meant */
        found = jwk;
    }
    return found;
}

/* Decodes a part of the token, which is a JSON object. Returns new, or NULL with ERR_DENIED. */
static json_t *jwt_part_read(const char *part, size_t size, const char *name, struct err *err)
{
    uint8_t *bytes = malloc(size + 1);
    const int got = bytes ? base64url_decode(part, size, bytes, size) : -1;
    json_t *object =
        got > 0 ? json_parse_limited((const char *)bytes, (size_t)got, PART_DEPTH_MAX, err) : NULL;
    free(bytes);
    if (json_is_object(object))
        return object;
    json_decref(object);
    err_set(err, ERR_DENIED, "the ID token's %s is not a JSON object in base64url", name);
    return NULL;
}

/* Returns the algorithm that the header names, or NULL with ERR_DENIED. */
static const struct jws_algorithm *algorithm_of(const json_t *header, struct err *err)
{
    const char *alg = json_text_of(header, "alg");
    for (size_t i = 0; i < sizeof(algorithms) / sizeof(algorithms[0]); i++)
        if (strcmp(algorithms[i].name, alg) == 0 && !json_object_get(header, "crit"))
            return &algorithms[i];
    err_set(err, ERR_DENIED,
            "the ID token is signed by \"%.20s\"%s: RS256, RS384, RS512, PS256, ES256 and ES384 are taken",
            alg, json_object_get(header, "crit") ? " with critical extensions" : "");
    return NULL;
}

int jwt_verify(const char *token, const json_t *keys, json_t **claims, struct err *err)
{
    const char *dot = strchr(token, '.'), *second = dot ? strchr(dot + 1, '.') : NULL;
    int rc = -1;
    *claims = NULL;
    if (!second || strlen(token) > JWT_BYTES_MAX)
        return err_set(err, ERR_DENIED, "the ID token is not three parts of at most %d bytes", JWT_BYTES_MAX);
    json_t *header = jwt_part_read(token, (size_t)(dot - token), "header", err);
    const struct jws_algorithm *algorithm = header ? algorithm_of(header, err) : NULL;
    if (algorithm) {
        const char *kid = json_text_of(header, "kid");
        const json_t *jwk = key_find(keys, kid, algorithm);
        EVP_PKEY *key = jwk ? jwt_key_of(jwk, algorithm) : NULL;
        if (!jwk)
            err_set(err, ERR_NOT_FOUND, "the issuer's keys have none \"%.80s\" for %s", kid, algorithm->name);
        else if (!key)
            err_set(err, ERR_DENIED, "the issuer's key \"%.80s\" is no %s key, or one below %d bits", kid,
                    algorithm->kty, RSA_BITS_MIN);
        else if (!verify(key, algorithm, token, (size_t)(second - token), second + 1))
            err_set(err, ERR_DENIED, "the ID token is not signed by the issuer's key \"%.80s\"", kid);
        else
            rc = (*claims = jwt_part_read(dot + 1, (size_t)(second - dot - 1), "body", err)) ? 0 : -1;
        EVP_PKEY_free(key);
    }
    json_decref(header);
    return rc;
}

/* Whether aud, a text or a list of texts, has the client. */
static bool is_for(const json_t *aud, const char *client_id)
{
    size_t i;
    json_t *one;
    if (json_is_string(aud))
        return strcmp(json_string_value(aud), client_id) == 0;
    json_array_foreach (aud, i, one)
        if (json_is_string(one) && strcmp(json_string_value(one), client_id) == 0)
            return true;
    return false;
}

static int time_check(const json_t *claims, int64_t now_s, struct err *err)
{
    const json_t *exp = json_object_get(claims, "exp"), *nbf = json_object_get(claims, "nbf"),
                 *iat = json_object_get(claims, "iat");
    const double now = (double)now_s;
    if (!json_is_number(exp) || now >= json_number_value(exp) + JWT_SKEW_S)
        return err_set(err, ERR_DENIED, "the ID token's exp: it has expired by this server's clock");
    if ((nbf && !json_is_number(nbf)) || now < json_number_value(nbf) - JWT_SKEW_S)
        return err_set(err, ERR_DENIED, "the ID token's nbf: it is not valid yet by this server's clock");
    if ((iat && !json_is_number(iat)) || now < json_number_value(iat) - JWT_SKEW_S)
        return err_set(err, ERR_DENIED,
                       "the ID token's iat: it was made later than this server's clock shows");
    return 0;
}

int jwt_check(const json_t *claims, const struct jwt_asked *asked, struct err *err)
{
    const json_t *azp = json_object_get(claims, "azp");
    const char *sub = json_text_of(claims, "sub");
    if (strcmp(json_text_of(claims, "iss"), asked->issuer) != 0)
        return err_set(err, ERR_DENIED, "the ID token's iss is \"%.200s\", not the issuer's",
                       json_text_of(claims, "iss"));
    if (!is_for(json_object_get(claims, "aud"), asked->client_id))
        return err_set(err, ERR_DENIED, "the ID token's aud does not name the client %.100s",
                       asked->client_id);
    if (azp && !(json_is_string(azp) && strcmp(json_string_value(azp), asked->client_id) == 0))
        return err_set(err, ERR_DENIED, "the ID token's azp: it was made for another client");
    if (time_check(claims, asked->now_s, err) < 0)
        return -1;
    if (asked->nonce && strcmp(json_text_of(claims, "nonce"), asked->nonce) != 0)
        return err_set(err, ERR_DENIED, "the ID token's nonce is not that of this sign-in");
    if (!*sub || strlen(sub) > 255)
        return err_set(err, ERR_DENIED, "the ID token's sub is not a text of 1 to 255 bytes");
    return 0;
}
