/* Exchanging the cluster's CA: files of two CAs, their vouchers for each other, certificates signed anew. */
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <string.h>

#include "common/tls.h"

static const char voucher_label[] = "MOTLEY VOUCHER";

enum { BUNDLE_MAX = 8 }; /* certificates, and vouchers, of a file */

static int tls_bundle_fail(struct err *err, const char *what)
{
    ERR_clear_error();
    return err_set(err, ERR_INVALID, "%s", what);
}

static int pem_append(BIO *bio, struct buf *out, struct err *err)
{
    char *text = NULL;
    const long size = BIO_get_mem_data(bio, &text);
    return size > 0 ? buf_append(out, text, (size_t)size, err)
                    : tls_bundle_fail(err, "a certificate cannot be written");
}

static X509 *cert_at(const char *pem, unsigned index)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *cert = NULL;
    for (unsigned i = 0; bio && i <= index && i < BUNDLE_MAX; i++) {
        X509_free(cert);
        cert = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    }
    BIO_free(bio);
    ERR_clear_error();
    return cert;
}

static EVP_PKEY *tls_bundle_key_of(const struct tls_ca *signer)
{
    BIO *bio = BIO_new_mem_buf(signer->key_pem, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL) : NULL;
    BIO_free(bio);
    return key;
}

int tls_bundle_at(const char *bundle_pem, unsigned index, struct buf *cert_pem, struct err *err)
{
    X509 *cert = cert_at(bundle_pem, index);
    if (!cert)
        return 0;
    BIO *bio = BIO_new(BIO_s_mem());
    int result = bio && PEM_write_bio_X509(bio, cert) == 1
                     ? pem_append(bio, cert_pem, err)
                     : tls_bundle_fail(err, "a certificate cannot be written");
    BIO_free(bio);
    X509_free(cert);
    return result < 0 ? -1 : 1;
}

int tls_vouch(const struct tls_ca *signer, const char *cert_pem, struct buf *out, struct err *err)
{
    uint8_t *der = NULL, signature[256];
    size_t size = sizeof(signature);
    X509 *cert = cert_at(cert_pem, 0);
    EVP_PKEY *key = tls_bundle_key_of(signer);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    BIO *bio = BIO_new(BIO_s_mem());
    const int length = cert ? i2d_X509(cert, &der) : -1;
    const bool good = key && context && bio && length > 0 &&
                      EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key) == 1 &&
                      EVP_DigestSign(context, signature, &size, der, (size_t)length) == 1 &&
                      PEM_write_bio(bio, voucher_label, "", signature, (long)size) > 0;
    int result = good ? pem_append(bio, out, err) : tls_bundle_fail(err, "a CA cannot vouch for another one");
    BIO_free(bio);
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(key);
    OPENSSL_free(der);
    X509_free(cert);
    return result;
}

/* Whether the signature is this CA's of that certificate. */
static bool vouches(X509 *ca, X509 *cert, const uint8_t *signature, size_t size)
{
    uint8_t *der = NULL;
    const int length = i2d_X509(cert, &der);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const bool good = length > 0 && context &&
                      EVP_DigestVerifyInit(context, NULL, EVP_sha256(), NULL, X509_get0_pubkey(ca)) == 1 &&
                      EVP_DigestVerify(context, signature, size, der, (size_t)length) == 1;
    EVP_MD_CTX_free(context);
    OPENSSL_free(der);
    ERR_clear_error();
    return good;
}

/* Whether a voucher of 'offered' for this certificate is by the CA. */
static bool is_vouched_for(const char *offered, X509 *ca, X509 *cert)
{
    BIO *bio = BIO_new_mem_buf(offered, -1);
    char *name = NULL, *header = NULL;
    uint8_t *data = NULL;
    long size = 0;
    bool good = false;
    for (int i = 0;
         bio && i < 2 * BUNDLE_MAX && !good && PEM_read_bio(bio, &name, &header, &data, &size) == 1; i++) {
        good = strcmp(name, voucher_label) == 0 && vouches(ca, cert, data, (size_t)size);
        OPENSSL_free(name);
        OPENSSL_free(header);
        OPENSSL_free(data);
    }
    BIO_free(bio);
    ERR_clear_error();
    return good;
}

static bool is_trusted(const char *known, const char *offered, X509 *cert)
{
    bool good = false;
    X509 *ca;
    for (unsigned i = 0; i < BUNDLE_MAX && !good && (ca = cert_at(known, i)); i++) {
        good = X509_cmp(ca, cert) == 0 || is_vouched_for(offered, ca, cert);
        X509_free(ca);
    }
    return good;
}

int tls_bundle_follows(const char *known, const char *offered, struct err *err)
{
    unsigned count = 0;
    X509 *cert;
    for (; count < BUNDLE_MAX && (cert = cert_at(offered, count)); count++) {
        const bool good = is_trusted(known, offered, cert);
        X509_free(cert);
        if (!good)
            return err_set(err, ERR_PEER,
                           "the server's CA is another one, and the CA that this node trusts does "
                           "not vouch for it");
    }
    return count > 0 ? 0 : err_set(err, ERR_PEER, "the server's CA is no certificate");
}

int tls_reissue(const struct tls_ca *signer, const char *old_pem, uint32_t seconds, struct buf *cert_pem,
                struct err *err)
{
    X509 *cert = cert_at(old_pem, 0), *ca = cert_at(signer->cert_pem, 0);
    EVP_PKEY *key = tls_bundle_key_of(signer);
    BIO *bio = BIO_new(BIO_s_mem());
    uint8_t serial[16] = {0};
    BIGNUM *number =
        RAND_bytes(serial, sizeof(serial)) == 1 ? BN_bin2bn(serial, sizeof(serial) - 1, NULL) : NULL;
    int place = cert ? X509_get_ext_by_NID(cert, NID_authority_key_identifier, -1) : -1;
    if (place >= 0)
        X509_EXTENSION_free(X509_delete_ext(cert, place));
    const bool good = cert && ca && key && bio && number && X509_check_private_key(ca, key) == 1 &&
                      BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) &&
                      X509_gmtime_adj(X509_getm_notBefore(cert), -3600) &&
                      X509_gmtime_adj(X509_getm_notAfter(cert), (long)seconds) &&
                      X509_set_issuer_name(cert, X509_get_subject_name(ca)) == 1 &&
                      X509_sign(cert, key, EVP_sha256()) > 0 && PEM_write_bio_X509(bio, cert) == 1;
    int result =
        good ? pem_append(bio, cert_pem, err) : tls_bundle_fail(err, "a certificate cannot be signed anew");
    BN_free(number);
    BIO_free(bio);
    EVP_PKEY_free(key);
    X509_free(ca);
    X509_free(cert);
    return result;
}
