#include "agent/worker_profile.h"

int profile_run(struct worker_link *link, const json_t *message, const struct stop_request *stop, struct err *err)
{
    (void)link;
    (void)message;
    (void)stop;
    return err_set(err, ERR_UNSUPPORTED, "this worker does not profile yet");
}
