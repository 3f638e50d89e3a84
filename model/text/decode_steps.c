/* Runs decoders (decode_steps.h): each step makes a list of texts from a list of texts. */
#include "model/text/decode_steps.h"

#include <stdlib.h>
#include <string.h>

#include "model/text/text_characters.h"
#include "model/text/utf8.h"

static const char replacement[] = "\xef\xbf\xbd";

void decode_steps_fini(struct decode_steps *steps)
{
    for (unsigned i = 0; i < steps->count; i++) {
        free(steps->steps[i].from);
        free(steps->steps[i].to);
        pattern_destroy(steps->steps[i].pattern);
    }
    free(steps->steps);
    *steps = (struct decode_steps){0};
}

static char *text_copy(const char *text, size_t size)
{
    char *copy = malloc(size + 1);
    if (copy && size > 0)
        memcpy(copy, text, size);
    return copy;
}

int decode_steps_add(struct decode_steps *steps, const struct decode_step *step, struct err *err)
{
    if (steps->count == DECODE_STEPS_MAX || step->from_size > DECODE_TEXT_BYTES ||
        step->to_size > DECODE_TEXT_BYTES) {
        pattern_destroy(step->pattern);
        return err_set(err, ERR_TOO_BIG, "more than %d decoders, or a text of more than %d bytes in one",
                       DECODE_STEPS_MAX, DECODE_TEXT_BYTES);
    }
    struct decode_step *grown = realloc(steps->steps, (steps->count + 1) * sizeof(*grown));
    char *from = text_copy(step->from, step->from_size);
    char *to = text_copy(step->to, step->to_size);
    steps->steps = grown ? grown : steps->steps;
    if (!grown || !from || !to) {
        free(from);
        free(to);
        pattern_destroy(step->pattern);
        return err_set(err, ERR_NOMEM, "out of memory for a decoder");
    }
    grown[steps->count] = *step;
    grown[steps->count].from = from;
    grown[steps->count++].to = to;
    return 0;
}

void text_list_fini(struct text_list *list)
{
    buf_fini(&list->text);
    free(list->ends);
    *list = (struct text_list){.text = {.limit = list->text.limit}};
}

/* Makes one text of the bytes that were appended behind the list's last text. */
static int text_list_end(struct text_list *list, struct err *err)
{
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        size_t *grown = realloc(list->ends, capacity * sizeof(*grown));
        if (!grown)
            return err_set(err, ERR_NOMEM, "out of memory for %zu texts of tokens", capacity);
        list->ends = grown;
        list->capacity = capacity;
    }
    list->ends[list->count++] = list->text.size;
    return 0;
}

int text_list_add(struct text_list *list, const char *text, size_t size, struct err *err)
{
    return buf_append(&list->text, text, size, err) < 0 ? -1 : text_list_end(list, err);
}

/* One text of a list. */
struct decoded_part {
    const char *text;
    size_t size;
};

static struct decoded_part part_at(const struct text_list *list, size_t i)
{
    const size_t begin = i > 0 ? list->ends[i - 1] : 0;
    return (struct decoded_part){.text = buf_str(&list->text) + begin, .size = list->ends[i] - begin};
}

static bool part_is(const struct decoded_part *part, const char *text, size_t size)
{
    return part->size >= size && memcmp(part->text, text, size) == 0;
}

int decode_lossy(const uint8_t *bytes, size_t size, struct buf *out, struct err *err)
{
    for (size_t at = 0; at < size;) {
        uint32_t code;
        unsigned bad;
        const unsigned length = utf8_decode(bytes + at, size - at, &code, &bad, NULL);
        int status = length > 0 ? buf_append(out, bytes + at, length, err)
                                : buf_append(out, replacement, sizeof(replacement) - 1, err);
        if (status < 0)
            return -1;
        at += length > 0 ? length : bad;
    }
    return 0;
}

/* Append a text with every 'from' replaced by 'to'. */
static int append_replaced(struct buf *out, struct decoded_part in, const char *from, size_t from_size,
                           const char *to, size_t to_size, struct err *err)
{
    size_t done = 0;
    while (done < in.size) {
        const char *found = from_size > 0 ? memmem(in.text + done, in.size - done, from, from_size) : NULL;
        const size_t at = found ? (size_t)(found - in.text) : in.size;
        if (buf_append(out, in.text + done, at - done, err) < 0 ||
            (found && buf_append(out, to, to_size, err) < 0)) {
            return -1;
        }
        done = found ? at + from_size : in.size;
    }
    return 0;
}

int decode_alphabet(const char *text, size_t size, struct buf *out, struct err *err)
{
    const struct decoded_part in = {.text = text, .size = size};
    const size_t begin = out->size;
    for (size_t at = 0; at < in.size;) {
        uint32_t code = 0;
        unsigned bad;
        const unsigned length = utf8_decode((const uint8_t *)in.text + at, in.size - at, &code, &bad, NULL);
        const int byte = length > 0 ? alphabet_byte(code) : -1;
        const uint8_t one = (uint8_t)byte;
        if (byte < 0) {
            out->size = begin;
            return buf_append(out, in.text, in.size, err);
        }
        if (buf_append(out, &one, 1, err) < 0)
            return -1;
        at += length;
    }
    return 0;
}

static int append_part(struct buf *out, struct decoded_part part, struct err *err)
{
    return decode_alphabet(part.text, part.size, out, err);
}

static int do_byte_level(const struct text_list *in, struct text_list *out, struct err *err)
{
    struct buf bytes = {.limit = in->text.limit};
    int status = 0;
    for (size_t i = 0; i < in->count && status == 0; i++)
        status = append_part(&bytes, part_at(in, i), err);
    if (status == 0)
        status = decode_lossy(bytes.data, bytes.size, &out->text, err);
    buf_fini(&bytes);
    return status < 0 ? -1 : text_list_end(out, err);
}

static int decode_steps_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* Returns the byte that a text such as "<0x0A>" stands for, or -1. Rust's parser of numbers also accepts a
 * sign, as in "<0x+A>". */
static int byte_of(struct decoded_part part)
{
    if (part.size != 6 || memcmp(part.text, "<0x", 3) != 0 || part.text[5] != '>')
        return -1;
    const int high = part.text[3] == '+' ? 0 : decode_steps_hex_digit(part.text[3]);
    const int low = decode_steps_hex_digit(part.text[4]);
    return high >= 0 && low >= 0 ? high << 4 | low : -1;
}

/* Append a run of bytes to the list: as one text if it is valid UTF-8, else as one U+FFFD for each byte. */
static int decode_steps_run_end(struct buf *run, struct text_list *out, struct err *err)
{
    const size_t size = run->size;
    int status = 0;
    if (size > 0 && utf8_check(buf_str(run), size) == size)
        status = text_list_add(out, buf_str(run), size, err);
    else
        for (size_t i = 0; i < size && status == 0; i++)
            status = text_list_add(out, replacement, sizeof(replacement) - 1, err);
    buf_clear(run);
    return status;
}

static int do_byte_fallback(const struct text_list *in, struct text_list *out, struct err *err)
{
    struct buf run = {.limit = in->text.limit};
    int status = 0;
    for (size_t i = 0; i < in->count && status == 0; i++) {
        const struct decoded_part part = part_at(in, i);
        const int byte = byte_of(part);
        const uint8_t one = (uint8_t)byte;
        if (byte >= 0)
            status = buf_append(&run, &one, 1, err);
        else
            status =
                decode_steps_run_end(&run, out, err) < 0 ? -1 : text_list_add(out, part.text, part.size, err);
    }
    status = status < 0 ? -1 : decode_steps_run_end(&run, out, err);
    buf_fini(&run);
    return status;
}

static int replace_found(const struct text_list *in, struct text_list *out, const struct decode_step *step,
                         struct pattern_search *search, struct err *err)
{
    for (size_t i = 0; i < in->count; i++) {
        const struct decoded_part part = part_at(in, i);
        size_t done = 0;
        size_t begin;
        size_t end;
        int got;
        pattern_begin(search, part.text, part.size);
        while ((got = part.size > 0 ? pattern_next(search, &begin, &end, err) : 0) > 0) {
            if (buf_append(&out->text, part.text + done, begin - done, err) < 0 ||
                buf_append(&out->text, step->to, step->to_size, err) < 0) {
                return -1;
            }
            done = end;
        }
        if (got < 0 || buf_append(&out->text, part.text + done, part.size - done, err) < 0 ||
            text_list_end(out, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int do_replace(const struct text_list *in, struct text_list *out, const struct decode_step *step,
                      struct err *err)
{
    struct pattern_search *search = pattern_search_create(step->pattern, err);
    int status = search ? replace_found(in, out, step, search, err) : -1;
    pattern_search_destroy(search);
    return status;
}

static struct decoded_part stripped(const struct decode_step *step, struct decoded_part part)
{
    const size_t one = step->from_size;
    for (uint32_t n = 0; n < step->start && part_is(&part, step->from, one); n++) {
        part.text += one;
        part.size -= one;
    }
    for (uint32_t n = 0;
         n < step->stop && part.size >= one && memcmp(part.text + part.size - one, step->from, one) == 0;
         n++) {
        part.size -= one;
    }
    return part;
}

/* Append a text after the "cleanup" of the decoder WordPiece, which removes spaces before punctuation and
 * contractions. */
static int append_clean(struct buf *out, struct decoded_part in, struct err *err)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    struct buf text[2] = {{.limit = out->limit}, {.limit = out->limit}};
    int status = buf_append(&text[0], in.text, in.size, err);
    size_t side = 0;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]) && status == 0; i++) {
        const struct decoded_part part = {.text = buf_str(&text[side]), .size = text[side].size};
        side = 1 - side;
        buf_clear(&text[side]);
        status = append_replaced(&text[side], part, pairs[i][0], strlen(pairs[i][0]), pairs[i][1],
                                 strlen(pairs[i][1]), err);
    }
    status = status < 0 ? -1 : buf_append(out, text[side].data, text[side].size, err);
    buf_fini(&text[0]);
    buf_fini(&text[1]);
    return status;
}

static int append_ctc(struct buf *out, const struct decode_step *step, struct decoded_part in,
                      struct err *err)
{
    struct buf text = {.limit = out->limit};
    struct buf clean = {.limit = out->limit};
    int status = append_replaced(&text, in, step->from, step->from_size, "", 0, err);
    if (status == 0 && !step->flag) {
        status = buf_append(out, text.data, text.size, err);
    } else if (status == 0) {
        status = append_clean(&clean, (struct decoded_part){.text = buf_str(&text), .size = text.size}, err);
        status =
            status < 0
                ? -1
                : append_replaced(out, (struct decoded_part){.text = buf_str(&clean), .size = clean.size},
                                  step->to, step->to_size, " ", 1, err);
    }
    buf_fini(&text);
    buf_fini(&clean);
    return status;
}

static int do_ctc(const struct text_list *in, struct text_list *out, const struct decode_step *step,
                  struct err *err)
{
    for (size_t i = 0; i < in->count; i++) {
        const struct decoded_part part = part_at(in, i);
        const struct decoded_part before = i > 0 ? part_at(in, i - 1) : (struct decoded_part){0};
        if (i > 0 && before.size == part.size && memcmp(before.text, part.text, part.size) == 0)
            continue;
        const size_t begin = out->text.size;
        if (append_ctc(&out->text, step, part, err) < 0 ||
            (out->text.size > begin && text_list_end(out, err) < 0)) {
            return -1;
        }
    }
    return 0;
}

static int append_word_piece(struct buf *out, const struct decode_step *step, struct decoded_part part,
                             bool first, struct err *err)
{
    struct buf text = {.limit = out->limit};
    int status = 0;
    if (!first && part_is(&part, step->from, step->from_size)) {
        part.text += step->from_size;
        part.size -= step->from_size;
    } else if (!first) {
        status = buf_text(&text, " ", err);
    }
    status = status < 0 ? -1 : buf_append(&text, part.text, part.size, err);
    if (status == 0) {
        const struct decoded_part whole = {.text = buf_str(&text), .size = text.size};
        status = step->flag ? append_clean(out, whole, err) : buf_append(out, whole.text, whole.size, err);
    }
    buf_fini(&text);
    return status;
}

/* Apply a step that makes one text of each text. */
static int do_each(const struct text_list *in, struct text_list *out, const struct decode_step *step,
                   struct err *err)
{
    for (size_t i = 0; i < in->count; i++) {
        struct decoded_part part = part_at(in, i);
        int status = 0;
        switch (step->kind) {
        case DECODE_METASPACE:
            status = append_replaced(&out->text, part, step->from, step->from_size, " ",
                                     i == 0 && step->flag ? 0 : 1, err);
            break;
        case DECODE_BPE:
            status = append_replaced(&out->text, part, step->from, step->from_size, " ",
                                     i + 1 == in->count ? 0 : 1, err);
            break;
        case DECODE_WORD_PIECE:
            status = append_word_piece(&out->text, step, part, i == 0, err);
            break;
        default: /* for DECODE_STRIP */
            part = stripped(step, part);
            status = buf_append(&out->text, part.text, part.size, err);
        }
        if (status < 0 || text_list_end(out, err) < 0)
            return -1;
    }
    return 0;
}

static int step_apply(const struct decode_step *step, const struct text_list *in, struct text_list *out,
                      struct err *err)
{
    switch (step->kind) {
    case DECODE_BYTE_LEVEL:
        return do_byte_level(in, out, err);
    case DECODE_BYTE_FALLBACK:
        return do_byte_fallback(in, out, err);
    case DECODE_FUSE:
        return text_list_add(out, buf_str(&in->text), in->text.size, err);
    case DECODE_REPLACE:
        return do_replace(in, out, step, err);
    case DECODE_CTC:
        return do_ctc(in, out, step, err);
    default:
        return do_each(in, out, step, err);
    }
}

int decode_steps_apply(const struct decode_steps *steps, struct text_list *list, struct buf *out,
                       struct err *err)
{
    struct text_list other = {.text = {.limit = list->text.limit}};
    int status = 0;
    for (unsigned i = 0; i < steps->count && status == 0; i++) {
        buf_clear(&other.text);
        other.count = 0;
        status = step_apply(&steps->steps[i], list, &other, err);
        const struct text_list done = *list;
        *list = other;
        other = done;
    }
    for (size_t i = 0; i < list->count && status == 0; i++) {
        const struct decoded_part part = part_at(list, i);
        if (steps->spaced && i > 0)
            status = buf_text(out, " ", err);
        status = status < 0 ? -1 : buf_append(out, part.text, part.size, err);
    }
    text_list_fini(&other);
    return status;
}
