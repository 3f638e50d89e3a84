/* Tests the parser of request heads: it reads good heads, refuses heads that two parsers could understand
 * differently, and never reads or writes outside the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "api/http/httpd_parse.h"
#include "api/request/route.h"
#include "common/rand.h"

static int parse(const char *text, struct httpd_head *head, char *copy)
{
    const char *why = NULL;
    memcpy(copy, text, strlen(text) + 1);
    return httpd_head_parse(copy, strlen(text), head, &why);
}

static void a_plain_head_is_read(void **state)
{
    (void)state;
    struct httpd_head head;
    char copy[512];
    assert_int_equal(
        parse("POST /v1/jobs?limit=5&x HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nX-Y:  v \t\r\n\r\n",
              &head, copy),
        0);
    assert_int_equal(head.method, HTTP_POST);
    assert_string_equal(head.path, "/v1/jobs");
    assert_string_equal(head.query, "limit=5&x");
    assert_int_equal(head.content_bytes, 12);
    assert_true(head.keep_alive);
    assert_string_equal(httpd_head_get(&head, "x-y"), "v");
    assert_null(httpd_head_get(&head, "absent"));
}

static void connections_are_kept_as_versions_say(void **state)
{
    (void)state;
    struct httpd_head head;
    char copy[512];
    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n", &head, copy), 0);
    assert_false(head.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", &head, copy), 0);
    assert_true(head.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.1\r\nHost: a\r\nConnection: te, close\r\n\r\n", &head, copy), 0);
    assert_false(head.keep_alive);
}

static void percent_encoding_is_undone_or_refused(void **state)
{
    (void)state;
    char out[8];
    assert_int_equal(httpd_decode("a%2Fb+c", 7, false, out, sizeof(out)), 0);
    assert_string_equal(out, "a/b+c");
    assert_int_equal(httpd_decode("a+b", 3, true, out, sizeof(out)), 0);
    assert_string_equal(out, "a b");
    assert_int_equal(httpd_decode("%00", 3, false, out, sizeof(out)), -1);
    assert_int_equal(httpd_decode("%4", 2, false, out, sizeof(out)), -1);
    assert_int_equal(httpd_decode("%zz", 3, false, out, sizeof(out)), -1);
    assert_int_equal(httpd_decode("12345678", 8, false, out, sizeof(out)), -1);
}

static void patterns_match_whole_paths(void **state)
{
    (void)state;
    char params[CALL_PARAMS_MAX][CALL_PARAM_BYTES];
    bool bad;
    assert_true(route_match("/v1/jobs/{id}/artifacts/{name}", "/v1/jobs/7/artifacts/a%2Fb", params, &bad));
    assert_string_equal(params[0], "7");
    assert_string_equal(params[1], "a/b");
    assert_false(route_match("/v1/jobs/{id}", "/v1/jobs/", params, &bad));
    assert_false(route_match("/v1/jobs/{id}", "/v1/jobs/7/", params, &bad));
    assert_false(route_match("/v1/jobs/{id}", "/v1/jobs", params, &bad));
    assert_true(route_match("/v1/jobs:validate", "/v1/jobs%3Avalidate", params, &bad));
    assert_true(route_match("/v1/models/{name}", "/v1/models/%ff", params, &bad) && bad);
}

/* Good heads are changed at random from a fixed seed. The answer is 0 or one of the parser's statuses, and
 * the sanitizers find nothing. */
static void changed_heads_are_read_or_refused(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "GET /v1/jobs?limit=5 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\n\r\n",
        "PUT /v1/blobs/00 HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n",
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: close, x\r\n\r\n",
    };
    static const char alphabet[] = "\r\n :?/#%\0\x01\x7f\xff"
                                   "aZ09,-";
    for (uint64_t i = 0; i < 60000; i++) {
        const char *seed = seeds[i % 3];
        size_t size = strlen(seed);
        /* The buffer has no spare byte, so the sanitizer sees a read of one byte too many. */
        char *text = malloc(size);
        uint32_t random[4];
        assert_non_null(text);
        memcpy(text, seed, size);
        rand_u32x4((const uint32_t[2]){42, 0}, (const uint32_t[4]){(uint32_t)i, 0, 0, 0}, random);
        for (unsigned k = 0; k <= random[3] % 3; k++)
            text[random[k] % (size - 4)] = alphabet[(random[k] >> 16) % (sizeof(alphabet) - 1)];
        struct httpd_head head;
        const char *why = NULL;
        int status = httpd_head_parse(text, size, &head, &why);
        assert_true(status == 0 || (status >= 400 && status <= 505 && why));
        if (status == 0) {
            assert_true(head.path[0] == '/' && head.header_count <= HTTP_HEADERS_MAX);
            assert_false(head.chunked && head.has_length);
        }
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_head_is_read),
        cmocka_unit_test(connections_are_kept_as_versions_say),
        cmocka_unit_test(percent_encoding_is_undone_or_refused),
        cmocka_unit_test(patterns_match_whole_paths),
        cmocka_unit_test(changed_heads_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
