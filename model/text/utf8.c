#include "model/text/utf8.h"

#include <string.h>

unsigned utf8_decode(const uint8_t *text, size_t size, uint32_t *code, unsigned *bad_bytes, bool *short_input)
{
    const uint8_t lead = text[0];
    if (short_input)
        *short_input = false;
    *bad_bytes = 1;
    if (lead < 0x80) {
        *code = lead;
        return 1;
    }
    unsigned length = lead >= 0xc2 && lead <= 0xdf   ? 2
                      : lead >= 0xe0 && lead <= 0xef ? 3
                      : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                     : 0;
    if (length == 0)
        return 0;
    /* The second byte's range rules out overlong forms, surrogates and values over 0x10ffff. */
    uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    uint32_t value = lead & (0x7fu >> length);
    for (unsigned i = 1; i < length; i++) {
        if (i == size) {
            *bad_bytes = i;
            if (short_input)
                *short_input = true;
            return 0;
        }
        if (text[i] < low || text[i] > high) {
            *bad_bytes = i;
            return 0;
        }
        low = 0x80;
        high = 0xbf;
        value = value << 6 | (text[i] & 0x3fu);
    }
    *code = value;
    return length;
}

size_t utf8_next(const char *text, size_t size, size_t at, uint32_t *code)
{
    unsigned bad;
    const unsigned length = utf8_decode((const uint8_t *)text + at, size - at, code, &bad, NULL);
    if (length == 0)
        *code = 0xfffd;
    return at + (length > 0 ? length : bad);
}

size_t utf8_check(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        uint64_t eight;
        if (size - at >= sizeof(eight)) {
            memcpy(&eight, text + at, sizeof(eight));
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof(eight);
                continue;
            }
        }
        uint32_t code;
        unsigned bad;
        unsigned length = utf8_decode((const uint8_t *)text + at, size - at, &code, &bad, NULL);
        if (length == 0)
            return at;
        at += length;
    }
    return size;
}

unsigned utf8_encode(uint32_t code, uint8_t out[4])
{
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (uint8_t)(0xc0 | code >> 6);
        out[1] = (uint8_t)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (uint8_t)(0xe0 | code >> 12);
        out[1] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | code >> 18);
    out[1] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (code & 0x3f));
    return 4;
}

bool utf8_is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
           code == 0x205f || code == 0x3000;
}

bool utf8_is_blank(uint32_t code)
{
    return utf8_is_space(code) || (code >= 0x1c && code <= 0x1f);
}
