/* A notice as mail: the words of its document, sent by the SMTP server of the configuration. Blocking. */
#ifndef MOTLEY_API_JOBS_NOTICE_MAIL_H
#define MOTLEY_API_JOBS_NOTICE_MAIL_H

#include <jansson.h>

#include "api/request/config.h"

/* Writes to the mailbox `to`; `row` is of store_notices_claim. ERR_DENIED: its person was sent as many as a
 * day has; else the errors of mail_send(). */
int notice_mail_send(const struct api_config *config, const json_t *row, const char *to,
                     bool (*stopped)(const void *arg), const void *stopped_arg, struct err *err);

#endif
