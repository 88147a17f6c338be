# Two commands matter: `make demo` and `make test`. Both build what they need under .venvs/.
.DEFAULT_GOAL := help
PYTHON ?= $(shell for p in python3.11 python3.12 python3.10; do command -v $$p && break; done)
VENVS := .venvs

help:  ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
