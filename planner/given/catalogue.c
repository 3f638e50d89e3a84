/* Catalogue lookups by name: drivers' names, the closest spelling, and peaks. The entries are in
 * catalogue_entries.c. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "planner/given/catalogue.h"
#include "planner/given/kernels.h"

#define PLAIN_MAX 64

/* Reduces a name to lower-case letters and digits, without the words that only name the maker. */
static void plain(const char *name, char out[PLAIN_MAX])
{
    static const char *const makers[] = {"nvidia",     "amd",     "intel",       "geforce", "tesla",
                                         "quadro",     "radeon",  "instinct",    "ryzen",   "graphics",
                                         "generation", "edition", "workstation", "server",  "blackwell",
                                         "r",          "tm"};
    size_t used = 0;
    while (*name) {
        char word[PLAIN_MAX];
        size_t size = 0;
        while (*name && !isalnum((unsigned char)*name))
            name++;
        for (; isalnum((unsigned char)*name); name++)
            if (size + 1 < sizeof(word))
                word[size++] = (char)tolower((unsigned char)*name);
        word[size] = '\0';
        bool made = false;
        for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++)
            made = made || strcmp(word, makers[i]) == 0;
        for (size_t i = 0; i < size && !made && used + 1 < PLAIN_MAX; i++)
            out[used++] = word[i];
    }
    out[used] = '\0';
}

const char *const cost_origin_names[] = {"measured", "imported", "estimated", NULL};

const char *cost_origin_name(enum cost_origin origin)
{
    return origin < ORIGIN_COUNT ? cost_origin_names[origin] : "?";
}

const struct catalogue_entry *catalogue_find(const char *name)
{
    size_t count;
    const struct catalogue_entry *entries = catalogue_entries(&count);
    char asked[PLAIN_MAX], own[PLAIN_MAX];
    const char *alias;
    for (size_t i = 0; i < count; i++)
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    plain(name, asked);
    if (!*asked)
        return NULL;
    if ((alias = catalogue_alias(asked)))
        return catalogue_find(alias);
    for (size_t i = 0; i < count; i++) {
        plain(entries[i].name, own);
        if (strcmp(own, asked) == 0)
            return &entries[i];
    }
    return NULL;
}

/* Returns the Levenshtein distance (1966): letters to insert, delete or change to turn one name into the
 * other. */
static uint32_t distance(const char *a, const char *b)
{
    uint32_t row[PLAIN_MAX + 1];
    size_t width = strlen(b);
    for (uint32_t k = 0; k <= width; k++)
        row[k] = k;
    for (uint32_t i = 1; *a; a++, i++) {
        uint32_t corner = row[0];
        row[0] = i;
        for (size_t k = 1; k <= width; k++) {
            uint32_t change = corner + (*a != b[k - 1]), out = row[k] + 1, in = row[k - 1] + 1;
            corner = row[k];
            row[k] = change < out ? change : out;
            row[k] = row[k] < in ? row[k] : in;
        }
    }
    return row[width];
}

const char *catalogue_near(const char *name)
{
    size_t count;
    const struct catalogue_entry *entries = catalogue_entries(&count);
    char asked[PLAIN_MAX], own[PLAIN_MAX];
    const char *best = "cpu";
    uint32_t least = UINT32_MAX;
    plain(name, asked);
    for (size_t i = 0; i < count; i++) {
        plain(entries[i].name, own);
        uint32_t each = distance(asked, own);
        if (each < least) {
            least = each;
            best = entries[i].name;
        }
    }
    return best;
}

uint64_t catalogue_usable(const struct catalogue_entry *entry)
{
    if (strcmp(entry->kind, "cpu") == 0)
        return entry->memory_bytes;
    return (uint64_t)((1 - CATALOGUE_RESERVE) * (double)entry->memory_bytes) - CATALOGUE_CONTEXT_BYTES;
}

double catalogue_peak(const struct catalogue_entry *entry)
{
    return entry->flops_16 > entry->flops_fp32 ? entry->flops_16 : entry->flops_fp32;
}

const struct catalogue_entry *catalogue_extreme(const char *kind, bool fastest)
{
    size_t count;
    const struct catalogue_entry *entries = catalogue_entries(&count), *best = NULL;
    for (size_t i = 0; i < count; i++) {
        double more = best ? catalogue_peak(&entries[i]) - catalogue_peak(best) : 0;
        if (strcmp(entries[i].kind, kind) == 0 && (!best || (fastest ? more > 0 : more < 0)))
            best = &entries[i];
    }
    return best;
}

double catalogue_rate(const struct catalogue_entry *entry, enum workload_compute compute)
{
    const bool half = (compute == COMPUTE_FP16 || (compute == COMPUTE_BF16 && entry->bf16)) &&
                      strcmp(entry->kind, "cpu") != 0;
    return half && entry->flops_16 > entry->flops_fp32 ? entry->flops_16 * entry->efficiency_16
                                                       : entry->flops_fp32 * entry->efficiency;
}

enum workload_compute catalogue_fastest(const struct catalogue_entry *entry)
{
    const double full = entry ? catalogue_rate(entry, COMPUTE_FP32) : 0;
    return !entry                                       ? COMPUTE_FP32
           : catalogue_rate(entry, COMPUTE_BF16) > full ? COMPUTE_BF16
           : catalogue_rate(entry, COMPUTE_FP16) > full ? COMPUTE_FP16
                                                        : COMPUTE_FP32;
}

double catalogue_measured_rate(const json_t *profile)
{
    const json_t *flops = json_object_get(profile, "layer_flops"), *point;
    double most = 0, seconds = 0;
    size_t i;
    json_array_foreach (json_object_get(profile, "points"), i, point) {
        const char *block = json_string_value(json_object_get(point, "block"));
        double work = json_number_value(json_object_get(flops, "token")) *
                          json_number_value(json_object_get(point, "tokens")) +
                      json_number_value(json_object_get(flops, "square")) *
                          json_number_value(json_object_get(point, "sum_sq"));
        if (block && strcmp(block, "layer") == 0 && work > most) {
            most = work;
            seconds = json_number_value(json_object_get(point, "forward_s"));
        }
    }
    /* A profile without `heat` was measured on a device that did not throttle. */
    double heat = json_number_value(json_object_get(profile, "heat"));
    double rate = most / (seconds * (heat > 0 ? heat : 1));
    return rate > 0 && isfinite(rate) ? rate : 0;
}

json_t *catalogue_difference(const char *like, const json_t *profile)
{
    const struct catalogue_entry *entry = like ? catalogue_find(like) : NULL;
    enum workload_compute in;
    double rate = catalogue_measured_rate(profile);
    if (!entry || workload_compute_read(json_string_value(json_object_get(profile, "compute")), &in) < 0 ||
        !(rate > 0))
        return NULL;
    double estimated = catalogue_rate(entry, in);
    return json_pack("{s:s, s:f, s:f, s:f}", "entry", entry->name, "flops_per_s", rate,
                     "estimated_flops_per_s", estimated, "ratio", rate / estimated);
}

json_t *cluster_catalogue(struct err *err)
{
    size_t count;
    const struct catalogue_entry *entries = catalogue_entries(&count);
    json_t *list = json_array();
    for (size_t i = 0; list && i < count; i++) {
        const struct catalogue_entry *e = &entries[i];
        json_t *item = json_pack(
            "{s:s,s:s,s:s,s:s,s:I,s:I,s:f,s:f,s:b,s:f,s:f,s:f,s:f,s:f,s:s,s:s}", "name", e->name, "kind",
            e->kind, "arch", e->arch, "runs", catalogue_runs_names[catalogue_runs(e)], "memory_bytes",
            (json_int_t)e->memory_bytes, "usable_bytes", (json_int_t)catalogue_usable(e), "flops_fp32",
            e->flops_fp32, "flops_16", e->flops_16, "bf16", e->bf16, "board_watts", e->board_watts,
            "memory_bytes_per_s", e->memory_bytes_per_s, "efficiency", e->efficiency, "efficiency_16",
            e->efficiency_16, "uncertainty", e->uncertainty, "origin", cost_origin_name(e->origin), "source",
            e->source);
        if (json_array_append_new(list, item) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    if (!list) {
        err_set(err, ERR_NOMEM, "catalogue: out of memory");
        return NULL;
    }
    return json_pack("{s:o}", "devices", list);
}
