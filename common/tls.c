/* Certificates and contexts. Each cluster has one CA; everything uses P-256 and TLS 1.3. */
#include "common/tls.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/digest.h"

static const char uri_prefix[] = "motley:";

enum {
    IDENTITY_LENGTH_MAX = 90,
    COMMON_NAME_MAX = 64, /* limit by X.520 */
    CLOCKS_DIFFER_S =
        3600 /* certificates are valid from this long before they are issued, because clocks differ */
};

/* Writes OpenSSL's last error as text and clears its error queue. */
static const char *openssl_reason(char *out, size_t size)
{
    unsigned long code = ERR_get_error();
    const char *reason = code == 0 ? NULL : ERR_reason_error_string(code);
    snprintf(out, size, "%s", !reason ? "no reason given" : reason);
    ERR_clear_error();
    return out;
}

static int tls_fail(struct err *err, enum err_code code, const char *what)
{
    char reason[160];
    return err_set(err, code, "%s: %s", what, openssl_reason(reason, sizeof(reason)));
}

static bool identity_valid(const char *identity)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-";
    size_t length = strlen(identity);
    return length > 0 && length <= IDENTITY_LENGTH_MAX && strspn(identity, allowed) == length;
}

void tls_agent_identity(const char *node, int64_t generation, char identity[TLS_IDENTITY_SIZE])
{
    snprintf(identity, TLS_IDENTITY_SIZE, "agent:%.64s:%" PRId64, node, generation);
}

static int bio_to_buf(BIO *bio, struct buf *out, struct err *err)
{
    char *data;
    long size = BIO_get_mem_data(bio, &data);
    return buf_append(out, data, size > 0 ? (size_t)size : 0, err);
}

static int key_print(EVP_PKEY *key, struct buf *out, struct err *err)
{
    BIO *bio = BIO_new(BIO_s_mem());
    int result = -1;
    if (!bio || PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) != 1)
        tls_fail(err, ERR_INTERNAL, "could not print a key");
    else
        result = bio_to_buf(bio, out, err);
    BIO_free(bio);
    return result;
}

static int cert_print(X509 *cert, struct buf *out, struct err *err)
{
    BIO *bio = BIO_new(BIO_s_mem());
    int result = -1;
    if (!bio || PEM_write_bio_X509(bio, cert) != 1)
        tls_fail(err, ERR_INTERNAL, "could not print a certificate");
    else
        result = bio_to_buf(bio, out, err);
    BIO_free(bio);
    return result;
}

static X509 *cert_parse(const char *pem, struct err *err)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *cert = !bio ? NULL : PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    if (!cert)
        tls_fail(err, ERR_INVALID, "no certificate in PEM");
    return cert;
}

static X509_REQ *request_parse(const char *pem, struct err *err)
{
    BIO *bio = strlen(pem) > TLS_REQUEST_BYTES_MAX ? NULL : BIO_new_mem_buf(pem, -1);
    X509_REQ *request = !bio ? NULL : PEM_read_bio_X509_REQ(bio, NULL, NULL, NULL);
    BIO_free(bio);
    if (!request) {
        tls_fail(err, ERR_INVALID, "no certificate request in PEM");
        return NULL;
    }
    EVP_PKEY *key = X509_REQ_get0_pubkey(request);
    if (!key || X509_REQ_verify(request, key) != 1) {
        X509_REQ_free(request);
        tls_fail(err, ERR_INVALID, "the certificate request is not signed by its own key");
        return NULL;
    }
    return request;
}

static int extension_add(X509 *cert, X509 *issuer, int nid, const char *value, struct err *err)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    int good = extension && X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return good ? 0 : tls_fail(err, ERR_INTERNAL, "could not add a certificate extension");
}

/* Makes an X509 v3 certificate with a random serial number that is valid for 'seconds' from now and, because
 * clocks differ, for CLOCKS_DIFFER_S before. */
static X509 *cert_start(const char *common_name, X509 *issuer, EVP_PKEY *key, uint32_t seconds,
                        struct err *err)
{
    X509 *cert = X509_new();
    uint8_t serial[16];
    if (!cert || random_bytes(serial, sizeof(serial), err) < 0) {
        X509_free(cert);
        return NULL;
    }
    serial[0] = (uint8_t)((serial[0] & 0x7f) | 0x40);
    BIGNUM *number = BN_bin2bn(serial, sizeof(serial), NULL);
    X509_NAME *name = X509_get_subject_name(cert);
    int name_length = (int)strnlen(common_name, COMMON_NAME_MAX);
    int good = number && X509_set_version(cert, 2) == 1 &&
               BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) &&
               X509_gmtime_adj(X509_getm_notBefore(cert), -CLOCKS_DIFFER_S) &&
               X509_gmtime_adj(X509_getm_notAfter(cert), (long)seconds) &&
               X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)common_name,
                                          name_length, -1, 0) == 1 &&
               X509_set_issuer_name(cert, !issuer ? name : X509_get_subject_name(issuer)) == 1 &&
               X509_set_pubkey(cert, key) == 1;
    BN_free(number);
    if (!good) {
        X509_free(cert);
        tls_fail(err, ERR_INTERNAL, "could not make a certificate");
        return NULL;
    }
    return cert;
}

int tls_ca_create(const char *name, unsigned days, struct buf *cert_pem, struct buf *key_pem, struct err *err)
{
    int result = -1;
    X509 *cert = NULL;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    if (!key) {
        tls_fail(err, ERR_INTERNAL, "could not make a key");
        goto out;
    }
    cert = cert_start(name, NULL, key, days * 86400, err);
    if (!cert || extension_add(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0", err) < 0 ||
        extension_add(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign", err) < 0 ||
        extension_add(cert, cert, NID_subject_key_identifier, "hash", err) < 0) {
        goto out;
    }
    if (X509_sign(cert, key, EVP_sha256()) == 0) {
        tls_fail(err, ERR_INTERNAL, "could not sign the CA certificate");
        goto out;
    }
    result = cert_print(cert, cert_pem, err) < 0 || key_print(key, key_pem, err) < 0 ? -1 : 0;
out:
    X509_free(cert);
    EVP_PKEY_free(key);
    return result;
}

static EVP_PKEY *key_parse(const char *pem, struct err *err)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = !bio ? NULL : PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL);
    BIO_free(bio);
    if (!key)
        tls_fail(err, ERR_INVALID, "no private key in PEM");
    return key;
}

int tls_request_create(const char *identity, struct buf *key_pem, struct buf *csr_pem, struct err *err)
{
    if (!identity_valid(identity) || strlen(identity) > COMMON_NAME_MAX) {
        return err_set(err, ERR_INVALID, "\"%.80s\" is no identity to ask for: 1 to %d of [A-Za-z0-9._:/-]",
                       identity, COMMON_NAME_MAX);
    }
    int result = -1;
    bool given = key_pem->size > 0;
    EVP_PKEY *key = given ? key_parse(buf_str(key_pem), err) : EVP_EC_gen("P-256");
    if (given && !key)
        return -1;
    X509_REQ *request = X509_REQ_new();
    BIO *bio = BIO_new(BIO_s_mem());
    if (!key || !request || !bio ||
        X509_NAME_add_entry_by_txt(X509_REQ_get_subject_name(request), "CN", MBSTRING_UTF8,
                                   (const unsigned char *)identity, -1, -1, 0) != 1 ||
        X509_REQ_set_pubkey(request, key) != 1 || X509_REQ_sign(request, key, EVP_sha256()) == 0 ||
        PEM_write_bio_X509_REQ(bio, request) != 1) {
        tls_fail(err, ERR_INTERNAL, "could not make a certificate request");
        goto out;
    }
    result = (!given && key_print(key, key_pem, err) < 0) || bio_to_buf(bio, csr_pem, err) < 0 ? -1 : 0;
out:
    BIO_free(bio);
    X509_REQ_free(request);
    EVP_PKEY_free(key);
    return result;
}

/* Reads the CN of a name if it is a valid identity. */
static int name_identity(X509_NAME *name, char identity[TLS_IDENTITY_SIZE], struct err *err)
{
    int index = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
    const ASN1_STRING *text = index < 0 ? NULL : X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, index));
    int length = !text ? 0 : ASN1_STRING_length(text);
    if (length <= 0 || length >= TLS_IDENTITY_SIZE ||
        memchr(ASN1_STRING_get0_data(text), '\0', (size_t)length)) {
        return err_set(err, ERR_INVALID, "the certificate request names no identity");
    }
    memcpy(identity, ASN1_STRING_get0_data(text), (size_t)length);
    identity[length] = '\0';
    return identity_valid(identity)
               ? 0
               : err_set(err, ERR_INVALID, "the certificate request's identity is not valid");
}

/* Refuses a request with more than a name and a key, instead of ignoring the rest. */
static int request_is_plain(X509_REQ *request, struct err *err)
{
    STACK_OF(X509_EXTENSION) *wishes = X509_REQ_get_extensions(request);
    int more = !wishes ? 0 : sk_X509_EXTENSION_num(wishes);
    sk_X509_EXTENSION_pop_free(wishes, X509_EXTENSION_free);
    if (more > 0 || X509_NAME_entry_count(X509_REQ_get_subject_name(request)) != 1) {
        return err_set(err, ERR_INVALID,
                       "the certificate request asks for more than an identity (host names or extensions)");
    }
    return 0;
}

int tls_request_read(const char *csr_pem, char identity[TLS_IDENTITY_SIZE], uint8_t key[TLS_FINGERPRINT_SIZE],
                     struct err *err)
{
    X509_REQ *request = request_parse(csr_pem, err);
    if (!request)
        return -1;
    unsigned char *der = NULL;
    int size = i2d_X509_PUBKEY(X509_REQ_get_X509_PUBKEY(request), &der);
    int result = size > 0 ? digest_sha256(der, (size_t)size, key, err)
                          : tls_fail(err, ERR_INVALID, "the certificate request has no public key");
    if (result == 0)
        result = name_identity(X509_REQ_get_subject_name(request), identity, err);
    if (result == 0)
        result = request_is_plain(request, err);
    OPENSSL_free(der);
    X509_REQ_free(request);
    return result;
}

static bool host_valid(const char *host)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-*";
    size_t length = strlen(host);
    return length > 0 && length <= 253 && strspn(host, allowed) == length;
}

static int alternative_names(const char *identity, const char *const *hosts, unsigned host_count,
                             struct buf *out, struct err *err)
{
    if (buf_printf(out, err, "URI:%s%s", uri_prefix, identity) < 0)
        return -1;
    for (unsigned i = 0; i < host_count; i++) {
        uint8_t address[16];
        if (!host_valid(hosts[i]))
            return err_set(err, ERR_INVALID, "\"%.80s\" is no host name or address", hosts[i]);
        bool numeric =
            inet_pton(AF_INET, hosts[i], address) == 1 || inet_pton(AF_INET6, hosts[i], address) == 1;
        if (buf_printf(out, err, ",%s:%s", numeric ? "IP" : "DNS", hosts[i]) < 0)
            return -1;
    }
    return 0;
}

int tls_issue(const struct tls_ca *signer, const char *csr_pem, const struct tls_grant *grant,
              struct buf *cert_pem, struct err *err)
{
    const char *identity = grant->identity;
    if (!identity_valid(identity)) {
        return err_set(err, ERR_INVALID, "\"%.80s\" is no identity: 1 to %d of [A-Za-z0-9._:/-]", identity,
                       IDENTITY_LENGTH_MAX);
    }
    if (grant->host_count > 0 && strncmp(identity, "agent:", 6) == 0)
        return err_set(err, ERR_INVALID, "an agent's certificate names no host");
    int result = -1;
    struct buf names;
    buf_init(&names, 16384);
    X509 *cert = NULL;
    EVP_PKEY *ca_key = NULL;
    X509_REQ *request = NULL;
    X509 *ca = cert_parse(signer->cert_pem, err);
    if (!ca || !(ca_key = key_parse(signer->key_pem, err)) || !(request = request_parse(csr_pem, err)))
        goto out;
    if (X509_check_private_key(ca, ca_key) != 1) {
        tls_fail(err, ERR_INVALID, "the CA's key is not that of its certificate");
        goto out;
    }
    if (alternative_names(identity, grant->hosts, grant->host_count, &names, err) < 0)
        goto out;
    cert = cert_start(identity, ca, X509_REQ_get0_pubkey(request), grant->seconds, err);
    if (!cert || extension_add(cert, ca, NID_basic_constraints, "critical,CA:FALSE", err) < 0 ||
        extension_add(cert, ca, NID_key_usage, "critical,digitalSignature", err) < 0 ||
        extension_add(cert, ca, NID_ext_key_usage, "serverAuth,clientAuth", err) < 0 ||
        extension_add(cert, ca, NID_authority_key_identifier, "keyid", err) < 0 ||
        extension_add(cert, ca, NID_subject_alt_name, buf_str(&names), err) < 0) {
        goto out;
    }
    if (X509_sign(cert, ca_key, EVP_sha256()) == 0) {
        tls_fail(err, ERR_INTERNAL, "could not sign a certificate");
        goto out;
    }
    result = cert_print(cert, cert_pem, err);
out:
    X509_free(cert);
    X509_REQ_free(request);
    EVP_PKEY_free(ca_key);
    X509_free(ca);
    buf_fini(&names);
    return result;
}

/* Reads the identity in a certificate of the cluster. False when it has none. */
static bool cert_identity(X509 *cert, char identity[TLS_IDENTITY_SIZE])
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    bool found = false;
    for (int i = 0; names && !found && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != GEN_URI)
            continue;
        const char *uri = (const char *)ASN1_STRING_get0_data(name->d.uniformResourceIdentifier);
        size_t length = (size_t)ASN1_STRING_length(name->d.uniformResourceIdentifier);
        size_t prefix = sizeof(uri_prefix) - 1;
        if (length > prefix && length - prefix < TLS_IDENTITY_SIZE && memcmp(uri, uri_prefix, prefix) == 0 &&
            !memchr(uri, '\0', length)) {
            memcpy(identity, uri + prefix, length - prefix);
            identity[length - prefix] = '\0';
            found = identity_valid(identity);
        }
    }
    GENERAL_NAMES_free(names);
    return found;
}

static int64_t seconds_of(const ASN1_TIME *time)
{
    struct tm parts;
    return ASN1_TIME_to_tm(time, &parts) == 1 ? (int64_t)timegm(&parts) : 0;
}

int64_t tls_context_ends(const SSL_CTX *context)
{
    return seconds_of(X509_get0_notAfter(SSL_CTX_get0_certificate(context)));
}

int tls_certificate_read(const char *cert_pem, char identity[TLS_IDENTITY_SIZE], int64_t *issued_s,
                         int64_t *ends_s, struct err *err)
{
    X509 *cert = cert_parse(cert_pem, err);
    if (!cert)
        return -1;
    *issued_s = seconds_of(X509_get0_notBefore(cert)) + CLOCKS_DIFFER_S;
    *ends_s = seconds_of(X509_get0_notAfter(cert));
    bool found = cert_identity(cert, identity);
    X509_free(cert);
    return found ? 0 : err_set(err, ERR_INVALID, "the certificate has no cluster identity");
}

int tls_certificate_check(const char *cert_pem, const char *ca_pem, const char *key_pem, struct err *err)
{
    X509 *cert = cert_parse(cert_pem, err), *ca;
    EVP_PKEY *key = cert ? key_parse(key_pem, err) : NULL;
    BIO *bio = key ? BIO_new_mem_buf(ca_pem, -1) : NULL;
    bool is_signed = false;
    int result = key ? 0 : -1;
    while (bio && !is_signed && (ca = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        is_signed = X509_verify(cert, X509_get0_pubkey(ca)) == 1;
        X509_free(ca);
    }
    if (key && X509_check_private_key(cert, key) != 1)
        result = err_set(err, ERR_PEER, "the certificate is for another key");
    else if (key && !is_signed)
        result = err_set(err, ERR_PEER, "the certificate is signed by another CA");
    ERR_clear_error();
    BIO_free(bio);
    EVP_PKEY_free(key);
    X509_free(cert);
    return result;
}

int tls_fingerprint(const char *cert_pem, uint8_t out[TLS_FINGERPRINT_SIZE], struct err *err)
{
    X509 *cert = cert_parse(cert_pem, err);
    if (!cert)
        return -1;
    int good = X509_digest(cert, EVP_sha256(), out, NULL) == 1;
    X509_free(cert);
    return good ? 0 : tls_fail(err, ERR_INTERNAL, "could not take a certificate's fingerprint");
}

int tls_join_token_format(const char *secret, const uint8_t ca[TLS_FINGERPRINT_SIZE],
                          char out[TLS_JOIN_TOKEN_SIZE], struct err *err)
{
    size_t length = strlen(secret);
    if (length == 0 || length > 95 || strchr(secret, '.'))
        return err_set(err, ERR_INVALID, "a join token's secret has 1 to 95 characters and no point");
    memcpy(out, secret, length);
    out[length] = '.';
    digest_hex(ca, TLS_FINGERPRINT_SIZE, out + length + 1);
    return 0;
}

int tls_join_token_parse(const char *token, char secret[96], uint8_t ca[TLS_FINGERPRINT_SIZE],
                         struct err *err)
{
    const char *point = strchr(token, '.');
    size_t length = !point ? 0 : (size_t)(point - token);
    if (length == 0 || length > 95 || digest_unhex(point + 1, ca, TLS_FINGERPRINT_SIZE) < 0) {
        return err_set(err, ERR_INVALID,
                       "that is no join token (SECRET.FINGERPRINT, as motley join-token prints it)");
    }
    memcpy(secret, token, length);
    secret[length] = '\0';
    return 0;
}

/* ---- contexts ---- */

static bool is_client(enum tls_role role)
{
    return role == TLS_ROLE_CLIENT || role == TLS_ROLE_PEER;
}

static int context_files(SSL_CTX *context, const struct tls_files *files, enum tls_role role, struct err *err)
{
    X509_STORE *store = X509_STORE_new(); /* else a CA that left the file would be trusted on */
    if (!store)
        return tls_fail(err, ERR_NOMEM, "could not make a TLS context");
    SSL_CTX_set_cert_store(context, store);
    if (!files->ca_file || SSL_CTX_load_verify_file(context, files->ca_file) != 1) {
        err_set(err, ERR_IO, "could not read the CA certificate \"%s\"",
                !files->ca_file ? "" : files->ca_file);
        ERR_clear_error();
        return -1;
    }
    if (!files->cert_file || !files->key_file) {
        return is_client(role) ? 0
                               : err_set(err, ERR_INVALID, "a TLS server needs a certificate and its key");
    }
    if (SSL_CTX_use_certificate_chain_file(context, files->cert_file) != 1) {
        err_set(err, ERR_IO, "could not read the certificate \"%s\"", files->cert_file);
        ERR_clear_error();
        return -1;
    }
    if (SSL_CTX_use_PrivateKey_file(context, files->key_file, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1) {
        err_set(err, ERR_IO, "could not use the key \"%s\" with the certificate \"%s\"", files->key_file,
                files->cert_file);
        ERR_clear_error();
        return -1;
    }
    return 0;
}

/* Sends the CA with a server's certificate, so that a joining node can identify it by its fingerprint. */
static int context_send_ca(SSL_CTX *context, const char *ca_file, struct err *err)
{
    BIO *bio = BIO_new_file(ca_file, "r");
    X509 *ca = !bio ? NULL : PEM_read_bio_X509(bio, NULL, NULL, NULL);
    BIO_free(bio);
    if (!ca || SSL_CTX_add1_chain_cert(context, ca) != 1) {
        X509_free(ca);
        return tls_fail(err, ERR_IO, "could not read the CA certificate");
    }
    X509_free(ca);
    return 0;
}

/* Checks that a server's certificate has a "server:" identity. A chain to our CA is not enough, because every
 * agent has one. */
static int server_check(X509_STORE_CTX *store_context)
{
    char identity[TLS_IDENTITY_SIZE];
    X509 *cert = X509_STORE_CTX_get0_cert(store_context);
    if (cert_identity(cert, identity) && strncmp(identity, "server:", 7) == 0)
        return 1;
    X509_STORE_CTX_set_error(store_context, X509_V_ERR_APPLICATION_VERIFICATION);
    return 0;
}

static int server_verify(X509_STORE_CTX *store_context, void *arg)
{
    (void)arg;
    return X509_verify_cert(store_context) == 1 ? server_check(store_context) : 0;
}

/* As server_verify; but a certificate that has no identity is good, too, for the cluster's CA signs none. */
static int web_server_verify(X509_STORE_CTX *store_context, void *arg)
{
    char identity[TLS_IDENTITY_SIZE];
    (void)arg;
    if (X509_verify_cert(store_context) != 1)
        return 0;
    return !cert_identity(X509_STORE_CTX_get0_cert(store_context), identity) || server_check(store_context);
}

void tls_context_server(SSL_CTX *context)
{
    SSL_CTX_set_cert_verify_callback(context, web_server_verify, NULL);
}

int tls_context_reload(SSL_CTX *context, const struct tls_files *files, enum tls_role role, struct err *err)
{
    return context_files(context, files, role, err) < 0 ||
                   (!is_client(role) && context_send_ca(context, files->ca_file, err) < 0)
               ? -1
               : 0;
}

SSL_CTX *tls_context_create(const struct tls_files *files, enum tls_role role, struct err *err)
{
    SSL_CTX *context = SSL_CTX_new(is_client(role) ? TLS_client_method() : TLS_server_method());
    if (!context) {
        tls_fail(err, ERR_INTERNAL, "could not make a TLS context");
        return NULL;
    }
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    /* AES comes first, because both ends have CPU instructions for it: 2.3 GB/s per core, 1.5 GB/s with
     * ChaCha20. */
    SSL_CTX_set_ciphersuites(context,
                             "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
    int verify =
        role == TLS_ROLE_SERVER ? SSL_VERIFY_NONE : SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
    SSL_CTX_set_verify(context, verify, NULL);
    SSL_CTX_set_verify_depth(context, 2);
    if (role == TLS_ROLE_CLIENT)
        SSL_CTX_set_cert_verify_callback(context, server_verify, NULL);
    if (tls_context_reload(context, files, role, err) < 0) {
        SSL_CTX_free(context);
        return NULL;
    }
    return context;
}

void tls_context_free(SSL_CTX *context)
{
    SSL_CTX_free(context);
}

/* Verifies the peer's chain against the one CA in it that has the pinned fingerprint. */
static int pinned_verify(X509_STORE_CTX *store_context, void *arg)
{
    const uint8_t *wanted = arg;
    STACK_OF(X509) *sent = X509_STORE_CTX_get0_untrusted(store_context);
    STACK_OF(X509) *trusted = sk_X509_new_null();
    int found = 0;
    for (int i = 0; sent && trusted && i < sk_X509_num(sent) && i < 8; i++) {
        uint8_t is[TLS_FINGERPRINT_SIZE];
        X509 *cert = sk_X509_value(sent, i);
        if (X509_check_ca(cert) > 0 && X509_digest(cert, EVP_sha256(), is, NULL) == 1 &&
            digest_equal(is, wanted, sizeof(is))) {
            found = sk_X509_push(trusted, cert) > 0;
        }
    }
    int good = 0;
    if (found) {
        X509_STORE_CTX_set0_trusted_stack(store_context, trusted);
        good = X509_verify_cert(store_context) == 1 ? server_check(store_context) : 0;
    } else {
        X509_STORE_CTX_set_error(store_context, X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN);
    }
    sk_X509_free(trusted);
    return good;
}

void tls_context_pin(SSL_CTX *context, const uint8_t *fingerprint)
{
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_cert_verify_callback(context, pinned_verify, (void *)(uintptr_t)fingerprint);
}

SSL *tls_client_create(SSL_CTX *context, const char *host, struct err *err)
{
    SSL *ssl = SSL_new(context);
    if (!ssl) {
        tls_fail(err, ERR_NOMEM, "could not make a TLS connection");
        return NULL;
    }
    if (host) {
        uint8_t address[16];
        bool numeric = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
        X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
        int good =
            numeric ? X509_VERIFY_PARAM_set1_ip_asc(param, host)
                    : X509_VERIFY_PARAM_set1_host(param, host, 0) == 1 && SSL_set_tlsext_host_name(ssl, host);
        if (!good) {
            SSL_free(ssl);
            tls_fail(err, ERR_INVALID, "that host name cannot be checked");
            return NULL;
        }
    }
    SSL_set_connect_state(ssl);
    return ssl;
}

int tls_peer_identity(SSL *ssl, char identity[TLS_IDENTITY_SIZE], struct err *err)
{
    X509 *cert = SSL_get0_peer_certificate(ssl);
    if (!cert)
        return err_set(err, ERR_PEER, "the peer showed no certificate");
    if (SSL_get_verify_result(ssl) != X509_V_OK) {
        return err_set(err, ERR_PEER, "the peer's certificate is not of this cluster: %s",
                       X509_verify_cert_error_string(SSL_get_verify_result(ssl)));
    }
    return cert_identity(cert, identity)
               ? 0
               : err_set(err, ERR_PEER, "the peer's certificate has no cluster identity");
}

int tls_peer_check(SSL *ssl, const char *wanted, struct err *err)
{
    char identity[TLS_IDENTITY_SIZE];
    if (tls_peer_identity(ssl, identity, err) < 0)
        return -1;
    if (strcmp(identity, wanted) != 0)
        return err_set(err, ERR_PEER, "the peer is %s, expected was %s", identity, wanted);
    return 0;
}

int tls_error(SSL *ssl, const char *peer, unsigned long code, struct err *err)
{
    long verify = !ssl ? X509_V_OK : SSL_get_verify_result(ssl);
    ERR_clear_error();
    if (verify == X509_V_ERR_HOSTNAME_MISMATCH || verify == X509_V_ERR_IP_ADDRESS_MISMATCH)
        return err_set(err, ERR_PEER, "peer %s has a certificate for another host", peer);
    if (verify == X509_V_ERR_APPLICATION_VERIFICATION) {
        return err_set(err, ERR_PEER,
                       "peer %s is no server of this cluster: its certificate is of another kind", peer);
    }
    if (verify == X509_V_ERR_CERT_HAS_EXPIRED || verify == X509_V_ERR_CERT_NOT_YET_VALID) {
        return err_set(err, ERR_PEER, "peer %s: its %s (check both clocks)", peer,
                       X509_verify_cert_error_string(verify));
    }
    if (verify != X509_V_OK) {
        return err_set(err, ERR_PEER,
                       "peer %s belongs to another cluster: its certificate is not of our CA (%s)", peer,
                       X509_verify_cert_error_string(verify));
    }
    if (ERR_SYSTEM_ERROR(code))
        return err_errno(err, ERR_NET, ERR_GET_REASON(code), "peer %s", peer);
    /* libevent also returns the small numbers of SSL_get_error, which have no library and no reason. */
    int reason = ERR_GET_LIB(code) > ERR_LIB_SYS ? ERR_GET_REASON(code) : 0;
    switch (reason) {
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
        return err_set(err, ERR_PEER, "peer %s refused our certificate: it belongs to another cluster", peer);
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return err_set(err, ERR_PEER, "peer %s: a certificate is required", peer);
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        return err_set(err, ERR_PEER, "peer %s refused our certificate: it has expired", peer);
    case 0:
        return err_set(err, ERR_NET, "peer %s closed the connection", peer);
    default:
        return err_set(err, ERR_PEER, "peer %s: TLS failed: %s", peer,
                       !ERR_reason_error_string(code) ? "no reason given" : ERR_reason_error_string(code));
    }
}
