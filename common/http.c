/* Uses one libcurl easy handle for all requests. The body of an answer goes to the sink or buffer only for
 * status < 400; the body of a refusal is stored separately (bounded) and read as problem+json. */
#include "common/http.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "common/digest.h"
#include "common/json.h"
#include "common/release.h"
#include "common/tls.h"

enum {
    REFUSAL_BYTES_MAX = 65536,
    HEADERS_MAX = 32,
    DEFAULT_TIMEOUT_MS = 30000,
    DEFAULT_CONNECT_MS = 5000,
    REDIRECTS_MAX = 10,
    PACKET_BYTES = 1280, /* what a way carries that loses larger packets, as IPv6 demands */
    AGAIN_MS = 3000
};

struct http {
    CURL *curl;
    char url[512];
    char unix_socket[256];
    char *bearer;
    char *ca_file;
    char *user_agent;
    uint8_t pin[TLS_FINGERPRINT_SIZE];
    bool pinned;
    bool web, no_redirects;
    bool local_only; /* it sends a secret without TLS, which may not leave this machine */
    bool sent_away;  /* the last request would have left it */
    bool (*may_connect)(const void *arg, const struct sockaddr *address);
    const void *may_arg;
    char barred[INET6_ADDRSTRLEN]; /* the last address that may_connect refused in this request; or "" */
    uint32_t connect_ms;
    char curl_text[CURL_ERROR_SIZE];
    bool tls_begun;    /* the last request's connection was open */
    int segment_bytes; /* most that a packet of TCP may carry, while that is tried; 0: any */
};

/* A request in flight. */
struct http_exchange {
    struct http *http;
    const struct http_request *request;
    struct http_answer *answer;
    struct buf refusal;
    size_t sent; /* bytes sent of request->body or of the upload */
    uint64_t last_ns;
    bool failed; /* *err has the reason why a callback stopped curl */
    struct err *err;
};

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void curl_start(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static char *http_copy(const char *text)
{
    return !text ? NULL : strdup(text);
}

void http_start(void)
{
    pthread_once(&curl_once, curl_start);
}

struct http *http_create(const struct http_options *options, struct err *err)
{
    http_start();
    struct http *http = calloc(1, sizeof(*http));
    if (!http || !(http->curl = curl_easy_init())) {
        free(http);
        err_set(err, ERR_NOMEM, "no memory for an HTTP client");
        return NULL;
    }
    int length = snprintf(http->url, sizeof(http->url), "%s", options->url);
    bool known = strncmp(options->url, "http://", 7) == 0 || strncmp(options->url, "https://", 8) == 0;
    if (!known || length < 8 || (size_t)length >= sizeof(http->url)) {
        err_set(err, ERR_INVALID, "\"%.200s\" is no http:// or https:// address", options->url);
        http_destroy(http);
        return NULL;
    }
    while (length > 0 && http->url[length - 1] == '/')
        http->url[--length] = '\0';
    if (options->unix_socket)
        snprintf(http->unix_socket, sizeof(http->unix_socket), "%s", options->unix_socket);
    http->bearer = http_copy(options->bearer);
    http->ca_file = http_copy(options->ca_file);
    http->user_agent = http_copy(options->user_agent ? options->user_agent : "motley");
    http->web = options->web;
    http->no_redirects = options->no_redirects;
    http->may_connect = options->may_connect;
    http->may_arg = options->may_arg;
    http->connect_ms = options->connect_ms != 0 ? options->connect_ms : DEFAULT_CONNECT_MS;
    if (options->ca_sha256) {
        memcpy(http->pin, options->ca_sha256, sizeof(http->pin));
        http->pinned = true;
    }
    http->local_only = strncmp(options->url, "http://", 7) == 0 &&
                       (options->bearer || options->ca_sha256 || options->secret);
    return http;
}

void http_destroy(struct http *http)
{
    if (!http)
        return;
    curl_easy_cleanup(http->curl);
    if (http->bearer)
        explicit_bzero(http->bearer, strlen(http->bearer));
    free(http->bearer);
    free(http->ca_file);
    free(http->user_agent);
    free(http);
}

static size_t body_arrived(char *data, size_t one, size_t size, void *arg)
{
    (void)one; /* curl always passes 1 */
    struct http_exchange *exchange = arg;
    const struct http_request *request = exchange->request;
    long status = 0;
    curl_easy_getinfo(exchange->http->curl, CURLINFO_RESPONSE_CODE, &status);
    exchange->last_ns = clock_mono_ns();
    if (status >= 300) {
        struct err ignored = {0};
        size_t room = REFUSAL_BYTES_MAX - exchange->refusal.size;
        return buf_append(&exchange->refusal, data, size < room ? size : room, &ignored) < 0 ? 0 : size;
    }
    exchange->answer->length += size;
    int result = 0;
    bool whole = status == 200 &&
                 request->range_begin == 0; /* a range that covers the whole file may be answered with 200 */
    if (request->range_bytes > 0 &&
        ((status != 206 && !whole) || exchange->answer->length > request->range_bytes)) {
        result = err_set(exchange->err, ERR_PEER, "the server did not answer with the range asked for");
    } else if (request->sink) {
        result = request->sink(request->sink_arg, data, size, exchange->err);
    } else if (request->response) {
        result = buf_append(request->response, data, size, exchange->err);
    }
    exchange->failed = result < 0;
    return result < 0 ? 0 : size;
}

static size_t body_wanted(char *dst, size_t one, size_t size, void *arg)
{
    struct http_exchange *exchange = arg;
    const struct http_request *request = exchange->request;
    size *= one;
    exchange->last_ns = clock_mono_ns();
    if (request->upload) {
        int64_t got = request->upload(request->upload_arg, dst, size, exchange->err);
        if (got < 0 || (uint64_t)got > size) {
            exchange->failed = true;
            return CURL_READFUNC_ABORT;
        }
        exchange->sent += (size_t)got;
        return (size_t)got;
    }
    size_t left = request->body_bytes - exchange->sent;
    size = size < left ? size : left;
    memcpy(dst, (const uint8_t *)request->body + exchange->sent, size);
    exchange->sent += size;
    return size;
}

/* Begins the body again for another connection, where libcurl finds that the one it kept is dead. The source
 * of an upload gives each byte once. */
static int body_again(void *arg, curl_off_t offset, int origin)
{
    struct http_exchange *exchange = arg;
    if (offset != 0 || origin != SEEK_SET || (exchange->request->upload && exchange->sent > 0))
        return CURL_SEEKFUNC_CANTSEEK;
    exchange->sent = 0;
    return CURL_SEEKFUNC_OK;
}

static size_t header_arrived(char *data, size_t one, size_t size, void *arg)
{
    struct http_exchange *exchange = arg;
    size *= one;
    exchange->last_ns = clock_mono_ns();
    char limit[96] = "", date[64] = "";
    const struct {
        const char *name;
        char *out;
        size_t room;
    } wanted[] = {
        {"content-type:", exchange->answer->content_type, sizeof(exchange->answer->content_type)},
        {"location:", exchange->answer->location, sizeof(exchange->answer->location)},
        {"etag:", exchange->answer->etag, sizeof(exchange->answer->etag)},
        {"x-error-code:", exchange->answer->error_code, sizeof(exchange->answer->error_code)},
        {"x-motley-release:", exchange->answer->release, sizeof(exchange->answer->release)},
        {"ratelimit:", limit, sizeof(limit)},
        {"date:", date, sizeof(date)},
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        size_t length = strlen(wanted[i].name);
        if (size > length && strncasecmp(data, wanted[i].name, length) == 0) {
            const char *value = data + length;
            const char *end = data + size;
            while (value < end && *value == ' ')
                value++;
            while (end > value && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
                end--;
            snprintf(wanted[i].out, wanted[i].room, "%.*s", (int)(end - value), value);
        }
    }
    if (date[0] != '\0')
        exchange->answer->date_s = curl_getdate(date, NULL);
    const char *reset = strstr(limit, ";t="); /* "api";r=0;t=55 (draft-ietf-httpapi-ratelimit-headers) */
    if (reset)
        exchange->answer->retry_s = (uint32_t)strtoul(reset + 3, NULL, 10);
    return size;
}

static int http_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                         curl_off_t up)
{
    (void)down_total;
    (void)down;
    (void)up_total;
    (void)up;
    struct http_exchange *exchange = arg;
    const struct http_request *request = exchange->request;
    uint64_t idle_ns = (uint64_t)request->idle_ms * 1000000;
    if (request->stopped && request->stopped(request->stopped_arg)) {
        err_set(exchange->err, ERR_CANCELLED, "%s %s was stopped", request->method, request->path);
        exchange->failed = true;
        return 1;
    }
    if (idle_ns > 0 && clock_mono_ns() - exchange->last_ns > idle_ns) {
        err_set(exchange->err, ERR_TIMEOUT, "%s %s: nothing arrived for %u ms", request->method,
                request->path, request->idle_ms);
        exchange->failed = true;
        return 1;
    }
    return 0;
}

static CURLcode context_pin(CURL *curl, void *context, void *arg)
{
    (void)curl;
    struct http *http = arg;
    http->tls_begun = true;
    if (http->pinned)
        tls_context_pin(context, http->pin);
    else if (http->ca_file && !http->web)
        tls_context_server(context);
    return CURLE_OK;
}

static struct curl_slist *headers_make(const struct http *http, const struct http_request *request)
{
    struct curl_slist *list = curl_slist_append(NULL, "Expect:"); /* avoids the round trip of 100-continue */
    char line[512], release[RELEASE_TEXT_BYTES];
    if (!http->web) {
        snprintf(line, sizeof(line), RELEASE_HEADER ": %s", release_text(release));
        list = curl_slist_append(list, line);
    }
    if (http->bearer) {
        snprintf(line, sizeof(line), "Authorization: Bearer %s", http->bearer);
        list = curl_slist_append(list, line);
        explicit_bzero(line, sizeof(line));
    }
    if (request->content_type) {
        snprintf(line, sizeof(line), "Content-Type: %s", request->content_type);
        list = curl_slist_append(list, line);
    } else {
        list = curl_slist_append(list, "Content-Type:");
    }
    for (int i = 0; request->headers && request->headers[i] && i < HEADERS_MAX; i++)
        list = curl_slist_append(list, request->headers[i]);
    return list;
}

/* Whether the address is one of this machine's loopback. */
static bool http_is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)address;
        return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return address->sa_family == AF_UNIX ||
           (address->sa_family == AF_INET6 &&
            (IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == IN_LOOPBACKNET)));
}

static void address_text(const struct sockaddr *address, char text[INET6_ADDRSTRLEN])
{
    const void *bytes = address->sa_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr
                            : (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    if ((address->sa_family != AF_INET && address->sa_family != AF_INET6) ||
        !inet_ntop(address->sa_family, bytes, text, INET6_ADDRSTRLEN))
        snprintf(text, INET6_ADDRSTRLEN, "another kind");
}

/* Opens curl's socket, but none to an address that may not be connected to, nor one by which a secret would
 * leave this machine in clear. */
static curl_socket_t socket_open(void *arg, curlsocktype purpose, struct curl_sockaddr *to)
{
    struct http *http = arg;
    (void)purpose;
    if (http->may_connect && !http->may_connect(http->may_arg, &to->addr)) {
        address_text(&to->addr, http->barred);
        return CURL_SOCKET_BAD;
    }
    http->sent_away = http->local_only && !http_is_loopback(&to->addr);
    const int fd =
        http->sent_away ? CURL_SOCKET_BAD : socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
    if (fd >= 0 && http->segment_bytes > 0)
        setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &http->segment_bytes, sizeof(http->segment_bytes));
    return fd;
}

static void connection_set_up(struct http *http)
{
    CURL *curl = http->curl;
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, http->curl_text);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    if (http->web && !http->may_connect && !http->no_redirects) {
        curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
        curl_easy_setopt(curl, CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
        curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR,
                         strncmp(http->url, "https://", 8) == 0 ? "https" : "http,https");
    }
    if (!http->web || http->local_only || http->may_connect) /* no proxy, whatever the environment says */
        curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)http->connect_ms);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, http->user_agent);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 262144L);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, 262144L);
    curl_easy_setopt(curl, CURLOPT_SSLVERSION,
                     (long)(http->web ? CURL_SSLVERSION_TLSv1_2 : CURL_SSLVERSION_TLSv1_3));
    curl_easy_setopt(curl, CURLOPT_SSL_CTX_FUNCTION, context_pin);
    curl_easy_setopt(curl, CURLOPT_SSL_CTX_DATA, http);
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, socket_open);
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, http);
    if (http->ca_file || http->pinned) { /* a machine that joins by a pin may have no store of authorities */
        curl_easy_setopt(curl, CURLOPT_CAINFO, http->ca_file);
        curl_easy_setopt(curl, CURLOPT_CAPATH, NULL);
#if LIBCURL_VERSION_NUM >= 0x075700
        curl_easy_setopt(curl, CURLOPT_CA_CACHE_TIMEOUT,
                         0L); /* the file may change while its CA is exchanged */
#endif
    }
    if (http->unix_socket[0] != '\0')
        curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, http->unix_socket);
}

/* Looks why TLS stands still with a server that could be connected to: whether it goes on in small packets,
 * and not in others, which then are lost on the way without anybody being told. */
static bool http_packets_are_lost(struct http *http)
{
    curl_off_t secure_us = 0;
    curl_easy_getinfo(http->curl, CURLINFO_APPCONNECT_TIME_T, &secure_us);
    if (http->web || !http->tls_begun || secure_us > 0)
        return false;
    CURLcode code = CURLE_OK;
    bool through[2] = {false}; /* small packets, and any: the server's certificate came */
    for (int i = 0; i < 2 && (i == 0 || through[0]); i++) {
        http->segment_bytes = i == 0 ? PACKET_BYTES - 60 : 0; /* less the headers of IPv6 and TCP */
        curl_easy_reset(http->curl);
        connection_set_up(http);
        curl_easy_setopt(http->curl, CURLOPT_URL, http->url);
        curl_easy_setopt(http->curl, CURLOPT_CONNECT_ONLY, 1L);
        curl_easy_setopt(http->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)AGAIN_MS);
        code = curl_easy_perform(http->curl);
        through[i] = code == CURLE_OK || code == CURLE_PEER_FAILED_VERIFICATION;
    }
    http->segment_bytes = 0;
    return through[0] && code == CURLE_OPERATION_TIMEDOUT;
}

static void method_set_up(struct http_exchange *exchange)
{
    CURL *curl = exchange->http->curl;
    const struct http_request *request = exchange->request;
    bool sends = request->upload || request->body;
    if (sends) {
        uint64_t bytes = request->upload ? request->upload_bytes : request->body_bytes;
        curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(curl, CURLOPT_READFUNCTION, body_wanted);
        curl_easy_setopt(curl, CURLOPT_READDATA, exchange);
        curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, body_again);
        curl_easy_setopt(curl, CURLOPT_SEEKDATA, exchange);
        curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)bytes);
    } else if (strcmp(request->method, "HEAD") == 0) {
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    } else if (strcmp(request->method, "GET") != 0) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, 0L);
    }
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
    if (request->range_bytes > 0) {
        char range[64];
        snprintf(range, sizeof(range), "%llu-%llu", (unsigned long long)request->range_begin,
                 (unsigned long long)(request->range_begin + request->range_bytes - 1));
        curl_easy_setopt(curl, CURLOPT_RANGE, range);
    }
    uint32_t timeout = request->timeout_ms == 0 ? DEFAULT_TIMEOUT_MS : request->timeout_ms;
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, timeout == UINT32_MAX ? 0L : (long)timeout);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, http_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, exchange);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, body_arrived);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, exchange);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, header_arrived);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, exchange);
}

static int curl_failed(const struct http_exchange *exchange, CURLcode code)
{
    struct http *http = exchange->http;
    struct err *err = exchange->err;
    if (exchange->failed)
        return -1;
    if (http->sent_away) {
        return err_set(
            err, ERR_INVALID,
            "%s is not this machine, and a token is sent to others through https:// alone: give the "
            "https:// address%s",
            http->url, http->web ? "" : " of the cluster's api");
    }
    if (http->barred[0] != '\0')
        return err_set(err, ERR_DENIED, "%s has the address %s, which may not be connected to", http->url,
                       http->barred);
    const char *text = http->curl_text[0] != '\0' ? http->curl_text : curl_easy_strerror(code);
    long verified = X509_V_OK;
    curl_easy_getinfo(http->curl, CURLINFO_SSL_VERIFYRESULT, &verified);
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
        err_set(err, ERR_TIMEOUT, "%s: %s", http->url, text);
        if (http_packets_are_lost(http))
            err_set(
                err, ERR_TIMEOUT,
                "packets of more than %d bytes are lost on the way to %s, and nothing reports it: set the "
                "MTU of this machine's interface to %d (ip link set dev NAME mtu %d)",
                PACKET_BYTES, http->url, PACKET_BYTES, PACKET_BYTES);
        return -1;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_ISSUER_ERROR:
        if (verified == X509_V_ERR_APPLICATION_VERIFICATION)
            text = "its certificate is of the cluster's CA, but not a server's";
        if (verified == X509_V_ERR_CERT_NOT_YET_VALID || verified == X509_V_ERR_CERT_HAS_EXPIRED) {
            return err_set(err, ERR_PEER,
                           "the certificate of %s %s by this machine's clock: set the clock of this machine "
                           "and of that one",
                           http->url,
                           verified == X509_V_ERR_CERT_HAS_EXPIRED ? "has expired" : "is not valid yet");
        }
        return err_set(err, ERR_PEER, "%s is not %s: %s", http->url,
                       http->web ? "who it says" : "the cluster expected", text);
    case CURLE_SSL_CACERT_BADFILE:
        return err_set(err, ERR_IO, "%s: %s", http->url, text);
    case CURLE_OUT_OF_MEMORY:
        return err_set(err, ERR_NOMEM, "%s: %s", http->url, text);
    case CURLE_URL_MALFORMAT:
        return err_set(err, ERR_INVALID, "%s: %s", http->url, text);
    default:
        return err_set(err, ERR_NET, "%s: %s", http->url, text);
    }
}

/* Sets the error that a refusal's body describes, or else the one for its status. */
static int http_refused(const struct http_exchange *exchange, int status)
{
    const struct http_request *request = exchange->request;
    struct err *err = exchange->err;
    enum err_code code = err_code_from_http(status);
    if (code == ERR_NONE)
        return err_set(err, ERR_PEER, "%s %s: unexpected status %d", request->method, request->path, status);
    struct err ignored = {0};
    json_t *problem =
        json_parse_limited(buf_str(&exchange->refusal), exchange->refusal.size, JSON_DEPTH_MAX, &ignored);
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    const char *title = json_string_value(json_object_get(problem, "title"));
    const char *name = json_string_value(json_object_get(problem, "code"));
    if (name && err_code_from_name(name) != ERR_NONE)
        code = err_code_from_name(name);
    if (detail || title)
        err_set(err, code, "%s", detail ? detail : title);
    else
        err_set(err, code, "%s %s: status %d", request->method, request->path, status);
    json_decref(problem);
    return -1;
}

/* Performs the request and calls `ready` of its watch meanwhile. */
static CURLcode perform_watched(struct http_exchange *exchange)
{
    const struct http_watch *watch = exchange->request->watch;
    CURLM *multi = curl_multi_init();
    if (!multi)
        return CURLE_OUT_OF_MEMORY;
    struct curl_waitfd fds[HTTP_WATCH_FDS] = {0};
    for (unsigned i = 0; i < watch->fd_count; i++)
        fds[i] = (struct curl_waitfd){.fd = watch->fds[i], .events = CURL_WAIT_POLLIN};
    int running = 1;
    CURLMcode state = curl_multi_add_handle(multi, exchange->http->curl);
    while (state == CURLM_OK && running > 0 && !exchange->failed) {
        state = curl_multi_perform(multi, &running);
        if (state == CURLM_OK && running > 0)
            state = curl_multi_poll(multi, fds, watch->fd_count, (int)watch->every_ms, NULL);
        if (!exchange->failed && watch->ready(watch->arg, exchange->err) < 0)
            exchange->failed = true;
    }
    int left;
    CURLMsg *message = curl_multi_info_read(multi, &left);
    CURLcode code = message ? message->data.result : CURLE_ABORTED_BY_CALLBACK;
    if (state != CURLM_OK)
        code = CURLE_FAILED_INIT;
    curl_multi_remove_handle(multi, exchange->http->curl);
    curl_multi_cleanup(multi);
    return code;
}

int http_perform(struct http *http, const struct http_request *request, struct http_answer *answer,
                 struct err *err)
{
    struct http_answer own = {0};
    answer = !answer ? &own : answer;
    *answer = (struct http_answer){0};
    struct http_exchange exchange = {
        .http = http, .request = request, .answer = answer, .last_ns = clock_mono_ns(), .err = err};
    buf_init(&exchange.refusal, REFUSAL_BYTES_MAX);
    struct buf url;
    buf_init(&url, 8192);
    int result = -1;
    curl_easy_reset(http->curl);
    http->sent_away = http->tls_begun = false;
    http->barred[0] = '\0';
    http->curl_text[0] = '\0';
    struct curl_slist *headers = headers_make(http, request);
    if (!headers) {
        err_set(err, ERR_NOMEM, "no memory for an HTTP request");
        goto out;
    }
    if (buf_printf(&url, err, "%s%s", http->url, request->path) < 0)
        goto out;
    connection_set_up(http);
    method_set_up(&exchange);
    curl_easy_setopt(http->curl, CURLOPT_URL, buf_str(&url));
    curl_easy_setopt(http->curl, CURLOPT_HTTPHEADER, headers);
    CURLcode code = request->watch ? perform_watched(&exchange) : curl_easy_perform(http->curl);
    long status = 0;
    curl_easy_getinfo(http->curl, CURLINFO_RESPONSE_CODE, &status);
    answer->status = (int)status;
    curl_off_t retry_s = 0;
    if (curl_easy_getinfo(http->curl, CURLINFO_RETRY_AFTER, &retry_s) == CURLE_OK && retry_s > 0)
        answer->retry_s = retry_s < UINT32_MAX ? (uint32_t)retry_s : UINT32_MAX;
    char server[320];
    snprintf(server, sizeof(server), "the server at %.300s", http->url);
    if (!http->web && release_check_text(server, answer->release, err) < 0) {
        result = -1;
    } else if (status >= 300 && !exchange.failed && (code == CURLE_OK || exchange.refusal.size > 0)) {
        result = http_refused(
            &exchange, (int)status); /* also when the server refused before it had read the whole body */
        struct err ignored;
        if (request->refusal)
            buf_append(request->refusal, exchange.refusal.data, exchange.refusal.size, &ignored);
    } else if (code != CURLE_OK) {
        result = curl_failed(&exchange, code);
    } else if (request->range_bytes > 0 && answer->length != request->range_bytes) {
        result = err_set(err, ERR_PEER, "%s: the server sent %llu of %llu bytes", request->path,
                         (unsigned long long)answer->length, (unsigned long long)request->range_bytes);
    } else {
        result = 0;
    }
out:
    curl_slist_free_all(headers);
    buf_fini(&url);
    buf_fini(&exchange.refusal);
    return result;
}

int http_json(struct http *http, const char *method, const char *path, const json_t *body,
              uint32_t timeout_ms, json_t **out, struct err *err)
{
    struct buf sent;
    struct buf got;
    buf_init(&sent, 64u << 20);
    buf_init(&got, 64u << 20);
    int result = -1;
    if (body && json_print(body, false, &sent, err) < 0)
        goto out;
    struct http_request request = {
        .method = method,
        .path = path,
        .content_type = body ? "application/json" : NULL,
        .body = body ? sent.data : NULL,
        .body_bytes = sent.size,
        .response = &got,
        .timeout_ms = timeout_ms,
    };
    if (http_perform(http, &request, NULL, err) < 0)
        goto out;
    if (out) {
        *out = NULL;
        if (got.size > 0) {
            *out = json_parse_limited(buf_str(&got), got.size, JSON_DEPTH_MAX, err);
            if (!*out) {
                err_wrap(err, "%s %s", method, path);
                goto out;
            }
        }
    }
    result = 0;
out:
    buf_fini(&sent);
    buf_fini(&got);
    return result;
}

int http_escape(const char *text, char *out, size_t size, struct err *err)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    size_t used = 0;
    for (; *text != '\0'; text++) {
        bool safe = strchr(plain, *text) != NULL;
        if (used + (safe ? 1 : 3) >= size)
            return err_set(err, ERR_TOO_BIG, "a name of more than %zu bytes in an address", size);
        if (safe) {
            out[used++] = *text;
        } else {
            char hex[3];
            uint8_t byte = (uint8_t)*text;
            digest_hex(&byte, 1, hex);
            out[used++] = '%';
            out[used++] = hex[0];
            out[used++] = hex[1];
        }
    }
    if (used >= size)
        return err_set(err, ERR_TOO_BIG, "a name of more than %zu bytes in an address", size);
    out[used] = '\0';
    return 0;
}
