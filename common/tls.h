/* Everything TLS: the cluster's CA, certificates, contexts and the check of who the peer is. No other file
 * makes an SSL_CTX. TLS 1.3 only; session tickets off (a reset after close has been seen to lose up to 4
 * MiB).
 *
 * An identity is "agent:NODE:GENERATION", "server:NAME" or "client:NAME" (at most 90 characters of
 * [A-Za-z0-9._:/-]); it stands as the URI SAN "motley:IDENTITY" in the certificate. An agent's generation
 * rises whenever its node is enrolled anew or removed, and its certificate names no host: it can pose neither
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
    TLS_REQUEST_BYTES_MAX = 16384 /* of a certificate request in PEM */
};

/* "agent:NODE:GENERATION" */
void tls_agent_identity(const char *node, int64_t generation, char identity[TLS_IDENTITY_SIZE]);

/* A new CA certificate (self-signed) and its key, appended as PEM. */
int tls_ca_create(const char *name, unsigned days, struct buf *cert_pem, struct buf *key_pem,
                  struct err *err);

/* A request for 'identity' (at most 64 characters here; an agent asks for "agent:NODE", its generation is the
 * cluster's to give), signed by the key in 'key_pem', or, where that is empty, by a new one put there. */
int tls_request_create(const char *identity, struct buf *key_pem, struct buf *csr_pem, struct err *err);

/* The identity a request asks for and SHA-256 of its public key, its self-signature checked. ERR_INVALID too
 * for one that asks for anything beside an identity (host names, for instance). */
int tls_request_read(const char *csr_pem, char identity[TLS_IDENTITY_SIZE], uint8_t key[TLS_FINGERPRINT_SIZE],
                     struct err *err);

/* Sign 'csr_pem' with the CA for 'identity' (the request's own wish is not looked at beyond its key), for
 * 'seconds' from now. 'hosts' are DNS names and IP addresses, count of them 'host_count'; an agent has none.
 * Good as server and client. Appends the certificate. */
int tls_issue(const char *ca_cert_pem, const char *ca_key_pem, const char *csr_pem, const char *identity,
              const char *const *hosts, unsigned host_count, uint32_t seconds, struct buf *cert_pem,
              struct err *err);

/* A certificate of the cluster: its identity, when it was issued and when it ends, in seconds since 1970. */
int tls_certificate_read(const char *cert_pem, char identity[TLS_IDENTITY_SIZE], int64_t *issued_s,
                         int64_t *ends_s, struct err *err);

/* SHA-256 of a certificate's DER. */
int tls_fingerprint(const char *cert_pem, uint8_t out[TLS_FINGERPRINT_SIZE], struct err *err);

/* Join tokens: "SECRET.HEX(fingerprint of the CA)". 'secret' out is NUL-terminated, at most 95 characters. */
int tls_join_token_format(const char *secret, const uint8_t ca[TLS_FINGERPRINT_SIZE],
                          char out[TLS_JOIN_TOKEN_SIZE], struct err *err);
int tls_join_token_parse(const char *token, char secret[96], uint8_t ca[TLS_FINGERPRINT_SIZE],
                         struct err *err);

enum tls_role {
    TLS_ROLE_SERVER,        /* presents a certificate (and the CA behind it), asks for none */
    TLS_ROLE_SERVER_MUTUAL, /* … and requires one of the cluster */
    TLS_ROLE_CLIENT,        /* verifies the server by the CA, and that it is a "server:" of the cluster;
                               presents its certificate if it has one */
    TLS_ROLE_PEER,          /* dials one like itself: verifies it by the CA; who it is, is checked later */
};

struct tls_files {
    const char *ca_file;   /* PEM; required */
    const char *cert_file; /* PEM; required for servers and mutual clients, else NULL */
    const char *key_file;
};

/* Returns new (tls_context_free), or NULL. ERR_IO, ERR_INVALID name the file. */
SSL_CTX *tls_context_create(const struct tls_files *files, enum tls_role role, struct err *err);

/* Give 'context' the certificate that now stands in its files, for connections made from now on. Nobody else
 * may use the context meanwhile. */
int tls_context_reload(SSL_CTX *context, const struct tls_files *files, enum tls_role role, struct err *err);

/* NULL is fine. Connections made from it may live on. */
void tls_context_free(SSL_CTX *context);

/* Make 'context' (a client's, of curl for instance) insist on a "server:" of the cluster beside the chain. */
void tls_context_server(SSL_CTX *context);

/* The same, and make it trust exactly the CA whose certificate has this
 * fingerprint, which the server must send behind its own. 'fingerprint' (32 bytes) is borrowed for the
 * context's life. */
void tls_context_pin(SSL_CTX *context, const uint8_t *fingerprint);

/* A connection of 'context' for a client that expects the DNS name or address 'host' in the peer's
 * certificate (NULL: only the cluster identity is checked, later). Returns new (SSL_free), or NULL. */
SSL *tls_client_create(SSL_CTX *context, const char *host, struct err *err);

/* After the handshake: the peer's cluster identity. ERR_PEER when it has none. */
int tls_peer_identity(SSL *ssl, char identity[TLS_IDENTITY_SIZE], struct err *err);

/* … and that it is 'wanted' exactly: else ERR_PEER naming both. */
int tls_peer_check(SSL *ssl, const char *wanted, struct err *err);

/* Say why the handshake or a read with 'peer' (a name for people) failed: the verification result, the peer's
 * alert or OpenSSL's error 'code' (ERR_get_error or bufferevent_get_openssl_error; 0: none known).
 * "peer 10.0.0.2:7000 belongs to another cluster: …". Always -1; ERR_PEER, or ERR_NET when it was no matter
 * of trust. Clears OpenSSL's queue. */
int tls_error(SSL *ssl, const char *peer, unsigned long code, struct err *err);

#endif
