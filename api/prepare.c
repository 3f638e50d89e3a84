/* Prepares the schema and the first token. */
#include "api/prepare.h"

#include "common/digest.h"
#include "common/file.h"
#include "store/store.h"
#include "store/users.h"

#include <openssl/crypto.h>
#include <string.h>

enum { TOKEN_BYTES_MIN = 32, TOKEN_FILE_BYTES_MAX = 1024 };

int api_prepare(const struct api_config *config, const char *admin_token_file, struct err *err)
{
    unsigned applied = 0;
    if (store_migrate(config->postgres, config->start_seconds * 1000, &applied, err) < 0)
        return -1;
    if (!admin_token_file)
        return 0;
    struct buf text = {.limit = TOKEN_FILE_BYTES_MAX};
    int rc = file_read_all(admin_token_file, TOKEN_FILE_BYTES_MAX, &text, err);
    if (rc == 0) {
        const char *token = buf_str(&text);
        size_t size = strcspn(token, "\r\n");
        uint8_t hash[DIGEST_SIZE];
        struct store_token_new made = {
            .hash = hash, .scopes = SCOPES_ALL_PEOPLE, .note = "the cluster's first"};
        if (size < TOKEN_BYTES_MIN)
            rc = err_set(err, ERR_INVALID, "%s: a token has at least %d characters", admin_token_file,
                         TOKEN_BYTES_MIN);
        else
            rc = digest_sha256(token, size, hash, err);
        if (rc == 0)
            rc = store_bootstrap_token(config->postgres, "admin", &made, err);
        /* A token with this hash exists already, so nothing is to be done. */
        if (rc < 0 && err->code == ERR_CONFLICT) {
            err_clear(err);
            rc = 0;
        }
        OPENSSL_cleanse(text.data, text.size);
    }
    buf_fini(&text);
    return rc;
}

json_t *api_pending(const struct api_config *config)
{
    struct err err = {0};
    json_t *answer = NULL;
    if (store_pending(config->postgres, config->start_seconds * 1000, &answer, &err) < 0)
        answer = json_pack("{s:s}", "why", err.text);
    return answer;
}
