#!/usr/bin/env bash
# Prepares this machine and builds; used by the Makefile. Safe to repeat: a second call does next to nothing.
#   tools/setup.sh packages run|test   packages of requirements/debian.txt: as root installs, else names what is missing
#   tools/setup.sh build [PRESET]      the command line, linked as build/overlace; default: preset cuda where nvcc and
#                                      a GPU are found, else cpu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
list=requirements/debian.txt

# Installed according to dpkg, or its probe is there (tools that came another way).
is_there() {  # package probe
  if [[ $2 == /* ]]; then
    [[ -e $2 ]] && return
  elif [[ $2 != - ]]; then
    command -v "$2" > /dev/null && return
  fi
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null) == installed ]]
}

missing() {  # needs...: prints one missing package per line
  local package need probe
  while read -r package need probe; do
    [[ -z $package || $package == \#* || " $* " != *" $need "* ]] && continue
    is_there "$package" "$probe" || echo "$package"
  done < "$list"
}

apt_install() {  # packages...
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > build/packages.log 2>&1
}

packages() {  # run|test
  local needs=(run) required=() optional=()
  [[ $1 == test ]] && needs=(run test)
  mapfile -t required < <(missing "${needs[@]}")
  if [[ $(id -u) != 0 ]]; then
    [[ ${#required[@]} == 0 ]] && return
    echo "overlace: missing packages: ${required[*]}" >&2
    echo "Install them with: sudo apt-get install ${required[*]}" >&2
    return 1
  fi
  mapfile -t optional < <(missing optional)
  # NOTE: optional packages are tried once per checkout; a machine that lacks them should not ask again at each run.
  [[ build/.optional-tried -nt $list ]] && optional=()
  ((${#required[@]} + ${#optional[@]})) || return 0
  echo "overlace: installing packages: ${required[*]} ${optional[*]}" >&2
  apt-get update -qq > build/packages.log 2>&1 || true
  if ((${#required[@]})) && ! apt_install "${required[@]}"; then
    tail -n 5 build/packages.log >&2
    echo "overlace: could not install; missing packages: $(missing "${needs[@]}" | xargs)" >&2
    return 1
  fi
  local package
  for package in "${optional[@]}"; do
    apt_install "$package" || echo "overlace: goes on without the optional package $package" >&2
  done
  touch build/.optional-tried
  rm -f build/*/.configured
}

default_preset() {
  if { command -v nvcc > /dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; } &&
    { [[ -e /dev/nvidia0 ]] || nvidia-smi -L > /dev/null 2>&1; }; then
    echo cuda
  else
    echo cpu
  fi
}

# Shows the output on a terminal; else keeps it in a file and shows its end only after a failure.
quietly() {  # log command...
  local log=$1
  shift
  if [[ -t 1 ]]; then
    "$@"
  elif ! "$@" > "$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "overlace: failed: $* (all of it: $log)" >&2
    return 1
  fi
}

build() {  # preset
  local preset=$1 dir=build/$1 cache=build/$1/CMakeCache.txt
  export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
  # A build folder that was copied from another place is of no use.
  if [[ -f $cache ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache"; then
    rm -rf "$dir"
  fi
  if [[ ! -e $dir/.configured || CMakePresets.json -nt $dir/.configured ]]; then
    mkdir -p "$dir"
    quietly "$dir/configure.log" cmake --preset "$preset"
    touch "$dir/.configured"
  fi
  [[ -x $dir/overlace ]] || echo "overlace: building (preset $preset)" >&2
  quietly "$dir/build.log" ninja -C "$dir" -j "$(nproc)" overlace
  ln -sfn "$preset/overlace" build/overlace
}

mkdir -p build
case "${1:-}" in
  packages) packages "$2" ;;
  build) build "${2:-$(default_preset)}" ;;
  *)
    echo "usage: tools/setup.sh packages run|test; tools/setup.sh build [PRESET]" >&2
    exit 2
    ;;
esac
