# shellcheck shell=bash
# A Docker engine and the judges' image for the tests of the `docker` level.  Sourced by .ci/run.
#
#   engine_start FOLDER   exports DOCKER_HOST of a new engine that keeps everything in FOLDER, unless one answers already
#   engine_image          builds judges/Dockerfile under the name that the judges look for
#   engine_stop           ends what engine_start started, with every container of it
# Each of the first two says why on standard error and returns 1 where it cannot.

engine_pid=
engine_seconds=30

engine_start() {
    local folder=$1
    docker info >/dev/null 2>&1 && return
    if [ "$(id -u)" != 0 ] || ! command -v dockerd >/dev/null; then
        echo "no Docker engine answers, and starting one needs root and dockerd" >&2
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
    echo "dockerd does not start: $(grep -v level=info "$folder/log" | tail -1)" >&2
    engine_stop
    return 1
}

engine_stop() {
    unset DOCKER_HOST
    [ -n "$engine_pid" ] || return 0
    kill "$engine_pid" 2>/dev/null || true
    timeout "$engine_seconds" tail --pid="$engine_pid" -f /dev/null || kill -9 "$engine_pid" || true
    wait "$engine_pid" || true
    engine_pid=
}

engine_image() {
    local name
    name=$(python -c 'from judges.sandbox import docker; print(docker.default_image())')
    # The classic builder: BuildKit is a package of its own.
    export DOCKER_BUILDKIT=0
    # What the README says, where registries can be reached.  (Some engines, such as ours, have no other network.)
    timeout 300 docker build -q --network host -t "$name" judges >/dev/null 2>&1 && return
    echo "no registry can be reached: the judges' image is built on a base made of this Python"
    python .ci/docker/base_image.py | docker import - tttdd-judge-base >/dev/null &&
        docker build -q --network none --build-arg BASE=tttdd-judge-base -t "$name" judges >/dev/null
}
