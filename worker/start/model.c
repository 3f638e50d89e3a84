/* Opens the model, whose files are fetched as they are read. */
#include "model/files/fetch.h"
#include "worker/start/start.h"

int session_model_open(struct session *session, struct err *err)
{
    const struct assignment *assignment = session->assignment;
    const struct local_part *local = &assignment->local;
    struct fetch_transport transport;
    struct model_source *source = NULL;
    struct fetch_options options = {.files = assignment->model.files,
                                    .file_count = assignment->model.file_count,
                                    .content = assignment->model.content,
                                    .cache_dir = local->cache,
                                    .cache_limit_bytes = local->cache_limit_bytes,
                                    .resident_chunks = SESSION_RESIDENT_CHUNKS,
                                    .patience_s = SESSION_FETCH_PATIENCE_S,
                                    .stop = &session->stop->kill};
    if (fetch_transport_http(local->api, local->token, local->api_ca, 60, &transport, err) < 0 ||
        model_source_open_fetched(&options, &transport, &source, err) < 0 ||
        model_open(source, &session->model, err) < 0)
        return err_wrap(err, "model %s", assignment->model.name ? assignment->model.name : "");
    session->config = *model_get_config(session->model);
    if (model_config_runnable(&session->config, err) < 0)
        return -1;
    if ((int64_t)session->config.layers + 2 != assignment->plan->block_count)
        return err_set(err, ERR_INVALID, "the plan is for %d blocks and the model has %u",
                       assignment->plan->block_count, session->config.layers + 2);
    return 0;
}
