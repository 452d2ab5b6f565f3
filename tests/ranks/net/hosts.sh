#!/bin/sh
# Several hosts on this machine: network namespaces on a bridge, each with a host name of its own. Everything lives in
# namespaces of this process and goes with it.
#   hosts.sh check                           says why this machine cannot do it, with status 1
#   hosts.sh run HOSTS RANKS_EACH PROGRAM... starts the program with Open MPI, or with MPICH: OVERLACE_TEST_MPI=mpich
# Called with an address in front by mpirun, as its remote shell.
set -eu
self=$(readlink -f "$0")

setup() { # hosts
  mount -t tmpfs none /run/netns 2> /dev/null || { mkdir -p /run/netns && mount -t tmpfs none /run/netns; }
  ip link set lo up
  ip link add br0 type bridge
  ip addr add 10.77.0.254/24 dev br0
  ip link set br0 up
  i=1
  while [ "$i" -le "$1" ]; do
    ip netns add "h$i"
    ip link add "v$i" type veth peer name eth0 netns "h$i"
    ip link set "v$i" master br0 up
    ip -n "h$i" link set lo up
    ip -n "h$i" addr add "10.77.0.$i/24" dev eth0
    ip -n "h$i" link set eth0 up
    i=$((i + 1))
  done
}

case $1 in
  check)
    exec unshare --net --mount --uts --propagation private "$self" inside_check
    ;;
  inside_check)
    setup 1
    ;;
  run)
    shift
    exec unshare --net --mount --uts --propagation private "$self" inside "$@"
    ;;
  inside)
    hosts=$2 each=$3
    shift 3
    setup "$hosts"
    list=''
    i=1
    while [ "$i" -le "$hosts" ]; do
      list=$list${list:+,}10.77.0.$i:$each
      i=$((i + 1))
    done
    if [ "${OVERLACE_TEST_MPI:-openmpi}" = mpich ]; then
      exec mpiexec.hydra -launcher rsh -launcher-exec "$self" -iface br0 -bind-to none -hosts "$list" \
        -n $((hosts * each)) "$@"
    fi
    # shellcheck disable=SC2086  # words of their own
    exec mpirun.openmpi --mca plm_rsh_agent "$self" --mca plm_rsh_no_tree_spawn 1 --mca btl tcp,self,vader \
      --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 --bind-to none \
      ${OVERLACE_TEST_MPIRUN:-} --host "$list" -n $((hosts * each)) "$@"
    ;;
  10.77.0.*)
    name=h${1##*.}
    shift
    exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"
    ;;
  *)
    echo "hosts.sh: $1 is unknown" >&2
    exit 2
    ;;
esac
