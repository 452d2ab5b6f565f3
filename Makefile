# The two commands of README.md, thin over CMakePresets.json.
#   make run [ARGS="--ranks 4"] [PRESET=cpu]   build the command line, run the main job, write build/report.html
#   make test                                  build everything, run all checks and tests (.ci/run is the same)
.PHONY: help run test

help:
	@sed -n '2,3s/^# *//p' Makefile

# ARGS may name other files.
run: report = $(if $(findstring --report,$(ARGS)),,--report build/report.html)
run: trace = $(if $(findstring --trace,$(ARGS)),,--trace build/trace.pftrace)
run:
	@tools/setup.sh packages run
	@tools/setup.sh build $(PRESET)
	@build/overlace run $(report) $(trace) $(ARGS)

test:
	@tools/setup.sh packages test
	@python3 tools/ci/main.py default
