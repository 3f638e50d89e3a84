/* Sends one message by SMTP (libcurl). Blocking; never for an event loop's thread. */
#ifndef MOTLEY_COMMON_MAIL_H
#define MOTLEY_COMMON_MAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* All texts are borrowed for the call. */
struct mail {
    const char *server;           /* "smtp://HOST[:PORT]", with STARTTLS unless `plain`, or smtps:// */
    bool plain;                   /* for a server on this machine: smtp:// without TLS */
    const char *from, *to;        /* mailboxes: "ada@lab.example" */
    const char *user, *password;  /* NULL: the server asks for none */
    const char *ca_file;          /* NULL: the system's authorities */
    const char *text;             /* header and body, lines ended by CR LF */
    uint32_t connect_ms, most_ms; /* for the connection, and for all of it */
    bool (*stopped)(const void *arg);
    const void *stopped_arg;
};

/* ERR_INVALID: the server refuses the message for good (a status of 5xx); ERR_CANCELLED: it was stopped; any
 * other error may pass. */
int mail_send(const struct mail *mail, struct err *err);

#endif
