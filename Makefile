# CMake is the single source of truth (CMakeLists.txt); this only forwards to it.
#     make            configure and build in build/
#     make demo       install missing dependencies, build, run `shoal demo`
#     make test       install missing dependencies, build and test every configuration
#     make python     build the Python package and test it in its own environment
#     make bench      timings relative to OpenBLAS, on a quiet machine
#     make bench-peers-quick
#                     a short run of every comparison with other programs: do they work?
#     make wheel      the wheel for other systems, in build/wheels
#     make dist       a tarball of the commit that is checked out
#     make check-release  what a release needs beyond make test
#     make fuzz       fuzz the parsers with clang, FUZZ_SECONDS=60 each
#     make install    build without tests, into PREFIX=/usr/local (DESTDIR is honoured)
#     make format, make clean
BUILD = build
PREFIX = /usr/local
FUZZ_SECONDS = 60
JOBS = $(shell nproc 2>/dev/null || echo 2)
MAKEFLAGS += --no-print-directory

.PHONY: all demo test python bench bench-peers-quick wheel dist check-release fuzz \
	install format clean
.NOTPARALLEL:

all:
	@cmake -S . -B $(BUILD)
	@cmake --build $(BUILD) -j $(JOBS)

demo:
	@tools/install-deps program --optional speech plots
	@cmake -S . -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target shoal_program
	@$(BUILD)/shoal demo

test:
	@tools/install-deps program tests --optional clang arm speech plots mpi counts commas \
		format english bench
	@tools/run-tests --build $(BUILD) --jobs $(JOBS)

python:
	@tools/install-deps program tests
	@tools/python-tests --build $(BUILD) --jobs $(JOBS)

bench:
	@tools/install-deps program bench
	@cmake -S . -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@cmake --build $(BUILD) --target bench

bench-peers-quick:
	@tools/install-deps program speech
	@cmake -S . -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@bench/peers/quick

wheel:
	@tools/wheel --build $(BUILD)

dist:
	@tools/dist $(BUILD)

check-release:
	@tools/install-deps program tests --optional clang arm speech plots mpi systems debian
	@tools/check-release --build $(BUILD)

fuzz:
	@tools/install-deps program speech clang
	@tools/install-deps fuzz
	@cmake -S . -B $(BUILD)/fuzz -DCMAKE_C_COMPILER=clang -DSHOAL_FUZZ=ON \
		-DSHOAL_FUZZ_SECONDS=$(FUZZ_SECONDS)
	@cmake --build $(BUILD)/fuzz -j $(JOBS)
	@cmake --build $(BUILD)/fuzz --target fuzz_run

install:
	@cmake -S . -B $(BUILD)/install -DSHOAL_BUILD_TESTS=OFF -DSHOAL_BUILD_BENCH=OFF
	@cmake --build $(BUILD)/install -j $(JOBS)
	@cmake --install $(BUILD)/install --prefix $(PREFIX)

format:
	@find include src models speech exact cli lab examples tests bench -name '*.[ch]' | \
		xargs clang-format -i

clean:
	@rm -rf $(BUILD)
