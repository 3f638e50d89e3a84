#include "worker/blob.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/digest.h"
#include "common/http.h"

enum { PAUSE_FIRST_MS = 50, PAUSE_MAX_MS = 2000, REQUEST_MS = 120000, CONNECT_MS = 5000 };
#define PATIENCE_NS ((uint64_t)120 * 1000000000u)

struct blobs {
    struct http *http;
    uint64_t patience_ns;
    const atomic_bool *cancel;
    atomic_bool gave_up;
};

int blobs_open(const struct blobs_options *options, struct blobs **out, struct err *err)
{
    struct blobs *blobs = calloc(1, sizeof *blobs);
    if (!blobs)
        return err_set(err, ERR_NOMEM, "no memory for a client");
    blobs->patience_ns = options->patience_ns ? options->patience_ns : PATIENCE_NS;
    blobs->cancel = options->cancel;
    struct http_options http = {.url = options->api,
                                .bearer = options->token,
                                .ca_file = options->ca,
                                .user_agent = "motley-worker",
                                .connect_ms = CONNECT_MS};
    blobs->http = http_create(&http, err);
    if (!blobs->http) {
        free(blobs);
        return -1;
    }
    *out = blobs;
    return 0;
}

void blobs_close(struct blobs *blobs)
{
    if (!blobs)
        return;
    http_destroy(blobs->http);
    free(blobs);
}

void blobs_give_up(struct blobs *blobs)
{
    atomic_store(&blobs->gave_up, true);
}

static bool cancelled(const struct blobs *blobs)
{
    return atomic_load(&blobs->gave_up) || (blobs->cancel && atomic_load(blobs->cancel));
}

static bool may_pass(enum err_code code)
{
    return code == ERR_NET || code == ERR_TIMEOUT || code == ERR_BUSY;
}

/* Wait before asking again. Returns -1 when there is no patience left. */
static int pause_before_retry(const struct blobs *blobs, uint64_t deadline_ns, unsigned attempt,
                              struct err *err)
{
    uint64_t pause_ms = (uint64_t)PAUSE_FIRST_MS << (attempt < 6 ? attempt : 6);
    if (pause_ms > PAUSE_MAX_MS)
        pause_ms = PAUSE_MAX_MS;
    if (!may_pass(err->code) || clock_mono_ns() + pause_ms * 1000000u > deadline_ns)
        return -1;
    for (uint64_t slept_ms = 0; slept_ms < pause_ms; slept_ms += PAUSE_FIRST_MS) {
        if (cancelled(blobs))
            return err_set(err, ERR_CANCELLED, "cancelled while the artifact store did not answer");
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_FIRST_MS * 1000000L}, NULL);
    }
    return 0;
}

static int perform(struct blobs *blobs, const struct http_request *request, struct err *err)
{
    uint64_t deadline_ns = clock_mono_ns() + blobs->patience_ns;
    for (unsigned attempt = 0;; attempt++) {
        size_t before = request->response ? request->response->size : 0;
        if (http_perform(blobs->http, request, NULL, err) == 0)
            return 0;
        if (request->response)
            request->response->size = before;
        if (pause_before_retry(blobs, deadline_ns, attempt, err) < 0)
            return -1;
    }
}

int blobs_get(struct blobs *blobs, const char *sha256, struct buf *out, struct err *err)
{
    char path[96], found[DIGEST_HEX_SIZE];
    snprintf(path, sizeof path, "/v1/blobs/%.64s", sha256);
    struct http_request request = {.method = "GET", .path = path, .response = out, .timeout_ms = REQUEST_MS};
    size_t before = out->size;
    if (perform(blobs, &request, err) < 0)
        return err_wrap(err, "could not fetch %.12s…", sha256);
    if (digest_sha256_hex(out->data + before, out->size - before, found, err) < 0)
        return -1;
    if (strcmp(found, sha256) != 0)
        return err_set(err, ERR_PEER, "the artifact store answered other bytes than %.12s…", sha256);
    return 0;
}

int blobs_put(struct blobs *blobs, const void *data, size_t size, char sha256[65], struct err *err)
{
    char path[96];
    if (digest_sha256_hex(data, size, sha256, err) < 0)
        return -1;
    snprintf(path, sizeof path, "/v1/blobs/%.64s", sha256);
    struct buf answer;
    buf_init(&answer, 1 << 16);
    struct http_request request = {.method = "PUT",
                                   .path = path,
                                   .content_type = "application/octet-stream",
                                   .body = data,
                                   .body_bytes = size,
                                   .response = &answer,
                                   .timeout_ms = REQUEST_MS};
    int result = perform(blobs, &request, err);
    buf_fini(&answer);
    return result < 0 ? err_wrap(err, "could not store %zu bytes", size) : 0;
}
