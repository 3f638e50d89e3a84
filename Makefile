# Thin: every target installs what it needs (tools/packages.sh), then calls CMake, ctest or a script.
SHELL := /bin/bash
JOBS := $(shell nproc)
SLOTS := $(shell expr 5 \* $$(nproc) / 2) # of ctest: a test takes one or two (tests/CMakeLists.txt)

.PHONY: build install deb tarball tarball-check package-check image image-check demo packages-test test test-page schema-check wheel check bench gpu-check gpu-bench gpu-hour lint analyse stack-check equality emulated-check sanitize fuzz distributions wild chaos lab strangers guide slurm-check clean
.DEFAULT_GOAL := build
# Of 23 architectures of AMD, tests run or read the code for three, and each takes a core half a minute.
TEST_GPU_CODE := -DMOTLEY_GPU_CODE=ON -DMOTLEY_GPU_TARGETS="sm_.*|gfx906|gfx90a|gfx1100"
GPU_CODE := -DMOTLEY_GPU_CODE=ON -DMOTLEY_GPU_TARGETS=".*"
# A compiler that nobody here has seen may warn of what none did before: WERROR=ON, as .ci/run says, ends the build for it.
test test-page schema-check: GPU_CODE := $(TEST_GPU_CODE)
# No document depends on the kernels: these take a build folder as it is, and make a new one without them.
schemas reference: GPU_CODE := $(if $(wildcard build/CMakeCache.txt),,-DMOTLEY_GPU_CODE=OFF)

build:
	@tools/packages.sh
	@cmake --preset release $(GPU_CODE) $(if $(WERROR),-DCMAKE_COMPILE_WARNING_AS_ERROR=$(WERROR)) --log-level=WARNING >build.log 2>&1 || { cat build.log; exit 1; }
	@mv build.log build/configure.log
	@cmake --build build -j $(JOBS) >build/compile.log 2>&1 || { tail -n 60 build/compile.log; exit 1; }

# make install DESTDIR=… PREFIX=/usr/local: programs, units (with PREFIX in them), completions, documents. `make deb`: three Debian
# packages, with kernels for all cards, in build/deb.
install: build
	@DESTDIR=$(DESTDIR) cmake --install build --prefix $(or $(PREFIX),/usr/local) >build/install.log

deb:
	@tools/packages.sh deb
	@$(MAKE) --no-print-directory build
	@mkdir -p build/deb
	@debian/rules clean >build/deb.log
	@DEB_RULES_REQUIRES_ROOT=no MOTLEY_DEB=build/deb debian/rules binary >>build/deb.log 2>&1 || { tail -n 40 build/deb.log; exit 1; }
	@ls build/deb/*.deb

# The agent and the worker with their own libraries, for other distributions with glibc 2.34 or newer: build/tarball.
tarball:
	@tools/packages.sh deb
	@tools/tarball.sh

# As root: that one in a bare root of Debian trixie, made by debootstrap, beside a server of this machine.
tarball-check: build
	@tools/packages.sh distributions
	@tools/tarball_check.sh

# OCI images of the packages, on a base made here: build/image. As root.
image: deb
	@tools/packages.sh image
	@tools/image.sh

# As root, after that: containers of them train, as deploy/image/compose.yaml and deploy/kubernetes say.
image-check:
	@tools/packages.sh image
	@tools/image_check.sh

# In a bare root alone: what `make deb` made is installed, trains, and is purged.
package-check:
	@tools/package_check.sh

# It builds what it runs, not the tests. MOTLEY_DEMO_STEPS=N: so many steps in the place of one epoch.
demo:
	@tools/demo.sh

# Before the build: the kernels for cards are compiled where their compiler is.
PACKAGES := test
packages-test:
	@tools/packages.sh $(PACKAGES)
	@tools/pypi_packages.sh page
	@tools/pypi_packages.sh client
	@tools/pypi_packages.sh engine
	@tools/pypi_packages.sh hub
	@tools/pypi_packages.sh api
	@tools/take_program.sh prometheus usr/bin/promtool
	@tools/take_program.sh nginx usr/sbin/nginx

test: packages-test build
	@tools/in_memory.sh ctest --test-dir build --output-on-failure --timeout 600 -j $(SLOTS)
	@tools/lint.py

# The page alone, in Chromium, against a live service: also what takes too long for `make test`.
test-page: packages-test build
	@MOTLEY_PAGE=1 ctest --test-dir build --output-on-failure --timeout 1200 -R '^page/'

# Everything that api/openapi.yaml allows and forbids, asked of a live service by schemathesis: SCHEMA_EXAMPLES (25) of an
# operation, by SCHEMA_SEED (1), and each boundary.
schema-check: packages-test build
	@MOTLEY_BIN=$(CURDIR)/build/bin MOTLEY_EXAMPLES=$(or $(SCHEMA_EXAMPLES),25) MOTLEY_SEED=$(or $(SCHEMA_SEED),1) python3 tests/client/test_schemathesis.py

# The schemas of described documents (common/doc.h) in api/openapi.yaml, which the programs hold, and the Python client's
# models.
.PHONY: schemas
schemas: build
	@tools/pypi_packages.sh client
	@MOTLEY_SCHEMAS=api/openapi.yaml build/bin/test_api_openapi
	@PYTHONPATH=.cache/client python3 client/generate.py
	@cmake --build build -j $(JOBS) >build/compile.log

# The reference, the man pages and the tables of hardware, from what the programs say (tools/reference.py).
.PHONY: reference
reference: build
	@tools/reference.py build/bin

# The Python client (client/README.md), into build/wheel.
wheel:
	@tools/packages.sh
	@tools/pypi_packages.sh client
	@tools/wheel.sh

# For the minute between two commits: the rooms that differ from origin/main, or those named: make check ROOMS="model api".
check: PACKAGES := check
check: packages-test
	@GPU_CODE='$(TEST_GPU_CODE)' tools/check.sh $(ROOMS)

bench: build
	@bench/run.sh

# On a machine with a card, from a plain checkout, with what is there (no network, no packages): is the engine right
# on it, and how fast. GPU_DEVICE=cuda, hip or emulated; PARTS of the benchmark (all); bench/README.md.
gpu-check:
	@bench/gpu_check.sh

gpu-bench:
	@bench/gpu_bench.py $(PARTS)

# The first hour on a card: all of that and more, step by step, resumable, into one archive; STEPS alone (all).
gpu-hour:
	@bench/gpu_hour.py $(STEPS)

lint:
	@tools/packages.sh lint
	@tools/lint.py --full

# How much stack each circle of recursive calls may take, beside the stack of a thread.
stack-check: build
	@tools/stack_usage.py build

# clang's static analyser over every C file of the rooms, 1 to 5 s of CPU each, or over some: make analyse ROOMS="model/ api/http".
analyse:
	@tools/packages.sh
	@tools/packages.sh sanitize
	@[ -e build/compile_commands.json ] || cmake --preset cpu --log-level=WARNING >/dev/null
	@tools/analyse.py $(ROOMS)

# Every family and method on every split beside PyTorch's numbers, in the engine, by workers and through the service.
equality: build
	@tools/packages.sh test
	@MOTLEY_EQUALITY=1 MOTLEY_EQUALITY_TABLE=$(CURDIR)/build/equality.md ctest --test-dir build --output-on-failure --timeout 3600 -j $(SLOTS) \
	  -R '^engine/(golden|smollm2|stage)|^worker/(equality|experts|golden|moves|orders|programs|run|shares|tensor)|^system/(golden|placements|tensor)|^result/(loads|llama_cpp)'
	@tools/equality.py build/equality.md

# Every GPU kernel on the emulated device, every access checked: many more trials of each op, every family trained.
emulated-check: build
	@tools/packages.sh test
	@MOTLEY_EMULATED_CHECK=1 ctest --test-dir build --output-on-failure --timeout 3600 -j $(SLOTS) -R '^engine/gpu_'

# Everything under ASan+UBSan, and api, mesh, worker, agent and scheduler under TSan.
sanitize:
	@tools/packages.sh
	@cmake --preset asan --log-level=WARNING >/dev/null && cmake --build build/asan -j $(JOBS)
	@ctest --test-dir build/asan --output-on-failure --timeout 3600 -j 1
	@cmake --preset tsan --log-level=WARNING >/dev/null && cmake --build build/tsan -j $(JOBS)
	@ctest --test-dir build/tsan --output-on-failure --timeout 3600 -j 1 -L 'api|mesh|worker|agent|scheduler'

# Every importer and parser of the planner under libFuzzer: FUZZ_SECONDS each (600), FUZZ_JOBS at a time (1).
fuzz:
	@tools/packages.sh sanitize
	@tests/fuzz/run.sh

# Every command of docs/start, how-to and run-a-lab is typed as it is printed there, with the programs that are built.
guide:
	@[ -x build/bin/motley ] || $(MAKE) --no-print-directory build
	@MOTLEY_SOURCE=$(CURDIR) MOTLEY_BIN=$(CURDIR)/build/bin MOTLEY_BUILD=$(CURDIR)/build python3 tests/system/test_guide.py

# `make demo` in bare roots of Debian 12 and 13, made here by debootstrap; as root. RELEASES="trixie" for one of them,
# MOTLEY_TARGETS="demo;guide" for more than the demo.
distributions:
	@tools/packages.sh distributions
	@tools/distributions.sh $(RELEASES)

# Folders, rows, templates and adapters mutated, beside transformers, tokenizers, peft and jinja2: WILD_CASES (10000)
# of WILD_SEED (1), of WILD_KINDS alone where that is set; then what jobs leave, read by transformers and peft of this
# year and of two years ago. Findings are shrunk into build/wild (tests/wild/README.md).
wild: build
	@tests/wild/run.sh

# Beside a real Slurm, which it installs and starts as root in a scratch folder: an agent in an allocation, and motley slurm.
slurm-check: build
	@tools/packages.sh test
	@tools/slurm_check.py

# A storm over a running service: CHAOS_KILLS disturbances (200) chosen by CHAOS_SEED (1).
chaos: build
	@MOTLEY_BIN=$(CURDIR)/build/bin python3 tests/system/chaos.py --kills $(or $(CHAOS_KILLS),200) --seed $(or $(CHAOS_SEED),1)

# Predicted beside measured step times of every placement in labs of paced devices (bench/lab.py): LABS (pair four), LINKS.
lab: build
	@MOTLEY_BIN=$(CURDIR)/build/bin python3 bench/lab.py $(or $(LABS),pair four) --links $(or $(LINKS),1Gbit/s:0.5ms)

# Users, machines and faults drawn from seeds, over a service of one's own: STRANGERS_OPERATIONS (5000) of each of
# STRANGERS_SEEDS (200) from STRANGERS_SEED (1) on. Findings are kept in build/strangers (tests/strangers/README.md).
strangers: build
	@MOTLEY_BIN=$(CURDIR)/build/bin MOTLEY_BUILD=$(CURDIR)/build python3 tests/strangers/strangers.py

clean:
	rm -rf build
