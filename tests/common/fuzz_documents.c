/* This program runs libFuzzer over every parser of common/ that reads what others wrote. It is built by hand:
 *
 *     P="jansson msgpack yaml-0.1 openssl"
 *     C=common/{frame,json,yaml,units,tls,buf,err,clock,digest,file}.c
 *     clang-19 -std=c17 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -I. \
 *         tests/common/fuzz_documents.c $C -o fuzz_documents $(pkg-config --cflags --libs $P) -lm
 *     ./fuzz_documents -max_len=600 -max_total_time=60 CORPUS
 */
#include <stdlib.h>
#include <string.h>
#include "common/frame.h"
#include "common/json.h"
#include "common/yaml.h"
#include "common/units.h"
#include "common/tls.h"
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void fuzz_frame(const uint8_t *data, size_t size)
{
    static const struct frame_limits limits = {.bytes_max = 4096, .depth_max = 16, .count_max = 1000};
    struct err err;
    struct buf bytes;
    json_t *value = frame_decode(data, size, &limits, &err);
    if (!value)
        return;
    buf_init(&bytes, 1 << 20);
    json_t *again = frame_encode(value, &bytes, &err) < 0
                        ? NULL
                        : frame_decode(bytes.data, bytes.size, &frame_limits_default, &err);
    if (!again || !json_equal(value, again))
        __builtin_trap();
    json_decref(again);
    json_decref(value);
    buf_fini(&bytes);
}

static void fuzz_stream(const uint8_t *data, size_t size)
{
    struct err err;
    json_t *value = NULL;
    size_t used = 0;
    if (frame_take(data, size, &frame_limits_default, &value, &used, &err) == 1 && used > size)
        __builtin_trap();
    json_decref(value);
}

static void fuzz_yaml(const uint8_t *data, size_t size)
{
    struct err err;
    json_decref(yaml_parse((const char *)data, size, &err));
}

static void fuzz_json(const uint8_t *data, size_t size)
{
    struct err err;
    json_decref(json_parse_limited((const char *)data, size, 16, &err));
}

static void fuzz_texts(const uint8_t *data, size_t size)
{
    struct err err;
    uint64_t bytes;
    double number;
    char secret[96];
    uint8_t fingerprint[TLS_FINGERPRINT_SIZE];
    char *text = strndup((const char *)data, size);
    units_parse_bytes(text, &bytes, &err);
    units_parse_rate(text, &number, &err);
    units_parse_seconds(text, &number, &err);
    tls_join_token_parse(text, secret, fingerprint, &err);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const targets[])(const uint8_t *, size_t) = {fuzz_frame, fuzz_stream, fuzz_yaml, fuzz_json,
                                                               fuzz_texts};
    if (size > 0)
        targets[data[0] % 5](data + 1, size - 1);
    return 0;
}
