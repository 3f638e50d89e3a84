/* All of TLS: the cluster's CA, certificates, contexts and the check of a peer's identity. No other file
 * makes an SSL_CTX. Only TLS 1.3 is used, without session tickets (a reset after close has been seen to lose
 * up to 4 MiB).
 *
 * An identity is "agent:NODE:GENERATION", "server:NAME" or "client:NAME" (at most 90 characters of
 * [A-Za-z0-9._:/-]); the certificate has it as the URI SAN "motley:IDENTITY". An agent's generation rises
 * whenever its node is enrolled again or removed, and its certificate names no host, so it can pose neither
 * as an earlier or later holder of the name nor as a server. Keys are P-256. All processes of a node, its
 * workers included, use the node's certificate. Texts are PEM. Thread: contexts may be shared once made.
 */
#ifndef MOTLEY_COMMON_TLS_H
#define MOTLEY_COMMON_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

enum {
    TLS_IDENTITY_SIZE = 96,
    TLS_FINGERPRINT_SIZE = 32,
    TLS_JOIN_TOKEN_SIZE = 160,
    TLS_REQUEST_BYTES_MAX = 16384 /* largest certificate request in PEM */
};

/* Writes "agent:NODE:GENERATION". */
void tls_agent_identity(const char *node, int64_t generation, char identity[TLS_IDENTITY_SIZE]);

/* Makes a CA certificate (self-signed) and its key, and appends both as PEM. */
int tls_ca_create(const char *name, unsigned days, struct buf *cert_pem, struct buf *key_pem,
                  struct err *err);

/* Makes a certificate request for 'identity' (at most 64 characters here; an agent requests "agent:NODE",
 * because the cluster assigns its generation). It is signed by the key in 'key_pem' or, if that is empty, by
 * a new one that is written there. */
int tls_request_create(const char *identity, struct buf *key_pem, struct buf *csr_pem, struct err *err);

/* Reads the identity that a request asks for and the SHA-256 of its public key, and checks its own signature.
 * ERR_INVALID also for a request that asks for anything else, such as host names. */
int tls_request_read(const char *csr_pem, char identity[TLS_IDENTITY_SIZE], uint8_t key[TLS_FINGERPRINT_SIZE],
                     struct err *err);

/* A CA that signs. */
struct tls_ca {
    const char *cert_pem, *key_pem;
};
/* What a new certificate states. */
struct tls_grant {
    const char *identity;
    const char *const *hosts; /* [host_count] DNS names and IP addresses; an agent has none */
    unsigned host_count;
    uint32_t seconds; /* how long the certificate is valid, from now */
};
/* Signs a certificate for the key of 'csr_pem'; nothing else of the request is used. The certificate is valid
 * for servers and clients. Appends it. */
int tls_issue(const struct tls_ca *signer, const char *csr_pem, const struct tls_grant *grant,
              struct buf *cert_pem, struct err *err);

/* Reads a certificate of the cluster: its identity, and when it was issued and ends, in seconds since 1970.
 */
int tls_certificate_read(const char *cert_pem, char identity[TLS_IDENTITY_SIZE], int64_t *issued_s,
                         int64_t *ends_s, struct err *err);

/* Checks that a certificate is signed by one of these CAs and is for the key in 'key_pem': ERR_PEER says what
 * it is not. */
int tls_certificate_check(const char *cert_pem, const char *ca_pem, const char *key_pem, struct err *err);

/* Signs a certificate anew, for the same key and names. Appends it. */
int tls_reissue(const struct tls_ca *signer, const char *old_pem, uint32_t seconds, struct buf *cert_pem,
                struct err *err);

/* ---- exchanging the CA: a file of CAs may hold two while one is exchanged for the other, and their
 * vouchers: each one's signature of the other's certificate, in PEM that other programs pass over ---- */

/* Appends the voucher of 'signer' for the certificate 'cert_pem'. */
int tls_vouch(const struct tls_ca *signer, const char *cert_pem, struct buf *out, struct err *err);
/* Appends certificate number 'index' of a file of CAs. Returns 1, or 0 if there are no more. */
int tls_bundle_at(const char *bundle_pem, unsigned index, struct buf *cert_pem, struct err *err);
/* Checks that each CA of 'offered' is one of 'known', or that one of these vouches for it; else ERR_PEER. */
int tls_bundle_follows(const char *known, const char *offered, struct err *err);

/* Writes the SHA-256 of a certificate's DER. */
int tls_fingerprint(const char *cert_pem, uint8_t out[TLS_FINGERPRINT_SIZE], struct err *err);

/* Formats and parses join tokens, "SECRET.HEX(fingerprint of the CA)". The parsed secret is NUL-terminated
 * and at most 95 characters. */
int tls_join_token_format(const char *secret, const uint8_t ca[TLS_FINGERPRINT_SIZE],
                          char out[TLS_JOIN_TOKEN_SIZE], struct err *err);
int tls_join_token_parse(const char *token, char secret[96], uint8_t ca[TLS_FINGERPRINT_SIZE],
                         struct err *err);

enum tls_role {
    TLS_ROLE_SERVER,        /* presents a certificate with its CA, requires none */
    TLS_ROLE_SERVER_MUTUAL, /* presents a certificate and requires one of the cluster */
    TLS_ROLE_CLIENT, /* verifies the server by the CA and its identity "server:"; presents its certificate if
                        it has one */
    TLS_ROLE_PEER,   /* connects to an equal peer and verifies it by the CA; the caller checks its identity
                        later */
};

struct tls_files {
    const char *ca_file;   /* PEM; required */
    const char *cert_file; /* PEM; required for servers and mutual clients, else NULL */
    const char *key_file;
};

/* Makes a context (free with tls_context_free), or returns NULL. ERR_IO and ERR_INVALID name the file. */
SSL_CTX *tls_context_create(const struct tls_files *files, enum tls_role role, struct err *err);

/* Gives 'context' the certificate that is now in its files, for later connections. No other thread may use
 * the context meanwhile. */
int tls_context_reload(SSL_CTX *context, const struct tls_files *files, enum tls_role role, struct err *err);

/* Frees a context; its connections may continue. NULL is a no-op. */
void tls_context_free(SSL_CTX *context);

/* When the context's own certificate ends (seconds since 1970). */
int64_t tls_context_ends(const SSL_CTX *context);

/* Makes a client's 'context' (curl's, for instance) require a "server:" identity in addition to a valid chain
 * where the certificate has an identity, as all that the cluster's CA signs have. Another CA's, of a web
 * server before the api, have none. */
void tls_context_server(SSL_CTX *context);

/* Makes a client's 'context' require a "server:" identity and trust only the CA
 * whose certificate has this fingerprint (32 bytes, borrowed for the context's lifetime). The server must
 * send that CA with its own certificate. */
void tls_context_pin(SSL_CTX *context, const uint8_t *fingerprint);

/* Makes a client's connection that expects the DNS name or address 'host' in the peer's certificate (NULL:
 * only the cluster identity is checked, later). Returns new (SSL_free), or NULL. */
SSL *tls_client_create(SSL_CTX *context, const char *host, struct err *err);

/* Reads the peer's cluster identity after the handshake. ERR_PEER when it has none. */
int tls_peer_identity(SSL *ssl, char identity[TLS_IDENTITY_SIZE], struct err *err);

/* Checks that the peer's identity is exactly 'wanted': else ERR_PEER names both. */
int tls_peer_check(SSL *ssl, const char *wanted, struct err *err);

/* Explains why the handshake or a read with 'peer' (a name for people) failed, from the verification result,
 * the peer's alert or OpenSSL's error 'code' (ERR_get_error or bufferevent_get_openssl_error; 0: none known):
 * "peer 10.0.0.2:7000 belongs to another cluster: …". Always returns -1, with ERR_PEER, or ERR_NET when trust
 * was not the reason. Clears OpenSSL's error queue. */
int tls_error(SSL *ssl, const char *peer, unsigned long code, struct err *err);

#endif
