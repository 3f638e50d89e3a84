#include "cli/slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what Slurm's commands print ---- */

/* Reads a whole number from 1 that ends at `end`. Returns 0 for anything else. */
static int64_t slurm_decide_number_read(const char *text, const char *end)
{
    int64_t value = 0;
    for (const char *at = text; at < end; at++) {
        if (*at < '0' || *at > '9' || value > INT64_MAX / 10 - 9)
            return 0;
        value = 10 * value + (*at - '0');
    }
    return value;
}

static enum slurm_state slurm_decide_state_read(const char *text, size_t size)
{
    if (size == strlen("PENDING") && strncmp(text, "PENDING", size) == 0)
        return SLURM_PENDING;
    if (size == strlen("CONFIGURING") && strncmp(text, "CONFIGURING", size) == 0)
        return SLURM_PENDING;
    return size == strlen("RUNNING") && strncmp(text, "RUNNING", size) == 0 ? SLURM_RUNNING : SLURM_OTHER;
}

/* Reads a line "id|state|name|comment". False for a job that is no allocation of these names. */
static bool slurm_decide_line_read(const char *line, const char *end, const char *name,
                                   struct slurm_allocation *out)
{
    const char *part[4] = {line};
    for (int i = 1; i < 4; i++) {
        const char *bar = memchr(part[i - 1], '|', (size_t)(end - part[i - 1]));
        if (!bar)
            return false;
        part[i] = bar + 1;
    }
    const size_t size = strlen(name), name_size = (size_t)(part[3] - 1 - part[2]);
    if (name_size <= size + 1 || strncmp(part[2], name, size) != 0 || part[2][size] != '-')
        return false;
    const int64_t slot = slurm_decide_number_read(part[2] + size + 1, part[3] - 1);
    out->id = slurm_decide_number_read(part[0], part[1] - 1);
    out->slot = slot >= 1 && slot <= SLURM_SLOTS_MAX ? (uint32_t)slot : 0;
    out->state = slurm_decide_state_read(part[1], (size_t)(part[2] - 1 - part[1]));
    out->ours = (size_t)(end - part[3]) == strlen(SLURM_COMMENT) &&
                strncmp(part[3], SLURM_COMMENT, strlen(SLURM_COMMENT)) == 0;
    return out->id > 0 && out->slot > 0;
}

int slurm_queue_read(const char *text, const char *name, struct slurm_allocation *out, size_t *count,
                     struct err *err)
{
    *count = 0;
    for (const char *line = text, *end; *line != '\0'; line = *end == '\0' ? end : end + 1) {
        struct slurm_allocation allocation;
        end = strchrnul(line, '\n');
        if (!slurm_decide_line_read(line, end, name, &allocation))
            continue;
        if (*count == SLURM_ALLOCATIONS_MAX)
            return err_set(err, ERR_TOO_BIG, "squeue lists more than %d jobs named %s-N",
                           SLURM_ALLOCATIONS_MAX, name);
        out[(*count)++] = allocation;
    }
    return 0;
}

int slurm_submitted_read(const char *text, int64_t *id, struct err *err)
{
    *id = slurm_decide_number_read(text, text + strcspn(text, ";\n"));
    return *id > 0 ? 0 : err_set(err, ERR_PEER, "sbatch printed \"%.80s\", which is no job's number", text);
}

bool slurm_wait_counts(const char *code)
{
    static const char *const codes[] = {"devices", "reserved", "width",   "slow",
                                        "absent",  "no-fit",   "interval"};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (strcmp(code, codes[i]) == 0)
            return true;
    return false;
}

/* ---- what is kept ---- */

static const struct doc_field kept_fields[] = {
    DOC_NUM("slot", slurm_kept, slot, JR_REQUIRED, 0, 1, SLURM_SLOTS_MAX, ""),
    DOC_NUM("id", slurm_kept, id, JR_REQUIRED, 0, 1, 1e15, ""),
    DOC_FLAG("joined", slurm_kept, joined, JR_OPTIONAL, false, ""),
    DOC_FLAG("given_back", slurm_kept, given_back, JR_OPTIONAL, false, ""),
    DOC_NUM("since", slurm_kept, since_s, JR_REQUIRED, 0, 0, 1e15, ""),
};
static const struct doc kept_doc = DOC(slurm_kept, kept_fields);
static const struct doc_field memory_fields[] = {
    DOC_STRUCTS("allocations", slurm_memory, kept, kept_count, JR_OPTIONAL, 0, SLURM_ALLOCATIONS_MAX,
                &kept_doc, ""),
    DOC_NUM("failures", slurm_memory, failures, JR_OPTIONAL, 0, 0, 1e6, ""),
    DOC_NUM("not_before", slurm_memory, not_before_s, JR_OPTIONAL, 0, 0, 1e15, ""),
    DOC_NUM("passed_to", slurm_memory, passed_to, JR_OPTIONAL, 0, 0, 1e15, ""),
    DOC_NUM("passed_until", slurm_memory, passed_until_s, JR_OPTIONAL, 0, 0, 1e15, ""),
};
const struct doc slurm_memory_doc = DOC(slurm_memory, memory_fields);

int slurm_keep(struct slurm_memory *memory, uint32_t slot, int64_t id, int64_t now_s, struct err *err)
{
    struct slurm_kept *more = realloc(memory->kept, (memory->kept_count + 1) * sizeof(*memory->kept));
    if (!more)
        return err_set(err, ERR_NOMEM, "no memory for allocations");
    memory->kept = more;
    memory->kept[memory->kept_count++] = (struct slurm_kept){.slot = slot, .id = id, .since_s = now_s};
    return 0;
}

void slurm_pause(struct slurm_memory *memory, int64_t now_s)
{
    const unsigned doublings = memory->failures < 5 ? memory->failures : 5;
    const int64_t pause_s = (int64_t)SLURM_PAUSE_S << doublings;
    memory->failures++;
    memory->not_before_s = now_s + (pause_s < SLURM_PAUSE_MAX_S ? pause_s : SLURM_PAUSE_MAX_S);
}

void slurm_not_done(struct slurm_memory *memory, const struct slurm_action *action)
{
    for (uint32_t i = 0; i < memory->kept_count; i++)
        if (memory->kept[i].id == action->id)
            memory->kept[i].given_back = false;
}

static const struct slurm_allocation *allocation_of(const struct slurm_situation *now, int64_t id)
{
    for (size_t i = 0; i < now->allocation_count; i++)
        if (now->allocations[i].ours && now->allocations[i].id == id)
            return &now->allocations[i];
    return NULL;
}

static bool slurm_decide_is_kept(const struct slurm_memory *memory, int64_t id)
{
    for (uint32_t i = 0; i < memory->kept_count; i++)
        if (memory->kept[i].id == id)
            return true;
    return false;
}

/* ---- the decision ---- */

struct slurm_decision {
    const struct slurm_situation *now;
    struct slurm_memory *memory;
    struct slurm_action *actions;
    size_t count;
};

static struct slurm_action *slurm_decide_act(struct slurm_decision *of, enum slurm_deed deed, uint32_t slot,
                                             int64_t id)
{
    struct slurm_action *action = &of->actions[of->count++];
    *action = (struct slurm_action){.deed = deed, .slot = slot, .id = id};
    return action;
}

/* Forgets the allocations that are over, and remembers those that an earlier run of the command asked for. */
static int match(struct slurm_decision *of, struct err *err)
{
    struct slurm_memory *memory = of->memory;
    uint32_t left = 0;
    for (uint32_t i = 0; i < memory->kept_count; i++) {
        const struct slurm_kept *kept = &memory->kept[i];
        if (allocation_of(of->now, kept->id)) {
            memory->kept[left++] = *kept;
        } else if (!kept->joined && !kept->given_back) {
            slurm_pause(memory, of->now->now_s);
            snprintf(slurm_decide_act(of, SLURM_FAILED, kept->slot, kept->id)->why, sizeof(of->actions->why),
                     "it ended before its agent joined; the output of the batch job may say why. The next is "
                     "asked for after %lld s",
                     (long long)(memory->not_before_s - of->now->now_s));
        }
    }
    memory->kept_count = left;
    for (size_t i = 0; i < of->now->allocation_count; i++) {
        const struct slurm_allocation *allocation = &of->now->allocations[i];
        if (allocation->ours && !slurm_decide_is_kept(memory, allocation->id) &&
            slurm_keep(memory, allocation->slot, allocation->id, of->now->now_s, err) < 0)
            return -1;
    }
    return 0;
}

/* Gives the allocation back if nothing has run on its node for long. Returns whether it is about to be used:
 * its node is yet to come, or is there since a moment. */
static bool look_at(struct slurm_decision *of, struct slurm_kept *kept, enum slurm_state state)
{
    const struct slurm_situation *now = of->now;
    const enum slurm_use use = state == SLURM_RUNNING ? now->nodes[kept->slot] : SLURM_AWAY;
    if (use == SLURM_BUSY || (use == SLURM_IDLE && !kept->joined) || state == SLURM_PENDING)
        kept->since_s = now->now_s;
    if (use == SLURM_BUSY || use == SLURM_IDLE) {
        kept->joined = true;
        of->memory->failures = 0;
    }
    if (state == SLURM_PENDING)
        return true;
    const int64_t unused_s = now->now_s - kept->since_s;
    if (state != SLURM_RUNNING || use == SLURM_BUSY || use == SLURM_LEAVING || kept->given_back)
        return false;
    if (unused_s >= now->idle_s) {
        kept->given_back = true;
        snprintf(slurm_decide_act(of, SLURM_GIVE_BACK, kept->slot, kept->id)->why, sizeof(of->actions->why),
                 "%s %lld s", kept->joined ? "nothing has run there for" : "its agent has not joined within",
                 (long long)unused_s);
        if (!kept->joined)
            slurm_pause(of->memory, now->now_s);
        for (size_t i = 0; i < now->waiting_count; i++)
            if (now->waiting[i] > of->memory->passed_to)
                of->memory->passed_to = now->waiting[i];
        of->memory->passed_until_s = now->now_s + SLURM_PASSED_S;
        return false;
    }
    return use == SLURM_AWAY ? !kept->joined : unused_s < SLURM_SETTLE_S;
}

/* Cancels what has not begun, as nobody waits any more. */
static void cancel_pending(struct slurm_decision *of)
{
    struct slurm_memory *memory = of->memory;
    uint32_t left = 0;
    for (uint32_t i = 0; i < memory->kept_count; i++)
        if (allocation_of(of->now, memory->kept[i].id)->state == SLURM_PENDING)
            snprintf(slurm_decide_act(of, SLURM_CANCEL, memory->kept[i].slot, memory->kept[i].id)->why,
                     sizeof(of->actions->why), "no job waits any more");
        else
            memory->kept[left++] = memory->kept[i];
    memory->kept_count = left;
}

static bool slot_is_free(const struct slurm_situation *now, uint32_t slot)
{
    for (size_t i = 0; i < now->allocation_count; i++)
        if (now->allocations[i].slot == slot)
            return false;
    return now->nodes[slot] == SLURM_AWAY; /* else another machine has the name */
}

static void slurm_decide_ask(struct slurm_decision *of, size_t wanted, size_t waiting)
{
    for (uint32_t slot = 1; slot <= SLURM_SLOTS_MAX && wanted > 0; slot++) {
        if (!slot_is_free(of->now, slot))
            continue;
        snprintf(slurm_decide_act(of, SLURM_ASK, slot, 0)->why, sizeof(of->actions->why),
                 "%zu job%s wait%s for devices", waiting, waiting == 1 ? "" : "s", waiting == 1 ? "s" : "");
        wanted--;
    }
}

int slurm_decide(const struct slurm_situation *now, struct slurm_memory *memory, struct slurm_action *actions,
                 size_t *count, struct err *err)
{
    struct slurm_decision of = {.now = now, .memory = memory, .actions = actions};
    size_t coming = 0, waiting = 0, held = 0;
    if (match(&of, err) < 0)
        return -1;
    if (now->waiting_count == 0 || now->now_s >= memory->passed_until_s)
        memory->passed_to = 0;
    for (uint32_t i = 0; i < memory->kept_count; i++)
        coming += look_at(&of, &memory->kept[i], allocation_of(now, memory->kept[i].id)->state);
    for (size_t i = 0; i < now->allocation_count; i++)
        held += now->allocations[i].ours;
    for (size_t i = 0; i < now->waiting_count; i++)
        waiting += now->waiting[i] > memory->passed_to;
    if (now->queued_count == 0)
        cancel_pending(&of);
    else if (now->now_s >= memory->not_before_s && waiting > coming && held < now->limit)
        slurm_decide_ask(&of, waiting - coming < now->limit - held ? waiting - coming : now->limit - held,
                         waiting);
    *count = of.count;
    return 0;
}
