/* Searches shortly on changed jobs and clusters until something fits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/answer/answer_private.h"
#include "planner/given/cluster_change.h"

#define HALVINGS 6u   /* of the longest row: its length is found to a 64th */
#define GIB_MOST 128u /* most memory of one device that is proposed */

struct what_if {
    const struct workload *workload;
    const struct cluster *cluster;
    const struct plan_options *options;
    struct err *err;
};

/* Returns 1 if the job fits the cluster, 0 if not, −1 on failure. */
static int would_fit_fits(const struct what_if *q, const struct workload *w, const struct cluster *cluster)
{
    struct workload asked = *w;
    struct plan_answer *answer = NULL;
    if (precision_short(&asked, cluster, q->options, &answer, q->err) < 0)
        return -1;
    const int result = answer && answer->plan;
    plan_answer_destroy(answer);
    return result;
}

static uint32_t longest_of(const struct workload *w)
{
    uint32_t longest = w->row_count ? 0 : w->sequence_tokens;
    for (uint32_t i = 0; i < w->row_count; i++)
        longest = w->rows[i].tokens > longest ? w->rows[i].tokens : longest;
    return longest;
}

/* Returns rows of at most so many tokens, newly allocated. */
static struct workload_row *cut(const struct workload_row *rows, uint32_t count, uint32_t most)
{
    struct workload_row *all = calloc((size_t)count + 1, sizeof(*all));
    for (uint32_t i = 0; all && i < count; i++) {
        all[i] = rows[i];
        all[i].tokens = rows[i].tokens < most ? rows[i].tokens : most;
        all[i].labelled = rows[i].labelled < all[i].tokens ? rows[i].labelled : all[i].tokens - 1;
    }
    return all;
}

static int fits_with_rows(const struct what_if *q, uint32_t most)
{
    struct workload w = *q->workload;
    w.sequence_tokens = most;
    w.rows = cut(w.rows, w.row_count, most);
    w.eval_rows = cut(w.eval_rows, w.eval_row_count, most);
    const int result = w.rows && w.eval_rows ? would_fit_fits(q, &w, q->cluster)
                                             : err_set(q->err, ERR_NOMEM, "planner: out of memory");
    free(w.rows);
    free(w.eval_rows);
    return result;
}

/* Finds how long rows may be, with two digits that count; *most becomes 0 where none fit. */
static int rows_find(const struct what_if *q, uint32_t *most)
{
    uint32_t above = longest_of(q->workload), unit = 1;
    *most = 0;
    for (uint32_t i = 0; i < HALVINGS && above - *most > 1; i++) {
        const uint32_t middle = *most + (above - *most) / 2;
        const int result = middle < 2 ? 0 : fits_with_rows(q, middle);
        if (result < 0)
            return -1;
        *(result ? most : &above) = middle;
    }
    while (*most / unit >= 100)
        unit *= 10;
    *most -= *most % unit;
    return 0;
}

/* Finds how many GiB more the device with the most memory needs: the power of two that suffices, and between
 * it and its half by halvings to a 16th of it. *gib becomes 0 for more than GIB_MOST. */
static int memory_find(const struct what_if *q, uint32_t *gib, uint32_t *device)
{
    struct cluster *more = cluster_copy(q->cluster, NULL, q->err);
    if (!more)
        return -1;
    struct planner_device *d = &more->devices[0];
    for (uint32_t i = 1; i < more->device_count; i++)
        if (more->devices[i].memory_limit_bytes > d->memory_limit_bytes)
            d = &more->devices[i];
    const uint64_t has = d->memory_limit_bytes;
    int result = 0;
    *device = (uint32_t)(d - more->devices);
    for (*gib = 1; *gib <= GIB_MOST && result == 0; *gib *= result ? 1 : 2) {
        d->memory_limit_bytes = has + ((uint64_t)*gib << 30);
        result = would_fit_fits(q, q->workload, more);
    }
    const uint32_t power = *gib;
    for (uint32_t below = power / 2; result > 0 && *gib - below > 1 && 16 * (*gib - below) > power;) {
        const uint32_t middle = below + (*gib - below) / 2;
        d->memory_limit_bytes = has + ((uint64_t)middle << 30);
        const int less = would_fit_fits(q, q->workload, more);
        result = less < 0 ? -1 : result;
        *(less ? gib : &below) = middle;
    }
    cluster_destroy(more);
    *gib = result > 0 ? *gib : 0;
    return result < 0 ? -1 : 0;
}

static void would_fit_add(char *text, size_t size, const char *what)
{
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? ", or " : "", what);
}

int would_fit_say(const struct workload *w, const struct cluster *cluster, const struct plan_options *options,
                  struct plan_answer *answer, struct err *err)
{
    const struct what_if q = {w, cluster, options, err};
    struct workload host = *w, packed = *w;
    char text[512] = "", one[320];
    uint32_t tokens, gib, device;
    if (answer->plan || answer->shortfall_bytes == 0)
        return 0;
    host.moments_on_host = true;
    packed.base = BASE_NF4;
    const bool packs = w->method == METHOD_LORA && !workload_packs(w);
    const int moved = w->moments_on_host ? 0 : would_fit_fits(&q, &host, cluster);
    const int small = packs ? would_fit_fits(&q, &packed, cluster) : 0;
    if (moved < 0 || small < 0 || rows_find(&q, &tokens) < 0 || memory_find(&q, &gib, &device) < 0)
        return -1;
    snprintf(one, sizeof(one), "rows of %u tokens", tokens);
    if (tokens)
        would_fit_add(text, sizeof(text), one);
    if (moved)
        would_fit_add(text, sizeof(text), "moments on the host");
    if (small)
        would_fit_add(text, sizeof(text), "a base in nf4");
    snprintf(one, sizeof(one), "%u GiB more on %.255s", gib, gib ? cluster->devices[device].name : "");
    if (gib)
        would_fit_add(text, sizeof(text), one);
    if (!*text)
        return 0;
    const size_t size = strlen(answer->words) + sizeof(text) + 32;
    char *words = malloc(size);
    if (!words)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    snprintf(words, size, "%s Would fit: %s.", answer->words, text);
    free(answer->words);
    answer->words = words;
    return 0;
}
