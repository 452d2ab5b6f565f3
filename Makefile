# The two commands of README.md, thin over CMakePresets.json.
#   make run [ARGS="--ranks 4"] [PRESET=cpu]   build the command line, run the main job, write build/report.html
#   make test                                  build, run the checks and tests that tell whether it works here
#   make site                                  the documents as pages: build/site/index.html
#   make check                                 all others: sanitizers, CUDA, install tree, benches, fuzzing, ...
.PHONY: help run test check site

help:
	@sed -n '2,5s/^# *//p' Makefile

# ARGS may name other files.
run: report = $(if $(findstring --report,$(ARGS)),,--report build/report.html)
run: trace = $(if $(findstring --trace,$(ARGS)),,--trace build/trace.pftrace)
run:
	@tools/setup.sh packages run
	@tools/setup.sh build $(PRESET)
	@build/overlace run $(report) $(trace) $(ARGS)

test:
	@tools/setup.sh packages test
	@python3 tools/ci/main.py quick

check:
	@tools/setup.sh packages test
	@python3 tools/ci/main.py thorough

site:
	@python3 tools/ci/docs_site.py
