/* Amounts with units, in both directions. Pure; any thread.
 *
 * bytes    "1024", "450MiB", "1.5GiB", "2GB" (decimal K M G T with B; binary KiB MiB GiB TiB)
 * rates    "1Gbit/s", "100Mbit/s", "125MB/s", "10MiB/s", or a plain number of bytes per second
 * seconds  "250us", "1ms", "2s", "5m", "2h", "1d", "1h30m", or a plain number of seconds
 */
#ifndef MOTLEY_COMMON_UNITS_H
#define MOTLEY_COMMON_UNITS_H

#include <stdint.h>

#include "common/err.h"

/* Parse an amount. ERR_INVALID names the text and valid forms. Negative amounts, NaN and amounts above 2^63-1
 * are refused. */
int units_parse_bytes(const char *text, uint64_t *bytes, struct err *err);
int units_parse_rate(const char *text, double *bytes_per_s, struct err *err);
int units_parse_seconds(const char *text, double *seconds, struct err *err);

/* Format an amount for people: "412 MiB", "1.50 GiB"; "1.23 s", "41.0 ms", "3 h 05 m"; "1.00 Gbit/s". They
 * return 'out'. */
char *units_bytes(char out[32], uint64_t bytes);
char *units_seconds(char out[32], double seconds);
/* Formats seconds as units_parse_seconds reads them, to the microsecond: "90d", "1h30m", "250ms". */
char *units_duration(char out[32], double seconds);
char *units_rate(char out[32], double bytes_per_s);

#endif
