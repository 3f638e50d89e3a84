/* Converts json_t to and from msgpack.
 *
 * Encoding uses msgpack-c's packer. Decoding is our own, because msgpack-c's unpacker allocates what a header
 * claims and has no adjustable limit on nesting; here each length is compared with the remaining bytes before
 * anything is allocated. The format is small (msgpack specification, "Formats").
 */
#include "common/frame.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <msgpack.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/clock.h"

enum { DEPTH_MAX = 64, LENGTH_SIZE = 4 };

const struct frame_limits frame_limits_default = {
    .bytes_max = 16u << 20,
    .depth_max = 32,
    .count_max = 1u << 20,
};

/* ---- encoding ---- */

struct frame_encoder {
    struct buf *out;
    struct err *err;
};

static int encoder_write(void *data, const char *bytes, size_t size)
{
    struct frame_encoder *encoder = data;
    return buf_append(encoder->out, bytes, size, encoder->err);
}

static int encode_value(msgpack_packer *packer, const json_t *value, unsigned depth, struct err *err);

static int encode_text(msgpack_packer *packer, const char *text, size_t size)
{
    return msgpack_pack_str(packer, size) < 0 || msgpack_pack_str_body(packer, text, size) < 0 ? -1 : 0;
}

static int encode_object(msgpack_packer *packer, const json_t *object, unsigned depth, struct err *err)
{
    if (msgpack_pack_map(packer, json_object_size(object)) < 0)
        return -1;
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)object, key, value) {
        if (encode_text(packer, key, strlen(key)) < 0 || encode_value(packer, value, depth + 1, err) < 0)
            return -1;
    }
    return 0;
}

static int encode_array(msgpack_packer *packer, const json_t *array, unsigned depth, struct err *err)
{
    if (msgpack_pack_array(packer, json_array_size(array)) < 0)
        return -1;
    size_t index;
    json_t *value;
    json_array_foreach (array, index, value) {
        if (encode_value(packer, value, depth + 1, err) < 0)
            return -1;
    }
    return 0;
}

static int encode_value(msgpack_packer *packer, const json_t *value, unsigned depth, struct err *err)
{
    if (depth > DEPTH_MAX)
        return err_set(err, ERR_TOO_BIG, "a document nested more than %d deep", DEPTH_MAX);
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return encode_object(packer, value, depth, err);
    case JSON_ARRAY:
        return encode_array(packer, value, depth, err);
    case JSON_STRING:
        return encode_text(packer, json_string_value(value), json_string_length(value));
    case JSON_INTEGER:
        return msgpack_pack_int64(packer, json_integer_value(value));
    case JSON_REAL:
        return msgpack_pack_double(packer, json_real_value(value));
    case JSON_TRUE:
        return msgpack_pack_true(packer);
    case JSON_FALSE:
        return msgpack_pack_false(packer);
    case JSON_NULL:
        return msgpack_pack_nil(packer);
    }
    return err_set(err, ERR_INTERNAL, "a JSON value of no known type");
}

int frame_encode(const json_t *value, struct buf *out, struct err *err)
{
    struct frame_encoder encoder = {.out = out, .err = err};
    size_t start = out->size;
    msgpack_packer packer;
    msgpack_packer_init(&packer, &encoder, encoder_write);
    err_clear(err);
    if (encode_value(&packer, value, 0, err) < 0) {
        out->size = start;
        return err->code != ERR_NONE ? -1 : err_set(err, ERR_INTERNAL, "could not encode a document");
    }
    return 0;
}

int frame_put(const json_t *value, struct buf *out, struct err *err)
{
    static const uint8_t zeros[LENGTH_SIZE] = {0};
    size_t start = out->size;
    if (buf_append(out, zeros, sizeof(zeros), err) < 0 || frame_encode(value, out, err) < 0) {
        out->size = start;
        return -1;
    }
    size_t length = out->size - start - LENGTH_SIZE;
    if (length > UINT32_MAX) {
        out->size = start;
        return err_set(err, ERR_TOO_BIG, "a frame of %zu bytes", length);
    }
    for (int i = 0; i < LENGTH_SIZE; i++)
        out->data[start + (size_t)i] = (uint8_t)(length >> (24 - 8 * i));
    return 0;
}

/* ---- decoding ---- */

struct frame_decoder {
    const uint8_t *at;
    const uint8_t *end;
    const struct frame_limits *limits;
    uint32_t count;
    struct err *err;
};

static json_t *decode_value(struct frame_decoder *decoder, uint32_t depth);

static json_t *decode_fail(struct frame_decoder *decoder, const char *what)
{
    err_set(decoder->err, ERR_CORRUPT, "no valid frame: %s", what);
    return NULL;
}

/* Reads 'size' bytes as a big-endian number; false when they are missing. */
static bool number_take(struct frame_decoder *decoder, size_t size, uint64_t *out)
{
    if ((size_t)(decoder->end - decoder->at) < size) {
        decode_fail(decoder, "it ends inside a value");
        return false;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value = value << 8 | *decoder->at++;
    *out = value;
    return true;
}

static json_t *decode_text(struct frame_decoder *decoder, uint64_t length)
{
    if ((uint64_t)(decoder->end - decoder->at) < length)
        return decode_fail(decoder, "a text is longer than the frame");
    json_t *text = json_stringn((const char *)decoder->at, (size_t)length);
    if (!text)
        return decode_fail(decoder, "a text is not valid UTF-8");
    decoder->at += length;
    return text;
}

static json_t *decode_array(struct frame_decoder *decoder, uint64_t count, uint32_t depth)
{
    if ((uint64_t)(decoder->end - decoder->at) < count)
        return decode_fail(decoder, "a list claims more elements than there are bytes");
    json_t *array = json_array();
    for (uint64_t i = 0; array && i < count; i++) {
        json_t *value = decode_value(decoder, depth + 1);
        if (!value || json_array_append_new(array, value) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* Copies a key into a NUL-terminated text, because jansson 2.14 has no keys with a length. */
static json_t *decode_key(struct frame_decoder *decoder)
{
    uint64_t byte;
    uint64_t length;
    if (!number_take(decoder, 1, &byte))
        return NULL;
    if ((byte & 0xe0) == 0xa0) {
        length = byte & 0x1f;
    } else if (byte == 0xd9 || byte == 0xda || byte == 0xdb) {
        if (!number_take(decoder, (size_t)1 << (byte - 0xd9), &length))
            return NULL;
    } else {
        return decode_fail(decoder, "a key is no text");
    }
    json_t *key = decode_text(decoder, length);
    if (key && strlen(json_string_value(key)) != length) {
        json_decref(key);
        return decode_fail(decoder, "a key contains U+0000");
    }
    return key;
}

static json_t *decode_object(struct frame_decoder *decoder, uint64_t count, uint32_t depth)
{
    if ((uint64_t)(decoder->end - decoder->at) / 2 < count)
        return decode_fail(decoder, "a map claims more entries than there are bytes");
    json_t *object = json_object();
    for (uint64_t i = 0; object && i < count; i++) {
        json_t *key = decode_key(decoder);
        json_t *value = !key ? NULL : decode_value(decoder, depth + 1);
        bool good = value != NULL;
        if (good && json_object_get(object, json_string_value(key))) {
            decode_fail(decoder, "a key appears twice");
            json_decref(value);
            good = false;
        } else if (good) {
            good = json_object_set_new(object, json_string_value(key), value) == 0;
        }
        json_decref(key);
        if (!good) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *decode_real(struct frame_decoder *decoder, size_t size)
{
    uint64_t bits;
    if (!number_take(decoder, size, &bits))
        return NULL;
    double value;
    if (size == 4) {
        uint32_t low = (uint32_t)bits;
        float single;
        memcpy(&single, &low, sizeof(single));
        value = single;
    } else {
        memcpy(&value, &bits, sizeof(value));
    }
    return isfinite(value) ? json_real(value) : decode_fail(decoder, "a number is not finite");
}

static json_t *decode_integer(struct frame_decoder *decoder, uint64_t byte)
{
    size_t size = (size_t)1 << (byte & 3); /* formats cc..cf are unsigned, d0..d3 signed */
    uint64_t bits;
    if (!number_take(decoder, size, &bits))
        return NULL;
    if (byte <= 0xcf) {
        return bits <= INT64_MAX ? json_integer((json_int_t)bits)
                                 : decode_fail(decoder, "an integer is over 2^63 - 1");
    }
    unsigned shift = (unsigned)(64 - 8 * size);
    return json_integer((json_int_t)((int64_t)(bits << shift) >> shift));
}

/* Decodes the formats c0..df, whose first byte does not contain the length. */
static json_t *decode_long(struct frame_decoder *decoder, uint64_t byte, uint32_t depth)
{
    uint64_t length;
    switch (byte) {
    case 0xc0:
        return json_null();
    case 0xc2:
        return json_false();
    case 0xc3:
        return json_true();
    case 0xca:
        return decode_real(decoder, 4);
    case 0xcb:
        return decode_real(decoder, 8);
    case 0xd9:
    case 0xda:
    case 0xdb:
        return number_take(decoder, (size_t)1 << (byte - 0xd9), &length) ? decode_text(decoder, length)
                                                                         : NULL;
    case 0xdc:
    case 0xdd:
        return number_take(decoder, (size_t)2 << (byte - 0xdc), &length)
                   ? decode_array(decoder, length, depth)
                   : NULL;
    case 0xde:
    case 0xdf:
        return number_take(decoder, (size_t)2 << (byte - 0xde), &length)
                   ? decode_object(decoder, length, depth)
                   : NULL;
    default:
        break;
    }
    if (byte >= 0xcc && byte <= 0xd3)
        return decode_integer(decoder, byte);
    return decode_fail(decoder, "binary, extension and reserved formats are not used here");
}

static json_t *decode_value(struct frame_decoder *decoder, uint32_t depth)
{
    uint32_t depth_max = decoder->limits->depth_max < DEPTH_MAX ? decoder->limits->depth_max : DEPTH_MAX;
    if (depth > depth_max) {
        err_set(decoder->err, ERR_TOO_BIG, "a frame nested more than %u deep", depth_max);
        return NULL;
    }
    if (++decoder->count > decoder->limits->count_max) {
        err_set(decoder->err, ERR_TOO_BIG, "a frame of more than %u values", decoder->limits->count_max);
        return NULL;
    }
    uint64_t byte;
    if (!number_take(decoder, 1, &byte))
        return NULL;
    if (byte <= 0x7f)
        return json_integer((json_int_t)byte);
    if (byte >= 0xe0)
        return json_integer((json_int_t)byte - 256);
    if (byte <= 0x8f)
        return decode_object(decoder, byte & 0x0f, depth);
    if (byte <= 0x9f)
        return decode_array(decoder, byte & 0x0f, depth);
    if (byte <= 0xbf)
        return decode_text(decoder, byte & 0x1f);
    return decode_long(decoder, byte, depth);
}

json_t *frame_decode(const void *data, size_t size, const struct frame_limits *limits, struct err *err)
{
    if (size > limits->bytes_max) {
        err_set(err, ERR_TOO_BIG, "a frame of %zu bytes, the limit is %zu", size, limits->bytes_max);
        return NULL;
    }
    struct frame_decoder decoder = {
        .at = data,
        .end = (const uint8_t *)data + size,
        .limits = limits,
        .err = err,
    };
    err_clear(err);
    json_t *value = decode_value(&decoder, 0);
    if (value && decoder.at != decoder.end) {
        json_decref(value);
        return decode_fail(&decoder, "bytes stand behind the document");
    }
    if (!value && err->code == ERR_NONE)
        err_set(err, ERR_NOMEM, "no memory for a frame of %zu bytes", size);
    return value;
}

static size_t frame_length_of(const uint8_t *data)
{
    return (size_t)data[0] << 24 | (size_t)data[1] << 16 | (size_t)data[2] << 8 | data[3];
}

static int length_check(size_t length, const struct frame_limits *limits, struct err *err)
{
    if (length == 0 || length > limits->bytes_max) {
        return err_set(err, length == 0 ? ERR_CORRUPT : ERR_TOO_BIG, "a frame of %zu bytes, the limit is %zu",
                       length, limits->bytes_max);
    }
    return 0;
}

int frame_take(const void *data, size_t size, const struct frame_limits *limits, json_t **out, size_t *used,
               struct err *err)
{
    const uint8_t *bytes = data;
    if (size < LENGTH_SIZE)
        return 0;
    size_t length = frame_length_of(bytes);
    if (length_check(length, limits, err) < 0)
        return -1;
    if (size - LENGTH_SIZE < length)
        return 0;
    json_t *value = frame_decode(bytes + LENGTH_SIZE, length, limits, err);
    if (!value)
        return -1;
    *out = value;
    *used = LENGTH_SIZE + length;
    return 1;
}

/* ---- sockets ---- */

static int fd_wait(int fd, short events, uint64_t deadline_ns, const char *what, struct err *err)
{
    for (;;) {
        struct pollfd entry = {.fd = fd, .events = events};
        int left = clock_left_ms(deadline_ns, 60000);
        int ready = poll(&entry, 1, left);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return err_errno(err, ERR_NET, errno, "could not wait for the peer");
        if (ready == 0 && clock_left_ms(deadline_ns, 1) == 0)
            return err_set(err, ERR_TIMEOUT, "the deadline passed while %s a frame", what);
    }
}

int frame_send(int fd, const json_t *value, uint64_t deadline_ns, struct err *err)
{
    struct buf bytes;
    buf_init(&bytes, frame_limits_default.bytes_max + LENGTH_SIZE);
    int result = frame_put(value, &bytes, err);
    size_t sent = 0;
    while (result == 0 && sent < bytes.size) {
        ssize_t wrote = send(fd, bytes.data + sent, bytes.size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (wrote >= 0)
            sent += (size_t)wrote;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            result = fd_wait(fd, POLLOUT, deadline_ns, "sending", err);
        else if (errno != EINTR)
            result = err_errno(err, ERR_NET, errno, "could not send a frame");
    }
    buf_fini(&bytes);
    return result;
}

static int recv_exactly(int fd, uint8_t *dst, size_t size, bool at_start, uint64_t deadline_ns,
                        struct err *err)
{
    size_t got = 0;
    while (got < size) {
        ssize_t some = recv(fd, dst + got, size - got, MSG_DONTWAIT);
        if (some > 0) {
            got += (size_t)some;
        } else if (some == 0) {
            return err_set(err, ERR_NET,
                           at_start && got == 0 ? "the peer closed the connection"
                                                : "the peer closed the connection inside a frame");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (fd_wait(fd, POLLIN, deadline_ns, "waiting for", err) < 0)
                return -1;
        } else if (errno != EINTR) {
            return err_errno(err, ERR_NET, errno, "could not receive a frame");
        }
    }
    return 0;
}

int frame_recv(int fd, const struct frame_limits *limits, uint64_t deadline_ns, json_t **out, struct err *err)
{
    uint8_t head[LENGTH_SIZE];
    if (recv_exactly(fd, head, sizeof(head), true, deadline_ns, err) < 0)
        return -1;
    size_t length = frame_length_of(head);
    if (length_check(length, limits, err) < 0)
        return -1;
    /* Memory grows with the bytes that have arrived, not with the claimed length. */
    struct buf bytes;
    buf_init(&bytes, length);
    int result = 0;
    while (result == 0 && bytes.size < length) {
        size_t more = length - bytes.size < 65536 ? length - bytes.size : 65536;
        result = buf_reserve(&bytes, more, err);
        if (result == 0) {
            result = recv_exactly(fd, bytes.data + bytes.size, more, false, deadline_ns, err);
            bytes.size += result == 0 ? more : 0;
        }
    }
    if (result == 0) {
        *out = frame_decode(bytes.data, bytes.size, limits, err);
        result = !*out ? -1 : 0;
    }
    buf_fini(&bytes);
    return result;
}
