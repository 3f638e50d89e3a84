/* A fake driver library that has a suitable version and no other function. */
#define EXPORT __attribute__((visibility("default")))

EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuDriverGetVersion(int *version)
{
    *version = 12040;
    return 0;
}

EXPORT int hipRuntimeGetVersion(int *version);
EXPORT int hipRuntimeGetVersion(int *version)
{
    *version = 60342134;
    return 0;
}
