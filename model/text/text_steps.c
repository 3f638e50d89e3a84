#include "model/text/text_steps.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/text/unicode_tables.h"
#include "model/text/utf8.h"

void text_steps_fini(struct text_steps *steps)
{
    for (unsigned i = 0; i < steps->count; i++) {
        free(steps->steps[i].from);
        free(steps->steps[i].to);
        pattern_destroy(steps->steps[i].pattern);
    }
    free(steps->steps);
    *steps = (struct text_steps){0};
}

void text_room_fini(struct text_room *room)
{
    for (int i = 0; i < 2; i++) {
        buf_fini(&room->text[i]);
        free(room->place[i]);
        room->place[i] = NULL;
        room->place_capacity[i] = 0;
    }
    for (unsigned i = 0; i < TEXT_STEPS_MAX; i++) {
        pattern_search_destroy(room->search[i]);
        room->search[i] = NULL;
    }
}

static struct text_step *step_new(struct text_steps *steps, enum text_step_kind kind, struct err *err)
{
    if (steps->count == TEXT_STEPS_MAX) {
        err_set(err, ERR_TOO_BIG, "more than %d steps of normalisation", TEXT_STEPS_MAX);
        return NULL;
    }
    struct text_step *grown = realloc(steps->steps, (steps->count + 1) * sizeof(*grown));
    if (!grown) {
        err_set(err, ERR_NOMEM, "out of memory for a step of normalisation");
        return NULL;
    }
    steps->steps = grown;
    grown[steps->count] = (struct text_step){.kind = kind};
    return &grown[steps->count++];
}

int text_steps_add(struct text_steps *steps, enum text_step_kind kind, const char *from, size_t from_size,
                   const char *to, size_t to_size, struct err *err)
{
    if (from_size > TEXT_STEP_BYTES || to_size > TEXT_STEP_BYTES) {
        return err_set(err, ERR_TOO_BIG, "a text of more than %d bytes in a step of normalisation",
                       TEXT_STEP_BYTES);
    }
    struct text_step *step = step_new(steps, kind, err);
    if (!step)
        return -1;
    step->from = malloc(from_size + 1);
    step->to = malloc(to_size + 1);
    if (!step->from || !step->to)
        return err_set(err, ERR_NOMEM, "out of memory for a step of normalisation");
    memcpy(step->from, from, from_size);
    memcpy(step->to, to, to_size);
    step->from_size = from_size;
    step->to_size = to_size;
    return 0;
}

int text_steps_add_form(struct text_steps *steps, enum text_form form, struct err *err)
{
    struct text_step *step = step_new(steps, TEXT_FORM, err);
    if (!step)
        return -1;
    step->form = form;
    return 0;
}

/* Try the step on short texts, so that most patterns that step_replace_found() refuses are refused when the
 * tokenizer is opened, and not at the first text. */
static int step_try(const struct text_step *step, struct err *err)
{
    static const char *const texts[] = {"a", " ", ".", "0", "\xe4\xb8\xad"};
    const struct text_steps alone = {.count = 1, .steps = (struct text_step *)step};
    int status = 0;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && status == 0; i++) {
        struct text_room room = {.text = {{.limit = 16 * TEXT_STEP_BYTES}, {.limit = 16 * TEXT_STEP_BYTES}}};
        const struct text_view in = {.text = texts[i], .size = strlen(texts[i])};
        struct text_view out;
        status = text_steps_apply(&alone, &in, &room, &out, err);
        text_room_fini(&room);
    }
    return status;
}

int text_steps_add_pattern(struct text_steps *steps, struct pattern *pattern, const char *to, size_t to_size,
                           struct err *err)
{
    if (text_steps_add(steps, TEXT_REPLACE_FOUND, "", 0, to, to_size, err) < 0) {
        pattern_destroy(pattern);
        return -1;
    }
    steps->steps[steps->count - 1].pattern = pattern;
    return step_try(&steps->steps[steps->count - 1], err);
}

int text_steps_add_map(struct text_steps *steps, enum character_map map, struct err *err)
{
    struct text_step *step = step_new(steps, TEXT_CHARACTERS, err);
    if (!step)
        return -1;
    step->map = map;
    return 0;
}

int text_steps_add_strip(struct text_steps *steps, bool left, bool right, struct err *err)
{
    struct text_step *step = step_new(steps, TEXT_STRIP, err);
    if (!step)
        return -1;
    step->left = left;
    step->right = right;
    return 0;
}

uint32_t text_place(const struct text_view *view, size_t at)
{
    return view->place ? view->place[at] : view->base + (uint32_t)at;
}

struct text_view text_slice(const struct text_view *view, size_t begin, size_t end)
{
    return (struct text_view){.text = view->text + begin,
                              .size = end - begin,
                              .place = view->place ? view->place + begin : NULL,
                              .base = view->base + (uint32_t)begin};
}

/* Where a step writes: one of the room's two texts, and the places of its bytes. */
struct text_writer {
    struct buf *text;
    uint32_t **place;
    size_t *place_capacity;
};

/* Make room in 'place' for 'more' bytes behind the text, and for the text's end. */
static int place_reserve(struct text_writer *w, size_t more, struct err *err)
{
    const size_t wanted = w->text->size + more + 1;
    if (wanted <= *w->place_capacity)
        return 0;
    size_t capacity = *w->place_capacity == 0 ? 256 : *w->place_capacity;
    while (capacity < wanted)
        capacity *= 2;
    uint32_t *grown = realloc(*w->place, capacity * sizeof(*grown));
    if (!grown)
        return err_set(err, ERR_NOMEM, "out of memory for the places of %zu bytes", capacity);
    *w->place = grown;
    *w->place_capacity = capacity;
    return 0;
}

/* Append bytes begin..end of 'in' as they are. */
static int write_same(struct text_writer *w, const struct text_view *in, size_t begin, size_t end,
                      struct err *err)
{
    if (place_reserve(w, end - begin, err) < 0)
        return -1;
    for (size_t i = begin; i < end; i++)
        (*w->place)[w->text->size + i - begin] = text_place(in, i);
    return buf_append(w->text, in->text + begin, end - begin, err);
}

/* Append bytes that stand for bytes begin..end of 'in'. They get the places of these bytes in order, and once
 * these are used up the place of the last one. */
static int write_new(struct text_writer *w, const struct text_view *in, size_t begin, size_t end,
                     const char *bytes, size_t size, struct err *err)
{
    if (place_reserve(w, size, err) < 0)
        return -1;
    for (size_t i = 0; i < size; i++) {
        const size_t from = begin + i < end ? begin + i : end > begin ? end - 1 : end;
        (*w->place)[w->text->size + i] = text_place(in, from);
    }
    return buf_append(w->text, bytes, size, err);
}

/* Append 'to' in place of a match that ends at 'end'. In `tokenizers` it has the place of the last character
 * before 'end'. */
static int write_instead(struct text_writer *w, const struct text_view *in, size_t end,
                         const struct text_step *step, struct err *err)
{
    size_t last = end > 0 ? end - 1 : 0;
    while (last > 0 && ((unsigned char)in->text[last] & 0xc0) == 0x80)
        last--;
    return write_new(w, in, last, last, step->to, step->to_size, err);
}

static int step_replace(const struct text_step *step, const struct text_view *in,
                        struct pattern_search *search, struct text_writer *w, struct err *err)
{
    (void)search;
    const size_t from = step->from_size;
    size_t done = 0;
    while (done < in->size) {
        const char *found = memmem(in->text + done, in->size - done, step->from, from);
        const size_t at = found ? (size_t)(found - in->text) : in->size;
        if (write_same(w, in, done, at, err) < 0)
            return -1;
        if (!found)
            break;
        if (write_instead(w, in, at + from, step, err) < 0)
            return -1;
        done = at + from;
    }
    return 0;
}

static int step_replace_found(const struct text_step *step, const struct text_view *in,
                              struct pattern_search *search, struct text_writer *w, struct err *err)
{
    size_t done = 0;
    size_t begin;
    size_t end;
    int got;
    pattern_begin(search, in->text, in->size);
    while ((got = pattern_next(search, &begin, &end, err)) > 0) {
        if (end == 0 && step->to_size > 0) {
            return err_set(err, ERR_UNSUPPORTED,
                           "normalizer Replace: its pattern matches nothing (0 bytes) at the beginning of a "
                           "text, where tokenizers writes the text's beginning twice: give another pattern");
        }
        if (write_same(w, in, done, begin, err) < 0 || write_instead(w, in, end, step, err) < 0)
            return -1;
        done = end;
    }
    return got < 0 ? -1 : write_same(w, in, done, in->size, err);
}

static int step_prepend(const struct text_step *step, const struct text_view *in,
                        struct pattern_search *search, struct text_writer *w, struct err *err)
{
    (void)search;
    return write_new(w, in, 0, 0, step->to, step->to_size, err) < 0 ? -1
                                                                    : write_same(w, in, 0, in->size, err);
}

static size_t character_end(const struct text_view *in, size_t at)
{
    for (at++; at < in->size && ((unsigned char)in->text[at] & 0xc0) == 0x80; at++) {
    }
    return at;
}

/* Returns true for a character that no normalisation form changes in `tokenizers`, though utf8proc would
 * change it, and which keeps the marks before and behind it apart. */
static bool is_unformed(const struct text_view *in, size_t at)
{
    uint32_t code;
    utf8_next(in->text, in->size, at, &code);
    return code_set_has(&unicode_unformed, code);
}

/* Returns the end of the chunk at 'at', which can be normalised by itself: no character composes with an
 * ASCII character behind it. */
static size_t text_steps_chunk_end(const struct text_view *in, size_t at)
{
    const bool plain = (unsigned char)in->text[at] < 0x80;
    size_t end = at + 1;
    while (plain && end < in->size && (unsigned char)in->text[end] < 0x80)
        end++;
    if (plain && end < in->size && end - at > 1)
        return end - 1; /* the last ASCII character may compose with what follows it */
    while (end < in->size && (unsigned char)in->text[end] >= 0x80 &&
           (((unsigned char)in->text[end] & 0xc0) == 0x80 || !is_unformed(in, end))) {
        end++;
    }
    return end;
}

static int step_form(const struct text_step *step, const struct text_view *in, struct pattern_search *search,
                     struct text_writer *w, struct err *err)
{
    (void)search;
    static const utf8proc_option_t options[] = {
        [TEXT_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [TEXT_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [TEXT_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [TEXT_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    for (size_t at = 0; at < in->size;) {
        if ((unsigned char)in->text[at] >= 0x80 && is_unformed(in, at)) {
            const size_t behind = character_end(in, at);
            if (write_same(w, in, at, behind, err) < 0)
                return -1;
            at = behind;
            continue;
        }
        const size_t end = text_steps_chunk_end(in, at);
        utf8proc_uint8_t *formed = NULL;
        const utf8proc_ssize_t size =
            (unsigned char)in->text[end - 1] < 0x80
                ? -1 /* no form changes ASCII characters */
                : utf8proc_map((const utf8proc_uint8_t *)in->text + at, (utf8proc_ssize_t)(end - at), &formed,
                               options[step->form]);
        int status;
        if ((unsigned char)in->text[end - 1] < 0x80)
            status = write_same(w, in, at, end, err);
        else if (size < 0)
            status = err_set(err, ERR_NOMEM, "could not normalise a text: %s", utf8proc_errmsg(size));
        else if ((size_t)size == end - at && memcmp(formed, in->text + at, end - at) == 0)
            status = write_same(w, in, at, end, err);
        else
            status = write_new(w, in, at, end, (const char *)formed, (size_t)size, err);
        free(formed);
        if (status < 0)
            return -1;
        at = end;
    }
    return 0;
}

static int step_strip(const struct text_step *step, const struct text_view *in, struct pattern_search *search,
                      struct text_writer *w, struct err *err)
{
    size_t begin = 0;
    size_t end = in->size;
    uint32_t code;
    (void)search;
    while (step->left && begin < end) {
        const size_t next = utf8_next(in->text, end, begin, &code);
        if (!utf8_is_space(code))
            break;
        begin = next;
    }
    while (step->right && end > begin) {
        size_t at = end - 1;
        while (at > begin && ((unsigned char)in->text[at] & 0xc0) == 0x80)
            at--;
        utf8_next(in->text, end, at, &code);
        if (!utf8_is_space(code))
            break;
        end = at;
    }
    return write_same(w, in, begin, end, err);
}

static int step_characters(const struct text_step *step, const struct text_view *in,
                           struct pattern_search *search, struct text_writer *w, struct err *err)
{
    size_t same = 0; /* bytes from here on have not been written yet */
    (void)search;
    for (size_t at = 0; at < in->size;) {
        uint32_t code;
        char mapped[CHARACTER_MAP_BYTES];
        size_t size;
        const size_t next = utf8_next(in->text, in->size, at, &code);
        if (character_map(step->map, code, mapped, &size)) {
            if (write_same(w, in, same, at, err) < 0 || write_new(w, in, at, next, mapped, size, err) < 0)
                return -1;
            same = next;
        }
        at = next;
    }
    return write_same(w, in, same, in->size, err);
}

static bool begins_with(const struct text_view *view, const char *text, size_t size)
{
    return size > 0 && view->size >= size && memcmp(view->text, text, size) == 0;
}

static bool is_ascii(const struct text_view *view)
{
    unsigned char any = 0;
    for (size_t i = 0; i < view->size; i++)
        any |= (unsigned char)view->text[i];
    return any < 0x80;
}

static bool step_changes(const struct text_step *step, const struct text_view *view)
{
    switch (step->kind) {
    case TEXT_FORM:
        return !is_ascii(view);
    case TEXT_REPLACE:
        return step->from_size > 0 && memmem(view->text, view->size, step->from, step->from_size);
    case TEXT_REPLACE_FOUND:
    case TEXT_STRIP:
    case TEXT_CHARACTERS:
    case TEXT_PREPEND:
        return true;
    case TEXT_PREPEND_FIRST:
        if (text_place(view, 0) != 0)
            return false;
        break;
    case TEXT_PREPEND_ONCE:
        break;
    }
    return !begins_with(view, step->from, step->from_size) && !begins_with(view, step->to, step->to_size);
}

int text_steps_apply(const struct text_steps *steps, const struct text_view *in, struct text_room *room,
                     struct text_view *out, struct err *err)
{
    typedef int step_fn(const struct text_step *, const struct text_view *, struct pattern_search *,
                        struct text_writer *, struct err *);
    static step_fn *const by_kind[] = {[TEXT_FORM] = step_form,
                                       [TEXT_REPLACE] = step_replace,
                                       [TEXT_REPLACE_FOUND] = step_replace_found,
                                       [TEXT_STRIP] = step_strip,
                                       [TEXT_CHARACTERS] = step_characters,
                                       [TEXT_PREPEND] = step_prepend,
                                       [TEXT_PREPEND_ONCE] = step_prepend,
                                       [TEXT_PREPEND_FIRST] = step_prepend};
    struct text_view view = *in;
    int side = 0;
    for (unsigned i = 0; i < steps->count && view.size > 0; i++) {
        const struct text_step *step = &steps->steps[i];
        if (!step_changes(step, &view))
            continue;
        struct text_writer w = {.text = &room->text[side],
                                .place = &room->place[side],
                                .place_capacity = &room->place_capacity[side]};
        buf_clear(w.text);
        if (step->pattern && !room->search[i]) {
            room->search[i] = pattern_search_create(step->pattern, err);
            if (!room->search[i])
                return -1;
        }
        if (by_kind[step->kind](step, &view, room->search[i], &w, err) < 0 || place_reserve(&w, 0, err) < 0)
            return -1;
        (*w.place)[w.text->size] = text_place(&view, view.size);
        view = (struct text_view){
            .text = (const char *)w.text->data, .size = w.text->size, .place = *w.place, .base = view.base};
        side = 1 - side;
    }
    *out = view;
    return 0;
}
