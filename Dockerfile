# Two images from one file:
#   docker build --target cpu  -t kvmat:cpu .
#   docker build --target cuda -t kvmat:cuda .
# deploy/README.md says how to run them; deploy/prove.sh runs the cpu target's steps without a container engine.

# The version to show; `git describe --tags --always --dirty` is a good value, since .git is not in the context.
ARG VERSION=unknown

FROM debian:12-slim AS build
ARG VERSION
WORKDIR /src
COPY tests/packages.sh tests/packages.sh
RUN tests/packages.sh build
COPY . .
RUN make CUDA= VERSION="$VERSION" \
    && install -D -t /out build/release/kvmatd build/release/kvmat

FROM debian:12-slim AS cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends libmicrohttpd12 libjansson4 libxxhash0 \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 /run/kvmat
COPY --from=build /out/ /usr/local/bin/
# The address is one inside the container: publish the port, or share the network, to reach it. It is open to all who
# reach it, so a start asks for KVMAT_API_KEY_FILE or KVMAT_ALLOW_ANONYMOUS=1. /run/kvmat is for a unix socket; a new
# volume mounted there gets its owner.
ENV KVMAT_MODEL=/model KVMAT_LISTEN=0.0.0.0:8600
USER 10001:10001
EXPOSE 8600
VOLUME /model
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["/usr/local/bin/kvmat", "ready"]
ENTRYPOINT ["/usr/local/bin/kvmatd"]

# With the CUDA backend. Where the container is given no GPU, the daemon serves on the CPU, and its log and /v1/model say
# so; KVMAT_DEVICE=cuda makes that an error.
FROM nvidia/cuda:13.0.0-devel-ubuntu24.04 AS build-cuda
ARG VERSION
WORKDIR /src
COPY tests/packages.sh tests/packages.sh
RUN tests/packages.sh build
COPY . .
RUN make CUDA=/usr/local/cuda VERSION="$VERSION" \
    && install -D -t /out build/release/kvmatd build/release/kvmat

FROM nvidia/cuda:13.0.0-runtime-ubuntu24.04 AS cuda
RUN apt-get update \
    && apt-get install -y --no-install-recommends libmicrohttpd12t64 libjansson4 libxxhash0 \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 /run/kvmat
COPY --from=build-cuda /out/ /usr/local/bin/
ENV KVMAT_MODEL=/model KVMAT_LISTEN=0.0.0.0:8600 KVMAT_DEVICE=auto
USER 10001:10001
EXPOSE 8600
VOLUME /model
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["/usr/local/bin/kvmat", "ready"]
ENTRYPOINT ["/usr/local/bin/kvmatd"]
