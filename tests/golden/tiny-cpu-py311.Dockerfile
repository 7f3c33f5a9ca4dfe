# tiny-cpu-py311: tiny, locked as of 2026-11-20T00:00:00Z
# Inputs sha256:e97b6705fa70d706ccf26e03f62dfd99a0f6cf27da66ddad923d5f61fbe30f48
# Build it without imagegen, in the directory that `imagegen render -o` writes:
#   docker buildx build --build-context base=oci-layout://./base --build-context wheels=./wheels --secret "id=ca,src=${SSL_CERT_FILE:-/dev/null}" --provenance=false -t imagegen/tiny:cpu-py311-plain --output type=docker,oci-mediatypes=true,compression=zstd .

# What is installed, and why. Nothing is resolved here, and each file is checked by its hash.
FROM scratch AS requirements
COPY <<"REQUIREMENTS" /requirements.txt
# needed by hydra-core
antlr4-python3-runtime==4.9.3 --hash=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
# The configuration of every example.
hydra-core==1.3.2 --hash=sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
# needed by torch, trl
numpy==2.4.6 --hash=sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
# The newest that every part allows.
torch==2.13.0+cpu --hash=sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc
REQUIREMENTS

# The base: debian12, 1 packages of debian/bookworm, debian-security/bookworm-security.
FROM base

# The installer is the uv that resolved the lock. `wheels` holds it and what PyPI does not serve; `ca` is the host's CA
# bundle, for networks that re-sign TLS. All that is needed in between is mounted, so that none of it stays in the image.
RUN --mount=type=bind,from=requirements,target=/mnt/requirements \
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
IMAGEGEN

# Files of every image: startup checks, constraints for pip and uv, a home for any user.
COPY support/ /opt/imagegen/
RUN <<"IMAGEGEN"
set -eu
/usr/bin/python3.11 -IS -m compileall -q --invalidation-mode unchecked-hash /opt/imagegen/preflight
install --directory --mode=1777 /home/user /home/user/.cache /workspace
rm -rf /root/.cache
ln -s /home/user/.cache /root/.cache
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
LABEL org.opencontainers.image.version="torch2.13.0-cpu-py311"
LABEL dev.imagegen.cell="tiny-cpu-py311"
LABEL dev.imagegen.inputs="sha256:e97b6705fa70d706ccf26e03f62dfd99a0f6cf27da66ddad923d5f61fbe30f48"
LABEL dev.imagegen.version.torch="2.13.0+cpu"
ENTRYPOINT ["/opt/imagegen/entrypoint"]
CMD ["/bin/bash"]
