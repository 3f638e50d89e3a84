/* Feeds a worker's readers of messages: an assignment, its local part, a model's files, a manifest. */
#include "fuzz/fuzz.h"

#include <stdlib.h>

#include "model/files/manifest.h"
#include "worker/session/assign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct assignment *assignment = NULL;
    struct manifest manifest = {0};
    struct local_part local = {0};
    struct model_part model = {0};
    json_t *document = fuzz_parse(data, size);
    if (!document)
        return 0;
    if (manifest_parse(document, &manifest, &err) == 0)
        manifest_fini(&manifest);
    local_read(document, &local, &err);
    if (model_part_read(document, &model, &err) == 0)
        free(model.files);
    if (assignment_read(document, &assignment, &err) == 0) /* takes the document */
        assignment_destroy(assignment);
    return 0;
}
