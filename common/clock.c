#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    if (!gmtime_r(&when, &parts) || parts.tm_year < -1900 || parts.tm_year > 8099) {
        when = 0;
        gmtime_r(&when, &parts);
    }
    char date[24];
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out, 32, "%.19s.%06dZ", date, (int)fraction);
    return out;
}

/* Reads two digits, and the character before them, of a value up to `most`. Returns -1 when they are not
 * there. */
static int two_digits(const char **at, char before, int most)
{
    const char *text = *at;
    if (*text++ != before || text[0] < '0' || text[0] > '9' || text[1] < '0' || text[1] > '9')
        return -1;
    *at = text + 2;
    int value = (text[0] - '0') * 10 + text[1] - '0';
    return value <= most ? value : -1;
}

/* Reads "Z" or "+hh:mm" as seconds east of UTC. Returns -1 for anything else. */
static int offset_parse(const char *text, int *seconds)
{
    *seconds = 0;
    if (strcmp(text, "Z") == 0 || strcmp(text, "z") == 0)
        return 0;
    const char sign = *text;
    int hours = sign == '+' || sign == '-' ? two_digits(&text, sign, 23) : -1;
    int minutes = hours < 0 ? -1 : two_digits(&text, ':', 59);
    *seconds = (sign == '-' ? -60 : 60) * (hours * 60 + minutes);
    return minutes < 0 || *text ? -1 : 0;
}

int clock_rfc3339_parse(const char *text, int64_t *wall_us)
{
    struct tm parts = {0}, same;
    int offset = 0, hour = 0, minute = 0, second = 0;
    int64_t fraction = 0;
    if (strspn(text, "0123456789") != 4)
        return -1;
    parts.tm_year = (int)strtol(text, NULL, 10) - 1900;
    text += 4;
    parts.tm_mon = two_digits(&text, '-', 12) - 1;
    parts.tm_mday = parts.tm_mon < 0 ? -1 : two_digits(&text, '-', 31);
    if (parts.tm_mday < 1)
        return -1;
    if (*text) {
        char separator = *text == 't' || *text == ' ' ? *text : 'T';
        if ((hour = two_digits(&text, separator, 23)) < 0 || (minute = two_digits(&text, ':', 59)) < 0 ||
            (second = two_digits(&text, ':', 60)) < 0)
            return -1;
        if (*text == '.') {
            size_t digits = strspn(++text, "0123456789");
            for (size_t i = 0; i < 6; i++)
                fraction = fraction * 10 + (i < digits ? text[i] - '0' : 0);
            text += digits;
            if (digits < 1)
                return -1;
        }
        if (offset_parse(text, &offset) < 0)
            return -1;
    }
    parts.tm_hour = hour, parts.tm_min = minute, parts.tm_sec = second;
    same = parts;
    int64_t seconds = (int64_t)timegm(&parts);
    if (parts.tm_mday != same.tm_mday && second < 60) /* the month has no such day */
        return -1;
    *wall_us = (seconds - offset) * 1000000 + fraction;
    return 0;
}

int clock_left_ms(uint64_t deadline_ns, int most_ms)
{
    uint64_t now = clock_mono_ns();
    if (now >= deadline_ns)
        return 0;
    uint64_t left = (deadline_ns - now - 1) / 1000000 + 1;
    return left < (uint64_t)most_ms ? (int)left : most_ms;
}

const char *clock_words(const char *rfc3339, char out[24])
{
    char utc[32];
    int64_t us;
    if (clock_rfc3339_parse(rfc3339, &us) == 0)
        snprintf(out, 24, "%.10s %.8sZ", clock_rfc3339(us, utc), utc + 11);
    else
        snprintf(out, 24, "%s", rfc3339);
    return out;
}

const char *clock_words_us(int64_t wall_us, char out[24])
{
    char utc[32];
    return clock_words(clock_rfc3339(wall_us, utc), out);
}
