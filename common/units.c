#include "common/units.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unit {
    const char *name;
    double factor;
};

static const struct unit byte_units[] = {
    {"", 1},        {"B", 1},          {"kB", 1e3},      {"KB", 1e3},         {"MB", 1e6},     {"GB", 1e9},
    {"TB", 1e12},   {"KiB", 1024},     {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 0x1p40}, {"K", 1024},
    {"M", 1048576}, {"G", 1073741824}, {"T", 0x1p40},    {NULL, 0},
};

static const struct unit rate_units[] = {
    {"", 1},         {"B/s", 1},      {"kB/s", 1e3},      {"KB/s", 1e3},         {"MB/s", 1e6},
    {"GB/s", 1e9},   {"KiB/s", 1024}, {"MiB/s", 1048576}, {"GiB/s", 1073741824}, {"bit/s", 0.125},
    {"kbit/s", 125}, {"Kbit/s", 125}, {"Mbit/s", 1.25e5}, {"Gbit/s", 1.25e8},    {"Tbit/s", 1.25e11},
    {NULL, 0},
};

static const struct unit time_units[] = {
    {"", 1},   {"ns", 1e-9}, {"us", 1e-6}, {"µs", 1e-6}, {"ms", 1e-3}, {"s", 1},
    {"m", 60}, {"min", 60},  {"h", 3600},  {"d", 86400}, {NULL, 0},
};

static const struct unit *unit_find(const struct unit *units, const char *name, size_t length)
{
    for (; units->name != NULL; units++)
        if (strlen(units->name) == length && memcmp(units->name, name, length) == 0)
            return units;
    return NULL;
}

/* Reads one "number unit" at *at; the unit ends at a digit or the end of the text. Only digits, one point and
 * an exponent are allowed: strtod alone would accept "inf", hex and signs. */
static bool amount_take(const char **at, const struct unit *units, double *value, const struct unit **unit)
{
    const char *start = *at;
    if (!isdigit((unsigned char)*start) || (start[0] == '0' && (start[1] == 'x' || start[1] == 'X')))
        return false;
    char *end;
    *value = strtod(start, &end);
    while (*end == ' ')
        end++;
    const char *name = end;
    while (*end != '\0' && !isdigit((unsigned char)*end))
        end++;
    size_t length = (size_t)(end - name);
    while (length > 0 && name[length - 1] == ' ')
        length--;
    *unit = unit_find(units, name, length);
    *at = end;
    return *unit && isfinite(*value);
}

int units_parse_bytes(const char *text, uint64_t *bytes, struct err *err)
{
    const char *at = text;
    double value;
    const struct unit *unit;
    if (!amount_take(&at, byte_units, &value, &unit) || *at != '\0') {
        return err_set(err, ERR_INVALID, "\"%.40s\" is no amount of memory such as 450MiB, 2GB or 1048576",
                       text);
    }
    double total = value * unit->factor;
    if (total >= 0x1p63)
        return err_set(err, ERR_INVALID, "\"%.40s\" is more than 2^63 - 1 bytes", text);
    if (unit->factor == 1 && value != floor(value))
        return err_set(err, ERR_INVALID, "\"%.40s\" is no whole number of bytes", text);
    *bytes = (uint64_t)(total + 0.5);
    if (unit->factor == 1) /* exact above 2^53, too */
        *bytes = strspn(text, "0123456789") == strcspn(text, " B") ? strtoull(text, NULL, 10) : *bytes;
    return 0;
}

int units_parse_rate(const char *text, double *bytes_per_s, struct err *err)
{
    const char *at = text;
    double value;
    const struct unit *unit;
    if (!amount_take(&at, rate_units, &value, &unit) || *at != '\0')
        return err_set(err, ERR_INVALID, "\"%.40s\" is no rate such as 1Gbit/s or 100MB/s", text);
    *bytes_per_s = value * unit->factor;
    if (!(*bytes_per_s < 0x1p63))
        return err_set(err, ERR_INVALID, "\"%.40s\" is more than 2^63 - 1 bytes a second", text);
    return 0;
}

int units_parse_seconds(const char *text, double *seconds, struct err *err)
{
    const char *at = text;
    double total = 0;
    double last = INFINITY; /* units must get smaller: 1h30m, not 30m1h */
    do {
        double value;
        const struct unit *unit;
        if (!amount_take(&at, time_units, &value, &unit) || unit->factor >= last ||
            (unit->name[0] == '\0' && last != INFINITY)) {
            return err_set(err, ERR_INVALID, "\"%.40s\" is no time such as 250ms, 90s, 2h or 1h30m", text);
        }
        last = unit->factor;
        total += value * unit->factor;
    } while (*at != '\0');
    if (!(total < 9e15))
        return err_set(err, ERR_INVALID, "\"%.40s\" is more than 9e15 seconds", text);
    *seconds = total;
    return 0;
}

char *units_bytes(char out[32], uint64_t bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int step = 0;
    while (value >= 1023.5 && step < 6) {
        value /= 1024;
        step++;
    }
    int digits = step == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    snprintf(out, 32, "%.*f %s", digits, value, names[step]);
    return out;
}

char *units_seconds(char out[32], double seconds)
{
    if (!isfinite(seconds)) {
        snprintf(out, 32, "never");
    } else if (seconds < 0) {
        snprintf(out, 32, "%.3g s", seconds);
    } else if (seconds < 1e-3) {
        snprintf(out, 32, "%.0f us", seconds * 1e6);
    } else if (seconds < 0.9995) {
        snprintf(out, 32,
                 seconds < 0.009995  ? "%.2f ms"
                 : seconds < 0.09995 ? "%.1f ms"
                                     : "%.0f ms",
                 seconds * 1e3);
    } else if (seconds < 99.95) {
        snprintf(out, 32, seconds < 9.995 ? "%.2f s" : "%.1f s", seconds);
    } else if (seconds < 5999.5) {
        long whole = lround(seconds);
        snprintf(out, 32, "%ld m %02ld s", whole / 60, whole % 60);
    } else if (seconds < 172800) {
        long minutes = lround(seconds / 60);
        snprintf(out, 32, "%ld h %02ld m", minutes / 60, minutes % 60);
    } else {
        snprintf(out, 32, "%.1f d", seconds / 86400);
    }
    return out;
}

char *units_duration(char out[32], double seconds)
{
    static const struct {
        const char *name;
        long long us;
    } wholes[] = {{"d", 86400000000}, {"h", 3600000000}, {"m", 60000000},
                  {"s", 1000000},     {"ms", 1000},      {"us", 1}};
    if (seconds < 0 || seconds > 9e11) {
        snprintf(out, 32, "%.15gs", seconds);
        return out;
    }
    long long left = llround(seconds * 1e6);
    size_t used = 0;
    snprintf(out, 32, "0s");
    for (size_t i = 0; i < sizeof(wholes) / sizeof(wholes[0]) && used < 32; i++) {
        const long long count = left / wholes[i].us;
        left -= count * wholes[i].us;
        if (count > 0)
            used += (size_t)snprintf(out + used, 32 - used, "%lld%s", count, wholes[i].name);
    }
    return out;
}

char *units_rate(char out[32], double bytes_per_s)
{
    static const char *const names[] = {"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"};
    double value = bytes_per_s * 8;
    int step = 0;
    while (value >= 999.5 && step < 4) {
        value /= 1000;
        step++;
    }
    snprintf(out, 32, "%.*f %s", value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, names[step]);
    return out;
}
