# kvmat: `make help` lists the targets. Two of them do everything: `make demo` and `make check`.
BUILD ?= release
OUT   ?= build/$(BUILD)
V     ?=

# The CUDA toolkit is optional: `make CUDA=` builds for the CPU only, `make CUDA=/path` takes another one.
CUDA ?= $(firstword $(wildcard /usr/local/cuda /opt/cuda))
NVCC ?= $(if $(CUDA),$(wildcard $(CUDA)/bin/nvcc))

MODE_release := -O2 -g
MODE_debug   := -O0 -g3
MODE_asan    := -O1 -g3 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
MODE_tsan    := -O1 -g3 -fno-omit-frame-pointer -fsanitize=thread
MODE_fuzz    := -O1 -g3 -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
ifndef MODE_$(BUILD)
$(error BUILD=$(BUILD) is not one of: release debug asan tsan fuzz)
endif

PKG_CONFIG ?= pkg-config
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wstrict-prototypes -Wmissing-prototypes \
        -Wcast-align=strict -Wformat=2 -Wswitch -Wundef -Werror
# Fuzz targets need clang, which knows other warnings.
WARN += $(if $(filter fuzz,$(BUILD)),-Wno-unknown-warning-option -Wno-format-nonliteral)
# -ffp-contract=off: a row's bits are what the source says, on every compiler; fused operations are written as such.
BASE := -std=c11 -D_GNU_SOURCE $(MODE_$(BUILD)) $(WARN) -ffp-contract=off -fno-math-errno -pthread -I.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

LIBS_protocol := jansson
LIBS_server   := jansson libmicrohttpd libxxhash

# Rooms, each a library. Arrows point to the right: client -> protocol; server -> kernels -> protocol.
src  = $(sort $(wildcard $(1)/*.c))
objs = $(patsubst %.c,$(OUT)/%.o,$(1))
PROTOCOL := $(OUT)/libprotocol.a
KERNELS  := $(OUT)/libkernels.a
SERVER   := $(OUT)/libserver.a
CLIENT   := $(OUT)/libkvmat.a
MAINS    := server/main.c client/kvmat.c

DAEMON := $(OUT)/kvmatd
TOOL   := $(OUT)/kvmat
REFERENCE := $(OUT)/tests/reference
TESTS  := $(patsubst tests/%.c,$(OUT)/tests/%,$(sort $(wildcard tests/test_*.c)))

libs = $(shell $(PKG_CONFIG) --libs $(1))
comma := ,
quiet = $(if $(V),,@)
say   = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

.PHONY: all tests check check-built flood flood-built soak soak-built check-gpu check-gpu-built bench-gpu bench-gpu-built demo demo-built bench bench-built layers format lint docs asan tsan fuzz fuzz-built clean help
all: $(DAEMON) $(TOOL) $(REFERENCE) ## build kvmatd and kvmat in build/release/ (BUILD=debug, asan or tsan elsewhere)
	@printf '%s\n' "$(if $(NVCC),$(if $(CUDA_OBJECTS),CUDA: built with the toolkit at $(CUDA).,CUDA: left out of a $(BUILD) build.),CUDA: no toolkit found: built for the CPU.)"

$(OUT)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(quiet)$(CC) $(BASE) $(CFLAGS) $(CFLAGS_$(firstword $(subst /, ,$<))) $(CFLAGS_$(subst /,_,$(basename $<))) \
	    -MMD -MP -c $< -o $@

# With a toolkit, host code in C against its libraries, and nvcc for the kernels alone. Sanitizers watch CPU builds.
CUDA_SOURCES := $(if $(NVCC),$(if $(filter asan tsan fuzz,$(BUILD)),,$(sort $(wildcard kernels/cuda_*.c kernels/cuda_*.cu))))
CUDA_OBJECTS := $(patsubst %,$(OUT)/%.o,$(basename $(CUDA_SOURCES)))
CUDA_LIBS    := $(if $(CUDA_OBJECTS),-L$(CUDA)/lib64 -Wl$(comma)-rpath$(comma)$(CUDA)/lib64 -lcublasLt -lcudart -lstdc++)
CUDA_ARCHS   ?= -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a \
                -gencode=arch=compute_90,code=compute_90
$(filter $(OUT)/kernels/cuda_%,$(CUDA_OBJECTS)): BASE += -isystem $(CUDA)/include
$(OUT)/%.o: %.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(quiet)$(NVCC) -std=c++17 -O3 -lineinfo -Xfatbin -compress-all $(CUDA_ARCHS) --Werror all-warnings -I. -MMD -MP -c $< -o $@

# The arithmetic is compiled as if for speed in every mode; asan and tsan keep their checks.
CFLAGS_kernels := -O3
# No byte of a stranger steers what is computed; instrumented for fuzzing, the matrix product takes clang minutes.
CFLAGS_kernels_cpu_gemm_fuzz := -O1 -fno-sanitize=all
CFLAGS_kernels_backend := $(if $(CUDA_OBJECTS),-DKV_WITH_CUDA)
CFLAGS_kernels_cpu_gemm := $(CFLAGS_kernels_cpu_gemm_$(BUILD)) -ffp-contract=fast # vectors have no other way to ask for a fused multiply-add
CFLAGS_server_version := -DKV_VERSION='"$(VERSION)"'
CFLAGS_client_command := $(CFLAGS_server_version)
.PHONY: FORCE
$(OUT)/version: FORCE
	@mkdir -p $(@D)
	@echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' > $@
$(OUT)/server/version.o $(OUT)/client/command.o: $(OUT)/version

define room
$(1): $$(call objs,$$(filter-out $$(MAINS),$$(call src,$(2))))
	$$(call say,AR,$$@)
	$$(quiet)rm -f $$@ && $$(AR) rcs $$@ $$^
endef
$(eval $(call room,$(PROTOCOL),protocol))
$(KERNELS): $(call objs,$(filter-out kernels/cuda_%,$(call src,kernels))) $(CUDA_OBJECTS)
	$(call say,AR,$@)
	$(quiet)rm -f $@ && $(AR) rcs $@ $^
$(eval $(call room,$(SERVER),server))
$(eval $(call room,$(CLIENT),client))

define program
$(1): $(2)
	@mkdir -p $$(@D)
	$$(call say,LD,$$@)
	$$(quiet)$$(CC) $$(BASE) $$(CFLAGS) $$(LDFLAGS) -o $$@ $$^ $$(call libs,$(3)) $(4) -lm
endef
$(eval $(call program,$(DAEMON),$(OUT)/server/main.o $(SERVER) $(KERNELS) $(PROTOCOL),$(LIBS_server),$(CUDA_LIBS)))
$(eval $(call program,$(TOOL),$(OUT)/client/kvmat.o $(CLIENT) $(PROTOCOL),$(LIBS_protocol)))
# The independent check: float64 from the checkpoint's own values, without kernels/ or server/.
$(eval $(call program,$(REFERENCE),$(call objs,$(wildcard tests/reference*.c)) $(PROTOCOL),$(LIBS_protocol)))

# What tests share stands beside them, in tests/*.c without a prefix, and is linked where it is used.
KIT := $(OUT)/libkit.a
KIT_SOURCES := $(filter-out tests/test_% tests/bench_% tests/gpu_% tests/reference% tests/soak.c,$(wildcard tests/*.c))
$(KIT): $(call objs,$(KIT_SOURCES))
	$(call say,AR,$@)
	$(quiet)rm -f $@ && $(AR) rcs $@ $^
# A test of a room links that room and what is below it: tests/test_<room>_<what>.c.
rooms_protocol := $(PROTOCOL)
rooms_kernels  := $(KIT) $(KERNELS) $(PROTOCOL)
rooms_server   := $(KIT) $(SERVER) $(CLIENT) $(KERNELS) $(PROTOCOL)
rooms_client   := $(CLIENT) $(PROTOCOL)
room_of = $(word 2,$(subst _, ,$(notdir $(1))))
$(foreach t,$(TESTS),$(eval $(call program,$(t),$(t).o $(rooms_$(call room_of,$(t))),$(LIBS_server) check,$(CUDA_LIBS))))

BENCHES := $(patsubst tests/%.c,$(OUT)/tests/%,$(sort $(wildcard tests/bench_*.c)))
# OpenBLAS is the opponent of one benchmark and of nothing else; it is asked for when a benchmark is linked.
$(foreach b,$(BENCHES),$(eval $(call program,$(b),$(b).o $(rooms_server),$(LIBS_server) openblas,$(CUDA_LIBS))))

SOAK := $(OUT)/tests/soak
$(eval $(call program,$(SOAK),$(SOAK).o $(rooms_server),$(LIBS_server),$(CUDA_LIBS)))

# On a GPU: checks of the CUDA backend against the CPU backend, and its benchmarks. Built everywhere, run where there is one.
GPU_CHECKS := $(patsubst tests/%.c,$(OUT)/tests/%,$(filter-out tests/gpu_bench% $(if $(CUDA_OBJECTS),,tests/gpu_kernels%),$(sort $(wildcard tests/gpu_*.c))))
$(foreach t,$(GPU_CHECKS),$(eval $(call program,$(t),$(t).o $(rooms_server),$(LIBS_server) check,$(CUDA_LIBS))))
# What gpu_lost preloads into the daemon.
GPU_TRAP := $(if $(CUDA_OBJECTS),$(OUT)/tests/gpu_trap.so)
$(OUT)/tests/gpu_trap.so: tests/gpu_trap.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$@)
	$(quiet)$(NVCC) -std=c++17 -O3 $(CUDA_ARCHS) --Werror all-warnings -I. -shared -Xcompiler -fPIC -cudart shared -o $@ $<
GPU_BENCHES := $(if $(CUDA_OBJECTS),$(OUT)/tests/gpu_bench $(OUT)/tests/gpu_bench_echo)
$(OUT)/tests/gpu_bench.o $(OUT)/tests/gpu_kernels.o: BASE += -isystem $(CUDA)/include
$(eval $(call program,$(OUT)/tests/gpu_bench,$(OUT)/tests/gpu_bench.o $(OUT)/tests/gpu_bench_ceiling.o $(rooms_kernels),$(LIBS_protocol),$(CUDA_LIBS)))
$(eval $(call program,$(OUT)/tests/gpu_bench_echo,$(OUT)/tests/gpu_bench_echo.o,$(LIBS_protocol)))

# Fuzz targets, tests/fuzz/*.c, with what little of the kit they need: they are not to ask for libcheck.
FUZZERS := $(patsubst tests/%.c,$(OUT)/tests/%,$(sort $(wildcard tests/fuzz/*.c)))
FUZZ_KIT := $(OUT)/libfuzzkit.a
$(FUZZ_KIT): $(call objs,tests/http_rig.c tests/engine_rig.c tests/fake_backend.c)
	$(call say,AR,$@)
	$(quiet)rm -f $@ && $(AR) rcs $@ $^
$(FUZZERS): LDFLAGS += -fsanitize=fuzzer
$(foreach t,$(FUZZERS),$(eval $(call program,$(t),$(t).o $(FUZZ_KIT) $(SERVER) $(KERNELS) $(PROTOCOL),$(LIBS_server))))

-include $(shell find $(OUT) -name '*.d' 2>/dev/null)

tests: all $(TESTS) ## build the daemon, the command and every test

# The targets below first make sure of the Debian packages they need, then call make again: only then are the
# libraries' flags known.
AGAIN := $(MAKE) --no-print-directory -j $(shell nproc 2>/dev/null || echo 2)

check: layers ## install what is missing, build, run every test
	$(quiet)tests/packages.sh check
	$(quiet)$(AGAIN) check-built
check-built: tests
	$(quiet)tests/run.sh $(OUT)

FLOOD ?= 20000
flood: ## FLOOD bad requests of every kind to one server: memory and descriptors stay what they are
	$(quiet)tests/packages.sh check
	$(quiet)$(AGAIN) flood-built
flood-built: $(OUT)/tests/test_server_flood
	$(quiet)KVMAT_FLOOD=$(FLOOD) $< 2>$<.log

SOAK_SECONDS ?= 1200
SOAK_RESTARTS ?= 200
soak: ## SOAK_SECONDS of honest, vanishing, slow and hostile callers at once, with SOAK_RESTARTS restarts
	$(quiet)tests/packages.sh check
	$(quiet)$(AGAIN) soak-built
soak-built: all $(SOAK)
	$(quiet)$(SOAK) $(SOAK_SECONDS) $(SOAK_RESTARTS)

check-gpu: ## the CUDA backend against the CPU backend, and under compute-sanitizer; says skip without a GPU
	$(quiet)tests/packages.sh check
	$(quiet)$(AGAIN) check-gpu-built
check-gpu-built: all $(GPU_CHECKS) $(GPU_TRAP)
	$(quiet)tests/gpu_check.sh $(OUT)

demo: ## install what is missing, build, serve a checkpoint and verify one answer
	$(quiet)tests/packages.sh demo
	$(quiet)$(AGAIN) demo-built
demo-built: all
	$(quiet)tests/demo.sh $(OUT)

bench: ## measure: the CPU stage, HTTP and loading, each beside its opponent
	$(quiet)tests/packages.sh bench
	$(quiet)$(AGAIN) bench-built
bench-built: all $(BENCHES)
	$(quiet)tests/bench.sh $(OUT)

bench-gpu: ## measure on a GPU: the stage, cuBLASLt, PyTorch, the served path; says skip without one
	$(quiet)tests/packages.sh check
	$(quiet)$(AGAIN) bench-gpu-built
bench-gpu-built: all $(GPU_BENCHES)
	$(quiet)tests/gpu_bench.sh $(OUT)

asan: ## every test under AddressSanitizer and UndefinedBehaviorSanitizer
	$(quiet)tests/packages.sh check
	$(quiet)$(AGAIN) BUILD=asan check-built
tsan: ## every test under ThreadSanitizer
	$(quiet)tests/packages.sh check
	$(quiet)$(AGAIN) BUILD=tsan check-built

layers: ## who may include whom, lengths of files and functions
	$(quiet)tests/check_layers.sh

format: ## rewrite the sources in the house's format
	$(quiet)tests/format.sh

lint: ## clang-tidy, cppcheck and shellcheck
	$(quiet)tests/packages.sh lint
	$(quiet)tests/lint.sh

docs: $(TOOL) ## write protocol/ERRORS.md from the table
	$(quiet)$(TOOL) explain --markdown > protocol/ERRORS.md

FUZZ_SECONDS ?= 60
CLANG ?= clang
fuzz: ## every fuzz target for FUZZ_SECONDS, under the sanitizers (needs clang; CLANG names another one)
	$(quiet)tests/packages.sh fuzz
	$(quiet)command -v $(CLANG) >/dev/null || { echo "fuzz: there is no $(CLANG) here; CLANG=... names another" >&2; exit 1; }
	$(quiet)$(AGAIN) BUILD=fuzz CC=$(CLANG) fuzz-built
fuzz-built: $(FUZZERS)
	$(quiet)tests/fuzz.sh $(OUT) $(FUZZ_SECONDS)

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12
