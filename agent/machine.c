#include "agent/machine.h"

#include <dirent.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"

enum { GPUS_MAX = 64 };

/* Reads the first line of a small file without its line end; "" if the file cannot be read. */
static char *machine_line_read(const char *path, char *out, size_t size)
{
    struct buf text;
    struct err err;
    buf_init(&text, 4096);
    out[0] = '\0';
    if (file_read_all(path, 4095, &text, &err) == 0)
        snprintf(out, size, "%.*s", (int)strcspn(buf_str(&text), "\n"), buf_str(&text));
    buf_fini(&text);
    return out;
}

/* Sums up clock ticks as seconds: the numbers of 'line' that follow the first 'skip' words, of which bit i of
 * 'wanted' takes number i. */
static double ticks_seconds(const char *line, unsigned skip, unsigned wanted)
{
    double ticks = 0;
    for (; skip > 0 && line; skip--)
        line = strchr(line + 1, ' ');
    for (; wanted != 0 && line; wanted >>= 1) {
        char *end;
        const unsigned long long value = strtoull(line, &end, 10);
        ticks += (wanted & 1u) != 0 ? (double)value : 0;
        line = end;
    }
    return ticks / (double)sysconf(_SC_CLK_TCK);
}

double machine_cpu_seconds(void)
{
    enum { USER_NICE_SYSTEM_IRQ_SOFTIRQ = 0x67 };
    char line[512]; /* "cpu  user nice system idle iowait irq softirq steal guest guest_nice" */
    return ticks_seconds(machine_line_read("/proc/stat", line, sizeof(line)), 1,
                         USER_NICE_SYSTEM_IRQ_SOFTIRQ);
}

double process_cpu_seconds(pid_t pid)
{
    enum { OWN_AND_CHILDREN = 0xf };
    char path[64];
    char line[1024]; /* "pid (name) state …", in which utime, stime, cutime and cstime stand 12 words after
                        the name */
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    const char *name_end = strrchr(machine_line_read(path, line, sizeof(line)), ')');
    return ticks_seconds(name_end, 12, OWN_AND_CHILDREN);
}

/* Returns a number that Slurm tells the processes of an allocation, which it need not confine; 0: none. */
static uint64_t slurm_number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

uint32_t cpu_count(void)
{
    cpu_set_t set;
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        count = CPU_COUNT(&set);
    const uint64_t lent = slurm_number("SLURM_CPUS_ON_NODE");
    if (lent > 0 && lent < (uint64_t)count)
        return (uint32_t)lent;
    return count > 0 ? (uint32_t)count : 1;
}

uint64_t memory_total_bytes(void)
{
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char text[64];
    uint64_t limit = strtoull(machine_line_read("/sys/fs/cgroup/memory.max", text, sizeof(text)), NULL,
                              10);                            /* "max", which means no limit, is read as 0 */
    uint64_t lent = slurm_number("SLURM_MEM_PER_NODE") << 20; /* MiB, of sbatch --mem */
    if (lent == 0)
        lent = (slurm_number("SLURM_MEM_PER_CPU") << 20) * slurm_number("SLURM_CPUS_ON_NODE");
    if (limit > 0 && limit < total)
        total = limit;
    return lent > 0 && lent < total ? lent : total;
}

static bool has_flag(const char *flags, const char *flag)
{
    size_t length = strlen(flag);
    for (const char *at = flags; (at = strstr(at, flag)) != NULL; at += length)
        if (at[-1] == ' ' && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

/* Reads the value behind "key\t: " of the first processor in /proc/cpuinfo. */
static void cpuinfo_value(const char *key, char *out, size_t size)
{
    struct buf text;
    struct err err;
    out[0] = '\0';
    buf_init(&text, 4u << 20);
    if (file_read_all("/proc/cpuinfo", 4u << 20, &text, &err) == 0) {
        const char *at = strstr(buf_str(&text), key);
        const char *colon = !at ? NULL : strchr(at, ':');
        if (colon)
            snprintf(out, size, "%.*s", (int)strcspn(colon + 1, "\n"), colon + 1);
    }
    buf_fini(&text);
}

int isa_rank(const char *isa)
{
    static const char *const order[] = {"generic", "sse42", "avx2", "avx512", "avx512-bf16", "amx"};
    for (int i = 0; i < 6; i++)
        if (strcmp(order[i], isa) == 0)
            return i;
    return -1;
}

const char *isa_native(void)
{
    char flags[8192];
    cpuinfo_value("flags", flags, sizeof(flags));
    if (has_flag(flags, "avx512f") && has_flag(flags, "avx512bw") && has_flag(flags, "avx512dq") &&
        has_flag(flags, "avx512vl")) {
        if (!has_flag(flags, "avx512_bf16"))
            return "avx512";
        return has_flag(flags, "amx_bf16") && has_flag(flags, "amx_tile") ? "amx" : "avx512-bf16";
    }
    if (has_flag(flags, "avx2") && has_flag(flags, "fma"))
        return "avx2";
    return has_flag(flags, "sse4_2") ? "sse42" : "generic";
}

char *machine_cpu(char out[256])
{
    cpuinfo_value("model name", out, 256);
    memmove(out, out + strspn(out, " "), strlen(out + strspn(out, " ")) + 1);
    return out;
}

char *machine_id(char out[64])
{
    if (machine_line_read("/etc/machine-id", out, 64)[0] == '\0')
        machine_line_read("/proc/sys/kernel/random/boot_id", out, 64);
    return out;
}

/* ---- GPUs ---- */

static const char *vendor_name(unsigned long vendor)
{
    switch (vendor) {
    case 0x10de:
        return "nvidia";
    case 0x1002:
        return "amd";
    case 0x8086:
        return "intel";
    default:
        return "other";
    }
}

static unsigned long hex_read(const char *pci, const char *file)
{
    char path[512];
    char text[64];
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.64s/%s", pci, file);
    return strtoul(machine_line_read(path, text, sizeof(text)), NULL, 0);
}

static json_t *gpu_describe(const char *pci)
{
    unsigned long vendor = hex_read(pci, "vendor");
    char path[512];
    char driver[256];
    char id[16];
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.64s/driver", pci);
    ssize_t length = readlink(path, driver, sizeof(driver) - 1);
    driver[length > 0 ? length : 0] = '\0';
    const char *slash = strrchr(driver, '/');
    snprintf(id, sizeof(id), "%04lx:%04lx", vendor & 0xffff, hex_read(pci, "device") & 0xffff);
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:b}", "pci", pci, "vendor", vendor_name(vendor), "device",
                     id, "driver", !slash ? "" : slash + 1, "memory_bytes",
                     (json_int_t)hex_read(pci, "mem_info_vram_total"), "usable", 0);
}

/* Lists display controllers and processing accelerators of vendors that make GPUs for computing. */
json_t *machine_gpus(void)
{
    json_t *gpus = json_array();
    DIR *folder = opendir("/sys/bus/pci/devices");
    struct dirent *entry;
    while (folder && gpus && (entry = readdir(folder)) && json_array_size(gpus) < GPUS_MAX) {
        if (entry->d_name[0] == '.')
            continue;
        unsigned long class = hex_read(entry->d_name, "class") >> 8;
        unsigned long vendor = hex_read(entry->d_name, "vendor");
        bool display = class == 0x0300 || class == 0x0302 || class == 0x0380 || class == 0x1200;
        if (display && (vendor == 0x10de || vendor == 0x1002 || vendor == 0x8086))
            json_array_append_new(gpus, gpu_describe(entry->d_name));
    }
    if (folder)
        closedir(folder);
    return gpus;
}
