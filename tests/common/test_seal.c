/* Tests seals with vectors made by Python's hmac, and seals that must not be valid. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/digest.h"
#include "common/seal.h"

static uint8_t key[SEAL_KEY_SIZE];
static char large[100000];

static struct seal *make(const char *node)
{
    struct err err;
    struct seal *seal = seal_create(key, node, &err);
    if (!seal)
        fail_msg("%s", err.text);
    return seal;
}

static void a_seal_is_the_hmac_of_direction_node_and_body(void **state)
{
    (void)state;
    /* The vectors come from hmac.new(bytes(range(32)), b"".join(len(p).to_bytes(8) + p for p in (way, node,
     * body)), "sha256"). */
    static const struct {
        enum seal_direction direction;
        const char *node, *body;
        size_t size;
        const char *mac;
    } vectors[] = {
        {SEAL_EVENTS, "left", "hello", 5, "eae627514058f52baaffd47d204e9fdccb1a49ef6bae8d6bf82a5c05fc33d8a1"},
        {SEAL_EVENTS, "right", "hello", 5,
         "8a23b2ce5258be229b0788ef30d60183fbce4aea45f50994b6e15cec4c70e0bd"},
        {SEAL_EVENTS, "left", "", 0, "f0d4a951d099feaf14f52f2090a3c9ff1d71a8c05a9f1e0661e390577a4ecdc1"},
        {SEAL_EVENTS, "left", large, sizeof(large),
         "c0d4e516dfb2eccc2b24f242cebaebf42b69f6185ac767c2b2ad1500c7780ac6"},
        {SEAL_MESSAGES, "left", "hello", 5,
         "650bec8673f65b421403af4cabdf24824abb6dc851572897474a898553ebf57f"},
        {SEAL_EVENTS, "lefth", "ello", 4, "4e03eb6d6c5a0ef719903c42841eaaec241351cfbff81beff469278be67fd248"},
    };
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        struct seal *seal = make(vectors[i].node);
        uint8_t mac[SEAL_SIZE];
        char hex[2 * SEAL_SIZE + 1];
        struct err err;
        for (int again = 0; again < 2; again++) { /* one handle makes several seals */
            assert_int_equal(
                seal_make(seal, vectors[i].direction, vectors[i].body, vectors[i].size, mac, &err), 0);
            digest_hex(mac, sizeof(mac), hex);
            assert_string_equal(hex, vectors[i].mac);
        }
        assert_true(seal_holds(seal, vectors[i].direction, vectors[i].body, vectors[i].size, mac, SEAL_SIZE));
        seal_destroy(seal);
    }
}

static void anything_else_does_not_hold(void **state)
{
    (void)state;
    struct seal *left = make("left"), *right = make("right");
    uint8_t mac[SEAL_SIZE + 1] = {0};
    struct err err;
    assert_int_equal(seal_make(left, SEAL_EVENTS, "hello", 5, mac, &err), 0);
    assert_true(seal_holds(left, SEAL_EVENTS, "hello", 5, mac, SEAL_SIZE));
    /* The message is returned to its sender. */
    assert_false(seal_holds(left, SEAL_MESSAGES, "hello", 5, mac, SEAL_SIZE));
    /* The message is sent to another node. */
    assert_false(seal_holds(right, SEAL_EVENTS, "hello", 5, mac, SEAL_SIZE));
    assert_false(seal_holds(left, SEAL_EVENTS, "hellp", 5, mac, SEAL_SIZE));
    assert_false(seal_holds(left, SEAL_EVENTS, "hell", 4, mac, SEAL_SIZE));
    assert_false(seal_holds(left, SEAL_EVENTS, "hello", 5, mac, SEAL_SIZE - 1));
    assert_false(seal_holds(left, SEAL_EVENTS, "hello", 5, mac, SEAL_SIZE + 1));
    assert_false(seal_holds(left, SEAL_EVENTS, "hello", 5, NULL, 0));
    for (int bit = 0; bit < 8 * SEAL_SIZE; bit++) {
        mac[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(seal_holds(left, SEAL_EVENTS, "hello", 5, mac, SEAL_SIZE));
        mac[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    seal_destroy(left);
    seal_destroy(right);
}

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < SEAL_KEY_SIZE; i++)
        key[i] = (uint8_t)i;
    memset(large, 'x', sizeof(large));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seal_is_the_hmac_of_direction_node_and_body),
        cmocka_unit_test(anything_else_does_not_hold),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
