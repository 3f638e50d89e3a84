/* Writes a struct plan_insight in words and as JSON. */
#include "planner/answer/insight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int losses_json(const struct plan_insight *in, json_t *answer)
{
    json_t *list = json_array();
    int bad = !list;
    for (uint32_t i = 0; i < in->loss_count && !bad; i++) {
        const struct plan_loss *loss = &in->losses[i];
        json_t *line = json_pack("{s:s,s:o}", "device", loss->device, "step_s",
                                 loss->step_s > 0 ? json_real(loss->step_s) : json_null());
        if (line && loss->like)
            json_object_set_new(line, "like", json_string(loss->like));
        bad |= json_array_append_new(list, line) < 0;
    }
    if (bad) {
        json_decref(list);
        return -1;
    }
    return json_object_set_new(answer, "without", list);
}

/* --- improvements in words --- */

static const char *const kind_words[INSIGHT_KINDS] = {
    [INSIGHT_LINK] = "a 10x faster link %s",
    [INSIGHT_MEMORY] = "1 GB more on %s",
    [INSIGHT_SPEED] = "%s twice as fast",
    [INSIGHT_DEVICE] = "one more like %s",
};

void improvement_words(const struct plan_improvement *line, char *text, size_t size)
{
    const char *format = kind_words[line->kind], *hole = strstr(format, "%s");
    snprintf(text, size, "%.*s%s%s", (int)(hole - format), format, line->what, hole + 2);
}

void plan_insight_destroy(struct plan_insight *insight)
{
    if (!insight)
        return;
    for (uint32_t i = 0; i < insight->share_count; i++) {
        free(insight->shares[i].what);
        free(insight->shares[i].where);
    }
    for (uint32_t i = 0; i < insight->improvement_count; i++)
        free(insight->improvements[i].what);
    for (uint32_t i = 0; i < insight->loss_count; i++)
        free(insight->losses[i].device);
    free(insight->losses);
    free(insight->shares);
    free(insight->ranks);
    free(insight->improvements);
    free(insight->words);
    free(insight);
}

int plan_insight_json(const struct plan_insight *in, json_t *answer, struct err *err)
{
    static const char *const kinds[INSIGHT_KINDS] = {"link", "memory", "speed", "device"};
    json_t *path = json_array(), *ranks = json_array(), *improvements = json_array();
    char words[700];
    int bad = !path || !ranks || !improvements;
    for (uint32_t i = 0; i < in->share_count && !bad; i++)
        bad |= json_array_append_new(path, json_pack("{s:s,s:s,s:f,s:f}", "what", in->shares[i].what, "where",
                                                     in->shares[i].where, "seconds", in->shares[i].seconds,
                                                     "share", in->shares[i].share)) < 0;
    for (uint32_t r = 0; r < in->rank_count && !bad; r++) {
        const struct plan_rank_time *t = &in->ranks[r];
        bad |=
            json_array_append_new(ranks, json_pack("{s:I,s:f,s:f,s:f,s:f,s:o,s:f,s:I}", "rank", (json_int_t)r,
                                                   "compute_s", t->compute_s, "wait_s", t->wait_s, "idle_s",
                                                   t->idle_s, "send_s", t->send_s, "waits_on",
                                                   t->waits_on < 0 ? json_null() : json_integer(t->waits_on),
                                                   "waits_on_s", t->waits_on_s, "memory_peak_bytes",
                                                   (json_int_t)t->memory_peak_bytes)) < 0;
    }
    for (uint32_t i = 0; i < in->improvement_count && !bad; i++) {
        const struct plan_improvement *line = &in->improvements[i];
        improvement_words(line, words, sizeof(words));
        bad |= json_array_append_new(improvements,
                                     json_pack("{s:s,s:s,s:s,s:f,s:f,s:b}", "kind", kinds[line->kind], "what",
                                               line->what, "words", words, "step_s", line->step_s, "saves",
                                               line->saves, "searched", line->searched)) < 0;
    }
    json_t *all = bad ? NULL
                      : json_pack("{s:f,s:I,s:o,s:o,s:I,s:s}", "step_s", in->step_s, "critical_path_parts",
                                  (json_int_t)in->path_length, "critical_path", path, "ranks", ranks,
                                  "not_tried", (json_int_t)in->not_tried, "words", in->words);
    if (!all) {
        json_decref(improvements);
        if (bad) {
            json_decref(path);
            json_decref(ranks);
        }
    }
    if (!all || json_object_set_new(answer, "insight", all) < 0 ||
        json_object_set_new(answer, "improvements", improvements) < 0 ||
        (in->loss_count && losses_json(in, answer) < 0))
        return err_set(err, ERR_NOMEM, "planner: out of memory for the answer");
    return 0;
}
