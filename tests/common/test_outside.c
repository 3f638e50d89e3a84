/* Addresses that users name: which texts are read as what, and which machines are outside. The classes are
 * those of IANA's registries of special-purpose addresses. */
#include "common/outside.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static bool is_public(const char *text)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return outside_is_public((const struct sockaddr *)&v4);
    assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    return outside_is_public((const struct sockaddr *)&v6);
}

static void what_everybody_reaches_is_outside(void **state)
{
    static const char *const outside[] = {
        "1.1.1.1",         "9.255.255.255",   "11.0.0.0",        "100.63.255.255", "100.128.0.0",
        "126.255.255.255", "128.0.0.1",       "169.253.255.255", "169.255.0.0",    "172.15.255.255",
        "172.32.0.0",      "192.0.1.0",       "192.167.255.255", "192.169.0.0",    "198.17.0.1",
        "198.20.0.0",      "223.255.255.255", "::ffff:1.1.1.1",  "2606:4700::1",   "2001:200::1",
        "2a00:1450::1"};
    static const char *const inside[] = {
        "0.0.0.0",          "0.1.2.3",         "10.0.0.1",     "10.255.255.255",
        "100.64.0.1",       "100.127.255.1",   "127.0.0.1",    "127.255.255.254",
        "169.254.169.254",  "172.16.0.1",      "172.31.255.1", "192.0.0.8",
        "192.0.2.1",        "192.88.99.1",     "192.168.0.1",  "198.18.0.1",
        "198.19.255.255",   "198.51.100.7",    "203.0.113.9",  "224.0.0.1",
        "240.0.0.1",        "255.255.255.255", "::",           "::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1",  "64:ff9b::7f00:1",
        "64:ff9b:1::1",     "100::1",          "2001::1",      "2001:db8::1",
        "2002:7f00:1::1",   "3fff::1",         "fc00::1",      "fd12:3456::1",
        "fe80::1",          "fec0::1",         "ff02::1"};
    (void)state;
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++)
        if (!is_public(outside[i]))
            fail_msg("%s is outside", outside[i]);
    for (size_t i = 0; i < sizeof(inside) / sizeof(inside[0]); i++)
        if (is_public(inside[i]))
            fail_msg("%s is within", inside[i]);
    const struct sockaddr unix_socket = {.sa_family = AF_UNIX};
    assert_false(outside_is_public(&unix_socket));
}

static void an_address_is_read_as_it_is_meant(void **state)
{
    static const struct {
        const char *text, *host, *origin, *path;
        unsigned port;
    } good[] = {
        {"https://example.org", "example.org", "https://example.org:443", "/", 443},
        {"https://Example.ORG/", "example.org", "https://example.org:443", "/", 443},
        {"http://a-b.c:8080/x/y?z=1&w=%20", "a-b.c", "http://a-b.c:8080", "/x/y?z=1&w=%20", 8080},
        {"https://example.org?q=1", "example.org", "https://example.org:443", "/?q=1", 443},
        {"https://[2001:db8::1]:65535/p", "2001:db8::1", "https://[2001:db8::1]:65535", "/p", 65535},
        {"http://10.0.0.7/a@b:c", "10.0.0.7", "http://10.0.0.7:80", "/a@b:c", 80},
        {"mailto:ada.l+jobs@Lab.example", "lab.example", "mail to lab.example", "ada.l+jobs@lab.example", 0},
    };
    static const char *const bad[] = {"",
                                      "example.org",
                                      "ftp://example.org/",
                                      "https://",
                                      "https:///x",
                                      "https://:443/",
                                      "https://u@example.org/",
                                      "https://u:p@example.org/",
                                      "https://example.org:0/",
                                      "https://example.org:65536/",
                                      "https://example.org:/",
                                      "https://example.org:44x/",
                                      "https://example.org/#top",
                                      "https://exa mple.org/",
                                      "https://example.org/\r\nX: y",
                                      "https://ex\xc3\xa4mple.org/",
                                      "https://example.org\\@10.0.0.1/",
                                      "https://[::1",
                                      "https://[::1]x/",
                                      "https://[example.org]/",
                                      "https://[fe80::1%25eth0]/",
                                      "HTTPS://example.org/",
                                      "https://a_b.org/",
                                      "mailto:ada",
                                      "mailto:@lab.example",
                                      "mailto:ada@",
                                      "mailto:ada@lab.example,bob@lab.example",
                                      "mailto:ada@lab.example?cc=bob",
                                      "mailto:ada@lab.example\r\nDATA",
                                      "mailto:<ada>@lab.example",
                                      "mailto:-ada@lab.example"};
    struct outside_url url;
    struct err err;
    char long_one[OUTSIDE_URL_BYTES + 10] = "https://example.org/";
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        err_clear(&err);
        assert_int_equal(outside_url_read(good[i].text, &url, &err), 0);
        assert_string_equal(url.host, good[i].host);
        assert_string_equal(url.origin, good[i].origin);
        assert_string_equal(url.path, good[i].path);
        assert_int_equal(url.port, good[i].port);
        assert_int_equal(url.tls, good[i].text[4] == 's');
        assert_int_equal(url.mail, good[i].port == 0);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (outside_url_read(bad[i], &url, &err) == 0 || err.code != ERR_INVALID)
            fail_msg("\"%s\" is no address", bad[i]);
    memset(long_one + strlen(long_one), 'x', OUTSIDE_URL_BYTES - 1 - strlen(long_one));
    assert_int_equal(outside_url_read(long_one, &url, &err), 0);
    long_one[OUTSIDE_URL_BYTES - 1] = 'x';
    assert_int_equal(outside_url_read(long_one, &url, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_everybody_reaches_is_outside),
                                       cmocka_unit_test(an_address_is_read_as_it_is_meant)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
