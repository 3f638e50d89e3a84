#include "common/mail.h"

#include <curl/curl.h>
#include <string.h>

#include "common/http.h"

/* A message that is being sent. */
struct mail_transfer {
    const struct mail *mail;
    size_t sent;
};

static size_t text_wanted(char *out, size_t one, size_t size, void *arg)
{
    struct mail_transfer *transfer = arg;
    const size_t left = strlen(transfer->mail->text) - transfer->sent, room = one * size;
    const size_t taken = left < room ? left : room;
    memcpy(out, transfer->mail->text + transfer->sent, taken);
    transfer->sent += taken;
    return taken;
}

static int mail_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                         curl_off_t up)
{
    const struct mail *mail = ((const struct mail_transfer *)arg)->mail;
    (void)down_total, (void)down, (void)up_total, (void)up;
    return mail->stopped && mail->stopped(mail->stopped_arg);
}

static void transfer_set_up(CURL *curl, struct mail_transfer *transfer, const struct curl_slist *to)
{
    const struct mail *mail = transfer->mail;
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "smtp,smtps");
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_URL, mail->server);
    curl_easy_setopt(curl, CURLOPT_USE_SSL, (long)(mail->plain ? CURLUSESSL_NONE : CURLUSESSL_ALL));
    if (mail->ca_file)
        curl_easy_setopt(curl, CURLOPT_CAINFO, mail->ca_file);
    if (mail->user) {
        curl_easy_setopt(curl, CURLOPT_USERNAME, mail->user);
        curl_easy_setopt(curl, CURLOPT_PASSWORD, mail->password ? mail->password : "");
    }
    curl_easy_setopt(curl, CURLOPT_MAIL_FROM, mail->from);
    curl_easy_setopt(curl, CURLOPT_MAIL_RCPT, to);
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, text_wanted);
    curl_easy_setopt(curl, CURLOPT_READDATA, transfer);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)mail->connect_ms);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)mail->most_ms);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, mail_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, transfer);
}

int mail_send(const struct mail *mail, struct err *err)
{
    char why[CURL_ERROR_SIZE] = "";
    struct mail_transfer transfer = {.mail = mail};
    http_start();
    CURL *curl = curl_easy_init();
    struct curl_slist *to = curl ? curl_slist_append(NULL, mail->to) : NULL;
    if (!to) {
        curl_easy_cleanup(curl);
        return err_set(err, ERR_NOMEM, "no memory for a message");
    }
    transfer_set_up(curl, &transfer, to);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    const CURLcode code = curl_easy_perform(curl);
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(to);
    curl_easy_cleanup(curl);
    if (code == CURLE_OK)
        return 0;
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return err_set(err, ERR_CANCELLED, "a message was stopped");
    return err_set(err, status >= 500 ? ERR_INVALID : ERR_PEER, "%s: %s", mail->server,
                   *why ? why : curl_easy_strerror(code));
}
