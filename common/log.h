/* Logs one event per line on stderr: "2026-01-02T03:04:05.678Z info job_started job=17 devices=2".
 *
 * Main functions and handlers that decide call it; libraries return errors instead. Values contain no
 * secrets, tokens or training text. Control characters in the formatted text are replaced by '?'. Lines are
 * cut at 4 KiB and written with one write(2). Thread: any.
 */
#ifndef MOTLEY_COMMON_LOG_H
#define MOTLEY_COMMON_LOG_H

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

/* Logs an event. 'event' is a stable name; 'fmt' gives the key=value pairs with units. LOG_LEVEL_DEBUG lines
 * appear only when MOTLEY_DEBUG is in the environment. Keeps errno. */
void log_event(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
