# tiny-cu130-py311: tiny, locked as of 2026-11-20T00:00:00Z
# Inputs sha256:0f1290dca127f1d97c676db1832a8395d071dc9968c0d39dec1858a70f15d639
# Build it without imagegen, in the directory that `imagegen render -o` writes:
#   docker buildx build --build-context base=oci-layout://./base --build-context wheels=./wheels --build-context builds=./builds --secret "id=ca,src=${SSL_CERT_FILE:-/dev/null}" --provenance=false -t imagegen/tiny:cpu-py311-plain --output type=docker,oci-mediatypes=true,compression=zstd .

# What is installed, and why. Nothing is resolved here, and each file is checked by its hash.
FROM scratch AS requirements
COPY <<"REQUIREMENTS" /requirements.txt
# needed by hydra-core
antlr4-python3-runtime==4.9.3 --hash=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
# The configuration of every example.
hydra-core==1.3.2 --hash=sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
# needed by torch, trl
numpy==2.4.6 --hash=sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
# asked for by the image
nvidia-cuda-nvcc==13.0.88 --hash=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
# The newest that every part allows.
torch==2.13.0+cpu --hash=sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc
REQUIREMENTS

# What no wheel fits is compiled: against these packages, and against nothing else of the image.
FROM scratch AS toolchain-requirements
COPY <<"REQUIREMENTS" /requirements.txt
nvidia-cuda-nvcc==13.0.88 --hash=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
torch==2.13.0+cpu --hash=sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc
REQUIREMENTS

FROM base AS toolchain
RUN --mount=type=bind,from=toolchain-requirements,target=/mnt/requirements \
    --mount=type=bind,from=wheels,target=/mnt/wheels \
    --mount=type=cache,id=imagegen-uv,target=/mnt/cache \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=secret,id=ca <<"IMAGEGEN"
set -eu
export UV_CACHE_DIR=/mnt/cache UV_LINK_MODE=copy UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never
# Byte-code that holds whatever becomes of the files' times, and none beside the base's own modules.
export PYC_INVALIDATION_MODE=UNCHECKED_HASH PYTHONDONTWRITEBYTECODE=1
if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi
echo "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd  /mnt/wheels/uv-0.13.8-py3-none-any.whl" | sha256sum --check --quiet -
/usr/bin/python3.11 -m zipfile --extract "/mnt/wheels/uv-0.13.8-py3-none-any.whl" /tmp/uv
uv="/tmp/uv/uv-0.13.8.data/scripts/uv"
chmod 0755 "$uv"
"$uv" venv --python /usr/bin/python3.11 /opt/venv
"$uv" pip install --python /opt/venv --no-deps --require-hashes --only-binary :all: --find-links /mnt/wheels \
    --compile-bytecode --requirements /mnt/requirements/requirements.txt
rm -rf /usr/local/cuda
ln -s /opt/venv/lib/python3.11/site-packages/nvidia/cu13 /usr/local/cuda
rm -rf /opt/venv/lib/python3.11/site-packages/nvidia/cu13/lib64
ln -s lib /opt/venv/lib/python3.11/site-packages/nvidia/cu13/lib64
IMAGEGEN

# Each build has its sources and no network. What it has compiled stays in its cache until it has succeeded. One file at a
# time, unless the secret `throttle` says otherwise: --secret id=throttle,src=FILE with {"jobs":4,"threads":1} in it.

# demo-ext 1.0: no wheel is for torch 2.13
# Key sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
FROM toolchain AS build-demo-ext
RUN --network=none \
    --mount=type=bind,from=builds,source=worker,target=/mnt/worker \
    --mount=type=bind,from=builds,source=demo-ext,target=/mnt/sources \
    --mount=type=cache,id=imagegen-0123456789ab,target=/build,sharing=locked \
    --mount=type=secret,id=throttle <<"IMAGEGEN"
set -eu
set -- --spec /mnt/sources/spec.json --sources /mnt/sources --work /build --out /out
if [ -s /run/secrets/throttle ]; then set -- "$@" --throttle /run/secrets/throttle; fi
set -- /opt/venv/bin/python -I /mnt/worker/build.py "$@"
# A daemon that is killed leaves its compilers behind, and its lock of the cache ends with it: wait for them.
if command -v flock >/dev/null; then set -- flock --no-fork /build "$@"; fi
exec "$@"
IMAGEGEN

FROM scratch AS built-demo-ext
COPY --from=build-demo-ext /out/ /

# The base: debian12, 1 packages of debian/bookworm, debian-security/bookworm-security.
FROM base

# The installer is the uv that resolved the lock. `wheels` holds it and what PyPI does not serve; `ca` is the host's CA
# bundle, for networks that re-sign TLS. All that is needed in between is mounted, so that none of it stays in the image.
RUN --mount=type=bind,from=requirements,target=/mnt/requirements \
    --mount=type=bind,from=wheels,target=/mnt/wheels \
    --mount=type=bind,from=built-demo-ext,target=/mnt/built/demo-ext \
    --mount=type=cache,id=imagegen-uv,target=/mnt/cache \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=secret,id=ca <<"IMAGEGEN"
set -eu
export UV_CACHE_DIR=/mnt/cache UV_LINK_MODE=copy UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never
# Byte-code that holds whatever becomes of the files' times, and none beside the base's own modules.
export PYC_INVALIDATION_MODE=UNCHECKED_HASH PYTHONDONTWRITEBYTECODE=1
if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi
echo "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd  /mnt/wheels/uv-0.13.8-py3-none-any.whl" | sha256sum --check --quiet -
/usr/bin/python3.11 -m zipfile --extract "/mnt/wheels/uv-0.13.8-py3-none-any.whl" /tmp/uv
uv="/tmp/uv/uv-0.13.8.data/scripts/uv"
chmod 0755 "$uv"
"$uv" venv --python /usr/bin/python3.11 /opt/venv
"$uv" pip install --python /opt/venv --no-deps --require-hashes --only-binary :all: --find-links /mnt/wheels \
    --requirements /mnt/requirements/requirements.txt
# What was compiled above has no hash that could be known before.
"$uv" pip install --python /opt/venv --no-deps --no-index --compile-bytecode \
    --find-links /mnt/built/demo-ext demo-ext==1.0
IMAGEGEN

# Files of every image: startup checks, constraints for pip and uv, a home for any user.
COPY support/ /opt/imagegen/
RUN <<"IMAGEGEN"
set -eu
/usr/bin/python3.11 -IS -m compileall -q --invalidation-mode unchecked-hash /opt/imagegen/preflight
install --directory --mode=1777 /home/user /home/user/.cache /workspace
rm -rf /root/.cache
ln -s /home/user/.cache /root/.cache
rm -rf /usr/local/cuda
ln -s /opt/venv/lib/python3.11/site-packages/nvidia/cu13 /usr/local/cuda
rm -rf /opt/venv/lib/python3.11/site-packages/nvidia/cu13/lib64
ln -s lib /opt/venv/lib/python3.11/site-packages/nvidia/cu13/lib64
IMAGEGEN

# The environment comes after the installation, which it must not influence.

# The stack's venv comes first, and text is UTF-8.
ENV PATH="/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV VIRTUAL_ENV="/opt/venv"
# A lock has the last word.
ENV LANG="en_US.UTF-8"
# One home for every user, named or not: caches of Hugging Face, Triton, vLLM and flashinfer are below it.
ENV HOME="/home/user"
# A name for users without one: Python's getpass.getuser() fails otherwise.
ENV LOGNAME="user"
# Packages installed later cannot change the stack: pip and uv reject other versions.
ENV PIP_CONSTRAINT="/opt/imagegen/constraints.txt"
ENV UV_CONSTRAINT="/opt/imagegen/constraints.txt"
# Quoting is shown to whoever reads the golden file.
ENV GREETING="say \"\$HOME\" \\ #1"

WORKDIR /workspace
LABEL org.opencontainers.image.title="tiny"
LABEL org.opencontainers.image.created="2026-11-20T00:00:00Z"
LABEL org.opencontainers.image.version="torch2.13.0-cu130-py311"
LABEL dev.imagegen.cell="tiny-cu130-py311"
LABEL dev.imagegen.inputs="sha256:0f1290dca127f1d97c676db1832a8395d071dc9968c0d39dec1858a70f15d639"
LABEL dev.imagegen.version.torch="2.13.0+cpu"
LABEL dev.imagegen.gpu.capabilities="9.0,12.0"
LABEL dev.imagegen.gpu.driver="580.65.06"
ENTRYPOINT ["/opt/imagegen/entrypoint"]
CMD ["/bin/bash"]
