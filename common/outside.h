/* Addresses that users name and this program opens: which texts are such addresses, and which machines are
 * outside the cluster's own network. Pure, but for the addresses of this machine, which the system is asked
 * for; any thread. */
#ifndef MOTLEY_COMMON_OUTSIDE_H
#define MOTLEY_COMMON_OUTSIDE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/err.h"

enum { OUTSIDE_URL_BYTES = 1001, OUTSIDE_HOST_BYTES = 254 }; /* each with the NUL */

struct outside_url {
    bool mail;                     /* mailto:, whose host is the mailbox's domain */
    bool tls;                      /* https:// */
    char host[OUTSIDE_HOST_BYTES]; /* in lower case; of an IPv6 address without brackets */
    uint16_t port;
    char origin[OUTSIDE_HOST_BYTES + 24]; /* "https://host:port" */
    char path[OUTSIDE_URL_BYTES + 1];     /* from "/" on, with the query; of mailto: the mailbox */
};

/* Reads an https://, http:// or mailto: address; the latter has one mailbox, NAME@DOMAIN. Letters, digits,
 * dots and hyphens make a host, or brackets an IPv6 address; names of users, fragments, spaces and what is
 * not ASCII are refused. ERR_INVALID says why. */
int outside_url_read(const char *text, struct outside_url *url, struct err *err);

/* Whether everybody reaches this address: one of IPv4 or IPv6 that the registries of IANA (special-purpose
 * addresses, RFC 6890) hold to be globally reachable, and none of this machine. Where the machine's addresses
 * cannot be had, none is. */
bool outside_is_public(const struct sockaddr *address);

#endif
