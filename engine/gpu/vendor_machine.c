/* What the machine shows of the reason why a vendor's driver or a card of it cannot be used: device nodes,
 * which kernel driver has a card on the PCI bus, Secure Boot, containers, WSL2. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/gpu/vendor_private.h"

enum { PCI_CARDS_MAX = 64, LINE_BYTES = 256 };

struct pci_card {
    char address[24]; /* "0000:0a:00.0" */
    char driver[32];  /* the kernel driver that has it; "" if none has */
};

/* Appends "; " and a text to an error. */
static void vendor_machine_append(struct err *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void vendor_machine_append(struct err *err, const char *format, ...)
{
    const struct err said = *err;
    char text[sizeof(err->text)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    err_set(err, said.code, "%s; %s", said.text, text);
}

/* Reads the beginning of a small file. Returns the number of bytes, 0 if it cannot be read. */
static size_t file_begin(char text[LINE_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static size_t file_begin(char text[LINE_BYTES], const char *format, ...)
{
    char path[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, sizeof(path), format, arguments);
    va_end(arguments);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, LINE_BYTES - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

static bool vendor_machine_is_there(const char *root, const char *path)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "%s%s", root, path);
    return access(whole, F_OK) == 0;
}

static bool is_container(const char *root)
{
    return vendor_machine_is_there(root, "/.dockerenv") ||
           vendor_machine_is_there(root, "/run/.containerenv") ||
           vendor_machine_is_there(root, "/run/systemd/container") ||
           vendor_machine_is_there(root, "/run/secrets/kubernetes.io");
}

static bool boots_securely(const char *root)
{
    char text[LINE_BYTES], pattern[512];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/sys/firmware/efi/efivars/SecureBoot-*", root);
    bool on = glob(pattern, GLOB_NOSORT, NULL, &found) == 0 && found.gl_pathc > 0 &&
              file_begin(text, "%s", found.gl_pathv[0]) >= 5 &&
              text[4] == 1; /* after 4 bytes of attributes */
    globfree(&found);
    return on;
}

/* Lists the vendor's display controllers and accelerators on the PCI bus. */
static uint32_t bus_read(const struct vendor *vendor, const char *root, struct pci_card cards[PCI_CARDS_MAX])
{
    char text[LINE_BYTES], path[512];
    uint32_t count = 0;
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices", root);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder && count < PCI_CARDS_MAX && (entry = readdir(folder))) {
        struct pci_card *card = &cards[count];
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(card->address))
            continue;
        file_begin(text, "%s/%s/class", path, entry->d_name);
        unsigned long class = strtoul(text, NULL, 0) >> 8;
        file_begin(text, "%s/%s/vendor", path, entry->d_name);
        if (strtoul(text, NULL, 0) != vendor->pci_vendor ||
            (class != 0x0300 && class != 0x0302 && class != 0x0380 && class != 0x1200))
            continue;
        char link[1024];
        snprintf(link, sizeof(link), "%s/%s/driver", path, entry->d_name);
        ssize_t length = readlink(link, text, sizeof(text) - 1);
        text[length > 0 ? length : 0] = '\0';
        const char *slash = strrchr(text, '/');
        snprintf(card->address, sizeof(card->address), "%.20s", entry->d_name);
        snprintf(card->driver, sizeof(card->driver), "%.31s", slash ? slash + 1 : text);
        count++;
    }
    if (folder)
        closedir(folder);
    return count;
}

/* Writes why the kernel keeps a card from the vendor's driver. False if that driver has it. */
static bool vendor_machine_is_kept(const struct vendor *vendor, const char *root, const struct pci_card *card,
                                   char why[LINE_BYTES])
{
    const char *driver = card->driver, *module = vendor->module;
    if (strcmp(driver, module) == 0)
        return false;
    if (driver[0] == '\0')
        snprintf(why, LINE_BYTES, "no kernel driver has it (modprobe %s; dmesg says why it fails)%s", module,
                 boots_securely(root)
                     ? ": Secure Boot is on, so the kernel loads only modules signed with an "
                       "enrolled key (mokutil --import, then reboot)"
                     : "");
    else if (strcmp(driver, "vfio-pci") == 0 || strcmp(driver, "pci-stub") == 0)
        snprintf(why, LINE_BYTES, "it is set aside for virtual machines (%s)", driver);
    else
        snprintf(why, LINE_BYTES,
                 "the kernel driver %s has it: install the vendor's, keep %s from loading (blacklist %s in "
                 "/etc/modprobe.d) and reboot",
                 driver, driver, driver);
    return true;
}

/* Appends "folder/node" of each node that cannot be opened for the reason `why` to list[room]. */
static void vendor_machine_nodes_list(const struct vendor *vendor, const char *root, int why, char *list,
                                      size_t room)
{
    char path[512];
    list[0] = '\0';
    for (const char *const *node = vendor->nodes; *node; node++) {
        size_t at = strlen(list);
        snprintf(path, sizeof(path), "%s/dev/%s", root, *node);
        if (access(path, R_OK | W_OK) != 0 && errno == why && at + strlen(path) + 3 < room)
            snprintf(list + at, room - at, "%s%s", at > 0 ? ", " : "", path);
    }
}

/* The group that owns the first of the vendor's nodes that this user may not open. */
static void group_name(const struct vendor *vendor, const char *root, char out[64])
{
    char path[512];
    struct stat told;
    snprintf(out, 64, "its own");
    for (const char *const *node = vendor->nodes; *node; node++) {
        snprintf(path, sizeof(path), "%s/dev/%s", root, *node);
        if (access(path, R_OK | W_OK) == 0 || stat(path, &told) != 0)
            continue;
        const struct group *group = getgrgid(told.st_gid);
        if (group)
            snprintf(out, 64, "%.60s", group->gr_name);
        else
            snprintf(out, 64, "%u", (unsigned)told.st_gid);
        return;
    }
}

static void nodes_tell(const struct vendor *vendor, const char *root, struct err *err)
{
    char list[512], group[64];
    vendor_machine_nodes_list(vendor, root, ENOENT, list, sizeof(list));
    if (list[0] != '\0' && is_container(root))
        vendor_machine_append(err, "missing: %s (this container was not given them: %s)", list,
                              vendor->nodes_given_by);
    else if (list[0] != '\0')
        vendor_machine_append(err, "missing: %s (as root, once after each boot: %s)", list,
                              vendor->nodes_made_by);
    vendor_machine_nodes_list(vendor, root, EACCES, list, sizeof(list));
    if (list[0] != '\0') {
        group_name(vendor, root, group);
        vendor_machine_append(
            err, "this user may not open %s, which group %s may (usermod -aG %s USER, then log in anew)",
            list, group, group);
    }
    vendor_machine_nodes_list(vendor, root, EPERM, list, sizeof(list));
    if (list[0] != '\0')
        vendor_machine_append(
            err,
            "the device cgroup of this container or service does not allow %s (DeviceAllow=, --device; "
            "it is read anew when the service starts)",
            list);
}

void vendor_machine_tell(const struct vendor *vendor, const char *root, struct err *err)
{
    struct pci_card cards[PCI_CARDS_MAX];
    char why[LINE_BYTES];
    const size_t before = strlen(err->text);
    if (vendor_machine_is_there(root, "/dev/dxg")) {
        vendor_machine_append(
            err, "this is WSL2, where Windows' own driver serves the card: update it in Windows, then run "
                 "wsl --update and wsl --shutdown there, and install no driver here");
        return;
    }
    if (vendor_machine_is_there(root, "/etc/nv_tegra_release")) {
        vendor_machine_append(
            err,
            "this is a Jetson, whose driver comes with JetPack: this user must be in the groups video and "
            "render, and the libraries of /usr/lib/aarch64-linux-gnu/nvidia come first");
        return;
    }
    const uint32_t count = bus_read(vendor, root, cards);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (vendor_machine_is_kept(vendor, root, &cards[i], why)) {
            vendor_machine_append(err, "%s: %s", cards[i].address, why);
            kept++;
        }
    if (kept > 0 && kept == count)
        return; /* what is missing besides follows from that */
    if (err->code == ERR_NOT_FOUND && count == 0)
        return; /* there is no library and no card */
    nodes_tell(vendor, root, err);
    if (err->code == ERR_DEVICE_LOST && strlen(err->text) == before)
        vendor_machine_append(err, "%s", vendor->start_failed);
}

/* Does the kernel's compute driver list the card? True as well if that cannot be read. */
static bool kfd_lists(const char *root, const char *address)
{
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    char pattern[512], text[4096];
    glob_t found;
    bool listed = false;
    if (sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return true;
    const unsigned location = bus << 8 | device << 3 | function;
    snprintf(pattern, sizeof(pattern), "%s/sys/class/kfd/kfd/topology/nodes/*/properties", root);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0)
        return true;
    for (size_t i = 0; i < found.gl_pathc && !listed; i++) {
        FILE *file = fopen(found.gl_pathv[i], "re");
        size_t got = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
        text[got] = '\0';
        if (file)
            fclose(file);
        const char *at = strstr(text, "location_id "), *in = strstr(text, "domain ");
        listed = got == 0 || (at && strtoul(at + strlen("location_id "), NULL, 10) == location &&
                              (!in || strtoul(in + strlen("domain "), NULL, 10) == domain));
    }
    globfree(&found);
    return listed;
}

bool vendor_bus_card(const struct vendor *vendor, const char *root, uint32_t index, char address[24],
                     char why[VENDOR_WHY_BYTES])
{
    struct pci_card cards[PCI_CARDS_MAX];
    static const char unseen[] = "the driver does not show it";
    struct err err;
    const uint32_t count = bus_read(vendor, root, cards);
    if (index >= count)
        return false;
    snprintf(address, 24, "%s", cards[index].address);
    why[0] = '\0';
    if (vendor_machine_is_kept(vendor, root, &cards[index], why) || is_container(root))
        return true; /* a container sees the bus of the whole machine */
    err_set(&err, ERR_NOT_FOUND, unseen);
    nodes_tell(vendor, root, &err); /* HIP says "no device" if it may not open /dev/kfd */
    if (strlen(err.text) > sizeof(unseen) - 1)
        snprintf(why, VENDOR_WHY_BYTES, "%s", err.text);
    else if (strcmp(vendor->module, "amdgpu") == 0 && !kfd_lists(root, address))
        snprintf(why, VENDOR_WHY_BYTES,
                 "the kernel's compute driver (KFD) leaves it out: dmesg | grep kfd says why; often its slot "
                 "lacks PCIe atomics, which a slot at the CPU has");
    else
        snprintf(why, VENDOR_WHY_BYTES, "%s", vendor->card_hidden);
    return true;
}
