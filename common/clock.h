/* Clocks. Pure code is given the time; all other code asks here. Thread: any. */
#ifndef MOTLEY_COMMON_CLOCK_H
#define MOTLEY_COMMON_CLOCK_H

#include <stdint.h>

/* Nanoseconds since an unspecified start, never going back. */
uint64_t clock_mono_ns(void);

/* Microseconds since 1970-01-01 UTC. */
int64_t clock_wall_us(void);

/* Writes wall microseconds as "2026-01-02T03:04:05.678901Z". Returns 'out'. */
char *clock_rfc3339(int64_t wall_us, char out[32]);

/* Reads an RFC 3339 time ("2026-01-02T03:04:05.678Z", "…+01:00"), or a date, which is its midnight in UTC.
 * Writes wall microseconds. Returns 0, or -1 when the text is neither. */
int clock_rfc3339_parse(const char *text, int64_t *wall_us);

/* Deadlines are clock_mono_ns() values. Returns the milliseconds left until 'deadline_ns' for poll(2):
 * rounded up, 0 when it has passed, at most 'most_ms'. */
int clock_left_ms(uint64_t deadline_ns, int most_ms);

/* Writes an RFC 3339 time to the second and in UTC, as people read it everywhere but on the page:
 * "2026-01-31 08:00:00Z", which clock_rfc3339_parse() reads, too. Returns `out`; another text is cut.
 * motley_words() of migrations/ is the same in SQL. */
const char *clock_words(const char *rfc3339, char out[24]);
/* The same of wall microseconds. */
const char *clock_words_us(int64_t wall_us, char out[24]);

#endif
