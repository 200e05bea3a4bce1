# shellcheck shell=bash
# A Docker engine and the judges' image for the tests of the judges' `docker` level.  Sourced by .ci/run.
#
#   engine_start FOLDER   DOCKER_HOST of an engine that answers, else of a new one that keeps everything in FOLDER;
#                         where none can start it says why and returns 1
#   engine_image          builds judges/Dockerfile under the name that the judges look for
#   engine_stop           ends what engine_start started, with its containers

engine_pid=
engine_seconds=30

engine_start() {
    local folder=$1
    if docker info >/dev/null 2>&1; then
        DOCKER_HOST=${DOCKER_HOST:-$(docker context inspect --format '{{.Endpoints.docker.Host}}')}
        export DOCKER_HOST
        return
    fi
    if [ "$(id -u)" != 0 ] || ! command -v dockerd >/dev/null; then
        echo "no Docker engine answers, and starting one needs root and dockerd"
        return 1
    fi
    mkdir -p "$folder"
    # No bridge and no firewall rules: containers have no network here, and the machine's own stays as it is.
    dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" -H "unix://$folder/socket" \
        --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false >"$folder/log" 2>&1 &
    engine_pid=$!
    export DOCKER_HOST=unix://$folder/socket
    for ((tenth = 0; tenth < 10 * engine_seconds; tenth++)); do
        docker info >/dev/null 2>&1 && return
        kill -0 "$engine_pid" 2>/dev/null || break
        sleep 0.1
    done
    echo "dockerd does not start: $(grep -v level=info "$folder/log" | tail -1)"
    engine_stop
    return 1
}

engine_stop() {
    unset DOCKER_HOST
    [ -n "$engine_pid" ] || return 0
    kill "$engine_pid" 2>/dev/null || true
    timeout "$engine_seconds" tail --pid="$engine_pid" -f /dev/null || kill -9 "$engine_pid" || true
    wait "$engine_pid" 2>/dev/null || true
    engine_pid=
}

engine_image() {
    local name log
    name=$(python -c 'from judges.sandbox import docker; print(docker.DEFAULT_IMAGE)')
    export DOCKER_BUILDKIT=0 # BuildKit is a package of its own
    # As the README says; with the host's network, as our own engine has no other.
    if log=$(timeout 300 docker build -q --network host -t "$name" judges 2>&1); then
        return
    fi
    echo "the judges' image is built on this Python: $(tail -1 <<<"$log")"
    python .ci/docker/base_image.py | docker import - tttdd-judge-base >/dev/null &&
        docker build -q --network none --build-arg BASE=tttdd-judge-base -t "$name" judges >/dev/null
}
