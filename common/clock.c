#include "common/clock.h"

#include <stdio.h>
#include <time.h>

uint64_t clock_mono_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int64_t clock_wall_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

char *clock_rfc3339(int64_t wall_us, char out[32])
{
    int64_t seconds = wall_us / 1000000;
    int64_t fraction = wall_us % 1000000;
    if (fraction < 0) {
        fraction += 1000000;
        seconds--;
    }
    time_t when = (time_t)seconds;
    struct tm parts;
    if (gmtime_r(&when, &parts) == NULL || parts.tm_year < -1900 || parts.tm_year > 8099) {
        when = 0;
        gmtime_r(&when, &parts);
    }
    char date[24];
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out, 32, "%.19s.%06dZ", date, (int)fraction);
    return out;
}

int clock_left_ms(uint64_t deadline_ns, int most_ms)
{
    uint64_t now = clock_mono_ns();
    if (now >= deadline_ns) {
        return 0;
    }
    uint64_t left = (deadline_ns - now - 1) / 1000000 + 1;
    return left < (uint64_t)most_ms ? (int)left : most_ms;
}
