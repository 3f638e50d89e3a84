#include "model/text/text_characters.h"

#include <string.h>
#include <utf8proc.h>

#include "model/text/unicode_tables.h"
#include "model/text/utf8.h"

int alphabet_byte(uint32_t code)
{
    if ((code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xac) || (code >= 0xae && code <= 0xff))
        return (int)code;
    if (code < 0x100 || code > 0x143)
        return -1;
    const uint32_t n = code - 0x100;
    if (n <= 0x20)
        return (int)n;
    return n <= 0x42 ? (int)(0x7f + n - 0x21) : 0xad;
}

/* Returns the character of GPT-2's alphabet that stands for a byte. */
static uint32_t alphabet_code(uint8_t byte)
{
    if (alphabet_byte(byte) == byte)
        return byte;
    return byte <= 0x20 ? 0x100u + byte : byte == 0xad ? 0x143u : 0x121u + byte - 0x7fu;
}

static bool lower(uint32_t code, char *out, size_t *size)
{
    if (code == 0x130) { /* the only character whose lower case is two characters */
        *size = 3;
        memcpy(out, "i\xcc\x87", 3);
        return true;
    }
    uint32_t to = code_map_find(&unicode_lower, code);
    if (to == code)
        to = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    *size = utf8_encode(to, (uint8_t *)out);
    return to != code;
}

/* Remove the characters of 'gone', and turn those of 'space' into a space. */
static bool clean(const struct code_set *gone, const struct code_set *space, uint32_t code, char *out,
                  size_t *size)
{
    *size = 0;
    if (code_set_has(gone, code))
        return true;
    *out = ' ';
    *size = 1;
    return code != ' ' && code_set_has(space, code);
}

static bool goes(const struct code_set *gone, uint32_t code, size_t *size)
{
    *size = 0;
    return code_set_has(gone, code);
}

bool character_map(enum character_map map, uint32_t code, char out[CHARACTER_MAP_BYTES], size_t *size)
{
    switch (map) {
    case MAP_LOWER:
        return lower(code, out, size);
    case MAP_ACCENTS:
        return goes(&unicode_accents, code, size);
    case MAP_NMT:
        return clean(&unicode_nmt_gone, &unicode_nmt_space, code, out, size);
    case MAP_BERT_CLEAN:
        return clean(&unicode_bert_gone, &unicode_bert_space, code, out, size);
    case MAP_BERT_ACCENTS:
        return goes(&unicode_bert_accents, code, size);
    case MAP_BERT_CHINESE:
        out[0] = ' ';
        *size = 1 + utf8_encode(code, (uint8_t *)out + 1);
        out[(*size)++] = ' ';
        return code_set_has(&unicode_bert_chinese, code);
    case MAP_BYTE_LEVEL: {
        uint8_t bytes[4];
        const unsigned count = utf8_encode(code, bytes);
        *size = 0;
        for (unsigned i = 0; i < count; i++)
            *size += utf8_encode(alphabet_code(bytes[i]), (uint8_t *)out + *size);
        return count != 1 || alphabet_code(bytes[0]) != bytes[0];
    }
    }
    return false;
}
