#!/usr/bin/env bash
# Installs what the tests against other programs need besides the build, into .venv: what torch itself imports, and each
# release of transformers that we are compared with, in a folder of its own (.venv/hf-VERSION, 150 MB). What is there
# already is left alone. Without a network those tests are skipped, and say so: this script ends well in any case.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

say() { printf 'setup: %s\n' "$*"; }
pip_install() { .venv/bin/python -m pip install --disable-pip-version-check -q "$@" 2>>build/pip-interop.log; }
skip() { say "SKIPPED: $*"; exit 0; }

# transformers VERSION REQUIREMENT...: without its dependencies, for numpy and more are in .venv already.
transformers() {
  local folder=.venv/hf-$1
  [[ ! -d $folder ]] || return 0
  say "installing transformers $1 into $folder"
  rm -rf -- "$folder.part"
  pip_install --no-deps --target "$folder.part" "transformers==$1" "${@:2}" && mv -- "$folder.part" "$folder" ||
    say "SKIPPED: transformers $1 is not to be had (build/pip-interop.log); its tests will be skipped"
}

mkdir -p build
: >build/pip-interop.log
compgen -G ".venv/lib/python3*/site-packages/torch/__init__.py" >/dev/null ||
  skip "no torch in .venv, LibTorch lies elsewhere; the tests against Hugging Face will be skipped"
# The CPU build of torch was installed without its dependencies.
.venv/bin/python -c 'import importlib.util as u, sys
sys.exit(any(u.find_spec(name) is None for name in sys.argv[1:]))' \
    numpy filelock fsspec jinja2 networkx sympy typing_extensions ||
  pip_install numpy filelock fsspec jinja2 networkx sympy typing-extensions ||
  skip "numpy and what torch imports are not to be had (build/pip-interop.log)"

transformers 4.57.6 huggingface_hub==0.36.2 tokenizers==0.22.2 safetensors==0.8.0 \
             certifi charset-normalizer idna packaging pyyaml regex requests tqdm urllib3
transformers 5.18.0 huggingface_hub==2.4.0 tokenizers==0.23.3 safetensors==0.8.0 \
             httpx2==2.16.2 httpcore2==2.16.2 anyio h11 idna packaging pyyaml regex tqdm truststore
