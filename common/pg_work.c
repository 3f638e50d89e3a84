/* Works of the pool: lists, answers, and the end of a handler. */
#include <stdlib.h>

#include "common/pg_private.h"

void pg_list_push(struct pg_list *list, struct pg_work *work)
{
    work->next = NULL;
    if (list->tail)
        list->tail->next = work;
    else
        list->head = work;
    list->tail = work;
}

void pg_list_push_front(struct pg_list *list, struct pg_work *work)
{
    work->next = list->head;
    list->head = work;
    list->tail = !list->tail ? work : list->tail;
}

struct pg_work *pg_list_pop(struct pg_list *list)
{
    struct pg_work *work = list->head;
    if (work) {
        list->head = work->next;
        list->tail = !list->head ? NULL : list->tail;
    }
    return work;
}

void pg_work_clear(struct pg_work *work)
{
    for (int i = 0; i < work->step_count; i++) {
        PQclear(work->results[i]);
        work->results[i] = NULL;
    }
}

static void work_free(struct pg_work *work)
{
    pg_work_clear(work);
    free(work);
}

/* Answers a work and frees it. */
void pg_work_finish(struct pg *pg, struct pg_work *work, const struct err *err)
{
    pg->queued--;
    if (work->done && !work->abandoned) {
        static const struct err fine = {0};
        if (!err)
            work->done(work->arg, (const struct pg_result *const *)work->results, work->step_count, &fine);
        else
            work->done(work->arg, NULL, 0, err);
    }
    work_free(work);
}

void pg_pump_soon(struct pg *pg)
{
    event_active(pg->pump, EV_TIMEOUT, 1);
}

void pg_handler_leave(struct pg *pg)
{
    if (--pg->depth == 0 && pg->destroyed)
        pg->free(pg);
}
