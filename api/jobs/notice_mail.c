#include "api/jobs/notice_mail.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/json.h"
#include "common/mail.h"

enum { MAIL_BYTES_MAX = 16384, PASSWORD_BYTES_MAX = 4096, CONNECT_MS = 5000, MOST_MS = 10000 };

/* Appends a text as one line of a message: what is no printable character of ASCII becomes "?" where the line
 * is a header, and control characters become spaces where it is not. */
static int notice_mail_line_of(struct buf *out, const char *before, const char *text, bool header,
                               struct err *err)
{
    if (buf_text(out, before, err) < 0)
        return -1;
    for (size_t i = 0; text[i] && i < 900; i++) { /* SMTP's lines have at most 998 bytes */
        const unsigned char c = (unsigned char)text[i];
        const char shown = c < ' ' || c == 0x7f ? ' ' : header && c > '~' ? '?' : (char)c;
        if (buf_append(out, &shown, 1, err) < 0)
            return -1;
    }
    return buf_text(out, "\r\n", err);
}

static int message_write(const struct api_config *config, long long id, const json_t *notice, const char *to,
                         struct buf *out, struct err *err)
{
    char subject[200], date[64];
    const time_t now = time(NULL);
    struct tm tm;
    const long long job = (long long)json_integer_value(json_object_get(notice, "job"));
    const char *event = json_text_of(notice, "event"), *why = json_text_of(notice, "why");
    gmtime_r(&now, &tm);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S +0000", &tm);
    snprintf(subject, sizeof(subject), "job %lld %s%s: ", job, strcmp(event, "held") == 0 ? "is " : "has ",
             strcmp(event, "cancelled") == 0 ? "been cancelled" : event);
    if (notice_mail_line_of(out, "From: ", config->mail.from, true, err) < 0 ||
        notice_mail_line_of(out, "To: ", to, true, err) < 0 || buf_text(out, "Subject: ", err) < 0 ||
        notice_mail_line_of(out, subject, json_text_of(notice, "name"), true, err) < 0 ||
        notice_mail_line_of(out, "Date: ", date, true, err) < 0 ||
        buf_printf(out, err,
                   "Message-ID: <notice-%lld@%s>\r\nAuto-Submitted: auto-generated\r\nMIME-Version: 1.0\r\n"
                   "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n",
                   id, strchr(config->mail.from, '@') + 1) < 0 ||
        notice_mail_line_of(out, subject, json_text_of(notice, "name"), false, err) < 0 ||
        buf_printf(out, err, "%lld of %lld steps are done\r\n",
                   (long long)json_integer_value(json_object_get(notice, "step")),
                   (long long)json_integer_value(json_object_get(notice, "steps"))) < 0)
        return -1;
    if (*why && notice_mail_line_of(out, "", why, false, err) < 0)
        return -1;
    return buf_printf(out, err, "\r\nmotley job %lld says more. motley notify none ends these messages.\r\n",
                      job);
}

int notice_mail_send(const struct api_config *config, const json_t *row, const char *to,
                     bool (*stopped)(const void *arg), const void *stopped_arg, struct err *err)
{
    const json_int_t mailed = json_integer_value(json_object_get(row, "mailed"));
    if (mailed >= (json_int_t)config->mail.per_day)
        return err_set(err, ERR_DENIED,
                       "%lld messages about this person's jobs were sent in 24 hours, as many as may be "
                       "(notify.mail.per_day in the server's configuration)",
                       (long long)mailed);
    const char *body = json_text_of(row, "body");
    struct buf text = {.limit = MAIL_BYTES_MAX}, password = {.limit = PASSWORD_BYTES_MAX};
    json_t *notice = json_parse_limited(body, strlen(body), JSON_DEPTH_MAX, err);
    int result = notice ? message_write(config, (long long)json_integer_value(json_object_get(row, "id")),
                                        notice, to, &text, err)
                        : -1;
    if (result == 0 && config->mail.password_file)
        result = file_read_line(config->mail.password_file, PASSWORD_BYTES_MAX, &password, err);
    if (result == 0)
        result = mail_send(&(struct mail){.server = config->mail.server,
                                          .plain = config->mail.local,
                                          .from = config->mail.from,
                                          .to = to,
                                          .user = config->mail.user,
                                          .password = config->mail.password_file ? buf_str(&password) : NULL,
                                          .ca_file = config->notify_ca,
                                          .text = buf_str(&text),
                                          .connect_ms = CONNECT_MS,
                                          .most_ms = MOST_MS,
                                          .stopped = stopped,
                                          .stopped_arg = stopped_arg},
                           err);
    json_decref(notice);
    if (password.size > 0)
        explicit_bzero(password.data, password.size);
    buf_fini(&password);
    buf_fini(&text);
    return result;
}
