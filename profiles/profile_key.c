/* The digest of everything that a profile depends on besides the device. */
#include "profiles/profile_key.h"

#include <string.h>

#include "common/buf.h"
#include "common/json.h"

int profile_key(const json_t *spec, const json_t *config, char key[DIGEST_HEX_SIZE], struct err *err)
{
    const json_t *method = json_object_get(spec, "method"), *targets = json_object_get(method, "targets");
    /* what tables of default targets were keyed by before specifications left these out */
    json_t *usual = json_pack("[s,s,s,s]", "q_proj", "k_proj", "v_proj", "o_proj");
    json_t *null = json_null();
    const json_t *const parts[] = {config,
                                   json_object_get(method, "kind"),
                                   json_object_get(method, "rank"),
                                   targets ? targets : usual,
                                   json_object_get(method, "base"),
                                   json_object_get(json_object_get(spec, "train"), "compute"),
                                   json_object_get(json_object_get(spec, "data"), "sequence_tokens")};
    json_t *list = json_array();
    struct buf text;
    int rc = list ? 0 : err_set(err, ERR_NOMEM, "no memory for a profile's key");
    buf_init(&text, (size_t)8 << 20);
    for (size_t i = 0; list && i < sizeof(parts) / sizeof(parts[0]); i++)
        json_array_append(list, parts[i] ? (json_t *)parts[i] : null);
    /* Newer settings enter the key only if they are used, so that older tables keep their keys. */
    const json_t *ranks = json_object_get(method, "rank_pattern"),
                 *saved = json_object_get(method, "modules_to_save");
    if (list && (json_object_size(ranks) > 0 || json_array_size(saved) > 0))
        json_array_append_new(list, json_pack("[O?,O?]", ranks, saved));
    const json_t *except = json_object_get(method, "exclude_modules"),
                 *layers = json_object_get(method, "layers_to_transform");
    if (list &&
        (json_is_array(except) || json_is_string(except) || json_is_array(layers) || json_is_integer(layers)))
        json_array_append_new(
            list, json_pack("[O?,O?,O?]", except, layers, json_object_get(method, "layers_pattern")));
    const char *optimizer = json_string_value(json_object_get(method, "optimizer"));
    if (list && optimizer && strcmp(optimizer, "adamw") != 0)
        json_array_append(list, json_object_get(method, "optimizer"));
    if (rc == 0)
        rc = json_print(list, true, &text, err);
    if (rc == 0)
        rc = digest_sha256_hex(text.data, text.size, key, err);
    buf_fini(&text);
    json_decref(list);
    json_decref(usual);
    return rc;
}
