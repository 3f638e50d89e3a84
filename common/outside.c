#include "common/outside.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads ":PORT" or nothing. */
static bool port_read(const char *text, size_t size, uint16_t *port)
{
    unsigned value = 0;
    if (size == 0)
        return true;
    if (text[0] != ':' || size < 2 || size > 6)
        return false;
    for (size_t i = 1; i < size; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    *port = (uint16_t)value;
    return value >= 1 && value <= UINT16_MAX;
}

/* Copies the host in lower case, of letters, digits and 'also'. */
static bool host_read(const char *text, size_t size, const char *also, char host[OUTSIDE_HOST_BYTES])
{
    if (size == 0 || size >= OUTSIDE_HOST_BYTES)
        return false;
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x80 || (!isalnum(c) && !strchr(also, c)))
            return false;
        host[i] = (char)tolower(c);
    }
    host[size] = '\0';
    return true;
}

/* Reads NAME@DOMAIN. */
static int mailbox_read(const char *text, struct outside_url *url, struct err *err)
{
    const char *at = strrchr(text, '@');
    const size_t name = at ? (size_t)(at - text) : 0;
    bool good =
        name >= 1 && name <= 64 && text[0] != '-' && host_read(at + 1, strlen(at + 1), ".-", url->host);
    for (size_t i = 0; i < name; i++)
        good = good && (isalnum((unsigned char)text[i]) || strchr(".-_+", text[i])) && (text[i] & 0x80) == 0;
    if (!good)
        return err_set(err, ERR_INVALID, "mailto:%.80s is no mailbox such as mailto:ada@lab.example", text);
    url->mail = true;
    snprintf(url->origin, sizeof(url->origin), "mail to %s", url->host);
    snprintf(url->path, sizeof(url->path), "%.*s@%s", (int)name, text, url->host);
    return 0;
}

int outside_url_read(const char *text, struct outside_url *url, struct err *err)
{
    *url = (struct outside_url){.tls = strncmp(text, "https://", 8) == 0};
    if (strlen(text) >= OUTSIDE_URL_BYTES)
        return err_set(err, ERR_INVALID, "an address has at most %d bytes", OUTSIDE_URL_BYTES - 1);
    if (strncmp(text, "mailto:", 7) == 0)
        return mailbox_read(text + 7, url, err);
    if (!url->tls && strncmp(text, "http://", 7) != 0)
        return err_set(err, ERR_INVALID,
                       "\"%.80s\" does not begin with https:// or http://, nor with mailto:", text);
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c > '~' || strchr("#\\\"<>^`{|}", *c))
            return err_set(err, ERR_INVALID, "\"%.80s\" has a character that no address has, or a fragment",
                           text);
    const char *authority = text + (url->tls ? 8 : 7);
    const size_t size = strcspn(authority, "/?");
    const char *end = authority[0] == '[' ? memchr(authority, ']', size) : NULL;
    const size_t host = end ? (size_t)(end - authority) + 1 : strcspn(authority, ":/?");
    struct in6_addr v6;
    url->port = url->tls ? 443 : 80;
    const bool good =
        end ? host_read(authority + 1, host - 2, ":.", url->host) && inet_pton(AF_INET6, url->host, &v6) == 1
            : host_read(authority, host, ".-", url->host);
    if (!good || !port_read(authority + host, size - host, &url->port))
        return err_set(err, ERR_INVALID, "\"%.80s\" names no host, or it names more than host and port",
                       text);
    snprintf(url->origin, sizeof(url->origin), "%s://%s%s%s:%u", url->tls ? "https" : "http", end ? "[" : "",
             url->host, end ? "]" : "", url->port);
    snprintf(url->path, sizeof(url->path), "%s%s", authority[size] == '/' ? "" : "/", authority + size);
    return 0;
}

/* Not globally reachable, by https://www.iana.org/assignments/iana-ipv4-special-registry; multicast and what
 * is reserved are, too. */
static const struct {
    uint32_t network;
    unsigned bits;
} v4_inside[] = {{0x00000000, 8},  {0x0a000000, 8},  {0x64400000, 10}, {0x7f000000, 8},  {0xa9fe0000, 16},
                 {0xac100000, 12}, {0xc0000000, 24}, {0xc0000200, 24}, {0xc0586300, 24}, {0xc0a80000, 16},
                 {0xc6120000, 15}, {0xc6336400, 24}, {0xcb007100, 24}, {0xe0000000, 4},  {0xf0000000, 4}};

static bool v4_is_public(uint32_t address)
{
    for (size_t i = 0; i < sizeof(v4_inside) / sizeof(v4_inside[0]); i++)
        if ((address ^ v4_inside[i].network) >> (32 - v4_inside[i].bits) == 0)
            return false;
    return true;
}

/* Of IPv6 only 2000::/3 is given out. In it these are not: 2001::/23 (protocols, with Teredo), 2001:db8::/32
 * and 3fff::/20 (documentation), 2002::/16 (6to4, which holds an IPv4 address). */
static bool v6_is_public(const uint8_t address[16])
{
    const uint32_t first =
        (uint32_t)address[0] << 24 | (uint32_t)address[1] << 16 | (uint32_t)address[2] << 8 | address[3];
    return first >> 29 == 1 && first >> 9 != 0x20010000u >> 9 && first != 0x20010db8u &&
           first >> 12 != 0x3fff0000u >> 12 && first >> 16 != 0x2002;
}

/* An IPv4 address, also one that is written as IPv6 (::ffff:a.b.c.d), as 16 bytes of the latter. */
static bool outside_bytes_of(const struct sockaddr *address, uint8_t bytes[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (address->sa_family == AF_INET6) {
        memcpy(bytes, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
        return true;
    }
    memcpy(bytes, mapped, sizeof(mapped));
    memcpy(bytes + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
    return address->sa_family == AF_INET;
}

/* Whether the address is one of this machine's; true when that cannot be known. */
static bool is_own(const uint8_t bytes[16])
{
    struct ifaddrs *all = NULL;
    uint8_t own[16];
    bool found = getifaddrs(&all) < 0;
    for (const struct ifaddrs *one = all; one && !found; one = one->ifa_next)
        found = one->ifa_addr &&
                (one->ifa_addr->sa_family == AF_INET || one->ifa_addr->sa_family == AF_INET6) &&
                outside_bytes_of(one->ifa_addr, own) && memcmp(own, bytes, sizeof(own)) == 0;
    freeifaddrs(all);
    return found;
}

bool outside_is_public(const struct sockaddr *address)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    uint8_t bytes[16];
    if ((address->sa_family != AF_INET && address->sa_family != AF_INET6) ||
        !outside_bytes_of(address, bytes))
        return false;
    const uint32_t v4 =
        (uint32_t)bytes[12] << 24 | (uint32_t)bytes[13] << 16 | (uint32_t)bytes[14] << 8 | bytes[15];
    const bool public = memcmp(bytes, mapped, sizeof(mapped)) == 0 ? v4_is_public(v4) : v6_is_public(bytes);
    return public && !is_own(bytes);
}
