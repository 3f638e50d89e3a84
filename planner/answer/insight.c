/* Describes struct plan_insight, which is written as JSON and never read. */
#include "planner/answer/insight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/doc.h"

#define NUMBER(key, tag, member) DOC_NUM(key, tag, member, JR_REQUIRED, 0, 0, 0, "")
#define TEXT(key, tag, member) DOC_TEXT(key, tag, member, JR_REQUIRED, 0, 0, "")
#define LIST(key, member, number, item, ...)                                                                 \
    DOC_STRUCTS(key, plan_insight, member, number, JR_REQUIRED, 0, 0, item, "", __VA_ARGS__)

static const struct doc_field share_fields[] = {
    TEXT("what", plan_path_share, what),
    TEXT("where", plan_path_share, where),
    NUMBER("seconds", plan_path_share, seconds),
    NUMBER("share", plan_path_share, share),
};
static const struct doc share_doc = DOC(plan_path_share, share_fields);

static const struct doc_field rank_fields[] = {
    NUMBER("rank", plan_rank_time, rank),
    NUMBER("compute_s", plan_rank_time, compute_s),
    NUMBER("wait_s", plan_rank_time, wait_s),
    NUMBER("idle_s", plan_rank_time, idle_s),
    NUMBER("send_s", plan_rank_time, send_s),
    DOC_NUM("waits_on", plan_rank_time, waits_on, JR_REQUIRED, -1, 0, 0, "", .flags = DOC_NULL),
    NUMBER("waits_on_s", plan_rank_time, waits_on_s),
    NUMBER("memory_peak_bytes", plan_rank_time, memory_peak_bytes),
};
static const struct doc rank_doc = DOC(plan_rank_time, rank_fields);

static const char *const kind_names[] = {"link", "memory", "speed", "device", NULL};
static const struct doc_field improvement_fields[] = {
    DOC_CHOICE("kind", plan_improvement, kind, JR_REQUIRED, 0, kind_names, ""),
    TEXT("what", plan_improvement, what),
    TEXT("words", plan_improvement, words),
    NUMBER("step_s", plan_improvement, step_s),
    NUMBER("saves", plan_improvement, saves),
    DOC_FLAG("searched", plan_improvement, searched, JR_REQUIRED, false, ""),
};
static const struct doc improvement_doc = DOC(plan_improvement, improvement_fields);

static const struct doc_field loss_fields[] = {
    TEXT("device", plan_loss, device),
    DOC_NUM("step_s", plan_loss, step_s, JR_REQUIRED, 0, 0, 0, "", .flags = DOC_NULL),
    TEXT("like", plan_loss, like),
};
static const struct doc loss_doc = DOC(plan_loss, loss_fields);

static const struct doc_field step_fields[] = {
    NUMBER("step_s", plan_insight, step_s),
    NUMBER("critical_path_parts", plan_insight, path_length),
    LIST("critical_path", shares, share_count, &share_doc),
    LIST("ranks", ranks, rank_count, &rank_doc),
    NUMBER("not_tried", plan_insight, not_tried),
    TEXT("words", plan_insight, words),
};
static const struct doc step_doc = DOC(plan_insight, step_fields);

static const struct doc_field insight_fields[] = {
    DOC_WITHIN("insight", JR_REQUIRED, &step_doc, ""),
    LIST("improvements", improvements, improvement_count, &improvement_doc),
    LIST("without", losses, loss_count, &loss_doc, .flags = DOC_SPARSE),
};
static const struct doc insight_doc = DOC(plan_insight, insight_fields);

void plan_insight_destroy(struct plan_insight *insight)
{
    if (insight)
        doc_fini(&insight_doc, insight);
    free(insight);
}

int plan_insight_json(const struct plan_insight *insight, json_t *answer, struct err *err)
{
    return doc_add(&insight_doc, insight, answer, err);
}
