/* Feeds plans, which are decoded, checked and encoded again. The digest is corrected before, so that the code
 * behind the check of the digest is reached. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "program/check/check.h"
#include "program/codec.h"

static struct plan *decode(json_t *document)
{
    struct err err = {0};
    struct plan *plan = plan_from_json(document, &err);
    const char *right = plan || err.code != ERR_CORRUPT ? NULL : strstr(err.text, "what it holds has ");
    if (!right)
        return plan;
    char digest[65] = "";
    strncat(digest, right + strlen("what it holds has "), sizeof(digest) - 1);
    json_object_set_new(document, "digest", json_string(digest));
    return plan_from_json(document, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = {0};
    json_t *document = fuzz_parse(data, size);
    struct plan *plan = document ? decode(document) : NULL;
    if (plan) {
        int good = plan_check(plan, &err);
        json_t *json = plan_to_json(plan, &err);
        struct plan *again = json ? plan_from_json(json, &err) : NULL;
        if (!again || strcmp(again->digest, plan->digest) != 0 || plan_check(again, &err) != good)
            __builtin_trap();
        plan_destroy(again);
        json_decref(json);
        plan_destroy(plan);
    }
    json_decref(document);
    return 0;
}
