/* Feeds the file of an agent's journal, which a crash or a disk may have damaged: opening and appending must
 * work. */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/journal.h"
#include "common/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char folder[] = "/dev/shm/motley-fuzz-XXXXXX", path[64];
    struct err err;
    if (!mkdtemp(folder))
        return 0;
    snprintf(path, sizeof(path), "%s/run-1-1-0.events", folder);
    if (file_write_atomic(path, data, size, 0600, &err) == 0) {
        struct journal *journal = journal_open(folder, 1 << 20, &err);
        struct journal_stream *stream = journal ? journal_first(journal) : NULL;
        if (stream) {
            json_t *event = json_pack("{s:s}", "type", "log");
            journal_append(stream, event, false, &err);
            json_decref(event);
            journal_ack(stream, stream->last);
        }
        journal_close(journal);
    }
    file_remove_tree(folder, &err);
    return 0;
}
