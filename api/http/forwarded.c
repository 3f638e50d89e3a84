/* What reverse proxies say of the clients behind them. */
#include "api/http/httpd_private.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* Returns the value of the last header of this name: what the proxy itself wrote, if the client sent one. */
static const char *last_header(const struct httpd_head *head, const char *name)
{
    const char *value = NULL;
    for (size_t i = 0; i < head->header_count; i++)
        if (strcmp(head->headers[i].name, name) == 0)
            value = head->headers[i].value;
    return value;
}

bool address_parse(const char *text, uint8_t address[ADDRESS_BYTES])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (inet_pton(AF_INET6, text, address) == 1)
        return true;
    memcpy(address, mapped, sizeof(mapped));
    return inet_pton(AF_INET, text, address + sizeof(mapped)) == 1;
}

bool httpd_is_proxy(const struct httpd_limits *limits, const uint8_t address[ADDRESS_BYTES])
{
    for (unsigned i = 0; i < limits->proxy_count; i++)
        if (memcmp(limits->proxies[i], address, ADDRESS_BYTES) == 0)
            return true;
    return false;
}

void httpd_forwarded_read(struct httpd_request *request)
{
    const struct httpd_server *server = request->server;
    char text[INET6_ADDRSTRLEN];
    uint8_t address[ADDRESS_BYTES];
    memcpy(request->address, request->conn->address, ADDRESS_BYTES);
    request->is_tls = request->conn->is_tls;
    request->is_unix = request->conn->is_unix;
    request->uid = request->conn->uid;
    if (request->is_unix || !httpd_is_proxy(&server->limits, request->address))
        return;
    const char *scheme = last_header(&request->head, "x-forwarded-proto");
    const char *client = last_header(&request->head, "x-forwarded-for");
    const char *comma = client ? strrchr(client, ',') : NULL;
    client = comma ? comma + 1 + strspn(comma + 1, " \t") : client;
    request->is_tls |= scheme && strcasecmp(scheme, "https") == 0;
    const size_t size = client ? strcspn(client, " \t") : 0;
    if (size == 0 || size >= sizeof(text))
        return;
    memcpy(text, client, size);
    text[size] = '\0';
    if (address_parse(text, address))
        memcpy(request->address, address, ADDRESS_BYTES);
}

const char *httpd_request_proxied(const struct httpd_request *request, const char *name)
{
    const char *value = NULL;
    unsigned count = 0;
    if (!request->conn || request->is_unix ||
        !httpd_is_proxy(&request->server->limits, request->conn->address))
        return NULL;
    for (size_t i = 0; i < request->head.header_count; i++)
        if (strcmp(request->head.headers[i].name, name) == 0 && ++count)
            value = request->head.headers[i].value;
    return count == 1 && *value != '\0' ? value : NULL; /* of two, one may be the client's own */
}
