/* Clocks. Pure rooms get times passed in; the others ask here. Thread: any. */
#ifndef MOTLEY_COMMON_CLOCK_H
#define MOTLEY_COMMON_CLOCK_H

#include <stdint.h>

/* Nanoseconds since an unspecified start, never going back. */
uint64_t clock_mono_ns(void);

/* Microseconds since 1970-01-01 UTC. */
int64_t clock_wall_us(void);

/* "2026-01-02T03:04:05.678901Z" of wall microseconds. Returns 'out'. */
char *clock_rfc3339(int64_t wall_us, char out[32]);

/* Parse what clock_rfc3339 prints (fraction optional, zone Z only) into *wall_us. Returns 0, or -1 if it is
 * none. */
int clock_rfc3339_parse(const char *text, int64_t *wall_us);

/* Deadlines are clock_mono_ns() values. Milliseconds left until 'deadline_ns', rounded up, 0 when passed, at
 * most 'most_ms': what poll(2) wants. */
int clock_left_ms(uint64_t deadline_ns, int most_ms);

#endif
