/* Tests what `motley-worker --devices` reports of unusable cards, on the vendors' fake libraries: each has a
 * reason in a sentence, and the other cards are listed as usual. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/fakes/fake.h"
#include "engine/gpu/cards.h"
#include "engine/gpu/code.h"
#include "engine/gpu/vendor_private.h"
#include "support/must.h"

#define CUDA MOTLEY_FAKES "/libfake_cuda.so"
#define HIP MOTLEY_FAKES "/libfake_hip.so"

static struct fake_control *control_of(const char *library)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    assert_non_null(handle);
    struct fake_control *found = dlsym(handle, "fake_control");
    assert_non_null(found);
    return found;
}

static char machine[64]; /* a folder with another machine's dev, sys and run; "": this machine */

static const char *looker; /* this program, as what looks at one card; NULL: the cards are looked at here */

static json_t *asked(void)
{
    struct err err;
    json_t *all =
        gpu_cards(&(struct gpu_cards_options){.root = machine, .program = looker, .seconds = 1}, &err);
    assert_non_null(all);
    return all;
}

static const json_t *of_kind(const json_t *all, const char *list, const char *kind, size_t index)
{
    const json_t *item;
    size_t i;
    json_array_foreach (json_object_get(all, list), i, item)
        if (strcmp(json_string_value(json_object_get(item, "kind")), kind) == 0 && index-- == 0)
            return item;
    return NULL;
}

/* --- another machine's dev, sys and run, in a folder */

static void machine_begin(void)
{
    snprintf(machine, sizeof(machine), "/tmp/motley-machine-XXXXXX");
    assert_non_null(mkdtemp(machine));
}

static int entry_remove(const char *path, const struct stat *told, int kind, struct FTW *at)
{
    (void)told, (void)kind, (void)at;
    return remove(path);
}

static void machine_end(void)
{
    nftw(machine, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
    machine[0] = '\0';
}

/* The path of a file of the machine, whose folders are made. */
static const char *machine_path(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", machine, name);
    for (char *at = path + strlen(machine) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = '\0';
        mkdir(path, 0755);
    }
    return path;
}

static void machine_file(const char *name, const char *text, size_t bytes, mode_t mode)
{
    const char *path = machine_path(name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fwrite(text, 1, bytes, file);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

/* A card on the machine's PCI bus; `driver` is the kernel driver that has it, or NULL. */
static void machine_card(const char *pci, const char *vendor, const char *driver)
{
    char name[128], link[128];
    snprintf(name, sizeof(name), "sys/bus/pci/devices/%s/class", pci);
    machine_file(name, "0x030000\n", 9, 0644);
    snprintf(name, sizeof(name), "sys/bus/pci/devices/%s/vendor", pci);
    machine_file(name, vendor, strlen(vendor), 0644);
    snprintf(name, sizeof(name), "sys/bus/pci/devices/%s/driver", pci);
    snprintf(link, sizeof(link), "../../../bus/pci/drivers/%s", driver ? driver : "");
    if (driver)
        assert_int_equal(symlink(link, machine_path(name)), 0);
}

/* What the machine adds to the error of a driver that does not start; "" if nothing. */
static const char *machine_told(const struct vendor *vendor)
{
    static struct err err;
    static const char said[] = "libcuda.so.1: CUDA_ERROR_UNKNOWN (999) of cuInit";
    err_set(&err, ERR_DEVICE_LOST, said);
    vendor_machine_tell(vendor, machine, &err);
    assert_int_equal(err.code, ERR_DEVICE_LOST);
    assert_memory_equal(err.text, said, sizeof(said) - 1);
    return err.text + sizeof(said) - 1;
}

static void tells(const struct vendor *vendor, const char *words)
{
    if (!strstr(machine_told(vendor), words))
        fail_msg("\"%s\", wanted \"%s\"", machine_told(vendor), words);
}

/* If a driver does not start because a device node is missing or may not be opened, the error names the node
 * and the command that makes it: after a boot only root can make /dev/nvidia-uvm. */
static void a_missing_device_node_is_named_with_its_command(void **state)
{
    char wanted[256];
    (void)state;
    machine_begin();
    machine_file("dev/nvidiactl", "", 0, 0666);
    snprintf(wanted, sizeof(wanted),
             "; missing: %s/dev/nvidia-uvm (as root, once after each boot: nvidia-modprobe -c 0 -u)",
             machine);
    assert_string_equal(machine_told(&vendor_cuda), wanted);
    tells(&vendor_hip, "/kfd (as root, once after each boot: modprobe amdgpu)");
    machine_file(".dockerenv", "", 0, 0644); /* in a container, nothing is made on the machine */
    tells(&vendor_cuda, "dev/nvidia-uvm (this container was not given them: docker run --gpus all");
    tells(&vendor_hip, "dev/kfd (this container was not given them: docker run --device /dev/kfd --device");
    machine_end();
}

static const char *barred; /* a path that the device cgroup does not allow; NULL: none */

/* In the place of the C library's: only a device cgroup answers so. */
int access(const char *path, int mode)
{
    if (barred && strstr(path, barred)) {
        errno = EPERM;
        return -1;
    }
    return faccessat(AT_FDCWD, path, mode, 0);
}

/* A service whose DeviceAllow= was read before the module was loaded. */
static void a_node_that_a_cgroup_bars_is_named(void **state)
{
    (void)state;
    machine_begin();
    machine_file("dev/nvidiactl", "", 0, 0666);
    machine_file("dev/nvidia-uvm", "", 0, 0666);
    barred = "nvidia-uvm";
    tells(&vendor_cuda, "; the device cgroup of this container or service does not allow ");
    tells(&vendor_cuda, "/dev/nvidia-uvm (DeviceAllow=, --device; it is read anew when the service starts)");
    barred = NULL;
    machine_end();
}

/* The user of an agent must be in the group that owns the device nodes. */
static void a_node_that_this_user_may_not_open_names_its_group(void **state)
{
    int status;
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can give a file to another group */
    machine_begin();
    machine_file("dev/kfd", "", 0, 0660);
    assert_int_equal(chmod(machine, 0755), 0);
    pid_t child = fork();
    if (child == 0) {
        _exit(
            setgid(65534) == 0 && setuid(65534) == 0 &&
                    strstr(machine_told(&vendor_hip), "dev/kfd, which group root may (usermod -aG root USER")
                ? 0
                : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    machine_end();
}

static void wsl2_is_served_by_windows(void **state)
{
    (void)state;
    machine_begin();
    machine_file("dev/dxg", "", 0, 0666);
    tells(&vendor_cuda, "this is WSL2, where Windows' own driver serves the card");
    assert_null(strstr(machine_told(&vendor_cuda), "nvidia-modprobe"));
    machine_end();
}

static void a_jetson_s_driver_is_jetpack_s(void **state)
{
    (void)state;
    machine_begin();
    machine_file("etc/nv_tegra_release", "# R35\n", 6, 0644);
    tells(&vendor_cuda,
          "; this is a Jetson, whose driver comes with JetPack: this user must be in the groups");
    assert_null(strstr(machine_told(&vendor_cuda), "nvidia-modprobe"));
    machine_end();
}

/* Everything is there, and the driver does not start: after a suspend nvidia_uvm must be loaded anew. */
static void a_driver_that_does_not_start_after_a_suspend_says_what_helps(void **state)
{
    (void)state;
    machine_begin();
    machine_card("0000:01:00.0", "0x10de\n", "nvidia");
    machine_file("dev/nvidiactl", "", 0, 0666);
    machine_file("dev/nvidia-uvm", "", 0, 0666);
    tells(&vendor_cuda,
          "; after a suspend, end what uses the card, then as root: modprobe -r nvidia_uvm && ");
    machine_end();
}

/* The kernel gave the card to another driver, or to none. */
static void a_card_that_the_kernel_keeps_from_the_driver_says_which_has_it(void **state)
{
    (void)state;
    machine_begin();
    machine_card("0000:01:00.0", "0x10de\n", "nouveau");
    machine_card("0000:02:00.0", "0x1002\n", NULL);
    tells(&vendor_cuda,
          "; 0000:01:00.0: the kernel driver nouveau has it: install the vendor's, keep nouveau");
    assert_null(strstr(machine_told(&vendor_cuda), "missing")); /* that only follows */
    tells(&vendor_hip, "; 0000:02:00.0: no kernel driver has it (modprobe amdgpu;");
    assert_null(strstr(machine_told(&vendor_hip), "Secure Boot"));
    machine_file("sys/firmware/efi/efivars/SecureBoot-8be4df61", "\6\0\0\0\1", 5, 0644);
    tells(&vendor_hip, "Secure Boot is on, so the kernel loads only modules signed with an enrolled key");
    machine_end();
}

/* Checks that `item` exists and that its `why` has the words; with NULL, that it has no `why`. */
static void says(const json_t *item, const char *words)
{
    const json_t *why = json_object_get(item, "why");
    assert_non_null(item);
    if (!words ? !json_is_null(why) : !json_is_string(why) || !strstr(json_string_value(why), words))
        fail_msg("\"%s\", wanted \"%s\"", json_string_value(why), words);
}

/* Whether the build has kernels for cards. Without them every card is reported as unusable for that reason.
 */
static bool has_code(void)
{
    struct err err;
    return gpu_code_choose("cuda", "sm_86", &err) != NULL;
}

static void setup(void)
{
    setenv("MOTLEY_CUDA_LIBRARY", CUDA, 1);
    setenv("MOTLEY_HIP_LIBRARY", HIP, 1);
}

/* A program that was built for tests has code for few cards, and says so of the others. */
static void a_build_without_a_cards_code_says_why(void **state)
{
    (void)state;
    struct err err;
    if (!gpu_code_choose("hip", "gfx1100", &err) || gpu_code_choose("hip", "gfx1030", &err))
        skip(); /* this build has no code for AMD's cards, or for all of them */
    assert_non_null(strstr(err.text, "no hip code for gfx1030, but for gfx906"));
    assert_non_null(strstr(err.text, "`make build` compiles all"));
    assert_null(gpu_code_choose("hip", "gfx803", &err));
    assert_null(strstr(err.text, "`make build`"));
}

static void a_broken_driver_takes_nothing_from_the_other(void **state)
{
    (void)state;
    static const struct {
        const char *library;
        int version;
        const char *words;
    } cases[] = {
        {"/nonexistent.so", 12040, "no cuda driver on this machine: /nonexistent.so"},
        {CUDA, 11030, "of version 11.3: at least CUDA 11.4"},
        {MOTLEY_FAKES "/libfake_bare.so", 12040, "lacks cuInit"},
    };
    struct fake_control *cuda = control_of(CUDA);
    int version = cuda->version;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        setup();
        setenv("MOTLEY_CUDA_LIBRARY", cases[i].library, 1);
        cuda->version = cases[i].version;
        json_t *all = asked();
        cuda->version = version;
        says(of_kind(all, "drivers", "cuda", 0), cases[i].words);
        says(of_kind(all, "drivers", "hip", 0), NULL);
        assert_null(of_kind(all, "cards", "cuda", 0));
        assert_non_null(of_kind(all, "cards", "hip", 1));
        json_decref(all);
    }
}

/* On a machine without /dev/nvidia-uvm the list of cards has cuInit's error and names the missing file. */
static void a_driver_that_does_not_start_names_the_node(void **state)
{
    struct fake_control *cuda = control_of(CUDA);
    (void)state;
    if (access("/dev/nvidia-uvm", F_OK) == 0)
        skip(); /* on this machine the file is not missing */
    setup();
    cuda->calls = 0;
    cuda->fail_at = 2; /* cuInit follows cuDriverGetVersion */
    cuda->fail_with = 999;
    json_t *all = asked();
    cuda->fail_at = 0;
    says(of_kind(all, "drivers", "cuda", 0), "CUDA_ERROR_999 (999) of cuInit; missing: ");
    says(of_kind(all, "drivers", "cuda", 0), "/dev/nvidia-uvm ("); /* what helps differs in a container */
    json_decref(all);
}

static void a_card_that_cannot_be_used_says_why(void **state)
{
    (void)state;
    struct fake_control *cuda = control_of(CUDA);
    setup();
    cuda->capability = 50;
    json_t *all = asked();
    bool any_code = has_code();
    says(of_kind(all, "cards", "cuda", 0), any_code ? "sm_50" : "no cuda code");
    says(of_kind(all, "cards", "cuda", 1), any_code ? "sm_50" : "no cuda code");
    json_decref(all);
    cuda->capability = 86;
    cuda->compute_mode = 2;
    all = asked();
    says(of_kind(all, "cards", "cuda", 0), "its compute mode lets no process use it (prohibited)");
    json_decref(all);
    cuda->compute_mode = 0;
}

/* The first card is in exclusive use, so its context is refused; the second card is usable. */
static void a_card_in_exclusive_use_is_named_and_the_next_one_serves(void **state)
{
    (void)state;
    struct fake_control *cuda = control_of(CUDA);
    setup();
    cuda->compute_mode = 3;
    cuda->calls = 0;
    if (!has_code()) {
        cuda->compute_mode = 0;
        skip();
    }
    /* The call that creates the context follows the last query of the card. */
    for (uint64_t at = 1; at < 200; at++) {
        cuda->calls = 0;
        cuda->trace[0] = '\0';
        cuda->fail_at = at;
        cuda->fail_with = 46; /* error 46: the devices are busy or unavailable */
        json_t *all = asked();
        cuda->fail_at = 0;
        const json_t *why = json_object_get(of_kind(all, "cards", "cuda", 0), "why");
        bool found = json_is_string(why) && strstr(json_string_value(why), "(exclusive)");
        if (found) {
            says(of_kind(all, "cards", "cuda", 1), NULL);
            assert_true(json_is_true(json_object_get(of_kind(all, "cards", "cuda", 1), "usable")));
        }
        json_decref(all);
        if (found) {
            cuda->compute_mode = 0;
            return;
        }
    }
    fail_msg("no call that fails says that the card is in exclusive use");
}

/* A card is usable once it has run one of our kernels: a driver that refuses the code, or a card that does
 * not compute, is found before anything is placed there. */
static void a_card_has_run_a_kernel_before_it_is_usable(void **state)
{
    static const struct {
        const char *call;
        int with;
        const char *why;
    } faults[] = {{" cuModuleLoadDataEx", 222, "(222)"},
                  {" cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
    (void)state;
    struct fake_control *cuda = control_of(CUDA);
    setup();
    if (!has_code())
        skip();
    cuda->trace[0] = '\0';
    cuda->calls = 0;
    json_decref(asked());
    char trace[sizeof(cuda->trace)];
    memcpy(trace, cuda->trace, sizeof(trace));
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
        const char *at = strstr(trace, faults[i].call);
        assert_non_null(at);
        cuda->fail_at = 0;
        for (const char *call = trace; call <= at; call++)
            cuda->fail_at += *call == ' ';
        cuda->fail_with = faults[i].with;
        cuda->calls = 0;
        json_t *all = asked();
        cuda->fail_at = 0;
        says(of_kind(all, "cards", "cuda", 0), faults[i].why);
        assert_true(json_is_false(json_object_get(of_kind(all, "cards", "cuda", 0), "usable")));
        says(of_kind(all, "cards", "cuda", 1), NULL);
        json_decref(all);
    }
}

/* A process sees at most one MIG slice. The list says which slice to make visible, and why a divided card
 * itself is unusable. */
static void a_card_that_is_cut_is_its_slices(void **state)
{
    static const char *const apart[] = {"MIG-00010203", "MIG-00010204", "GPU-00010201"};
    (void)state;
    setup();
    setenv("MOTLEY_NVML_LIBRARY", MOTLEY_FAKES "/libfake_nvml.so", 1);
    json_t *all = asked();
    assert_null(json_object_get(all, "apart")); /* No card is divided. */
    assert_non_null(of_kind(all, "cards", "cuda", 1));
    json_decref(all);
    setenv("MOTLEY_FAKE_MIG", "1", 1);
    machine_begin();
    machine_card("0000:0a:00.0", "0x10de\n", "nvidia"); /* the cut one */
    machine_card("0000:0b:00.0", "0x10de\n", "nvidia");
    machine_card("0000:0d:00.0", "0x10de\n", "vfio-pci"); /* neither the driver nor NVML shows it */
    all = asked();
    machine_end();
    assert_int_equal(json_array_size(json_object_get(all, "apart")), 3);
    says(of_kind(all, "cards", "cuda", 1), "it is set aside for virtual machines (vfio-pci)");
    assert_null(of_kind(all, "cards", "cuda", 2));
    json_decref(all);
    all = asked();
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(json_string_value(json_array_get(json_object_get(all, "apart"), i)), apart[i]);
    says(of_kind(all, "cards", "cuda", 0), "it is cut into MIG slices");
    assert_null(of_kind(all, "cards", "cuda", 1));
    assert_non_null(of_kind(all, "cards", "hip", 1)); /* The other vendor's cards stay in the list. */
    json_decref(all);
    setenv("MOTLEY_NVML_LIBRARY", "/nonexistent.so", 1); /* Without NVML one slice is all that is seen. */
    all = asked();
    assert_null(json_object_get(all, "apart"));
    says(of_kind(all, "cards", "cuda", 1),
         "other MIG slices and cards may be hidden, because a process sees one "
         "slice and no NVML on this machine");
    json_decref(all);
    setenv("MOTLEY_NVML_LIBRARY", MOTLEY_FAKES "/libfake_nvml.so", 1);
    setenv("CUDA_VISIBLE_DEVICES", apart[0],
           1); /* A slice that is the only visible device is listed like a card. */
    all = asked();
    assert_null(json_object_get(all, "apart"));
    assert_non_null(of_kind(all, "cards", "cuda", 0));
    assert_null(of_kind(all, "cards", "cuda", 1));
    json_decref(all);
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* Set and empty, it hides all cards, slices too. */
    all = asked();
    assert_null(json_object_get(all, "apart"));
    assert_null(of_kind(all, "cards", "cuda", 0));
    json_decref(all);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("MOTLEY_FAKE_MIG");
    unsetenv("MOTLEY_NVML_LIBRARY");
    control_of(CUDA)->devices = 2;
}

/* Cards on the bus that the driver does not show are listed with the reason; the fake library shows two. */
static void a_card_on_the_bus_that_the_driver_does_not_show_says_why(void **state)
{
    static const char known[] = "cpu_cores_count 0\nlocation_id 49408\ndomain 0\n"; /* c1:00.0 */
    (void)state;
    setup();
    machine_begin();
    machine_card("0000:0a:00.0", "0x10de\n", "nvidia");
    machine_card("0000:0b:00.0", "0x10de\n", "nvidia");
    machine_card("0000:c1:00.0", "0x1002\n", "amdgpu");
    machine_file("sys/class/kfd/kfd/topology/nodes/1/properties", known, sizeof(known) - 1, 0644);
    machine_file("dev/kfd", "", 0, 0666);
    machine_file("dev/nvidiactl", "", 0, 0666);
    machine_file("dev/nvidia-uvm", "", 0, 0666);
    json_t *all = asked();
    assert_null(of_kind(all, "cards", "cuda", 2));
    assert_null(of_kind(all, "cards", "hip", 2));
    json_decref(all);
    machine_card("0000:0c:00.0", "0x10de\n", "nvidia");   /* fell off its bus */
    machine_card("0000:0d:00.0", "0x10de\n", "vfio-pci"); /* of a virtual machine */
    machine_card("0000:c4:00.0", "0x1002\n", "amdgpu");   /* without PCIe atomics */
    all = asked();
    const json_t *lost = of_kind(all, "cards", "cuda", 2), *guest = of_kind(all, "cards", "cuda", 3);
    const bool turned = !strstr(json_string_value(json_object_get(lost, "why")), "Xid");
    says(turned ? guest : lost, "it fell off its bus or needs a reset (dmesg | grep Xid)");
    says(turned ? lost : guest, "it is set aside for virtual machines (vfio-pci)");
    says(of_kind(all, "cards", "hip", 2), "often its slot lacks PCIe atomics");
    assert_string_equal(json_string_value(json_object_get(of_kind(all, "cards", "hip", 2), "pci")),
                        "0000:c4:00.0");
    json_decref(all);
    machine_file(".dockerenv", "", 0, 0644); /* a container sees the whole machine's bus */
    all = asked();
    says(of_kind(all, "cards", "cuda", 2), "vfio-pci");
    assert_null(of_kind(all, "cards", "cuda", 3));
    assert_null(of_kind(all, "cards", "hip", 2));
    json_decref(all);
    machine_end();
}

/* HIP starts, and says that there is no device, if this user may not open /dev/kfd or it is missing. */
static void no_device_names_the_node_that_is_why(void **state)
{
    struct fake_control *hip = control_of(HIP);
    (void)state;
    setup();
    machine_begin();
    machine_card("0000:c1:00.0", "0x1002\n", "amdgpu");
    hip->devices = 0;
    json_t *all = asked();
    hip->devices = 2;
    says(of_kind(all, "drivers", "hip", 0), NULL);
    says(of_kind(all, "cards", "hip", 0), "the driver does not show it; missing: ");
    says(of_kind(all, "cards", "hip", 0), "/dev/kfd (as root, once after each boot: modprobe amdgpu)");
    json_decref(all);
    machine_end();
}

/* HIP's library is there and needs another one that is not. */
static void a_library_that_lacks_another_one_names_it(void **state)
{
    (void)state;
    setup();
    setenv("MOTLEY_HIP_LIBRARY", MOTLEY_FAKES "/libfake_needy.so", 1);
    json_t *all = asked();
    const json_t *driver = of_kind(all, "drivers", "hip", 0);
    says(driver, "the hip driver's library does not load, because it lacks something: libfake_comgr.so:");
    assert_true(json_is_false(json_object_get(driver, "missing")));
    json_decref(all);
}

/* Numbers that alone say what helps. */
static void an_error_of_the_start_says_what_helps(void **state)
{
    static const struct {
        int number;
        const char *helps;
    } cases[] = {{34, "take the toolkit's folder of stubs out of LD_LIBRARY_PATH"},
                 {802, "systemctl start nvidia-fabricmanager"},
                 {803, "the driver was upgraded under the loaded kernel module: reboot"},
                 {804, "cuda-compat does not serve this card"},
                 {805, "start MPS anew"},
                 {304, "CUDA_ERROR_304 (304) of cuInit"}};
    struct fake_control *cuda = control_of(CUDA);
    (void)state;
    setup();
    machine_begin();
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        cuda->calls = 0;
        cuda->fail_at = 2; /* cuInit follows cuDriverGetVersion */
        cuda->fail_with = cases[i].number;
        json_t *all = asked();
        cuda->fail_at = 0;
        says(of_kind(all, "drivers", "cuda", 0), cases[i].helps);
        assert_null(of_kind(all, "cards", "cuda", 0));
        json_decref(all);
    }
    machine_end();
}

/* Each card is looked at by a process of its own: one that hangs, or whose driver ends the process, is named,
 * and the other one serves. */
static void a_card_that_hangs_or_crashes_harms_no_other(void **state)
{
    (void)state;
    setup();
    if (!has_code())
        skip();
    looker = "/proc/self/exe";
    setenv("MOTLEY_FAKE_HANGS", "0", 1);
    json_t *all = asked();
    unsetenv("MOTLEY_FAKE_HANGS");
    says(of_kind(all, "cards", "cuda", 0),
         "it did not answer within 1 s: is it hung (dmesg), or is persistence "
         "mode off (nvidia-smi -pm 1)");
    says(of_kind(all, "cards", "cuda", 1), NULL);
    assert_true(json_integer_value(json_object_get(of_kind(all, "cards", "cuda", 1), "free_bytes")) > 0);
    json_decref(all);
    setenv("MOTLEY_FAKE_ABORTS", "1", 1);
    all = asked();
    unsetenv("MOTLEY_FAKE_ABORTS");
    looker = NULL;
    says(of_kind(all, "cards", "cuda", 0), NULL);
    says(of_kind(all, "cards", "cuda", 1), "the process that ran its first kernel: ");
    says(of_kind(all, "cards", "cuda", 1), "killed by signal 6");
    json_decref(all);
}

static json_int_t bytes_left(const char *meminfo)
{
    machine_file("proc/meminfo", meminfo, strlen(meminfo), 0644);
    json_t *all = asked();
    const json_t *card = of_kind(all, "cards", "cuda", 0);
    const json_int_t left = json_integer_value(json_object_get(card, "free_bytes"));
    assert_int_equal(json_is_true(json_object_get(card, "integrated")), control_of(CUDA)->integrated);
    json_decref(all);
    return left;
}

/* GB10, Jetson, APU: the card has the host's memory, and its driver counts the page cache (here 300 MiB) as
 * used.
 */
static void an_integrated_card_counts_the_page_cache_as_free(void **state)
{
    enum { MIB = 1 << 20 };
    const struct gpu_driver *driver = &gpu_driver_cuda;
    struct gpu_library *library;
    struct gpu_context *context;
    gpu_address cache;
    uint32_t version;
    struct err err;
    (void)state;
    setup();
    if (!has_code())
        skip();
    machine_begin();
    assert_int_equal(driver->open(&library, &version, &err), 0);
    assert_int_equal(driver->context_create(library, 0, NULL, 0, &context, &err), 0);
    assert_int_equal(driver->memory_create(context, 300 * MIB, &cache, &err), 0);
    const json_int_t told = bytes_left("MemTotal: 524288 kB\nMemAvailable: 409600 kB\n");
    assert_in_range(told, 200 * MIB, 212 * MIB); /* a card with its own memory */
    control_of(CUDA)->integrated = 1;
    assert_int_equal(bytes_left("MemTotal: 524288 kB\nMemFree: 7 kB\nMemAvailable: 409600 kB\n"), 400 * MIB);
    assert_int_equal(bytes_left("MemTotal: 524288 kB\nMemAvailable: 7 kB\n"), told);
    assert_int_equal(bytes_left("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n"), 512 * MIB);
    control_of(CUDA)->integrated = 0;
    assert_int_equal(driver->memory_destroy(context, cache, &err), 0);
    driver->context_destroy(context);
    driver->close(library);
    machine_end();
}

/* Prints what a look at a card found, as motley-worker does. */
static int look_print(const char *card)
{
    struct err err;
    json_t *answer = gpu_card_look(card, &err);
    int status = answer && json_dumpf(answer, stdout, 0) == 0 ? 0 : 1;
    json_decref(answer);
    return status;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--look") == 0)
        return look_print(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_build_without_a_cards_code_says_why),
        cmocka_unit_test(a_broken_driver_takes_nothing_from_the_other),
        cmocka_unit_test(a_missing_device_node_is_named_with_its_command),
        cmocka_unit_test(a_node_that_a_cgroup_bars_is_named),
        cmocka_unit_test(a_node_that_this_user_may_not_open_names_its_group),
        cmocka_unit_test(wsl2_is_served_by_windows),
        cmocka_unit_test(a_jetson_s_driver_is_jetpack_s),
        cmocka_unit_test(a_driver_that_does_not_start_after_a_suspend_says_what_helps),
        cmocka_unit_test(a_card_that_the_kernel_keeps_from_the_driver_says_which_has_it),
        cmocka_unit_test(a_card_on_the_bus_that_the_driver_does_not_show_says_why),
        cmocka_unit_test(no_device_names_the_node_that_is_why),
        cmocka_unit_test(a_library_that_lacks_another_one_names_it),
        cmocka_unit_test(a_card_that_hangs_or_crashes_harms_no_other),
        cmocka_unit_test(an_integrated_card_counts_the_page_cache_as_free),
        cmocka_unit_test(an_error_of_the_start_says_what_helps),
        cmocka_unit_test(a_driver_that_does_not_start_names_the_node),
        cmocka_unit_test(a_card_that_cannot_be_used_says_why),
        cmocka_unit_test(a_card_that_is_cut_is_its_slices),
        cmocka_unit_test(a_card_has_run_a_kernel_before_it_is_usable),
        cmocka_unit_test(a_card_in_exclusive_use_is_named_and_the_next_one_serves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
