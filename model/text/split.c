/* Cuts texts by a splitter's stages (split.h). A stage calls the next one for each of its pieces, so at most
 * SPLIT_STAGES_MAX calls are nested. */
#include "model/text/split.h"

#include <stdlib.h>
#include <string.h>

const char split_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char split_llama3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char split_qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                           " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/* The regular expression of Mistral's tokenizer "tekken". */
const char split_tekken[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char split_digit[] = "\\p{N}";

/* ROOM_KEPT: from one text to the next a stage keeps memory for the places (4 bytes each) of this many
 * bytes. */
enum { CHANGED_BYTES_MAX = 1 << 30, ROOM_KEPT = 1 << 20 };

struct split_stage {
    struct pattern *pattern; /* NULL: the stage changes pieces by 'steps' */
    enum split_how how;
    bool invert;
    struct text_steps steps;
};

struct splitter {
    unsigned count;
    struct split_stage stages[SPLIT_STAGES_MAX];
};

struct split_scratch {
    unsigned count;
    struct pattern_search *search[SPLIT_STAGES_MAX]; /* searches of the stages that cut */
    struct text_room *room[SPLIT_STAGES_MAX];        /* memory of the stages that change pieces */
};

struct splitter *splitter_create(struct err *err)
{
    struct splitter *splitter = calloc(1, sizeof(*splitter));
    if (!splitter)
        err_set(err, ERR_NOMEM, "out of memory for a pre-tokeniser");
    return splitter;
}

void splitter_destroy(struct splitter *splitter)
{
    if (!splitter)
        return;
    for (unsigned i = 0; i < splitter->count; i++) {
        pattern_destroy(splitter->stages[i].pattern);
        text_steps_fini(&splitter->stages[i].steps);
    }
    free(splitter);
}

static struct split_stage *stage_new(struct splitter *splitter, struct err *err)
{
    if (splitter->count == SPLIT_STAGES_MAX) {
        err_set(err, ERR_TOO_BIG, "a pre-tokeniser of more than %d stages", SPLIT_STAGES_MAX);
        return NULL;
    }
    return &splitter->stages[splitter->count++];
}

int splitter_cut(struct splitter *splitter, struct pattern *pattern, enum split_how how, bool invert,
                 struct err *err)
{
    struct split_stage *stage = pattern ? stage_new(splitter, err) : NULL;
    if (!stage) {
        pattern_destroy(pattern);
        return -1;
    }
    *stage = (struct split_stage){.pattern = pattern, .how = how, .invert = invert};
    return 0;
}

int splitter_add(struct splitter *splitter, const char *pattern, struct err *err)
{
    return splitter_cut(splitter, pattern_regex(pattern, strlen(pattern), err), SPLIT_ISOLATED, false, err);
}

struct text_steps *splitter_change(struct splitter *splitter, struct err *err)
{
    struct split_stage *stage = stage_new(splitter, err);
    return stage ? &stage->steps : NULL;
}

struct split_scratch *split_scratch_create(const struct splitter *splitter, struct err *err)
{
    struct split_scratch *scratch = calloc(1, sizeof(*scratch));
    bool good = scratch != NULL;
    for (unsigned i = 0; i < splitter->count && good; i++) {
        scratch->count++;
        if (splitter->stages[i].pattern) {
            scratch->search[i] = pattern_search_create(splitter->stages[i].pattern, err);
            good = scratch->search[i] != NULL;
            continue;
        }
        scratch->room[i] = calloc(1, sizeof(*scratch->room[i]));
        good = scratch->room[i] != NULL;
        for (int side = 0; side < 2 && good; side++)
            scratch->room[i]->text[side].limit = CHANGED_BYTES_MAX;
    }
    if (!good) {
        split_scratch_destroy(scratch);
        err_set(err, ERR_NOMEM, "out of memory for a pre-tokeniser");
        return NULL;
    }
    return scratch;
}

void split_scratch_destroy(struct split_scratch *scratch)
{
    if (!scratch)
        return;
    for (unsigned i = 0; i < scratch->count; i++) {
        pattern_search_destroy(scratch->search[i]);
        if (scratch->room[i])
            text_room_fini(scratch->room[i]);
        free(scratch->room[i]);
    }
    free(scratch);
}

void split_scratch_trim(struct split_scratch *scratch)
{
    for (unsigned i = 0; i < scratch->count; i++) {
        struct text_room *room = scratch->room[i];
        if (room && room->place_capacity[0] + room->place_capacity[1] > ROOM_KEPT)
            text_room_fini(room);
    }
}

struct split_walk {
    const struct splitter *splitter;
    struct split_scratch *scratch;
    split_piece_fn *piece;
    void *arg;
};

/* A part of the text: a match or the text between two matches, to which the next part may yet be joined. */
struct split_part {
    bool there, match;
    size_t begin, end;
};

static int walk_stage(const struct split_walk *walk, unsigned stage, const struct text_view *view,
                      struct err *err);

static int walk_part(const struct split_walk *walk, unsigned stage, const struct text_view *view,
                     const struct split_part *part, struct err *err)
{
    if (!part->there || part->begin == part->end)
        return 0;
    const struct text_view piece = text_slice(view, part->begin, part->end);
    return walk_stage(walk, stage + 1, &piece, err);
}

/* Take the next part of the text. Where 'how' joins it to *held, *held grows; otherwise *held becomes a piece
 * and the part takes its place. Where 'how' joins no parts at all, the part becomes a piece at once, or
 * vanishes (SPLIT_REMOVED). */
static int split_part_add(const struct split_walk *walk, unsigned stage, const struct text_view *view,
                          struct split_part *held, struct split_part part, struct err *err)
{
    const enum split_how how = walk->splitter->stages[stage].how;
    part.match = part.match != walk->splitter->stages[stage].invert;
    if (how == SPLIT_ISOLATED || (how == SPLIT_REMOVED && !part.match))
        return walk_part(walk, stage, view, &part, err);
    if (how == SPLIT_REMOVED)
        return 0;
    const bool joins = held->there && ((how == SPLIT_CONTIGUOUS && held->match == part.match) ||
                                       (how == SPLIT_WITH_PREVIOUS && !held->match && part.match) ||
                                       (how == SPLIT_WITH_NEXT && held->match && !part.match));
    if (joins) {
        held->end = part.end;
        held->match = part.match;
        return 0;
    }
    const struct split_part done = *held;
    *held = part;
    return walk_part(walk, stage, view, &done, err);
}

static int walk_cut(const struct split_walk *walk, unsigned stage, const struct text_view *view,
                    struct err *err)
{
    struct pattern_search *search = walk->scratch->search[stage];
    struct split_part held = {.there = false};
    size_t done = 0; /* where the last match ended */
    size_t begin;
    size_t end;
    int got;
    pattern_begin(search, view->text, view->size);
    while ((got = pattern_next(search, &begin, &end, err)) > 0) {
        if ((begin > done &&
             split_part_add(walk, stage, view, &held,
                            (struct split_part){.there = true, .begin = done, .end = begin}, err) < 0) ||
            split_part_add(walk, stage, view, &held,
                           (struct split_part){.there = true, .match = true, .begin = begin, .end = end},
                           err) < 0) {
            return -1;
        }
        done = end;
    }
    if (got < 0 ||
        (done < view->size &&
         split_part_add(walk, stage, view, &held,
                        (struct split_part){.there = true, .begin = done, .end = view->size}, err) < 0)) {
        return -1;
    }
    return walk_part(walk, stage, view, &held, err);
}

static int walk_stage(const struct split_walk *walk, unsigned stage, const struct text_view *view,
                      struct err *err)
{
    if (stage == walk->splitter->count)
        return walk->piece(walk->arg, view, err);
    if (walk->splitter->stages[stage].pattern)
        return walk_cut(walk, stage, view, err);
    struct text_view changed;
    if (text_steps_apply(&walk->splitter->stages[stage].steps, view, walk->scratch->room[stage], &changed,
                         err) < 0) {
        return -1;
    }
    return changed.size == 0 ? 0 : walk_stage(walk, stage + 1, &changed, err);
}

int split_text(const struct splitter *splitter, struct split_scratch *scratch, const struct text_view *text,
               split_piece_fn *piece, void *arg, struct err *err)
{
    const struct split_walk walk = {.splitter = splitter, .scratch = scratch, .piece = piece, .arg = arg};
    return text->size == 0 ? 0 : walk_stage(&walk, 0, text, err);
}
